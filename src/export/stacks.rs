//! Samples as sorted stacks of numbered frames: what formats with a table of frames are made of.

use std::collections::BTreeMap;

use super::clean;
use super::compose::Composer;
use super::options::Options;
use crate::profile::{Profile, Values, View, add_values};
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
    pub(super) values: Values,
}

impl Stacks {
    pub(super) fn of(profile: &Profile, view: &View, options: &Options) -> Self {
        let composer = Composer::new(profile, view, options);
        let mut sums: BTreeMap<(Vec<String>, Option<DeviceId>), Values> = BTreeMap::new();
        for sample in composer.samples() {
            let frames = composer.frames(&sample).iter().map(|frame| clean::text(&frame.text)).collect();
            add_values(sums.entry((frames, sample.device)).or_default(), sample.values);
        }
        let mut names: Vec<String> = sums.keys().flat_map(|(frames, _)| frames).cloned().collect();
        names.sort_unstable();
        names.dedup();
        let number = |name: &String| names.binary_search(name).expect("all names are there") as u32;
        let samples = sums
            .iter()
            .map(|((frames, device), &values)| Stack {
                frames: frames.iter().map(number).collect(),
                device: *device,
                values,
            })
            .collect();
        Self { names, samples }
    }
}
