//! Finds the critical path of a job whose ranks meet in collectives.
//!
//! ```text
//! rank 0   |-- work --|==== AllReduce waits ====|== moves data ==|
//! rank 1   |------------ more work -------------|== AllReduce ===|-- work --|
//! path     |--------- more work (rank 1) -------|== AllReduce ===|-- work --|
//! ```
//!
//! The times in the graphs of all ranks are converted to one clock, and the graphs are joined into one graph. A
//! collective moves data only after the last rank has entered it. For each collective, the joined graph has a moment
//! for the arrival of the last rank. On every rank, the arrival comes after the begin and before the end of the
//! collective's kernel. If a rank enters before the last rank by no more than the clock error, the rank may itself have
//! been the last. Such a rank counts as last for its own kernel, so that the path stays on this rank.

use std::collections::{BTreeMap, HashMap};

use super::critical_path::graph::{Graph, MomentId, NO_CALL};
use super::critical_path::{
    Causes, Contradiction, CriticalPath, Edge, EdgeKind, HostCall, HostStack, InstructionFacts, Moment,
    MomentKind, PathPart, StackClasses, Unexplained, What,
};
use super::host_history::HostHistory;
use super::instructions::{InstructionKind, InstructionList};
use gpuflame_model::profile::Profile;

/// A rank of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobRank<'a> {
    /// Critical path of this rank alone.
    pub path: &'a CriticalPath,
    /// Instructions of the rank.
    pub list: &'a InstructionList,
    /// Stacks of the rank's threads in the times between API calls.
    pub history: &'a HostHistory,
    /// Profile of the rank, which contains the names in its stacks.
    pub profile: &'a Profile,
    /// Collectives in which the rank takes part.
    pub collectives: &'a [RankCollective],
    /// Time in ns that must be added to the rank's times to convert them to the job's clock.
    pub shift: i64,
}

/// A collective operation on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankCollective {
    /// Index of the collective in the job, from 0. All ranks that meet in a collective use the same index for it.
    pub collective: usize,
    /// Index of the rank's instruction that runs the collective.
    pub instruction: u32,
}

/// A rank that other ranks waited for in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRank {
    /// Index of the collective in the job, from 0.
    pub collective: usize,
    /// Index of the rank that entered last.
    pub rank: usize,
    /// Whether every other rank entered earlier by more than the error of the clocks.
    pub is_sure: bool,
}

/// The critical path of a job.
#[derive(Debug)]
pub struct JobPath {
    path: CriticalPath,
    starts: Starts,
    /// For each collective, the rank that entered it last, keyed by the index of the instruction that runs the
    /// collective on this rank.
    last_ranks: HashMap<u32, LastRank>,
}

impl JobPath {
    /// Finds the critical path of a job. `clock_error` is the maximum error of the clocks in ns. Returns `None` if all
    /// ranks together have more than 2^32 moments, calls or instructions.
    pub fn new(ranks: &[JobRank<'_>], clock_error: u64) -> Option<Self> {
        let mut joined = Joined { clock_error, ..Joined::default() };
        for rank in ranks {
            joined.add_rank(rank)?;
        }
        for (collective, members) in std::mem::take(&mut joined.collectives) {
            joined.add_collective(collective, &members);
        }
        let Joined { mut graph, starts, last_ranks, .. } = joined;
        graph.sort();
        let causes = ranks.iter().map(|rank| Causes::new(rank.list)).collect();
        let facts = JobFacts { starts: &starts, causes };
        let mut path = CriticalPath::of_facts(graph, &facts);
        let mut classes: Vec<StackClasses<'_>> =
            ranks.iter().map(|rank| StackClasses::new(rank.profile)).collect();
        path.divide_host_time(&mut |before, (from, to), add| {
            let (at, before) = starts.call(before);
            let JobRank { path, history, shift, .. } = ranks[at];
            let local = |time: u64| time.saturating_add_signed(-shift);
            let thread = path.calls()[before as usize].thread;
            for (start, end, context) in history.during(thread, local(from), local(to)) {
                let span = (start.saturating_add_signed(shift), end.saturating_add_signed(shift));
                if let Some(class) = classes[at].class(context) {
                    add(HostStack { span, context, class });
                }
            }
        });
        Some(Self { path, starts, last_ranks })
    }

    /// Returns the critical path. The indexes of instructions and calls in the path count over all ranks.
    /// [`in_rank`](Self::in_rank) converts a part of the path to the indexes of its rank.
    pub fn path(&self) -> &CriticalPath {
        &self.path
    }

    /// Returns the index of the rank to which `part` belongs, and a copy of `part` in which instructions and calls have
    /// the indexes of this rank. The times in the copy remain on the job's clock.
    pub fn in_rank(&self, part: &PathPart) -> (usize, PathPart) {
        let (rank, what) = match part.what {
            What::Instruction(number) => {
                let (rank, number) = self.starts.instruction(number);
                (rank, What::Instruction(number))
            }
            What::Call(at) => {
                let (rank, at) = self.starts.call(at);
                (rank, What::Call(at))
            }
            What::Between(after, before) => {
                let (rank, before) = self.starts.call(before);
                (rank, What::Between(self.starts.call(after).1, before))
            }
            What::Stack { after, before, context } => {
                let (rank, before) = self.starts.call(before);
                (rank, What::Stack { after: self.starts.call(after).1, before, context })
            }
            What::Nothing => (0, What::Nothing),
        };
        (rank, PathPart { what, ..*part })
    }

    /// Converts the index of an instruction in the job to the index of its rank and the index of the instruction in
    /// that rank.
    pub fn instruction(&self, number: u32) -> (usize, u32) {
        self.starts.instruction(number)
    }

    /// Returns the index of the rank that made the call with the index `at` in the job.
    pub fn call(&self, at: u32) -> usize {
        self.starts.call(at).0
    }

    /// If a part of the path is a wait in a collective, returns the rank that entered last and ended the wait. If the
    /// part is not such a wait, returns `None`.
    pub fn waited_for(&self, part: &PathPart) -> Option<LastRank> {
        let edge = self.path.edges().get(part.edge? as usize)?;
        let from = &self.path.moments()[edge.from as usize];
        (from.kind == MomentKind::Arrived).then(|| self.last_ranks.get(&from.instruction).copied()).flatten()
    }
}

/// Index of the first instruction and of the first call of each rank.
#[derive(Debug, Default)]
struct Starts(Vec<(u32, u32)>);

impl Starts {
    fn instruction(&self, number: u32) -> (usize, u32) {
        let rank = self.0.partition_point(|start| start.0 <= number) - 1;
        (rank, number - self.0[rank].0)
    }

    fn call(&self, at: u32) -> (usize, u32) {
        let rank = self.0.partition_point(|start| start.1 <= at) - 1;
        (rank, at - self.0[rank].1)
    }
}

struct JobFacts<'a> {
    starts: &'a Starts,
    causes: Vec<Causes<'a>>,
}

impl InstructionFacts for JobFacts<'_> {
    fn kind(&self, number: u32) -> InstructionKind {
        let (rank, number) = self.starts.instruction(number);
        self.causes[rank].kind(number)
    }

    fn cause(&self, number: u32, kind: EdgeKind) -> Unexplained {
        let (rank, number) = self.starts.instruction(number);
        self.causes[rank].cause(number, kind)
    }
}

/// A collective's kernel on one rank: its begin and end moments, and the position of the edge between these moments.
#[derive(Clone, Copy)]
struct Member {
    /// Index of the rank that takes part in the collective.
    rank: usize,
    begin: MomentId,
    end: MomentId,
    work: usize,
}

/// Graphs of several ranks, joined into one graph.
#[derive(Default)]
struct Joined {
    graph: Graph,
    starts: Starts,
    /// Total number of instructions of all ranks that were added so far.
    instructions: u32,
    /// Members (one per rank) of each collective, keyed by the index of the collective.
    collectives: BTreeMap<usize, Vec<Member>>,
    clock_error: u64,
    last_ranks: HashMap<u32, LastRank>,
}

impl Joined {
    fn add_rank(&mut self, rank: &JobRank<'_>) -> Option<()> {
        let (graph, edges) = rank.path.graph();
        let first_moment = u32::try_from(self.graph.moments.len()).ok()?;
        let first_call = u32::try_from(self.graph.calls.len()).ok()?;
        let first = self.instructions;
        self.instructions = first.checked_add(u32::try_from(rank.list.len()).ok()?)?;
        // Each collective adds a further moment to the graph: the arrival of the last rank.
        u32::try_from(self.graph.moments.len() + graph.moments.len() + rank.collectives.len()).ok()?;
        self.starts.0.push((first, first_call));
        let time = |time: u64| time.saturating_add_signed(rank.shift);
        self.graph.moments.extend(graph.moments.iter().map(|moment| Moment {
            time: time(moment.time),
            instruction: first + moment.instruction,
            call: if moment.call == NO_CALL { NO_CALL } else { first_call + moment.call },
            rank: first + moment.rank,
            ..*moment
        }));
        let first_edge = self.graph.edges.len();
        self.graph.edges.extend(edges.iter().map(|edge| Edge {
            from: first_moment + edge.from,
            to: first_moment + edge.to,
            ..*edge
        }));
        self.graph.calls.extend(graph.calls.iter().map(|call| HostCall {
            begin: time(call.begin),
            end: time(call.end),
            moments: (first_moment + call.moments.0, first_moment + call.moments.1),
            ..*call
        }));
        self.graph.waiting.extend(graph.waiting.iter().map(|call| first_call + call));
        let launches = graph.launch_of.iter();
        self.graph.launch_of.extend(launches.map(|(at, launch)| (first_moment + at, first + launch)));
        self.graph.unhindered.extend(graph.unhindered.keys().map(|at| (first_moment + at, ())));
        let limits = graph.order_limits.iter();
        self.graph.order_limits.extend(limits.map(|(at, limit)| (first_moment + at, time(*limit))));
        self.graph.untimed += graph.untimed;
        self.graph.contradicted += graph.contradicted;
        let worst = graph.worst.map(|worst| Contradiction {
            cause: first + worst.cause,
            effect: first + worst.effect,
            ..worst
        });
        self.graph.worst = self.graph.worst.into_iter().chain(worst).max_by_key(|worst| worst.nanos);
        self.note_collectives(first_edge, first, rank.collectives);
        Some(())
    }

    /// Stores the begin and end moments of the collectives on the rank that was added last. The rank's edges start at
    /// index `first_edge`, and its instructions start at index `first`.
    fn note_collectives(&mut self, first_edge: usize, first: u32, collectives: &[RankCollective]) {
        let rank = self.starts.0.len() - 1;
        let mut found: HashMap<u32, Member> = HashMap::new();
        for (work, edge) in self.graph.edges.iter().enumerate().skip(first_edge) {
            if edge.kind == EdgeKind::Work {
                let number = self.graph.moments[edge.to as usize].instruction;
                found.insert(number, Member { rank, begin: edge.from, end: edge.to, work });
            }
        }
        for one in collectives {
            if let Some(member) = found.get(&(first + one.instruction)) {
                self.collectives.entry(one.collective).or_default().push(*member);
            }
        }
    }

    /// Adds the moment at which the last rank enters a collective, and the edges to and from this moment.
    fn add_collective(&mut self, collective: usize, members: &[Member]) {
        let mut begins: Vec<(u64, usize, MomentId)> =
            members.iter().map(|one| (self.graph.time(one.begin), one.rank, one.begin)).collect();
        begins.sort_unstable();
        let [.., (second, ..), (time, rank, begin)] = begins[..] else { return };
        let instruction = self.graph.moments[begin as usize].instruction;
        let is_sure = time - second > self.clock_error;
        self.last_ranks.insert(instruction, LastRank { collective, rank, is_sure });
        // The arrival must sort after all moments of equal time: edges lead to the arrival from moments with the same
        // or an earlier time, and edges from the arrival lead only to later moments. The sort key `u32::MAX` in the
        // field `rank` sorts the arrival after all moments of equal time.
        let rank = u32::MAX;
        let arrived = self.graph.moments.len() as MomentId;
        self.graph.moments.push(Moment { time, kind: MomentKind::Arrived, instruction, call: NO_CALL, rank });
        for &Member { begin, end, work, .. } in members {
            self.graph.edges.push(Edge { from: begin, to: arrived, kind: EdgeKind::Collective, lag: 0 });
            let lag = self.graph.time(end).saturating_sub(time);
            if lag == 0 {
                continue;
            }
            let is_tie = time - self.graph.time(begin) <= self.clock_error;
            if !is_tie {
                self.graph.edges[work].lag = lag;
            }
            let kind = if is_tie { EdgeKind::CollectiveTie } else { EdgeKind::Collective };
            self.graph.edges.push(Edge { from: arrived, to: end, kind, lag });
        }
    }
}
