//! The idle view: GPU idle time by cause and by stack. Idle time is attributed to the stack that the launching thread
//! had during this time, if this stack is known. If the stack is unknown, idle time is attributed to the two calls that
//! the thread made before and after the idle time, or to the launch that ended the idle time.

use std::fmt::Write as _;

use super::{Measure, Profile, Value, View, format_nanos, gpus};
use crate::profile::{Cause, DeviceTime, LeafFrame, RootMark, Sample};

/// Idle time of whole GPUs, by the cause of the idle time and by stack. An idle gap with several causes counts as one
/// gap for each cause.
pub static IDLE: View = View {
    word: "idle",
    title: "GPU idle time by cause and stack",
    values: &[Value::new("idle_time", Measure::Nanos, "ns"), Value::new("gaps", Measure::Count, "gaps")],
    has_devices: true,
    nothing,
    summary,
    notes,
    ..View::PLAIN
};

/// Text that explains why idle time in start-up and shutdown is not listed separately.
const NOT_APART: &str =
    "; start-up is not apart: fewer than two steps have work, and no loop has most of the kernels";

/// Returns the word for the cause of the idle time in a sample of [`IDLE`]. For idle time at the beginning or end of a
/// window, or outside the steady part of the run, returns a word for this position instead.
pub fn idle_word(sample: &Sample) -> &'static str {
    match sample.root_mark {
        Some(RootMark::Opening) => "before_the_first",
        Some(RootMark::Closing) => "after_the_last",
        Some(RootMark::StartUp) => "start_up",
        Some(RootMark::Shutdown) => "shutdown",
        None => cause(sample).map_or("unknown", Cause::word),
    }
}

fn cause(sample: &Sample) -> Option<Cause> {
    sample.leaf.frames().find_map(|leaf_frame| match leaf_frame {
        LeafFrame::Idle(cause) => Some(cause),
        _ => None,
    })
}

fn nothing(profile: &Profile) -> &'static str {
    if profile.idle_doubt().is_some() {
        return "Idle time is unknown, because GPU work is missing.";
    }
    match profile.times().is_empty() {
        true => "No GPU activity was recorded.",
        false => "No GPU was idle.",
    }
}

/// Returns the idle time of the GPUs in the steady part of the run, the share of each cause, and the durations of
/// start-up and shutdown.
fn summary(profile: &Profile) -> String {
    if let Some(doubt) = profile.idle_doubt() {
        return format!("idle time is unknown: {doubt}");
    }
    let times = profile.times();
    let sum = |of: fn(&DeviceTime) -> u64| times.iter().fold(0_u64, |sum, time| sum.saturating_add(of(time)));
    let idle = sum(|time| time.steady().idle);
    let of = profile.steady().map_or(String::new(), |steady| format!(" of {}", steady.rule.words()));
    let mut text = format!(
        "{} idle of {}{of} on {}",
        format_nanos(idle),
        format_nanos(sum(|time| time.steady().window())),
        gpus(times.len())
    );
    let causes = Cause::ALL.map(|cause| (cause.word(), cause.label()));
    let edges = [("before_the_first", "before the first work"), ("after_the_last", "after the last")];
    for (word, label) in causes.into_iter().chain(edges) {
        let samples = profile.samples(&IDLE).iter().filter(|sample| idle_word(sample) == word);
        let nanos = samples.fold(0_u64, |sum, sample| sum.saturating_add(sample.amount()));
        if nanos > 0 {
            let _ = write!(text, ", {:.1} % {label}", 100.0 * nanos as f64 / idle as f64);
        }
    }
    let late = sum(|time| time.late_count);
    if late > 0 {
        let _ = write!(text, ", {late} activities came too late to count as busy");
    }
    match profile.steady() {
        Some(_) => {
            let (start_up, shutdown) =
                (sum(|time| time.start_up.window()), sum(|time| time.shutdown.window()));
            let mut before = "; apart from ";
            for (nanos, part) in [(start_up, " of start-up"), (shutdown, " of shutdown")] {
                if nanos > 0 {
                    let _ = write!(text, "{before}{}{part}", format_nanos(nanos));
                    before = " and ";
                }
            }
        }
        None => text.push_str(NOT_APART),
    }
    text
}

/// Returns a line for each GPU with its busy and idle time.
fn notes(profile: &Profile) -> Vec<String> {
    if let Some(doubt) = profile.idle_doubt() {
        return vec![format!("idle time is unknown: {doubt}")];
    }
    let note = |time: &DeviceTime| {
        let DeviceTime { device, window, busy, idle, late, start_up, shutdown, .. } = time;
        let parts = match profile.steady() {
            Some(steady) => format!(
                "; window = start-up {} ns + {} {} ns + shutdown {} ns",
                start_up.window(),
                steady.rule.words(),
                time.steady().window(),
                shutdown.window()
            ),
            None => String::new(),
        };
        format!(
            "GPU {}: window {window} ns = busy {busy} ns + idle {idle} ns; late {late} ns{parts}",
            device.0
        )
    };
    profile.times().iter().map(note).collect()
}
