//! CUPTI's internal lock. A thread holds this lock while the client's `bufferRequested` runs. Therefore a client can
//! deadlock if it takes its own lock in `bufferRequested`, and also holds its own lock while it calls CUPTI. If a
//! thread waits longer for CUPTI's lock than the watchdog allows, it prints a message and aborts.

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

/// Guard of the lock, which is released on drop.
pub(crate) struct SimLock(());

/// Takes CUPTI's lock. The watchdog's message contains `doing`, the reason why the owner holds the lock.
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
