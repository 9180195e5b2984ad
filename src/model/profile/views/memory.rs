//! The memory view: bytes that were allocated and freed, by the stack that made the call.

use super::{Measure, Profile, Value, View};
use crate::profile::LeafFrame;

/// Bytes of memory that were allocated and freed. The amount of a call that frees memory is the size of the freed
/// allocation.
pub static MEMORY: View = View {
    word: "alloc",
    title: "Bytes allocated and freed, by stack",
    values: &[Value::new("bytes", Measure::Bytes, "bytes"), Value::new("calls", Measure::Count, "calls")],
    nothing: |_| "No memory was allocated or freed.",
    summary,
    ..View::PLAIN
};

fn summary(profile: &Profile) -> String {
    let [(bytes, count), (freed, frees)] = [true, false].map(|allocated| {
        let is_it = |leaf_frame| matches!(leaf_frame, LeafFrame::Allocate(_)) == allocated;
        let samples = profile.samples(&MEMORY).iter().filter(|sample| sample.leaf.frames().any(is_it));
        samples.fold((0_u64, 0), |(sum, count), sample| {
            (sum.saturating_add(sample.amount()), count + sample.count())
        })
    });
    format!("{bytes} bytes allocated in {count} calls, {freed} freed in {frees}")
}
