//! What the collector feeds: rows are explained and, if asked for, go to a recording and a table of
//! activities, all while the application runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;

use crate::capture::{self, Forgetting};
use crate::control::{Outputs, window};
use crate::cupti::{Api, KernelNames};
use crate::explain::{self, Apart, Definitions, Explain, Late, Ledger, Part, Snapshot};
use crate::host::clocks::Moment;
use crate::host::growing::Growing;
use crate::host::shortage;
use crate::profile::Profile;
use crate::record::{
    Activity, Blocked, Chunk, ContextId, Frame, Instant, LabelId, Loss, Mark, Module, Nanos, Row, Sampled,
    SumsWriter, ThreadId,
};
use crate::settings::{Root, Settings};
use crate::symbolize;

use super::edges::Edges;
use super::generated::GeneratedCode;
use super::messages::say;
#[cfg(debug_assertions)]
use super::mix_up::MixUp;
use super::progress;
use super::provenance;
use super::sampler::{Found, Sampler, Stands};
use super::sets::{Drawn, Set, Sets};
use super::stream::Streams;
use super::times::Times;
use super::write::Report;

/// While this part of the launches that the join keeps wait for an activity, activities are read first: each launch should be
/// paired before the join's window moves on. 32,768 launches with the default limits.
const MANY_OPEN_PART: usize = 7;
/// Unless this part of the activities that it keeps wait for their launch: threads that launch fast are read ahead of
/// those whose buffers the tracer has not filled yet. 16,384 activities with the default limits.
const MANY_ORPHANS_PART: usize = 4;
/// Steps after which the collector looks up from its reading: some 20 ms.
const MOST_STEPS: usize = 64;

/// After so many nanoseconds a window that closed is not waited for any more: its launches that have not met their work
/// stand as pending.
const GIVEN_UP_AFTER: u64 = 5_000_000_000;

/// All that is known of the run so far.
pub(super) struct Pipeline {
    rows: Rows,
    names: KernelNames,
    dropped: u64,
    unreadable: u64,
    marks_dropped: u64,
    buffers_read: u64,
    /// How many buffers will have been read when the last flush is.
    flushed_at: Option<u64>,
    /// How many will have been when all is read that [`Pipeline::note_unread`] found.
    noted: u64,
    /// How many stacks had been dropped when threads were last asked for new ids, and the round under way.
    dropped_stacks: u64,
    /// Windows that have files of their own.
    apart: Option<TakenOut>,
    sampled: Option<SampledStacks>,
    /// The lowest id that threads gave in the round before.
    lowest_id: ContextId,
    forgetting: Option<Forgetting>,
    finished: Option<Finished>,
}

/// What all rows came to.
#[derive(Clone)]
pub(super) struct Finished {
    pub(super) ledger: Ledger,
    /// How many bytes gpuflame held before that was known.
    pub(super) held: usize,
}

/// Where sampled threads were, by the ids that the stacks have.
struct SampledStacks {
    sampler: &'static Sampler,
    ids: HashMap<(ThreadId, Box<[Frame]>), ContextId>,
}

/// So many stacks of samples have ids; when there are more they get new ones.
const MOST_SAMPLED: usize = 1 << 15;

/// Windows that were, or are to be, taken out of the sums when their work is over.
struct TakenOut {
    sets: &'static Sets,
    /// What whoever draws them has heard of, before how much was added up as others.
    definitions: Definitions,
    forgotten: Option<u64>,
    /// What was lost until the last one was taken out.
    lost: BTreeMap<Loss, u64>,
    /// So many of the first windows have their launches in what was marked to be read.
    marked: Option<u64>,
    is_full: bool,
}

/// Who takes rows: first what writes them down as they are, then what explains them.
struct Rows {
    explain: Explain,
    streams: Streams,
    threads: HashSet<ThreadId>,
    sampler: Option<&'static Sampler>,
    count: u64,
    /// Of those, of windows that opened or closed, and of what generated code is called.
    idle_count: u64,
    /// Time of the first launch, or of the first row about one. No file is created before.
    first_work: Option<Nanos>,
    /// No more are taken.
    is_over: bool,
    edges: Arc<Edges>,
    times: Times,
    /// Whether it is to be known of each launch which window it is of, and how the last one met the window.
    by_window: bool,
    window: window::State,
    #[cfg(debug_assertions)]
    mix_up: MixUp,
}

impl Pipeline {
    pub(super) fn new(settings: &Settings, outputs: &Outputs, ceiling: usize) -> Self {
        let apart = outputs.has_windows().then(|| TakenOut::new(settings, outputs));
        Self {
            rows: Rows {
                explain: Explain::new(explain::Options {
                    by_stream: settings.root.contains(&Root::Stream),
                    merge_threads: !settings.root.contains(&Root::Thread) && !settings.lists_calls(),
                    ceiling: Some(ceiling),
                    apart: apart.is_some().then_some(settings.max_windows),
                }),
                streams: Streams::open(&outputs.of_all(), settings, ceiling),
                threads: HashSet::new(),
                sampler: None,
                count: 0,
                idle_count: 0,
                first_work: None,
                is_over: false,
                edges: Arc::default(),
                times: Times::default(),
                by_window: apart.is_some(),
                window: window::State::NONE,
                #[cfg(debug_assertions)]
                mix_up: MixUp::wanted(),
            },
            names: KernelNames::new(),
            dropped: 0,
            unreadable: 0,
            marks_dropped: 0,
            buffers_read: 0,
            flushed_at: None,
            noted: 0,
            dropped_stacks: 0,
            apart,
            sampled: None,
            lowest_id: ContextId::FIRST,
            forgetting: None,
            finished: None,
        }
    }

    /// Takes in where all this comes from, and what every later row may refer to: the names of API calls and the modules.
    pub(super) fn begin(&mut self, api: &Api, settings: &Settings, modules: &[Module]) {
        let program = std::env::current_exe().unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        self.rows.push(&Row::Process { id: std::process::id(), name: &name });
        provenance::tell(api, settings.command_line, |row| self.rows.push(row));
        for (at, text) in api.labels().iter().enumerate() {
            self.rows.push(&Row::Label { id: LabelId(at as u32), text });
        }
        self.rows.push(&Row::Label { id: LabelId::OTHER_CALL, text: "[graph node added]" });
        self.learn(modules);
    }

    /// Where windows are noted that open and close.
    pub(super) fn edges(&self) -> Arc<Edges> {
        self.rows.edges.clone()
    }

    /// Who draws windows that have files of their own, if they do.
    pub(super) fn sets(&self) -> Option<&'static Sets> {
        self.apart.as_ref().map(|apart| apart.sets)
    }

    /// Takes in windows that opened or closed.
    pub(super) fn take_edges(&mut self) {
        self.rows.take_edges();
    }

    /// The program marked an instant.
    pub(super) fn instant(&mut self, instant: &Instant<'_>) {
        self.rows.push(&Row::Instant(*instant));
    }

    /// How many instants there was no room for so far.
    pub(super) fn note_marks_dropped(&mut self, marks: u64) {
        self.marks_dropped = marks;
    }

    /// Has threads be sampled when they first launch.
    pub(super) fn sample(&mut self, sampler: &'static Sampler) {
        self.rows.sampler = Some(sampler);
        self.sampled = Some(SampledStacks { sampler, ids: HashMap::new() });
    }

    /// Reads where threads were found, if any are sampled.
    fn read_samples(&mut self) {
        let Some(SampledStacks { sampler, ids }) = &mut self.sampled else { return };
        let found = sampler.take_ready();
        if found.is_empty() {
            return;
        }
        // What was found after a window closed comes behind its edge.
        self.rows.take_edges();
        for Found { time, thread, stands, flags, frames } in found {
            if ids.len() >= MOST_SAMPLED {
                ids.clear();
            }
            let key = (thread, frames);
            let context = ids.get(&key).copied().unwrap_or_else(|| {
                let id = capture::new_context();
                self.rows.push(&Row::Context { id, thread, flags, frames: &key.1 });
                ids.insert(key, id);
                id
            });
            self.rows.push(&match stands {
                Stands::OnCpu(period) => Row::Sampled(Sampled { time, period, thread, context }),
                Stands::Waited(duration) => Row::Blocked(Blocked { time, duration, thread, context }),
            });
        }
    }

    /// What came of sampling, in lines for the ledger.
    pub(super) fn samples_lines(&self) -> Vec<String> {
        self.sampled.as_ref().map(|sampled| sampled.sampler.lines()).unwrap_or_default()
    }

    /// Reads what lies ready, or a good deal of it. False: there was nothing.
    pub(super) fn collect(&mut self, api: &Api) -> bool {
        if self.rows.is_over {
            return false;
        }
        self.read_samples();
        self.read_host_calls();
        // What memory is left is for who writes down what there was.
        let any = (0..MOST_STEPS).take_while(|_| !shortage::is_short() && self.step(api)).count() > 0;
        self.take_out();
        any
    }

    /// Notes how much lies ready, for [`Pipeline::collect_noted`].
    pub(super) fn note_unread(&mut self) {
        // In this order: what is in a buffer was launched before.
        self.noted = self.buffers_read + capture::filled() as u64;
        capture::note_unread();
    }

    /// The same as [`Pipeline::collect`], of what [`Pipeline::note_unread`] found: threads that launch on do not
    /// keep it from coming to an end. False: all of that is read.
    pub(super) fn collect_noted(&mut self, api: &Api) -> bool {
        if self.rows.is_over {
            return false;
        }
        self.read_samples();
        self.read_host_calls();
        (0..MOST_STEPS).all(|_| self.noted_step(api))
    }

    /// Copies of large graphs may fill their log without a launch or a record.
    fn read_host_calls(&mut self) {
        capture::drain_graphs(|row| self.rows.push(row));
        capture::drain_host_calls(|row| self.rows.push(row));
        self.forget_ids();
    }

    /// Reads a buffer, or up to a chunk of launches from each thread.
    fn step(&mut self, api: &Api) -> bool {
        self.renew();
        self.wants_activities() && self.read_buffer(api) || self.read_launches() || self.read_buffer(api)
    }

    fn noted_step(&mut self, api: &Api) -> bool {
        self.renew();
        self.wants_activities() && self.read_noted_buffer(api)
            || capture::drain_noted(|row| self.rows.push(row))
            || self.read_noted_buffer(api)
    }

    /// Under load this is where the collector spends its time, so chunks are made here, and the time is told.
    fn renew(&mut self) {
        capture::refill();
        capture::renew_clock();
        self.rows.look_at_clocks();
        progress::made();
    }

    fn wants_activities(&self) -> bool {
        let tally = self.rows.explain.tally();
        let many_orphans = self.rows.explain.join_limits().orphans / MANY_ORPHANS_PART;
        tally.launches.open() > self.many_open() && tally.activities.open() < many_orphans as u64
    }

    fn many_open(&self) -> u64 {
        (self.rows.explain.join_limits().waiting / MANY_OPEN_PART) as u64
    }

    fn read_noted_buffer(&mut self, api: &Api) -> bool {
        self.buffers_read < self.noted && self.read_buffer(api)
    }

    /// Whether so many launches wait for an activity that the tracer should be asked for what it has. It
    /// keeps a buffer for each thread, of some 5,000 records, until the buffer is full.
    pub(super) fn wants_flush(&self) -> bool {
        let explain = &self.rows.explain;
        explain.tally().launches.open() > 4 * self.many_open() || explain.wants_flush()
    }

    /// How many launches there are of which nothing is known that they did.
    pub(super) fn launches_open(&self) -> u64 {
        self.rows.explain.tally().launches.open()
    }

    /// Launches that still wait for an activity from CUPTI: every dropped activity may belong to one of the open launches.
    pub(super) fn launches_awaited(&self) -> u64 {
        let lost = self.lost();
        let dropped = lost.iter().find(|(loss, _)| *loss == Loss::ActivitiesDropped);
        self.launches_open().saturating_sub(dropped.map_or(0, |(_, count)| *count))
    }

    fn read_launches(&mut self) -> bool {
        let any = capture::drain(|row| self.rows.push(row));
        if let Some(forgetting) = &mut self.forgetting {
            forgetting.drained(any);
        }
        any
    }

    /// Where stacks were dropped, or had too many ids, has threads give theirs new ids, and forgets the old ones.
    fn forget_ids(&mut self) {
        let explain = &mut self.rows.explain;
        let dropped = explain.stacks_not_kept();
        match &mut self.forgetting {
            Some(forgetting) => {
                if let Some(lowest) = forgetting.visit() {
                    // A round late: see `Forgetting`.
                    explain.forget_below(std::mem::replace(&mut self.lowest_id, lowest));
                    self.forgetting = None;
                }
            }
            None if dropped > self.dropped_stacks || explain.has_many_ids() => {
                self.dropped_stacks = dropped;
                self.forgetting = Some(Forgetting::begin());
                if let Some(sampled) = &mut self.sampled {
                    sampled.ids.clear();
                }
            }
            None => {}
        }
    }

    /// Has what a buffer of activities may have added fit below the ceiling.
    fn fit(&mut self) {
        let Rows { explain, streams, threads, .. } = &mut self.rows;
        let forgotten = explain.fit(self.names.heap_bytes());
        if let Some(kept) = forgotten.kept_kernels {
            self.names.forget(|id| kept.contains(&id));
            streams.keep_kernels(|id| kept.contains(&id));
        }
        if forgotten.threads {
            *threads = HashSet::new();
        }
    }

    fn read_buffer(&mut self, api: &Api) -> bool {
        let Some(filled) = capture::next_filled() else { return false };
        // Whatever nodes there are records of in it, they were made before it was filled.
        capture::drain_graphs(|row| self.rows.push(row));
        let tally = api.read(&filled, &mut self.names, &mut |row| self.rows.push(&row));
        self.unreadable += tally.unreadable;
        capture::recycle(filled);
        self.buffers_read += 1;
        self.fit();
        self.finish_flush();
        true
    }

    /// Takes in modules that are new.
    pub(super) fn learn(&mut self, modules: &[Module]) {
        modules.iter().for_each(|module| self.rows.push(&Row::Module(module.clone())));
    }

    /// What was collected so far is to outlive the process.
    pub(super) fn write_down(&mut self) {
        self.rows.streams.flush(self.rows.explain.tally().launches.open());
    }

    /// What all rows so far have come to.
    pub(super) fn profile(&self) -> &Profile {
        self.rows.explain.profile()
    }

    /// Takes in what code is called that the process generated: whoever generates it may still have told.
    fn name_generated(&mut self) {
        for (address, name) in GeneratedCode::default().names(self.profile()) {
            self.rows.idle_count += 1;
            self.rows.push(&Row::Generated { address, name: &name });
        }
    }

    /// Recording ends for want of memory, and the recording says so.
    pub(super) fn starve(&mut self) {
        self.rows.streams.starve(self.rows.explain.tally().launches.open());
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
            self.rows.explain.flushed();
        }
    }

    /// Takes windows out whose work is over, and those that have been closed for long.
    fn take_out(&mut self) {
        let (Some(taken), Some(apart)) = (&mut self.apart, self.rows.explain.apart()) else { return };
        taken.settle(apart);
        let given_up = Nanos(capture::now().0.saturating_sub(GIVEN_UP_AFTER));
        while let Some(part) = self.rows.explain.apart().and_then(|apart| apart.due(given_up)) {
            self.hand_over(*part);
        }
    }

    /// Takes out all windows, since nothing more comes.
    fn take_out_all(&mut self) {
        while let Some(part) = self.rows.explain.apart().and_then(Apart::any) {
            self.hand_over(*part);
        }
    }

    fn hand_over(&mut self, part: Part) {
        if !self.has_work() {
            return;
        }
        let all = self.lost();
        let (Some(taken), explain) = (&mut self.apart, &mut self.rows.explain) else { return };
        // Each stands in one set of files: theirs together have them all.
        let lost = |&(loss, count): &(Loss, u64)| {
            let before = taken.lost.insert(loss, count).unwrap_or(0);
            (count > before).then_some((loss, count - before))
        };
        let lost: Vec<_> = all.iter().filter_map(lost).collect();
        let forgotten = explain.forgotten();
        let is_fresh = taken.forgotten.replace(forgotten) != Some(forgotten);
        if is_fresh {
            taken.definitions = Definitions::default();
        }
        let mut chunk = Chunk::default();
        explain.write_definitions(&mut taken.definitions, &mut chunk, usize::MAX);
        let (number, began) = (part.number, part.edges.first().map_or(Nanos(0), |(_, time)| *time));
        let open = explain.write_part(part, &lost, &mut chunk);
        chunk.mark(&Mark { began, time: capture::now(), interval_ms: 0, open });
        let bytes = [&Chunk::file_head()[..], &chunk.take()].concat();
        taken.sets.push(Set { number, is_fresh, bytes });
    }

    /// What became of windows that have files of their own, in lines for the ledger.
    pub(super) fn windows(&mut self, drawn: Option<&Drawn>) -> Vec<String> {
        let Some(apart) = self.rows.explain.apart() else { return Vec::new() };
        let Late { launches, activities, nanos } = apart.late();
        let late = format!(
            "windows {}, late: {launches} launches, {activities} activities, {nanos} ns came after their window's files \
             were written",
            apart.opened()
        );
        [Some(late), drawn.and_then(Drawn::line)].into_iter().flatten().collect()
    }

    /// Takes no more rows, and adds all up. Windows that are drawn apart are handed over, and the outputs that were begun
    /// during the run are told what is told last: what has no partner, and what was lost. `held` says how many bytes gpuflame
    /// holds.
    pub(super) fn finish(&mut self, held: impl Fn() -> usize) {
        let held_before = held();
        self.take_out_all();
        self.name_generated();
        self.rows.is_over = true;
        let lost = self.lost();
        let Rows { explain, streams, .. } = &mut self.rows;
        lost.iter().for_each(|&(loss, count)| streams.row(&Row::Loss { loss, count }));
        explain.fit_exports(held());
        let ledger = explain.finish(&lost, streams).ledger;
        self.finished = Some(Finished { ledger, held: held_before });
    }

    /// What all came to, when that is known.
    pub(super) fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// What all rows so far come to; the outputs are not told.
    pub(super) fn snapshot(&mut self) -> Snapshot<'_> {
        if let Some(Finished { ledger, .. }) = &self.finished {
            return Snapshot { profile: self.rows.explain.profile_mut(), ledger: ledger.clone() };
        }
        let lost = self.lost();
        self.rows.explain.snapshot(&lost, &mut ())
    }

    /// How many rows there were of work, calls and windows, and of what they refer to.
    pub(super) fn rows(&self) -> u64 {
        self.rows.count
    }

    /// The same without those that nothing was done for: nothing is written down for good where there are no others.
    pub(super) fn rows_of_work(&self) -> u64 {
        self.rows.count - self.rows.idle_count
    }

    /// Time of the first launch, once it was read.
    pub(super) fn first_work(&self) -> Option<Nanos> {
        self.rows.first_work
    }

    /// Whether the process launched anything, recorded or lost. If not, no file is written.
    pub(super) fn has_work(&self) -> bool {
        self.rows.first_work.is_some()
            || capture::calls() > 0
            || self.lost().iter().any(|(loss, _)| is_work(*loss))
    }

    /// Discards outputs whose files were never created.
    pub(super) fn discard_outputs(&mut self) -> Report {
        self.rows.streams.discard();
        Report::default()
    }

    /// What became of the clock, in a line for the ledger.
    pub(super) fn clock_line(&self) -> Option<String> {
        self.rows.times.line()
    }

    /// How much was added up as others: what was written of it before says other things.
    pub(super) fn forgotten(&self) -> u64 {
        self.rows.explain.forgotten()
    }

    /// Whether putting all sums together fits below the ceiling, where everything takes `held` bytes.
    pub(super) fn has_room(&self, held: usize) -> bool {
        self.rows.explain.has_room(held)
    }

    /// See [`Explain::write_definitions`].
    pub(super) fn write_definitions(
        &self,
        written: &mut Definitions,
        chunk: &mut Chunk,
        most: usize,
    ) -> bool {
        self.rows.explain.write_definitions(written, chunk, most)
    }

    /// Adds what all rows come to, as far as that is new. Returns how many launches have no activity yet.
    pub(super) fn write_sums(&mut self, written: &mut SumsWriter, chunk: &mut Chunk) -> u64 {
        match &self.finished {
            Some(Finished { ledger, .. }) => self.rows.explain.write_finished(ledger, written, chunk),
            None => {
                let lost = self.lost();
                self.rows.explain.write_sums(&lost, written, chunk);
            }
        }
        self.rows.explain.tally().launches.open()
    }

    /// What was lost so far, of each kind that there was any of.
    fn lost(&self) -> Vec<(Loss, u64)> {
        let stacks = self.rows.explain.stacks();
        let [samples, waits] = self.sampled.as_ref().map_or([0; 2], |sampled| sampled.sampler.dropped());
        let all = capture::losses().map(|(loss, count)| {
            let more = match loss {
                Loss::ActivitiesDropped => self.dropped,
                Loss::ActivitiesUnreadable => self.unreadable,
                Loss::MarksDropped => self.marks_dropped,
                Loss::SamplesDropped => samples,
                Loss::BlocksDropped => waits,
                Loss::StacksTruncated => stacks.truncated,
                Loss::StacksGuessed => stacks.guessed,
                Loss::StacksCut => stacks.cut,
                Loss::StacksModuleUnknown => stacks.module_unknown,
                _ => 0,
            };
            (loss, count + more)
        });
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// The file that rows are recorded in, if they are.
    pub(super) fn recording(&self) -> Option<Growing> {
        self.rows.streams.unwritten().cloned()
    }

    /// The profile, to fill names in, and the outputs that were begun during the run.
    pub(super) fn outputs(&mut self) -> (&mut Profile, &mut Streams) {
        (self.rows.explain.profile_mut(), &mut self.rows.streams)
    }
}

/// Whether this loss proves a launch.
fn is_work(loss: Loss) -> bool {
    use Loss::{ActivitiesDropped, ActivitiesUnreadable, LaunchesDropped, StacksNested};
    matches!(loss, LaunchesDropped | StacksNested | ActivitiesDropped | ActivitiesUnreadable)
}

impl TakenOut {
    fn new(settings: &Settings, outputs: &Outputs) -> Self {
        Self {
            sets: Box::leak(Box::new(Sets::new(settings, outputs))),
            definitions: Definitions::default(),
            forgotten: None,
            lost: BTreeMap::new(),
            marked: None,
            is_full: false,
        }
    }

    /// Notes of which windows all launches were read. Of a thread whose launch is under way it is known which window
    /// that began in; what it has written before lies in its log.
    fn settle(&mut self, apart: &mut Apart) {
        if apart.is_full() && !std::mem::replace(&mut self.is_full, true) {
            say("GPUFLAME_MAX_WINDOWS: more windows are opened, and the last set of files has all of those");
        }
        if self.marked.is_some() && capture::marked_is_read() {
            self.marked.take().into_iter().for_each(|windows| apart.note_read(windows));
        }
        if self.marked.is_none()
            && let Some(closed) = apart.unread()
        {
            self.marked = Some(closed.min(capture::windows_left().into()));
            capture::mark_unread();
        }
    }
}

impl Rows {
    fn take_edges(&mut self) {
        for edge in self.edges.take() {
            self.idle_count += 1;
            self.push(&edge);
        }
    }

    fn push(&mut self, row: &Row<'_>) {
        match row {
            Row::Launch(_) if self.by_window && self.window != window::state() => {
                self.window = window::state();
                self.take_edges();
                self.pass_on(row);
            }
            // Of no use, and counted as that.
            Row::Activity(activity) if !self.times.can_be(activity.start, activity.end) => {
                let (start, end) = (Nanos(0), Nanos(0));
                self.pass_on(&Row::Activity(Activity { start, end, ..*activity }));
            }
            // A thread's name is not the last word on it.
            Row::Thread { id, name } => self.note_thread(*id, name),
            // Now, and not when the process ends: there may be tens of thousands, and somebody waits then.
            Row::Name { id, .. } => {
                self.pass_on(row);
                symbolize::name_kernel(self.explain.profile_mut(), *id);
            }
            _ => self.pass_on(row),
        }
    }

    /// Has the windows know when somebody has set the clock.
    fn look_at_clocks(&mut self) {
        let Some(now) = Moment::now() else { return };
        for row in self.times.look(now) {
            self.take_edges();
            if window::state().is_open() {
                self.count += 1;
                self.streams.row(&row);
                self.explain.clock_was_set(&row);
            }
        }
    }

    fn pass_on(&mut self, row: &Row<'_>) {
        if self.is_over {
            return;
        }
        self.count += 1;
        if self.first_work.is_none() {
            self.note_first_work(row);
        }
        #[cfg(debug_assertions)]
        let mixed_up = self.mix_up.instead(row);
        #[cfg(debug_assertions)]
        let row = mixed_up.as_ref().unwrap_or(row);
        self.streams.row(row);
        self.explain.push(row, &mut self.streams);
    }

    /// Creates the files of growing outputs when the first launch or activity is read. Calls that only wait or allocate create no
    /// file.
    #[cold]
    fn note_first_work(&mut self, row: &Row<'_>) {
        self.first_work = match row {
            Row::Launch(launch) => Some(launch.time),
            Row::Outside(_) | Row::Activity(_) => Some(capture::now()),
            _ => return,
        };
        self.streams.create_files();
    }

    /// Asks for the name of a thread that is new, which may have got one since it came, if it is still there.
    fn note_thread(&mut self, id: ThreadId, at_first: &str) {
        if let Some(sampler) = self.sampler {
            sampler.follow(id);
        }
        if self.threads.insert(id) {
            let now = fs::read_to_string(format!("/proc/self/task/{}/comm", id.0)).unwrap_or_default();
            let name = if now.is_empty() { at_first } else { now.trim_end() };
            self.pass_on(&Row::Thread { id, name });
        }
    }
}
