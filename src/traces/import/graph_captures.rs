//! Attributes the operations of a graph launch to the stacks that captured these operations. The stacks come from
//! capture traces, which were recorded while the graph was captured.
//!
//! vLLM and sglang write one trace while they capture graphs, and later write other traces of runs. In the trace of a
//! run, all operations of a model may belong to one graph launch. The stack of this launch does not show which stacks
//! captured the single operations. Each operation is matched to a captured call in one of the following ways:
//!
//! - by graph node id, if both traces contain node ids;
//! - by the whole sequence, if the operations of a launch have the same names in the same order as the operations of a
//!   capture. If several captures match a launch, consecutive launches must match consecutive captures. The branches of
//!   a graph run on several streams in any order, so each stream is matched as a separate sequence;
//! - only by the number and kinds of operations, if the captured calls do not contain the names of kernels. Such a
//!   match is a guess, and the frame [`GUESSED`] marks it.
//!
//! An operation that matches in more than one way, with different stacks, is not attributed to any stack.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::OpKind;
use super::call_records::CallRecords;
use super::name_table::NameTable;
use super::op_records::{OpRecord, OpRecords};
use super::slices::{FrameClass, StackTree};
use gpuflame_model::record::{Detail, IdMap};

/// Innermost frame of a stack that was matched only by the number of operations.
pub(super) const GUESSED: &str = "[guessed by count]";
/// In a matching capture, one call without a matching operation is allowed per this number of calls. One call without a
/// matching operation is also allowed in a capture with fewer calls than this number.
const CALLS_PER_MISSING_OP: usize = 50;

/// A call that is part of the capture or launch of a graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphCall {
    pub(super) call: u32,
    pub(super) role: GraphRole,
    /// Kernel that the call launches, as an index in the table of kernel names.
    pub(super) kernel: Option<u32>,
    pub(super) stream: Option<u32>,
    pub(super) node: Option<u64>,
}

/// Role of a call in the capture or launch of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphRole {
    /// Begins the capture of a stream.
    BeginCapture,
    /// Ends the capture of a stream.
    EndCapture,
    /// Launches GPU work, or adds GPU work to the graph that is being captured.
    Work(OpKind),
    /// Launches a graph.
    Launch,
}

impl GraphRole {
    /// Returns the role of calls to the function `name`; `None` if the function has nothing to do with graphs.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            _ if name.contains("StreamBeginCapture") => Self::BeginCapture,
            _ if name.contains("StreamEndCapture") => Self::EndCapture,
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

/// All captures of graphs that were found in the capture traces.
#[derive(Debug, Default)]
pub(super) struct GraphCaptures {
    captures: Vec<Vec<CapturedCall>>,
    /// Stack that created each graph node, keyed by the id of the node. The value is `None` if several stacks created a
    /// node with this id.
    by_node: HashMap<u64, Option<u32>>,
    names: NameTable,
    /// Frames of each stack, root first.
    stacks: Vec<Vec<(Box<str>, FrameClass)>>,
    numbers: HashMap<Vec<(Box<str>, FrameClass)>, u32>,
}

/// A call that was made during a capture.
#[derive(Clone, Copy, Debug)]
struct CapturedCall {
    kind: OpKind,
    /// Kernel that the call launches, as an index in [`GraphCaptures::names`].
    name: Option<u32>,
    stream: Option<u32>,
    stack: u32,
}

/// GPU time of graph launches in ns, divided by the way in which the time was attributed to captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCoverage {
    /// GPU time of all operations that belong to graph launches.
    pub total: u64,
    /// GPU time of operations that were attributed to the stack by which they were captured.
    pub attributed: u64,
    /// Part of `attributed` for which operations were matched only by the number of operations.
    pub guessed: u64,
    /// GPU time of operations that matched in more than one way, with different stacks.
    pub ambiguous: u64,
}

/// Stack by which an operation of a graph was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeOrigin {
    /// The operation was captured with this stack. The second value is true if this stack is a guess.
    CapturedBy(u32, bool),
    /// The stack is unknown.
    Unknown,
}

impl GraphCaptures {
    /// Adds the graph captures that were found in one trace.
    pub(super) fn add_captures(
        &mut self,
        graph_calls: &[GraphCall],
        calls: &CallRecords,
        kernels: &NameTable,
        tree: &StackTree,
        labels: &NameTable,
    ) {
        let mut threads: BTreeMap<u32, Vec<&GraphCall>> = BTreeMap::new();
        for graph_call in graph_calls {
            threads.entry(calls.thread_of(graph_call.call)).or_default().push(graph_call);
        }
        // Captures of all threads, sorted by start time.
        let mut found: Vec<(i64, Vec<CapturedCall>)> = Vec::new();
        for own_calls in threads.values_mut() {
            own_calls.sort_by_key(|graph_call| calls.start_of(graph_call.call));
            let mut open: Option<(i64, Vec<CapturedCall>)> = None;
            let mut busy_until = i64::MIN;
            for graph_call in own_calls.iter() {
                let call = calls.get(graph_call.call);
                match graph_call.role {
                    GraphRole::BeginCapture => open = Some((call.start, Vec::new())),
                    GraphRole::EndCapture => {
                        found.extend(open.take().filter(|(_, sequence)| !sequence.is_empty()))
                    }
                    // A driver call that is nested in a runtime call belongs to the same launch as the runtime call, so
                    // the driver call is skipped.
                    GraphRole::Work(_) if call.start < busy_until => {}
                    GraphRole::Work(kind) => {
                        busy_until = call.end;
                        let stack = self.intern_stack(tree, labels, call.stack);
                        if let Some(node) = graph_call.node {
                            self.add_node(node, stack);
                        }
                        let name =
                            graph_call.kernel.map(|kernel| self.names.intern(kernels.text(kernel).into()));
                        if let Some((_, sequence)) = &mut open {
                            sequence.push(CapturedCall { kind, name, stream: graph_call.stream, stack });
                        }
                    }
                    GraphRole::Launch => {}
                }
            }
        }
        found.sort_by_key(|(start, _)| *start);
        self.captures.extend(found.into_iter().map(|(_, sequence)| sequence));
    }

    /// Stores the stack that created a graph node. If a node id occurs with several different stacks, the node has no
    /// stack.
    pub(super) fn add_node(&mut self, node: u64, stack: u32) {
        let known = self.by_node.entry(node).or_insert(Some(stack));
        if *known != Some(stack) {
            *known = None;
        }
    }

    /// Returns the index of a stack. A new stack is stored.
    pub(super) fn intern_stack(&mut self, tree: &StackTree, labels: &NameTable, stack: u32) -> u32 {
        let mut frames: Vec<(Box<str>, FrameClass)> =
            tree.leaf_first(stack).map(|(label, class)| (labels.text(label).into(), class)).collect();
        frames.reverse();
        let next = self.stacks.len() as u32;
        *self.numbers.entry(frames).or_insert_with_key(|frames| {
            self.stacks.push(frames.clone());
            next
        })
    }

    /// Returns the frames of a stack, root first.
    pub(super) fn frames(&self, stack: u32) -> impl Iterator<Item = (&str, FrameClass)> {
        self.stacks[stack as usize].iter().map(|(name, class)| (&**name, *class))
    }

    /// Returns the number of captures, and the number of graph nodes with known ids.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.captures.len(), self.by_node.len())
    }

    /// Attributes the operations of `launches` to captures. `launches` contains the indexes of calls that launch
    /// graphs. The result contains the origin of each operation, keyed by the operation's index in `ops`.
    pub(super) fn attribute(
        &self,
        launches: &[u32],
        ops: &OpRecords,
        calls: &CallRecords,
        kernels: &NameTable,
    ) -> (IdMap<u32, NodeOrigin>, CaptureCoverage) {
        let graph_launches = self.graph_launches(launches, ops, calls, kernels);
        let mut origins: IdMap<u32, NodeOrigin> = IdMap::default();
        let mut coverage = CaptureCoverage::default();
        for graph_launch in &graph_launches {
            for (at, &op) in graph_launch.ops.iter().enumerate() {
                let record = ops.get(op);
                let nanos = record.nanos();
                coverage.total += nanos;
                let by_node = self.by_node.get(&record.shape.graph_node).copied().flatten();
                let candidates: BTreeSet<Option<(u32, bool)>> = match by_node {
                    Some(stack) => [Some((stack, false))].into(),
                    None => graph_launch
                        .matches
                        .iter()
                        .map(|matched| matched.stacks[at].map(|stack| (stack, matched.guessed)))
                        .collect(),
                };
                let mut candidates = candidates.into_iter();
                let (first, others) = (candidates.next(), candidates.next());
                origins.insert(
                    op,
                    match (first, others) {
                        (Some(Some((stack, guessed))), None) => {
                            coverage.attributed += nanos;
                            coverage.guessed += if guessed { nanos } else { 0 };
                            NodeOrigin::CapturedBy(stack, guessed)
                        }
                        (None, _) => NodeOrigin::Unknown,
                        _ => {
                            coverage.ambiguous += nanos;
                            NodeOrigin::Unknown
                        }
                    },
                );
            }
        }
        (origins, coverage)
    }

    /// Returns all graph launches, sorted by thread and time, each with the captures whose graph it may have launched.
    /// Each of these captures matches the launch, and fits the captures that match the launches before and after it.
    fn graph_launches(
        &self,
        launches: &[u32],
        ops: &OpRecords,
        calls: &CallRecords,
        kernels: &NameTable,
    ) -> Vec<GraphLaunch> {
        let mut of_call: IdMap<u32, Vec<u32>> = launches.iter().map(|&call| (call, Vec::new())).collect();
        for (at, op) in (0..).zip(ops.iter()) {
            if let Some(own_ops) = op.call().and_then(|call| of_call.get_mut(&call)) {
                own_ops.push(at);
            }
        }
        let mut order: Vec<(u32, Vec<u32>)> =
            of_call.into_iter().filter(|(_, own_ops)| !own_ops.is_empty()).collect();
        order.sort_by_key(|(call, _)| (calls.thread_of(*call), calls.start_of(*call), *call));
        // The indexes of kernels differ between the capture traces and this trace, so they are translated by the
        // kernel's name.
        let names: HashMap<&str, u32> = self.names.texts().zip(0..).collect();
        let names: Vec<Option<u32>> = kernels.texts().map(|name| names.get(name).copied()).collect();
        let mut graph_launches: Vec<GraphLaunch> = order
            .into_iter()
            .map(|(_, mut own_ops)| {
                own_ops.sort_by_key(|&at| (ops.get(at).start, ops.get(at).shape.stream, at));
                let works: Vec<GraphWork> =
                    own_ops.iter().map(|&at| GraphWork::from_op(ops.get(at), &names)).collect();
                let matches = self.captures.iter().enumerate().filter_map(|(capture, sequence)| {
                    let (stacks, guessed) = match_capture(&works, sequence)?;
                    Some(CaptureMatch { capture, stacks, guessed })
                });
                GraphLaunch { ops: own_ops, matches: matches.collect() }
            })
            .collect();
        keep_consecutive(&mut graph_launches);
        graph_launches
    }
}

/// A call that launches a graph, and its operations.
struct GraphLaunch {
    /// Indexes of the launch's operations, sorted by time.
    ops: Vec<u32>,
    matches: Vec<CaptureMatch>,
}

/// A capture that matches a graph launch.
struct CaptureMatch {
    capture: usize,
    /// Stack that captured each operation of the launch. The stack is `None` if several stacks may have captured the
    /// operation.
    stacks: Vec<Option<u32>>,
    guessed: bool,
}

/// Splits the launches into the longest possible sequences in which consecutive launches match consecutive captures. Of
/// the captures that match a launch, only those that belong to such a sequence are kept.
fn keep_consecutive(graph_launches: &mut [GraphLaunch]) {
    let mut first = 0;
    while first < graph_launches.len() {
        let mut allowed: Vec<usize> =
            graph_launches[first].matches.iter().map(|matched| matched.capture).collect();
        let mut last = first;
        while let Some(next) = graph_launches.get(last + 1) {
            let continued: Vec<usize> = next
                .matches
                .iter()
                .map(|matched| matched.capture)
                .filter(|capture| capture.checked_sub(1).is_some_and(|before| allowed.contains(&before)))
                .collect();
            if continued.is_empty() {
                break;
            }
            (allowed, last) = (continued, last + 1);
        }
        for (back, graph_launch) in graph_launches[first..=last].iter_mut().rev().enumerate() {
            graph_launch.matches.retain(|matched| allowed.contains(&(matched.capture + back)));
        }
        first = last + 1;
    }
}

/// An operation, reduced to the properties by which it is compared with captured calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GraphWork {
    kind: OpKind,
    name: Option<u32>,
    stream: u32,
}

impl GraphWork {
    fn from_op(op: OpRecord<'_>, names: &[Option<u32>]) -> Self {
        let (kind, name) = match op.shape.detail {
            Detail::Kernel(kernel) => (OpKind::Kernel, names[kernel.name.0 as usize]),
            Detail::Copy(_) => (OpKind::Copy, None),
            Detail::Set(_) => (OpKind::Set, None),
            Detail::Graph => (OpKind::Graph, None),
        };
        Self { kind, name, stream: op.shape.stream }
    }

    fn matches(&self, call: &CapturedCall) -> bool {
        self.kind == call.kind
            && (self.kind != OpKind::Kernel || (self.name.is_some() && self.name == call.name))
    }
}

/// Matches the operations of a graph launch to the calls of a capture. Returns the stack of each operation, and whether
/// the stacks are a guess. Returns `None` if the launch and the capture do not match.
fn match_capture(works: &[GraphWork], sequence: &[CapturedCall]) -> Option<(Vec<Option<u32>>, bool)> {
    let missing_ops = sequence.len().checked_sub(works.len())?;
    let is_named = sequence.iter().any(|call| call.kind == OpKind::Kernel && call.name.is_some());
    if !is_named {
        let same_kinds =
            missing_ops == 0 && works.iter().zip(sequence).all(|(work, call)| work.kind == call.kind);
        let one_stream = works.iter().all(|work| work.stream == works[0].stream);
        return (same_kinds && one_stream)
            .then(|| (sequence.iter().map(|call| Some(call.stack)).collect(), true));
    }
    if missing_ops == 0 && works.iter().zip(sequence).all(|(work, call)| work.matches(call)) {
        return Some((sequence.iter().map(|call| Some(call.stack)).collect(), false));
    }
    if missing_ops > 1.max(sequence.len() / CALLS_PER_MISSING_OP) {
        return None;
    }
    let streams: BTreeSet<u32> = works.iter().map(|work| work.stream).collect();
    let captured: BTreeSet<Option<u32>> = sequence.iter().map(|call| call.stream).collect();
    let mut stacks = vec![None; works.len()];
    for stream in streams {
        let own_ops: Vec<usize> = (0..works.len()).filter(|&at| works[at].stream == stream).collect();
        let branch: Vec<GraphWork> = own_ops.iter().map(|&at| works[at]).collect();
        // If the streams of captured calls are known, all operations on one stream must match the calls on a single
        // captured stream.
        let mut candidates = captured.iter().filter_map(|stream| {
            let sequence: Vec<&CapturedCall> =
                sequence.iter().filter(|call| call.stream == *stream).collect();
            match_subsequence(&branch, &sequence)
        });
        let found = candidates.next()?;
        let is_only = candidates.next().is_none();
        for (&at, stack) in own_ops.iter().zip(found) {
            stacks[at] = stack.filter(|_| is_only);
        }
    }
    Some((stacks, false))
}

/// Matches `works` to a subsequence of `sequence` in two ways: each operation as early as possible, and each operation
/// as late as possible. An operation gets a stack only if both ways result in the same stack.
fn match_subsequence(works: &[GraphWork], sequence: &[&CapturedCall]) -> Option<Vec<Option<u32>>> {
    let mut early = Vec::with_capacity(works.len());
    let mut at = 0;
    for work in works {
        at += sequence[at..].iter().position(|call| work.matches(call))?;
        early.push(sequence[at].stack);
        at += 1;
    }
    let mut end = sequence.len();
    let mut stacks = vec![None; works.len()];
    for (index, work) in works.iter().enumerate().rev() {
        end = sequence[..end].iter().rposition(|call| work.matches(call))?;
        stacks[index] = Some(sequence[end].stack).filter(|stack| *stack == early[index]);
    }
    Some(stacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(names: &[u32]) -> Vec<CapturedCall> {
        let call = |(at, &name): (usize, &u32)| CapturedCall {
            kind: OpKind::Kernel,
            name: Some(name),
            stream: None,
            stack: at as u32,
        };
        names.iter().enumerate().map(call).collect()
    }

    fn works(names: &[(u32, u32)]) -> Vec<GraphWork> {
        names
            .iter()
            .map(|&(name, stream)| GraphWork { kind: OpKind::Kernel, name: Some(name), stream })
            .collect()
    }

    #[test]
    fn a_captured_call_without_an_operation_makes_only_its_equals_ambiguous() {
        let sequence = sequence(&[1, 2, 2, 3]);
        let (stacks, guessed) = match_capture(&works(&[(1, 7), (2, 7), (3, 7)]), &sequence).unwrap();
        assert_eq!((stacks, guessed), (vec![Some(0), None, Some(3)], false));
        assert!(
            match_capture(&works(&[(1, 7), (3, 7), (2, 7), (2, 7)]), &sequence).is_none(),
            "the order differs"
        );
    }

    #[test]
    fn overlapping_branches_are_matched_stream_by_stream() {
        // The calls 1, 2, 3 and 4 were captured. Calls 2 and 3 are on different streams, and the operation of call 3
        // ran before the operation of call 2.
        let (stacks, _) =
            match_capture(&works(&[(1, 7), (3, 8), (2, 7), (4, 7)]), &sequence(&[1, 2, 3, 4])).unwrap();
        assert_eq!(stacks, [Some(0), Some(2), Some(1), Some(3)]);
    }

    #[test]
    fn consecutive_launches_match_consecutive_captures() {
        let matches = |captures: &[usize]| GraphLaunch {
            ops: vec![0],
            matches: captures
                .iter()
                .map(|&capture| CaptureMatch { capture, stacks: vec![None], guessed: false })
                .collect(),
        };
        let mut graph_launches = [
            matches(&[0]),
            matches(&[1, 2]),
            matches(&[1, 2]),
            matches(&[3]),
            matches(&[0]),
            matches(&[1, 2]),
        ];
        keep_consecutive(&mut graph_launches);
        let left: Vec<Vec<usize>> = graph_launches
            .iter()
            .map(|graph_launch| graph_launch.matches.iter().map(|matched| matched.capture).collect())
            .collect();
        assert_eq!(left, [vec![0], vec![1], vec![2], vec![3], vec![0], vec![1]]);
    }
}
