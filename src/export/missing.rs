//! How much of a profile is shown for a reason instead of under a stack, or without a time: the same sums
//! in every export.

use crate::profile::{Leaf, Profile, Sample, Weight};
use crate::record::{Loss, Missing};

/// The reasons that apply to anything, in the order in which they are shown. One activity may be in two:
/// without a stack, and without a time.
pub(super) fn all(profile: &Profile) -> impl Iterator<Item = (Missing, Weight)> {
    [Missing::LaunchedBefore, Missing::DeviceGraph, Missing::NoStack, Missing::Untimed, Missing::Pending]
        .into_iter()
        .map(|missing| (missing, weight(profile, missing)))
        .filter(|(_, weight)| weight.count > 0)
}

/// What was lost. A launch that was captured is not: it runs as often as its graph is launched.
pub(super) fn losses(profile: &Profile) -> impl Iterator<Item = (Loss, u64)> {
    profile.losses().filter(|(loss, _)| *loss != Loss::LaunchesCaptured)
}

fn weight(profile: &Profile, missing: Missing) -> Weight {
    let mut sum = Weight::default();
    for sample in profile.samples().iter().filter(|sample| applies(profile, missing, sample)) {
        sum.count += sample.weight.count;
        sum.nanos = sum.nanos.saturating_add(sample.weight.nanos);
        sum.bytes = sum.bytes.saturating_add(sample.weight.bytes);
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
        Missing::Untimed => matches!(sample.leaf, Leaf::Untimed(_)),
        Missing::Pending => sample.leaf == Leaf::Pending,
        Missing::LaunchedBefore | Missing::DeviceGraph | Missing::NoStack | Missing::Outside => {
            launch == Err(missing) && sample.leaf != Leaf::Pending
        }
    }
}
