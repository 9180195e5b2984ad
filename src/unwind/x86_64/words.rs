//! Reads the words of the stack that is being walked, either in place or through a copy.
//!
//! Unwind information may be wrong, and return addresses may be any value. Therefore this module checks for each
//! address that a walk requests whether the address is on the stack. The documentation of the crate `unwind` explains
//! why this check is enough.

use super::walk_end::WalkEnd;
use crate::bounds::StackBounds;
use crate::copy::{RED_ZONE, StackCopy};
use crate::memory;

/// Gives a walk access to the words of the stack that it walks.
pub(super) trait Words {
    /// Whether this stack is the thread's own.
    const IS_OWN_STACK: bool;

    /// Prepares to read from the stack that contains `sp`, the stack pointer at which a walk begins.
    fn begin(&mut self, sp: u64) -> Result<(), WalkEnd>;

    /// Returns the word at `address`, if a frame whose stack pointer is `sp` may have stored a word there.
    fn word(&mut self, sp: u64, address: u64) -> Option<u64>;

    /// Whether a frame whose stack pointer is `sp` may have a caller whose stack pointer is `cfa`, with a return
    /// address below `cfa`.
    fn can_be_caller_sp(&mut self, sp: u64, cfa: u64) -> bool;

    /// Returns the word that is `saved` bytes (at least 8) below `cfa`, and the word directly below `cfa`. Returns
    /// `None` if `cfa` cannot be the stack pointer of the caller of a frame whose stack pointer is `sp`.
    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)>;

    /// Prepares to read from the stack of the code that a signal interrupted. `from` is the stack pointer of the signal
    /// frame, and `sp` is the stack pointer of the interrupted code.
    fn enter_interrupted(&mut self, from: u64, sp: u64) -> Result<(), WalkEnd>;
}

/// Reads words of the thread's own stack in place, from the stack pointer to the stack's end.
pub(super) struct DirectStack {
    hi: u64,
}

impl DirectStack {
    /// Creates a reader of the part of `stack` above `sp`. `stack` is the thread's own stack and contains `sp`. Our
    /// own frames are below `sp`.
    #[inline(always)]
    pub(super) fn above(sp: u64, stack: StackBounds) -> Self {
        debug_assert!(stack.contains(sp));
        Self { hi: stack.hi }
    }
}

impl Words for DirectStack {
    const IS_OWN_STACK: bool = true;

    #[inline(always)]
    fn begin(&mut self, _sp: u64) -> Result<(), WalkEnd> {
        Ok(())
    }

    #[inline(always)]
    fn word(&mut self, sp: u64, address: u64) -> Option<u64> {
        let is_there = (address >= sp.wrapping_sub(RED_ZONE)) & (address <= self.hi.wrapping_sub(8));
        // SAFETY: every `sp` of a walk is at or above the `sp` at which the walk began, so the word is in the used part
        // of the thread's own stack.
        is_there.then(|| unsafe { memory::word(address) })
    }

    #[inline(always)]
    fn can_be_caller_sp(&mut self, sp: u64, cfa: u64) -> bool {
        (cfa >= sp.wrapping_add(8)) & (cfa <= self.hi)
    }

    #[inline(always)]
    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)> {
        let slot = cfa.wrapping_sub(saved);
        // The slot is at or below the return address, so it only remains to check that the slot is above the lower
        // bound.
        if !(self.can_be_caller_sp(sp, cfa) & (slot >= sp.wrapping_sub(RED_ZONE))) {
            return None;
        }
        // SAFETY: the slot is in the used part of the thread's own stack, because its address was checked against both
        // bounds.
        let saved = unsafe { memory::word(slot) };
        // SAFETY: this word is between the slot and the CFA, so it is in the used part of the thread's own stack too.
        Some((saved, unsafe { memory::word(cfa.wrapping_sub(8)) }))
    }

    fn enter_interrupted(&mut self, from: u64, sp: u64) -> Result<(), WalkEnd> {
        if (sp > from) & (sp < self.hi) { Ok(()) } else { Err(WalkEnd::Elsewhere) }
    }
}

impl Words for StackCopy {
    const IS_OWN_STACK: bool = false;

    fn begin(&mut self, sp: u64) -> Result<(), WalkEnd> {
        if StackCopy::enter(self, sp) { Ok(()) } else { Err(WalkEnd::Lost) }
    }

    fn word(&mut self, sp: u64, address: u64) -> Option<u64> {
        if address < sp.saturating_sub(RED_ZONE) { None } else { StackCopy::word(self, address) }
    }

    fn can_be_caller_sp(&mut self, sp: u64, cfa: u64) -> bool {
        cfa >= sp.saturating_add(8) && self.reaches(cfa - 8)
    }

    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)> {
        if !Words::can_be_caller_sp(self, sp, cfa) {
            return None;
        }
        Some((Words::word(self, sp, cfa.wrapping_sub(saved))?, StackCopy::word(self, cfa - 8)?))
    }

    fn enter_interrupted(&mut self, _from: u64, sp: u64) -> Result<(), WalkEnd> {
        self.begin(sp)
    }
}
