//! Threads as the kernel knows them: what time they took of a processor, and who is left of a process.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::futex::Bits;
use super::{listing, scheduling};

/// The number of the calling thread. Asked of the kernel: glibc has the function from 2.30 on.
pub fn number() -> i32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Milliseconds since the machine started. May be asked in a signal handler.
pub fn milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a place to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// The processor time of one thread. A thread that waits for something that never comes takes none.
#[derive(Debug)]
pub struct Clock(AtomicI32);

impl Clock {
    /// Of no thread yet.
    pub const fn new() -> Self {
        Self(AtomicI32::new(0))
    }

    /// Of the calling thread from now on.
    pub fn follow_this_thread(&self) {
        let mut clock = 0;
        // SAFETY: `clock` is a place to write to.
        if unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } == 0 {
            self.0.store(clock, Ordering::Release);
        }
    }

    /// What it took so far: nothing if it is of no thread yet. May be asked in a signal handler.
    pub fn taken(&self) -> Duration {
        let clock = self.0.load(Ordering::Acquire);
        // No thread's clock is 0, which is that of the world, and always gets on.
        if clock == 0 {
            return Duration::ZERO;
        }
        let mut taken = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `taken` is a place to write to; a clock of a thread that is gone is refused.
        unsafe { libc::clock_gettime(clock, &mut taken) };
        Duration::new(taken.tv_sec as u64, taken.tv_nsec as u32)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Threads that there would not be without us.
static OURS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

thread_local! {
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of those that have said so.
pub fn is_ours() -> bool {
    IS_OURS.get()
}

/// Notes that the calling thread is one, and has it run where and as the process does, whatever binds its maker.
pub fn note_ours() {
    IS_OURS.set(true);
    lock().push(number());
    scheduling::as_the_process(&all());
}

/// Notes that the calling thread is one that has one thing to do: it is not among those that stay.
pub fn note_passing() {
    IS_OURS.set(true);
}

/// Has the calling thread go no further, for ever. Takes no memory.
pub fn stop() -> ! {
    static NEVER: Bits = Bits::new();
    loop {
        NEVER.wait(0, None);
    }
}

/// Notes those that came since there were only `before`, and take no signal: what a library has started for us.
pub fn note_ours_since(before: &[i32]) {
    lock().extend(all().into_iter().filter(|thread| !before.contains(thread) && takes_no_signal(*thread)));
}

fn lock() -> MutexGuard<'static, Vec<i32>> {
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the thread of `main` has ended, and no other is left but ours.
pub fn only_ours_are_left() -> bool {
    let main = std::process::id() as i32;
    main_has_ended() && {
        let ours = lock();
        all().iter().all(|thread| *thread == main || ours.contains(thread))
    }
}

/// The numbers of all threads of this process.
pub fn all() -> Vec<i32> {
    listing::names(Path::new("/proc/self/task"))
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// Whether a thread takes no signal at all, which those of applications hardly ever do.
fn takes_no_signal(number: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/self/task/{number}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    // All of 1 to 64 but those that cannot be blocked: KILL, STOP, and two of the C library's own.
    let cannot = |signal: i32| 1_u64 << (signal - 1);
    let all = !(cannot(libc::SIGKILL) | cannot(libc::SIGSTOP) | cannot(32) | cannot(33));
    blocked.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).is_some_and(|set| set & all == all)
}

/// Whether the thread of `main` has ended, and the process lives on by its others.
fn main_has_ended() -> bool {
    let main = std::process::id();
    let stat = fs::read_to_string(format!("/proc/self/task/{main}/stat")).unwrap_or_default();
    // The name before the state may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::signals;

    #[test]
    fn a_thread_is_told_by_its_number_its_signals_and_its_time() {
        let (before, ours) = (all(), number());
        assert!(before.contains(&ours) && !takes_no_signal(ours) && !main_has_ended());
        let (done, waits) = std::sync::mpsc::channel::<()>();
        static CLOCK: Clock = Clock::new();
        let (told, hears) = std::sync::mpsc::channel();
        let other = signals::without(|| {
            std::thread::spawn(move || {
                CLOCK.follow_this_thread();
                told.send(number()).unwrap();
                waits.recv().unwrap_err();
            })
        });
        let nobody = Clock::new();
        assert_eq!((nobody.taken(), nobody.taken()), (Duration::ZERO, Duration::ZERO), "of no thread");
        let number = hears.recv().unwrap();
        assert!(!before.contains(&number) && takes_no_signal(number));
        std::thread::sleep(Duration::from_millis(20));
        let taken = CLOCK.taken();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(CLOCK.taken(), taken, "it waits");
        drop(done);
        other.join().unwrap();
    }
}
