//! Collects the work on the blocking streams of each CUDA context. If the CUDA context of a wait is unknown, the work
//! on blocking streams shows to which contexts the wait cannot belong.
//!
//! If a default stream waits for a CUDA event, it also waits for all work that was submitted earlier to the blocking
//! streams of its CUDA context. Work that is submitted to blocking streams after a wait of the default stream has to
//! wait for the default stream. In the picture, the work `second` was submitted to a blocking stream after the work
//! `first`, but began before `first` ended. So the default stream did not wait for an event between the submissions of
//! `first` and `second`.
//!
//! ```text
//! calls     first   wait   second
//! stream 13         |##### first #####|
//! stream 14                   |## second ##|
//! ```

use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::Origin;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{Activity, Detail, GpuContextId, GraphId, IdMap, StreamId};

/// Maximum rounding error in ns of the end of an activity. Traces may round both the start and the duration of a row by
/// up to 1 us.
const ROUNDING_NS: u64 = 2_000;

/// Work on blocking streams, for each CUDA context.
pub(super) struct BlockingWork(IdMap<GpuContextId, ContextWork>);

/// Work on the blocking streams of one CUDA context.
#[derive(Default)]
struct ContextWork {
    /// Pairs of two times, sorted by the first: the end of a launch call, and the latest end of all work submitted by
    /// calls that ended up to this time.
    earlier: Vec<(u64, u64)>,
    /// Pairs of two times, sorted by the first: the start of a launch call, and the earliest start of all work
    /// submitted by calls that started at this time or later.
    later: Vec<(u64, u64)>,
}

impl BlockingWork {
    /// Collects the work on blocking streams from the rows of a run. `blocking` states for each stream of known kind
    /// whether it is blocking. Work on a stream is omitted if `blocking` does not contain the stream.
    pub(super) fn new(
        rows: &JoinedRows,
        blocking: &IdMap<(GpuContextId, StreamId), bool>,
        profile: &Profile,
    ) -> Self {
        let mut contexts: IdMap<GpuContextId, ContextWork> = IdMap::default();
        for JoinedActivity { activity, origin } in rows.activities() {
            let Origin::Launch(launched) = origin else { continue };
            if blocking.get(&(activity.context, activity.stream)) != Some(&true) || !is_in_order(&activity) {
                continue;
            }
            let of_context = contexts.entry(activity.context).or_default();
            let call = (launched.time.0, launched.duration);
            if !matches!(call.1, 0 | u32::MAX) {
                let call_end = call.0.saturating_add(call.1.into());
                of_context.earlier.push((call_end, activity.end.0));
            }
            // A programmatically launched kernel may begin before the previous kernel ends.
            let may_overlap = matches!(activity.detail, Detail::Kernel(_))
                && rows.is_programmatic(activity.correlation).unwrap_or_else(|| {
                    gpuflame_export::compose::call(profile, launched.context).contains("LaunchKernelEx")
                });
            if !may_overlap {
                of_context.later.push((call.0, activity.start.0));
            }
        }
        contexts.values_mut().for_each(ContextWork::sort);
        Self(contexts)
    }

    /// Whether the work shows that `call`, given as (start, end), did not make the default stream of this CUDA context
    /// wait.
    pub(super) fn rules_out(&self, context: GpuContextId, call: (u64, u64)) -> bool {
        self.0.get(&context).is_some_and(|work| work.rules_out(call))
    }
}

impl ContextWork {
    fn sort(&mut self) {
        self.earlier.sort_unstable();
        let mut latest = 0;
        for (_, end) in &mut self.earlier {
            latest = latest.max(*end);
            *end = latest;
        }
        self.later.sort_unstable();
        let mut earliest = u64::MAX;
        for (_, start) in self.later.iter_mut().rev() {
            earliest = earliest.min(*start);
            *start = earliest;
        }
    }

    fn rules_out(&self, (start, end): (u64, u64)) -> bool {
        let count = self.earlier.partition_point(|(end, _)| end.saturating_add(ROUNDING_NS) <= start);
        let from = self.later.partition_point(|(start, _)| *start < end.saturating_add(ROUNDING_NS));
        match (self.earlier[..count].last(), self.later.get(from)) {
            (Some((_, ended)), Some((_, began))) => began.saturating_add(ROUNDING_NS) < *ended,
            _ => false,
        }
    }
}

/// Whether an activity has times and runs in stream order. Graph nodes do not run in stream order.
fn is_in_order(activity: &Activity) -> bool {
    activity.duration().is_some() && activity.graph == GraphId(0) && !activity.device_launched
}
