//! The pipeline receives every row that the collector reads. The pipeline explains the rows, which means that it joins
//! launches with their activities and sums the times. If the settings request a recording or other growing outputs, the
//! pipeline also writes the rows to the files of these outputs. The pipeline does all of this while the application
//! runs.
//!
//! The pipeline also decides whether launches or activity records are read next. Parts of the pipeline are in three
//! other files: `row_sink` writes and explains a row, `stack_id_renewal` gives stacks new ids, and `window_outputs`
//! passes on the windows that have their own files.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::capture;
use gpuflame_config::Outputs;
use gpuflame_config::settings::Settings;
use gpuflame_cupti::{Api, KernelNames};
use gpuflame_explain::{Definitions, LateArrivals, Ledger, PerWindowSums, Snapshot, WindowSums};
use gpuflame_model::profile::{PYTHON_NOT_READ, Profile};
use gpuflame_model::record::{
    Chunk, ContextId, CpuSample, Frame, Instant, LabelId, Loss, Module, Nanos, OffCpuWait, Provenance, Row,
    SumsWriter, ThreadId,
};
use gpuflame_os::growing::GrowingFile;
use gpuflame_os::shortage;

use super::edge_queue::EdgeQueue;
use super::row_sink::RowSink;
use super::stack_id_renewal::StackIdRenewal;
use super::step_queue::StepQueue;
use super::window_outputs::WindowOutputs;
use crate::session::outputs::generated::GeneratedCode;
use crate::session::outputs::growing_outputs::GrowingOutputs;
use crate::session::outputs::output_files::WriteReport;
use crate::session::outputs::provenance;
use crate::session::outputs::window_output_queue::{RenderedWindows, WindowOutputQueue};
use crate::session::process::environment::facts;
use crate::session::process::progress;
use crate::session::sampler::{SampleKind, SampledStack, Sampler};

/// If the number of launches without an activity is greater than this number, CUPTI is flushed.
const PENDING_LAUNCHES_HIGH_WATER: u64 = 128 << 10;
/// Maximum number of reading steps per visit of the collector. A reading step reads one buffer, or one chunk of
/// launches per thread. Reading the maximum number of steps takes about 20 ms.
const MAX_STEPS_PER_VISIT: usize = 64;

/// Maximum time in ns for which gpuflame waits for the remaining GPU work of a window that has closed. Launches that
/// still have no activity when this time is over are reported as pending.
const WINDOW_GRACE_NS: u64 = 5_000_000_000;

/// State of the run: the sums so far, the growing outputs, and the progress of reading the logs.
pub(crate) struct Pipeline {
    rows: RowSink,
    names: KernelNames,
    dropped: u64,
    unreadable: u64,
    marks_dropped: u64,
    steps: Arc<StepQueue>,
    buffers_read: u64,
    /// The value of `buffers_read` at which all buffers from the last flush are read; `None` if these buffers are
    /// already read.
    flush_end: Option<u64>,
    /// The value of `buffers_read` at which all buffers that [`Pipeline::note_unread`] counted are read.
    noted_limit: u64,
    /// Windows that have their own files; `None` if the output path prefix does not ask for files per window.
    window_outputs: Option<WindowOutputs>,
    sampled: Option<SampledStackIds>,
    stack_ids: StackIdRenewal,
    final_sums: Option<FinalSums>,
}

/// Sums at the end of the run.
#[derive(Clone)]
pub(crate) struct FinalSums {
    pub(crate) ledger: Ledger,
    /// Number of bytes that gpuflame held before it computed the final sums.
    pub(crate) held: usize,
}

/// Launch context ids for the stacks that the sampler has captured.
struct SampledStackIds {
    sampler: &'static Sampler,
    ids: HashMap<(ThreadId, Box<[Frame]>), ContextId>,
    /// Whether the label that stands for unreadable Python frames is already in the rows.
    has_label: bool,
}

/// Maximum number of sampled stacks whose ids are remembered. When the table contains this number of stacks, it is
/// cleared, and the same stacks get new ids.
const MAX_SAMPLED_IDS: usize = 1 << 15;

impl Pipeline {
    pub(crate) fn new(settings: &Settings, outputs: &Outputs, ceiling: usize) -> Self {
        let window_outputs = outputs.has_windows().then(|| WindowOutputs::new(settings, outputs));
        Self {
            rows: RowSink::new(settings, outputs, ceiling),
            names: KernelNames::new(),
            dropped: 0,
            unreadable: 0,
            marks_dropped: 0,
            steps: Arc::default(),
            buffers_read: 0,
            flush_end: None,
            noted_limit: 0,
            window_outputs,
            sampled: None,
            stack_ids: StackIdRenewal::default(),
            final_sums: None,
        }
    }

    /// Records the provenance (facts about where the recording was made). After the provenance, records the definitions
    /// to which any later row may refer: names of API calls, and modules.
    pub(crate) fn begin(&mut self, api: &Api, settings: &Settings, modules: &[Module]) {
        let program = facts().program;
        self.rows.push(&Row::Process { id: std::process::id(), name: &program.to_string_lossy() });
        provenance::list_facts(api, settings.command_line, |row| self.rows.push(row));
        for (at, text) in api.labels().iter().enumerate() {
            self.rows.push(&Row::Label { id: LabelId(at as u32), text });
        }
        self.rows.push(&Row::Label { id: LabelId::OTHER_CALL, text: "[graph node added]" });
        self.record_modules(modules);
    }

    /// Returns the queue of window edges. A thread that opens or closes the window adds an edge to this queue.
    pub(crate) fn edges(&self) -> Arc<EdgeQueue> {
        self.rows.edges.clone()
    }

    /// Returns the queue of windows to draw, or `None` if windows do not have their own files.
    pub(crate) fn window_outputs(&self) -> Option<&'static WindowOutputQueue> {
        self.window_outputs.as_ref().map(|outputs| outputs.queue)
    }

    /// Processes the window edges in the queue.
    pub(crate) fn drain_window_edges(&mut self) {
        self.rows.drain_window_edges();
    }

    /// Records an instant that the program has marked.
    pub(crate) fn record_instant(&mut self, instant: &Instant<'_>) {
        self.rows.push(&Row::Instant(*instant));
    }

    /// Sets the number of marks that were dropped because too many marks were waiting for the collector. (A mark is an
    /// instant that the program has marked.)
    pub(crate) fn note_marks_dropped(&mut self, marks: u64) {
        self.marks_dropped = marks;
    }

    /// Returns the queue of steps. A thread that begins a step adds the step to this queue.
    pub(crate) fn steps(&self) -> Arc<StepQueue> {
        self.steps.clone()
    }

    /// Records the steps that threads have added to the queue. Waits at most `patience` for a thread that is adding a
    /// step to the queue.
    pub(crate) fn record_steps(&mut self, patience: Duration) {
        self.steps.drain(patience, |step| {
            self.rows.idle_count += 1;
            self.rows.push(&Row::Step(*step));
        });
    }

    /// Sets the sampler. Each thread is sampled from the time after its first launch.
    pub(crate) fn set_sampler(&mut self, sampler: &'static Sampler) {
        self.rows.sampler = Some(sampler);
        self.sampled = Some(SampledStackIds { sampler, ids: HashMap::new(), has_label: false });
    }

    /// Reads the stacks that the sampler has captured, if threads are sampled.
    fn read_samples(&mut self) {
        let Some(SampledStackIds { sampler, ids, has_label }) = &mut self.sampled else { return };
        let stacks = sampler.drain_ready();
        if stacks.is_empty() {
            return;
        }
        // The edge that closes a window must precede the samples that were taken after the window closed.
        self.rows.drain_window_edges();
        // New Python functions are recorded before the stacks, because these stacks can refer to them.
        capture::drain_codes(&mut |row| self.rows.push(row));
        for SampledStack { time, thread, kind, flags, frames, .. } in stacks {
            if ids.len() >= MAX_SAMPLED_IDS {
                ids.clear();
            }
            let key = (thread, frames);
            let context = ids.get(&key).copied().unwrap_or_else(|| {
                if key.1.contains(&Frame::label(LabelId::PYTHON_NOT_READ)) && !mem::replace(has_label, true) {
                    self.rows.push(&Row::Label { id: LabelId::PYTHON_NOT_READ, text: PYTHON_NOT_READ });
                }
                let id = capture::new_context();
                self.rows.push(&Row::Context { id, thread, flags, frames: &key.1 });
                ids.insert(key, id);
                id
            });
            self.rows.push(&match kind {
                SampleKind::OnCpu { ns: period } => Row::Sampled(CpuSample { time, period, thread, context }),
                SampleKind::OffCpu { ns: duration } => {
                    Row::Blocked(OffCpuWait { time, duration, thread, context })
                }
            });
        }
    }

    /// Returns the ledger lines about sampling.
    pub(crate) fn sampler_lines(&self) -> Vec<String> {
        self.sampled.as_ref().map(|sampled| sampled.sampler.ledger_lines()).unwrap_or_default()
    }

    /// Reads all finished rows, or a large part of these rows. Returns false if there were no finished rows.
    pub(crate) fn collect(&mut self, api: &Api) -> bool {
        if self.rows.is_over {
            return false;
        }
        self.read_samples();
        self.read_host_calls();
        // When memory is short, the pipeline stops reading. The remaining memory is needed to save the rows that were
        // recorded so far.
        let any =
            (0..MAX_STEPS_PER_VISIT).take_while(|_| !shortage::is_short() && self.read_step(api)).count() > 0;
        self.hand_over_finished_windows();
        any
    }

    /// Counts the filled buffers and the unread launches. The next [`Pipeline::collect_noted`] reads this number of
    /// buffers and launches.
    pub(crate) fn note_unread(&mut self) {
        // Buffers are counted before launches, because a launch is older than its activity record. Therefore the
        // counted launches include the launches of all activity records in the counted buffers.
        self.noted_limit = self.buffers_read + capture::count_filled() as u64;
        capture::note_unread();
    }

    /// Like [`Pipeline::collect`], but reads only the buffers and launches that the last [`Pipeline::note_unread`] has
    /// counted. Because only counted rows are read, the reading ends even if threads keep launching. Returns false once
    /// the counted buffers and launches are read.
    pub(crate) fn collect_noted(&mut self, api: &Api) -> bool {
        if self.rows.is_over {
            return false;
        }
        self.read_samples();
        self.read_host_calls();
        (0..MAX_STEPS_PER_VISIT).all(|_| self.read_noted_step(api))
    }

    /// Reads the logs of graphs and host calls. The logs are read even if there are no launches and no activity
    /// records. For example, a program that copies a large graph fills the log of graphs without making launches.
    fn read_host_calls(&mut self) {
        capture::drain_graphs(|row| self.rows.push(row));
        capture::drain_host_calls(|row| self.rows.push(row));
        if self.stack_ids.renew(&mut self.rows.explain)
            && let Some(sampled) = &mut self.sampled
        {
            sampled.ids.clear();
        }
    }

    /// Reads one buffer, or at most one chunk of launches per thread. Returns false if there was no buffer and no
    /// launch to read.
    fn read_step(&mut self, api: &Api) -> bool {
        self.refill_and_renew_clock();
        self.read_launches_of_buffer() || self.read_buffer(api) || self.read_launches()
    }

    fn read_noted_step(&mut self, api: &Api) -> bool {
        self.refill_and_renew_clock();
        self.read_launches_of_buffer()
            || self.read_noted_buffer(api)
            || capture::drain_noted(|row| self.rows.push(row))
    }

    /// Provides empty log chunks, calibrates the clock, and notes progress. This function is called before every
    /// reading step, because under load the collector spends most of its time in reading steps. The function also
    /// records the steps (such as training steps) that the program has marked. Each of these steps must be recorded
    /// before the GPU work that is launched in the step.
    fn refill_and_renew_clock(&mut self) {
        self.record_steps(Duration::ZERO);
        capture::refill_chunks();
        capture::recalibrate_clock();
        self.rows.check_clocks();
        progress::note_step();
    }

    /// Reads the launches that are older than the oldest filled buffer, because that buffer contains the activities of
    /// these launches. Because launches are read in this order, they are joined with their activities soon after they
    /// are read, even if there is a large backlog. Therefore the join has to store only few unmatched launches and
    /// activities.
    fn read_launches_of_buffer(&mut self) -> bool {
        let Some(completed) = capture::oldest_completed() else { return false };
        let any = capture::drain_before(completed, |row| self.rows.push(row));
        if !any {
            self.stack_ids.note_read_before(completed);
        }
        any
    }

    fn read_noted_buffer(&mut self, api: &Api) -> bool {
        self.buffers_read < self.noted_limit && self.read_buffer(api)
    }

    /// Whether CUPTI should be flushed because many launches wait for their activity. Without flushes, CUPTI keeps one
    /// buffer per thread until it is full, and a buffer has room for about 5,000 records.
    pub(crate) fn wants_flush(&self) -> bool {
        let explain = &self.rows.explain;
        explain.tally().launches.open() > PENDING_LAUNCHES_HIGH_WATER || explain.wants_flush()
    }

    /// Number of launches that have no activity.
    pub(super) fn launches_open(&self) -> u64 {
        self.rows.explain.tally().launches.open()
    }

    /// Number of launches for which CUPTI will still deliver an activity. The number of dropped activities is
    /// subtracted, because each of them may belong to a waiting launch.
    pub(crate) fn launches_awaited(&self) -> u64 {
        let lost = self.lost();
        let dropped = lost.iter().find(|(loss, _)| *loss == Loss::ActivitiesDropped);
        let dropped = dropped.map_or(0, |(_, count)| *count);
        // A launch does not count as waiting if the join has stopped looking for its activity. Some of the dropped
        // activities belong to such launches.
        let given_up = self.rows.explain.tally().launches.pending;
        self.launches_open().saturating_sub(dropped.saturating_sub(given_up))
    }

    fn read_launches(&mut self) -> bool {
        let now = capture::now();
        let any = capture::drain(|row| self.rows.push(row));
        if !any {
            self.stack_ids.note_read_before(now);
        }
        any
    }

    /// Reduces the memory for the sums to the memory ceiling. After a buffer was read, the memory for the sums may
    /// exceed the ceiling.
    fn reduce_to_ceiling(&mut self) {
        let RowSink { explain, growing, threads, .. } = &mut self.rows;
        let forgotten = explain.fit(self.names.heap_bytes());
        if let Some(kept) = forgotten.kept_kernels {
            self.names.forget(|id| kept.contains(&id));
            growing.keep_kernels(|id| kept.contains(&id));
        }
        if forgotten.threads {
            *threads = HashSet::new();
        }
    }

    fn read_buffer(&mut self, api: &Api) -> bool {
        let Some(filled) = capture::next_filled() else { return false };
        // Graph nodes are read first, because the activity records in the buffer refer to graph nodes that were created
        // earlier.
        capture::drain_graphs(|row| self.rows.push(row));
        let tally = api.read(&filled, &mut self.names, &mut |row| self.rows.push(&row));
        self.unreadable += tally.unreadable;
        capture::recycle(filled);
        self.buffers_read += 1;
        self.reduce_to_ceiling();
        self.finish_flush();
        true
    }

    /// Records modules (loaded executables and libraries) that are new.
    pub(crate) fn record_modules(&mut self, modules: &[Module]) {
        modules.iter().for_each(|module| self.rows.push(&Row::Module(module.clone())));
    }

    /// Writes the rows recorded so far to the recording, so that they survive if the process dies.
    pub(crate) fn flush_recording(&mut self) {
        self.rows.growing.flush(self.rows.explain.tally().launches.open());
    }

    pub(super) fn profile(&self) -> &Profile {
        self.rows.explain.profile()
    }

    /// Records the names of generated (JIT) code. This function is called at the end of the run, because a code
    /// generator may publish names late.
    fn name_generated(&mut self) {
        for (address, name) in GeneratedCode::default().names(self.profile()) {
            self.rows.idle_count += 1;
            self.rows.push(&Row::Generated { address, name: &name });
        }
    }

    /// Ends the recording because memory has run out, and notes this in the recording.
    pub(crate) fn note_out_of_memory(&mut self) {
        self.rows.growing.note_out_of_memory(self.rows.explain.tally().launches.open());
    }

    /// Adds `records`, the number of activity records that CUPTI has reported as dropped, to the total.
    pub(crate) fn note_dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    /// Notes that CUPTI was flushed, and that buffers from this flush may still be unread.
    pub(crate) fn note_flushed(&mut self) {
        self.flush_end.get_or_insert(self.buffers_read + capture::count_filled() as u64);
        self.finish_flush();
    }

    /// If all buffers from the last flush are read, forgets destroyed graphs and finished launches.
    fn finish_flush(&mut self) {
        if self.flush_end.is_some_and(|last| self.buffers_read >= last) {
            self.flush_end = None;
            capture::drain_graphs(|row| self.rows.push(row));
            self.rows.explain.flushed();
        }
    }

    /// Passes on the sums of windows whose GPU work has finished, and of windows that closed more than
    /// `WINDOW_GRACE_NS` ago.
    fn hand_over_finished_windows(&mut self) {
        let (Some(outputs), Some(apart)) = (&mut self.window_outputs, self.rows.explain.per_window()) else {
            return;
        };
        outputs.mark_windows_read(apart);
        let given_up = Nanos(capture::now().0.saturating_sub(WINDOW_GRACE_NS));
        while let Some(part) = self.rows.explain.per_window().and_then(|apart| apart.take_finished(given_up))
        {
            self.hand_over_window(*part);
        }
    }

    /// Passes on the sums of all remaining windows, because no more rows will follow.
    fn hand_over_all_windows(&mut self) {
        while let Some(part) = self.rows.explain.per_window().and_then(PerWindowSums::take_first) {
            self.hand_over_window(*part);
        }
    }

    fn hand_over_window(&mut self, part: WindowSums) {
        if self.has_work() {
            let lost = self.lost();
            if let Some(outputs) = &mut self.window_outputs {
                outputs.hand_over(part, &lost, &mut self.rows.explain);
            }
        }
    }

    /// Returns the ledger lines about windows that have their own files.
    pub(crate) fn windows_lines(&mut self, rendered: Option<&RenderedWindows>) -> Vec<String> {
        let Some(apart) = self.rows.explain.per_window() else { return Vec::new() };
        let line = late_line(apart);
        [Some(line), rendered.and_then(RenderedWindows::ledger_line)].into_iter().flatten().collect()
    }

    /// Returns the ledger line about rows that arrived too late for the files of their window, or `None` if there are
    /// no such rows.
    pub(crate) fn late_line(&mut self) -> Option<String> {
        let apart = self.rows.explain.per_window()?;
        let LateArrivals { launches, activities, .. } = apart.late();
        (launches + activities > 0).then(|| late_line(apart))
    }

    /// Stops accepting rows, computes the final sums, and passes on the remaining windows. Finally, writes the last
    /// rows to the growing outputs: losses, launches without an activity, and activities without a launch. `held` must
    /// return the number of bytes that gpuflame holds.
    pub(crate) fn finish(&mut self, held: impl Fn() -> usize) {
        let held_before = held();
        self.hand_over_all_windows();
        self.name_generated();
        if let Some(text) = self.sampled.as_ref().and_then(|sampled| sampled.sampler.python_line()) {
            self.rows.push(&Row::Provenance { what: Provenance::LEDGER, text: &text });
        }
        self.rows.is_over = true;
        let lost = self.lost();
        let RowSink { explain, growing, .. } = &mut self.rows;
        lost.iter().for_each(|&(loss, count)| growing.write_row(&Row::Loss { loss, count }));
        explain.fit_exports(held());
        let ledger = explain.finish(&lost, growing).ledger;
        self.final_sums = Some(FinalSums { ledger, held: held_before });
    }

    /// Returns the final sums, or `None` if they are not computed yet.
    pub(crate) fn final_sums(&self) -> Option<&FinalSums> {
        self.final_sums.as_ref()
    }

    /// Returns the results so far, without writing to the outputs.
    pub(crate) fn snapshot(&mut self) -> Snapshot<'_> {
        if let Some(FinalSums { ledger, .. }) = &self.final_sums {
            return Snapshot { profile: self.rows.explain.profile_mut(), ledger: ledger.clone() };
        }
        let lost = self.lost();
        self.rows.explain.snapshot(&lost, &mut ())
    }

    /// Number of rows of every kind so far, counting definitions too.
    pub(super) fn rows(&self) -> u64 {
        self.rows.count
    }

    /// Number of rows, not counting window edges, steps and names of generated code. If this number is zero, the
    /// recording contains nothing to save.
    pub(crate) fn rows_of_work(&self) -> u64 {
        self.rows.count - self.rows.idle_count
    }

    /// Time of the first launch; `None` if no launch was read yet.
    pub(crate) fn first_work(&self) -> Option<Nanos> {
        self.rows.first_work
    }

    /// Whether the process has launched GPU work, even if the launches were lost. If the process has launched nothing,
    /// gpuflame writes no file.
    pub(crate) fn has_work(&self) -> bool {
        self.rows.first_work.is_some()
            || capture::calls() > 0
            || self.lost().iter().any(|(loss, _)| is_work(*loss))
    }

    /// Discards the growing outputs without writing them. Called only if the files of the growing outputs were never
    /// created.
    pub(crate) fn discard_outputs(&mut self) -> WriteReport {
        self.rows.growing.discard();
        WriteReport::default()
    }

    /// Returns the ledger line about changes of the system clock.
    pub(crate) fn clock_line(&self) -> Option<String> {
        self.rows.clock_guard.ledger_line()
    }

    /// Number of entries that were merged into "others" so far. If this number has changed, all sums and definitions
    /// that were written before are outdated.
    pub(super) fn forgotten(&self) -> u64 {
        self.rows.explain.dropped_count()
    }

    /// Whether the memory ceiling leaves enough room to compute all sums. `held` is the number of bytes that gpuflame
    /// currently holds.
    pub(super) fn has_room(&self, held: usize) -> bool {
        self.rows.explain.has_room(held)
    }

    /// Calls [`Explain::write_definitions`] on the sums of this run.
    pub(super) fn write_definitions(
        &self,
        written: &mut Definitions,
        chunk: &mut Chunk,
        most: usize,
    ) -> bool {
        self.rows.explain.write_definitions(written, chunk, most)
    }

    /// Appends the sums that have changed since the last call to `chunk`. Returns the number of launches without an
    /// activity.
    pub(super) fn write_sums(&mut self, written: &mut SumsWriter, chunk: &mut Chunk) -> u64 {
        match &self.final_sums {
            Some(FinalSums { ledger, .. }) => self.rows.explain.write_finished(ledger, written, chunk),
            None => {
                let lost = self.lost();
                self.rows.explain.write_sums(&lost, written, chunk);
            }
        }
        self.rows.explain.tally().launches.open()
    }

    /// Returns each kind of loss that has occurred, and how often it has occurred.
    fn lost(&self) -> Vec<(Loss, u64)> {
        let stacks = self.rows.explain.stacks();
        let [samples, waits] = self.sampled.as_ref().map_or([0; 2], |sampled| sampled.sampler.dropped());
        let all = capture::losses().map(|(loss, count)| {
            let more = match loss {
                Loss::ActivitiesDropped => self.dropped,
                Loss::ActivitiesUnreadable => self.unreadable,
                Loss::MarksDropped => self.marks_dropped,
                Loss::StepsDropped => self.steps.dropped(),
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

    /// Returns the file of the recording, or `None` if rows are not recorded.
    pub(crate) fn recording(&self) -> Option<GrowingFile> {
        self.rows.growing.open_recording().cloned()
    }

    /// Returns the growing outputs, and the profile, to which names can be added.
    pub(crate) fn outputs(&mut self) -> (&mut Profile, &mut GrowingOutputs) {
        (self.rows.explain.profile_mut(), &mut self.rows.growing)
    }
}

fn late_line(apart: &PerWindowSums) -> String {
    let LateArrivals { launches, activities, nanos } = apart.late();
    format!(
        "windows {}, late: {launches} launches, {activities} activities, {nanos} ns arrived after their \
         window's files were written",
        apart.opened()
    )
}

/// Whether a loss of this kind proves that the process has launched GPU work.
fn is_work(loss: Loss) -> bool {
    use Loss::{ActivitiesDropped, ActivitiesUnreadable, LaunchesDropped, StacksNested};
    matches!(loss, LaunchesDropped | StacksNested | ActivitiesDropped | ActivitiesUnreadable)
}
