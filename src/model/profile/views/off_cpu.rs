//! The off-CPU view: time during which threads that launch GPU work waited off-CPU, by the stack that waited.

use super::{Measure, Profile, Value, View, format_nanos};
use crate::record::Loss;

/// Time during which threads that launch GPU work waited or slept for any reason, by stack. Time during which a thread
/// was ready to run, but another thread had the CPU, is not included.
pub static OFF_CPU: View = View {
    word: "off-cpu",
    title: "Time in which launching threads waited, by stack",
    values: &[Value::new("off_cpu_time", Measure::Nanos, "ns"), Value::new("waits", Measure::Count, "waits")],
    lost: &[(Loss::BlocksDropped, "[waits dropped]")],
    nothing: |_| "No wait was recorded.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let samples = profile.samples(&OFF_CPU);
    let nanos = samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.amount()));
    format!("{} in {} waits", format_nanos(nanos), samples.iter().map(|sample| sample.count()).sum::<u64>())
}
