//! The JSON Schema of `--format json`, generated from types that describe the rows of every verb's tables. Only tests
//! use the types that describe rows. The verbs build their tables without these types, and `tests/cli/schema.rs` checks
//! that the command's output conforms to `docs/schema.json`.
//!
//! `GPUFLAME_RENEW_GOLDEN=1 cargo test -p gpuflame-cli --bins schema::` regenerates `docs/schema.json` and the tables
//! in `docs/schema.md`.

/// Declares JSON objects. All keys of an object are always present. The value of an `Option` is null if it is unknown.
macro_rules! objects {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $key:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(JsonSchema)]
            #[allow(dead_code)]
            pub(crate) struct $name { $($(#[$doc])* $key: $kind,)* }
        )*
    };
}

/// Declares the JSON output of a verb, which consists of the version and the tables. Tables after `?` are not present
/// in every output.
macro_rules! verbs {
    ($($(#[$about:meta])* $name:ident { $($key:ident: $row:ty,)* ? $($maybe:ident: $maybe_row:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(JsonSchema)]
            #[allow(dead_code)]
            pub(crate) struct $name {
                /// Version of this schema.
                #[schemars(range(min = 1, max = 1))]
                schema: u32,
                $($key: Vec<$row>,)*
                $(#[schemars(default)] $maybe: Vec<$maybe_row>,)*
            }
        )*
    };
}

mod compare;
mod convert;
mod look;
mod page;
mod predict;
mod record;

use std::fs;
use std::path::Path;

use schemars::{JsonSchema, schema_for};
use serde_json::{Value, json};

use super::table_output::SCHEMA;
use compare::{Diff, Gate, MergeRanks, Stragglers};
use convert::LinkEt;
use look::critical_path::{CriticalPath, CriticalPathAsHta, CriticalPathOfJob};
use look::instructions::{Instruction, InstructionsHead, LINES};
use look::overview::{Check, Info, InfoExecution, Summary};
use look::states::{States, StatesAsHta, Timeline};
use look::tables::{Top, View};
use page::page;
use predict::{Causal, Replay, WhatIf};
use record::{Devices, Doctor, Settings};

/// JSON output of all verbs, one variant per verb.
#[derive(JsonSchema)]
#[allow(dead_code)]
#[schemars(untagged, title = "Output of gpuflame VERB --format json")]
enum Output {
    Top(Top),
    View(View),
    Info(Info),
    Summary(Summary),
    Check(Check),
    Diff(Diff),
    Gate(Gate),
    MergeRanks(MergeRanks),
    Stragglers(Stragglers),
    Doctor(Doctor),
    Devices(Devices),
    Settings(Settings),
    LinkEt(LinkEt),
    InfoExecution(InfoExecution),
    States(States),
    StatesAsHta(StatesAsHta),
    CriticalPath(CriticalPath),
    CriticalPathAsHta(CriticalPathAsHta),
    CriticalPathOfJob(CriticalPathOfJob),
    Replay(Replay),
    WhatIf(WhatIf),
    Causal(Causal),
    Timeline(Timeline),
    InstructionsHead(InstructionsHead),
    Instruction(Instruction),
}

/// Descriptions of the keys that several tables share. A shared description applies to fields without a description of
/// their own.
const MEANINGS: &[(&str, &str)] = &[
    ("total_ns", "Total duration of the activities, gaps or steps that the row counts, in ns."),
    (
        "share_percent",
        "Share of the total over all rows (including rows that are not shown), in percent; null if the total is 0.",
    ),
    ("count", "Number of activities."),
    ("avg_ns", "Average duration, in ns."),
    ("min_ns", "Shortest duration, in ns."),
    ("p50_ns", "Median duration, in ns."),
    ("p95_ns", "95th percentile of the durations, in ns."),
    ("max_ns", "Longest duration, in ns."),
    ("device", "Index of the GPU."),
    ("stream", "Id of the stream."),
    ("name", "Name of the kernel, copy or fill."),
    ("stack", "Launching stack, outermost frame first, frames separated by `;`."),
    ("line", "`FILE:LINE` of the user's code, or `[no line]`."),
    ("function", "Name of the function."),
    (
        "gaps",
        "Number of gaps (idle intervals). A divided gap counts once per cause, in the row with its longest part.",
    ),
    (
        "cause",
        "Cause of the idle time: `host_late`, `launch_latency`, `dependency`, `start_up`, `shutdown` ...",
    ),
    ("exposed_ns", "Time in which the GPU communicated and did not compute, in ns."),
    ("start_ns", "Time at which the row's event starts, in ns since the first activity."),
    ("duration_ns", "Duration of the row's event, in ns."),
    ("bytes", "Number of bytes that were copied or filled."),
    ("busy_ns", "Time in which the GPU ran at least one activity, in ns."),
    ("idle_ns", "Time in which the GPU ran no activity, in ns; null if unknown."),
    (
        "window_ns",
        "Busy plus idle time, in ns. A window lasts until it closes, or until its last work ends if that is later.",
    ),
    ("busy_percent", "Share of the time in which the GPU ran at least one activity, in percent."),
    ("activities", "Number of activities."),
    ("what", "Name of the fact, sum or activity that the row describes."),
    ("change_ns", "Time in the newer run minus time in the older run, in ns."),
    ("change_percent", "Change in percent of the time in the older run; null if that time is 0 or unknown."),
    ("before_ns", "Time in the older run, in ns."),
    ("after_ns", "Time in the newer run, in ns."),
    ("before_count", "Number of activities in the older run."),
    ("after_count", "Number of activities in the newer run."),
    ("rank", "Rank of the process in the job."),
];

/// Returns the schema. Every key has a description, and all keys of rows are required.
fn schema() -> Value {
    let mut schema = schema_for!(Output).to_value();
    for (name, object) in schema["$defs"].as_object_mut().unwrap() {
        let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else { continue };
        for (key, property) in properties.iter_mut() {
            let meaning = MEANINGS.iter().find(|(known, _)| known == key);
            if let (None, Some((_, meaning))) = (property.get("description"), meaning) {
                property["description"] = json!(meaning);
            }
        }
        if LINES.contains(&name.as_str()) {
            // In the objects of JSON Lines output, a key without a value is absent and never null.
            for property in properties.values_mut() {
                if let Some(kind) = property["type"].get(0).cloned() {
                    property["type"] = kind;
                }
            }
        }
        if name.ends_with("Row") {
            let keys: Vec<_> = properties.keys().cloned().collect();
            object["required"] = json!(keys);
        }
    }
    schema
}

const BEGIN: &str = "<!-- The rest of this page is generated. -->\n";

#[test]
fn the_schema_and_its_page_are_up_to_date() {
    assert_eq!(SCHEMA, 1, "a new version needs a new description");
    let schema = schema();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (json_file, page_file) = (docs.join("schema.json"), docs.join("schema.md"));
    let old = fs::read_to_string(&page_file).unwrap_or_default();
    let introduction = old.split(BEGIN).next().unwrap();
    let json_text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let page_text = format!("{introduction}{BEGIN}{}", page(&schema));
    if std::env::var_os("GPUFLAME_RENEW_GOLDEN").is_some() {
        fs::write(&json_file, &json_text).unwrap();
        fs::write(&page_file, &page_text).unwrap();
    }
    assert!(
        fs::read_to_string(&json_file).unwrap_or_default() == json_text,
        "docs/schema.json is out of date"
    );
    assert!(fs::read_to_string(&page_file).unwrap_or_default() == page_text, "docs/schema.md is out of date");
}
