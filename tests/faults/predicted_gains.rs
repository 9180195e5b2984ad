//! Checks how much time would be saved by fewer waits, according to a summary. The reference is a run of the same
//! program without these waits.

use std::fs;

use crate::assert_none;
use crate::cases::cases;
use crate::same_figures::predicted_gain;
use crate::support::command::gpuflame;
use crate::support::scratch;

/// Units of time in the sentences of a summary, in ns.
const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Maximum share by which a prediction may differ. The durations on the simulated host and GPU vary at random by a few
/// percent, and they vary differently in the run without the waits.
const MAX_ERROR: f64 = 0.1;

#[test]
fn the_predicted_gain_without_reads_is_that_of_the_program_without_reads() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    // If a case also has a larger fault, the sentence may be about that larger fault. Therefore these cases are
    // skipped.
    for case in cases().iter().filter(|case| case.truth[0].id == "sync_read") {
        let folder = scratch("gain");
        let files = case.write(&folder);
        let summary = gpuflame(&folder, ["summary", &files[0], "--format", "json"]).ok();
        let summary: serde_json::Value = serde_json::from_str(&summary.stdout).unwrap();
        let answers = summary["answers"].as_array().unwrap();
        let gain = answers.iter().find_map(|row| predicted_gain(row["answer"].as_str().unwrap()));
        let saved = gain.map(|gain| {
            let words: Vec<&str> = gain.saved.split(' ').filter(|word| *word != "only").collect();
            let unit = UNITS.iter().find(|(unit, _)| *unit == words[2]).unwrap().1;
            words[1].parse::<f64>().unwrap() * unit
        });
        count += 1;
        let real = case.truth[0].cost_ns as f64;
        eprintln!("{}: {saved:?} predicted, {real} without the reads", case.name);
        if saved.is_none_or(|saved| (saved / real - 1.0).abs() > MAX_ERROR) {
            wrong.push(format!("{}: {saved:?} predicted, {real} without the reads", case.name));
        }
        fs::remove_dir_all(folder).unwrap();
    }
    assert!(count >= 4, "{count} cases");
    assert_none(&wrong);
}
