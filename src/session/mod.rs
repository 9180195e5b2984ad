//! One process's run under gpuflame: from the first call to the files written at exit.
//!
//! There is one session a process, whichever way gpuflame came in, and this file has the calls that it came in by.
//!
//! ```text
//! inject, start, stop, flush, stats     (this file)      ranges (need no session)
//!    |
//! stage: idle, starting, running or failed <-- set_up: from settings to a session
//!    |
//! running: opens windows, gathers, writes --> write: names and files; ledger_text: what stderr is told
//!    |                       |
//! collector: the thread      ending: the thread that writes when the process ends
//! that gathers               |       checkpoint: the one that writes for the case that it ends otherwise
//!    |                       |       windows: the one that opens and closes them as the settings say
//!    |                    progress: whether the collector gets on
//!    |              clients, rivals: other clients of CUPTI, and what they have
//!                    |              told: whether launches cost anything while no window is open
//! pipeline: what becomes of rows --> stream: outputs that grow with the run
//!    |                           --> sets: the thread that draws windows with files of their own
//!    |                           <-- generated: what code is called that lies in no file
//!    ^-- sampler: the thread that finds out where launching threads are, on request
//! ```

mod about;
mod checkpoint;
mod clients;
mod collector;
mod draw;
mod edges;
mod ending;
mod environment;
mod generated;
mod ledger_text;
mod marks;
mod memory;
mod messages;
#[cfg(debug_assertions)]
mod mix_up;
mod panic;
mod pipeline;
mod progress;
mod provenance;
mod ranges;
mod rivals;
mod running;
mod sampler;
mod set_up;
mod sets;
mod stage;
mod stats;
mod stream;
mod times;
mod told;
mod windows;
mod write;

use std::ffi::OsStr;

pub use crate::capture::NvtxTable;
use crate::capture::forks;
use crate::capture::notices::{self, Notice};
use crate::control::{Outputs, chosen, life, steps, window};
use crate::error::{Error, ErrorKind, Result};
use crate::host::stderr;
use crate::settings;
pub use memory::end_this_thread as end_this_thread_for_want_of_memory;
use messages::tell;
pub use panic::disable_after_panic;
pub use ranges::{Range, inject_nvtx, range, range_pop, range_push};
use running::Session;
pub use stats::{KernelTime, Stats};

/// What the driver's injection does: sets up the session and, unless the settings say otherwise, opens
/// a window. Says in one line why it cannot.
pub fn inject() {
    // In a forked child even our locks are not to be trusted.
    if forks::is_over() || environment::keeps_us_out() {
        return;
    }
    session_begins();
    // The driver calls this inside `cuInit`. If this thread or another is setting up already, then
    // waiting for it could wait for ourselves.
    match stage::begin_if_idle(set_up::injected) {
        Some(Ok(session)) if session.opens_at_once() => drop(session.open_window()),
        Some(Ok(_)) | None => {}
        Some(Err(error)) => {
            tell(&format!("not recording: {error}"));
            set_up::write_unprinted();
        }
    }
}

/// Says why nothing is recorded, where whoever loads the library has found that.
pub fn refuse(why: &str) {
    if !forks::is_over() && !environment::keeps_us_out() {
        stderr::remember();
        let report = environment::settings().0.report;
        about::refused(report.as_deref(), &Error::new(ErrorKind::State, why));
        tell(&format!("not recording: {why}"));
        set_up::write_unprinted();
    }
}

/// Opens a window: launches made from now on, by any thread, are recorded. Opening an open window does nothing.
///
/// The first call sets the recorder up, unless gpuflame is injected already, which takes milliseconds; make it before
/// the work to record, best before any CUDA call. Later ones take nanoseconds, unless the window was closed for two seconds
/// or longer: then CUPTI is asked to tell of every call again, which takes as long as it takes.
///
/// # Errors
/// `NoDriver`, `NoCupti` or `CuptiRefused` where nothing can be recorded; `State` in a process that is ending or was
/// forked. The program may go on as if nothing was: all other calls do nothing then.
pub fn start() -> Result<()> {
    if forks::is_over() {
        return Err(life::over());
    }
    session_begins();
    match stage::get_or_begin(set_up::called)? {
        Some(session) => session.open_window(),
        // The driver injects us while CUPTI is being asked.
        None => Ok(()),
    }
}

/// Closes the window. Closing it again does nothing. Launches made in it are followed to their end on the GPU, however late
/// that comes; those made from now on are counted as outside, and after a second not even seen: they then cost what they
/// cost with CUPTI's records alone. Does not wait for the GPU.
///
/// # Errors
/// As [`start`], where that has failed; `State` where no window was ever opened.
pub fn stop() -> Result<()> {
    let session = stage::running()?;
    if window::state().openings() == 0 {
        return Err(Error::new(ErrorKind::State, "no window was opened yet; call gpuflame_start() first"));
    }
    session.close_window();
    Ok(())
}

/// Whether what is launched now is recorded: a window is open, and nothing has gone wrong. Takes nanoseconds.
pub fn is_active() -> bool {
    !life::is_over() && Session::get().is_some() && window::state().is_open()
}

/// Says that another step begins, whatever the program repeats. [`stats`] counts them, and `GPUFLAME_STEPS` names those
/// to record: the window opens or closes before this returns.
///
/// # Errors
/// `State` in a process that is ending or was forked.
pub fn step() -> Result<()> {
    if forks::is_over() {
        return Err(life::over());
    }
    begin_step();
    Ok(())
}

fn begin_step() {
    steps::begin();
    if let Some(session) = Session::get() {
        session.step_begins();
    }
}

/// Marks this instant on the timeline of the calling thread: it is in the recording, and in what `gpuflame convert` makes
/// of that for timelines (`chrome`, `perfetto`). With the window closed it does nothing.
///
/// Takes some 100 ns and a lock. Of a text the first 1,024 bytes are kept. Thousands a second are fine, more are counted as
/// [`Loss::MarksDropped`](crate::ledger::Loss::MarksDropped).
///
/// # Errors
/// `State` where there is no session.
pub fn mark(text: &str) -> Result<()> {
    stage::running()?.mark(text);
    Ok(())
}

/// Has the files go elsewhere than `GPUFLAME_OUTPUT` says: those that are not written yet, all of them at the end of the
/// process. `prefix` may have the same macros, and is relative to the present folder.
///
/// May be called before the first [`start`], and between windows. A recording that was begun moves at the end of the
/// process.
///
/// # Errors
/// `Setting` for an empty prefix; `State` while a window is open: the files go where they would have gone.
pub fn set_output(prefix: impl AsRef<OsStr>) -> Result<()> {
    let prefix = prefix.as_ref();
    if forks::is_over() {
        return Err(life::over());
    }
    if prefix.is_empty() {
        return Err(Error::new(ErrorKind::Setting, "the prefix of the outputs is empty; name one"));
    }
    if is_active() {
        let message = "a window is open, and its files go where they would have gone; close it with \
                       gpuflame_stop() first";
        return Err(Error::new(ErrorKind::State, message));
    }
    chosen::set(Outputs::new(settings::prefix(prefix), &environment::facts()));
    Ok(())
}

/// Collects what the GPU has completed so far, without waiting for the rest. It happens about once a second anyway.
///
/// # Errors
/// `State` where there is no session, or where CUPTI does not answer within 5 s.
pub fn flush() -> Result<()> {
    stage::running()?.flush()
}

/// What there is so far, without stopping anything: a ledger as it would be printed if the process ended now, and the time
/// of each kernel. Work that the GPU has not completed stands as launches that are pending. It is of all windows so far,
/// and only grows: for a part of a run take the difference of two.
///
/// Collects first, as [`flush`] does. Takes time by the number of different stacks; not for every step.
///
/// # Errors
/// As [`flush`].
pub fn stats() -> Result<Stats> {
    stage::running()?.stats()
}

/// A window that is open while this lives: see [`window`].
#[derive(Debug)]
#[must_use = "the window closes when this is dropped, which is at once if nobody holds it"]
pub struct Window(());

/// Opens a window, as [`start`] does, and closes it when what it returns is dropped.
///
/// Windows do not nest: of two that are open at once, on any threads, the first to go closes both.
///
/// # Errors
/// As [`start`].
pub fn window() -> Result<Window> {
    start().map(|()| Window(()))
}

impl Drop for Window {
    fn drop(&mut self) {
        // Where there is nothing to close any more, nothing has to be.
        let _ = stop();
    }
}

/// What is arranged before the first call to the tracer.
fn session_begins() {
    forks::session_begins();
    notices::listen(on_notice);
}

/// Passed on by the tracer's callbacks, on the application's threads.
fn on_notice(notice: Notice<'_>) {
    if life::is_over() && notice != Notice::Panicked {
        return;
    }
    match notice {
        // The driver may register exit handlers of its own when it makes its first context, and they
        // would run before ours: come before them again.
        Notice::ContextCreated => ending::come_first_at_exit(),
        Notice::ContextEnds => {
            // The lock is free again before CUPTI is called.
            let session = stage::running();
            if let Ok(session) = session {
                session.context_ends();
            }
        }
        Notice::ProfilerStart => {
            if let Some(session) = Session::get().filter(|session| session.follows_profiler_calls()) {
                session.open_window_in_callback();
            }
        }
        Notice::ProfilerStop => {
            if let Some(session) = Session::get().filter(|session| session.follows_profiler_calls()) {
                session.close_window();
            }
        }
        Notice::Step => begin_step(),
        Notice::BuffersWait => {
            if let Some(session) = Session::get() {
                session.buffers_wait();
            }
        }
        Notice::Approached(_) => {
            if let Some(session) = Session::get() {
                session.client_comes();
            }
        }
        Notice::Fatal(reason) => tell(&format!("CUPTI gave up: {reason}; what it had not delivered is lost")),
        Notice::Panicked => disable_after_panic(),
    }
}
