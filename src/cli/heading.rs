//! The line above the tables on a terminal: the program, and how busy its GPUs were in which time.

use std::fmt::Write as _;

use super::input::Source;
use gpuflame_model::profile::{DeviceTime, Profile, format_nanos, saturating_sum};
use gpuflame_model::record::Provenance;

/// Returns `train.py (process 4711), rank 3: GPU 0 busy 34.5 % of 3.700 s of steps, 2026-11-23T02:45:09Z`. Facts that are
/// unknown are omitted; a trace without a program has the name of its file.
pub(super) fn heading(source: &Source, profile: &Profile) -> String {
    let mut text = match profile.process().filter(|(_, program)| !program.is_empty()) {
        Some((process, program)) => format!("{program} (process {process})"),
        None => source.to_string(),
    };
    let facts = |wanted| profile.provenance().filter(move |(what, _)| *what == wanted).map(|(_, text)| text);
    let ranks: Vec<_> = facts(Provenance::RANK).collect();
    let _ = match ranks[..] {
        [] => Ok(()),
        [rank] => write!(text, ", rank {rank}"),
        _ => write!(text, ", {} ranks", ranks.len()),
    };
    if let [first, rest @ ..] = profile.times() {
        let _ = match rest.len() {
            0 => write!(text, ": GPU {}", first.device.0),
            more => write!(text, ": {} GPUs", more + 1),
        };
        text.push_str(&busy_words(profile));
    }
    if let Some(start) = facts(Provenance::START).next() {
        let _ = write!(text, ", {start}");
    }
    text
}

/// Returns the busy share over all GPUs in the steady part of the run, and the length of that part. If idle time is
/// unknown, returns only the length.
fn busy_words(profile: &Profile) -> String {
    let sum = |of: fn(&DeviceTime) -> u64| saturating_sum(profile.times().iter().map(of));
    let length = profile.times().iter().map(|time| time.steady().window()).max().unwrap_or_default();
    let length = match profile.steady() {
        Some(steady) => format!("{} of {}", format_nanos(length), steady.rule.words()),
        None => format_nanos(length),
    };
    let (busy, window) = (sum(|time| time.steady().busy), sum(|time| time.steady().window()));
    match profile.idle_doubt().is_none() && window > 0 {
        true => format!(" busy {:.1} % of {length}", 100.0 * busy as f64 / window as f64),
        false => format!(", {length}"),
    }
}
