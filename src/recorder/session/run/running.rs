//! The session, which is the run of one process under gpuflame. The session opens and closes windows, gathers rows, and
//! writes the outputs on exit.
//!
//! The session owns the collector, the pipeline, the checkpoint and other components. The threads of these components
//! call the session through the following traits, which the session implements: `CollectorSteps`, `CheckpointSource`,
//! `WindowControl`, `OnMemoryExhausted` and `ShutdownSteps`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::capture;
use crate::control::{lifecycle, output_override, steps, window};
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings};
use gpuflame_cupti as cupti;
use gpuflame_explain::symbolize::Symbolizer;
use gpuflame_explain::{Ledger, describe_process};
use gpuflame_export::summary_lines;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{Module, Provenance, Row, Step, ThreadId, WindowEdge};
use gpuflame_os::{shortage, stderr, threads};
use gpuflame_unwind::ModuleMap;

use super::ledger_text;
use super::stats::{Stats, StatsExchange};
use crate::session::clients::callback_switch::CallbackSwitch;
use crate::session::clients::other_clients::OtherClients;
use crate::session::collect::checkpoint::{Checkpoint, CheckpointSource};
use crate::session::collect::collector::{Collector, CollectorRequest, CollectorSteps, MAX_IDLE_PAUSE};
use crate::session::collect::edge_queue::EdgeQueue;
use crate::session::collect::marks::Marks;
use crate::session::collect::pipeline::{FinalSums, Pipeline};
use crate::session::collect::step_queue::StepQueue;
use crate::session::collect::window_scheduler::{WindowControl, WindowScheduler};
use crate::session::outputs::draw;
use crate::session::outputs::output_files::{self, WriteReport, WrittenFile};
use crate::session::outputs::window_output_queue::{RenderedWindows, WindowOutputQueue};
use crate::session::process::launcher_report;
use crate::session::process::messages::{self, print_from_app, print_from_own};
use crate::session::process::out_of_memory::{self, OnMemoryExhausted};
use crate::session::process::progress::{self, POLL_INTERVAL, ProgressWatch, StallLimit};
use crate::session::process::shutdown::{self, ShutdownSteps};
use crate::session::sampler::{Sampler, SamplerOptions};

/// Maximum time for which a call of `flush` waits for the collector while the collector makes no progress.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which a flush waits for the file of the recording while the file system makes no progress. This
/// timeout must be shorter than [`FLUSH_TIMEOUT`].
const RECORDING_WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// While an application thread destroys a CUDA context, it waits for the collector. This is the maximum time of this
/// wait while the collector makes no progress.
const CONTEXT_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time for which the checkpoint's thread waits for the collector while the collector makes no progress. If
/// this time has passed without progress, the checkpoint's thread reads the rows itself.
const CHECKPOINT_READ_TIMEOUT: Duration = Duration::from_millis(200);

const NOTHING_LAUNCHED: &str = "nothing was launched, and no file is written";

/// Maximum time by which printing the ledger may delay the exit of the process.
const LEDGER_PRINT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time by which printing a text in the format of the tutorial's tracer may delay the exit while standard
/// output is full.
const STDOUT_TIMEOUT: Duration = Duration::from_secs(1);

/// State of the session, of which each process has one.
pub(crate) struct Session {
    settings: Settings,
    outputs: Outputs,
    api: &'static cupti::Api,
    pipeline: Mutex<Pipeline>,
    modules: Mutex<ModuleMap>,
    edges: Arc<EdgeQueue>,
    /// Turns CUPTI's launch callbacks on and off.
    callbacks: CallbackSwitch,
    /// Tracks other clients of CUPTI.
    clients: OtherClients,
    /// Instants that the program has marked and that the pipeline has not recorded yet.
    marks: Marks,
    /// Steps that the program has begun and that the pipeline has not recorded yet.
    steps: Arc<StepQueue>,
    collector: Collector,
    stats: StatsExchange,
    checkpoint: Option<Checkpoint>,
    /// Queue of the windows whose own files must be drawn; `None` if windows have no files of their own.
    window_outputs: Option<&'static WindowOutputQueue>,
    /// Samples the stacks of launching threads; `None` if the settings request neither samples nor waits.
    sampler: Option<&'static Sampler>,
    /// Opens and closes windows according to the schedule in the settings; `None` if there is no schedule.
    scheduler: Option<WindowScheduler>,
    /// Whether CUPTI has ever failed to answer a request for all activity records.
    has_flush_timed_out: AtomicBool,
    /// Whether CUPTI has ever failed to answer a flush while a CUDA context was being destroyed.
    has_context_flush_timed_out: AtomicBool,
    /// Number of API calls that had been recorded when gpuflame last asked CUPTI for all activity records; `u64::MAX`
    /// if gpuflame has never asked.
    calls_at_last_flush: AtomicU64,
}

/// Pointer to the session, for threads that must not wait for the lock of the stage.
static SESSION: OnceLock<&'static Session> = OnceLock::new();

impl Session {
    /// Starts the session, which runs until the process ends.
    pub(super) fn start(
        settings: Settings,
        outputs: Outputs,
        mut pipeline: Pipeline,
        api: &'static cupti::Api,
    ) -> Result<&'static Self> {
        if let Some(name) = &settings.step_range {
            capture::watch_range(name);
        }
        let sampler = Sampler::start(SamplerOptions {
            hertz: settings.cpu_samples,
            by_timer: settings.cpu_timer,
            waits: settings.off_cpu,
        });
        if let Some(sampler) = sampler {
            pipeline.set_sampler(sampler);
        }
        let session: &'static Self = Box::leak(Box::new(Self {
            checkpoint: Checkpoint::new(&settings, &outputs.for_all_windows()),
            scheduler: WindowScheduler::new(&settings),
            settings,
            outputs,
            api,
            modules: Mutex::new(ModuleMap::new()),
            edges: pipeline.edges(),
            callbacks: CallbackSwitch::default(),
            clients: OtherClients::new(Instant::now()),
            window_outputs: pipeline.window_outputs(),
            sampler,
            marks: Marks::default(),
            steps: pipeline.steps(),
            pipeline: Mutex::new(pipeline),
            collector: Collector::default(),
            stats: StatsExchange::default(),
            has_flush_timed_out: AtomicBool::new(false),
            has_context_flush_timed_out: AtomicBool::new(false),
            calls_at_last_flush: AtomicU64::new(u64::MAX),
        }));
        session.pipeline.lock().begin(api, &session.settings, &session.new_modules());
        let _ = SESSION.set(session);
        out_of_memory::set_handler(session);
        session.collector.spawn(session)?;
        shutdown::start(session, session.settings.exit_limit, session.settings.signals)?;
        if let Some(Err(error)) = session.checkpoint.as_ref().map(|checkpoint| checkpoint.spawn(session)) {
            print_from_app(&format!(
                "no checkpoints: cannot start a thread ({error}); raise the limit on threads"
            ));
        }
        if let Some(Err(error)) = session.window_outputs.map(WindowOutputQueue::spawn) {
            print_from_app(&format!(
                "files of windows are written only at exit: cannot start a thread ({error}); raise the limit \
                 on threads"
            ));
        }
        if let Some(scheduler) = &session.scheduler {
            scheduler.start(session);
        }
        Ok(session)
    }

    /// Returns the session, or `None` if it does not exist yet. This function takes no lock.
    pub(crate) fn get() -> Option<&'static Self> {
        SESSION.get().copied()
    }

    /// Whether a window must open as soon as the session has started. If the settings contain a schedule of windows, no
    /// window opens when the session starts.
    pub(crate) fn opens_at_once(&self) -> bool {
        self.settings.enabled && self.scheduler.is_none()
    }

    /// Whether `cudaProfilerStart` and `cudaProfilerStop` open and close windows.
    pub(crate) fn follows_profiler_calls(&self) -> bool {
        self.settings.profiler_calls
    }

    /// Handles the beginning of a step of the program on this thread. A step is recorded if a window is open, even if
    /// the step itself has opened that window.
    pub(crate) fn on_step(&self, number: u64, name: &str) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.apply_schedule(self);
        }
        if window::state().is_open() {
            let (time, thread) = (capture::now(), ThreadId(threads::current_id() as u32));
            self.steps.add(&Step { time, end: None, thread, number, name });
        }
    }

    /// Records the step that was already in progress when the session was set up, if there was one.
    fn record_early_step(&self) {
        if let Some((number, time, thread)) = steps::take_early() {
            self.steps.add(&Step { time, end: None, thread, number, name: "" });
        }
    }

    /// Opens a window, if none is open.
    pub(crate) fn open_window(&self) -> Result<()> {
        if lifecycle::is_over() {
            return Err(lifecycle::over_error());
        }
        if self.clients.defer_if_lent(true) {
            return Err(Error::new(
                ErrorKind::State,
                "another CUPTI client has the subscription; a window opens when that client is done",
            ));
        }
        if !window::state().is_open() {
            self.clients.reclaim_records_if_taken(self.api);
            self.callbacks.before_window_opens(self.api, &self.edges, None, false);
        }
        self.edges.note_edge(WindowEdge::Open, window::open);
        self.record_early_step();
        Ok(())
    }

    /// Like [`Session::open_window`], but for a caller that is inside a CUPTI callback.
    pub(crate) fn open_window_in_callback(&self) {
        if !lifecycle::is_over() && !window::state().is_open() {
            // A callback must not wait for the lock that protects the state of other clients. Therefore
            // `are_records_taken` only tries to take this lock, which is almost always unlocked.
            let is_taken = self.clients.are_records_taken();
            self.callbacks.before_window_opens(
                self.api,
                &self.edges,
                Some(&|| self.collector.wake()),
                is_taken,
            );
            self.edges.note_edge(WindowEdge::Open, window::open);
        }
    }

    /// Closes the window, if one is open.
    pub(crate) fn close_window(&self) {
        self.clients.defer_if_lent(false);
        self.edges.note_edge(WindowEdge::Close, window::close);
    }

    /// Marks the current instant on this thread with the text `text`, if a window is open.
    pub(crate) fn mark(&self, text: &str) {
        if window::state().is_open() {
            self.marks.add(text);
        }
    }

    /// Locks the pipeline, and passes the waiting window edges, marks and steps to it.
    fn pipeline(&self) -> MutexGuard<'_, Pipeline> {
        self.pass_edges_and_marks(self.pipeline.lock())
    }

    fn pass_edges_and_marks<'a>(&self, mut pipeline: MutexGuard<'a, Pipeline>) -> MutexGuard<'a, Pipeline> {
        pipeline.drain_window_edges();
        self.marks.drain(|mark| pipeline.record_instant(mark));
        pipeline.note_marks_dropped(self.marks.dropped());
        pipeline.record_steps(StepQueue::LOCK_TIMEOUT);
        pipeline
    }

    /// Returns the modules (executables and libraries) that were loaded since the last call. While a caller calls this
    /// function, it must not hold the lock of the pipeline, because listing the modules may wait for the loader's lock.
    /// If another thread is currently listing the modules, returns no modules.
    fn new_modules(&self) -> Vec<Module> {
        let mut new = Vec::new();
        if let Some(mut modules) = self.modules.try_lock() {
            progress::call_foreign(|| modules.refresh(&mut new));
        }
        new
    }

    /// Makes CUPTI deliver the completed activity records, and reads them.
    ///
    /// # Errors
    /// Returns `State` if CUPTI does not answer.
    pub(crate) fn flush(&self) -> Result<()> {
        self.request(CollectorRequest::Flush)
    }

    fn request(&self, request: CollectorRequest) -> Result<()> {
        if self.collector.request(request, StallLimit { foreign: FLUSH_TIMEOUT, own: FLUSH_TIMEOUT }) {
            return Ok(());
        }
        if lifecycle::is_over() {
            return Err(lifecycle::over_error());
        }
        Err(Error::new(
            ErrorKind::State,
            "CUPTI did not answer a flush within 5 s; its records will arrive with a later flush",
        ))
    }

    /// Handles the end of a CUDA context. Makes the collector flush the completed activity records of that context. If
    /// CUPTI does not answer, this function blocks the application's thread for one second, but only once per process.
    /// Records that this flush does not deliver arrive with the next flush, or are counted as dropped.
    pub(crate) fn on_context_end(&self) {
        let limit = StallLimit { foreign: CONTEXT_END_TIMEOUT, own: CONTEXT_END_TIMEOUT };
        if self.has_context_flush_timed_out.load(Ordering::Acquire)
            || self.collector.request(CollectorRequest::Gather, limit)
        {
            return;
        }
        if !lifecycle::is_over() && !self.has_context_flush_timed_out.swap(true, Ordering::AcqRel) {
            print_from_own(
                "CUPTI did not answer within 1 s when a context was destroyed; gpuflame will not wait there \
                 again",
            );
        }
    }

    /// Handles the case that another client is about to take the activity records or the subscription. Makes the
    /// collector flush the completed records, or release the subscription. If CUPTI does not answer, the other client
    /// is blocked for one second.
    pub(crate) fn on_client_takeover(&self) {
        self.collector.request(
            CollectorRequest::Gather,
            StallLimit { foreign: CONTEXT_END_TIMEOUT, own: CONTEXT_END_TIMEOUT },
        );
    }

    /// Wakes the collector because filled buffers are waiting.
    pub(crate) fn on_buffers_waiting(&self) {
        self.collector.wake();
    }

    /// Returns the results so far, including all GPU work that has completed by now.
    ///
    /// # Errors
    /// Returns the same errors as [`Session::flush`].
    pub(crate) fn stats(&self) -> Result<Stats> {
        loop {
            // The flush comes before the results are computed, so that the results include the records that the flush
            // delivers.
            self.flush()?;
            self.stats.request();
            self.request(CollectorRequest::Collect)?;
            if let Some(stats) = self.stats.take_result() {
                return Ok(stats);
            }
        }
    }

    /// Locks the pipeline. Returns `None` if the pipeline's lock is held by another thread that makes no progress.
    fn pipeline_within(&self, limit: StallLimit) -> Option<MutexGuard<'_, Pipeline>> {
        let mut watch = ProgressWatch::new(limit);
        loop {
            match self.pipeline.try_lock_for(POLL_INTERVAL) {
                Some(pipeline) => return Some(self.pass_edges_and_marks(pipeline)),
                None if watch.is_exceeded() => return None,
                None => {}
            }
        }
    }

    /// Writes the outputs of the run. `has_failed` states whether the files of any window could not be written.
    fn write_files(&self, pipeline: &mut Pipeline, ledger: &Ledger, has_failed: bool) -> WriteReport {
        let (profile, growing) = pipeline.outputs();
        let mut wanted = self.settings.formats.clone();
        if self.window_outputs.is_some() {
            // The queue of window outputs draws the files in all other formats, separately for each window.
            wanted.retain(|output| output.is_streamed() || matches!(output, Output::Stacks | Output::Sums));
        }
        let mut functions = Vec::new();
        if wanted.iter().any(|output| output.has_names()) {
            let options = draw::symbolize_options(&self.settings);
            let has_sums = wanted.contains(&Output::Sums);
            let mut symbolizer =
                if has_sums { Symbolizer::with_rows(options) } else { Symbolizer::new(options) };
            symbolizer.name(profile);
            functions = symbolizer.take_rows();
        }
        let checkpoint = self.checkpoint.as_ref();
        let kept = || checkpoint.and_then(Checkpoint::path);
        let mut is_replaceable = false;
        if wanted.contains(&Output::Sums)
            && let Some(checkpoint) = checkpoint
        {
            match checkpoint.is_replaceable() {
                Some(is_there) => is_replaceable = is_there,
                None => {
                    print_from_own(
                        "a file system blocks the checkpoint; the sums of the run are not written",
                    );
                    wanted.retain(|output| *output != Output::Sums);
                }
            }
        }
        let ours = progress::call_foreign(|| growing.wait_for_recording_path()).or_else(kept);
        let chosen = output_override::get();
        let outputs = chosen.as_ref().unwrap_or(&self.outputs).for_all_windows();
        let mut report = draw::write_files(
            profile,
            &self.settings,
            &wanted,
            (&outputs, ours.as_deref()),
            (None, ledger),
            draw::SumsOptions { functions: &functions, is_replaceable, has_failed },
            Some(&mut *growing),
        );
        growing.mark_failed_recording_ended();
        match growing.publish_trace(self.settings.exit_limit.min(STDOUT_TIMEOUT)) {
            Some((_, Ok(WrittenFile { path, note }))) => {
                report.written.push(path);
                report.notes.extend(note);
            }
            Some((path, Err(error))) => {
                report.failures.push(format!("cannot write {}: {error}", path.display()))
            }
            None => {}
        }
        report
    }

    /// Returns the text of the ledger. The text is empty if the settings disable all messages. If `report` contains no
    /// files, the text contains no lines about files.
    fn ledger_text(
        &self,
        pipeline: &mut Pipeline,
        (ledger, held): (&Ledger, usize),
        report: &WriteReport,
        rendered: Option<&RenderedWindows>,
    ) -> String {
        if self.settings.quiet {
            return String::new();
        }
        let mut further: Vec<_> = pipeline.sampler_lines();
        further.extend(pipeline.clock_line());
        further.extend(pipeline.windows_lines(rendered));
        if !pipeline.has_work() {
            further.push(NOTHING_LAUNCHED.to_owned());
        }
        let clients = (self.api.delivery_counts(), self.clients.times_lost());
        ledger_text::text(ledger, pipeline.outputs().0, (report, further), held, clients)
    }

    /// Returns the summary that is printed on exit. The text is empty if the settings disable all messages. If the
    /// ledger is not printed, its important lines are printed before the summary.
    fn summary_text(
        &self,
        pipeline: &mut Pipeline,
        (ledger, has_ledger): (&Ledger, bool),
        report: &WriteReport,
        rendered: Option<&RenderedWindows>,
    ) -> String {
        if self.settings.quiet {
            return String::new();
        }
        let has_work = pipeline.has_work();
        let mut lines = Vec::new();
        if !has_ledger {
            lines.extend(pipeline.clock_line().into_iter().chain(pipeline.late_line()));
            let clients = (self.api.delivery_counts(), self.clients.times_lost());
            lines.extend(ledger_text::remarks(ledger, pipeline.outputs().0, report, clients));
            lines.extend((!has_work).then(|| NOTHING_LAUNCHED.to_owned()));
        }
        if has_work {
            let of_windows =
                rendered.iter().flat_map(|rendered| rendered.report.written.iter().chain(&rendered.sets));
            let files = report.written.iter().chain(of_windows).chain(&report.about);
            let files: Vec<_> = files.map(PathBuf::as_path).collect();
            let profile: &Profile = pipeline.outputs().0;
            let mut summary = summary_lines(ledger, profile, &files);
            // All ranks of a distributed job print to the same terminal, so each line names the rank that prints it.
            if let Some((_, rank)) = profile.provenance().find(|(what, _)| *what == Provenance::RANK) {
                let process = std::process::id();
                summary.iter_mut().for_each(|line| *line = format!("rank {rank}, process {process}: {line}"));
            }
            lines.extend(summary);
        }
        lines.iter().map(|line| messages::format_line(line)).collect()
    }

    /// Writes text that could not be printed to stderr to a file next to the outputs. Returns the path of the file. If
    /// this file cannot be written, the user gets no message, because printing to stderr fails as well.
    fn write_unprinted(&self, text: &str, report: &WriteReport) -> Option<PathBuf> {
        if text.is_empty() {
            return None;
        }
        let chosen = output_override::get();
        let outputs = chosen.as_ref().unwrap_or(&self.outputs).for_all_windows();
        output_files::write_ledger(text, &outputs, report).ok()
    }

    /// Waits until the files of all windows that have their own files are drawn. Returns the result of the drawing, or
    /// `None` if a file system blocks the drawing thread.
    fn finish_windows(&self, limit: StallLimit) -> Option<RenderedWindows> {
        let rendered = self.window_outputs?.finish(limit.own);
        if rendered.is_none() {
            print_from_own(
                "a file system blocks the files of a window; the files of later windows are not written",
            );
        }
        rendered
    }

    fn print_collector_unresponsive(&self) {
        let kept = self.checkpoint.as_ref().and_then(Checkpoint::path);
        print_from_own(&match kept.as_deref().map(Path::display) {
            Some(kept) => format!(
                "gpuflame's collector thread does not respond; the last checkpoint is {kept}: run `gpuflame \
                 recover {kept}` to write the files"
            ),
            None => "gpuflame's collector thread does not respond; nothing is written".to_owned(),
        });
    }
}

/// Removes the checkpoint if its content is also in the output files, or in the file `sums`, which contains the final
/// sums. If no other file contains the content, keeps the checkpoint. If outputs are missing, prints the path of the
/// file from which they can be recovered.
fn end_checkpoint(checkpoint: Option<&Checkpoint>, work: u64, all_is_written: bool, sums: Option<&Path>) {
    let kept = match (checkpoint, all_is_written || sums.is_some()) {
        (Some(checkpoint), true) => {
            checkpoint.remove();
            None
        }
        (Some(checkpoint), false) => checkpoint.keep(work),
        (None, _) => None,
    };
    if !all_is_written && let Some(kept) = sums.or(kept.as_deref()) {
        let kept = kept.display();
        print_from_own(&format!(
            "the results are saved in {kept}: run `gpuflame recover {kept}` once the files can be written"
        ));
    }
}

/// Prints the ledger and the summary. If stderr may end in an unfinished line, first prints a heading. Without a
/// heading, the first line of `text` would be appended to the unfinished line.
fn print_results(text: &str) -> bool {
    let heading = (!text.is_empty() && stderr::hides_last_line())
        .then(|| messages::format_line(&format!("results of process {}", std::process::id())));
    let text = heading.unwrap_or_default() + text;
    stderr::write_on_own_line(text.as_bytes(), LEDGER_PRINT_TIMEOUT)
}

impl CollectorSteps for Session {
    fn collect(&self) -> bool {
        if self.clients.update(self.api, &self.callbacks, &self.edges) {
            let _ = self.open_window();
        }
        let new = self.new_modules();
        let mut pipeline = self.pipeline();
        pipeline.record_modules(&new);
        let any = pipeline.collect(self.api);
        let first_work = pipeline.first_work();
        drop(pipeline);
        if let (Some(time), Some(checkpoint)) = (first_work, &self.checkpoint) {
            checkpoint.note_first_work(time);
        }
        self.callbacks.update(self.api, &self.edges, || self.clients.reclaim_records_if_taken(self.api));
        any
    }

    fn collect_noted(&self) {
        let new = self.new_modules();
        let mut pipeline = self.pipeline();
        pipeline.record_modules(&new);
        pipeline.note_unread();
        drop(pipeline);
        while !lifecycle::is_over() && self.pipeline().collect_noted(self.api) {}
    }

    fn answer_stats_request(&self) {
        self.stats.answer(|| Stats::from_snapshot(self.pipeline().snapshot()));
    }

    fn has_work(&self) -> bool {
        self.pipeline.lock().first_work().is_some()
    }

    fn wants_flush(&self) -> bool {
        self.pipeline.lock().wants_flush()
    }

    /// The pause is shorter if threads are sampled, because a thread is sampled only after the collector has read the
    /// thread's first launch.
    fn max_idle_pause(&self) -> Duration {
        if self.sampler.is_some() { MAX_IDLE_PAUSE / 4 } else { MAX_IDLE_PAUSE }
    }

    fn flush(&self, everything: bool) {
        let before = self.api.delivery_counts();
        // If the flush fails, the records that it should have delivered arrive with the next flush, or are counted as
        // dropped.
        let is_flushed = progress::call_foreign(|| self.api.flush(everything)).is_ok();
        let dropped = progress::call_foreign(|| self.api.dropped());
        let mut pipeline = self.pipeline.lock();
        pipeline.note_dropped(dropped);
        pipeline.note_flushed();
        let open = pipeline.launches_awaited();
        drop(pipeline);
        if is_flushed {
            self.clients.check_traffic(self.api, open, everything.then_some(before));
        }
    }

    fn flush_recording(&self, is_awaited: bool) {
        let mut pipeline = self.pipeline.lock();
        pipeline.flush_recording();
        // If there is no GPU work, no file of the recording is created, so there is nothing to wait for.
        let recording = pipeline.recording().filter(|_| is_awaited && pipeline.first_work().is_some());
        drop(pipeline);
        if let Some(recording) = recording {
            let patience = RECORDING_WRITE_TIMEOUT.min(self.settings.exit_limit / 2);
            progress::call_foreign(|| recording.wait_until_written(patience));
        }
    }

    /// If checkpoints are being written, wakes the checkpoint's thread, which saves the rows and then ends the session.
    /// If no checkpoints are being written, ends the session itself.
    fn end_out_of_memory(&self) {
        self.close_window();
        match self.checkpoint.as_ref().filter(|checkpoint| checkpoint.is_active()) {
            Some(checkpoint) => checkpoint.wake(),
            None => out_of_memory::end_session(),
        }
    }
}

impl WindowControl for Session {
    fn open(&self) {
        // Opening the window fails if the session is over, or if another CUPTI client owns the subscription. If another
        // client owns the subscription, a window opens as soon as that client is done.
        let _ = self.open_window();
    }

    fn close(&self) {
        self.close_window();
    }
}

impl CheckpointSource for Session {
    fn read_ready(&self, is_first: bool) {
        let request = if is_first { CollectorRequest::Gather } else { CollectorRequest::Read };
        let limit = StallLimit { foreign: CHECKPOINT_READ_TIMEOUT, own: CHECKPOINT_READ_TIMEOUT };
        // If memory has run out, the collector has ended, so the checkpoint's thread reads the rows itself.
        if shortage::is_short() || !self.collector.request(request, limit) {
            self.collect_noted();
        }
    }

    fn with_pipeline(&self, action: &mut dyn FnMut(&mut Pipeline)) -> Duration {
        let mut pipeline = self.pipeline();
        let began = Instant::now();
        action(&mut pipeline);
        began.elapsed()
    }
}

impl OnMemoryExhausted for Session {
    fn on_memory_exhausted(&self) {
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.note_out_of_memory(),
            None => {
                if let Some(mut pipeline) = self.pipeline.try_lock() {
                    pipeline.note_out_of_memory();
                }
            }
        }
    }
}

impl ShutdownSteps for Session {
    fn close_window(&self) {
        self.close_window();
    }

    /// Makes CUPTI deliver all activity records, except in two cases. If nothing was launched since gpuflame last asked
    /// for all records, CUPTI is not called, because the driver may have been shut down in the meantime. If CUPTI has
    /// once failed to answer, CUPTI is not called again.
    fn gather_remaining_rows(&self, limit: StallLimit) {
        self.checkpoint.iter().for_each(Checkpoint::stop_regular);
        let calls = capture::cost().calls;
        let request = if self.calls_at_last_flush.swap(calls, Ordering::AcqRel) == calls {
            CollectorRequest::Collect
        } else {
            CollectorRequest::Drain
        };
        if self.has_flush_timed_out.load(Ordering::Acquire) || self.collector.request(request, limit) {
            return;
        }
        self.has_flush_timed_out.store(true, Ordering::Release);
        let seconds = limit.foreign.as_secs_f32();
        print_from_own(&format!(
            "CUPTI did not answer within {seconds} s; the records that it still held are lost, the rest is \
             written"
        ));
    }

    fn compute_final_sums(&self, limit: StallLimit, is_signalled: bool) -> bool {
        // After a signal, a stopped thread may hold the loader's lock forever, so the sampler's remaining samples are
        // not read.
        if let Some(sampler) = self.sampler.filter(|_| !is_signalled) {
            progress::call_foreign(|| sampler.drain_remaining(limit.own));
        }
        // The last stacks may refer to modules that were loaded only recently.
        let new = if is_signalled { Vec::new() } else { self.new_modules() };
        let mut pipeline = self.pipeline_within(limit);
        // Notes which finished rows are still unread, so that they are read below. Launches are recorded up to this
        // point of the shutdown. If recording of launches ended earlier, there would be activities without a launch.
        if let Some(pipeline) = &mut pipeline {
            pipeline.record_modules(&new);
            pipeline.note_unread();
        }
        lifecycle::end();
        let Some(mut pipeline) = pipeline else {
            self.print_collector_unresponsive();
            return false;
        };
        while pipeline.collect_noted(self.api) {}
        if window::state().is_muted() {
            self.edges.note_callbacks(true);
            pipeline.drain_window_edges();
        }
        pipeline.finish(capture::bytes_held);
        true
    }

    /// Writes the last checkpoint. After a signal, the checkpoint is written even if no file exists yet, because a
    /// SIGKILL often follows a few seconds later.
    fn write_last_checkpoint(&self, limit: Duration, is_signalled: bool) {
        self.checkpoint.iter().for_each(|checkpoint| checkpoint.write_last(is_signalled, limit));
    }

    fn write_outputs(&self, limit: StallLimit) {
        let Some(mut pipeline) = self.pipeline_within(limit) else {
            return self.print_collector_unresponsive();
        };
        let Some(FinalSums { ledger, held }) = pipeline.final_sums().cloned() else { return };
        let rendered = self.finish_windows(limit);
        let has_work = pipeline.has_work();
        let is_printed = stderr::takes_messages();
        let unprinted = messages::take_unprinted();
        // If the ledger is not printed, only the recording contains it.
        if has_work && !(is_printed && self.settings.verbose) {
            let ledger =
                self.ledger_text(&mut pipeline, (&ledger, held), &WriteReport::default(), rendered.as_ref());
            let text = unprinted.clone() + &ledger;
            let lines = text.lines().map(|line| line.strip_prefix("gpuflame: ").unwrap_or(line));
            let growing = pipeline.outputs().1;
            lines.for_each(|text| growing.write_row(&Row::Provenance { what: Provenance::LEDGER, text }));
        }
        let has_failed = match &rendered {
            Some(rendered) => !rendered.report.failures.is_empty(),
            None => self.window_outputs.is_some(),
        };
        let mut report = match has_work {
            true => self.write_files(&mut pipeline, &ledger, has_failed),
            false => pipeline.discard_outputs(),
        };
        report.failures.extend(rendered.iter().flat_map(|rendered| rendered.report.failures.clone()));
        report.failures.iter().for_each(|failure| print_from_own(failure));
        let is_complete = report.failures.is_empty() && !has_failed;
        let sums = report.sums.as_deref();
        end_checkpoint(self.checkpoint.as_ref(), pipeline.rows_of_work(), is_complete, sums);
        let mut text = unprinted + &messages::take_unprinted();
        let has_ledger = self.settings.verbose || !is_printed;
        if has_ledger {
            text += &self.ledger_text(&mut pipeline, (&ledger, held), &report, rendered.as_ref());
        }
        text += &self.summary_text(&mut pipeline, (&ledger, has_ledger), &report, rendered.as_ref());
        // If the process has launched no GPU work, it writes no file.
        let file = if is_printed || !has_work { None } else { self.write_unprinted(&text, &report) };
        let files =
            report.written.iter().chain(rendered.iter().flat_map(|rendered| &rendered.report.written));
        let files = files.chain(&file);
        let profile = &*pipeline.outputs().0;
        launcher_report::write_results(self.settings.report.as_deref(), || {
            describe_process(profile, &ledger, files)
        });
        let mut rest = String::new();
        if is_printed && !print_results(&text) {
            rest = text;
        }
        // Messages that were added after the last call of `take_unprinted` can only be about the reports to the
        // launcher.
        rest += &messages::take_unprinted();
        if has_work {
            self.write_unprinted(&rest, &report);
        }
    }
}
