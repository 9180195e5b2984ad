//! Tests that idle time is known only if nearly all launches have recorded GPU work. If idle time is unknown, no output
//! contains it.

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// Returns a trace of twenty launches, one every 100 us. The first `recorded` launches have a kernel of 90 us.
fn launches(recorded: u32) -> Trace {
    let mut trace = Trace::default();
    for id in 1..=20 {
        let time = 1000 + 100 * u64::from(id);
        match id <= recorded {
            true => {
                trace.launch(id, "k", 1, time, time + 5, time + 95);
            }
            false => {
                trace.slice("cuda_runtime", "cudaLaunchKernel", 1, time, time + 2);
                trace.0.last_mut().unwrap()["args"] = json!({ "correlation": id });
            }
        }
    }
    trace
}

/// Returns a trace of eight steps of 1,000 us. The first `with_work` steps have a kernel.
fn steps(with_work: u32) -> Trace {
    let mut trace = Trace::default();
    for step in 0..8 {
        let start = 1000 * u64::from(step);
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 1, start, start + 1000);
        if step < with_work {
            trace.launch(step + 1, "k", 1, start + 12, start + 20, start + 30);
        }
    }
    trace
}

/// Returns the tables that a verb prints for this trace, as JSON.
fn tables(trace: &Trace, arguments: &[&str]) -> Value {
    let folder = scratch("coverage");
    trace.write(&folder.join("a.json"));
    let arguments = arguments.iter().chain(&["-f", "json"]).copied();
    let ran =
        gpuflame(&folder, [arguments.clone().next().unwrap(), "a.json"].into_iter().chain(arguments.skip(1)));
    serde_json::from_str(&ran.ok().stdout).unwrap()
}

/// Returns the value that `gpuflame info` prints in the row `what`, or null if the output has no such row.
fn fact(trace: &Trace, what: &str) -> Value {
    let facts = tables(trace, &["info"]);
    let rows = facts["facts"].as_array().unwrap();
    rows.iter().find(|row| row["what"] == what).map_or(Value::Null, |row| row["value"].clone())
}

fn strict_check_passes(trace: &Trace) -> bool {
    let folder = scratch("coverage");
    trace.write(&folder.join("a.json"));
    gpuflame(&folder, ["check", "a.json", "--strict"]).code == 0
}

#[test]
fn no_verb_states_idle_time_if_most_launches_have_no_activity() {
    let trace = launches(2);
    let reason = "18 of 20 launches have no activity";
    assert_eq!(fact(&trace, "idle time"), format!("unknown: {reason}"));
    let device = &tables(&trace, &["info"])["devices"][0];
    assert_eq!((&device["idle_ns"], &device["busy_percent"]), (&Value::Null, &Value::Null));
    let idle = tables(&trace, &["top", "--by", "idle"]);
    let row =
        json!({ "total_ns": null, "share_percent": null, "gaps": null, "cause": "unknown", "stack": reason });
    assert_eq!(idle["idle"], json!([row]));
    assert!(!strict_check_passes(&trace));
    let folder = scratch("coverage");
    trace.write(&folder.join("a.json"));
    let svg = gpuflame(&folder, ["flamegraph", "a.json", "--idle", "-o", "-"]).ok().stdout;
    assert!(svg.contains(reason) && !svg.contains("host late"), "{svg}");
}

#[test]
fn idle_time_is_stated_if_95_percent_of_the_launches_have_activities() {
    let trace = launches(19);
    assert_eq!(fact(&trace, "idle time"), Value::Null);
    assert!(tables(&trace, &["top", "--by", "idle"])["idle"][0]["total_ns"].is_u64());
    assert!(strict_check_passes(&trace));
}

#[test]
fn steps_without_gpu_work_are_listed_and_have_no_idle_time() {
    let trace = steps(2);
    assert_eq!(fact(&trace, "steps without GPU work"), "2 to 7, counted from 0");
    let reason = "6 of 8 steps have no GPU work (2 to 7, counted from 0)";
    assert_eq!(fact(&trace, "idle time"), format!("unknown: {reason}"));
    assert_eq!(tables(&trace, &["top", "--by", "idle"])["idle"][0]["stack"], reason);
    assert_eq!(fact(&steps(8), "steps without GPU work"), Value::Null);
}

#[test]
fn graph_launches_of_one_call_need_activities_if_some_have_them() {
    // The trace has one kernel launch and twenty graph launches. For `recorded` of the graph launches, the trace has
    // the activity of a graph node.
    let graphs = |recorded: u32| {
        let mut trace = Trace::default();
        trace.launch(100, "k", 1, 10, 20, 30);
        for id in 1..=20 {
            let time = 1000 + 100 * u64::from(id);
            trace.launch(id, "node", 1, time, time + 5, time + 95);
            let launch = trace.0.len() - 2;
            if id > recorded {
                trace.0.truncate(launch + 1);
            }
            trace.0[launch]["name"] = json!("cudaGraphLaunch");
        }
        trace
    };
    assert_eq!(fact(&graphs(20), "idle time"), Value::Null);
    assert_eq!(fact(&graphs(2), "idle time"), "unknown: 18 of 21 launches have no activity");
    // If no launch of a graph has an activity, the graph may contain no GPU work.
    assert_eq!(fact(&graphs(0), "idle time"), Value::Null);
    let said = "20 launches of copies or graphs have no activity; 21 launches, 1 activity: ";
    let answers = &tables(&graphs(0), &["summary"])["answers"];
    assert!(answers.to_string().contains(said), "{answers}");
}
