//! The wait view: time that the host spent waiting for GPUs, by the stack that made the waiting call.

use super::{Measure, Profile, Value, View, format_nanos};

/// Time during which API calls of the host waited for GPUs. A wait is not assigned to a single GPU, because some calls
/// wait for all GPUs.
pub static WAITS: View = View {
    word: "wait",
    title: "Host time waiting for the GPU, by stack",
    values: &[Value::new("wait_time", Measure::Nanos, "ns"), Value::new("calls", Measure::Count, "calls")],
    nothing: |_| "No call waited for a GPU.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let samples = profile.samples(&WAITS);
    let nanos = samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.amount()));
    format!("{} in {} calls", format_nanos(nanos), samples.iter().map(|sample| sample.count()).sum::<u64>())
}
