//! Lets threads sleep until a word in memory changes. Both sleeping and waking may happen in a signal handler, so the
//! code uses no lock and no heap memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Flags that are set once and never cleared. Threads can wait until a flag is set.
#[derive(Debug)]
pub struct EventFlags(AtomicU32);

impl EventFlags {
    /// Creates flags, all of them unset.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns the bits that are set.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether all `bits` are set.
    pub fn has(&self, bits: u32) -> bool {
        self.get() & bits == bits
    }

    /// Sets `bits`, and wakes all waiting threads.
    pub fn set(&self, bits: u32) {
        self.0.fetch_or(bits, Ordering::SeqCst);
        wake(&self.0);
    }

    /// Sleeps while the set bits equal `known`, for at most `patience`. May return early.
    pub fn wait(&self, known: u32, patience: Option<Duration>) {
        wait(&self.0, known, patience);
    }
}

impl Default for EventFlags {
    fn default() -> Self {
        Self::new()
    }
}

/// A counter of notifications. Threads can wait for the next notification.
#[derive(Debug)]
pub struct EventCount(AtomicU32);

impl EventCount {
    /// Creates a count of 0.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Number of notifications so far.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Counts a notification and wakes all waiting threads. This method may be called in a signal handler.
    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        wake(&self.0);
    }

    /// Sleeps while the number of notifications equals `known`, for at most `patience`. May return early.
    pub fn wait(&self, known: u32, patience: Option<Duration>) {
        wait(&self.0, known, patience);
    }
}

impl Default for EventCount {
    fn default() -> Self {
        Self::new()
    }
}

fn wake(word: &AtomicU32) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel wakes the threads that sleep on this address, and reads nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
}

fn wait(word: &AtomicU32, known: u32, patience: Option<Duration>) {
    let patience = patience.map(|patience| libc::timespec {
        tv_sec: patience.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    });
    let patience = patience.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and the time limit, and both exist until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, known, patience) };
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_futex_wait_ends_when_a_bit_is_set_or_after_its_timeout() {
        static WORD: EventFlags = EventFlags::new();
        WORD.wait(0, Some(Duration::from_millis(1)));
        assert!(!WORD.has(3));
        let other = std::thread::spawn(|| {
            while !WORD.has(2) {
                WORD.wait(WORD.get() & !2, None);
            }
            Instant::now()
        });
        WORD.set(1);
        std::thread::sleep(Duration::from_millis(5));
        let set_at = Instant::now();
        WORD.set(2);
        assert!(other.join().unwrap() >= set_at);
        assert_eq!(WORD.get(), 3);
    }
}
