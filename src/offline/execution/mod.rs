//! Joins PyTorch's execution trace (ET) with Kineto's timeline of the same run, into a graph of operators and GPU work
//! with times and dependencies.
//!
//! ```text
//! ET node --rf_id--> operator of Kineto --encloses--> call --correlation--> GPU work
//! ```
//!
//! Nodes of the graph are numbered: first the nodes of the execution trace in their order, then the GPU work in order
//! of time. Every dependency points from a node to one that comes earlier in `order`, so the graph has no cycle.

mod communication;
mod dependencies;
mod nesting;
mod order;
mod pairing;
mod placement;

pub use communication::{Communication, communication, tensor_bytes};
pub use dependencies::Dependencies;
pub use placement::{Place, Unlinked};

use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_traces::execution::{ExecutionTrace, Kineto, Work};

use dependencies::Graph;
use nesting::Nesting;
use order::Order;
use pairing::Pairs;
use placement::Placements;

/// An execution trace joined with its timeline.
#[derive(Debug)]
pub struct LinkedTrace<'a> {
    /// The execution trace.
    pub trace: &'a ExecutionTrace<'a>,
    /// The timeline.
    pub kineto: &'a Kineto,
    /// Times by node of the execution trace; `None` if Kineto has no operator for the node.
    pub host: Vec<Option<HostTimes>>,
    /// GPU work below the nodes, in order of time.
    pub gpu: Vec<GpuNode>,
    /// Dependencies between nodes.
    pub dependencies: Dependencies,
    /// All nodes of the graph. Every node comes after the nodes that it depends on.
    pub order: Vec<u32>,
    /// Counts of linked and unlinked operators and work.
    pub coverage: Coverage,
}

/// Times of an operator, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTimes {
    /// Start on the timeline's clock.
    pub start: i64,
    /// Time from start to end.
    pub inclusive: u64,
    /// Time outside of operators that the operator called.
    pub exclusive: u64,
}

/// GPU work as a node of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuNode {
    /// Id, greater than all ids of the execution trace.
    pub id: u64,
    /// Position of the work in [`Kineto::work`].
    pub work: usize,
    /// Position of the parent in [`ExecutionTrace::nodes`].
    pub parent: usize,
    /// Kind of the parent.
    pub place: Place,
}

/// Way in which nodes were paired with operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairedBy {
    /// By `rf_id` and `Record function id`.
    #[default]
    RecordFunction,
    /// By the order of the operators' names on each thread, because the timeline has no `Record function id`.
    NameOrder,
}

/// Counts of linked and unlinked operators and work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Way in which operators were paired.
    pub paired_by: PairedBy,
    /// Number of places in the timeline that the execution trace fits; greater than 1 only for [`PairedBy::NameOrder`].
    pub fitting_places: u64,
    /// Number of nodes that are not paired because the operator with their number has another name.
    pub other_names: u64,
    /// Number of nodes that are operators or ranges.
    pub operators: u64,
    /// Number of such nodes with an operator of Kineto.
    pub operators_linked: u64,
    /// Number of pieces of GPU work in the timeline.
    pub work: u64,
    /// Number of pieces of work below the operator that launched them.
    pub work_linked: u64,
    /// GPU time of the timeline, in ns.
    pub work_ns: u64,
    /// GPU time of linked work, in ns.
    pub work_linked_ns: u64,
    /// Work that is not linked, by reason.
    pub unlinked: [u64; Unlinked::ALL.len()],
    /// Number of pieces of work that calls of several processes may have launched, because they have the same id.
    pub ambiguous: u64,
    /// Number of dependencies that were left out because the times contradict them.
    pub contradicted: u64,
}

impl Coverage {
    /// Number of pieces of work that were launched while the execution trace was recorded.
    pub fn work_in_window(&self) -> u64 {
        self.work - self.unlinked[Unlinked::Outside as usize]
    }
}

impl LinkedTrace<'_> {
    /// Returns the id of a node of the graph.
    pub fn id(&self, node: u32) -> u64 {
        let at = node as usize;
        match at.checked_sub(self.trace.nodes.len()) {
            None => self.trace.nodes[at].id,
            Some(gpu) => self.gpu[gpu].id,
        }
    }

    /// Returns the number of a GPU node in the graph.
    pub fn gpu_number(&self, gpu: usize) -> u32 {
        (self.trace.nodes.len() + gpu) as u32
    }

    /// Returns the work of a GPU node.
    pub fn work(&self, gpu: &GpuNode) -> &Work {
        &self.kineto.work[gpu.work]
    }
}

/// Joins an execution trace and a timeline.
///
/// # Errors
/// `Format`: the timeline has no operators, or the files are not of the same run.
pub fn link<'a>(trace: &'a ExecutionTrace<'a>, kineto: &'a Kineto) -> Result<LinkedTrace<'a>> {
    if kineto.ops.is_empty() {
        let what = "the Kineto trace has no operators (cpu_op); record it with ProfilerActivity.CPU";
        return Err(Error::new(ErrorKind::Format, what));
    }
    let pairs = Pairs::find(trace, kineto)?;
    let nesting = Nesting::of(kineto);
    let placements = Placements::find(trace, kineto, &pairs, &nesting);
    let host = host_times(kineto, &pairs, &nesting);
    let first_id = trace.nodes.iter().map(|node| node.id).max().map_or(1, |id| id.saturating_add(1));
    let gpu = (first_id..).zip(placements.placed.iter().copied());
    let gpu: Vec<_> = gpu.map(|(id, (work, parent, place))| GpuNode { id, work, parent, place }).collect();
    let order = Order::of(trace, &host, kineto, &gpu);
    let graph = Graph { trace, kineto, pairs: &pairs, nesting: &nesting, gpu: &gpu, order: &order };
    let dependencies = graph.dependencies(&placements.calls);
    let sum = |is_counted: &dyn Fn(&GpuNode) -> bool| -> u64 {
        let counted = gpu.iter().filter(|node| is_counted(node));
        saturating_sum(counted.map(|node| kineto.work[node.work].nanos()))
    };
    let is_linked = |node: &GpuNode| node.place == Place::Operator;
    let coverage = Coverage {
        paired_by: pairs.paired_by,
        fitting_places: pairs.fitting_places,
        other_names: pairs.other_names,
        operators: trace.nodes.iter().filter(|node| node.rf_id.is_some()).count() as u64,
        operators_linked: host.iter().flatten().count() as u64,
        work: kineto.work.len() as u64,
        work_linked: gpu.iter().filter(|node| is_linked(node)).count() as u64,
        work_ns: saturating_sum(kineto.work.iter().map(Work::nanos)),
        work_linked_ns: sum(&is_linked),
        unlinked: placements.unlinked,
        ambiguous: placements.ambiguous,
        contradicted: dependencies.contradicted,
    };
    Ok(LinkedTrace { trace, kineto, host, gpu, dependencies, order: order.sorted(), coverage })
}

/// Damaged files have durations of centuries.
fn saturating_sum(nanos: impl Iterator<Item = u64>) -> u64 {
    nanos.fold(0, u64::saturating_add)
}

fn host_times(kineto: &Kineto, pairs: &Pairs, nesting: &Nesting) -> Vec<Option<HostTimes>> {
    let times = |op: usize| HostTimes {
        start: kineto.ops[op].start,
        inclusive: kineto.ops[op].end.abs_diff(kineto.ops[op].start),
        exclusive: nesting.exclusive[op],
    };
    pairs.op_of_node.iter().map(|op| op.map(times)).collect()
}
