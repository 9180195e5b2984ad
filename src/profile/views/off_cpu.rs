//! Time in which the threads that launch waited without a processor, by the stack that waited.

use super::{Measure, Profile, Value, View, human};
use crate::record::Loss;

/// Where launching threads slept or waited, for whatever it was. Time in which they could have gone on and another thread
/// had their processor is not in it.
pub static OFF_CPU: View = View {
    word: "off-cpu",
    title: "Time in which launching threads waited, by stack",
    values: &[Value::new("off_cpu_time", Measure::Nanos, "ns"), Value::new("waits", Measure::Count, "waits")],
    lost: &[(Loss::BlocksDropped, "[waits dropped]")],
    nothing: |_| "No thread was seen to wait.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let samples = profile.samples(&OFF_CPU);
    let nanos = samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.amount()));
    format!("{} in {} waits", human(nanos), samples.iter().map(|sample| sample.count()).sum::<u64>())
}
