//! What a stack cost in every way that is known: GPU time, processor time and waiting time side by side.

use super::{CPU, GPU, Measure, OFF_CPU, Profile, Value, View, human};
use crate::profile::Tip;

/// The three views in one picture: a function is as wide as what it had GPUs do, what it took of processors and how long it
/// waited, and the tips tell these apart. They go on at the same time, so the sum is no time by a clock.
pub static TOGETHER: View = View {
    word: "together",
    title: "GPU, processor and waiting time of launching threads, by stack",
    values: &[
        Value::new("time", Measure::Nanos, "ns"),
        Value::new("samples", Measure::Count, "activities, samples and waits"),
    ],
    parts: &[(&GPU, None), (&CPU, Some(Tip::OnCpu)), (&OFF_CPU, Some(Tip::OffCpu))],
    nothing: |_| "No thread was sampled, and no GPU activity was recorded.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let sum = |view| {
        let samples = profile.samples(view).iter();
        human(samples.fold(0_u64, |sum, sample| sum.saturating_add(sample.amount())))
    };
    format!("{} on GPUs, {} on processors, {} waiting", sum(&GPU), sum(&CPU), sum(&OFF_CPU))
}
