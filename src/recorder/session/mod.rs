//! The session is the run of one process under gpuflame. A session lasts from the first call to gpuflame until the
//! files are written on exit.
//!
//! A process has only one session, no matter how gpuflame was loaded. This file contains gpuflame's entry points, which
//! use the following modules.
//!
//! ```text
//! inject, start, stop, flush, stats     (this file)      ranges (need no session)
//!    |
//! stage: idle, starting, running or failed <-- set_up: from settings to a session
//!    |
//! running: opens windows, gathers, writes --> output_files: names and files; ledger_text: the summary on stderr
//!    |                       |
//! collector: the thread      shutdown: the thread that writes when the process exits
//! that gathers               |       checkpoint: the thread that saves sums in case the process is killed
//!    |                       |       window_scheduler: the thread that opens and closes windows by the settings
//!    |                    progress: whether the collector makes progress
//!    |              other_clients, client_detector: other clients of CUPTI, and what they have taken over
//!                    |              callback_switch: switches launch callbacks off while no window is open
//! pipeline: receives all rows --> growing_outputs: outputs that grow with the run
//!    |                        --> window_output_queue: the thread that draws windows that have their own files
//!    |                        <-- generated: names of code that is in no file
//!    ^-- sampler: the thread that samples the stacks of launching threads, on request
//! ```

mod clients;
mod collect;
mod gil_waits;
mod outputs;
mod process;
mod ranges;
mod run;
mod sampled_stacks;
mod sampler;
mod sampler_budget;

use std::ffi::OsStr;

pub use crate::capture::NvtxTable;
use crate::capture::notices::{self, Notice};
use crate::capture::{self, forked_child};
use crate::control::{lifecycle, output_override, steps, window};
use gpuflame_config::Outputs;
use gpuflame_config::settings;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::ThreadId;
use gpuflame_os::{stderr, threads};
use process::messages::print_from_app;
pub use process::out_of_memory::end_this_thread as end_this_thread_out_of_memory;
pub use process::panic::disable_after_panic;
use process::{environment, launcher_report, shutdown};
pub use ranges::{Range, inject_nvtx, range, range_pop, range_push};
use run::running::Session;
pub use run::stats::{KernelTime, Stats};
use run::{set_up, stage};

/// Sets up the session, and opens a window unless the settings forbid it. The CUDA driver calls this function when it
/// injects gpuflame. If the setup fails, prints one line to stderr.
pub fn inject() {
    // This check comes first, because in a forked child, any lock may be locked forever, even gpuflame's own locks.
    if forked_child::is_over() || environment::forbids_recording() {
        return;
    }
    prepare_process();
    // The CUDA driver calls this function inside `cuInit`. At this time, this thread or another thread may be setting
    // up the session. The setup of the session may wait for this call to return, so this call must not wait for the
    // setup.
    match stage::create_if_idle(set_up::set_up_on_injection) {
        Some(Ok(session)) if session.opens_at_once() => drop(session.open_window()),
        Some(Ok(_)) | None => {}
        Some(Err(error)) => {
            print_from_app(&format!("not recording: {error}"));
            set_up::write_unprinted();
        }
    }
}

/// Prints the reason why nothing is recorded. The code that loads this library calls this function if it has found a
/// reason not to record.
pub fn refuse(why: &str) {
    if !forked_child::is_over() && !environment::forbids_recording() {
        stderr::remember_file();
        let report = environment::settings().0.report;
        launcher_report::note_refusal(report.as_deref(), &Error::new(ErrorKind::State, why));
        print_from_app(&format!("not recording: {why}"));
        set_up::write_unprinted();
    }
}

/// Opens a window. Launches that any thread makes after this call are recorded. If a window is already open, this call
/// changes nothing.
///
/// The first call sets up the recorder, unless the driver has already injected gpuflame. This setup takes milliseconds.
/// Make the first call before the GPU work that you want to record, preferably before any CUDA call. All later calls
/// take nanoseconds, with one exception. If the window was closed for two seconds or longer, a call takes longer,
/// because CUPTI must first turn its launch callbacks on again.
///
/// # Errors
/// Returns `NoDriver`, `NoCupti` or `CuptiRefused` if nothing can be recorded, and `State` in a process that is ending
/// or was forked. A program can ignore the error, because after this error all other calls of gpuflame do nothing.
pub fn start() -> Result<()> {
    if forked_child::is_over() {
        return Err(lifecycle::over_error());
    }
    prepare_process();
    match stage::get_or_create(set_up::set_up_on_call)? {
        Some(session) => session.open_window(),
        // In this branch, this thread is still setting up the session. During this setup, a CUPTI call has made the
        // driver call gpuflame.
        None => Ok(()),
    }
}

/// Closes the window, without waiting for the GPU. If no window is open, this call changes nothing.
///
/// Launches that were made in the window are tracked until their GPU work ends, even if that is much later. Launches in
/// the first second after the window closes are counted as launches outside windows. If launches are made later than
/// that, they are ignored until the next window opens. Two seconds after the window closes, CUPTI's launch callbacks
/// are turned off. After the callbacks are turned off, a launch costs only the time that CUPTI needs to record the
/// launch.
///
/// # Errors
/// Returns the error of [`start`] if `start` has failed, and `State` if no window was ever opened.
pub fn stop() -> Result<()> {
    let session = stage::running_session()?;
    if window::state().openings() == 0 {
        return Err(Error::new(ErrorKind::State, "no window was opened yet; call gpuflame_start() first"));
    }
    session.close_window();
    Ok(())
}

/// Whether launches are currently recorded, which means that a window is open and recording works. This call takes a
/// few nanoseconds.
pub fn is_active() -> bool {
    !lifecycle::is_over() && Session::get().is_some() && window::state().is_open()
}

/// Marks the beginning of a step. A step is one iteration of the program's main loop, for example a training step.
/// [`stats`] counts steps. `GPUFLAME_STEPS` selects the steps to record. If the step opens or closes the window, this
/// happens before the call returns. Each step that begins while a window is open is recorded with its time and thread.
/// A step lasts until the next step in the process begins or the window closes.
///
/// This call takes about 100 ns, and takes a lock. Thousands of steps per second are possible. Steps for which there is
/// no room are counted as [`Loss::StepsDropped`](gpuflame_model::record::Loss::StepsDropped).
///
/// # Errors
/// Returns `State` in a process that is ending or was forked.
pub fn step() -> Result<()> {
    if forked_child::is_over() {
        return Err(lifecycle::over_error());
    }
    begin_step("");
    Ok(())
}

/// Begins a step. `name` is the name of the range that begins the step. If the step does not begin with a range, `name`
/// is empty.
fn begin_step(name: &str) {
    let number = steps::begin();
    match Session::get() {
        Some(session) => session.on_step(number, name),
        None => steps::note_early(number, capture::now(), ThreadId(threads::current_id() as u32)),
    }
}

/// Marks the current instant in the timeline of the calling thread. The mark appears in the recording, and in the
/// timelines (`chrome`, `perfetto`) that `gpuflame convert` creates from the recording. While no window is open, this
/// call does nothing.
///
/// This call takes about 100 ns, and takes a lock. Texts longer than 1,024 bytes are truncated. Thousands of marks per
/// second are possible. Marks for which there is no room are counted as
/// [`Loss::MarksDropped`](gpuflame_model::record::Loss::MarksDropped).
///
/// # Errors
/// Returns `State` if there is no session.
pub fn mark(text: &str) -> Result<()> {
    stage::running_session()?.mark(text);
    Ok(())
}

/// Sets a new output path prefix, which replaces `GPUFLAME_OUTPUT` for all files that have not been written yet. These
/// files include the files that are written on exit. `prefix` may contain the same macros as `GPUFLAME_OUTPUT`, and is
/// relative to the current directory.
///
/// You may call this function before the first [`start`], and between windows. If a recording has already begun, its
/// file gets the new name when the process ends.
///
/// # Errors
/// Returns `Setting` if the prefix is empty, and `State` while a window is open. If there is an error, the output path
/// prefix stays unchanged.
pub fn set_output(prefix: impl AsRef<OsStr>) -> Result<()> {
    let prefix = prefix.as_ref();
    if forked_child::is_over() {
        return Err(lifecycle::over_error());
    }
    if prefix.is_empty() {
        return Err(Error::new(ErrorKind::Setting, "the output prefix is empty; give a path prefix"));
    }
    if is_active() {
        let message = "the output prefix cannot change while a window is open; call gpuflame_stop() first";
        return Err(Error::new(ErrorKind::State, message));
    }
    output_override::set(Outputs::new(settings::prefix(prefix), &environment::facts()));
    Ok(())
}

/// Collects the activity records of the GPU work that has completed so far. Does not wait for GPU work in flight.
/// gpuflame also collects records automatically, about once per second.
///
/// # Errors
/// Returns `State` if there is no session, or if CUPTI does not answer within 5 s.
pub fn flush() -> Result<()> {
    stage::running_session()?.flush()
}

/// Returns the results so far, while recording continues. The results consist of the ledger (the counts that are
/// printed on exit) and the total time of each kernel. GPU work that is not complete yet counts as pending launches.
/// The numbers in the results cover all windows so far, and never decrease. Therefore the difference between the
/// results of two calls describes the work between these calls.
///
/// First collects the completed records, as [`flush`] does. Do not call this function in every step: the more distinct
/// stacks there are, the longer the call takes.
///
/// # Errors
/// Returns the same errors as [`flush`].
pub fn stats() -> Result<Stats> {
    stage::running_session()?.stats()
}

/// Guard that represents an open window. When the guard is dropped, the window closes (see [`window`](fn@window)).
#[derive(Debug)]
#[must_use = "the window closes when this guard is dropped, which is at once unless a variable holds it"]
pub struct Window(());

/// Opens a window, as [`start`] does. The window closes when the returned guard is dropped.
///
/// Windows cannot be nested. If two guards exist at the same time, even on different threads, the window closes when
/// the first of them is dropped.
///
/// # Errors
/// Returns the same errors as [`start`].
pub fn window() -> Result<Window> {
    start().map(|()| Window(()))
}

impl Drop for Window {
    fn drop(&mut self) {
        // If `stop` fails, there is no window to close, so the error is ignored.
        let _ = stop();
    }
}

/// Prepares the process for the first call of CUPTI.
fn prepare_process() {
    forked_child::note_session_begin();
    notices::set_listener(on_notice);
}

/// Handles notices, which CUPTI's callbacks send. This function runs on the application's threads.
fn on_notice(notice: Notice<'_>) {
    if lifecycle::is_over() && notice != Notice::Panicked {
        return;
    }
    match notice {
        // The driver may register exit handlers when it creates its first CUDA context. gpuflame's exit handler must
        // run before the driver's handlers, so gpuflame's handler is moved to the front again.
        Notice::ContextCreated => shutdown::move_exit_handler_first(),
        Notice::ContextEnds => {
            // gpuflame must not hold one of its own locks while it calls CUPTI. `running_session` has already released
            // the lock of the stage.
            let session = stage::running_session();
            if let Ok(session) = session {
                session.on_context_end();
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
        Notice::Step(name) => begin_step(name),
        Notice::BuffersFilled => {
            if let Some(session) = Session::get() {
                session.on_buffers_waiting();
            }
        }
        Notice::ClientTakeover(_) => {
            if let Some(session) = Session::get() {
                session.on_client_takeover();
            }
        }
        Notice::Fatal(reason) => {
            print_from_app(&format!("CUPTI failed: {reason}; records that it had not delivered are lost"))
        }
        Notice::Panicked => disable_after_panic(),
    }
}
