//! CUPTI's internal lock. The lock is held while the client's `bufferRequested` runs. So a client deadlocks if it takes
//! a lock of its own in `bufferRequested`, and holds that lock while it calls CUPTI elsewhere. If a thread waits longer
//! for CUPTI's lock than the watchdog allows, it prints a message and aborts.

use gpusim_core::settings;
use gpusim_core::sync::lock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
struct Owner {
    tid: i32,
    doing: &'static str,
}

static OWNER: Mutex<Option<Owner>> = Mutex::new(None);
static FREE: Condvar = Condvar::new();

/// The lock, held until dropped.
pub(crate) struct SimLock(());

/// Takes the lock; `doing` names the reason in the watchdog's message.
pub(crate) fn hold(doing: &'static str) -> SimLock {
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() };
    let limit = Duration::from_millis(settings::get().watchdog_ms);
    let started = Instant::now();
    let mut owner = owner();
    while let Some(other) = *owner {
        if other.tid == tid || started.elapsed() >= limit {
            gpusim_core::abort!(
                "deadlock: thread {tid} waits in {doing} for CUPTI's lock, which thread {} holds in {}",
                other.tid,
                other.doing
            );
        }
        owner = FREE.wait_timeout(owner, limit).unwrap_or_else(PoisonError::into_inner).0;
    }
    *owner = Some(Owner { tid, doing });
    SimLock(())
}

fn owner() -> MutexGuard<'static, Option<Owner>> {
    lock(&OWNER)
}

impl Drop for SimLock {
    fn drop(&mut self) {
        *owner() = None;
        FREE.notify_one();
    }
}
