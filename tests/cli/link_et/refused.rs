//! Invalid files that `link-et` and other verbs refuse with one line of text.

use std::fs;

use serde_json::{Value, json};

use super::pairs::{call, execution_trace, node, op, slice, training_step, work, write};
use super::{Ran, chakra, link};
use crate::support::command::gpuflame;
use crate::support::scratch;

const ET: &str = "pytorch_et_step.json";
const KINETO: &str = "kineto_step.json";

#[test]
fn pairs_that_do_not_belong_together_are_refused() {
    let folder = scratch("link-et-refused");
    training_step(&folder);
    let refused = |words: &[&str], code: i32, line: &[&str]| link(&folder, words).fails(code, line);
    refused(&[KINETO, ET], 1, &["are swapped", ET, "give it first"]);
    refused(&[ET, ET], 1, &["not a Kineto trace", "torch.profiler"]);
    refused(&[KINETO, KINETO], 1, &["not a PyTorch execution trace", "ExecutionTraceObserver"]);
    refused(&[ET, KINETO, ET], 2, &["pairs of files", "no Kineto trace"]);
    refused(&[ET, KINETO, ET, KINETO], 2, &["two execution traces have the name step"]);
    refused(&[ET, "absent.json"], 1, &["absent.json", "no such file"]);
    refused(&["-", "-"], 2, &["standard input (-) can be given once"]);
    refused(&[ET, KINETO, "-o", ET], 2, &["-o", ET, "is not a folder", "give another name"]);
    let mut other: Value = serde_json::from_str(&fs::read_to_string(folder.join(ET)).unwrap()).unwrap();
    other["pid"] = 5.into();
    write(&folder, "other.json", &other);
    refused(&["other.json", KINETO], 1, &["other.json", KINETO, "process 5", "process 77"]);
    assert!(!folder.join("chakra_trace_other.et").exists());
}

#[test]
fn all_files_are_opened_before_the_first_pair_is_linked() {
    let folder = scratch("link-et-refused");
    training_step(&folder);
    fs::copy(folder.join(ET), folder.join("second.json")).unwrap();
    let pairs =
        |second: &str| vec![ET.to_owned(), KINETO.to_owned(), "second.json".to_owned(), second.to_owned()];
    let run = |second: &str| {
        let mut words = pairs(second);
        words.extend(["-o".to_owned(), "out".to_owned()]);
        link(&folder, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    run("absent.json").fails(1, &["absent.json", "no such file"]);
    run(ET).fails(1, &[ET, "not a Kineto trace"]);
    assert!(!folder.join("out").exists());
    // While `link-et` reads this file, it finds that the file is damaged, and not earlier. At that time the pair of
    // files before this one is already linked, and the table contains that pair.
    write(&folder, "late.json", &json!({ "traceEvents": [op("aten::mm", 1, 77, 1.0, 2.0)] }));
    let ran = run("late.json");
    let line = "no rf_id of the execution trace";
    assert!(ran.code == 1 && ran.stderr.contains("late.json") && ran.stderr.contains(line), "{}", ran.stderr);
    assert!(ran.stdout.contains(" step") && !ran.stdout.contains("second"), "{}", ran.stdout);
    assert!(folder.join("out/chakra_trace_step.et").exists());
}

#[test]
fn a_linked_trace_is_not_linked_again_and_info_counts_its_gpu_work_separately() {
    let folder = scratch("link-et-refused");
    training_step(&folder);
    link(&folder, &[ET, KINETO]).ok();
    link(&folder, &["pytorch_et_plus_step.json", KINETO])
        .fails(1, &["is linked already", "ExecutionTraceObserver"]);
    let words = ["info", "pytorch_et_plus_step.json", "--format", "json"];
    let shown: Value = serde_json::from_str(&gpuflame(&folder, words).ok().stdout).unwrap();
    let facts = shown["facts"].as_array().unwrap();
    let fact = |what: &str| &facts.iter().find(|row| row["what"] == what).unwrap()["value"];
    assert_eq!(
        (fact("nodes"), fact("operators and ranges"), fact("GPU nodes")),
        (&json!(16), &json!(7), &json!(6))
    );
    assert_eq!(fact("nodes without an rf_id"), 3);
    let names: Vec<_> =
        shown["operators"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
    assert!(names.contains(&json!("aten::mm")) && !names.contains(&json!("gemm")), "{names:?}");
}

#[test]
fn one_node_and_several_nodes_without_a_parent_have_a_verb_that_fits() {
    let folder = scratch("link-et-refused");
    let events = [op("aten::mm", 100, 77, 1.0, 2.0), op("aten::add", 101, 77, 4.0, 2.0)];
    write(&folder, "timeline.json", &json!({ "traceEvents": events }));
    for (parent, line) in [(2, "1 node names a parent"), (8, "2 nodes name a parent")] {
        let nodes =
            [node(10, "aten::mm", 9, 100, 1, json!([])), node(11, "aten::add", parent, 101, 1, json!([]))];
        write(&folder, "et.json", &execution_trace(&nodes));
        let ran = link(&folder, &["et.json", "timeline.json"]).ok();
        assert!(ran.stderr.contains(line), "{}", ran.stderr);
    }
}

#[test]
fn sums_that_exceed_64_bits_end_at_the_maximum() {
    let folder = scratch("link-et-refused");
    // Three collectives have 2^63 elements of one byte each.
    let values = json!([[[1, 2, 0, 9_223_372_036_854_775_808_u64, 1, "cuda:0"]], 151, "allreduce"]);
    let nodes = [10, 11, 12].map(|id| node(id, "record_param_comms", 2, 90 + id, 1, values.clone()));
    write(&folder, "et.json", &execution_trace(&nodes));
    let shown = gpuflame(&folder, ["info", "et.json", "--format", "json"]).ok().stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["communication"][0]["bytes"], u64::MAX);
}

#[test]
fn traces_of_different_runs_are_refused() {
    let folder = scratch("link-et-refused");
    let one = |name: &str, rf_id: u64| execution_trace(&[node(10, name, 2, rf_id, 1, json!([]))]);
    write(&folder, "timeline.json", &json!({ "traceEvents": [op("aten::mm", 100, 77, 1.0, 2.0)] }));
    for (name, rf_id, line) in [
        ("aten::mm", 900, "no rf_id of the execution trace is a Record function id"),
        ("aten::add", 100, "only 0 of 1 operators with the same number have the same name"),
        ("aten::mm", 0, "no node of the execution trace has an rf_id"),
    ] {
        write(&folder, "et.json", &one(name, rf_id));
        link(&folder, &["et.json", "timeline.json"]).fails(1, &["et.json", "timeline.json", line]);
    }
    write(&folder, "et.json", &one("aten::add", 100));
    let bare = slice("cpu_op", "aten::mm", 77, 1.0, 2.0, json!({}));
    write(&folder, "timeline.json", &json!({ "traceEvents": [bare] }));
    link(&folder, &["et.json", "timeline.json"]).fails(1, &["no Record function ids", "same order"]);
    let gpu = work("kernel", "gemm", 1, 7, 5.0, 1.0);
    write(
        &folder,
        "timeline.json",
        &json!({ "traceEvents": [call("cudaLaunchKernel", 1, 77, 1.0, 1.0), gpu] }),
    );
    link(&folder, &["et.json", "timeline.json"]).fails(1, &["no operators", "ProfilerActivity.CPU"]);
}

#[test]
fn cut_and_damaged_files_are_refused() {
    let folder = scratch("link-et-refused");
    training_step(&folder);
    let cut = |name: &str, by: usize| {
        let bytes = fs::read(folder.join(name)).unwrap();
        fs::write(folder.join(format!("cut_{name}")), &bytes[..bytes.len() - by]).unwrap();
        format!("cut_{name}")
    };
    // PyTorch writes the version as the first key of the file.
    let text = fs::read_to_string(folder.join(ET)).unwrap();
    fs::write(folder.join(ET), text.replacen('{', "{\"schema\": \"1.1.0-chakra.0.0.4\", ", 1)).unwrap();
    let (et, timeline) = (cut(ET, 700), cut(KINETO, 300));
    link(&folder, &[&et, KINETO]).fails(1, &[&et, "truncated", "stop the observer before the process exits"]);
    link(&folder, &[ET, &timeline]).fails(1, &[&timeline, "truncated at byte", "--accept-cut"]);
    let Ran { stderr, .. } = link(&folder, &[ET, &timeline, "--accept-cut"]).ok();
    assert!(stderr.contains("truncated at byte"), "{stderr}");
    assert!(chakra(&folder.join("chakra_trace_step.et")).len() > 10);
    gpuflame(&folder, ["info", &et]).fails(1, &[&et, "truncated"]);
    fs::rename(folder.join("chakra_trace_step.et"), folder.join("c.et")).unwrap();
    gpuflame(&folder, ["info", &cut("c.et", 5)]).fails(1, &["cut_c.et", "is truncated", "nodes precede it"]);
}

#[test]
fn other_verbs_name_the_verbs_for_execution_traces() {
    let folder = scratch("link-et-refused");
    training_step(&folder);
    link(&folder, &[ET, KINETO]).ok();
    for verb in ["top", "summary", "check"] {
        let line = ["execution trace", "give the Kineto trace of the same run", "`gpuflame info`"];
        gpuflame(&folder, [verb, ET]).fails(1, &[&line[..], &[ET, "`gpuflame link-et`"]].concat());
        gpuflame(&folder, [verb, "chakra_trace_step.et"]).fails(1, &[&line[..], &["Chakra"]].concat());
    }
}
