//! One process's run under gpuflame: from the first call to the files written at exit.
//!
//! There is one session a process, whichever way gpuflame came in. This file is its state machine:
//!
//! ```text
//! Idle --inject()/start()--> Starting --> Running
//!                               |
//!                               +--> Failed (said once; the application runs on)
//! ```
//!
//! until [`life`] is over. `collector` is the thread that gathers rows, `pipeline` what it feeds, `ending` what
//! happens when the process ends, `write` and `ledger_text` what comes out.

mod collector;
mod ending;
mod guards;
mod ledger_text;
mod pipeline;
mod progress;
mod stream;
mod write;

use std::ffi::CStr;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

pub use crate::capture::NvtxTable;
use crate::capture::notices::{self, Notice};
use crate::capture::{self, Capture, Popped, RangeDomain, RangeName, forks};
use crate::control::{Facts, Outputs, life, window};
use crate::cupti;
use crate::error::{Error, ErrorKind, Result};
use crate::explain::Ledger;
use crate::export;
use crate::host::{memory, signals, stderr, threads};
use crate::profile::views::{MEMORY, WAITS};
use crate::profile::{Profile, View};
use crate::record::{Module, Nanos, WindowEdge};
use crate::settings::{self, Nvtx, Output, Settings};
use crate::symbolize::{SymbolizeOptions, Symbolizer};
use crate::unwind::{self, ModuleMap};
use collector::{Collector, Wish};
pub use guards::{Range, Window, range, window};
use pipeline::Pipeline;
use progress::{LOOK_EVERY, Limit, Watch};
use write::Report;

/// How long the application may be held up by a flush that it asked for and that does not get on.
const LONGEST_FLUSH: Duration = Duration::from_secs(5);
/// How long by somebody who notes the edge of a window, which takes no time.
const LONGEST_EDGE: Duration = Duration::from_millis(100);

/// How long the application may be held up by a line to a stderr that is full.
const LONGEST_TELLING: Duration = Duration::from_millis(200);
/// How long its exit may be, by the ledger.
const LONGEST_LEDGER: Duration = Duration::from_secs(2);

struct Session {
    settings: Settings,
    outputs: Outputs,
    api: &'static cupti::Api,
    pipeline: Mutex<Pipeline>,
    modules: Mutex<ModuleMap>,
    /// Edges of windows that the pipeline has not taken in yet: whoever opens or closes a window must not
    /// wait for it.
    edges: Mutex<Vec<(WindowEdge, Nanos)>>,
    collector: Collector,
    /// The tracer did not answer when it was asked for everything.
    gave_up: AtomicBool,
    /// How many API calls there had been when the tracer was last asked for everything; `u64::MAX`: it was not yet.
    calls_at_last_flush: AtomicU64,
}

enum Stage {
    Idle,
    Starting(ThreadId),
    Running(&'static Session),
    Failed(Error),
}

/// The session, for those who may not wait for a lock.
static SESSION: OnceLock<&'static Session> = OnceLock::new();
static STAGE: Mutex<Stage> = Mutex::new(Stage::Idle);
static STAGE_CHANGED: Condvar = Condvar::new();

/// What the driver's injection does: sets up the session and, unless the settings say otherwise, opens
/// a window. Says in one line why it cannot.
pub fn inject() {
    // In a forked child even our locks are not to be trusted.
    if forks::is_over() {
        return;
    }
    forks::session_begins();
    // The driver calls this inside `cuInit`. If this thread or another is setting up already, then
    // waiting for it could wait for ourselves.
    match *STAGE.lock() {
        Stage::Idle => {}
        _ => return,
    }
    match begin(Way::Injected) {
        Ok(session) if session.settings.enabled => drop(session.open_window()),
        Ok(_) => {}
        Err(error) => tell(&format!("not recording: {error}")),
    }
}

/// Opens a window: launches made from now on, by any thread, are recorded. Opening an open window does nothing.
///
/// The first call sets the recorder up, unless gpuflame is injected already, which takes milliseconds; make it before
/// the work to record, best before any CUDA call. Later ones take nanoseconds.
///
/// # Errors
/// `NoDriver`, `NoCupti` or `CuptiRefused` where nothing can be recorded; `State` in a process that is ending or was
/// forked. The program may go on as if nothing was: all other calls do nothing then.
pub fn start() -> Result<()> {
    if forks::is_over() {
        return Err(over());
    }
    forks::session_begins();
    loop {
        let mut stage = STAGE.lock();
        match &*stage {
            Stage::Idle => {}
            Stage::Starting(by) if *by == std::thread::current().id() => return Ok(()),
            Stage::Starting(_) => {
                STAGE_CHANGED.wait(&mut stage);
                continue;
            }
            Stage::Running(session) => {
                let session: &'static Session = session;
                drop(stage);
                return session.open_window();
            }
            Stage::Failed(error) => return Err(error.clone()),
        }
        drop(stage);
        if let Ok(session) = begin(Way::Called) {
            return session.open_window();
        }
    }
}

/// Closes the window, if one is open. Launches made in it are followed to their end on the GPU, however late that comes;
/// those made from now on are counted as outside. Does not wait for the GPU.
///
/// # Errors
/// As [`start`], where that has failed.
pub fn stop() -> Result<()> {
    // What was never opened need not be closed.
    if forks::is_over() || forks::session_has_begun() {
        running()?.close_window();
    }
    Ok(())
}

/// Collects what the GPU has completed so far, without waiting for the rest. It happens about once a second anyway.
///
/// # Errors
/// `State` where there is no session, or where CUPTI does not answer within 5 s.
pub fn flush() -> Result<()> {
    let session = running()?;
    if session.collector.ask(Wish::Flush, Limit { others: LONGEST_FLUSH, ours: LONGEST_FLUSH }) {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::State,
            "the tracer did not answer a flush within 5 s; its data will arrive with a later flush",
        ))
    }
}

/// What there is so far, and what has become of it: a ledger as it is printed at exit, if the process ended now. Work that
/// the GPU has not completed stands as launches that are pending.
///
/// Collects first, as [`flush`] does. Takes time by the number of different stacks; not for every step.
///
/// # Errors
/// As [`flush`].
pub fn stats() -> Result<Ledger> {
    let session = running()?;
    flush()?;
    session.collect();
    Ok(session.pipeline.lock().ledger())
}

/// Opens a range on this thread: a frame of whatever it launches until [`range_pop`].
pub fn range_push(name: &CStr) -> Result<()> {
    if forks::is_over() {
        return Err(over());
    }
    forks::watch();
    // What cannot be kept is counted.
    let _ = capture::push_range(RangeDomain::USER, RangeName::Text(name.to_bytes()));
    Ok(())
}

/// Closes the range that [`range_push`] opened last on this thread.
pub fn range_pop() -> Result<()> {
    if forks::is_over() {
        return Err(over());
    }
    match capture::pop_range(RangeDomain::USER) {
        Popped::Closed(_) | Popped::InHandler => Ok(()),
        Popped::NoneOpen => {
            Err(Error::new(ErrorKind::State, "no range is open on this thread; push one first"))
        }
    }
}

/// What NVTX's injection does: has its ranges told to us, unless the settings say otherwise. It may come before
/// all CUDA calls, or where there are none, and sets up no session.
pub fn inject_nvtx(table: NvtxTable) {
    if forks::is_over() {
        return;
    }
    forks::watch();
    let Nvtx::Without(ignored) = settings::from_environment().0.nvtx else { return };
    capture::ignore_domains(&ignored);
    table.attach();
}

/// Switches everything off after a panic of ours: nothing more is recorded or written.
pub fn disable_after_panic() {
    static SAID: AtomicBool = AtomicBool::new(false);
    life::end();
    if !SAID.swap(true, Ordering::AcqRel) {
        tell("met a bug of its own and switched itself off; the application is not affected");
    }
}

fn running() -> Result<&'static Session> {
    if forks::is_over() {
        return Err(over());
    }
    // A child may have been forked with the lock held, but only after somebody said so.
    if !forks::session_has_begun() {
        return Err(no_session());
    }
    match &*STAGE.lock() {
        Stage::Running(session) => Ok(session),
        Stage::Failed(error) => Err(error.clone()),
        Stage::Idle | Stage::Starting(_) => Err(no_session()),
    }
}

fn no_session() -> Error {
    Error::new(ErrorKind::State, "no session yet; call gpuflame_start() first")
}

fn over() -> Error {
    Error::new(ErrorKind::State, "the process is ending or is a forked child, and nothing more is recorded")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the driver, inside `cuInit`.
    Injected,
    /// By the application.
    Called,
}

/// From `Idle` to `Running` or `Failed`. The lock is not held while CUPTI is called: subscribing may
/// initialise the driver, and the driver may inject us.
fn begin(way: Way) -> Result<&'static Session> {
    {
        let mut stage = STAGE.lock();
        match &*stage {
            Stage::Idle => *stage = Stage::Starting(std::thread::current().id()),
            Stage::Running(session) => return Ok(session),
            Stage::Failed(error) => return Err(error.clone()),
            Stage::Starting(_) => return Err(over()),
        }
    }
    // Those who wait for us wait for a result, even if there is none.
    let result = catch_unwind(|| set_up(way)).unwrap_or_else(|_| {
        disable_after_panic();
        Err(over())
    });
    let mut stage = STAGE.lock();
    *stage = match &result {
        Ok(session) => Stage::Running(session),
        Err(error) => Stage::Failed(error.clone()),
    };
    STAGE_CHANGED.notify_all();
    result
}

fn set_up(way: Way) -> Result<&'static Session> {
    stderr::remember();
    let (settings, warnings) = settings::from_environment();
    if !settings.quiet {
        warnings.iter().for_each(|warning| tell(warning));
    }
    let outputs = Outputs::new(&settings.output, &Facts::of_this_process());
    let ceiling = memory::ceiling(settings.max_mem);
    capture::bound_memory(ceiling);
    let pipeline = Pipeline::new(&settings, &outputs, ceiling);
    capture::refill();
    capture::renew_clock();
    unwind::prepare();
    capture::verify_every(settings.verify);
    let wants = |wanted: &View| {
        settings.formats.iter().any(|output| matches!(output, Output::Drawn(view, _) if *view == wanted))
    };
    let waits = wants(&WAITS) || settings.deps;
    if waits {
        capture::note_waits();
    }
    notices::listen(on_event);
    let before = threads::all();
    let options = cupti::Options {
        library: settings.cupti.clone(),
        load_driver: way == Way::Called,
        whole_graphs: settings.whole_graphs,
        waits,
        events: settings.deps,
        unified: settings.unified,
        memory: wants(&MEMORY),
    };
    // Threads that the tracer starts are as good as ours.
    let api = signals::without(|| cupti::subscribe::<Capture>(&options))?;
    threads::note_ours_since(&before);
    if settings.whole_graphs && !settings.quiet {
        tell(
            "GPUFLAME_GRAPH_TRACE=graph: each graph launch is one piece; which kernels ran in it, how long, \
             and where they were captured is not recorded",
        );
    }
    if settings.deps && !settings.formats.contains(&Output::Recording) && !settings.quiet {
        tell("GPUFLAME_DEPS=1 is for the recording, and there is none: add gfr to GPUFLAME_FORMATS");
    }
    if !settings.quiet {
        api.notes().iter().for_each(|note| tell(note));
    }
    let session: &'static Session = Box::leak(Box::new(Session {
        settings,
        outputs,
        api,
        pipeline: Mutex::new(pipeline),
        modules: Mutex::new(ModuleMap::new()),
        edges: Mutex::new(Vec::new()),
        collector: Collector::default(),
        gave_up: AtomicBool::new(false),
        calls_at_last_flush: AtomicU64::new(u64::MAX),
    }));
    session.pipeline.lock().begin(api, &session.new_modules());
    let _ = SESSION.set(session);
    if let Err(error) = session.collector.spawn(session).and_then(|()| ending::begin(session)) {
        life::end();
        api.unsubscribe();
        return Err(error);
    }
    Ok(session)
}

impl Session {
    fn open_window(&self) -> Result<()> {
        if life::is_over() {
            return Err(over());
        }
        self.edge(WindowEdge::Open, window::open);
        Ok(())
    }

    fn close_window(&self) {
        self.edge(WindowEdge::Close, window::close);
    }

    /// Notes the edge if `turn` really turned the window.
    fn edge(&self, edge: WindowEdge, turn: fn() -> bool) {
        let edges = self.edges.try_lock_for(LONGEST_EDGE);
        if turn()
            && let Some(mut edges) = edges
        {
            edges.push((edge, capture::now()));
        }
    }

    /// The pipeline, with the edges that it has not heard of.
    fn pipeline(&self) -> MutexGuard<'_, Pipeline> {
        self.told_of_edges(self.pipeline.lock())
    }

    fn told_of_edges<'a>(&self, mut pipeline: MutexGuard<'a, Pipeline>) -> MutexGuard<'a, Pipeline> {
        let edges = self.edges.try_lock_for(LONGEST_EDGE).map(|mut edges| std::mem::take(&mut *edges));
        edges.into_iter().flatten().for_each(|(edge, time)| pipeline.window(edge, time));
        pipeline
    }

    /// Modules that are new. The loader's lock is not waited for with a lock of ours held.
    fn new_modules(&self) -> Vec<Module> {
        let mut new = Vec::new();
        if let Some(mut modules) = self.modules.try_lock() {
            progress::in_others(|| modules.refresh(&mut new));
        }
        new
    }

    /// Reads what lies ready, or a good deal of it. False: there was nothing.
    fn collect(&self) -> bool {
        let new = self.new_modules();
        let mut pipeline = self.pipeline();
        pipeline.learn(&new);
        pipeline.collect(self.api)
    }

    /// Reads all that lies ready now, and lets others have the pipeline in between.
    fn collect_noted(&self) {
        let new = self.new_modules();
        let mut pipeline = self.pipeline();
        pipeline.learn(&new);
        pipeline.note_unread();
        drop(pipeline);
        while !life::is_over() && self.pipeline().collect_noted(self.api) {}
    }
}

/// Passed on by the tracer's callbacks, on the application's threads.
fn on_event(event: Notice<'_>) {
    if life::is_over() && event != Notice::Panicked {
        return;
    }
    match event {
        // The driver may register exit handlers of its own when it makes its first context, and they
        // would run before ours: come before them again.
        Notice::ContextCreated => ending::come_first_at_exit(),
        Notice::ContextEnds => {
            // The lock is free again before CUPTI is called.
            let session = running();
            if let Ok(session) = session {
                let _ = session.api.flush(false);
            }
        }
        Notice::BuffersWait => {
            if let Some(session) = SESSION.get() {
                session.collector.nudge();
            }
        }
        Notice::Fatal(reason) => tell(&format!("CUPTI gave up: {reason}; what it had not delivered is lost")),
        Notice::Panicked => disable_after_panic(),
    }
}

impl Session {
    /// Has the tracer hand over everything, complete or not. Not asked again when nothing was launched
    /// since, as the driver may be gone by now, nor when it did not answer once.
    fn gather_the_rest(&self, limit: Limit) {
        let calls = capture::cost().calls;
        let wish = if self.calls_at_last_flush.swap(calls, Ordering::AcqRel) == calls {
            Wish::Collect
        } else {
            Wish::Drain
        };
        if self.gave_up.load(Ordering::Acquire) || self.collector.ask(wish, limit) {
            return;
        }
        self.gave_up.store(true, Ordering::Release);
        let seconds = limit.others.as_secs_f32();
        say(&format!(
            "the tracer did not answer within {seconds} s; what it still held is lost, the rest is written"
        ));
    }

    /// The pipeline, unless whoever has it does not get on.
    fn pipeline_within(&self, limit: Limit) -> Option<MutexGuard<'_, Pipeline>> {
        let mut watch = Watch::new(limit);
        loop {
            match self.pipeline.try_lock_for(LOOK_EVERY) {
                Some(pipeline) => return Some(self.told_of_edges(pipeline)),
                None if watch.is_over() => return None,
                None => {}
            }
        }
    }

    /// Writes the outputs of what was gathered, and says what they hold.
    fn write_out(&self, limit: Limit, is_signalled: bool) {
        // Stacks that were read last may lie in modules that were met last.
        let new = if is_signalled { Vec::new() } else { self.new_modules() };
        let Some(mut pipeline) = self.pipeline_within(limit) else {
            say("the collector does not answer; nothing is written");
            return;
        };
        pipeline.learn(&new);
        // What lies ready and the collector has not got to.
        pipeline.note_unread();
        while pipeline.collect_noted(self.api) {}
        let held = collector::bytes_held();
        let ledger = pipeline.finish(collector::bytes_held);
        let report = self.write_files(&mut pipeline);
        report.failures.iter().for_each(|failure| say(failure));
        if !self.settings.quiet {
            let ledger = ledger_text::text(&ledger, pipeline.outputs().0, &report, held);
            stderr::write_here(ledger.as_bytes(), LONGEST_LEDGER);
        }
    }
}

impl Session {
    fn write_files(&self, pipeline: &mut Pipeline) -> Report {
        let (profile, streams) = pipeline.outputs();
        let options = SymbolizeOptions { internal_frames: self.settings.internal_frames };
        Symbolizer::new(options).name(profile);
        let Settings { unit, graph, ref root, .. } = self.settings;
        let options = export::Options { unit, graph, root: root.clone(), ..export::Options::default() };
        let ours = streams.recording().map(Path::to_owned);
        write::all(&self.settings.formats, &self.outputs, ours.as_deref(), |output, path| match output {
            Output::Drawn(view, format) => {
                write::file(path, |out| draw(profile, view, format, &options, out))
            }
            Output::Table => write::file(path, |out| export::write_csv(profile, out)),
            Output::Activities | Output::Recording => streams.publish(output, path),
        })
    }
}

fn draw(
    profile: &Profile,
    view: &View,
    format: &str,
    options: &export::Options,
    out: &mut impl Write,
) -> Result<()> {
    let unknown = || Error::new(ErrorKind::Setting, format!("there is no format {format}"));
    export::format(format).ok_or_else(unknown)?.draw(profile, view, options, out)
}

/// One line to stderr, which never fails and never splits.
fn tell(message: &str) {
    stderr::write(line(message).as_bytes(), LONGEST_TELLING);
}

/// The same, on a thread of ours.
fn say(message: &str) {
    stderr::write_here(line(message).as_bytes(), LONGEST_TELLING);
}

fn line(message: &str) -> String {
    format!("gpuflame: {}\n", on_one_line(message))
}

/// Names and settings are other people's words: none may end a line or drive a terminal.
fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
