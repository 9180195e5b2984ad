//! Finds the typical lags of a run. A lag is the minimum time between two moments. Three kinds of lags have typical
//! values: from a launch call to the begin of the launched work, from the end of an operation to the begin of an
//! operation that waits for it, and from the end of GPU work to the return of a call that waits for it.

use std::collections::BTreeMap;

use super::super::critical_path::graph::{Edge, EdgeKind, Graph, MomentKind};
use super::super::critical_path::{CriticalPath, Functions, MAX_LATENCY_NS, Submitted};
use super::super::instructions::{InstructionKind, InstructionList};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{IdMap, Work};

/// Minimum number of samples that a kind of lag needs for a typical lag of its own. If a kind of lag has fewer samples,
/// the median over all samples with the same kind of edge is used.
const MIN_SAMPLES: usize = 8;

/// Moment of a launch call (begin or end) from which the lag of the launch is measured. The lag is measured from the
/// begin or from the end of the call, depending on which of these two lags varies less in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaunchAnchor {
    /// The lag is measured from the begin of the call.
    #[default]
    Begin,
    /// The lag is measured from the end of the call.
    End,
}

/// Key that is equal for similar GPU work: the kernel, or the kind and size of a copy or fill.
type WorkKey = (Work, u64);

/// Kind of a lag. Lags of the same kind share one typical value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LagKey {
    kind: EdgeKind,
    /// Kind of the submitted work and index of the API function that submits it, or `None` if the edge is not a launch.
    submitted: Option<(Submitted, u32)>,
    /// Whether a copy began during its call although the call did not wait for it. For example, copies from pageable
    /// memory begin during their call.
    during_call: bool,
    from: MomentKind,
}

/// Kind of the lag from the end of an operation to the begin of the next operation on its stream.
const GAP: LagKey =
    LagKey { kind: EdgeKind::Stream, submitted: None, during_call: false, from: MomentKind::End };

/// A typical lag as a row for tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LagRow {
    /// Kind of the edges with this lag.
    pub kind: EdgeKind,
    /// API function that submits the work, or `None` if the edge is not a launch.
    pub function: Option<String>,
    /// Kind of the submitted work (`kernel`, `memory` or `graph`), or `None` if the edge is not a launch.
    pub submitted: Option<&'static str>,
    /// Moment of the launch call from which the lag is measured, or `None` if the edge is not a launch.
    pub anchor: Option<LaunchAnchor>,
    /// Median lag in ns. The lag can be negative, because work may begin before the end of its launch call.
    pub nanos: i64,
    /// Number of samples: moments whose time was decided by an edge with this kind of lag.
    pub samples: usize,
}

/// A typical lag, which is a median, and how it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lag {
    anchor: LaunchAnchor,
    nanos: i64,
    samples: usize,
}

/// Typical lags of a run. Each lag is the median over all moments whose time was decided by an edge of the same kind.
#[derive(Clone, Debug, Default)]
pub struct Lags {
    typical: IdMap<LagKey, Lag>,
    /// Lags of launches of specific work, if there are enough samples for this work. Specific lags are needed because
    /// copies of different sizes can behave differently. For example, on a B200, copies of 5.11 MB begin 3 us before
    /// the end of their call, and copies of 5.46 MB begin 2 us after the end of their call.
    by_work: IdMap<(LagKey, WorkKey), Lag>,
    /// For each kind of edge, the median lag over all functions and kinds of work. The median for a kind of edge is
    /// used if a [`LagKey`] has too few samples.
    by_kind: BTreeMap<EdgeKind, Lag>,
    /// Function of each call, as an index into `names`. The calls are in the same order as in the dependency graph.
    functions: Vec<u32>,
    names: Vec<String>,
    /// Typical lags of edges other than launches, indexed by the place that [`place_of`] returns.
    of_places: Vec<Option<Lag>>,
    /// For each instruction that is launched in the run, its position in `of_groups`, or [`NO_GROUP`].
    group_of: Vec<u32>,
    /// Typical lag of each group of launches. All launches in a group have the same lag key and the same work.
    of_groups: Vec<Option<Lag>>,
}

/// Value of `group_of` that means "no group".
const NO_GROUP: u32 = u32::MAX;

/// Number of kinds of moments.
const MOMENT_KINDS: usize = MomentKind::CallEnd as usize + 1;

/// Number of places. There is one place for each pair of a kind of edge and a kind of moment.
const PLACES: usize = (EdgeKind::CollectiveTie as usize + 1) * MOMENT_KINDS;

/// Returns the index in `of_places` of the typical lag for an edge that is not a launch.
fn place_of(kind: EdgeKind, from: MomentKind) -> usize {
    kind as usize * MOMENT_KINDS + from as usize
}

/// Key of a group of launches: the lag key and the work that all launches in the group have.
type GroupKey = (LagKey, Option<WorkKey>);

/// Recorded lags of one kind, measured both from the begin and from the end of the call.
#[derive(Clone, Debug, Default)]
struct Samples {
    from_begin: Vec<i64>,
    from_end: Vec<i64>,
}

impl Samples {
    /// Adds a recorded lag. For launches, `call` is the duration of the launch call.
    fn add(&mut self, lag: u64, call: Option<u64>) {
        self.from_begin.push(lag as i64);
        self.from_end.extend(call.map(|call| (lag as i64).saturating_sub(call as i64)));
    }

    fn extend(&mut self, others: &Self) {
        self.from_begin.extend(&others.from_begin);
        self.from_end.extend(&others.from_end);
    }

    fn median(&mut self) -> Lag {
        let samples = self.from_begin.len();
        let is_launch = self.from_end.len() == samples && samples >= MIN_SAMPLES;
        let is_end = is_launch && deviation(&self.from_end) < deviation(&self.from_begin);
        self.from(if is_end { LaunchAnchor::End } else { LaunchAnchor::Begin })
    }

    fn from(&mut self, anchor: LaunchAnchor) -> Lag {
        let samples = self.from_begin.len();
        let values = match anchor {
            LaunchAnchor::End => &mut self.from_end,
            LaunchAnchor::Begin => &mut self.from_begin,
        };
        Lag { anchor, nanos: median(values), samples }
    }
}

impl Lags {
    /// Computes the typical lags from the moments up to the time `until`, in ns since 1970.
    pub(super) fn fit(path: &CriticalPath, list: &InstructionList, profile: &Profile, until: u64) -> Self {
        let (graph, edges) = path.graph();
        let functions = Functions::new(&graph.calls, profile);
        let names = functions.names.iter().map(|name| (*name).to_owned()).collect();
        let mut lags = Self { functions: functions.of_call, names, ..Self::default() };
        let mut of_places: Vec<(Option<LagKey>, Samples)> = Vec::new();
        of_places.resize_with(PLACES, Default::default);
        let mut groups: IdMap<GroupKey, u32> = IdMap::default();
        let mut of_groups: Vec<(GroupKey, Samples)> = Vec::new();
        let mut group_of = vec![NO_GROUP; list.len()];
        for (at, edge) in edges.iter().enumerate() {
            let Some(key) = lags.key(graph, list, edge) else { continue };
            let of_key = if key.submitted.is_some() {
                let instruction = graph.moments[edge.to as usize].instruction;
                let key = (key, work(list, instruction));
                let next = of_groups.len() as u32;
                let group = *groups.entry(key).or_insert(next);
                if group == next {
                    of_groups.push((key, Samples::default()));
                }
                group_of[instruction as usize] = group;
                &mut of_groups[group as usize].1
            } else {
                let of_place = &mut of_places[place_of(key.kind, key.from)];
                of_place.0 = Some(key);
                &mut of_place.1
            };
            if !path.decided(at) || graph.time(edge.to) > until {
                continue;
            }
            let lag = graph.time(edge.to) - graph.time(edge.from);
            let call = call_duration(graph, edge).filter(|_| edge.kind == EdgeKind::Launch);
            // If GPU work begins late, its lag is not used as a sample, because the delay may have an unrecorded cause.
            // If a wait returns late, its lag is used as a sample, because the waiting thread itself causes the delay.
            let is_return = matches!(edge.kind, EdgeKind::Wait | EdgeKind::InferredWait);
            if is_return || lag <= MAX_LATENCY_NS + call.unwrap_or(0) {
                of_key.add(lag, call);
            }
        }
        drop(groups);
        let mut samples: IdMap<LagKey, Samples> = IdMap::default();
        for ((key, _), of_group) in &of_groups {
            if !of_group.from_begin.is_empty() {
                samples.entry(*key).or_default().extend(of_group);
            }
        }
        for (key, of_place) in of_places {
            if let Some(key) = key
                && !of_place.from_begin.is_empty()
            {
                samples.insert(key, of_place);
            }
        }
        let mut by_kind: BTreeMap<EdgeKind, Samples> = BTreeMap::new();
        for (key, of_key) in &samples {
            by_kind.entry(key.kind).or_default().extend(of_key);
        }
        lags.by_kind = by_kind.into_iter().map(|(kind, mut samples)| (kind, samples.median())).collect();
        for (key, mut of_key) in samples {
            let own = of_key.median();
            // If a copy begins during its call, the median of its own kind is used even if there are few samples. The
            // median over all launches does not fit such copies, because kernels begin after their call.
            let lag = if own.samples < MIN_SAMPLES && !key.during_call {
                Lag { samples: own.samples, ..lags.by_kind[&key.kind] }
            } else {
                own
            };
            lags.typical.insert(key, lag);
        }
        for ((key, work), mut of_group) in of_groups {
            let mut lag = None;
            if let (Some(work), Some(of_key), MIN_SAMPLES..) =
                (work, lags.typical.get(&key), of_group.from_begin.len())
            {
                let own = of_group.from(of_key.anchor);
                lags.by_work.insert((key, work), own);
                lag = Some(own);
            }
            lags.of_groups.push(lag.or_else(|| lags.of_key(&key)));
        }
        lags.group_of = group_of;
        lags.of_places = vec![None; PLACES];
        for (place, of_place) in lags.of_places.chunks_mut(MOMENT_KINDS).enumerate() {
            let of_kind = lags.by_kind.iter().find(|(kind, _)| **kind as usize == place);
            of_place.fill(of_kind.map(|(_, lag)| *lag));
        }
        for (key, lag) in lags.typical.iter().filter(|(key, _)| key.submitted.is_none()) {
            lags.of_places[place_of(key.kind, key.from)] = Some(*lag);
        }
        lags
    }

    fn of_key(&self, key: &LagKey) -> Option<Lag> {
        self.typical.get(key).or_else(|| self.by_kind.get(&key.kind)).copied()
    }

    /// Returns two lists. The first list contains the function of each call, as an index into the second list. The
    /// second list contains the names of all functions.
    pub(super) fn functions(&self) -> (&[u32], &[String]) {
        (&self.functions, &self.names)
    }

    fn of(&self, graph: &Graph, list: &InstructionList, edge: &Edge) -> Option<Lag> {
        let key = self.key(graph, list, edge)?;
        if key.submitted.is_none() {
            return self.of_places.get(place_of(key.kind, key.from)).copied().flatten();
        }
        let (from, to) = (&graph.moments[edge.from as usize], &graph.moments[edge.to as usize]);
        let instruction = to.instruction as usize;
        // The group is used only if the launch belongs to the same call as in the recorded run, because an edit may
        // have moved it to a different call.
        let is_of_run = from.kind == MomentKind::CallBegin && graph.call_of[instruction] == from.call;
        let group = self.group_of.get(instruction).filter(|group| is_of_run && **group != NO_GROUP);
        match group {
            Some(group) => self.of_groups[*group as usize],
            None => {
                let of_work = work(list, to.instruction).and_then(|work| self.by_work.get(&(key, work)));
                of_work.copied().or_else(|| self.of_key(&key))
            }
        }
    }

    /// Returns the typical lag of an edge, in ns. Returns `None` if the lag of the edge is a duration, or if the run
    /// has no samples for this kind of lag.
    pub(super) fn typical(&self, graph: &Graph, list: &InstructionList, edge: &Edge) -> Option<u64> {
        let lag = self.of(graph, list, edge)?;
        let call = match lag.anchor {
            LaunchAnchor::End => call_duration(graph, edge).unwrap_or(0) as i64,
            LaunchAnchor::Begin => 0,
        };
        Some(call.saturating_add(lag.nanos).max(0) as u64)
    }

    /// Whether the edge is a launch whose typical lag is measured from the end of the launch call.
    pub(super) fn is_from_end(&self, graph: &Graph, list: &InstructionList, edge: &Edge) -> bool {
        let lag = self.of(graph, list, edge);
        lag.is_some_and(|lag| lag.anchor == LaunchAnchor::End)
    }

    /// Returns the typical lag in ns from the end of an operation to the begin of the next operation on its stream.
    /// Returns 0 if there are no samples of this lag.
    pub(super) fn gap(&self) -> u64 {
        self.typical.get(&GAP).map_or(0, |lag| lag.nanos.max(0) as u64)
    }

    /// Whether the recorded run has samples of the lag from the end of an operation to the begin of the next operation
    /// on its stream.
    pub(super) fn knows_gap(&self) -> bool {
        self.typical.contains_key(&GAP)
    }

    /// Returns all typical lags as rows for tables.
    pub fn rows(&self) -> Vec<LagRow> {
        let row = |(key, lag): (&LagKey, &Lag)| LagRow {
            kind: key.kind,
            function: key.submitted.map(|(_, function)| self.names[function as usize].clone()),
            submitted: key.submitted.map(|(submitted, _)| submitted.word()),
            anchor: key.submitted.map(|_| lag.anchor),
            nanos: lag.nanos,
            samples: lag.samples,
        };
        let mut rows: Vec<_> = self.typical.iter().collect();
        rows.sort_unstable_by_key(|(key, _)| **key);
        rows.into_iter().map(row).collect()
    }

    /// Returns the key of an edge's lag. Returns `None` if the lag is a duration: the duration of GPU work, of a call,
    /// or of the time between two calls.
    fn key(&self, graph: &Graph, list: &InstructionList, edge: &Edge) -> Option<LagKey> {
        let (from, to) = (&graph.moments[edge.from as usize], &graph.moments[edge.to as usize]);
        // A stream reaches event records and event waits without delay.
        let is_marker =
            || to.kind == MomentKind::Reached && list.kind(to.instruction) != InstructionKind::Graph;
        let has_lag = match edge.kind {
            EdgeKind::Work
            | EdgeKind::Call
            | EdgeKind::Host
            | EdgeKind::HandOff
            | EdgeKind::ThreadWait
            | EdgeKind::Programmatic => false,
            EdgeKind::Wait | EdgeKind::InferredWait => true,
            // An edge to the end of a programmatically launched kernel or to the end of a graph has no typical lag.
            _ if matches!(to.kind, MomentKind::End | MomentKind::GraphEnd) => false,
            // If a graph node overlaps the next node, the edge from the begin of the node has no typical lag.
            EdgeKind::GraphNode => from.kind == MomentKind::End,
            _ => !is_marker(),
        };
        let submitted = match edge.kind {
            EdgeKind::Launch => Submitted::of(list.kind(to.instruction))
                .map(|submitted| (submitted, self.functions.get(from.call as usize).copied().unwrap_or(0))),
            _ => None,
        };
        let during_call = matches!(submitted, Some((Submitted::Memory, _)))
            && graph.calls.get(from.call as usize).is_some_and(|call| graph.time(edge.to) < call.end)
            && !graph.waiting.contains(&from.call);
        has_lag.then_some(LagKey { kind: edge.kind, submitted, during_call, from: from.kind })
    }
}

/// Returns the duration of the call at whose begin an edge starts.
fn call_duration(graph: &Graph, edge: &Edge) -> Option<u64> {
    let call = graph.calls.get(graph.moments[edge.from as usize].call as usize)?;
    Some(call.end - call.begin)
}

/// Returns the key of an instruction's GPU work: the kernel, or the kind and size of a copy or fill.
fn work(list: &InstructionList, instruction: u32) -> Option<WorkKey> {
    list.activity(instruction).map(|activity| (activity.work(), activity.bytes()))
}

/// Returns the median absolute deviation of the values from their median.
fn deviation(values: &[i64]) -> i64 {
    let mut values = values.to_vec();
    let middle = median(&mut values);
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    median(&mut values)
}

fn median(values: &mut [i64]) -> i64 {
    match values.len() {
        0 => 0,
        count => *values.select_nth_unstable(count / 2).1,
    }
}
