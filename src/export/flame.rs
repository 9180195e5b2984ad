//! The tree that a flame graph is: names by depth, with a weight where a stack ends.
//!
//! Built once for each file. Stacks stay shared in it, so that writing a hundred thousand deep stacks out
//! costs a few bytes a node and one line's text, not all lines at once.

use std::collections::HashMap;
use std::io;

use super::leaf::{self, Kind};
use super::roots::Roots;
use super::{GraphStacks, Root, Unit, clean, stack};
use crate::profile::{HostCall, HostSample, Idle, IdleSample, Place, Profile, RANGE, Sample, StringId};
use crate::record::{ContextId, Created, IdMap, Loss, Missing};

/// See the module's documentation.
pub(super) struct Flame {
    names: Names,
    /// A parent comes before its children.
    nodes: Vec<Node>,
    /// All nodes, those of the same parent side by side and in the order of their names.
    order: Vec<u32>,
}

struct Node {
    parent: u32,
    name: u32,
    /// The weight of the stack that ends here, if one does.
    own: Option<u64>,
    /// With everything above.
    total: u64,
    /// Where the children begin in `order`, and how many there are.
    children: (u32, u32),
}

/// The name of what is too narrow to be drawn by itself.
const SMALL: &str = "[too small to show]";
/// Below the stacks that are charged with the time from a window's opening to its first work.
const OPENING: &str = "[since the window opened]";
/// Below the time from the last work to the window's end.
const CLOSING: &str = "[until the window closed]";
const ROOT: u32 = 0;

impl Flame {
    /// The tree of all that ran, in nanoseconds, or in counts if that is the unit.
    pub(super) fn of(profile: &Profile, unit: Unit, graph: GraphStacks, roots: &[Root]) -> Self {
        let mut build = Build::new(profile, unit, graph, roots);
        profile.samples().iter().for_each(|sample| build.sample(sample));
        build.losses();
        build.finish()
    }

    /// The tree of all time in which devices had nothing to do, in nanoseconds, or in gaps if counts are
    /// the unit.
    pub(super) fn idle(profile: &Profile, unit: Unit, roots: &[Root]) -> Self {
        // It is a whole GPU's, and no stream's.
        let roots: Vec<_> = roots.iter().copied().filter(|root| *root != Root::Stream).collect();
        let mut build = Build::new(profile, unit, GraphStacks::Launch, &roots);
        profile.idle().iter().for_each(|sample| build.idle(sample));
        build.finish()
    }

    /// The tree of what the host did beside launching: nanoseconds of waiting or bytes of memory, or calls if
    /// counts are the unit.
    pub(super) fn host(profile: &Profile, part: HostPart, unit: Unit, roots: &[Root]) -> Self {
        // It is no GPU's and no stream's.
        let roots: Vec<_> =
            roots.iter().copied().filter(|root| matches!(root, Root::Process | Root::Thread)).collect();
        let mut build = Build::new(profile, unit, GraphStacks::Launch, &roots);
        let is_part = |sample: &&HostSample| (sample.call == HostCall::Wait) == (part == HostPart::Waits);
        profile.host().iter().filter(is_part).for_each(|sample| build.host(sample));
        build.finish()
    }

    /// The weight of everything.
    pub(super) fn total(&self) -> u64 {
        self.nodes[ROOT as usize].total
    }

    /// What a frame of this name stands for.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.names.text.iter().map(|(text, kind)| (text.as_str(), *kind))
    }

    /// Calls `line` with each stack, `;` between its names, and its weight. Subtrees lighter than
    /// `lightest` are drawn together, one for each parent. Depth is no matter: there is no recursion.
    pub(super) fn lines(
        &self,
        lightest: u64,
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
            push_name(&mut path, &self.names.text[node.name as usize].0);
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

/// Which of the things that the host did beside launching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostPart {
    Waits,
    Memory,
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

/// Clean names, each once.
#[derive(Default)]
struct Names {
    text: Vec<(String, Kind)>,
    ids: HashMap<String, u32>,
    /// Those that come from the profile's strings: most, and seen again in every stack.
    shown: IdMap<StringId, u32>,
}

impl Names {
    fn intern(&mut self, name: &str, kind: Kind) -> u32 {
        let clean = clean::frame(name);
        if let Some(&id) = self.ids.get(&clean) {
            return id;
        }
        let id = self.text.len() as u32;
        self.text.push((clean.clone(), kind));
        self.ids.insert(clean, id);
        id
    }

    fn shown(&mut self, profile: &Profile, name: StringId) -> u32 {
        if let Some(&id) = self.shown.get(&name) {
            return id;
        }
        let text = profile.strings().get(name);
        let id = self.intern(text, kind_of(text));
        self.shown.insert(name, id);
        id
    }

    /// The place of each name in the order of all.
    fn ranks(&self) -> Vec<u32> {
        let mut sorted: Vec<usize> = (0..self.text.len()).collect();
        sorted.sort_unstable_by_key(|&at| &self.text[at].0);
        let mut ranks = vec![0; sorted.len()];
        sorted.into_iter().zip(0..).for_each(|(at, rank)| ranks[at] = rank);
        ranks
    }
}

/// What a frame of a context's stack stands for.
fn kind_of(name: &str) -> Kind {
    if name.starts_with(RANGE) { Kind::Range } else { Kind::Cpu }
}

struct Build<'a> {
    profile: &'a Profile,
    unit: Unit,
    graph: GraphStacks,
    roots: Roots<'a>,
    names: Names,
    nodes: Vec<Node>,
    index: IdMap<(u32, u32), u32>,
    /// Where the stacks of contexts end, by where they begin: most have several samples.
    stacks: IdMap<(u32, ContextId), u32>,
    /// The same for the nodes of graphs, by where these were launched.
    graph_nodes: IdMap<(u32, Result<ContextId, Missing>, Created), u32>,
}

impl<'a> Build<'a> {
    fn new(profile: &'a Profile, unit: Unit, graph: GraphStacks, roots: &'a [Root]) -> Self {
        let root = Node { parent: ROOT, name: 0, own: None, total: 0, children: (0, 0) };
        Self {
            profile,
            unit,
            graph,
            roots: Roots::new(profile, roots),
            names: Names::default(),
            nodes: vec![root],
            index: IdMap::default(),
            stacks: IdMap::default(),
            graph_nodes: IdMap::default(),
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let root = self.root(self.roots.frames(Some(sample.place), sample.device, sample.stream));
        let mut at = self.place(root, sample.place);
        for (name, kind) in leaf::frames(self.profile, sample.leaf, sample.device) {
            at = self.child(at, &name, kind);
        }
        let weight = if self.unit == Unit::Count { sample.weight.count } else { sample.weight.nanos };
        self.add(at, weight);
    }

    /// The frames below a stack.
    fn root(&mut self, names: Vec<String>) -> u32 {
        names.iter().fold(ROOT, |at, name| self.child(at, name, Kind::Root))
    }

    fn idle(&mut self, sample: &IdleSample) {
        let place = match sample.idle {
            Idle::Between(place, _) | Idle::Opening(place, _) => Some(place),
            Idle::Closing => None,
        };
        let root = self.root(self.roots.frames(place, Some(sample.device), None));
        let (at, (name, kind)) = match sample.idle {
            Idle::Between(place, cause) => {
                (self.place(root, place), leaf::idle(self.profile, cause, sample.device))
            }
            Idle::Opening(place, cause) => {
                let opening = self.child(root, OPENING, Kind::Loss);
                (self.place(opening, place), leaf::idle(self.profile, cause, sample.device))
            }
            Idle::Closing => {
                (self.child(root, CLOSING, Kind::Loss), leaf::closing(self.profile, sample.device))
            }
        };
        let at = self.child(at, &name, kind);
        self.add(at, if self.unit == Unit::Count { sample.gaps } else { sample.nanos });
    }

    fn host(&mut self, sample: &HostSample) {
        let context = sample.context;
        let place = match self.profile.context(context) {
            Some(_) => Place::Context(context),
            None => Place::Missing(Missing::NoStack),
        };
        let root = self.root(self.roots.frames(Some(place), None, None));
        let mut at = self.place(root, place);
        if let Some((name, kind)) = leaf::host(sample.call) {
            at = self.child(at, &name, kind);
        }
        self.add(at, if self.unit == Unit::Count { sample.count } else { sample.amount });
    }

    fn place(&mut self, root: u32, place: Place) -> u32 {
        match place {
            Place::Node { launch, created } => self.graph_node(root, launch, created),
            Place::Context(_) | Place::Missing(_) => self.launch(root, place.launch()),
        }
    }

    fn launch(&mut self, root: u32, launch: Result<ContextId, Missing>) -> u32 {
        match launch {
            Ok(context) => self.stack(root, context),
            Err(missing) => self.child(root, missing.label(), Kind::Loss),
        }
    }

    /// GPU work that is shown nowhere else has a frame: its time is unknown, its number is not.
    fn losses(&mut self) {
        for (loss, count) in self.profile.losses() {
            let label = match loss {
                Loss::ActivitiesDropped => "[GPU activities dropped]",
                Loss::ActivitiesUnreadable => "[GPU activities unreadable]",
                _ => continue,
            };
            let at = self.child(ROOT, label, Kind::Loss);
            self.add(at, if self.unit == Unit::Count { count } else { 0 });
        }
    }

    fn add(&mut self, node: u32, weight: u64) {
        let own = &mut self.nodes[node as usize].own;
        *own = Some(own.unwrap_or(0).saturating_add(weight));
    }

    /// The end of a graph node's stacks, as they are to be shown.
    fn graph_node(&mut self, root: u32, launch: Result<ContextId, Missing>, created: Created) -> u32 {
        if let Some(&node) = self.graph_nodes.get(&(root, launch, created)) {
            return node;
        }
        let at = match (self.graph, created) {
            (GraphStacks::Launch, _) => self.launch(root, launch),
            (GraphStacks::Capture, Created::Context(context)) => {
                let at = self.stack(root, context);
                self.child(at, stack::GRAPH, Kind::Graph)
            }
            _ => {
                let at = self.launch(root, launch);
                let at = self.child(at, stack::GRAPH, Kind::Graph);
                self.creation(at, launch, created)
            }
        };
        self.graph_nodes.insert((root, launch, created), at);
        at
    }

    /// Puts where a graph node was made upon `at`, but for what the launch's stack begins with as well.
    fn creation(&mut self, mut at: u32, launch: Result<ContextId, Missing>, created: Created) -> u32 {
        let context = match created {
            Created::Context(context) => context,
            Created::BeforeRecording | Created::Unknown => {
                return self.child(at, created.label().unwrap_or_default(), Kind::Loss);
            }
        };
        let Some(flags) = self.profile.context(context).map(|context| context.flags) else {
            return self.child(at, Created::Unknown.label().unwrap_or_default(), Kind::Loss);
        };
        if let Some(cut) = flags.label() {
            at = self.child(at, cut, Kind::Loss);
        }
        let launch = launch.map_or_else(|_| Vec::new(), |launch| self.stack_names(launch));
        let creation = self.stack_names(context);
        let shared = launch.iter().rev().zip(creation.iter().rev()).take_while(|(a, b)| a == b).count();
        for &name in creation.iter().rev().skip(shared) {
            at = self.node(at, name);
        }
        at
    }

    fn stack(&mut self, root: u32, context: ContextId) -> u32 {
        if let Some(&node) = self.stacks.get(&(root, context)) {
            return node;
        }
        let mut at = root;
        match self.profile.context(context).map(|context| context.flags.label()) {
            Some(None) => {}
            Some(Some(cut)) => at = self.child(at, cut, Kind::Loss),
            None => at = self.child(at, Missing::NoStack.label(), Kind::Loss),
        }
        for name in self.stack_names(context).into_iter().rev() {
            at = self.node(at, name);
        }
        self.stacks.insert((root, context), at);
        at
    }

    /// The names of a context's stack, leaf first. Where nobody gave names, addresses; where the
    /// context's row was lost, nothing.
    fn stack_names(&mut self, context: ContextId) -> Vec<u32> {
        let profile = self.profile;
        if let Some(shown) = profile.shown(context) {
            return profile.shown_names(shown).map(|name| self.names.shown(profile, name)).collect();
        }
        let Some(context) = profile.context(context) else { return Vec::new() };
        let frames = profile.stack(context.stack).map(|frame| profile.frames()[frame.index()]);
        let names = frames.map(|frame| {
            let name = stack::raw_name(profile, frame);
            self.names.intern(&name, kind_of(&name))
        });
        names.collect()
    }

    fn child(&mut self, parent: u32, name: &str, kind: Kind) -> u32 {
        let name = self.names.intern(name, kind);
        self.node(parent, name)
    }

    fn node(&mut self, parent: u32, name: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let at = *self.index.entry((parent, name)).or_insert(next);
        if at == next {
            self.nodes.push(Node { parent, name, own: None, total: 0, children: (0, 0) });
        }
        at
    }

    fn finish(self) -> Flame {
        let (names, mut nodes) = (self.names, self.nodes);
        let mut order: Vec<u32> = (1..nodes.len() as u32).collect();
        let ranks = names.ranks();
        order.sort_unstable_by_key(|&at| {
            let node = &nodes[at as usize];
            (node.parent, ranks[node.name as usize])
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
        Flame { names, nodes, order }
    }
}
