//! Tests that all JSON that the command writes conforms to the published schema.

use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::link_et;
use crate::support::command::gpuflame;
use crate::support::{handmade, rank_traces, root, scratch};
use crate::tables::training;

/// Returns a validator for the JSON output of a verb. The published schema permits unknown keys, so that later releases
/// can add keys. In this test, every key must be described in the schema.
fn validator(verb: &str) -> Validator {
    let mut all: Value =
        serde_json::from_str(&fs::read_to_string(root().join("docs/schema.json")).unwrap()).unwrap();
    for object in all["$defs"].as_object_mut().unwrap().values_mut() {
        object["additionalProperties"] = false.into();
    }
    let schema =
        json!({ "$schema": all["$schema"], "$ref": format!("#/$defs/{verb}"), "$defs": all["$defs"] });
    jsonschema::validator_for(&schema).unwrap()
}

/// Runs a verb, asserts that its JSON output conforms to the schema, and returns this output.
fn checked(folder: &Path, verb: &str, args: &[&str]) -> Value {
    let ran = gpuflame(folder, args.iter().chain(&["--format", "json"]));
    let output: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{args:?}: {ran:?}"));
    let errors: Vec<String> = validator(verb)
        .iter_errors(&output)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{args:?}: {errors:#?}");
    output
}

#[test]
fn all_json_conforms_to_the_published_schema() {
    let folder = scratch("schema");
    handmade::recording(&folder);
    training(&folder, "train.json", 0);
    training(&folder, "slower.json", 25);
    fs::create_dir(folder.join("job")).unwrap();
    for rank in 0..3 {
        training(&folder, &format!("job/rank{rank}.json"), rank * 15);
    }
    let mut tables = std::collections::BTreeSet::new();
    let rankings = "kernels,stacks,line,function,delay,idle,copies,comm,slack";
    for input in ["hand.gfr", "train.json"] {
        let cases: [(&str, &[&str]); 15] = [
            ("Top", &["top", input, "--by", rankings]),
            ("View", &["view", input]),
            ("View", &["view", input, "--stats"]),
            ("View", &["view", input, "--timeline"]),
            ("Info", &["info", input]),
            ("Summary", &["summary", input]),
            ("Check", &["check", input]),
            ("States", &["states", input, "--intervals"]),
            ("StatesAsHta", &["states", input, "--as-hta"]),
            ("Timeline", &["timeline", input]),
            ("CriticalPath", &["critical-path", input, "--list"]),
            ("Replay", &["replay", input, "--check"]),
            ("WhatIf", &["what-if", input, "--scale", ".=0.5"]),
            ("Causal", &["causal", input]),
            ("Diff", &["diff", input, "slower.json"]),
        ];
        for (verb, args) in cases {
            let output = checked(&folder, verb, args);
            tables.extend(output.as_object().unwrap().keys().map(|table| format!("{verb} {table}")));
        }
    }
    let ranks = ["job/rank0.json", "job/rank1.json", "job/rank2.json"];
    for others in [["train.json", "slower.json"], ["train.json", "hand.gfr"]] {
        let output =
            checked(&folder, "Gate", &[&["diff"][..], &ranks, &["--new", others[0], others[1]]].concat());
        assert_eq!(output["verdict"].as_array().unwrap().len(), 1, "{output}");
    }
    fs::copy(folder.join("train.json"), folder.join("third.json")).unwrap();
    let new = ["--new", "train.json", "slower.json", "third.json", "-n", "0"];
    let output = checked(&folder, "Gate", &[&["diff"][..], &ranks, &new].concat());
    assert!(output["changes"].as_array().unwrap().len() > 10, "{output}");
    checked(&folder, "MergeRanks", &["merge-ranks", "job"]);
    checked(&folder, "MergeRanks", &["merge-ranks", "hand.gfr"]);
    fs::create_dir(folder.join("two")).unwrap();
    rank_traces::two_ranks(&folder.join("two"));
    checked(&folder, "Stragglers", &["stragglers", "two"]);
    checked(&folder, "WhatIf", &["what-if", "two", "--ranks-even"]);
    checked(&folder, "CriticalPathOfJob", &["critical-path", "two", "--list"]);
    link_et::pairs::training_step(&folder);
    let pair = ["pytorch_et_step.json", "kineto_step.json"];
    checked(&folder, "LinkEt", &["link-et", pair[0], pair[1]]);
    checked(&folder, "InfoExecution", &["info", pair[0]]);
    checked(&folder, "InfoExecution", &["info", "chakra_trace_step.et"]);
    checked(&folder, "CriticalPath", &["critical-path", "train.json", "--range", "ProfilerStep"]);
    checked(&folder, "CriticalPathAsHta", &["critical-path", "train.json", "--as-hta", "--annotation", ""]);
    checked(&folder, "Doctor", &["doctor"]);
    checked(&folder, "Devices", &["devices"]);
    checked(&folder, "Settings", &["settings"]);
    for table in [
        "Top comm_stacks",
        "Top idle_modules",
        "View timeline",
        "Info parts",
        "Summary idle_places",
        "Summary steps",
        "Diff stacks",
    ] {
        assert!(tables.contains(table), "{table} was not checked: {tables:?}");
    }
}

#[test]
fn all_lines_of_instructions_conform_to_the_published_schema() {
    let folder = scratch("schema");
    handmade::recording(&folder);
    training(&folder, "train.json", 0);
    let (head, line) = (validator("InstructionsHead"), validator("Instruction"));
    for input in ["hand.gfr", "train.json"] {
        let ran = gpuflame(&folder, ["instructions", input, "--format", "jsonl"]);
        let lines: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() > 2, "{ran:?}");
        assert!(head.is_valid(&lines[0]) && !line.is_valid(&lines[0]), "{}", lines[0]);
        for one in &lines[1..] {
            let errors: Vec<String> = line.iter_errors(one).map(|error| error.to_string()).collect();
            assert!(errors.is_empty() && !head.is_valid(one), "{one}: {errors:#?}");
            let has_null = one.as_object().unwrap().values().any(Value::is_null);
            assert!(!has_null, "an unknown value must be absent, not null: {one}");
        }
    }
}

#[test]
fn the_schema_refuses_other_output() {
    let folder = scratch("schema");
    handmade::recording(&folder);
    let output = checked(&folder, "Top", &["top", "hand.gfr"]);
    let validator = validator("Top");
    let broken = |change: &dyn Fn(&mut Value)| {
        let mut output = output.clone();
        change(&mut output);
        !validator.is_valid(&output)
    };
    assert!(!broken(&|_| {}));
    assert!(broken(&|output| output["schema"] = 2.into()), "another version");
    assert!(broken(&|output| drop(output.as_object_mut().unwrap().remove("schema"))), "no version");
    assert!(broken(&|output| output["kernels"][0]["total_ns"] = "20001".into()), "a number as text");
    assert!(
        broken(&|output| drop(output["kernels"][0].as_object_mut().unwrap().remove("count"))),
        "no count"
    );
    assert!(broken(&|output| output["kernels"][0]["more"] = 1.into()), "an undescribed key");
    assert!(broken(&|output| output["what"] = json!([])), "an undescribed table");
}
