//! Collects the single GPU operations (kernels, copies and fills) of a run.

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::record::{Activity, CorrelationId, Work};

/// A [`Sink`] that stores the start and the duration (both in ns), the kind and the GPU of each operation.
#[derive(Default)]
pub(super) struct OpCollector(pub(super) Vec<(u64, u64, Work, u32)>);

impl Sink for OpCollector {
    fn activity(&mut self, activity: &Activity, _: Origin) {
        let (work, device) = (activity.work(), activity.device.0);
        self.0.extend(activity.duration().map(|nanos| (activity.start.0, nanos, work, device)));
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}
