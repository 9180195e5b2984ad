//! Files that `link-et` and other verbs refuse, each with one line.

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
    let mut other: Value = serde_json::from_str(&fs::read_to_string(folder.join(ET)).unwrap()).unwrap();
    other["pid"] = 5.into();
    write(&folder, "other.json", &other);
    refused(&["other.json", KINETO], 1, &["other.json", KINETO, "process 5", "process 77"]);
    assert!(!folder.join("chakra_trace_other.et").exists());
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
    // PyTorch writes the version first.
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
