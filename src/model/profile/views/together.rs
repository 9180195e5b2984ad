//! The combined view: The view that shows GPU time, CPU time and off-CPU time of each stack side by side.

use super::{CPU, GPU, Measure, OFF_CPU, Profile, Value, View, format_nanos};
use crate::profile::LeafFrame;

/// The samples of the GPU, CPU and off-CPU views in one picture. The width of a function is the duration of the GPU
/// work that it launched, plus its CPU time, plus its off-CPU time. Leaf frames distinguish GPU time, CPU time and
/// off-CPU time. The three times may overlap, so their sum is not wall-clock time.
pub static TOGETHER: View = View {
    word: "together",
    title: "GPU, processor and waiting time of launching threads, by stack",
    values: &[
        Value::new("time", Measure::Nanos, "ns"),
        Value::new("samples", Measure::Count, "activities, samples and waits"),
    ],
    parts: &[(&GPU, None), (&CPU, Some(LeafFrame::OnCpu)), (&OFF_CPU, Some(LeafFrame::OffCpu))],
    nothing: |_| "No thread was sampled, or no GPU activity was recorded.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let sum = |view| {
        let samples = profile.samples(view).iter();
        format_nanos(samples.fold(0_u64, |sum, sample| sum.saturating_add(sample.amount())))
    };
    format!("{} on GPUs, {} on processors, {} waiting", sum(&GPU), sum(&CPU), sum(&OFF_CPU))
}
