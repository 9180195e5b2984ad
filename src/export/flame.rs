//! The tree that a flame graph is: frames by depth, with a weight where a stack ends.
//!
//! Built once for each file. Stacks stay shared in it, and where no stack ends and none branches off a frame is 4 bytes:
//! writing a hundred thousand deep stacks out costs that and one line's text, not all lines at once.

use std::borrow::Cow;
use std::io;

use super::clean;
use super::compose::{Composer, work_name};
use super::frame::{Frame, Label};
use super::options::Options;
use super::order;
use crate::profile::{
    Kind, NodeId, Numbered, Place, Profile, Sample, ShownFrameId, StringId, Strings, Tip, Tree, View, add_to,
};
use crate::record::{Created, DeviceId, IdMap, Work};

/// See the module's documentation.
pub(super) struct Flame {
    labels: Labels,
    /// Positions of labels.
    tree: Tree,
    /// What is known of each node of the tree, at [`NodeId::index`].
    nodes: Vec<Node>,
    /// All nodes, those of the same parent side by side and in the order of their names.
    order: Vec<NodeId>,
}

#[derive(Clone, Copy, Default)]
struct Node {
    /// The weight of the stack that ends here, if one does.
    own: Option<u64>,
    /// Of the frame itself and of everything above it.
    total: u64,
    /// Where the children begin in `order`, and how many there are.
    children: (u32, u32),
}

/// The name of what is too narrow to be drawn by itself.
pub(super) const SMALL: &str = "[too small to show]";

/// As long is what stands before a kernel's name.
const TAG: usize = "[GPU_Kernel]".len();

impl Flame {
    /// The tree of all that `view` holds, by the value that the options choose.
    pub(super) fn of(profile: &Profile, view: &View, options: &Options) -> Self {
        let composer = Composer::new(profile, view, options);
        let value = options.unit.value(view);
        let mut build = Build::with_room(profile, profile.samples(view).len());
        composer.samples().for_each(|sample| build.sample(&composer, &sample, sample.values[value]));
        build.finish()
    }

    /// The weight of everything.
    pub(super) fn total(&self) -> u64 {
        self.nodes[NodeId::ROOT.index()].total
    }

    /// All frames that are in it, each once.
    pub(super) fn labels(&self) -> impl Iterator<Item = Label<'_>> + Clone {
        self.labels.all()
    }

    /// Those of them that [`Flame::lines`] shows.
    pub(super) fn labels_from(&self, lightest: u64) -> impl Iterator<Item = Label<'_>> {
        let mut is_shown = vec![false; self.labels.shapes.len()];
        for (node, _, run) in self.tree.nodes() {
            if self.nodes[node.index()].total >= lightest {
                run.iter().for_each(|&label| is_shown[label as usize] = true);
            }
        }
        self.labels.all().zip(is_shown).filter(|(_, is_shown)| *is_shown).map(|(label, _)| label)
    }

    /// Calls `line` with each stack, `;` between what `text` makes of its frames, and its weight. Subtrees
    /// lighter than `lightest` are drawn together, one for each parent. Depth is no matter: there is no
    /// recursion.
    pub(super) fn lines<'a>(
        &'a self,
        lightest: u64,
        text: impl Fn(Label<'a>) -> Cow<'a, str>,
        mut line: impl FnMut(&str, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut path = String::new();
        let mut levels = vec![self.level(NodeId::ROOT, 0)];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path);
            let Some(&at) = level.left.split_off_first() else {
                if level.small > 0 {
                    push_name(&mut path, SMALL);
                    line(&path, level.small)?;
                }
                levels.pop();
                continue;
            };
            let node = &self.nodes[at.index()];
            if node.total < lightest {
                add_to(&mut level.small, node.total);
                continue;
            }
            for &label in self.tree.run(at) {
                push_name(&mut path, &text(self.labels.get(label)));
            }
            if let Some(own) = node.own {
                line(&path, own)?;
            }
            levels.push(self.level(at, path.len()));
        }
        Ok(())
    }

    fn level(&self, node: NodeId, path: usize) -> Level<'_> {
        let (first, count) = self.nodes[node.index()].children;
        Level { left: &self.order[first as usize..][..count as usize], path, small: 0 }
    }
}

/// A node whose children are being written.
struct Level<'a> {
    left: &'a [NodeId],
    /// How long the path to it is.
    path: usize,
    small: u64,
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push(';');
    }
    path.push_str(name);
}

/// Clean texts, each once.
#[derive(Default)]
struct Labels {
    texts: Strings,
    /// What each is beside its text, by its number.
    shapes: Vec<(Kind, usize)>,
    /// Those of the frames that the profile knows: most, and seen again in every stack.
    known: Vec<Option<u32>>,
}

impl Labels {
    fn with_room(count: usize, bytes: usize) -> Self {
        let texts = Strings::with_room(count, bytes);
        Self { texts, shapes: Vec::with_capacity(count), ..Self::default() }
    }

    fn get(&self, label: u32) -> Label<'_> {
        let (kind, tag) = self.shapes[label as usize];
        Label::new(kind, self.texts.get(StringId::at(label)), tag)
    }

    fn all(&self) -> impl Iterator<Item = Label<'_>> + Clone {
        (0..self.shapes.len() as u32).map(|label| self.get(label))
    }

    /// That of a frame that the profile knows, which `made` makes at first sight.
    fn of_known<'a>(&mut self, known: ShownFrameId, made: impl FnOnce() -> Frame<'a>) -> u32 {
        let at = known.index();
        if at >= self.known.len() {
            self.known.resize(at + 1, None);
        }
        let id = self.known[at].unwrap_or_else(|| self.intern(&made()));
        self.known[at] = Some(id);
        id
    }

    fn intern(&mut self, frame: &Frame<'_>) -> u32 {
        self.intern_text(&frame.text, (frame.kind, frame.tag))
    }

    fn intern_text(&mut self, text: &str, shape: (Kind, usize)) -> u32 {
        let label = self.texts.intern(&clean::frame(text)).index();
        if label == self.shapes.len() {
            self.shapes.push(shape);
        }
        label as u32
    }

    /// The place of each text in the order of all.
    fn ranks(&self) -> Vec<u32> {
        let texts: Vec<&str> = self.all().map(|label| label.text).collect();
        let mut ranks = vec![0; texts.len()];
        (0..).zip(order::of(&texts)).for_each(|(rank, at)| ranks[at as usize] = rank);
        ranks
    }
}

/// Labels of what stands upon stacks, by what it is and where.
#[derive(Default)]
struct Tips {
    /// Those of kernels, of which there may be a hundred thousand.
    kernels: IdMap<Option<DeviceId>, Numbered<u32>>,
    others: IdMap<(Tip, Option<DeviceId>), u32>,
    /// Room for a text.
    text: String,
}

impl Tips {
    /// That of a tip, which is made at first sight.
    fn label(
        &mut self,
        labels: &mut Labels,
        composer: &Composer<'_>,
        (tip, device): (Tip, Option<DeviceId>),
    ) -> u32 {
        let Tip::Work(work @ Work::Kernel(name)) = tip else {
            let made = || labels.intern(&composer.tip(tip, device));
            return *self.others.entry((tip, device)).or_insert_with(made);
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

/// Room for some more: what is full takes twice as much, for a moment three times.
fn and_some(count: usize) -> usize {
    count + count / 16 + 64
}

#[derive(Default)]
struct Build {
    labels: Labels,
    tree: Tree,
    /// What is known of each node of the tree, as far as weights have come to it.
    nodes: Vec<Node>,
    /// Where stacks end, by where they begin: most have several samples.
    stacks: IdMap<(NodeId, PlaceKey), NodeId>,
    tips: Tips,
    /// Room for the labels of one stack.
    leaf_first: Vec<u32>,
}

/// A [`Place`] as words that are all initialised. Comparing two places may read the bytes that one of them does not use, and
/// valgrind reports each branch that depends on those.
type PlaceKey = [u32; 4];

fn place_key(place: Place) -> PlaceKey {
    match place {
        Place::Context(id) => [0, id.0, 0, 0],
        Place::Missing(missing) => [1, missing as u32, 0, 0],
        Place::Nobody => [2, 0, 0, 0],
        Place::Between { after, thread: None, before } => [3, after.0, 0, before.0],
        Place::Between { after, thread: Some(thread), before } => [4, after.0, thread.0, before.0],
        Place::Node { launch, created } => {
            let (kind, launch) = launch.map_or_else(|missing| (6, missing as u32), |id| (5, id.0));
            match created {
                Created::Context(id) => [kind, launch, 0, id.0],
                Created::BeforeRecording => [kind, launch, 1, 0],
                Created::Unknown => [kind, launch, 2, 0],
            }
        }
    }
}

impl Build {
    /// With room for so many samples. Each work is a label of its own, as far as there are samples.
    fn with_room(profile: &Profile, samples: usize) -> Self {
        let works = profile.works().iter().take(samples);
        let bytes = works.clone().map(|work| TAG + work_name(profile, work.work).len()).sum();
        let labels = Labels::with_room(and_some(works.len()), and_some(bytes));
        let samples = and_some(samples);
        Self { labels, nodes: Vec::with_capacity(samples), tree: Tree::with_room(samples), ..Self::default() }
    }

    fn sample(&mut self, composer: &Composer<'_>, sample: &Sample, weight: u64) {
        let base = self.path(NodeId::ROOT, composer.below(sample));
        let key = (base, place_key(sample.place));
        let stack = match self.stacks.get(&key) {
            Some(&known) => known,
            None => {
                let at = self.stack(base, composer, sample.place);
                self.stacks.insert(key, at);
                at
            }
        };
        let end = self.upon(stack, composer, sample);
        if end.index() >= self.nodes.len() {
            self.nodes.resize(end.index() + 1, Node::default());
        }
        let own = &mut self.nodes[end.index()].own;
        *own = Some(own.unwrap_or(0).saturating_add(weight));
    }

    /// Where the frames of a stack upon `from` end. Nearly all stacks are frames that the profile knows and nothing
    /// else: then no texts are made only to look for them.
    fn stack(&mut self, from: NodeId, composer: &Composer<'_>, place: Place) -> NodeId {
        let Some(known) = composer.known(place) else { return self.path(from, composer.stack(place)) };
        let Self { labels, tree, leaf_first, .. } = self;
        leaf_first.clear();
        leaf_first.extend(known.map(|id| labels.of_known(id, || composer.known_frame(id))));
        tree.chain(from, leaf_first.iter().rev().copied())
    }

    /// Where what stands upon a stack that ends at `from` does: the same few kernels upon all stacks.
    fn upon(&mut self, from: NodeId, composer: &Composer<'_>, sample: &Sample) -> NodeId {
        let Self { labels, tree, tips, .. } = self;
        tree.chain(from, sample.leaf.tips().map(|tip| tips.label(labels, composer, (tip, sample.device))))
    }

    /// Where these frames upon `from` end.
    fn path(&mut self, from: NodeId, frames: Vec<Frame<'_>>) -> NodeId {
        let Self { labels, tree, .. } = self;
        let label = |frame: Frame<'_>| match frame.id {
            Some(id) => labels.of_known(id, || frame),
            None => labels.intern(&frame),
        };
        tree.chain(from, frames.into_iter().map(label))
    }

    fn finish(self) -> Flame {
        let Self { labels, tree, mut nodes, .. } = self;
        let tree = tree.without_index();
        nodes.resize_with(tree.len() + 1, Node::default);
        let order = children(&tree, &labels.ranks(), &mut nodes);
        let mut flame = Flame { labels, tree, nodes, order };
        flame.add_up();
        flame
    }
}

/// All nodes in the order of their parents and then of their names; the parents are told where theirs are.
fn children(tree: &Tree, ranks: &[u32], nodes: &mut [Node]) -> Vec<NodeId> {
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
    /// Gives each node its total.
    fn add_up(&mut self) {
        // Parents before their children, and then the other way round.
        let mut parents = vec![(NodeId::ROOT, NodeId::ROOT)];
        let mut next = 0;
        while let Some(&(node, _)) = parents.get(next) {
            parents.extend(self.level(node, 0).left.iter().map(|child| (*child, node)));
            next += 1;
        }
        for (node, parent) in parents.into_iter().rev() {
            let Node { own, total, .. } = &mut self.nodes[node.index()];
            *total = total.saturating_add(own.unwrap_or(0));
            let total = *total;
            if node != parent {
                let above = &mut self.nodes[parent.index()].total;
                *above = above.saturating_add(total);
            }
        }
    }
}
