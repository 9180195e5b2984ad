//! The pipeline receives every row that the collector reads: it explains rows (joins and sums them) and, if the
//! settings request it, writes the rows to the recording and the other growing outputs. All of this happens while the
//! application runs.
//!
//! The pipeline also chooses whether launches or activities are read next, gives stacks new ids when memory runs short,
//! and hands over the sums of windows that have their own files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;

use crate::capture::{self, ForgetRound};
use crate::control::window;
use gpuflame_config::Outputs;
use gpuflame_config::settings::Settings;
use gpuflame_cupti::{Api, KernelNames};
use gpuflame_explain::symbolize;
use gpuflame_explain::{self as explain, Apart, Definitions, Explain, Late, Ledger, Part, Snapshot};
use gpuflame_model::options::Root;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    Activity, Blocked, Chunk, ContextId, Frame, Instant, LabelId, Loss, Mark, Module, Nanos, Row, Sampled,
    SumsWriter, ThreadId,
};
use gpuflame_os::clocks::Moment;
use gpuflame_os::growing::Growing;
use gpuflame_os::shortage;

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

/// Number of launches without an activity at which CUPTI is asked to flush.
const MANY_OPEN: u64 = 32 << 10;
/// Number of activities without a launch up to which CUPTI is asked to flush.
const MANY_ORPHANS: u64 = 16 << 10;
/// Maximum number of steps before the collector turns to its other duties. These steps take about 20 ms.
const MOST_STEPS: usize = 64;

/// Maximum time, in ns, that a closed window waits for its work. Launches that have no activity after this time are
/// reported as pending.
const GIVEN_UP_AFTER: u64 = 5_000_000_000;

/// Everything known about the run so far.
pub(super) struct Pipeline {
    rows: Rows,
    names: KernelNames,
    dropped: u64,
    unreadable: u64,
    marks_dropped: u64,
    buffers_read: u64,
    /// Value of `buffers_read` once all buffers of the pending flush are read.
    flushed_at: Option<u64>,
    /// Value of `buffers_read` once all buffers counted by [`Pipeline::note_unread`] are read.
    noted: u64,
    /// Number of dropped stacks when threads were last asked for new stack ids. `forgetting` is the round in progress.
    dropped_stacks: u64,
    /// Windows that have their own files.
    apart: Option<TakenOut>,
    sampled: Option<SampledStacks>,
    /// Lowest stack id that threads could still use after the previous round.
    lowest_id: ContextId,
    forgetting: Option<ForgetRound>,
    finished: Option<Finished>,
}

/// Final sums of the run.
#[derive(Clone)]
pub(super) struct Finished {
    pub(super) ledger: Ledger,
    /// Bytes that gpuflame held before it computed the final sums.
    pub(super) held: usize,
}

/// Context ids of the stacks found by the sampler.
struct SampledStacks {
    sampler: &'static Sampler,
    ids: HashMap<(ThreadId, Box<[Frame]>), ContextId>,
}

/// Maximum number of sampled stacks whose ids are remembered. When this number is exceeded, the table is cleared, and
/// stacks get new ids.
const MOST_SAMPLED: usize = 1 << 15;

/// Per-window sums, removed from the pipeline once all of a window's GPU work has finished.
struct TakenOut {
    sets: &'static Sets,
    /// Definitions that the drawing thread has received, and the value of [`Pipeline::forgotten`] when they were sent.
    /// When [`Pipeline::forgotten`] changes, all definitions are sent again.
    definitions: Definitions,
    forgotten: Option<u64>,
    /// Losses reported with the windows handed over so far.
    lost: BTreeMap<Loss, u64>,
    /// Number of leading windows whose launches all precede the current log mark.
    marked: Option<u64>,
    is_full: bool,
}

/// Fans each row out: to the output streams first, then to `Explain`.
struct Rows {
    explain: Explain,
    streams: Streams,
    threads: HashSet<ThreadId>,
    sampler: Option<&'static Sampler>,
    count: u64,
    /// Number of rows that are window edges or names of generated code.
    idle_count: u64,
    /// Time of the first launch, or the time at which the first activity, or the first launch outside windows, was
    /// read. No file is created before this time.
    first_work: Option<Nanos>,
    /// The recording has ended, and further rows are ignored.
    is_over: bool,
    edges: Arc<Edges>,
    times: Times,
    /// Whether each launch must be assigned to its window, and the window state at the last launch.
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

    /// Records the provenance and the definitions that every later row may refer to: names of API calls, and modules.
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

    /// Returns the queue in which opening and closing windows are noted.
    pub(super) fn edges(&self) -> Arc<Edges> {
        self.rows.edges.clone()
    }

    /// Returns the drawing queue, if windows have their own files.
    pub(super) fn sets(&self) -> Option<&'static Sets> {
        self.apart.as_ref().map(|apart| apart.sets)
    }

    /// Processes the window edges noted since the last call.
    pub(super) fn take_edges(&mut self) {
        self.rows.take_edges();
    }

    /// Records an instant that the program marked.
    pub(super) fn instant(&mut self, instant: &Instant<'_>) {
        self.rows.push(&Row::Instant(*instant));
    }

    /// Sets the number of instants dropped so far for lack of room.
    pub(super) fn note_marks_dropped(&mut self, marks: u64) {
        self.marks_dropped = marks;
    }

    /// Lets `sampler` sample each thread from its first launch on.
    pub(super) fn sample(&mut self, sampler: &'static Sampler) {
        self.rows.sampler = Some(sampler);
        self.sampled = Some(SampledStacks { sampler, ids: HashMap::new() });
    }

    /// Reads the sampled stacks, if threads are sampled.
    fn read_samples(&mut self) {
        let Some(SampledStacks { sampler, ids }) = &mut self.sampled else { return };
        let found = sampler.take_ready();
        if found.is_empty() {
            return;
        }
        // A sample taken after a window closed must follow the window's edge.
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

    /// Returns the ledger lines about sampling.
    pub(super) fn samples_lines(&self) -> Vec<String> {
        self.sampled.as_ref().map(|sampled| sampled.sampler.lines()).unwrap_or_default()
    }

    /// Reads all rows that are ready, or a large part of them. Returns false if no rows were ready.
    pub(super) fn collect(&mut self, api: &Api) -> bool {
        if self.rows.is_over {
            return false;
        }
        self.read_samples();
        self.read_host_calls();
        // The remaining memory is reserved for saving the rows recorded so far.
        let any = (0..MOST_STEPS).take_while(|_| !shortage::is_short() && self.step(api)).count() > 0;
        self.take_out();
        any
    }

    /// Counts the buffers and launches that are ready now, as the limits of [`Pipeline::collect_noted`].
    pub(super) fn note_unread(&mut self) {
        // Buffers are counted before launches, because the launch of every record in a buffer is older than the record.
        self.noted = self.buffers_read + capture::count_filled() as u64;
        capture::note_unread();
    }

    /// Reads like [`Pipeline::collect`], but only up to the counts of [`Pipeline::note_unread`], so that the reading
    /// ends even if threads keep launching. Returns false once the counts are reached.
    pub(super) fn collect_noted(&mut self, api: &Api) -> bool {
        if self.rows.is_over {
            return false;
        }
        self.read_samples();
        self.read_host_calls();
        (0..MOST_STEPS).all(|_| self.noted_step(api))
    }

    /// Drains the logs of graphs and host calls. Copies of large graphs can fill their log without any launch or record.
    fn read_host_calls(&mut self) {
        capture::drain_graphs(|row| self.rows.push(row));
        capture::drain_host_calls(|row| self.rows.push(row));
        self.forget_ids();
    }

    /// Reads one buffer, or up to one chunk of launches per thread.
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

    /// Refills chunks, renews the clock and reports progress. Under load the collector spends its time here.
    fn renew(&mut self) {
        capture::refill_chunks();
        capture::recalibrate_clock();
        self.rows.look_at_clocks();
        progress::made();
    }

    fn wants_activities(&self) -> bool {
        let tally = self.rows.explain.tally();
        tally.launches.open() > MANY_OPEN && tally.activities.open() < MANY_ORPHANS
    }

    fn read_noted_buffer(&mut self, api: &Api) -> bool {
        self.buffers_read < self.noted && self.read_buffer(api)
    }

    /// Whether CUPTI should be flushed because many launches wait for an activity. CUPTI keeps a buffer per
    /// thread, of about 5,000 records, until the buffer is full.
    pub(super) fn wants_flush(&self) -> bool {
        let explain = &self.rows.explain;
        explain.tally().launches.open() > 4 * MANY_OPEN || explain.wants_flush()
    }

    /// Number of launches without an activity.
    pub(super) fn launches_open(&self) -> u64 {
        self.rows.explain.tally().launches.open()
    }

    /// Number of launches that still wait for an activity from CUPTI. Dropped activities are subtracted, because every
    /// dropped activity may belong to an open launch.
    pub(super) fn launches_awaited(&self) -> u64 {
        let lost = self.lost();
        let dropped = lost.iter().find(|(loss, _)| *loss == Loss::ActivitiesDropped);
        let dropped = dropped.map_or(0, |(_, count)| *count);
        // Launches that the join has given up are no longer open. Such launches account for earlier dropped activities.
        let given_up = self.rows.explain.tally().launches.pending;
        self.launches_open().saturating_sub(dropped.saturating_sub(given_up))
    }

    fn read_launches(&mut self) -> bool {
        let any = capture::drain(|row| self.rows.push(row));
        if let Some(forgetting) = &mut self.forgetting {
            forgetting.note_drain(any);
        }
        any
    }

    /// Makes threads assign new ids to their stacks if stacks were dropped or had too many ids. Forgets the old ids.
    fn forget_ids(&mut self) {
        let explain = &mut self.rows.explain;
        let dropped = explain.stacks_not_kept();
        match &mut self.forgetting {
            Some(forgetting) => {
                if let Some(lowest) = forgetting.poll() {
                    // Ids are forgotten one round later; `Forgetting` gives the reason.
                    explain.forget_below(std::mem::replace(&mut self.lowest_id, lowest));
                    self.forgetting = None;
                }
            }
            None if dropped > self.dropped_stacks || explain.has_many_ids() => {
                self.dropped_stacks = dropped;
                self.forgetting = Some(ForgetRound::begin());
                if let Some(sampled) = &mut self.sampled {
                    sampled.ids.clear();
                }
            }
            None => {}
        }
    }

    /// Reduces the sums to the memory ceiling, after a buffer of activities may have exceeded it.
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
        // The graph nodes that the buffer's records refer to were created before the buffer was filled, so they are
        // read first.
        capture::drain_graphs(|row| self.rows.push(row));
        let tally = api.read(&filled, &mut self.names, &mut |row| self.rows.push(&row));
        self.unreadable += tally.unreadable;
        capture::recycle(filled);
        self.buffers_read += 1;
        self.fit();
        self.finish_flush();
        true
    }

    /// Records new modules.
    pub(super) fn learn(&mut self, modules: &[Module]) {
        modules.iter().for_each(|module| self.rows.push(&Row::Module(module.clone())));
    }

    /// Flushes the recording, so that the rows collected so far survive the process.
    pub(super) fn write_down(&mut self) {
        self.rows.streams.flush(self.rows.explain.tally().launches.open());
    }

    /// Returns the profile so far.
    pub(super) fn profile(&self) -> &Profile {
        self.rows.explain.profile()
    }

    /// Records the names of generated code. The code generator may have published these names only recently.
    fn name_generated(&mut self) {
        for (address, name) in GeneratedCode::default().names(self.profile()) {
            self.rows.idle_count += 1;
            self.rows.push(&Row::Generated { address, name: &name });
        }
    }

    /// Ends the recording because memory ran out, and notes that in the recording.
    pub(super) fn starve(&mut self) {
        self.rows.streams.starve(self.rows.explain.tally().launches.open());
    }

    /// Counts records that CUPTI reports as dropped.
    pub(super) fn note_dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    /// Notes that CUPTI was flushed. The delivered buffers may still be unread.
    pub(super) fn note_flushed(&mut self) {
        self.flushed_at.get_or_insert(self.buffers_read + capture::count_filled() as u64);
        self.finish_flush();
    }

    /// Forgets destroyed graphs and finished launches once every buffer delivered by a flush is read.
    fn finish_flush(&mut self) {
        if self.flushed_at.is_some_and(|last| self.buffers_read >= last) {
            self.flushed_at = None;
            capture::drain_graphs(|row| self.rows.push(row));
            self.rows.explain.flushed();
        }
    }

    /// Hands over windows whose GPU work has finished, and windows that have been closed for longer than
    /// `GIVEN_UP_AFTER`.
    fn take_out(&mut self) {
        let (Some(taken), Some(apart)) = (&mut self.apart, self.rows.explain.apart()) else { return };
        taken.settle(apart);
        let given_up = Nanos(capture::now().0.saturating_sub(GIVEN_UP_AFTER));
        while let Some(part) = self.rows.explain.apart().and_then(|apart| apart.due(given_up)) {
            self.hand_over(*part);
        }
    }

    /// Hands over all windows, because no more rows follow.
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
        // A loss is counted in one set of files only, so that the losses of all sets add up to the total.
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

    /// Returns the ledger lines about windows that have their own files.
    pub(super) fn windows(&mut self, drawn: Option<&Drawn>) -> Vec<String> {
        let Some(apart) = self.rows.explain.apart() else { return Vec::new() };
        let Late { launches, activities, nanos } = apart.late();
        let late = format!(
            "windows {}, late: {launches} launches, {activities} activities, {nanos} ns arrived after their \
             window's files were written",
            apart.opened()
        );
        [Some(late), drawn.and_then(Drawn::line)].into_iter().flatten().collect()
    }

    /// Stops accepting rows and computes the final sums. Hands over the remaining windows. The growing
    /// outputs receive their last rows: launches and activities without a partner, and losses. `held` returns
    /// the number of bytes that gpuflame holds.
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

    /// Returns the final sums; `None` before they are computed.
    pub(super) fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// Returns the result so far, without writing to the outputs.
    pub(super) fn snapshot(&mut self) -> Snapshot<'_> {
        if let Some(Finished { ledger, .. }) = &self.finished {
            return Snapshot { profile: self.rows.explain.profile_mut(), ledger: ledger.clone() };
        }
        let lost = self.lost();
        self.rows.explain.snapshot(&lost, &mut ())
    }

    /// Number of rows so far: work, calls, windows, and the definitions that these rows refer to.
    pub(super) fn rows(&self) -> u64 {
        self.rows.count
    }

    /// Number of rows other than window edges and names of generated code. If this number is zero, nothing needs to be
    /// saved.
    pub(super) fn rows_of_work(&self) -> u64 {
        self.rows.count - self.rows.idle_count
    }

    /// Time of the first launch; `None` before the first launch is read.
    pub(super) fn first_work(&self) -> Option<Nanos> {
        self.rows.first_work
    }

    /// Whether the process launched anything, recorded or lost. If the process launched nothing, no file is written.
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

    /// Returns the ledger line about changes of the system clock.
    pub(super) fn clock_line(&self) -> Option<String> {
        self.rows.times.line()
    }

    /// Number of entries merged into "others" so far. When this number changes, sums and definitions that were written
    /// before are outdated.
    pub(super) fn forgotten(&self) -> u64 {
        self.rows.explain.forgotten()
    }

    /// Whether computing all sums fits below the memory ceiling if gpuflame holds `held` bytes now.
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

    /// Appends the sums that changed since the last call. Returns the number of launches without an activity.
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

    /// Returns the number of losses so far, for each kind that occurred.
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

    /// File of the recording; `None` if rows are not recorded.
    pub(super) fn recording(&self) -> Option<Growing> {
        self.rows.streams.unwritten().cloned()
    }

    /// Returns the profile, whose names can be filled in, and the growing outputs.
    pub(super) fn outputs(&mut self) -> (&mut Profile, &mut Streams) {
        (self.rows.explain.profile_mut(), &mut self.rows.streams)
    }
}

/// Whether this loss proves that something was launched.
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

    /// Notes the windows whose launches are all read. A launch in flight belongs to the window in which the launch
    /// began, which is known. Everything that its thread wrote before the launch is in the log.
    fn settle(&mut self, apart: &mut Apart) {
        if apart.is_full() && !std::mem::replace(&mut self.is_full, true) {
            say("GPUFLAME_MAX_WINDOWS is reached; later windows are merged into the last set of files");
        }
        if self.marked.is_some() && capture::marked_is_read() {
            self.marked.take().into_iter().for_each(|windows| apart.note_read(windows));
        }
        if self.marked.is_none()
            && let Some(closed) = apart.unread()
        {
            self.marked = Some(closed.min(capture::windows_without_pending_launches().into()));
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
            // The times are impossible, so the activity is kept without its times and counted as untimed.
            Row::Activity(activity) if !self.times.can_be(activity.start, activity.end) => {
                let (start, end) = (Nanos(0), Nanos(0));
                self.pass_on(&Row::Activity(Activity { start, end, ..*activity }));
            }
            // The thread may have been renamed since its row was written.
            Row::Thread { id, name } => self.note_thread(*id, name),
            // Kernels are named now rather than at exit, because a thread waits at exit and there may be tens of
            // thousands of names.
            Row::Name { id, .. } => {
                self.pass_on(row);
                symbolize::name_kernel(self.explain.profile_mut(), *id);
            }
            _ => self.pass_on(row),
        }
    }

    /// Ends or resumes the open window if the system clock was set.
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

    /// Creates the files of growing outputs when the first launch or activity is read. Calls that only wait or allocate
    /// create no file.
    #[cold]
    fn note_first_work(&mut self, row: &Row<'_>) {
        self.first_work = match row {
            Row::Launch(launch) => Some(launch.time),
            Row::Outside(_) | Row::Activity(_) | Row::EventCall(_) => Some(capture::now()),
            _ => return,
        };
        self.streams.create_files();
    }

    /// Records a new thread. If it still runs, its current name is used, because threads are often renamed
    /// after they start.
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
