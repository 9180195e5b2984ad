//! The stages of a session, of which there is one a process:
//!
//! ```text
//! Idle --inject()/start()--> Starting --> Running
//!                               |
//!                               +--> Failed (said once; the application runs on)
//! ```
//!
//! until [`life`](crate::control::life) is over.

use std::panic::catch_unwind;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

use crate::capture::forks;
use crate::control::life;
use crate::error::{Error, ErrorKind, Result};
use crate::host::stack;

use super::panic::disable_after_panic;
use super::running::Session;

enum Stage {
    Idle,
    Starting(ThreadId),
    Running(&'static Session),
    Failed(Error),
}

static STAGE: Mutex<Stage> = Mutex::new(Stage::Idle);
static STAGE_CHANGED: Condvar = Condvar::new();

/// The session that `set_up` makes, if there is none and nobody is making one. Waits for nobody.
pub(super) fn begin_if_idle(set_up: fn() -> Result<&'static Session>) -> Option<Result<&'static Session>> {
    {
        let mut stage = STAGE.lock();
        if !matches!(*stage, Stage::Idle) {
            return None;
        }
        *stage = Stage::Starting(std::thread::current().id());
    }
    Some(make(set_up))
}

/// The session that there is, or the one that `set_up` makes. Waits for a thread that is making one. `None`: this thread
/// is making it, further up its stack.
pub(super) fn get_or_begin(set_up: fn() -> Result<&'static Session>) -> Result<Option<&'static Session>> {
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
    make(set_up).map(Some)
}

/// From `Starting` to `Running` or `Failed`. The lock is not held while CUPTI is called: subscribing may
/// initialise the driver, and the driver may inject us.
fn make(set_up: fn() -> Result<&'static Session>) -> Result<&'static Session> {
    // Those who wait for us wait for a result, even if there is none.
    let result = stack::run_on_our_own(set_up, |set_up| {
        catch_unwind(set_up).unwrap_or_else(|_| {
            disable_after_panic();
            Err(life::over())
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

/// The session, if it runs.
pub(super) fn running() -> Result<&'static Session> {
    if forks::is_over() {
        return Err(life::over());
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
