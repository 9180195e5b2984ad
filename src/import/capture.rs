//! Graphs that were captured while another file was written: which stack of that file made each operation of a graph that
//! this one launches.
//!
//! vLLM and sglang write a trace of the capture and traces of what runs afterwards. In the latter all of a model hangs under
//! one launch of a graph, which knows nothing of what is in it. Operations and captured calls are tied
//!
//! - by the number of the graph's node, where both files have it;
//! - by the whole sequence: the operations of a launch are those of a capture, by name and in order. Where several
//!   captures fit, launches that follow each other are held against captures that do. Branches on several streams
//!   run in any order: there each stream is a sequence of its own;
//! - where captured calls name no kernels, by their number alone: a guess, which its frame [`GUESSED`] says.
//!
//! What fits in more than one way, and would have another stack by each, is tied to none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::OpKind;
use super::names::NameNumbers;
use super::slices::{Rank, StackTree};
use super::work::{CallRecord, OpRecord};
use crate::record::{Detail, IdMap};

/// The innermost frame of stacks that were found by the number of operations alone.
pub(super) const GUESSED: &str = "[guessed by count]";
/// One captured call in so many may have made no operation.
const SPARE: usize = 50;

/// What is noted of a call when graphs are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    pub(super) call: u32,
    pub(super) does: Does,
    /// The kernel that it launches, by its number among kernels.
    pub(super) kernel: Option<u32>,
    pub(super) stream: Option<u32>,
    pub(super) node: Option<u64>,
}

/// What a call does about graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// The capture of a stream begins.
    Begin,
    /// It ends.
    End,
    /// Work is launched, or captured.
    Work(OpKind),
    /// A graph is launched.
    Launch,
}

impl Does {
    /// What the call of this name does, if it has to do with graphs.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            _ if name.contains("StreamBeginCapture") => Self::Begin,
            _ if name.contains("StreamEndCapture") => Self::End,
            _ if name.contains("GraphLaunch") => Self::Launch,
            _ if name.contains("LaunchKernel") || name.contains("LaunchCooperativeKernel") => {
                Self::Work(OpKind::Kernel)
            }
            _ if name.contains("Memcpy") => Self::Work(OpKind::Copy),
            _ if name.contains("Memset") => Self::Work(OpKind::Set),
            _ => return None,
        })
    }
}

/// What files tell of the graphs that were captured while they were written.
#[derive(Debug, Default)]
pub(super) struct Captured {
    captures: Vec<Vec<Step>>,
    /// The stack that made a node, where only one did.
    by_node: HashMap<u64, Option<u32>>,
    names: NameNumbers,
    /// Frames, root first, by number.
    stacks: Vec<Vec<(Box<str>, Rank)>>,
    numbers: HashMap<Vec<(Box<str>, Rank)>, u32>,
}

/// A captured call.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: OpKind,
    /// The kernel among `names`.
    name: Option<u32>,
    stream: Option<u32>,
    stack: u32,
}

/// How much of the time of graphs was tied, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tied {
    /// All operations that graphs launched.
    pub all: u64,
    /// Those with the stack that captured them.
    pub tied: u64,
    /// Of those, by number alone.
    pub guessed: u64,
    /// Those that fit in more than one way.
    pub ambiguous: u64,
}

/// What is known of an operation of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// This stack made it; whether that is no more than a guess.
    By(u32, bool),
    /// Nobody knows.
    Unknown,
}

impl Captured {
    /// Takes in what one file tells. `thread` gives the calls of each thread in the order of time.
    pub(super) fn add(
        &mut self,
        noted: &[Noted],
        calls: &[CallRecord],
        kernels: &NameNumbers,
        tree: &StackTree,
        labels: &NameNumbers,
    ) {
        let mut threads: BTreeMap<u32, Vec<&Noted>> = BTreeMap::new();
        for note in noted {
            threads.entry(calls[note.call as usize].thread).or_default().push(note);
        }
        // Captures in the order of their beginnings, whatever their threads.
        let mut found: Vec<(i64, Vec<Step>)> = Vec::new();
        for notes in threads.values_mut() {
            notes.sort_by_key(|note| calls[note.call as usize].start);
            let mut open: Option<(i64, Vec<Step>)> = None;
            let mut busy = i64::MIN;
            for note in notes.iter() {
                let call = &calls[note.call as usize];
                match note.does {
                    Does::Begin => open = Some((call.start, Vec::new())),
                    Does::End => found.extend(open.take().filter(|(_, steps)| !steps.is_empty())),
                    // A call of the driver within one of the runtime is the same launch.
                    Does::Work(_) if call.start < busy => {}
                    Does::Work(kind) => {
                        busy = call.end;
                        let stack = self.stack(tree, labels, call.stack);
                        if let Some(node) = note.node {
                            self.node(node, stack);
                        }
                        let name = note.kernel.map(|kernel| self.names.number(kernels.text(kernel).into()));
                        if let Some((_, steps)) = &mut open {
                            steps.push(Step { kind, name, stream: note.stream, stack });
                        }
                    }
                    Does::Launch => {}
                }
            }
        }
        found.sort_by_key(|(start, _)| *start);
        self.captures.extend(found.into_iter().map(|(_, steps)| steps));
    }

    /// A node of a graph was made on this stack. A number that two files give to different nodes is nobody's.
    pub(super) fn node(&mut self, node: u64, stack: u32) {
        let known = self.by_node.entry(node).or_insert(Some(stack));
        if *known != Some(stack) {
            *known = None;
        }
    }

    /// The number of a stack.
    pub(super) fn stack(&mut self, tree: &StackTree, labels: &NameNumbers, stack: u32) -> u32 {
        let mut frames: Vec<(Box<str>, Rank)> =
            tree.leaf_first(stack).map(|(label, rank)| (labels.text(label).into(), rank)).collect();
        frames.reverse();
        let next = self.stacks.len() as u32;
        *self.numbers.entry(frames).or_insert_with_key(|frames| {
            self.stacks.push(frames.clone());
            next
        })
    }

    /// The frames of a stack, root first.
    pub(super) fn frames(&self, stack: u32) -> impl Iterator<Item = (&str, Rank)> {
        self.stacks[stack as usize].iter().map(|(name, rank)| (&**name, *rank))
    }

    /// How many captures there are, and how many nodes are known by number.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.captures.len(), self.by_node.len())
    }

    /// Ties the operations of `launches`, calls that launched graphs; gives what is known of each operation, by its
    /// position among `ops`.
    pub(super) fn tie(
        &self,
        launches: &[u32],
        ops: &[OpRecord],
        calls: &[CallRecord],
        kernels: &NameNumbers,
    ) -> (IdMap<u32, Made>, Tied) {
        let runs = self.runs(launches, ops, calls, kernels);
        let mut made: IdMap<u32, Made> = IdMap::default();
        let mut tied = Tied::default();
        for run in &runs {
            for (at, &op) in run.ops.iter().enumerate() {
                let record = &ops[op as usize];
                let nanos = record.end.saturating_sub(record.start).max(0) as u64;
                tied.all += nanos;
                let by_node = self.by_node.get(&record.graph_node).copied().flatten();
                let ways: BTreeSet<Option<(u32, bool)>> = match by_node {
                    Some(stack) => [Some((stack, false))].into(),
                    None => {
                        run.fits.iter().map(|fit| fit.stacks[at].map(|stack| (stack, fit.guessed))).collect()
                    }
                };
                let mut ways = ways.into_iter();
                let (first, others) = (ways.next(), ways.next());
                made.insert(
                    op,
                    match (first, others) {
                        (Some(Some((stack, guessed))), None) => {
                            tied.tied += nanos;
                            tied.guessed += if guessed { nanos } else { 0 };
                            Made::By(stack, guessed)
                        }
                        (None, _) => Made::Unknown,
                        _ => {
                            tied.ambiguous += nanos;
                            Made::Unknown
                        }
                    },
                );
            }
        }
        (made, tied)
    }

    /// All launches of graphs in the order of time, each with the captures that it may be of: of those that fit by
    /// themselves the ones that launches before and behind it allow.
    fn runs(
        &self,
        launches: &[u32],
        ops: &[OpRecord],
        calls: &[CallRecord],
        kernels: &NameNumbers,
    ) -> Vec<Run> {
        let mut of_call: IdMap<u32, Vec<u32>> = launches.iter().map(|&call| (call, Vec::new())).collect();
        for (at, op) in (0..).zip(ops) {
            if let Some(own) = op.call.and_then(|call| of_call.get_mut(&call)) {
                own.push(at);
            }
        }
        let mut order: Vec<(u32, Vec<u32>)> =
            of_call.into_iter().filter(|(_, own)| !own.is_empty()).collect();
        order.sort_by_key(|(call, _)| (calls[*call as usize].thread, calls[*call as usize].start, *call));
        // Kernels have other numbers there.
        let names: HashMap<&str, u32> = self.names.texts().zip(0..).collect();
        let names: Vec<Option<u32>> = kernels.texts().map(|name| names.get(name).copied()).collect();
        let mut runs: Vec<Run> = order
            .into_iter()
            .map(|(_, mut own)| {
                own.sort_by_key(|&at| (ops[at as usize].start, ops[at as usize].stream, at));
                let works: Vec<Work> = own.iter().map(|&at| Work::of(&ops[at as usize], &names)).collect();
                let fits = self.captures.iter().enumerate().filter_map(|(capture, steps)| {
                    let (stacks, guessed) = fit(&works, steps)?;
                    Some(Fit { capture, stacks, guessed })
                });
                Run { ops: own, fits: fits.collect() }
            })
            .collect();
        follow(&mut runs);
        runs
    }
}

/// A launch of a graph.
struct Run {
    /// Its operations, in the order of time.
    ops: Vec<u32>,
    fits: Vec<Fit>,
}

/// A capture that a launch may be of.
struct Fit {
    capture: usize,
    /// By operation: the stack that captured it, where there is only one.
    stacks: Vec<Option<u32>>,
    guessed: bool,
}

/// Of the captures that a launch may be of keeps those whose next one the next launch may be of, as far as that goes on.
fn follow(runs: &mut [Run]) {
    let mut first = 0;
    while first < runs.len() {
        let mut allowed: Vec<usize> = runs[first].fits.iter().map(|fit| fit.capture).collect();
        let mut last = first;
        while let Some(next) = runs.get(last + 1) {
            let goes_on: Vec<usize> = next
                .fits
                .iter()
                .map(|fit| fit.capture)
                .filter(|capture| capture.checked_sub(1).is_some_and(|before| allowed.contains(&before)))
                .collect();
            if goes_on.is_empty() {
                break;
            }
            (allowed, last) = (goes_on, last + 1);
        }
        for (back, run) in runs[first..=last].iter_mut().rev().enumerate() {
            run.fits.retain(|fit| allowed.contains(&(fit.capture + back)));
        }
        first = last + 1;
    }
}

/// What an operation is, in the words of the captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    kind: OpKind,
    name: Option<u32>,
    stream: u32,
}

impl Work {
    fn of(op: &OpRecord, names: &[Option<u32>]) -> Self {
        let (kind, name) = match op.detail {
            Detail::Kernel(kernel) => (OpKind::Kernel, names[kernel.name.0 as usize]),
            Detail::Copy(_) => (OpKind::Copy, None),
            Detail::Set(_) => (OpKind::Set, None),
            Detail::Graph => (OpKind::Kernel, None),
        };
        Self { kind, name, stream: op.stream }
    }

    fn is(&self, step: &Step) -> bool {
        self.kind == step.kind
            && (self.kind != OpKind::Kernel || (self.name.is_some() && self.name == step.name))
    }
}

/// The stacks of the operations of a launch, if it may be of this capture, and whether that is a guess.
fn fit(works: &[Work], steps: &[Step]) -> Option<(Vec<Option<u32>>, bool)> {
    let spare = steps.len().checked_sub(works.len())?;
    let is_named = steps.iter().any(|step| step.kind == OpKind::Kernel && step.name.is_some());
    if !is_named {
        let is_alike = spare == 0 && works.iter().zip(steps).all(|(work, step)| work.kind == step.kind);
        let one_stream = works.iter().all(|work| work.stream == works[0].stream);
        return (is_alike && one_stream).then(|| (steps.iter().map(|step| Some(step.stack)).collect(), true));
    }
    if spare == 0 && works.iter().zip(steps).all(|(work, step)| work.is(step)) {
        return Some((steps.iter().map(|step| Some(step.stack)).collect(), false));
    }
    if spare > 1.max(steps.len() / SPARE) {
        return None;
    }
    let streams: BTreeSet<u32> = works.iter().map(|work| work.stream).collect();
    let captured: BTreeSet<Option<u32>> = steps.iter().map(|step| step.stream).collect();
    let mut stacks = vec![None; works.len()];
    for stream in streams {
        let own: Vec<usize> = (0..works.len()).filter(|&at| works[at].stream == stream).collect();
        let branch: Vec<Work> = own.iter().map(|&at| works[at]).collect();
        // A branch is of one captured stream, where calls say of which they are.
        let mut ways = captured.iter().filter_map(|stream| {
            let steps: Vec<&Step> = steps.iter().filter(|step| step.stream == *stream).collect();
            embed(&branch, &steps)
        });
        let found = ways.next()?;
        let is_only = ways.next().is_none();
        for (&at, stack) in own.iter().zip(found) {
            stacks[at] = stack.filter(|_| is_only);
        }
    }
    Some((stacks, false))
}

/// The stacks of `works` among `steps` in the same order, some of which are of others: as early as they can be and as
/// late as they can be, where both have one stack.
fn embed(works: &[Work], steps: &[&Step]) -> Option<Vec<Option<u32>>> {
    let mut early = Vec::with_capacity(works.len());
    let mut at = 0;
    for work in works {
        at += steps[at..].iter().position(|step| work.is(step))?;
        early.push(steps[at].stack);
        at += 1;
    }
    let mut end = steps.len();
    let mut stacks = vec![None; works.len()];
    for (place, work) in works.iter().enumerate().rev() {
        end = steps[..end].iter().rposition(|step| work.is(step))?;
        stacks[place] = Some(steps[end].stack).filter(|stack| *stack == early[place]);
    }
    Some(stacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(names: &[u32]) -> Vec<Step> {
        let step = |(at, &name): (usize, &u32)| Step {
            kind: OpKind::Kernel,
            name: Some(name),
            stream: None,
            stack: at as u32,
        };
        names.iter().enumerate().map(step).collect()
    }

    fn works(names: &[(u32, u32)]) -> Vec<Work> {
        names.iter().map(|&(name, stream)| Work { kind: OpKind::Kernel, name: Some(name), stream }).collect()
    }

    #[test]
    fn a_captured_call_without_an_operation_leaves_in_doubt_only_what_it_could_have_been() {
        let steps = steps(&[1, 2, 2, 3]);
        let (stacks, guessed) = fit(&works(&[(1, 7), (2, 7), (3, 7)]), &steps).unwrap();
        assert_eq!((stacks, guessed), (vec![Some(0), None, Some(3)], false));
        assert!(fit(&works(&[(1, 7), (3, 7), (2, 7), (2, 7)]), &steps).is_none(), "another order");
    }

    #[test]
    fn branches_that_overlap_are_sequences_of_their_own() {
        // Captured 1 2 3 4, of which 2 and 3 are on two streams, and 3 ran first.
        let (stacks, _) = fit(&works(&[(1, 7), (3, 8), (2, 7), (4, 7)]), &steps(&[1, 2, 3, 4])).unwrap();
        assert_eq!(stacks, [Some(0), Some(2), Some(1), Some(3)]);
    }

    #[test]
    fn launches_in_a_row_are_captures_in_a_row() {
        let fits = |captures: &[usize]| Run {
            ops: vec![0],
            fits: captures
                .iter()
                .map(|&capture| Fit { capture, stacks: vec![None], guessed: false })
                .collect(),
        };
        let mut runs = [fits(&[0]), fits(&[1, 2]), fits(&[1, 2]), fits(&[3]), fits(&[0]), fits(&[1, 2])];
        follow(&mut runs);
        let left: Vec<Vec<usize>> =
            runs.iter().map(|run| run.fits.iter().map(|fit| fit.capture).collect()).collect();
        assert_eq!(left, [vec![0], vec![1], vec![2], vec![3], vec![0], vec![1]]);
    }
}
