//! What the collector feeds: rows go to the join, the profile and, if asked for, to a recording and a
//! table of activities, all while the application runs.

use std::collections::HashSet;
use std::fs;

use crate::aggregate::{Aggregate, HostSums};
use crate::capture;
use crate::control::{Outputs, Root, Settings};
use crate::cupti::{Api, Names};
use crate::graphs::{self, Graphs};
use crate::join::Join;
use crate::profile::Profile;
use crate::record::{
    Activity, ContextFlags, ContextId, LabelId, Launch, Loss, MemoryCall, Nanos, Row, ThreadId, Wait,
    WindowEdge,
};
use crate::timeline::Timeline;
use crate::unwind::ModuleMap;

use super::stream::Streams;

/// While so many launches wait for an activity, activities are read first: what was launched is to be
/// paired before the join's window moves on.
const MANY_OPEN: u64 = 32 << 10;
/// Unless so many activities wait for their launch, a quarter of what the join keeps: threads that launch
/// fast are read ahead of those whose buffers the tracer has not filled yet.
const MANY_ORPHANS: u64 = 16 << 10;
/// Steps after which the collector looks up from its reading: some 20 ms.
const MOST_STEPS: usize = 64;
/// Steps that are enough for all that can lie ready, so that threads that launch on cannot hold an exit up
/// for ever.
const ALL_STEPS: usize = 1 << 14;

/// All that is known of the run so far.
pub(super) struct Pipeline {
    rows: Rows,
    names: Names,
    modules: ModuleMap,
    dropped: u64,
    unreadable: u64,
    buffers_read: u64,
    /// How many buffers will have been read when the last flush is.
    flushed_at: Option<u64>,
}

/// Everybody who takes rows.
struct Rows {
    graphs: Graphs,
    join: Join,
    aggregate: Aggregate,
    timeline: Timeline,
    host: HostSums,
    profile: Profile,
    streams: Streams,
    threads: HashSet<ThreadId>,
    /// Whether the same stack on two threads is two.
    by_thread: bool,
    /// At a context's id, the first context with the same stack: 4 bytes for each stack of each thread
    /// there ever was, which is all that is left of them.
    merged: Vec<ContextId>,
    /// Distinct stacks, and those of them that are not perfect.
    stacks: u64,
    truncated: u64,
    guessed: u64,
    cut: u64,
}

impl Pipeline {
    pub(super) fn new(settings: &Settings, outputs: &Outputs) -> Self {
        Self {
            rows: Rows {
                graphs: Graphs::default(),
                join: Join::default(),
                by_thread: settings.root.contains(&Root::Thread),
                aggregate: match settings.root.contains(&Root::Stream) {
                    true => Aggregate::by_stream(),
                    false => Aggregate::default(),
                },
                timeline: Timeline::default(),
                host: HostSums::default(),
                profile: Profile::default(),
                streams: Streams::open(outputs, &settings.formats),
                threads: HashSet::new(),
                merged: Vec::new(),
                stacks: 0,
                truncated: 0,
                guessed: 0,
                cut: 0,
            },
            names: Names::new(),
            modules: ModuleMap::new(),
            dropped: 0,
            unreadable: 0,
            buffers_read: 0,
            flushed_at: None,
        }
    }

    /// Takes in what every later row may refer to: the names of API calls and the modules.
    pub(super) fn begin(&mut self, api: &Api) {
        let program = std::env::current_exe().unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        self.rows.push(&Row::Process { id: std::process::id(), name: &name });
        for (at, text) in api.labels().iter().enumerate() {
            self.rows.push(&Row::Label { id: LabelId(at as u32), text });
        }
        self.rows.push(&Row::Label { id: LabelId::OTHER_CALL, text: "[graph node added]" });
        self.refresh_modules();
    }

    pub(super) fn window(&mut self, edge: WindowEdge, time: Nanos) {
        self.rows.push(&Row::Window { edge, time });
    }

    /// Reads what lies ready: a good deal of it or, with `all`, so much that only what comes in
    /// meanwhile is left. False: there was nothing.
    pub(super) fn collect(&mut self, api: &Api, all: bool) -> bool {
        self.refresh_modules();
        // Copies of large graphs may fill the log without a launch or a record.
        capture::drain_graphs(|row| self.rows.push(row));
        capture::drain_beside(|row| self.rows.push(row));
        let most = if all { ALL_STEPS } else { MOST_STEPS };
        (0..most).take_while(|_| self.step(api)).count() > 0
    }

    /// Reads a buffer, or up to a chunk of launches from each thread.
    fn step(&mut self, api: &Api) -> bool {
        // Under load this is where the collector spends its time, so chunks are made here, and the time is told.
        capture::refill();
        capture::renew_clock();
        let tally = self.rows.join.tally();
        let activities_first = tally.launches.open() > MANY_OPEN
            && tally.activities.open() < MANY_ORPHANS
            && self.read_buffer(api);
        activities_first || self.read_launches() || self.read_buffer(api)
    }

    /// Whether so many launches wait for an activity that the tracer should be asked for what it has. It
    /// keeps a buffer for each thread, of some 5,000 records, until the buffer is full.
    pub(super) fn wants_flush(&self) -> bool {
        let Rows { join, graphs, .. } = &self.rows;
        join.tally().launches.open() > 4 * MANY_OPEN || join.wants_flush() || graphs.wants_flush()
    }

    fn read_launches(&mut self) -> bool {
        capture::drain(|row| self.rows.push(row))
    }

    fn read_buffer(&mut self, api: &Api) -> bool {
        let Some(filled) = capture::next_filled() else { return false };
        // Whatever nodes there are records of in it, they were made before it was filled.
        capture::drain_graphs(|row| self.rows.push(row));
        let tally = api.read(&filled, &mut self.names, &mut |row| self.rows.push(&row));
        self.unreadable += tally.unreadable;
        capture::recycle(filled);
        self.buffers_read += 1;
        self.finish_flush();
        true
    }

    fn refresh_modules(&mut self) {
        let mut new = Vec::new();
        self.modules.refresh(&mut new);
        for module in new {
            self.rows.push(&Row::Module(module));
        }
    }

    /// The tracer says that it dropped records.
    pub(super) fn note_dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    /// The tracer was flushed. What it handed over may still wait to be read.
    pub(super) fn note_flushed(&mut self) {
        self.flushed_at.get_or_insert(self.buffers_read + capture::filled() as u64);
        self.finish_flush();
    }

    /// Has graphs and their launches forgotten when all buffers have been read that there were after a flush.
    fn finish_flush(&mut self) {
        if self.flushed_at.is_some_and(|last| self.buffers_read >= last) {
            self.flushed_at = None;
            capture::drain_graphs(|row| self.rows.push(row));
            self.rows.graphs.flushed();
            self.rows.join.flushed();
        }
    }

    /// Gives up on what has no partner yet, and puts everything into the profile.
    pub(super) fn finish(&mut self) {
        let rows = &mut self.rows;
        rows.join.finish(&mut (&mut rows.aggregate, (&mut rows.timeline, &mut rows.streams)));
        for (loss, count) in capture::losses() {
            let more = match loss {
                Loss::ActivitiesDropped => self.dropped,
                Loss::ActivitiesUnreadable => self.unreadable,
                Loss::StacksTruncated => rows.truncated,
                Loss::StacksGuessed => rows.guessed,
                Loss::StacksCut => rows.cut,
                _ => 0,
            };
            if count + more > 0 {
                rows.push(&Row::Loss { loss, count: count + more });
            }
        }
        rows.aggregate.fill(&mut rows.profile);
        rows.timeline.fill(&mut rows.profile);
        rows.host.fill(&mut rows.profile);
    }

    /// What became of the nodes of graphs.
    pub(super) fn graphs(&self) -> graphs::Tally {
        self.rows.graphs.tally()
    }

    pub(super) fn join(&self) -> &Join {
        &self.rows.join
    }

    pub(super) fn profile(&self) -> &Profile {
        &self.rows.profile
    }

    /// The profile, to fill names in, and the outputs that were begun during the run.
    pub(super) fn outputs(&mut self) -> (&mut Profile, &mut Streams) {
        (&mut self.rows.profile, &mut self.rows.streams)
    }

    /// Bytes that were allocated and not freed, and the most there were at once.
    pub(super) fn memory(&self) -> (u64, u64) {
        self.rows.host.held()
    }

    /// How many distinct stacks there are.
    pub(super) fn stacks(&self) -> u64 {
        self.rows.stacks
    }
}

impl Rows {
    fn push(&mut self, row: &Row<'_>) {
        // A thread's name is not the last word on it.
        if !matches!(row, Row::Thread { .. }) {
            self.streams.row(row);
        }
        match row {
            Row::Launch(launch) => {
                let launch = &Launch { context: self.merged(launch.context), ..*launch };
                let mut sinks = (&mut self.aggregate, (&mut self.timeline, &mut self.streams));
                self.join.push_launch(launch, &mut sinks);
            }
            // A copy waits for the stores that made the row: some 12 ns, where nearly none needs one.
            Row::Activity(activity) if !graphs::is_node(activity) => self.join_activity(activity),
            Row::Activity(activity) => {
                let mut activity = *activity;
                self.graphs.resolve(&mut activity);
                self.join_activity(&activity);
            }
            Row::GraphNode { graph, node, context } => {
                let context = self.merged(*context);
                self.graphs.push(&Row::GraphNode { graph: *graph, node: *node, context });
            }
            Row::GraphClone { .. } | Row::GraphUpdate { .. } | Row::GraphEnd { .. } => {
                self.graphs.push(row);
            }
            Row::Context { id, thread, flags, frames } => {
                let first = if self.by_thread {
                    self.profile.push(row);
                    *id
                } else {
                    self.profile.merge_context(*id, *thread, *flags, frames)
                };
                self.merged.resize(self.merged.len().max(id.0 as usize + 1), ContextId::NONE);
                self.merged[id.0 as usize] = first;
                if first == *id {
                    self.note_stack(*flags);
                }
            }
            Row::Thread { id, name } => self.note_thread(*id, name),
            Row::Wait(wait) => {
                let context = self.merged(wait.context);
                self.host.row(&Row::Wait(Wait { context, ..*wait }));
            }
            Row::Memory(call) => {
                let context = self.merged(call.context);
                self.host.row(&Row::Memory(MemoryCall { context, ..*call }));
            }
            Row::EventRecord(_) | Row::Sync(_) | Row::EventCall(_) | Row::Unified(_) => self.host.row(row),
            Row::Window { .. } => {
                let mut sinks = (&mut self.aggregate, (&mut self.timeline, &mut self.streams));
                self.join.push(row, &mut sinks);
                self.timeline.row(row);
                self.profile.push(row);
            }
            _ => self.profile.push(row),
        }
    }

    fn join_activity(&mut self, activity: &Activity) {
        let mut sinks = (&mut self.aggregate, (&mut self.timeline, &mut self.streams));
        self.join.push_activity(activity, &mut sinks);
    }

    /// The context that stands for this one, whichever thread's it is.
    fn merged(&self, id: ContextId) -> ContextId {
        self.merged.get(id.0 as usize).copied().filter(|first| *first != ContextId::NONE).unwrap_or(id)
    }

    fn note_stack(&mut self, flags: ContextFlags) {
        self.stacks += 1;
        self.truncated += u64::from(flags.has(ContextFlags::TRUNCATED));
        self.guessed += u64::from(flags.has(ContextFlags::GUESSED));
        self.cut += u64::from(flags.has(ContextFlags::CUT));
    }

    /// Asks for the name of a thread that is new, which may have got one since it came, if it is still there.
    fn note_thread(&mut self, id: ThreadId, at_first: &str) {
        if self.threads.insert(id) {
            let now = fs::read_to_string(format!("/proc/self/task/{}/comm", id.0)).unwrap_or_default();
            let name = if now.is_empty() { at_first } else { now.trim_end() };
            let row = Row::Thread { id, name };
            self.streams.row(&row);
            self.profile.push(&row);
        }
    }
}
