//! The CPU view: CPU time of the threads that launch GPU work, by sampled stack.

use super::{Measure, Profile, Value, View, format_nanos};
use crate::record::Loss;

/// CPU time of the threads that launch GPU work, by stack, estimated from samples. The view does not include the time
/// during which a thread waited.
pub static CPU: View = View {
    word: "cpu",
    title: "CPU time of launching threads, by stack",
    values: &[Value::new("cpu_time", Measure::Nanos, "ns"), Value::new("samples", Measure::Count, "samples")],
    lost: &[(Loss::SamplesDropped, "[CPU samples dropped]")],
    nothing: |_| "No thread was sampled.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let samples = profile.samples(&CPU);
    let nanos = samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.amount()));
    format!("{} in {} samples", format_nanos(nanos), samples.iter().map(|sample| sample.count()).sum::<u64>())
}
