//! Samples as sorted stacks of numbered names: what formats with a table of strings are made of.

use std::collections::BTreeMap;

use super::leaf;
use super::stack::stack_names;
use crate::profile::{Profile, Weight};
use crate::record::DeviceId;

/// See the module's documentation. Names are numbered in their order, stacks stand in that of their names.
pub(super) struct Stacks {
    pub(super) names: Vec<String>,
    pub(super) samples: Vec<Stack>,
}

/// A stack, root first, and how much of it there is on a device.
pub(super) struct Stack {
    pub(super) frames: Vec<u32>,
    pub(super) device: Option<DeviceId>,
    pub(super) weight: Weight,
}

impl Stacks {
    pub(super) fn of(profile: &Profile) -> Self {
        let mut sums: BTreeMap<(Vec<String>, Option<DeviceId>), Weight> = BTreeMap::new();
        for sample in profile.samples() {
            let mut frames: Vec<String> = stack_names(profile, sample.place)
                .into_iter()
                .map(|name| super::clean::text(&name))
                .collect();
            let leaves = leaf::frames(profile, sample.leaf, sample.device);
            frames.extend(leaves.into_iter().map(|(name, _)| super::clean::text(&name)));
            let sum = sums.entry((frames, sample.device)).or_default();
            sum.count += sample.weight.count;
            sum.nanos = sum.nanos.saturating_add(sample.weight.nanos);
            sum.bytes = sum.bytes.saturating_add(sample.weight.bytes);
        }
        let mut names: Vec<String> = sums.keys().flat_map(|(frames, _)| frames).cloned().collect();
        names.sort_unstable();
        names.dedup();
        let number = |name: &String| names.binary_search(name).expect("all names are there") as u32;
        let samples = sums
            .iter()
            .map(|((frames, device), &weight)| Stack {
                frames: frames.iter().map(number).collect(),
                device: *device,
                weight,
            })
            .collect();
        Self { names, samples }
    }
}
