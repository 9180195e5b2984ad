//! `Explain` computes a profile from the rows of a recording. No other code computes profiles: live sessions use
//! `Explain`, and so do verbs that read a recording from a file.
//!
//! ```text
//! rows -> contexts merged -> graph nodes resolved -> join -> aggregate, timeline, the caller's sink
//!                                              other rows -> host sums, profile
//! ```
//!
//! A [`Snapshot`] is the result for the rows that were pushed so far. A snapshot may be taken at any time: at exit,
//! when a window closes, while the program runs, or at the end of a file. Taking a snapshot does not affect later
//! results.
//!
//! Memory is bounded if [`Options::ceiling`] is set: see `memory_limit`.
//!
//! This module reads and writes no files, and does not look up the names of functions. The modules `session` and `cli`
//! access files and look up names.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod communication;
pub mod events;
pub mod graphs;
pub mod join;
pub mod symbolize;
pub mod timeline;

mod checkpoint_sums;
mod contexts;
mod definitions;
mod finished_sums;
mod ledger;
mod memory_limit;
mod per_window;
mod row_facts;
mod set_description;
#[cfg(test)]
#[path = "../../tests/support/skip.rs"]
mod skip;
mod step_series;
mod step_sums;

use std::collections::BTreeMap;
use std::mem;

use crate::aggregate::{Aggregate, HostSums};
use crate::graphs::Graphs;
use crate::join::{Join, Launched, Origin, Sink, Tally};
use crate::timeline::Timeline;
use checkpoint_sums::CheckpointSums;
use contexts::Contexts;
pub use contexts::Stacks;
pub use definitions::Definitions;
pub use finished_sums::FinishedSums;
use gpuflame_model::profile::{Profile, StepTotals};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, CpuSample, EventCall, HostCallSpan, HostState, IdMap, Launch, Loss,
    MemoryCall, Nanos, OffCpuWait, Row, ThreadId, Wait,
};
pub use ledger::{Device, Host, Ledger, MergedWork, Sum};
pub use memory_limit::DroppedDefinitions;
use memory_limit::{DroppedCounts, IdMapping};
pub use per_window::{LateArrivals, PerWindowSums, WindowSums};
use row_facts::{AtEnd, LaunchKind, RowFactsCounter};
pub use set_description::{describe_process, describe_set, json_path};
use step_series::StepSeriesBuilder;

/// Maximum count of lost items per kind of loss; higher counts in a file are reduced to this limit. The counts in a
/// plausible file are below this limit. The limit prevents an overflow of the total over all kinds of loss.
const MAX_LOST_PER_KIND: u64 = 1 << 56;

/// Options of [`Explain`]: which sums are kept separate, and how much memory may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Whether each stream of a device is summed separately. Default: no.
    pub by_stream: bool,
    /// Whether contexts with the same stack on two threads count as one context. In a live process, threads must be
    /// merged. Otherwise the profile of a program that creates one thread per request would grow with each request.
    /// Default: no.
    pub merge_threads: bool,
    /// Whether the final result contains the sums of squared durations of GPU work, for each stack and kind of work.
    /// Default: no.
    pub has_squares: bool,
    /// Maximum number of windows that are summed separately. When all GPU work of a window has ended, the sums of the
    /// window are removed. By default, no window is summed separately.
    pub per_window: Option<u64>,
    /// Maximum memory in bytes for everything that gpuflame allocates. Default: no limit.
    pub ceiling: Option<usize>,
    /// Whether the search for the stacks that caused idle time (the culprits) is skipped. Default: no.
    pub without_culprits: bool,
}

/// All data that `Explain` has derived from the rows pushed so far. See the module's documentation.
#[derive(Debug, Default)]
pub struct Explain {
    graphs: Graphs,
    join: Join,
    aggregate: Aggregate,
    timeline: Timeline,
    host: HostSums,
    profile: Profile,
    contexts: Contexts,
    steps: StepTotals,
    step_series: StepSeriesBuilder,
    row_facts: RowFactsCounter,
    /// Counts of lost items, as reported by rows of the recording.
    losses: BTreeMap<Loss, u64>,
    ceiling: usize,
    dropped: DroppedCounts,
    without_culprits: bool,
    /// Sums of single windows, in addition to the sums of the whole run.
    per_window: Option<PerWindowSums>,
    /// Sums that were read from a recording file that contains sums instead of rows.
    checkpoint: Option<CheckpointSums>,
}

/// The result for the rows that were pushed so far.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Profile with the sums of the run. The profile is mutable so that the caller can add the names of functions.
    /// Later snapshots contain the names that were added.
    pub profile: &'a mut Profile,
    /// Counts of all launches, activities and other recorded items, by outcome.
    pub ledger: Ledger,
}

impl Explain {
    /// Creates an empty `Explain`.
    pub fn new(options: Options) -> Self {
        let aggregate = if options.by_stream { Aggregate::by_stream() } else { Aggregate::default() };
        Self {
            aggregate: match options.has_squares {
                true => aggregate.with_squares(),
                false => aggregate,
            },
            join: options.ceiling.map_or_else(Join::default, |bytes| Join::new(memory_limit::limits(bytes))),
            contexts: Contexts::new(options.merge_threads),
            timeline: options
                .ceiling
                .map_or_else(Timeline::default, |bytes| Timeline::bounded(bytes / 64))
                .with_steady_part(),
            ceiling: options.ceiling.unwrap_or(usize::MAX),
            without_culprits: options.without_culprits,
            per_window: options.per_window.map(|most| PerWindowSums::new(most, options.by_stream)),
            ..Self::default()
        }
    }

    /// Processes the next row, and passes joined rows to `sink`.
    pub fn push(&mut self, row: &Row<'_>, sink: &mut impl Sink) {
        match row {
            Row::Launch(launch) => self.push_launch(launch, sink),
            // Almost every activity is joined without being copied. Copying an activity would take about 12 ns, because
            // the copy would have to wait for the stores that wrote the row.
            Row::Activity(activity) if !graphs::is_node(activity) && activity.created.is_none() => {
                self.join_activity(activity, sink);
            }
            Row::Activity(activity) => {
                let mut activity = *activity;
                self.graphs.resolve(&mut activity);
                self.join_activity(&activity, sink);
            }
            Row::GraphNode { graph, node, context } => {
                let context = self.representative(*context);
                let row = Row::GraphNode { graph: *graph, node: *node, context };
                self.graphs.push(&row);
                sink.host(&row);
            }
            Row::GraphClone { .. } => {
                self.graphs.push(row);
                sink.host(row);
            }
            Row::GraphUpdate { .. } | Row::GraphEnd { .. } => {
                self.graphs.push(row);
            }
            Row::Context { .. } => {
                if self.contexts.add(row, &mut self.profile) {
                    self.fit_stacks();
                }
            }
            Row::HostState(state) => {
                let context = self.representative(state.context);
                self.timeline.add_host_state(&HostState { context, ..*state });
            }
            Row::HostCallSpan(call) => self.push_host_call(call),
            Row::Sampled(sampled) => self.push_sample(sampled, sink),
            Row::Blocked(blocked) => self.push_off_cpu_wait(blocked, sink),
            Row::Wait(wait) => {
                let row = Row::Wait(Wait { context: self.representative(wait.context), ..*wait });
                self.push_host_row(&row, sink);
            }
            Row::Memory(call) => {
                let call = MemoryCall { context: self.representative(call.context), ..*call };
                (&mut self.per_window, &mut *sink).memory(&call);
                self.host.row(&Row::Memory(call));
            }
            Row::Unified(unified) => {
                (&mut self.per_window, &mut *sink).unified(unified);
                self.host.row(row);
            }
            Row::Instant(instant) => sink.instant(instant),
            Row::Step(step) => {
                self.steps.add(step);
                self.step_series.add_step(step, self.profile.windows());
                self.timeline.add_step(step);
                if let Some(per_window) = &mut self.per_window {
                    per_window.add_step(step);
                }
            }
            Row::EventCall(call) => {
                let row = Row::EventCall(EventCall { context: self.representative(call.context), ..*call });
                self.push_host_row(&row, sink);
            }
            Row::EventRecord(_) | Row::Sync(_) => self.push_host_row(row, sink),
            Row::GraphEdge(_) | Row::HostNode(_) | Row::LaunchAttributes(_) => sink.host(row),
            Row::Outside(_) | Row::CallbacksSwitched { .. } => {
                let (join, mut consumers) = self.join_and_consumers(sink);
                join.push(row, &mut consumers);
            }
            Row::Window { edge, time } => {
                let (join, mut consumers) = self.join_and_consumers(sink);
                join.push(row, &mut consumers);
                drop(consumers);
                self.timeline.row(row);
                self.row_facts.window(*edge);
                if let Some(per_window) = &mut self.per_window {
                    per_window.push_edge(*edge, *time);
                }
                self.profile.push(row);
            }
            Row::Loss { loss, count } => {
                let sum = self.losses.entry(*loss).or_default();
                *sum = sum.saturating_add(*count).min(MAX_LOST_PER_KIND);
            }
            Row::Sum { key, values } => self.push_sum(key, values),
            _ => self.profile.push(row),
        }
    }

    /// Processes the next row of a file: calls [`Explain::push`] and [`Explain::pass_host_activity`]. This function is
    /// not generic, so that the binary of the command `gpuflame` contains the code of the join only once, and not once
    /// per type of sink.
    pub fn push_row_of_file(&mut self, row: &Row<'_>, mut sink: &mut dyn Sink) {
        self.push(row, &mut sink);
        self.pass_host_activity(row, &mut sink);
    }

    /// Returns the final result, as [`Explain::finish`] does. Call this function after the last row of a file.
    pub fn finish_file(&mut self, mut sink: &mut dyn Sink) -> Snapshot<'_> {
        self.finish(&[], &mut sink)
    }

    /// Returns the join, and a sink that passes joined rows to all consumers. The consumers are the sums, the timeline,
    /// the steps, the counts of launches and activities with certain properties, the per-window sums, and the caller's
    /// `sink`.
    fn join_and_consumers<'a>(&'a mut self, sink: &'a mut impl Sink) -> (&'a mut Join, impl Sink + 'a) {
        let Self { join, aggregate, timeline, step_series, row_facts, profile, per_window, .. } = self;
        let steps = StepSink { series: step_series, profile };
        (join, (aggregate, (timeline, (steps, (row_facts, (per_window, sink))))))
    }

    fn push_launch(&mut self, launch: &Launch, sink: &mut impl Sink) {
        let thread = self.contexts.thread(launch.context, &self.profile);
        let launch = &Launch { context: self.representative(launch.context), ..*launch };
        if let Some(thread) = thread.filter(|_| !self.without_culprits) {
            self.note_launching_thread(thread, launch);
        }
        if let Some(per_window) = self.per_window.as_mut().filter(|_| !launch.is_alias()) {
            per_window.count_launch(launch);
        }
        let (join, mut consumers) = self.join_and_consumers(sink);
        join.push_launch(launch, &mut consumers);
    }

    /// Passes a host state of a thread, or a completed API call, from a row to `sink`. The context in the row is first
    /// replaced by the context that represents its stack. Analyses of the host need these rows, and [`Explain::push`]
    /// does not pass them to the sink.
    pub fn pass_host_activity(&self, row: &Row<'_>, sink: &mut impl Sink) {
        match row {
            Row::HostState(state) => {
                sink.host(&Row::HostState(HostState {
                    context: self.representative(state.context),
                    ..*state
                }));
            }
            Row::HostCallSpan(call) => {
                let context = self.representative(call.context);
                sink.host(&Row::HostCallSpan(HostCallSpan { context, ..*call }));
            }
            _ => {}
        }
    }

    fn push_host_call(&mut self, call: &HostCallSpan) {
        if let Some(thread) = self.contexts.thread(call.context, &self.profile) {
            let context = self.representative(call.context);
            let begun = Nanos(call.ended.0.saturating_sub(call.duration.into()));
            self.timeline.add_call(thread, (begun, call.ended), context);
            if let Some(per_window) = &mut self.per_window {
                per_window.add_call(thread, (begun, call.ended), context);
            }
        }
    }

    fn push_sample(&mut self, sampled: &CpuSample, sink: &mut impl Sink) {
        let sampled = CpuSample { context: self.representative(sampled.context), ..*sampled };
        if self.timeline.is_in_window(sampled.time) {
            self.push_host_row(&Row::Sampled(sampled), sink);
            self.timeline.add_sample(&sampled);
        }
    }

    /// Handles an off-CPU wait. Only those parts of the wait are passed on during which a window was open.
    fn push_off_cpu_wait(&mut self, blocked: &OffCpuWait, sink: &mut impl Sink) {
        let context = self.representative(blocked.context);
        let until = blocked.time.0.saturating_add(blocked.duration);
        for (from, to) in self.timeline.parts(blocked.time, Nanos(until)) {
            let part = OffCpuWait { time: Nanos(from), duration: to - from, context, ..*blocked };
            self.push_host_row(&Row::Blocked(part), sink);
            self.timeline.add_wait(&part);
        }
    }

    /// Passes a row that the join does not process to the per-window sums, to `sink` and to the host sums. The context
    /// in the row must already be the context that represents its stack.
    fn push_host_row(&mut self, row: &Row<'_>, sink: &mut impl Sink) {
        (&mut self.per_window, sink).host(row);
        self.row_facts.host(row);
        self.host.row(row);
    }

    /// Handles a window edge that is recorded only because the clock changed. An edge for a changed clock interrupts or
    /// continues the open window, and does not start a new window.
    pub fn push_clock_edge(&mut self, edge: &Row<'_>) {
        self.timeline.row(edge);
        if let Some(per_window) = &mut self.per_window {
            per_window.push_clock_edge(edge);
        }
        self.profile.push(edge);
    }

    /// Passes the thread that made a launch to the timeline.
    fn note_launching_thread(&mut self, thread: ThreadId, launch: &Launch) {
        if self.timeline.has_host_states() {
            self.timeline.note_launching_thread(launch.context, thread);
        } else if !launch.is_alias() {
            let ended = Nanos(launch.time.0.saturating_add(launch.duration.into()));
            self.timeline.add_launch(thread, (launch.time, ended), launch.context);
            if let Some(per_window) = &mut self.per_window {
                per_window.add_launch(thread, (launch.time, ended), launch.context);
            }
        }
    }

    fn push_sum(&mut self, key: &[u8], values: &[u64]) {
        if let Some(edge) = CheckpointSums::window(key, values) {
            return self.profile.push(&edge);
        }
        let Self { checkpoint, contexts, profile, .. } = self;
        let checkpoint = checkpoint.get_or_insert_default();
        checkpoint.push(key, values, |id| contexts.representative(id, profile));
    }

    /// Returns the context that represents the stack of context `id`.
    fn representative(&self, id: ContextId) -> ContextId {
        self.contexts.representative(id, &self.profile)
    }

    fn join_activity(&mut self, activity: &Activity, sink: &mut impl Sink) {
        let (join, mut consumers) = self.join_and_consumers(sink);
        join.push_activity(activity, &mut consumers);
    }

    /// Processes a flush of CUPTI's activity buffers. Call this function after CUPTI was flushed and all rows that it
    /// delivered were pushed. After this call, destroyed graphs and finished launches can be forgotten.
    pub fn flushed(&mut self) {
        self.graphs.flushed();
        self.join.flushed();
        if let Some(per_window) = &mut self.per_window {
            per_window.flushed();
        }
    }

    /// Whether CUPTI should be flushed soon, because memory for many graphs or launches can be released only after a
    /// flush.
    pub fn wants_flush(&self) -> bool {
        self.join.wants_flush() || self.graphs.wants_flush()
    }

    /// Returns the result for the rows that were pushed so far. Launches that still wait for their activity, and
    /// activities that still wait for their launch, count as unmatched and are passed to `sink`. A snapshot does not
    /// change how later rows are processed.
    ///
    /// `counted` contains the losses that no row reports: the total so far for each kind of loss.
    pub fn snapshot(&mut self, counted: &[(Loss, u64)], sink: &mut impl Sink) -> Snapshot<'_> {
        let sums = (self.aggregate.clone(), self.timeline.clone(), self.step_series.clone());
        self.totals(sums, false, counted, sink)
    }

    /// Returns the final result. Call this function when no more rows will arrive. Unlike [`Explain::snapshot`], this
    /// function consumes the sums instead of copying them.
    pub fn finish(&mut self, counted: &[(Loss, u64)], sink: &mut impl Sink) -> Snapshot<'_> {
        let sums =
            (mem::take(&mut self.aggregate), mem::take(&mut self.timeline), mem::take(&mut self.step_series));
        self.totals(sums, true, counted, sink)
    }

    /// Computes a snapshot. This function is not inlined, because [`Explain::snapshot`] and [`Explain::finish`] would
    /// otherwise each contain 15 KB of its code.
    #[inline(never)]
    fn totals(
        &mut self,
        (mut aggregate, mut timeline, mut step_series): (Aggregate, Timeline, StepSeriesBuilder),
        is_final: bool,
        counted: &[(Loss, u64)],
        sink: &mut impl Sink,
    ) -> Snapshot<'_> {
        let replacements = IdMap::default();
        let mapping = IdMapping::new(&self.profile, &replacements);
        let kind_of = |context| match mapping.context(context) {
            id if self.profile.launches_graph(id) => LaunchKind::Graph,
            id if self.profile.requires_activity(id) => LaunchKind::Kernel,
            _ => LaunchKind::Other,
        };
        let steps = StepSink { series: &mut step_series, profile: &self.profile };
        let mut at_end = AtEnd { facts: self.row_facts, steps, kind_of, queued: (0, 0) };
        let tally = self.join.final_tally(&mut (&mut aggregate, (&mut timeline, (&mut at_end, sink))));
        let facts = Some(at_end.facts());
        if mapping.has_any() {
            // Two kinds of stored ids may refer to dropped items: ids of contexts that created graph nodes, and ids of
            // kernels whose activities waited for a launch.
            aggregate.rename(|id| mapping.context(id), |id| mapping.kernel(id));
        }
        let mut losses = self.losses.clone();
        for (loss, count) in counted {
            *losses.entry(*loss).or_default() += count;
        }
        losses.extend(self.dropped.losses());
        let profile = &mut self.profile;
        let (mut tally, mut nodes) = (tally, self.graphs.tally());
        let (mut stacks, mut held) = (self.contexts.stacks(), self.host.held());
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.losses.iter().for_each(|(loss, count)| *losses.entry(*loss).or_default() += count);
            (tally, nodes, stacks, held) =
                (checkpoint.tally, checkpoint.nodes, checkpoint.stacks, checkpoint.held);
        }
        profile.set_losses(losses);
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.fill(profile),
            None => {
                aggregate.fill(profile);
                if is_final {
                    profile.set_spreads(aggregate.spreads());
                    let (delays, copies) = aggregate.take_details();
                    profile.set_delays_and_copies(delays, copies);
                }
                timeline.end(profile);
                self.host.fill(profile);
                profile.set_steps(self.steps);
                profile.set_step_series(step_series.series(profile.windows()));
                profile.set_row_facts(facts);
            }
        }
        profile.count_coverage(tally.launches.matched.saturating_sub(tally.launches.graphs));
        let ledger = Ledger::new(profile, tally, nodes, stacks, held);
        Snapshot { profile, ledger }
    }

    /// Returns the sums of single windows; `None` unless [`Options::per_window`] was set.
    pub fn per_window(&mut self) -> Option<&mut PerWindowSums> {
        self.per_window.as_mut()
    }

    /// Returns the counts of the launches and activities so far, by outcome.
    pub fn tally(&self) -> &Tally {
        self.join.tally()
    }

    /// Returns the number of stacks so far, and the number of stacks with each kind of defect.
    pub fn stacks(&self) -> Stacks {
        self.contexts.stacks()
    }

    /// Returns the profile. Returns the profile. The profile contains the definitions from all rows, and the sums that
    /// the last [`Explain::snapshot`] computed.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the profile as mutable, so that the caller can add the names of functions.
    pub fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// Returns the size in bytes of the heap memory that `Explain` uses.
    pub fn heap_bytes(&self) -> usize {
        self.graphs.heap_bytes()
            + self.join.heap_bytes()
            + self.aggregate.heap_bytes()
            + self.timeline.heap_bytes()
            + self.host.context_bytes()
            + self.profile.heap_bytes()
            + self.contexts.heap_bytes()
            + self.step_series.heap_bytes()
            + self.per_window.as_ref().map_or(0, PerWindowSums::heap_bytes)
    }

    /// Returns the profile, and drops all other data.
    pub fn into_profile(self) -> Profile {
        self.profile
    }
}

/// A [`Sink`] that assigns launches and GPU work to the program's steps.
struct StepSink<'a> {
    series: &'a mut StepSeriesBuilder,
    profile: &'a Profile,
}

impl Sink for StepSink<'_> {
    fn activity(&mut self, activity: &Activity, _origin: Origin) {
        self.series.add_activity(activity, self.profile);
    }

    fn pending(&mut self, _id: CorrelationId, launched: Launched) {
        self.series.add_launch(launched, false, self.profile);
    }

    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.series.add_launch(launched, true, self.profile);
    }
}
