//! Computes two results for exports: the total of a view's samples without a stack or a time, for each reason, and the
//! counts of losses.

use super::sample::{Sample, Values, add_values};
use super::{Profile, View};
use crate::record::{ContextId, Loss, Missing};

/// Reasons for a missing stack or time, in the order in which outputs show them.
const SHOWN: [Missing; 5] =
    [Missing::LaunchedBefore, Missing::DeviceGraph, Missing::NoStack, Missing::Untimed, Missing::Pending];

impl Profile {
    /// Returns each reason that applies to at least one sample of `view`, with the sum of the samples to which it
    /// applies, in display order. A sample that has neither a stack nor a time counts for both reasons.
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

    /// Returns the kinds of loss that occurred, with their counts, in the order of [`Loss::ALL`]. Launches that were
    /// captured into a graph are omitted, because their work is not lost: it runs whenever the graph is launched.
    pub fn lost(&self) -> impl Iterator<Item = (Loss, u64)> {
        self.losses().filter(|(loss, _)| *loss != Loss::LaunchesCaptured)
    }
}

/// Returns the launching context of a sample, or the reason why the sample has no stack. A context has no stack if the
/// row that defines the context was lost, for example with the beginning of a recording.
fn launch(profile: &Profile, sample: &Sample) -> Result<ContextId, Missing> {
    let launch = sample.site.launch();
    launch.and_then(|id| profile.context(id).map(|_| id).ok_or(Missing::NoStack))
}

/// Whether `missing` applies to a sample. A launch without an activity counts only as [`Missing::Pending`], even if its
/// stack is missing too.
fn applies(missing: Missing, launch: Result<ContextId, Missing>, sample: &Sample) -> bool {
    match missing {
        Missing::Untimed | Missing::Pending => sample.leaf.is_missing(missing),
        Missing::LaunchedBefore | Missing::DeviceGraph | Missing::NoStack | Missing::Outside => {
            launch == Err(missing) && !sample.leaf.is_missing(Missing::Pending)
        }
    }
}
