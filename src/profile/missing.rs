//! How much of a view is shown for a reason instead of under a stack, or without a time, and what was lost:
//! the same sums in every export.

use super::sample::{Sample, Values, add_values};
use super::{Profile, View};
use crate::record::{Loss, Missing};

impl Profile {
    /// The reasons that apply to anything in `view`, in the order in which they are shown. One sample may be
    /// in two: without a stack, and without a time.
    pub fn missing(&self, view: &View) -> impl Iterator<Item = (Missing, Values)> {
        [Missing::LaunchedBefore, Missing::DeviceGraph, Missing::NoStack, Missing::Untimed, Missing::Pending]
            .into_iter()
            .map(|missing| (missing, sum(self, view, missing)))
            .filter(|(_, [_, count, ..])| *count > 0)
    }

    /// What was lost, of each kind that there was any of, in the order of [`Loss::ALL`]. A launch that was
    /// captured is not: it runs as often as its graph is launched.
    pub fn lost(&self) -> impl Iterator<Item = (Loss, u64)> {
        self.losses().filter(|(loss, _)| *loss != Loss::LaunchesCaptured)
    }
}

fn sum(profile: &Profile, view: &View, missing: Missing) -> Values {
    let mut sum = Values::default();
    for sample in profile.samples(view).iter().filter(|sample| applies(profile, missing, sample)) {
        add_values(&mut sum, sample.values);
    }
    sum
}

/// A launch without an activity is pending and nothing else, also where it has no stack. A context whose
/// row was lost (with the head of a recording, say) is no stack either.
fn applies(profile: &Profile, missing: Missing, sample: &Sample) -> bool {
    let launch = match sample.place.launch() {
        Ok(context) if profile.context(context).is_none() => Err(Missing::NoStack),
        launch => launch,
    };
    match missing {
        Missing::Untimed | Missing::Pending => sample.leaf.is_missing(missing),
        Missing::LaunchedBefore | Missing::DeviceGraph | Missing::NoStack | Missing::Outside => {
            launch == Err(missing) && !sample.leaf.is_missing(Missing::Pending)
        }
    }
}
