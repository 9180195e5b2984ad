//! The tree that a flame graph is: frames by depth, with a weight where a stack ends.
//!
//! Built once for each file. Stacks stay shared in it, so that writing a hundred thousand deep stacks out
//! costs a few bytes a node and one line's text, not all lines at once.

use std::collections::HashMap;
use std::io;

use super::compose::Composer;
use super::frame::{Frame, Label};
use super::options::Options;
use crate::profile::{Place, Profile, Sample, ShownFrameId, View};
use crate::record::IdMap;

/// See the module's documentation.
pub(super) struct Flame {
    labels: Labels,
    /// A parent comes before its children.
    nodes: Vec<Node>,
    /// All nodes, those of the same parent side by side and in the order of their names.
    order: Vec<u32>,
}

struct Node {
    parent: u32,
    label: u32,
    /// The weight of the stack that ends here, if one does.
    own: Option<u64>,
    /// Of the frame itself and of everything above it.
    total: u64,
    /// Where the children begin in `order`, and how many there are.
    children: (u32, u32),
}

/// The name of what is too narrow to be drawn by itself.
pub(super) const SMALL: &str = "[too small to show]";
const ROOT: u32 = 0;

impl Flame {
    /// The tree of all that `view` holds, by the value that the options choose.
    pub(super) fn of(profile: &Profile, view: &View, options: &Options) -> Self {
        let composer = Composer::new(profile, view, options);
        let value = options.unit.value(view);
        let mut build = Build::default();
        composer.samples().for_each(|sample| build.sample(&composer, &sample, sample.values[value]));
        build.finish()
    }

    /// The weight of everything.
    pub(super) fn total(&self) -> u64 {
        self.nodes[ROOT as usize].total
    }

    /// All frames that are in it, each once.
    pub(super) fn labels(&self) -> &[Label] {
        &self.labels.all
    }

    /// Calls `line` with each stack, `;` between what `text` makes of its frames, and its weight. Subtrees
    /// lighter than `lightest` are drawn together, one for each parent. Depth is no matter: there is no
    /// recursion.
    pub(super) fn lines(
        &self,
        lightest: u64,
        text: impl Fn(&Label) -> &str,
        mut line: impl FnMut(&str, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut path = String::new();
        let mut levels = vec![self.level(ROOT, 0)];
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
            let node = &self.nodes[at as usize];
            if node.total < lightest {
                level.small += node.total;
                continue;
            }
            push_name(&mut path, text(&self.labels.all[node.label as usize]));
            if let Some(own) = node.own {
                line(&path, own)?;
            }
            levels.push(self.level(at, path.len()));
        }
        Ok(())
    }

    fn level(&self, node: u32, path: usize) -> Level<'_> {
        let (first, count) = self.nodes[node as usize].children;
        Level { left: &self.order[first as usize..][..count as usize], path, small: 0 }
    }
}

/// A node whose children are being written.
struct Level<'a> {
    left: &'a [u32],
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
    all: Vec<Label>,
    ids: HashMap<String, u32>,
    /// Those that the profile knows: most, and seen again in every stack.
    known: IdMap<ShownFrameId, u32>,
}

impl Labels {
    fn intern(&mut self, frame: &Frame<'_>) -> u32 {
        if let Some(&id) = frame.id.and_then(|id| self.known.get(&id)) {
            return id;
        }
        let label = Label::of(frame);
        let next = self.all.len() as u32;
        let id = *self.ids.entry(label.text.clone()).or_insert(next);
        if id == next {
            self.all.push(label);
        }
        frame.id.map(|known| self.known.insert(known, id));
        id
    }

    /// The place of each text in the order of all.
    fn ranks(&self) -> Vec<u32> {
        let mut sorted: Vec<usize> = (0..self.all.len()).collect();
        sorted.sort_unstable_by_key(|&at| &self.all[at].text);
        let mut ranks = vec![0; sorted.len()];
        sorted.into_iter().zip(0..).for_each(|(at, rank)| ranks[at] = rank);
        ranks
    }
}

struct Build {
    labels: Labels,
    nodes: Vec<Node>,
    index: IdMap<(u32, u32), u32>,
    /// Where stacks end, by where they begin: most have several samples.
    stacks: IdMap<(u32, Place), u32>,
}

impl Default for Build {
    fn default() -> Self {
        let root = Node { parent: ROOT, label: 0, own: None, total: 0, children: (0, 0) };
        Self {
            labels: Labels::default(),
            nodes: vec![root],
            index: IdMap::default(),
            stacks: IdMap::default(),
        }
    }
}

impl Build {
    fn sample(&mut self, composer: &Composer<'_>, sample: &Sample, weight: u64) {
        let base = self.path(ROOT, &composer.below(sample));
        let stack = match self.stacks.get(&(base, sample.place)) {
            Some(&known) => known,
            None => {
                let at = self.path(base, &composer.stack(sample.place));
                self.stacks.insert((base, sample.place), at);
                at
            }
        };
        let end = self.path(stack, &composer.upon(sample));
        let own = &mut self.nodes[end as usize].own;
        *own = Some(own.unwrap_or(0).saturating_add(weight));
    }

    /// Where these frames upon `from` end.
    fn path(&mut self, from: u32, frames: &[Frame<'_>]) -> u32 {
        frames.iter().fold(from, |at, frame| {
            let label = self.labels.intern(frame);
            self.child(at, label)
        })
    }

    fn child(&mut self, parent: u32, label: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let at = *self.index.entry((parent, label)).or_insert(next);
        if at == next {
            self.nodes.push(Node { parent, label, own: None, total: 0, children: (0, 0) });
        }
        at
    }

    fn finish(self) -> Flame {
        let (labels, mut nodes) = (self.labels, self.nodes);
        let mut order: Vec<u32> = (1..nodes.len() as u32).collect();
        let ranks = labels.ranks();
        order.sort_unstable_by_key(|&at| {
            let node = &nodes[at as usize];
            (node.parent, ranks[node.label as usize])
        });
        for (position, &at) in order.iter().enumerate() {
            let parent = nodes[at as usize].parent;
            let (first, count) = &mut nodes[parent as usize].children;
            if *count == 0 {
                *first = position as u32;
            }
            *count += 1;
        }
        for at in (0..nodes.len()).rev() {
            let total = nodes[at].total.saturating_add(nodes[at].own.unwrap_or(0));
            nodes[at].total = total;
            if at != ROOT as usize {
                let parent = nodes[at].parent as usize;
                let parent = &mut nodes[parent];
                parent.total = parent.total.saturating_add(total);
            }
        }
        Flame { labels, nodes, order }
    }
}
