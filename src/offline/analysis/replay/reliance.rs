//! Finds the rules on which a prediction relies. A rule replaces rows that are missing from the recording.

use std::collections::BTreeMap;

use super::super::critical_path::NO_CALL;
use super::super::critical_path::graph::{Edge, EdgeKind, MomentKind};
use super::super::instructions::InstructionKind;
use super::{Edit, EditedRun, Replay};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, IdMap};

/// Rule on which a prediction relies because rows are missing from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reliance {
    /// Waits of the host and of streams are not recorded.
    NoWaits,
    /// The edges of graphs are not recorded. Rule: a node depends on the node that ended last before this node began.
    GraphEdges,
    /// The time at which a kernel lets a programmatic launch begin is not recorded and cannot be measured. Rule: the
    /// launch begins as long after the kernel's begin as in the run, or at the end of the kernel.
    Programmatic,
    /// The kinds of streams are not recorded. Rule: default streams wait for other streams of their CUDA context, and
    /// other streams wait for default streams.
    DefaultStream,
    /// A thread waited for another thread, but no row shows the cause of this wait. Rule: the thread waits for as long
    /// as in the recorded run.
    HandOff,
    /// Several threads take locks, but the data does not show which locks they take. Rule: the threads take the locks
    /// in the same order as in the recorded run.
    LockOrder,
    /// A default stream waits for a CUDA event, and the CUDA context of this stream is not recorded. Rule: the waiting
    /// default stream is in the CUDA context of the CUDA event.
    UnknownStream,
    /// The search for the order that the calls have after the edits failed: no order that was tried leads to a schedule
    /// with this same order.
    CallOrder,
    /// The work for which a call waited is not recorded. Rule: the call waited for the work that ended last before the
    /// call returned.
    UnknownWait,
    /// The work for which an operation waited is not recorded. Rule: the operation waited for the work that ended just
    /// before the operation began.
    UnknownOrder,
    /// In the recorded run, no operation began right after the previous operation on its stream. Rule: the time between
    /// an operation and the next operation on its stream is 0.
    UnknownGap,
    /// Host functions in streams are not recorded.
    HostFunctions,
    /// Launches with attributes may be programmatic, but this is not recorded. Rule: such a launch is programmatic if
    /// its kernel overlapped the previous kernel in the run.
    Attributes,
    /// The launch of some work is not recorded. Rule: such work begins as early as the work for which it waits allows,
    /// or at the recorded time if it waits for no recorded work.
    NoLaunch,
    /// The times of some work are not recorded.
    NoTimes,
}

impl Reliance {
    /// Returns the rule's name as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoWaits => "no_wait_records",
            Self::GraphEdges => "graph_edges",
            Self::Programmatic => "programmatic",
            Self::DefaultStream => "default_stream",
            Self::HandOff => "hand_off",
            Self::LockOrder => "lock_order",
            Self::UnknownStream => "unknown_stream",
            Self::CallOrder => "call_order",
            Self::UnknownWait => "unknown_wait",
            Self::UnknownOrder => "unknown_order",
            Self::UnknownGap => "unknown_gap",
            Self::HostFunctions => "host_functions",
            Self::Attributes => "launch_attributes",
            Self::NoLaunch => "no_launch_record",
            Self::NoTimes => "no_times",
        }
    }
}

/// Facts about a call, derived from the name of the called API function.
#[derive(Clone, Copy, Default)]
struct CallFacts {
    is_of_threads: bool,
    submits_host_function: bool,
    has_attributes: bool,
}

impl CallFacts {
    fn new(profile: &Profile, context: ContextId) -> Self {
        let name = gpuflame_export::compose::call(profile, context);
        Self {
            is_of_threads: name.contains("pthread_"),
            submits_host_function: name.contains("LaunchHostFunc"),
            has_attributes: name.contains("LaunchKernelEx"),
        }
    }
}

impl Replay<'_> {
    /// Returns the rules on which the replay with these edits relies because rows are missing. For each of these rules,
    /// returns the number of times that the replay uses it.
    pub fn reliances(
        &self,
        profile: &Profile,
        edits: &[Edit],
        edited: &EditedRun,
    ) -> BTreeMap<Reliance, u64> {
        let mut found: BTreeMap<Reliance, u64> = BTreeMap::new();
        let mut add = |what: Reliance, count: u64| {
            if count > 0 {
                *found.entry(what).or_default() += count;
            }
        };
        let moments = &self.graph().moments;
        for edge in self.edges().iter() {
            let what = match edge.kind {
                EdgeKind::GraphNode if moments[edge.to as usize].kind != MomentKind::GraphEnd => {
                    Reliance::GraphEdges
                }
                EdgeKind::DefaultStream if !self.knows_streams(&edge) => Reliance::DefaultStream,
                EdgeKind::HandOff => Reliance::HandOff,
                EdgeKind::InferredWait => Reliance::UnknownWait,
                EdgeKind::InferredOrder | EdgeKind::InferredEvent => Reliance::UnknownOrder,
                _ => continue,
            };
            add(what, 1);
        }
        let mut is_launched = vec![false; moments.len()];
        let is_launch = |edge: &Edge| matches!(edge.kind, EdgeKind::Launch | EdgeKind::GraphLaunch);
        self.edges().iter().filter(is_launch).for_each(|edge| is_launched[edge.to as usize] = true);
        let begins = moments.iter().zip(&is_launched).filter(|(moment, _)| moment.kind == MomentKind::Begin);
        add(Reliance::NoLaunch, begins.filter(|(_, is_launched)| !**is_launched).count() as u64);
        add(Reliance::NoTimes, self.path.untimed());
        let mut has_waits = false;
        let facts: IdMap<ContextId, CallFacts> =
            profile.all_contexts().map(|(context, _)| (context, CallFacts::new(profile, context))).collect();
        let is_special = |facts: &CallFacts| facts.submits_host_function || facts.has_attributes;
        let has_special_calls = facts.values().any(is_special);
        for number in 0..self.list.len() as u32 {
            let kind = self.list.kind(number);
            has_waits |= matches!(kind, InstructionKind::Wait | InstructionKind::Record);
            if kind != InstructionKind::Synchronize && !has_special_calls {
                continue;
            }
            let instruction = self.list.get(number);
            let call =
                instruction.call.and_then(|call| facts.get(&call.context)).copied().unwrap_or_default();
            has_waits |= kind == InstructionKind::Synchronize && !call.is_of_threads;
            if kind != InstructionKind::HostFunction {
                add(Reliance::HostFunctions, u64::from(call.submits_host_function));
            }
            if instruction.programmatic.is_none() {
                add(Reliance::Attributes, u64::from(call.has_attributes));
            }
        }
        add(Reliance::UnknownGap, self.unknown_gaps(edited));
        add(Reliance::Programmatic, self.guesses_that_matter(edits, edited));
        add(Reliance::HandOff, self.graph().unclear_thread_waits);
        add(Reliance::LockOrder, self.graph().shared_locks);
        add(Reliance::UnknownStream, self.list.unclear_waits());
        add(Reliance::CallOrder, u64::from(!edited.is_settled));
        let has_calls = moments.iter().any(|moment| moment.call != NO_CALL);
        add(Reliance::NoWaits, u64::from(has_calls && !has_waits));
        found
    }

    /// Returns the number of operations that begin right after the previous operation on their stream only because of
    /// the edits. Returns 0 if the recorded run shows the usual time from one operation to the next operation on its
    /// stream.
    fn unknown_gaps(&self, edited: &EditedRun) -> u64 {
        if self.lags.knows_gap() {
            return 0;
        }
        let schedule = &edited.schedule;
        let follows = |edge: &Edge| {
            let (from, to) = (self.moments()[edge.from as usize], self.moments()[edge.to as usize]);
            let is_after = |from: u64, to: u64| to == from.saturating_add(edge.lag);
            edge.kind == EdgeKind::Stream
                && (from.kind, to.kind) == (MomentKind::End, MomentKind::Begin)
                && is_after(schedule.time(edge.from as usize), schedule.time(edge.to as usize))
                && !is_after(from.time, to.time)
        };
        self.view(&edited.edges).iter().filter(follows).count() as u64
    }

    /// Returns the number of graph edges for which no launch shows whether they are programmatic.
    pub fn unclear_graph_edges(&self) -> u64 {
        self.graph().kernels.unclear_edges
    }

    /// Whether the kinds (blocking or non-blocking) of both streams that an edge connects are recorded.
    fn knows_streams(&self, edge: &Edge) -> bool {
        [edge.from, edge.to].into_iter().all(|moment| {
            let instruction = self.list.get(self.graph().moments[moment as usize].instruction);
            let stream = instruction.context.zip(instruction.stream);
            stream.is_some_and(|(context, stream)| self.list.is_blocking(context, stream).is_some())
        })
    }
}
