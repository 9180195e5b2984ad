//! Joins PyTorch's execution trace (ET) with Kineto's timeline of the same run. The joined data forms a graph of
//! operators and GPU work, with times and dependencies.
//!
//! ```text
//! ET node --rf_id--> operator of Kineto --encloses--> call --correlation--> GPU work
//! ```
//!
//! Each node of the graph has an index. The nodes of the execution trace have the first indexes, in the order of the
//! trace. The GPU operations have the indexes after those of the execution trace's nodes, in order of time. In `order`,
//! each node comes after all nodes on which it depends. Therefore the graph of dependencies has no cycles.

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

/// An execution trace joined with its Kineto timeline.
#[derive(Debug)]
pub struct LinkedTrace<'a> {
    /// The execution trace of the run.
    pub trace: &'a ExecutionTrace<'a>,
    /// The Kineto timeline of the run.
    pub kineto: &'a Kineto,
    /// Times of each node of the execution trace, or `None` if Kineto has no operator for the node.
    pub host: Vec<Option<HostTimes>>,
    /// GPU operations in order of time. Each GPU operation is a node below the operator that launched it.
    pub gpu: Vec<GpuNode>,
    /// Dependencies between the nodes of the graph.
    pub dependencies: Dependencies,
    /// Indexes of all nodes of the graph. In `order`, every node comes after the nodes on which it depends.
    pub order: Vec<u32>,
    /// Numbers of linked and unlinked operators and GPU operations.
    pub coverage: Coverage,
}

/// Times of an operator on the host, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTimes {
    /// Start of the operator in ns, on the timeline's clock.
    pub start: i64,
    /// Total time from the operator's start to its end, in ns.
    pub inclusive: u64,
    /// Time in ns that the operator spent outside of the operators that it called.
    pub exclusive: u64,
}

/// A GPU operation as a node of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuNode {
    /// Id of the node, which is greater than all ids in the execution trace.
    pub id: u64,
    /// Position of the GPU operation in [`Kineto::work`].
    pub work: usize,
    /// Position of the parent node in [`ExecutionTrace::nodes`].
    pub parent: usize,
    /// Kind of the parent node.
    pub place: Place,
}

/// Method by which nodes were paired with operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairedBy {
    /// A node and an operator form a pair if the `rf_id` of the node equals the `Record function id` of the operator.
    #[default]
    RecordFunction,
    /// The timeline has no `Record function id`, so pairs were found by the order of the operators' names on each
    /// thread.
    NameOrder,
}

/// Numbers of linked and unlinked operators and GPU operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Method by which operators were paired.
    pub paired_by: PairedBy,
    /// Number of positions in the timeline at which the execution trace fits. The number of positions is greater than 1
    /// only for [`PairedBy::NameOrder`].
    pub fitting_places: u64,
    /// Number of nodes that are not paired because the node and the operator with the same id have different names.
    pub other_names: u64,
    /// Number of nodes that are operators or ranges.
    pub operators: u64,
    /// Number of nodes that are operators or ranges and are paired with an operator of Kineto.
    pub operators_linked: u64,
    /// Number of GPU operations in the timeline.
    pub work: u64,
    /// Number of GPU operations that are linked to the operator that launched them.
    pub work_linked: u64,
    /// Total duration of the GPU operations in the timeline, in ns.
    pub work_ns: u64,
    /// Total duration of the linked GPU operations, in ns.
    pub work_linked_ns: u64,
    /// Number of GPU operations that are not linked to an operator, for each reason.
    pub unlinked: [u64; Unlinked::ALL.len()],
    /// Number of GPU operations for which it is ambiguous which call launched them, because calls of several processes
    /// have the same correlation id.
    pub ambiguous: u64,
    /// Number of dependencies that were omitted because the times contradict them.
    pub contradicted: u64,
}

impl Coverage {
    /// Returns the number of GPU operations that were launched while the execution trace was recorded.
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

    /// Returns the index that a GPU node has in the graph.
    pub fn gpu_number(&self, gpu: usize) -> u32 {
        (self.trace.nodes.len() + gpu) as u32
    }

    /// Returns the GPU operation of a GPU node.
    pub fn work(&self, gpu: &GpuNode) -> &Work {
        &self.kineto.work[gpu.work]
    }
}

/// Joins an execution trace with a timeline of the same run.
///
/// # Errors
/// `Format` if the timeline has no operators, or if the files do not belong to the same run.
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

/// Returns the sum of durations. The sum saturates, because damaged files may contain durations of centuries.
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
