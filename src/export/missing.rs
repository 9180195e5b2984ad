//! How much of a profile is shown for a reason instead of under a stack, or without a time: the same sums
//! in every export.

use crate::profile::{Leaf, Place, Profile, Sample, Weight};
use crate::record::Missing;

/// The reasons that apply to anything, in the order in which they are shown. One activity may be in two:
/// without a stack, and without a time.
pub(super) fn all(profile: &Profile) -> impl Iterator<Item = (Missing, Weight)> {
    [Missing::LaunchedBefore, Missing::NoStack, Missing::Untimed, Missing::Pending]
        .into_iter()
        .map(|missing| (missing, weight(profile, missing)))
        .filter(|(_, weight)| weight.count > 0)
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
    let place = match sample.place {
        Place::Context(context) if profile.context(context).is_none() => Place::Missing(Missing::NoStack),
        place => place,
    };
    match missing {
        Missing::Untimed => matches!(sample.leaf, Leaf::Untimed(_)),
        Missing::Pending => sample.leaf == Leaf::Pending,
        Missing::LaunchedBefore | Missing::NoStack | Missing::Outside => {
            place == Place::Missing(missing) && sample.leaf != Leaf::Pending
        }
    }
}
