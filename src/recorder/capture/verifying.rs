//! Verifies a sample of stacks by capturing them again with other methods (`GPUFLAME_VERIFY`).

use std::sync::atomic::{AtomicU32, Ordering};

use gpuflame_unwind::{Captured, Verifier};

use super::counts::Counts;

/// Number of stacks per verified stack; 0 = no stack is verified.
static VERIFIED: AtomicU32 = AtomicU32::new(0);

/// Makes threads that have not launched yet verify every `n`th stack: the stack is captured again with other methods,
/// and the results are compared (see [`Verifier`]). 0 = no stack is verified, which is the default.
pub fn verify_every(n: u32) {
    VERIFIED.store(n, Ordering::Relaxed);
}

/// A thread's state for [`verify_every`].
pub(super) struct Verifying {
    verifier: Verifier,
    every: u32,
    left: u32,
}

impl Verifying {
    /// Creates the state of a thread; `None` unless verification was requested.
    pub(super) fn new() -> Option<Self> {
        let every = VERIFIED.load(Ordering::Relaxed);
        if every == 0 { None } else { Some(Self { verifier: Verifier::new()?, every, left: every }) }
    }

    pub(super) fn look_at(&mut self, captured: &Captured<'_>, ours: usize, tally: &Counts) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.every;
            let verdict = self.verifier.verify(captured, ours as u64);
            tally.verified.stacks.add(1);
            tally.verified.unlike_plain.add(u64::from(!verdict.plain_agrees));
            tally.verified.unlike_libgcc.add(u64::from(!verdict.libgcc_agrees));
        }
    }
}
