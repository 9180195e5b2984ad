//! How a walk reads the stack that it is on: as it lies, or through a copy.
//!
//! Unwind information may be wrong, and return addresses anything, so whatever a walk asks for is held against the
//! stack here. The module `unwind` says why that is enough.

use super::end::End;
use crate::unwind::bounds::Stack;
use crate::unwind::copy::{RED_ZONE, StackCopy};
use crate::unwind::memory;

/// The words of the stack that a walk is on.
pub(super) trait Words {
    /// Whether it is the thread's own stack.
    const ARE_OWN: bool;

    /// Goes to where a walk begins.
    fn begin(&mut self, sp: u64) -> Result<(), End>;

    /// The word at `address`, where a frame at `sp` may have kept one.
    fn word(&mut self, sp: u64, address: u64) -> Option<u64>;

    /// Whether a frame at `sp` may have its caller's stack pointer at `cfa`, and a return address below.
    fn leads_on(&mut self, sp: u64, cfa: u64) -> bool;

    /// The words `saved` bytes below `cfa`, which are at least 8, and right below it, if that may be the stack pointer
    /// of the caller of a frame at `sp`.
    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)>;

    /// Goes from the signal frame at `from` to what was interrupted with the stack pointer at `sp`.
    fn enter(&mut self, from: u64, sp: u64) -> Result<(), End>;
}

/// The words of the thread's own stack, from its stack pointer to its end: they are read where they lie.
pub(super) struct Own {
    hi: u64,
}

impl Own {
    /// The part of `stack`, the thread's own, above `sp`, which it contains and below which the stack reaches on: our
    /// own frames lie there.
    #[inline(always)]
    pub(super) fn above(sp: u64, stack: Stack) -> Self {
        debug_assert!(stack.contains(sp));
        Self { hi: stack.hi }
    }
}

impl Words for Own {
    const ARE_OWN: bool = true;

    #[inline(always)]
    fn begin(&mut self, _sp: u64) -> Result<(), End> {
        Ok(())
    }

    #[inline(always)]
    fn word(&mut self, sp: u64, address: u64) -> Option<u64> {
        let is_there = (address >= sp.wrapping_sub(RED_ZONE)) & (address <= self.hi.wrapping_sub(8));
        // SAFETY: every `sp` of a walk is at least the one that it began at, so the word lies on the part of the
        // thread's own stack that is in use.
        is_there.then(|| unsafe { memory::word(address) })
    }

    #[inline(always)]
    fn leads_on(&mut self, sp: u64, cfa: u64) -> bool {
        (cfa >= sp.wrapping_add(8)) & (cfa <= self.hi)
    }

    #[inline(always)]
    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)> {
        let slot = cfa.wrapping_sub(saved);
        // At or below the return address, so that one bound is left to check.
        if !(self.leads_on(sp, cfa) & (slot >= sp.wrapping_sub(RED_ZONE))) {
            return None;
        }
        // SAFETY: as in `word`.
        let saved = unsafe { memory::word(slot) };
        // SAFETY: likewise, for it lies between that slot and the CFA.
        Some((saved, unsafe { memory::word(cfa.wrapping_sub(8)) }))
    }

    fn enter(&mut self, from: u64, sp: u64) -> Result<(), End> {
        if (sp > from) & (sp < self.hi) { Ok(()) } else { Err(End::Elsewhere) }
    }
}

impl Words for StackCopy {
    const ARE_OWN: bool = false;

    fn begin(&mut self, sp: u64) -> Result<(), End> {
        if StackCopy::enter(self, sp) { Ok(()) } else { Err(End::Lost) }
    }

    fn word(&mut self, sp: u64, address: u64) -> Option<u64> {
        if address < sp.saturating_sub(RED_ZONE) { None } else { StackCopy::word(self, address) }
    }

    fn leads_on(&mut self, sp: u64, cfa: u64) -> bool {
        cfa >= sp.saturating_add(8) && self.reaches(cfa - 8)
    }

    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)> {
        if !Words::leads_on(self, sp, cfa) {
            return None;
        }
        Some((Words::word(self, sp, cfa.wrapping_sub(saved))?, StackCopy::word(self, cfa - 8)?))
    }

    fn enter(&mut self, _from: u64, sp: u64) -> Result<(), End> {
        self.begin(sp)
    }
}
