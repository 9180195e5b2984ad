//! The unified-memory view: bytes moved and page faults, by GPU. The tracer reports no launch for unified-memory
//! traffic, so the view has no stacks. Tables always show this view. Pictures show the unified-memory view only on
//! request.

use super::{Measure, Profile, Value, View};
use crate::profile::{LeafFrame, Sample, saturating_sum};
use crate::record::{DeviceId, UnifiedKind};

/// Migrations and page faults of unified memory.
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
    nothing: |_| "No unified memory traffic was recorded.",
    summary,
    ..View::PLAIN
};

/// Sums of one kind of unified-memory event on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnifiedSums {
    /// Kind of event, such as a migration to a GPU.
    pub kind: UnifiedKind,
    /// GPU that moved the bytes or caused the faults; `None` if no GPU did.
    pub device: Option<DeviceId>,
    /// Number of event records from the tracer.
    pub count: u64,
    /// Number of bytes moved, or number of page faults, depending on `kind`. For unknown kinds, the unit of the value
    /// is unknown.
    pub value: u64,
    /// Total duration of the events, in ns.
    pub nanos: u64,
}

/// Returns the samples of [`UNIFIED`] as sums by kind and GPU.
pub fn unified(profile: &Profile) -> impl Iterator<Item = UnifiedSums> {
    let kind = |sample: &Sample| {
        sample.leaf.frames().find_map(|leaf_frame| match leaf_frame {
            LeafFrame::Unified(kind) => Some(kind),
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
