//! The stages through which the session of a process passes. Each process has one session, which passes through these
//! stages:
//!
//! ```text
//! Idle --inject()/start()--> Starting --> Running
//!                               |
//!                               +--> Failed (printed once; the application continues)
//! ```
//!
//! A running session ends when gpuflame is switched off (see [`lifecycle`](crate::control::lifecycle)).

use std::panic::catch_unwind;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

use crate::capture::forked_child;
use crate::control::lifecycle;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os::stack;

use super::running::Session;
use crate::session::process::panic::disable_after_panic;

enum Stage {
    Idle,
    Starting(ThreadId),
    Running(&'static Session),
    Failed(Error),
}

static STAGE: Mutex<Stage> = Mutex::new(Stage::Idle);
static STAGE_CHANGED: Condvar = Condvar::new();

/// Creates the session by calling `set_up`. Returns `None` if a session already exists or is just being created. Does
/// not wait for other threads that create the session.
pub(crate) fn create_if_idle(set_up: fn() -> Result<&'static Session>) -> Option<Result<&'static Session>> {
    {
        let mut stage = STAGE.lock();
        if !matches!(*stage, Stage::Idle) {
            return None;
        }
        *stage = Stage::Starting(std::thread::current().id());
    }
    Some(create_session(set_up))
}

/// Returns the session of this process. If no session exists, creates it by calling `set_up`. If another thread is
/// creating the session, waits until that thread has finished. Returns `None` if this thread itself is already creating
/// the session, and this is a nested call.
pub(crate) fn get_or_create(set_up: fn() -> Result<&'static Session>) -> Result<Option<&'static Session>> {
    let mut stage = STAGE.lock();
    loop {
        match &*stage {
            Stage::Idle => break,
            Stage::Starting(by) if *by == std::thread::current().id() => return Ok(None),
            Stage::Starting(_) => STAGE_CHANGED.wait(&mut stage),
            Stage::Running(session) => return Ok(Some(session)),
            Stage::Failed(error) => return Err(error.clone()),
        }
    }
    *stage = Stage::Starting(std::thread::current().id());
    drop(stage);
    create_session(set_up).map(Some)
}

/// Creates the session, and changes the stage from `Starting` to `Running` or `Failed`. The lock of the stage is not
/// held while CUPTI is called. Subscribing to CUPTI may initialise the driver, and the driver may then inject gpuflame.
fn create_session(set_up: fn() -> Result<&'static Session>) -> Result<&'static Session> {
    // The stage must change even if `set_up` panics, because other threads may wait for this change.
    let result = stack::run_on_own_stack(set_up, |set_up| {
        catch_unwind(set_up).unwrap_or_else(|_| {
            disable_after_panic();
            Err(lifecycle::over_error())
        })
    });
    let mut stage = STAGE.lock();
    *stage = match &result {
        Ok(session) => Stage::Running(session),
        Err(error) => Stage::Failed(error.clone()),
    };
    STAGE_CHANGED.notify_all();
    result
}

/// Returns the session if it is running, and an error otherwise.
pub(crate) fn running_session() -> Result<&'static Session> {
    if forked_child::is_over() {
        return Err(lifecycle::over_error());
    }
    // In a forked child, the lock of the stage may stay locked forever, because another thread of the parent may have
    // held the lock at the fork. The lock can be held at a fork only if a session was requested before the fork.
    if !forked_child::session_has_begun() {
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
