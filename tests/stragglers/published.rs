//! Tests `gpuflame stragglers` on ByteDance's data. The expected results are those that ByteDance published.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{assert_near, number, real, row, stragglers};

/// Name of a job, its slowdown, and the maximum error of its simulated step times in percent.
const JOBS: [(&str, f64, f64); 3] = [("AR", 1.973, 0.67), ("SE", 1.537, 0.51), ("ST", 1.179, 1.89)];

fn published(folder: &Path, kind: &str, job: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join(format!("{kind}-{job}.json"))).unwrap()).unwrap()
}

#[test]
fn the_slowdown_and_the_step_times_are_the_published_ones() {
    let Some(folder) = real("stragglers") else { return };
    for (job, slowdown, max_error) in JOBS {
        let output = stragglers(&folder, &[&format!("trace-{job}.parquet"), "-n", "0"]);
        let found = &output["slowdown"][0];
        assert_near(job, number(found, "slowdown"), slowdown, 0.005);
        // The published errors are rounded to two digits after the decimal point.
        let error = number(found, "error_percent");
        assert!((error * 100.0).round() / 100.0 <= max_error, "{job}: {error} %");
        let result = published(&folder, "result", job);
        assert_near(job, number(found, "slowdown"), number(&result, "blocking_slowdown"), 0.005);
        let steps = output["step_times"].as_array().unwrap();
        assert_eq!(steps.len(), result["step_t_base"].as_object().unwrap().len());
        let columns = [
            ("measured_ns", "step_t_base"),
            ("simulated_ns", "step_t_nodelay"),
            ("ideal_ns", "step_t_noblk"),
        ];
        for step in steps {
            for (column, key) in columns {
                let name = step["step"].as_str().unwrap();
                let found = number(step, column) / 1e9;
                assert_near(&format!("{job} {key} {name}"), found, number(&result[key], name), 0.001);
            }
        }
    }
}

#[test]
fn the_shares_of_the_last_stage_and_of_the_worst_workers_are_the_published_ones() {
    let Some(folder) = real("stragglers") else { return };
    for (job, ..) in JOBS {
        let output = stragglers(&folder, &[&format!("trace-{job}.parquet")]);
        let whole = &output["slowdown"][0];
        let (simulated, ideal) = (number(whole, "simulated_ns") / 1e9, number(whole, "ideal_ns") / 1e9);
        for (what, kind, key) in [("last stage (Ms)", "ms", "Ms"), ("worst 3 % of workers (Mw)", "mw", "Mw")]
        {
            let found = row(&output, "shares", "evened_out", what);
            let alone = number(found, "slowdown_alone") * ideal;
            let share = number(found, "share_percent") / 100.0;
            let expected = published(&folder, kind, job);
            for (entry, value) in [
                ("tori", simulated),
                ("tideal", ideal),
                ("trem", simulated - number(found, "saved_ns") / 1e9),
                ("tadd", alone),
                ("rem", share),
                ("add", (alone - ideal) / (simulated - ideal)),
                (key, share),
            ] {
                assert_near(&format!("{job} {kind} {entry}"), value, number(&expected, entry), 0.01);
            }
        }
    }
}

/// The slowdown by a part (a stage, a data-parallel rank or a kind) is the slowdown that the job has if only this part
/// keeps its measured durations.
#[test]
fn the_slowdowns_by_stage_rank_and_kind_are_the_published_ones() {
    let Some(folder) = real("stragglers") else { return };
    for (job, ..) in JOBS {
        let output = stragglers(&folder, &[&format!("trace-{job}.parquet"), "-n", "0"]);
        let result = published(&folder, "result", job);
        let mut compared = 0;
        for part in output["evened_out"].as_array().unwrap() {
            let key = match part["part"].as_str().unwrap() {
                "stage" => "blocking_decompose_by_stage",
                "data-parallel rank" => "blocking_decompose_by_dp_rank",
                "kind" => "blocking_decompose_by_optype",
                _ => continue,
            };
            let name = match part["name"].as_str().unwrap() {
                "forward messages" => "forward-pp-comm",
                "backward messages" => "backward-pp-comm",
                name => name,
            };
            let expected = number(&result[key], name);
            assert_near(&format!("{job} {key} {name}"), number(part, "slowdown_alone"), expected, 0.01);
            compared += 1;
        }
        let published = ["stage", "dp_rank", "optype"]
            .map(|part| result[format!("blocking_decompose_by_{part}")].as_object().unwrap().len());
        assert_eq!(compared, published.iter().sum::<usize>(), "{job}");
    }
}
