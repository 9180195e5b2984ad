//! The GPU view: GPU time, by the stack that launched the GPU work.

use std::fmt::Write as _;

use super::{Measure, Profile, Value, View, format_nanos, gpus};
use crate::profile::saturating_sum;
use crate::record::Loss;

/// GPU time, by the stack that launched the GPU work. The view includes launches without an activity, with a time of
/// zero.
pub static GPU: View = View {
    word: "gpu",
    title: "GPU time by launching stack",
    values: &[
        Value::new("gpu_time", Measure::Nanos, "ns"),
        Value::new("launches", Measure::Count, "activities and launches"),
        Value::new("bytes", Measure::Bytes, "bytes"),
    ],
    has_devices: true,
    has_streams: true,
    // Frames that show how many activities were lost. The duration of lost activities is unknown.
    lost: &[
        (Loss::ActivitiesDropped, "[GPU activities dropped]"),
        (Loss::ActivitiesUnreadable, "[GPU activities unreadable]"),
    ],
    nothing,
    summary,
    ..View::PLAIN
};

fn nothing(profile: &Profile) -> &'static str {
    match profile.devices().is_empty() {
        true => "No GPU activity was recorded.",
        false => "GPU activities were recorded, but none has any width.",
    }
}

/// Returns the totals of the view, and the number of activities without a stack or a time.
fn summary(profile: &Profile) -> String {
    let devices = profile.devices();
    let nanos = devices.iter().fold(0_u64, |sum, device| sum.saturating_add(device.nanos));
    let count = saturating_sum(devices.iter().map(|device| device.count));
    let mut text =
        format!("{} of GPU time, {count} activities on {}", format_nanos(nanos), gpus(devices.len()));
    for (missing, [_, count, ..]) in profile.missing(&GPU) {
        let _ = write!(text, ", {count} {}", missing.label());
    }
    text
}
