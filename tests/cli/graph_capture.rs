//! Tests CUDA graphs whose capture is in one trace file and whose launches are in another. All traces are hand-made.
use std::fs;
use std::path::Path;

use crate::support::command::{Ran, gpuflame};
use crate::support::scratch;

/// Returns a trace event with a duration on a thread.
fn slice(category: &str, name: &str, from: u64, nanos: u64, args: &str) -> String {
    format!(
        r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":1,"tid":2,"ts":{from},"dur":{nanos},"args":{{{args}}}}}"#
    )
}

/// Returns the launch call of `kernel`, which is made during a capture.
fn captured(at: u64, kernel: &str, more: &str) -> String {
    let kernel = if kernel.is_empty() { String::new() } else { format!(r#","kernel":"{kernel}""#) };
    slice(
        "cuda_runtime",
        "hipModuleLaunchKernel",
        at,
        1,
        &format!(r#""correlation":{}{kernel}{more}"#, 1000 + at),
    )
}

/// Returns the events of a model layer `name` of 100 us, during which a graph with these kernels is captured.
fn layer(at: u64, name: &str, kernels: &[&str]) -> Vec<String> {
    let mut events = vec![
        slice("python_function", &format!("nn.Module: {name}"), at, 99, ""),
        slice("cuda_runtime", "hipStreamBeginCapture", at + 1, 1, ""),
        slice("cuda_runtime", "hipStreamEndCapture", at + 97, 1, ""),
    ];
    events.extend((0..).zip(kernels).map(|(place, kernel)| captured(at + 5 + 3 * place, kernel, "")));
    events
}

/// Returns the events of a graph launch at the time `at`. Each operation of the graph takes 10 us, and is given as
/// (name, stream, further arguments).
fn launch(at: u64, ops: &[(&str, u32, &str)]) -> Vec<String> {
    let mut events = vec![slice("cuda_runtime", "hipGraphLaunch", at, 5, &format!(r#""correlation":{at}"#))];
    events.extend((1..).zip(ops).map(|(place, (name, stream, more))| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":{stream},"ts":{},"dur":10,"args":{{"correlation":{at},"device":0,"stream":{stream}{more}}}}}"#,
            at + 10 * place
        )
    }));
    events
}

fn write(folder: &Path, name: &str, events: &[Vec<String>]) {
    fs::write(folder.join(name), format!("{{\"traceEvents\":[\n{}\n]}}", events.concat().join(",\n")))
        .unwrap();
}

fn drawn(folder: &Path) -> Ran {
    gpuflame(folder, ["flamegraph", "run.json", "--graph-capture", "capture.json"]).ok()
}

#[test]
fn graph_operations_are_attached_to_captured_calls_by_order_and_name() {
    let folder = scratch("graph-capture");
    // Two layers have the same kernels. Only the order of the graph launches distinguishes the two layers.
    let captures = [
        layer(0, "Embed", &["embed"]),
        layer(100, "Layer_0", &["norm", "gemm"]),
        layer(200, "Layer_1", &["norm", "gemm"]),
    ];
    write(&folder, "capture.json", &captures);
    let two = [("norm", 7, ""), ("gemm", 7, "")];
    let step = |at: u64| [launch(at, &[("embed", 7, "")]), launch(at + 100, &two), launch(at + 200, &two)];
    write(&folder, "run.json", &[step(1000), step(2000)].concat());
    let ran = drawn(&folder);
    let expected = "hipGraphLaunch;[graph];nn.Module: Embed;hipModuleLaunchKernel;[GPU_Kernel]embed 20000\n\
                    hipGraphLaunch;[graph];nn.Module: Layer_0;hipModuleLaunchKernel;[GPU_Kernel]gemm 20000\n\
                    hipGraphLaunch;[graph];nn.Module: Layer_0;hipModuleLaunchKernel;[GPU_Kernel]norm 20000\n\
                    hipGraphLaunch;[graph];nn.Module: Layer_1;hipModuleLaunchKernel;[GPU_Kernel]gemm 20000\n\
                    hipGraphLaunch;[graph];nn.Module: Layer_1;hipModuleLaunchKernel;[GPU_Kernel]norm 20000\n";
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("100.0 % of the graphs' GPU time (100"), "{}", ran.stderr);
    // If the file that contains the capture is not read, stacks contain the graph launch but do not contain a layer of
    // the model.
    let alone = gpuflame(&folder, ["flamegraph", "run.json"]).ok().stdout;
    assert!(!alone.contains("nn.Module"), "{alone}");
}

#[test]
fn ambiguous_graph_operations_are_left_unattached_and_their_share_is_reported() {
    let folder = scratch("graph-capture");
    write(&folder, "capture.json", &[layer(0, "A", &["gemm"]), layer(100, "B", &["gemm"])]);
    write(&folder, "run.json", &[launch(1000, &[("gemm", 7, "")])]);
    let ran = drawn(&folder);
    assert_eq!(ran.stdout, "hipGraphLaunch;[graph];[graph node unknown];[GPU_Kernel]gemm 10000\n");
    assert!(ran.stderr.contains("100.0 % match several captured calls"), "{}", ran.stderr);
}

#[test]
fn a_node_id_in_both_files_overrides_the_order() {
    let folder = scratch("graph-capture");
    let node = |at, id: u32| captured(at, "", &format!(r#","graph node id":{id}"#));
    let mut capture = layer(0, "A", &[]);
    capture.push(node(10, 51));
    capture.extend(layer(100, "B", &[]));
    capture.push(node(110, 52));
    write(&folder, "capture.json", &[capture]);
    let ops = [("x", 7, r#","graph node id":52"#), ("y", 7, r#","graph node id":51"#)];
    write(&folder, "run.json", &[launch(1000, &ops)]);
    let expected = "hipGraphLaunch;[graph];nn.Module: A;hipModuleLaunchKernel;[GPU_Kernel]y 10000\n\
                    hipGraphLaunch;[graph];nn.Module: B;hipModuleLaunchKernel;[GPU_Kernel]x 10000\n";
    assert_eq!(drawn(&folder).stdout, expected);
}

#[test]
fn captured_calls_without_kernel_names_match_by_count_and_are_marked_guessed() {
    let folder = scratch("graph-capture");
    write(&folder, "capture.json", &[layer(0, "A", &["", ""])]);
    write(&folder, "run.json", &[launch(1000, &[("x", 7, ""), ("y", 7, "")]), launch(1100, &[("x", 7, "")])]);
    let ran = drawn(&folder);
    let expected = "hipGraphLaunch;[graph];[graph node unknown];[GPU_Kernel]x 10000\n\
                    hipGraphLaunch;[graph];nn.Module: A;hipModuleLaunchKernel;[guessed by count];[GPU_Kernel]x 10000\n\
                    hipGraphLaunch;[graph];nn.Module: A;hipModuleLaunchKernel;[guessed by count];[GPU_Kernel]y 10000\n";
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("guessed by count"), "{}", ran.stderr);
}

#[test]
fn graph_branches_on_two_streams_are_matched_separately() {
    let folder = scratch("graph-capture");
    write(&folder, "capture.json", &[layer(0, "A", &["first", "left", "right", "last"])]);
    let ops = [("first", 7, ""), ("right", 8, ""), ("left", 7, ""), ("last", 7, "")];
    write(&folder, "run.json", &[launch(1000, &ops)]);
    let ran = drawn(&folder);
    assert_eq!(ran.stdout.lines().filter(|line| line.contains("nn.Module: A;")).count(), 4, "{}", ran.stdout);
}

#[test]
fn a_file_without_a_graph_capture_is_rejected_by_name() {
    let folder = scratch("graph-capture");
    write(&folder, "run.json", &[launch(1000, &[("x", 7, "")])]);
    fs::copy(folder.join("run.json"), folder.join("capture.json")).unwrap();
    gpuflame(&folder, ["flamegraph", "run.json", "--graph-capture", "capture.json"])
        .fails(1, &["capture.json", "contains no capture of a graph"]);
}
