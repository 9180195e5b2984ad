//! How much of a view is shown for a reason instead of under a stack, or without a time, and what was lost:
//! the same sums in every export.

use super::sample::{Sample, Values, add_values};
use super::{Profile, View};
use crate::record::{ContextId, Loss, Missing};

/// The reasons, in the order in which they are shown.
const SHOWN: [Missing; 5] =
    [Missing::LaunchedBefore, Missing::DeviceGraph, Missing::NoStack, Missing::Untimed, Missing::Pending];

impl Profile {
    /// The reasons that apply to anything in `view`, in the order in which they are shown. One sample may be
    /// in two: without a stack, and without a time.
    pub fn missing(&self, view: &View) -> impl Iterator<Item = (Missing, Values)> {
        let mut sums = SHOWN.map(|missing| (missing, Values::default()));
        for sample in self.samples(view) {
            let launch = launch(self, sample);
            for (_, sum) in sums.iter_mut().filter(|(missing, _)| applies(*missing, launch, sample)) {
                add_values(sum, sample.values);
            }
        }
        sums.into_iter().filter(|(_, [_, count, ..])| *count > 0)
    }

    /// What was lost, of each kind that there was any of, in the order of [`Loss::ALL`]. A launch that was
    /// captured is not: it runs as often as its graph is launched.
    pub fn lost(&self) -> impl Iterator<Item = (Loss, u64)> {
        self.losses().filter(|(loss, _)| *loss != Loss::LaunchesCaptured)
    }
}

/// The launch of a sample. A context whose row was lost (with the head of a recording, say) is no stack.
fn launch(profile: &Profile, sample: &Sample) -> Result<ContextId, Missing> {
    let launch = sample.place.launch();
    launch.and_then(|id| profile.context(id).map(|_| id).ok_or(Missing::NoStack))
}

/// A launch without an activity is pending and nothing else, also where it has no stack.
fn applies(missing: Missing, launch: Result<ContextId, Missing>, sample: &Sample) -> bool {
    match missing {
        Missing::Untimed | Missing::Pending => sample.leaf.is_missing(missing),
        Missing::LaunchedBefore | Missing::DeviceGraph | Missing::NoStack | Missing::Outside => {
            launch == Err(missing) && !sample.leaf.is_missing(Missing::Pending)
        }
    }
}
