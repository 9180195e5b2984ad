//! Host threads on the stepped clock. Each thread has its own clock, which only the thread's API calls and
//! `gpusim_work` advance.
//!
//! The clocks, not the operating system, determine the order of calls. A call begins when no other declared thread's
//! clock shows an earlier time. If several clocks show the same time, the thread with the smallest index goes first.
//! Therefore two runs of a program give the same schedule. The main thread has index 0, and `gpusim_fork` declares
//! further threads. If a thread waits for another thread outside the simulation (`pthread_join`, a mutex), all clocks
//! stop, and the program ends with a message. Use `gpusim_join`, `gpusim_lock` and `gpusim_meet`, which wait inside the
//! simulation. Undeclared threads do not take turns, so their order differs between runs.

use crate::clock;
use crate::journal;
use crate::settings;
use crate::thread::{self, Thread};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time on the stepped clock at which the first thread begins. This time is not 0, because trace readers treat a time
/// of 0 as missing.
pub const BEGINNING: u64 = 1_000_000;

/// State of a declared thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The thread runs. A call of another thread waits until this thread's clock has passed the time at which that call
    /// begins.
    Active,
    /// The thread waits for another thread.
    Blocked,
    Ended,
}

#[derive(Debug)]
struct HostThread {
    clock: u64,
    state: State,
}

#[derive(Debug, Default)]
struct Lock {
    holder: Option<usize>,
    waiting: Vec<usize>,
}

/// The declared threads and their waits.
#[derive(Debug, Default)]
struct Turns {
    threads: Vec<HostThread>,
    locks: BTreeMap<u64, Lock>,
    /// Indexes of the threads that have arrived at each meeting, keyed by the meeting's id.
    meetings: BTreeMap<u64, Vec<usize>>,
    /// Pairs of threads: the first thread waits until the second thread ends.
    joining: Vec<(usize, usize)>,
    /// Number of changes that have been made to this state. If this number grows, a waiting thread knows that other
    /// threads make progress.
    changes: u64,
}

impl Turns {
    fn declare(&mut self, clock: u64) -> usize {
        self.threads.push(HostThread { clock, state: State::Active });
        self.threads.len() - 1
    }

    /// Returns the index of the thread that may run next.
    fn next(&self) -> Option<usize> {
        let active = self.threads.iter().enumerate().filter(|(_, thread)| thread.state == State::Active);
        active.min_by_key(|(number, thread)| (thread.clock, *number)).map(|(number, _)| number)
    }

    fn set_clock(&mut self, number: usize, clock: u64) {
        self.threads[number].clock = clock;
        self.changes += 1;
    }

    fn block(&mut self, number: usize) {
        self.threads[number].state = State::Blocked;
        self.changes += 1;
    }

    /// Lets a blocked thread continue, at `time` or later.
    fn release(&mut self, number: usize, time: u64) {
        let thread = &mut self.threads[number];
        thread.clock = thread.clock.max(time);
        thread.state = State::Active;
        self.changes += 1;
    }

    /// Acquires a lock for the running thread, or blocks this thread if another thread holds the lock.
    fn lock(&mut self, id: u64, number: usize) {
        let lock = self.locks.entry(id).or_default();
        match lock.holder {
            None => lock.holder = Some(number),
            Some(_) => {
                lock.waiting.push(number);
                self.block(number);
            }
        }
    }

    /// Passes a lock to the thread that has waited longest. Returns false if the thread does not hold the lock.
    fn unlock(&mut self, id: u64, number: usize) -> bool {
        let time = self.threads[number].clock;
        let Some(lock) = self.locks.get_mut(&id).filter(|lock| lock.holder == Some(number)) else {
            return false;
        };
        let first =
            lock.waiting.iter().copied().min_by_key(|&waiting| (self.threads[waiting].clock, waiting));
        lock.holder = first;
        lock.waiting.retain(|&waiting| Some(waiting) != first);
        if let Some(first) = first {
            self.release(first, time);
        }
        true
    }

    /// Blocks the thread until `count` threads have arrived at the meeting. All these threads then continue at the time
    /// at which the last thread arrived.
    fn meet(&mut self, id: u64, count: usize, number: usize) {
        let arrived = self.meetings.entry(id).or_default();
        arrived.push(number);
        if arrived.len() < count {
            return self.block(number);
        }
        let arrived = self.meetings.remove(&id).unwrap_or_default();
        let time = arrived.iter().map(|&one| self.threads[one].clock).max().unwrap_or(0);
        arrived.into_iter().for_each(|one| self.release(one, time));
    }

    fn join(&mut self, other: usize, number: usize) {
        match self.threads[other].state {
            State::Ended => self.release(number, self.threads[other].clock),
            _ => {
                self.joining.push((other, number));
                self.block(number);
            }
        }
    }

    fn end(&mut self, number: usize) {
        self.threads[number].state = State::Ended;
        self.changes += 1;
        let time = self.threads[number].clock;
        let waiting: Vec<_> = self.joining.extract_if(.., |(other, _)| *other == number).collect();
        waiting.into_iter().for_each(|(_, joiner)| self.release(joiner, time));
    }
}

static TURNS: Mutex<Turns> = Mutex::new(Turns {
    threads: Vec::new(),
    locks: BTreeMap::new(),
    meetings: BTreeMap::new(),
    joining: Vec::new(),
    changes: 0,
});
static CHANGED: Condvar = Condvar::new();
/// Latest time that the clock of any thread has shown so far. The clock of a new undeclared thread starts at this time.
static LATEST: AtomicU64 = AtomicU64::new(BEGINNING);

fn turns() -> MutexGuard<'static, Turns> {
    crate::sync::lock(&TURNS)
}

/// Returns the time on the thread's own clock, in ns.
pub fn host_time(thread: &Thread) -> u64 {
    if thread.host.get() == 0 {
        thread.host.set(LATEST.load(Relaxed));
    }
    thread.host.get()
}

/// Advances the thread's clock to `time`, unless the clock already shows a later time. During an API call, other
/// threads do not see the new time until the call ends, so that each call is over before the next call begins.
pub fn reach(thread: &Thread, time: u64) {
    thread.host.set(host_time(thread).max(time));
}

/// Returns the thread's index, or `None` if the thread is not declared. The main thread is declared by its first call.
fn number(thread: &Thread) -> Option<usize> {
    // SAFETY: getpid has no precondition.
    if thread.number.get().is_none() && thread.tid == unsafe { libc::getpid() } as u32 {
        thread.number.set(Some(turns().declare(host_time(thread))));
    }
    thread.number.get()
}

/// Publishes the time on the thread's clock, so that other threads may continue.
fn publish(thread: &Thread) {
    let time = host_time(thread);
    LATEST.fetch_max(time, Relaxed);
    if let Some(number) = number(thread) {
        turns().set_clock(number, time);
        CHANGED.notify_all();
    }
}

/// Waits until `ready` returns true. Aborts if no thread makes progress within the watchdog's time limit.
fn wait(number: usize, ready: impl Fn(&Turns) -> bool) -> MutexGuard<'static, Turns> {
    let limit = Duration::from_millis(settings::get().watchdog_ms);
    let mut turns = turns();
    while !ready(&turns) {
        let before = turns.changes;
        let (guard, timeout) = CHANGED.wait_timeout(turns, limit).unwrap_or_else(PoisonError::into_inner);
        turns = guard;
        if timeout.timed_out() && turns.changes == before && !ready(&turns) {
            crate::abort!(
                "host thread {number} has waited {limit:?} for host thread {:?}: a program on the stepped clock waits \
                 for its threads with gpusim_join, gpusim_lock and gpusim_meet",
                turns.next()
            );
        }
    }
    turns
}

/// Waits for the calling thread's turn, runs `act`, and waits until the thread is active again.
fn in_turn(act: impl FnOnce(&mut Turns, usize)) {
    let thread = thread::current();
    let Some(number) = number(thread) else {
        crate::abort!(
            "a thread that waits for another thread on the stepped clock must be declared with gpusim_fork"
        )
    };
    let mut turns = wait(number, |turns| turns.next() == Some(number));
    act(&mut turns, number);
    drop(turns);
    CHANGED.notify_all();
    let turns = wait(number, |turns| turns.threads[number].state == State::Active);
    thread.host.set(turns.threads[number].clock);
}

/// Runs `act` in the thread's turn like `in_turn`, and logs it as a call to the C library's function `name`.
fn note_in_turn(name: &'static str, act: impl FnOnce(&mut Turns, usize)) {
    let thread = thread::current();
    let begin = host_time(thread);
    in_turn(act);
    journal::thread_wait(thread, name, (begin, host_time(thread)));
}

/// Begins an outermost API call: waits for the thread's turn.
pub fn begin_call(thread: &Thread) {
    if let Some(number) = number(thread) {
        drop(wait(number, |turns| turns.next() == Some(number)));
    }
    pace(thread);
    if settings::get().pace {
        let late = clock::realtime().saturating_sub(clock::base() + host_time(thread));
        SHIFT.fetch_max(late, Relaxed);
    }
}

/// Ends an outermost API call, which takes at least `cost` ns on the thread's clock.
pub fn end_call(thread: &Thread, entered: u64, cost: u64) {
    reach(thread, entered - clock::base() + cost);
    pace(thread);
    publish(thread);
}

/// With GPUSIM_PACE=1: the longest delay, in ns, by which a call has so far really begun later than in the schedule.
/// The times in activity records are shifted by this delay, so the time between a call and the begin of its GPU work is
/// the same as in the schedule.
static SHIFT: AtomicU64 = AtomicU64::new(0);

/// Returns the time in ns by which activity records are later than the schedule, or 0 without GPUSIM_PACE.
pub fn shift() -> u64 {
    SHIFT.load(Relaxed)
}

/// With GPUSIM_PACE=1, waits until real time has caught up with the thread's clock.
fn pace(thread: &Thread) {
    if settings::get().pace {
        clock::sleep_until(clock::base() + host_time(thread) + shift());
    }
}

/// Runs `block`, which waits for other threads outside the simulation. While `block` runs, the thread takes no turns,
/// so other threads do not wait for it.
pub fn apart<T>(block: impl FnOnce() -> T) -> T {
    let Some(number) = thread::current().number.get() else { return block() };
    turns().block(number);
    CHANGED.notify_all();
    let result = block();
    turns().release(number, 0);
    CHANGED.notify_all();
    result
}

/// Runs a host function. While the function runs, its thread does not wait for turns. Returns the time that the
/// function took.
pub fn host_function(run: impl FnOnce()) -> u64 {
    let thread = thread::current();
    let outer = thread.host_function.replace(Some(0));
    run();
    thread.host_function.replace(outer).unwrap_or(0)
}

/// Advances the calling thread's clock by `ns`, as if the thread worked outside the CUDA API.
pub fn work(ns: u64) {
    let thread = thread::current();
    match thread.host_function.get() {
        Some(sum) => thread.host_function.set(Some(sum + ns)),
        None => {
            reach(thread, host_time(thread) + ns);
            publish(thread);
        }
    }
}

/// Declares a thread that the caller is about to create. The new thread's clock starts at the time that the calling
/// thread's clock shows. Returns the new thread's index.
pub fn fork() -> u64 {
    let mut made = 0;
    in_turn(|turns, number| made = turns.declare(turns.threads[number].clock));
    made as u64
}

/// Makes the calling thread the declared thread with the index `number`.
pub fn begin(number: u64) {
    let thread = thread::current();
    let turns = turns();
    let Some(declared) = turns.threads.get(number as usize) else {
        crate::abort!("gpusim_begin({number}): gpusim_fork has not returned this number")
    };
    thread.number.set(Some(number as usize));
    thread.host.set(declared.clock);
}

/// Waits for the end of a declared thread.
pub fn join(other: u64) {
    note_in_turn("pthread_join", |turns, number| {
        if other as usize >= turns.threads.len() {
            crate::abort!("gpusim_join({other}): gpusim_fork has not returned this number");
        }
        turns.join(other as usize, number);
    });
}

/// Acquires the lock `id`.
pub fn lock(id: u64) {
    note_in_turn("pthread_mutex_lock", |turns, number| turns.lock(id, number));
}

/// Releases a lock.
pub fn unlock(id: u64) {
    note_in_turn("pthread_mutex_unlock", |turns, number| {
        if !turns.unlock(id, number) {
            crate::abort!("gpusim_unlock({id}): host thread {number} does not hold this lock");
        }
    });
}

/// Waits until `count` threads have called this function with the same `id`.
pub fn meet(id: u64, count: u64) {
    note_in_turn("pthread_barrier_wait", |turns, number| turns.meet(id, count as usize, number));
}

/// Ends a declared thread. Called when the operating system's thread ends.
pub fn end(thread: &Thread) {
    if let Some(number) = thread.number.take() {
        turns().end(number);
        CHANGED.notify_all();
    }
}

/// Exports the functions that programs call on the stepped clock. The generated functions pass their arguments to
/// `$host`. Both libcuda and libcudart export these functions, because a program links only one of the two libraries.
#[macro_export]
macro_rules! host_functions {
    ($host:path) => {
        /// Advances the calling thread's clock by `ns`.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_work(ns: u64) {
            $host(0, ns, 0);
        }

        /// Declares a thread that the caller is about to create. Returns the new thread's index.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_fork() -> u64 {
            $host(1, 0, 0)
        }

        /// Makes the calling thread the declared thread with this index.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_begin(number: u64) {
            $host(2, number, 0);
        }

        /// Waits for the end of a declared thread.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_join(number: u64) {
            $host(3, number, 0);
        }

        /// Acquires the lock with the id `lock`.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_lock(lock: u64) {
            $host(4, lock, 0);
        }

        /// Releases a lock.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_unlock(lock: u64) {
            $host(5, lock, 0);
        }

        /// Waits until `count` threads have called this function with the same `meeting`.
        #[unsafe(no_mangle)]
        extern "C" fn gpusim_meet(meeting: u64, count: u64) {
            $host(6, meeting, count);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_clocks(clocks: &[u64]) -> Turns {
        let mut turns = Turns::default();
        clocks.iter().for_each(|&clock| {
            turns.declare(clock);
        });
        turns
    }

    #[test]
    fn the_earliest_active_thread_goes_first_and_the_smaller_number_at_equal_times() {
        let mut turns = with_clocks(&[30, 20, 20]);
        assert_eq!(turns.next(), Some(1));
        turns.block(1);
        assert_eq!(turns.next(), Some(2));
        turns.set_clock(2, 31);
        assert_eq!(turns.next(), Some(0));
        turns.end(0);
        turns.end(2);
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn a_lock_passes_to_the_longest_waiting_thread_at_the_time_of_its_release() {
        let mut turns = with_clocks(&[10, 25, 20]);
        [0, 2, 1].into_iter().for_each(|number| turns.lock(7, number));
        turns.set_clock(0, 40);
        assert!(!turns.unlock(7, 1) && turns.unlock(7, 0));
        assert_eq!((turns.threads[2].clock, turns.threads[2].state), (40, State::Active));
        assert_eq!((turns.threads[1].clock, turns.threads[1].state), (25, State::Blocked));
    }

    #[test]
    fn a_meeting_ends_at_the_time_of_the_last_thread_and_can_be_repeated() {
        let mut turns = with_clocks(&[10, 25, 20]);
        turns.meet(1, 2, 0);
        assert_eq!(turns.next(), Some(2));
        turns.meet(1, 2, 1);
        assert_eq!((turns.threads[0].clock, turns.threads[1].clock), (25, 25));
        turns.meet(1, 2, 2);
        assert_eq!(turns.threads[2].state, State::Blocked);
    }

    #[test]
    fn a_join_ends_at_the_end_of_the_thread_or_at_once_if_that_is_past() {
        let mut turns = with_clocks(&[10, 30]);
        turns.join(1, 0);
        assert_eq!(turns.next(), Some(1));
        turns.end(1);
        assert_eq!((turns.threads[0].clock, turns.next()), (30, Some(0)));
        turns.set_clock(0, 50);
        turns.join(1, 0);
        assert_eq!(turns.threads[0].clock, 50);
    }
}
