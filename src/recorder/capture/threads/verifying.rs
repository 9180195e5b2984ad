//! Verifies a sample of stacks by capturing each of them again with other methods (`GPUFLAME_VERIFY`).

use std::sync::atomic::{AtomicU32, Ordering};

use gpuflame_unwind::{Captured, Verifier};

use super::thread_counters::ThreadCounters;

/// One in `VERIFY_INTERVAL` stacks is verified. If the interval is 0, no stack is verified.
static VERIFY_INTERVAL: AtomicU32 = AtomicU32::new(0);

/// Makes each thread that has not launched yet verify one in `n` of its stacks. If `n` is 0, which is the default, no
/// stack is verified. To verify a stack, gpuflame captures it again with other methods and compares the results (see
/// [`Verifier`]).
pub fn verify_every(n: u32) {
    VERIFY_INTERVAL.store(n, Ordering::Relaxed);
}

/// Verification state of a thread (see [`verify_every`]).
pub(crate) struct StackVerification {
    verifier: Verifier,
    every: u32,
    captures_left: u32,
}

impl StackVerification {
    /// Creates the verification state of a thread. Returns `None` if verification was not requested.
    pub(super) fn new() -> Option<Self> {
        let every = VERIFY_INTERVAL.load(Ordering::Relaxed);
        if every == 0 { None } else { Some(Self { verifier: Verifier::new()?, every, captures_left: every }) }
    }

    pub(crate) fn verify_sample(&mut self, captured: &Captured<'_>, ours: usize, counters: &ThreadCounters) {
        self.captures_left -= 1;
        if self.captures_left == 0 {
            self.captures_left = self.every;
            let verdict = self.verifier.verify(captured, ours as u64);
            counters.verified.stacks.add(1);
            counters.verified.unlike_plain.add(u64::from(!verdict.plain_agrees));
            counters.verified.unlike_libgcc.add(u64::from(!verdict.libgcc_agrees));
        }
    }
}
