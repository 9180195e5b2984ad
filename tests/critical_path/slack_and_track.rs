//! Tests `top --by slack`, and the track of the critical path in Perfetto's format.

use serde_json::{Value, json};

use super::by_hand::two_kernels;
use super::output::{Trace, gpuflame, read_json};

#[path = "../support/perfetto_slices.rs"]
mod perfetto_slices;
use perfetto_slices::slices_of;

/// Returns the trace with an additional kernel on a stream for which nothing waits. The additional kernel may end 74 us
/// later, at the end of the run. The additional kernel begins 15 us after its call, as `gemm` does, so that the savings
/// are those in the documentation.
fn with_free_kernel() -> Trace {
    two_kernels().call("cudaLaunchKernel", 4, 5, (31, 34)).kernel("side", 4, 8, (46, 56))
}

#[test]
fn top_ranks_work_by_slack() {
    let file = with_free_kernel().write("top-slack");
    let tables = read_json(&["top", file.to_str().unwrap(), "--by", "slack"]);
    let rows: Vec<_> = tables["slack"].as_array().unwrap().iter().collect();
    let field = |key: &str| -> Vec<&Value> { rows.iter().map(|row| &row[key]).collect() };
    assert_eq!(field("name"), ["gemm", "relu", "side"]);
    assert_eq!(field("total_ns"), [60_000, 40_000, 10_000]);
    assert_eq!(field("min_slack_ns"), [0, 0, 74_000]);
    assert_eq!(field("median_slack_ns"), [0, 0, 74_000]);
    assert_eq!(field("max_saving_ns"), [45_000, 40_000, 0]);
    assert_eq!(field("on_path_ns"), [60_000, 40_000, 0]);
    assert_eq!(
        (field("count"), field("on_path")),
        (vec![&json!(1); 3], vec![&json!(1), &json!(1), &json!(0)])
    );
    let share = |row: &Value| (row["share_percent"].as_f64().unwrap() * 10.0).round();
    // The shares are 60, 40 and 10 us as parts of 110 us.
    assert_eq!(rows.iter().map(|row| share(row)).collect::<Vec<_>>(), [545.0, 364.0, 91.0]);
    let few = read_json(&["top", file.to_str().unwrap(), "--by", "slack", "-n", "1"]);
    assert_eq!(few["slack"].as_array().unwrap().len(), 1);
}

#[test]
fn the_timeline_for_perfetto_has_a_track_with_the_parts_of_the_path() {
    let file = two_kernels().write("path-track");
    let out = file.with_extension("pftrace");
    let convert = |args: &[&str]| {
        let all = [&["convert", file.to_str().unwrap(), "-o", out.to_str().unwrap()], args].concat();
        let output = gpuflame(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(&out).unwrap()
    };
    let (with, without) = (convert(&["--critical-path"]), convert(&[]));
    assert!(slices_of(&without, "critical path").is_empty());
    assert_eq!(with[..without.len()], without[..], "the rest of the file is the same");
    let slices = slices_of(&with, "critical path");
    let zero = slices[0].start;
    let spans: Vec<_> = slices
        .iter()
        .map(|slice| {
            let [from, to] = [slice.start, slice.end].map(|time| (time - zero) / 1_000);
            (from, to, &*slice.title, &*slice.notes["class"])
        })
        .collect();
    assert_eq!(
        spans,
        [
            (0, 10, "cudaLaunchKernel", "call"),
            (10, 15, "launch of gemm", "launch"),
            (15, 75, "gemm", "kernel"),
            (75, 80, "gap before relu", "gap"),
            (80, 120, "relu", "kernel"),
            (120, 130, "return of cudaStreamSynchronize", "return"),
        ]
    );
    let gemm = &slices[2].notes;
    assert_eq!((&*gemm["name"], &*gemm["saving_ns"], &*gemm["stream"]), ("gemm", "45000", "7"));
    assert_eq!(slices[3].notes["reason"], "relu came next: order of the stream");
    assert_eq!(slices[5].notes["reason"], "the call had waited for relu");
}

#[test]
fn formats_without_tracks_refuse_the_path() {
    let file = two_kernels().write("path-track-refused");
    for format in ["chrome", "folded", "parquet"] {
        let output = gpuflame(&["convert", file.to_str().unwrap(), "--to", format, "--critical-path"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("--critical-path: {format} has no track")), "{stderr}");
    }
}
