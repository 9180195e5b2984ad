//! The tree of stacks in a view, summed over all runs on the page.

use std::collections::HashMap;

use gpuflame_export::compose::Composer;
use gpuflame_export::frame::ComposedFrame;
use gpuflame_export::{Options, short_kernels};
use gpuflame_model::profile::{Profile, ShownFrameId, View, add_to};

use super::frame_names::{FrameName, FrameNames, NameKind, SourcePlace};
use super::tracks::{ThreadNames, Tracks};

/// Node of a tree. A parent has a smaller index than its children. Node 0 is the root.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeNode {
    pub(super) parent: u32,
    pub(super) name: u32,
}

/// Value of a node, and number of occurrences, in this order.
pub(super) type Sums = [u64; 2];

/// Tree of stacks. Each node has a name, and a value for each track.
#[derive(Debug)]
pub(super) struct ViewTree {
    pub(super) nodes: Vec<TreeNode>,
    children: HashMap<(u32, u32), u32>,
    /// Values of the stacks that end at a node, keyed by node and track.
    pub(super) values: HashMap<(u32, u32), Sums>,
}

impl Default for ViewTree {
    fn default() -> Self {
        let root = TreeNode { parent: 0, name: u32::MAX };
        Self { nodes: vec![root], children: HashMap::new(), values: HashMap::new() }
    }
}

impl ViewTree {
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn child(&mut self, parent: u32, name: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let child = *self.children.entry((parent, name)).or_insert(next);
        if child == next {
            self.nodes.push(TreeNode { parent, name });
        }
        child
    }

    pub(super) fn add(&mut self, node: u32, track: u32, [value, count]: Sums) {
        let sums = self.values.entry((node, track)).or_default();
        add_to(&mut sums[0], value);
        add_to(&mut sums[1], count);
    }
}

/// Adds a view of a run to `tree`. Frames get the same names as in this run's folded stacks.
pub(super) fn add_view(
    tree: &mut ViewTree,
    (names, tracks): (&mut FrameNames, &mut Tracks),
    profile: &Profile,
    (view, rank): (&View, Option<u32>),
    options: &Options,
) {
    let (composer, threads) = (Composer::new(profile, view, options), ThreadNames::new(profile));
    let (mut labels, mut own) = (RunLabels::default(), ViewTree::default());
    for sample in composer.samples() {
        let frames = composer.frames(&sample);
        let end = frames.iter().fold(0, |at, frame| own.child(at, labels.number(profile, frame)));
        let track = tracks.number(threads.track(profile, &sample, rank));
        own.add(end, track, [sample.amount(), sample.count()]);
    }
    let numbers = labels.into_names(names, options.whole_kernels);
    let mut places = vec![0_u32];
    for node in &own.nodes[1..] {
        places.push(tree.child(places[node.parent as usize], numbers[node.name as usize]));
    }
    for ((node, track), sums) in own.values {
        tree.add(places[node as usize], track, sums);
    }
}

/// Distinct frames in a view of one run.
#[derive(Default)]
struct RunLabels {
    /// Frame names, each with the length of the tag if the frame is a kernel.
    list: Vec<(FrameName, usize)>,
    numbers: HashMap<String, u32>,
    /// Indexes of the frames that have an id in the profile, keyed by this id. Nearly all frames have an id in the
    /// profile.
    by_frame: HashMap<ShownFrameId, u32>,
    text: String,
}

impl RunLabels {
    fn number(&mut self, profile: &Profile, frame: &ComposedFrame<'_>) -> u32 {
        if let Some(known) = frame.id.and_then(|id| self.by_frame.get(&id)) {
            return *known;
        }
        let label = frame.cleaned(&mut self.text);
        let tag = label.kernel().map_or(0, |(tag, _)| tag.len());
        let next = self.list.len() as u32;
        let number = self.numbers.get(label.text).copied().unwrap_or(next);
        let place = SourcePlace::new(profile, frame);
        match self.list.get_mut(number as usize) {
            Some((known, _)) => known.place.add(place),
            None => {
                let text = label.text.to_owned();
                self.numbers.insert(text.clone(), number);
                self.list.push((FrameName { text, kind: NameKind::new(profile, frame), place }, tag));
            }
        }
        if let Some(id) = frame.id {
            self.by_frame.insert(id, number);
        }
        number
    }

    /// Adds the labels to the page's list of names, and returns the index of each label in that list. As in folded
    /// stacks, kernels get short names, unless two kernels of the view would have the same short name.
    fn into_names(self, names: &mut FrameNames, whole_kernels: bool) -> Vec<u32> {
        let is_kernel = |(_, tag): &&(FrameName, usize)| *tag > 0 && !whole_kernels;
        let kernels = self.list.iter().filter(is_kernel).map(|(name, tag)| &name.text[*tag..]);
        let short: HashMap<String, String> =
            short_kernels(kernels).into_iter().map(|(name, short)| (name.to_owned(), short)).collect();
        let named = |(name, tag): (FrameName, usize)| match short.get(&name.text[tag..]).filter(|_| tag > 0) {
            Some(short) => FrameName { text: format!("{}{short}", &name.text[..tag]), ..name },
            None => name,
        };
        self.list.into_iter().map(|label| names.add(named(label))).collect()
    }
}
