//! Builds the tree of a flame graph. Each node represents a path of frames from the root. If a stack ends at a node,
//! the node has a weight of its own.
//!
//! The tree is built once per file. Stacks that begin with the same frames share the nodes of these frames. A frame
//! takes only 4 bytes if no stack ends or branches off at this frame. Writing the stacks needs memory for the tree and
//! for the text of one line only, even if there are a hundred thousand deep stacks.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::io;

use super::clean;
use super::compose::{Composer, work_name};
use super::frame::{ComposedFrame, Label};
use super::options::Options;
use super::order;
use gpuflame_model::profile::{
    DenseIdMap, LeafFrame, NodeId, PrefixTree, Profile, Sample, SampleSite, ShownFrameId, ShownFrameKind,
    StringId, StringTable, View, add_to,
};
use gpuflame_model::record::{Created, DeviceId, IdMap, Work};

/// Flame graph tree, which the module's documentation describes.
pub struct Flame {
    labels: Labels,
    /// Tree whose symbols are labels (indexes of texts).
    tree: PrefixTree,
    /// Weights and children of the tree's nodes, indexed by [`NodeId::index`].
    nodes: Vec<FlameNode>,
    /// All nodes. The children of a node are next to each other and sorted by name.
    order: Vec<NodeId>,
}

#[derive(Clone, Copy, Default)]
struct FlameNode {
    /// Weight of the stack that ends at this node; `None` if no stack ends here.
    own: Option<u64>,
    /// Weight of all stacks that end at this node or at one of its descendants.
    total: u64,
    /// Index of the first child in `order`, and number of children.
    children: (u32, u32),
}

/// Text that follows the number of frames in the name of a merged frame. A merged frame replaces several frames that
/// are too narrow to draw.
pub(super) const MERGED_FRAME_END: &str = ", too small to show]";

/// Decides which frames of the tree are shown. A frame is shown if it is heavier than `lightest`, or if its weight
/// equals `lightest` and its depth is at most `max_depth`. The parent of a shown frame is shown as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    lightest: u64,
    max_depth: usize,
}

impl Detail {
    /// All frames.
    pub const ALL: Self = Self { lightest: 0, max_depth: usize::MAX };

    /// Returns the number of frames that are shown in a run of `len` consecutive frames with the weight `total`.
    /// `depth` is the number of frames between the first of these frames and the root.
    fn shown(self, total: u64, depth: usize, len: usize) -> usize {
        match total.cmp(&self.lightest) {
            Ordering::Greater => len,
            Ordering::Equal => len.min(self.max_depth.saturating_sub(depth)),
            Ordering::Less => 0,
        }
    }
}

/// Length of the tag that precedes a kernel's name.
const TAG: usize = "[GPU_Kernel]".len();

impl Flame {
    /// Builds the tree of `view`, weighted by the value that the options select.
    pub fn build(profile: &Profile, view: &View, options: &Options) -> Self {
        let composer = Composer::new(profile, view, options);
        let value = options.unit.value(view);
        let mut build = FlameBuilder::with_capacity(profile, profile.samples(view).len());
        composer.samples().for_each(|sample| build.sample(&composer, &sample, sample.values[value]));
        build.finish()
    }

    /// Returns the total weight of all stacks.
    pub(super) fn total(&self) -> u64 {
        self.nodes[NodeId::ROOT.index()].total
    }

    /// Returns all distinct frames.
    pub fn labels(&self) -> impl Iterator<Item = Label<'_>> + Clone {
        self.labels.all()
    }

    /// Returns the distinct frames that [`Flame::lines`] shows with `detail`, and possibly a few more.
    pub(super) fn labels_with(&self, detail: Detail) -> impl Iterator<Item = Label<'_>> {
        let mut is_shown = vec![false; self.labels.shapes.len()];
        for (node, _, run) in self.tree.nodes() {
            if self.nodes[node.index()].total >= detail.lightest {
                run.iter().for_each(|&label| is_shown[label as usize] = true);
            }
        }
        self.labels.all().zip(is_shown).filter(|(_, is_shown)| *is_shown).map(|(label, _)| label)
    }

    /// Returns a `Detail` with at most `max_frames` frames, and without frames lighter than `lightest`. If the tree has
    /// more frames than this, the lightest frames are omitted first. Among frames of equal weight, the frames furthest
    /// from the root are omitted first.
    pub(super) fn detail(&self, lightest: u64, max_frames: usize) -> Detail {
        // Weight, depth and length (in frames) of each run of consecutive frames.
        let mut runs = Vec::new();
        let mut left = vec![(NodeId::ROOT, 0)];
        while let Some((node, depth)) = left.pop() {
            let (total, run) = (self.nodes[node.index()].total, self.tree.run(node).len());
            if total >= lightest {
                runs.push((total, depth, run));
                left.extend(self.level(node, 0, 0).left.iter().map(|child| (*child, depth + run)));
            }
        }
        let fits = |detail: Detail| {
            let shown = runs.iter().map(|&(total, depth, len)| detail.shown(total, depth, len));
            shown.sum::<usize>() <= max_frames
        };
        let all = Detail { lightest, max_depth: usize::MAX };
        if fits(all) {
            return all;
        }
        let lightest = lowest(lightest, self.total(), |lightest| fits(Detail { lightest, max_depth: 0 }));
        let too_deep = |max_depth| !fits(Detail { lightest, max_depth: max_depth as usize });
        let deepest = runs.iter().map(|(_, depth, len)| depth + len).max().unwrap_or(0) as u64;
        Detail { lightest, max_depth: lowest(0, deepest, too_deep).saturating_sub(1) as usize }
    }

    /// Calls `line` with each stack and its weight. `text` returns the text of a frame; the texts in a stack are
    /// separated by `;`. Frames that `detail` omits are merged into one frame per parent. This function is not
    /// recursive, so stacks may have any depth.
    pub fn lines<'a>(
        &'a self,
        detail: Detail,
        text: &dyn Fn(Label<'a>) -> Cow<'a, str>,
        line: &mut dyn FnMut(&str, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut path = String::new();
        let mut levels = vec![self.level(NodeId::ROOT, 0, 0)];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path);
            let Some(&at) = level.left.split_off_first() else {
                if level.small > 0 {
                    push_name(&mut path, &merged_name(level.merged));
                    line(&path, level.small)?;
                }
                levels.pop();
                continue;
            };
            let (node, run, depth) = (&self.nodes[at.index()], self.tree.run(at), level.depth);
            let shown = detail.shown(node.total, depth, run.len());
            if shown == 0 {
                add_to(&mut level.small, node.total);
                level.merged += self.frames_from(at);
                continue;
            }
            for &label in &run[..shown] {
                push_name(&mut path, &text(self.labels.get(label)));
            }
            if shown < run.len() {
                push_name(&mut path, &merged_name(self.frames_from(at) - shown));
                line(&path, node.total)?;
                continue;
            }
            if let Some(own) = node.own {
                line(&path, own)?;
            }
            levels.push(self.level(at, path.len(), depth + shown));
        }
        Ok(())
    }

    /// Returns the number of frames of a node and all its descendants.
    fn frames_from(&self, node: NodeId) -> usize {
        let (mut frames, mut left) = (0, vec![node]);
        while let Some(node) = left.pop() {
            frames += self.tree.run(node).len();
            left.extend(self.level(node, 0, 0).left);
        }
        frames
    }

    fn level(&self, node: NodeId, path: usize, depth: usize) -> Level<'_> {
        let (first, count) = self.nodes[node.index()].children;
        Level { left: &self.order[first as usize..][..count as usize], path, depth, small: 0, merged: 0 }
    }
}

/// State of a node that is being written.
struct Level<'a> {
    left: &'a [NodeId],
    /// Length in bytes of the text of the node's path, and number of frames in that path.
    path: usize,
    depth: usize,
    /// Total weight and count of the frames below this node that are omitted.
    small: u64,
    merged: usize,
}

/// Returns the lowest number in `from..=to` for which `is_enough` returns true, or `to` if there is none. If
/// `is_enough` returns true for a number, it must return true for all higher numbers.
fn lowest(mut from: u64, mut to: u64, is_enough: impl Fn(u64) -> bool) -> u64 {
    while from < to {
        let middle = from + (to - from) / 2;
        match is_enough(middle) {
            true => to = middle,
            false => from = middle + 1,
        }
    }
    from
}

fn merged_name(frames: usize) -> String {
    let noun = if frames == 1 { "frame" } else { "frames" };
    format!("[{frames} more {noun}{MERGED_FRAME_END}")
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push(';');
    }
    path.push_str(name);
}

/// Distinct frame texts, cleaned for output. A label is the index of a text.
#[derive(Default)]
struct Labels {
    texts: StringTable,
    /// Kind of the frame, and length of the tag in the text; indexed by label.
    shapes: Vec<(ShownFrameKind, usize)>,
    /// Labels of frames that have an id in the profile, indexed by that id. Most frames have an id and occur in many
    /// stacks.
    by_frame: Vec<Option<u32>>,
}

impl Labels {
    fn with_capacity(count: usize, bytes: usize) -> Self {
        let texts = StringTable::with_capacity(count, bytes);
        Self { texts, shapes: Vec::with_capacity(count), ..Self::default() }
    }

    fn get(&self, label: u32) -> Label<'_> {
        let (kind, tag) = self.shapes[label as usize];
        Label::new(kind, self.texts.get(StringId::from_index(label)), tag)
    }

    fn all(&self) -> impl Iterator<Item = Label<'_>> + Clone {
        (0..self.shapes.len() as u32).map(|label| self.get(label))
    }

    /// Returns the label of the frame with the id `known`. If the frame occurs for the first time, `made` creates it.
    fn of_profile_frame<'a>(&mut self, known: ShownFrameId, made: impl FnOnce() -> ComposedFrame<'a>) -> u32 {
        let at = known.index();
        if at >= self.by_frame.len() {
            self.by_frame.resize(at + 1, None);
        }
        let id = self.by_frame[at].unwrap_or_else(|| self.intern(&made()));
        self.by_frame[at] = Some(id);
        id
    }

    fn intern(&mut self, frame: &ComposedFrame<'_>) -> u32 {
        self.intern_text(&frame.text, (frame.kind, frame.tag))
    }

    /// Returns the label of a text. Frames of different kinds may have the same text: `cudaMalloc` may be a call or a
    /// host function. If a text has several kinds, its label gets the kind that comes last in the order of
    /// [`ShownFrameKind`]. Therefore the kind of a label does not depend on the order of the stacks.
    fn intern_text(&mut self, text: &str, shape: (ShownFrameKind, usize)) -> u32 {
        let label = self.texts.intern(&clean::frame(text)).index();
        match self.shapes.get_mut(label) {
            Some(known) => *known = shape.max(*known),
            None => self.shapes.push(shape),
        }
        label as u32
    }

    /// Returns the rank of each text in sorted order.
    fn ranks(&self) -> Vec<u32> {
        let texts: Vec<&str> = self.all().map(|label| label.text).collect();
        let mut ranks = vec![0; texts.len()];
        (0..).zip(order::sort_indices(&texts)).for_each(|(rank, at)| ranks[at as usize] = rank);
        ranks
    }
}

/// Labels of leaf frames (frames on top of samples' stacks), keyed by frame and device.
#[derive(Default)]
struct LeafLabels {
    /// Labels of kernels. A profile may have a hundred thousand kernels.
    kernels: IdMap<Option<DeviceId>, DenseIdMap<u32>>,
    others: IdMap<(LeafFrame, Option<DeviceId>), u32>,
    /// Buffer for the text of a frame.
    text: String,
}

impl LeafLabels {
    /// Returns the label of a frame. Creates the label if the frame occurs for the first time.
    fn label(
        &mut self,
        labels: &mut Labels,
        composer: &Composer<'_>,
        (frame, device): (LeafFrame, Option<DeviceId>),
    ) -> u32 {
        let LeafFrame::Work(work @ Work::Kernel(name)) = frame else {
            let made = || labels.intern(&composer.leaf_frame(frame, device));
            return *self.others.entry((frame, device)).or_insert_with(made);
        };
        let kernels = self.kernels.entry(device).or_default();
        if let Some(known) = kernels.get(name) {
            return *known;
        }
        self.text.clear();
        let shape = composer.push_work(&mut self.text, work, device);
        let label = labels.intern_text(&self.text, shape);
        kernels.add(name, label);
        label
    }
}

/// Returns `count` plus room for more entries, so that a table with this capacity does not become full. A full table is
/// copied to a table of twice the size. During the copy, both tables together need three times the memory of the old
/// table.
fn with_slack(count: usize) -> usize {
    count + count / 16 + 64
}

#[derive(Default)]
struct FlameBuilder {
    labels: Labels,
    tree: PrefixTree,
    /// Data of the tree's nodes. Until `finish` is called, this list may be shorter than the tree, because nodes after
    /// the last node with a weight have no data yet.
    nodes: Vec<FlameNode>,
    /// Node at which each stack ends, keyed by the node at which the stack starts and by the stack's site. This map is
    /// a cache, which is useful because most stacks have several samples.
    stacks: IdMap<(NodeId, SiteKey), NodeId>,
    leaf_labels: LeafLabels,
    /// Buffer for the labels of one stack.
    leaf_first: Vec<u32>,
}

/// A [`SampleSite`] as four initialised numbers. Comparing two `SampleSite`s directly may read uninitialised padding,
/// and valgrind reports each branch that depends on such padding.
type SiteKey = [u32; 4];

fn site_key(site: SampleSite) -> SiteKey {
    match site {
        SampleSite::Context(id) => [0, id.0, 0, 0],
        SampleSite::Missing(missing) => [1, missing as u32, 0, 0],
        SampleSite::NoStack => [2, 0, 0, 0],
        SampleSite::Between { after, thread: None, before } => [3, after.0, 0, before.0],
        SampleSite::Between { after, thread: Some(thread), before } => [4, after.0, thread.0, before.0],
        SampleSite::Node { launch, created } => {
            let (kind, launch) = launch.map_or_else(|missing| (6, missing as u32), |id| (5, id.0));
            match created {
                Created::Context(id) => [kind, launch, 0, id.0],
                Created::BeforeRecording => [kind, launch, 1, 0],
                Created::Unknown => [kind, launch, 2, 0],
            }
        }
    }
}

impl FlameBuilder {
    /// Creates a builder with capacity for `samples` samples. Each kernel, each kind of copy and each other kind of GPU
    /// work has its own label. Therefore the number of labels for GPU work is at most the number of samples.
    fn with_capacity(profile: &Profile, samples: usize) -> Self {
        let works = profile.works().iter().take(samples);
        let bytes = works.clone().map(|work| TAG + work_name(profile, work.work).len()).sum();
        let labels = Labels::with_capacity(with_slack(works.len()), with_slack(bytes));
        let samples = with_slack(samples);
        Self {
            labels,
            nodes: Vec::with_capacity(samples),
            tree: PrefixTree::with_capacity(samples),
            ..Self::default()
        }
    }

    fn sample(&mut self, composer: &Composer<'_>, sample: &Sample, weight: u64) {
        let base = self.path(NodeId::ROOT, composer.root_frames(sample));
        let key = (base, site_key(sample.site));
        let stack = match self.stacks.get(&key) {
            Some(&known) => known,
            None => {
                let at = self.stack(base, composer, sample.site);
                self.stacks.insert(key, at);
                at
            }
        };
        let end = self.leaf_frames(stack, composer, sample);
        if end.index() >= self.nodes.len() {
            self.nodes.resize(end.index() + 1, FlameNode::default());
        }
        let own = &mut self.nodes[end.index()].own;
        *own = Some(own.unwrap_or(0).saturating_add(weight));
    }

    /// Returns the node at which the stack of `site` ends if it starts at the node `from`. In nearly all stacks, all
    /// frames have an id in the profile. The node of a stack whose frames have ids is found without creating the texts
    /// of the frames.
    fn stack(&mut self, from: NodeId, composer: &Composer<'_>, site: SampleSite) -> NodeId {
        let Some(known) = composer.profile_frames(site) else { return self.path(from, composer.stack(site)) };
        let Self { labels, tree, leaf_first, .. } = self;
        leaf_first.clear();
        leaf_first.extend(known.map(|id| labels.of_profile_frame(id, || composer.profile_frame(id))));
        tree.chain(from, leaf_first.iter().rev().copied())
    }

    /// Returns the node at which the sample's leaf frames end if they start at the node `from`.
    fn leaf_frames(&mut self, from: NodeId, composer: &Composer<'_>, sample: &Sample) -> NodeId {
        let Self { labels, tree, leaf_labels, .. } = self;
        tree.chain(
            from,
            sample.leaf.frames().map(|frame| leaf_labels.label(labels, composer, (frame, sample.device))),
        )
    }

    /// Returns the node reached from the node `from` along `frames`. Creates the nodes that do not exist yet.
    fn path(&mut self, from: NodeId, frames: Vec<ComposedFrame<'_>>) -> NodeId {
        let Self { labels, tree, .. } = self;
        let label = |frame: ComposedFrame<'_>| match frame.id {
            Some(id) => labels.of_profile_frame(id, || frame),
            None => labels.intern(&frame),
        };
        tree.chain(from, frames.into_iter().map(label))
    }

    fn finish(self) -> Flame {
        let Self { labels, tree, mut nodes, .. } = self;
        let tree = tree.without_index();
        nodes.resize_with(tree.node_count() + 1, FlameNode::default);
        let order = children(&tree, &labels.ranks(), &mut nodes);
        let mut flame = Flame { labels, tree, nodes, order };
        flame.add_up();
        flame
    }
}

/// Sorts all nodes by parent and then by name, and stores in each parent the position of its children in this order.
fn children(tree: &PrefixTree, ranks: &[u32], nodes: &mut [FlameNode]) -> Vec<NodeId> {
    let mut found: Vec<(NodeId, u32, NodeId)> =
        tree.nodes().map(|(node, parent, run)| (parent, ranks[run[0] as usize], node)).collect();
    found.sort_unstable();
    for (position, (parent, ..)) in (0..).zip(&found) {
        let (first, count) = &mut nodes[parent.index()].children;
        if *count == 0 {
            *first = position;
        }
        *count += 1;
    }
    found.into_iter().map(|(.., node)| node).collect()
}

impl Flame {
    /// Computes the totals of all nodes.
    fn add_up(&mut self) {
        // Parents come before their children in this list. The list is traversed in reverse order, so the total of a
        // node is complete before it is added to the parent's total.
        let mut parents = vec![(NodeId::ROOT, NodeId::ROOT)];
        let mut next = 0;
        while let Some(&(node, _)) = parents.get(next) {
            parents.extend(self.level(node, 0, 0).left.iter().map(|child| (*child, node)));
            next += 1;
        }
        for (node, parent) in parents.into_iter().rev() {
            let FlameNode { own, total, .. } = &mut self.nodes[node.index()];
            *total = total.saturating_add(own.unwrap_or(0));
            let total = *total;
            if node != parent {
                let above = &mut self.nodes[parent.index()].total;
                *above = above.saturating_add(total);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_two_kinds_has_the_same_kind_in_each_order() {
        let (code, call) = (ShownFrameKind::Code, ShownFrameKind::Call);
        for kinds in [[code, call], [call, code]] {
            let mut labels = Labels::default();
            let [first, second] = kinds.map(|kind| labels.intern_text("cudaMalloc", (kind, 0)));
            assert_eq!((first, labels.get(second).kind), (second, call));
        }
    }
}
