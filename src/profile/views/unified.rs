//! What happened to memory that the host and GPUs share, by GPU. The tracer names no launch, so that there are
//! no stacks: tables show it, pictures only on request.

use super::{Measure, Profile, Value, View};
use crate::profile::{Sample, Tip, saturating_sum};
use crate::record::{DeviceId, UnifiedKind};

/// Traffic and faults of unified memory.
pub static UNIFIED: View = View {
    word: "unified",
    title: "Traffic of unified memory",
    values: &[
        Value::new("bytes", Measure::Bytes, "bytes"),
        Value::new("records", Measure::Count, "records"),
        Value::new("transfer_time", Measure::Nanos, "ns"),
        Value::new("faults", Measure::Count, "faults"),
    ],
    has_devices: true,
    at_exit: &[],
    nothing: |_| "Nothing moved in unified memory, or nobody asked.",
    summary,
    ..View::PLAIN
};

/// One thing that happened to unified memory on one GPU, and how much of it there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnifiedSums {
    /// The kind of traffic.
    pub kind: UnifiedKind,
    /// The GPU that took part, if one did.
    pub device: Option<DeviceId>,
    /// How often it was recorded.
    pub count: u64,
    /// Bytes that moved, or faults (of kinds that are not known nobody knows what they count).
    pub value: u64,
    /// How long it took, ns.
    pub nanos: u64,
}

/// The samples of [`UNIFIED`], each with what it is of.
pub fn unified(profile: &Profile) -> impl Iterator<Item = UnifiedSums> {
    let kind = |sample: &Sample| {
        sample.leaf.tips().find_map(|tip| match tip {
            Tip::Unified(kind) => Some(kind),
            _ => None,
        })
    };
    profile.samples(&UNIFIED).iter().filter_map(move |sample| {
        let (kind, [bytes, count, nanos, faults]) = (kind(sample)?, sample.values);
        let value = if kind.is_move() { bytes } else { faults };
        Some(UnifiedSums { kind, device: sample.device, count, value, nanos })
    })
}

fn summary(profile: &Profile) -> String {
    let sum = |at: usize| saturating_sum(profile.samples(&UNIFIED).iter().map(|sample| sample.values[at]));
    format!("{} bytes moved, {} faults, in {} records", sum(0), sum(3), sum(1))
}
