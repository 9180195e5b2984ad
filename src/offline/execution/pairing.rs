//! Pairs the nodes of an execution trace with operators of the timeline. Pairs are found by the id that PyTorch gives
//! to each execution of an operator. Old versions of PyTorch did not write the ids of executions to timelines. For such
//! timelines, pairs are found by the order of the operators' names on each thread.

use std::collections::{BTreeMap, HashMap};

use super::PairedBy;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_traces::execution::{ExecutionTrace, Kineto};

/// Pairs of execution trace nodes and timeline operators.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// For each node, the position of its operator in [`Kineto::ops`].
    pub(super) op_of_node: Vec<Option<usize>>,
    /// For each operator, the position of its node in the execution trace.
    pub(super) node_of_op: Vec<Option<usize>>,
    pub(super) paired_by: PairedBy,
    pub(super) fitting_places: u64,
    /// Number of nodes that are not paired because the node and the operator with the same id have different names.
    pub(super) other_names: u64,
    /// For each thread of the timeline, whether it belongs to the process of the execution trace. Only operators on
    /// threads in the process of the execution trace are paired, because ids are unique only within a process.
    pub(super) own_threads: Vec<bool>,
}

/// Maximum percentage of operators that have the same id but different names in the two files. If both files are from
/// one run, the names are normally equal. The limit for different names is above 0 because a profiler may change some
/// names.
const MAX_OTHER_NAMES_PERCENT: u64 = 10;

impl Pairs {
    /// # Errors
    /// `Format` if the files do not belong to the same run, or if they lack the ids by which they are paired.
    pub(super) fn find(trace: &ExecutionTrace<'_>, kineto: &Kineto) -> Result<Self> {
        if trace.nodes.iter().all(|node| node.rf_id.is_none()) {
            return Err(refuse(
                "no node of the execution trace has an rf_id, which pairs it with Kineto's operators",
            ));
        }
        check_processes(trace, kineto)?;
        match kineto.ops.iter().any(|op| op.record_function.is_some()) {
            true => Self::by_record_function(trace, kineto),
            false => Self::by_name_order(trace, kineto),
        }
    }

    fn none(trace: &ExecutionTrace<'_>, kineto: &Kineto) -> Self {
        Self {
            op_of_node: vec![None; trace.nodes.len()],
            node_of_op: vec![None; kineto.ops.len()],
            paired_by: PairedBy::RecordFunction,
            fitting_places: 1,
            other_names: 0,
            own_threads: own_threads(trace, kineto),
        }
    }

    fn add(&mut self, node: usize, op: usize) {
        if self.op_of_node[node].is_none() && self.node_of_op[op].is_none() {
            (self.op_of_node[node], self.node_of_op[op]) = (Some(op), Some(node));
        }
    }

    fn by_record_function(trace: &ExecutionTrace<'_>, kineto: &Kineto) -> Result<Self> {
        let mut pairs = Self::none(trace, kineto);
        let mut ops = HashMap::new();
        for (at, op) in kineto.ops.iter().enumerate().filter(|(_, op)| pairs.own_threads[op.thread as usize])
        {
            op.record_function.map(|number| *ops.entry(number).or_insert(at));
        }
        let mut found = 0_u64;
        for (at, node) in trace.nodes.iter().enumerate() {
            let Some(&op) = node.rf_id.and_then(|number| ops.get(&number)) else { continue };
            found += 1;
            match node.name.decode() == kineto.name(kineto.ops[op].name) {
                true => pairs.add(at, op),
                false => pairs.other_names += 1,
            }
        }
        if found == 0 {
            return Err(refuse(
                "no rf_id of the execution trace is a Record function id of the Kineto trace: they are of different \
                 runs, or of different parts of one run; record both in the same window",
            ));
        }
        // Ids are unique only within a process. So two files from different runs contain the same ids, but the
        // operators with these ids have different names.
        if pairs.other_names * 100 > found * MAX_OTHER_NAMES_PERCENT {
            let same = found - pairs.other_names;
            return Err(refuse(&format!(
                "only {same} of {found} operators with the same number have the same name: the execution trace and \
                 the Kineto trace are of different runs; give the two files of one window"
            )));
        }
        Ok(pairs)
    }

    fn by_name_order(trace: &ExecutionTrace<'_>, kineto: &Kineto) -> Result<Self> {
        let mut pairs = Self { paired_by: PairedBy::NameOrder, ..Self::none(trace, kineto) };
        let numbers: HashMap<&str, u32> = kineto.names().zip(0..).collect();
        let mut threads = threads_of_ops(kineto, &pairs.own_threads);
        // The thread of the execution trace that began first determines the position in the timeline. The operators of
        // all other threads must fit at positions that do not begin before the position of the first thread.
        let mut begin = i64::MIN;
        for nodes in threads_of_nodes(trace) {
            let names: Option<Vec<u32>> =
                nodes.iter().map(|at| numbers.get(&*trace.nodes[*at].name.decode()).copied()).collect();
            let Some(names) = names else { continue };
            let found: Vec<_> = (threads.iter().enumerate())
                .filter_map(|(thread, ops)| Some((thread, Fit::find(&names, ops, kineto, begin)?)))
                .collect();
            let Some((thread, fit)) = found.iter().min_by_key(|(_, fit)| fit.start) else { continue };
            begin = begin.max(fit.start);
            pairs.fitting_places = pairs.fitting_places.max(found.iter().map(|(_, fit)| fit.places).sum());
            nodes.iter().zip(fit.ops).for_each(|(node, op)| pairs.add(*node, *op));
            // A thread of the timeline can match only one thread of the execution trace.
            let thread = *thread;
            threads.remove(thread);
        }
        if pairs.op_of_node.iter().all(Option::is_none) {
            return Err(refuse(
                "the Kineto trace has no Record function ids (PyTorch before 2.1 does not write them), and no thread of \
                 it runs the execution trace's operators in the same order; record both in the same window",
            ));
        }
        Ok(pairs)
    }
}

/// Position in a timeline thread at which the operator names are the same as in a thread of the execution trace.
struct Fit<'a> {
    ops: &'a [usize],
    start: i64,
    places: u64,
}

impl<'a> Fit<'a> {
    /// Finds the first fitting position that begins at `from` or later, and counts all fitting positions.
    fn find(names: &[u32], ops: &'a [usize], kineto: &Kineto, from: i64) -> Option<Self> {
        let mut first = None;
        let mut places = 0;
        for at in positions(names, ops, |op| kineto.ops[*op].name) {
            places += 1;
            let start = kineto.ops[ops[at]].start;
            if start >= from && first.is_none() {
                first = Some((at, start));
            }
        }
        first.map(|(at, start)| Self { ops: &ops[at..at + names.len()], start, places })
    }
}

/// Returns all positions at which the sequence `names` occurs in `all`. Uses the algorithm of Knuth, Morris and Pratt,
/// which takes linear time even if a program's loop repeats the same names.
fn positions<T>(names: &[u32], all: &[T], name: impl Fn(&T) -> u32) -> Vec<usize> {
    let mut fallback = vec![0; names.len()];
    let mut length = 0;
    for at in 1..names.len() {
        while length > 0 && names[at] != names[length] {
            length = fallback[length - 1];
        }
        length += usize::from(names[at] == names[length]);
        fallback[at] = length;
    }
    let (mut found, mut length) = (Vec::new(), 0);
    for (at, one) in all.iter().enumerate() {
        while length > 0 && (length == names.len() || names[length] != name(one)) {
            length = fallback[length - 1];
        }
        length += usize::from(!names.is_empty() && names[length] == name(one));
        if length == names.len() && length > 0 {
            found.push(at + 1 - length);
        }
    }
    found
}

/// For each timeline thread in the process of the execution trace, returns the operators in the order in which they
/// began.
fn threads_of_ops(kineto: &Kineto, own_threads: &[bool]) -> Vec<Vec<usize>> {
    let mut threads = vec![Vec::new(); kineto.threads.len()];
    kineto.ops.iter().enumerate().for_each(|(at, op)| threads[op.thread as usize].push(at));
    threads.retain(|ops| ops.first().is_some_and(|op| own_threads[kineto.ops[*op].thread as usize]));
    for ops in &mut threads {
        // External ids are assigned in the order in which operators begin. Start times are used only if External ids
        // are missing, because times in whole microseconds are too coarse to order operators.
        match ops.iter().all(|at| kineto.ops[*at].external.is_some()) {
            true => ops.sort_by_key(|at| kineto.ops[*at].external),
            false => ops.sort_by_key(|at| (kineto.ops[*at].start, std::cmp::Reverse(kineto.ops[*at].end))),
        }
    }
    threads
}

/// For each thread of the execution trace, returns the nodes in the order in which they began. The threads are sorted
/// by the begin of their first node.
fn threads_of_nodes(trace: &ExecutionTrace<'_>) -> Vec<Vec<usize>> {
    let mut threads: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, node) in trace.nodes.iter().enumerate().filter(|(_, node)| node.rf_id.is_some()) {
        threads.entry(node.tid).or_default().push(at);
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    threads.iter_mut().for_each(|nodes| nodes.sort_by_key(|at| trace.nodes[*at].rf_id));
    threads.sort_by_key(|nodes| trace.nodes[nodes[0]].rf_id);
    threads
}

/// For each timeline thread, returns whether it belongs to the process of the execution trace. If one of the two files
/// does not name its process, the thread counts as belonging to the process of the execution trace.
fn own_threads(trace: &ExecutionTrace<'_>, kineto: &Kineto) -> Vec<bool> {
    let own = trace.header.pid.to_string();
    let is_own = |process: &str| trace.header.pid == 0 || process.is_empty() || process == own;
    kineto.threads.iter().map(|(process, _)| is_own(process)).collect()
}

/// Returns an error if the execution trace and the timeline belong to different processes.
fn check_processes(trace: &ExecutionTrace<'_>, kineto: &Kineto) -> Result<()> {
    let own = trace.header.pid.to_string();
    let mut processes: Vec<&str> =
        kineto.ops.iter().map(|op| kineto.threads[op.thread as usize].0.as_str()).collect();
    processes.sort_unstable();
    processes.dedup();
    if trace.header.pid == 0 || processes.iter().any(|process| *process == own || process.is_empty()) {
        return Ok(());
    }
    Err(refuse(&format!(
        "the execution trace is of process {own}, the Kineto trace of process {}: give the two files of one process",
        processes.join(", ")
    )))
}

fn refuse(what: &str) -> Error {
    Error::new(ErrorKind::Format, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_places_of_a_repeated_sequence_are_found() {
        let find = |names: &[u32], all: &[u32]| positions(names, all, |name| *name);
        assert_eq!(find(&[1, 2], &[1, 2, 1, 2, 3, 1, 2]), [0, 2, 5]);
        assert_eq!(find(&[1, 1], &[1, 1, 1]), [0, 1], "places overlap");
        assert_eq!(find(&[1, 2, 1, 3], &[1, 2, 1, 2, 1, 3]), [2]);
        assert!(find(&[4], &[1, 2]).is_empty() && find(&[], &[1]).is_empty());
    }
}
