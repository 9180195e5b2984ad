//! Back-off for the checks whether the rules of generated code still match the code's instructions.
//!
//! The rule for code without unwind information is derived from the code's instructions (see `epilogue`), and a program may
//! replace generated code at its address at any time. Only the kernel can read code safely, which costs a system call per
//! frame. That is too much for every capture, so a thread checks the rules of a stack
//!
//! * in the first capture with such code, and after each check that found no replaced code again twice as many captures
//!   later, up to 4,096;
//! * 64 times as often while the walk fails at or after such code, or gets from such code to an address that no walk has
//!   seen before, since an out-of-date rule leads into the middle of a frame;
//! * in the next capture after a check that found replaced code.
//!
//! After a check that found replaced code, the stack is walked a second time, without caches. Another thread's caches may
//! depend on the old rule, so replacements are counted, and threads compare this count at stacks with such code. Until a
//! check, a stack may be wrong from the replaced code on; like every stack with generated code it is marked as guessed.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of replacements that any thread has found, modulo 2^32.
static REPLACEMENTS: AtomicU32 = AtomicU32::new(0);

/// Weight of a capture with a suspicious stack, compared with 1 for any other capture.
const SUSPICIOUS: u32 = 64;
/// Binary logarithm of the maximum number of captures between two checks.
const MAX_BACK_OFF: u32 = 12;
/// Maximum number of rules checked per walk.
const MAX_CHECKS: u32 = 256;

/// Back-off of one thread. Zeroed memory is a valid initial state.
#[derive(Debug, Default)]
pub(super) struct RecheckBackoff {
    /// Number of captures since the last check, by weight.
    captures: u32,
    /// Binary logarithm of the number of captures between two checks.
    back_off: u32,
    /// Number of replacements that this thread's caches already account for.
    replacements: u32,
    is_due: bool,
}

/// The checks of generated code's rules in one walk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checks {
    /// Number of rules that the walk may still check.
    remaining: u32,
    /// Number of checked rules that were out of date.
    found: u32,
    /// Whether the walk reached generated code.
    pub(super) reached_generated: bool,
    /// Whether the walk used a rule without checking it.
    is_trusting: bool,
    /// Whether the walk reached an address without a rule after it had used an unchecked rule.
    is_surprised: bool,
}

impl RecheckBackoff {
    /// Counts a capture of a stack with generated code. Returns true if the rules of that code must be checked.
    pub(super) fn count(&mut self, is_suspicious: bool) -> bool {
        self.captures = self.captures.saturating_add(if is_suspicious { SUSPICIOUS } else { 1 });
        self.is_due |= self.captures >= 1 << self.back_off;
        self.is_due || self.is_outdated()
    }

    /// Whether another thread has found a replacement that this thread's caches do not account for.
    fn is_outdated(&self) -> bool {
        self.replacements != REPLACEMENTS.load(Ordering::Acquire)
    }

    /// Begins a walk without caches. Returns the checks of this walk, and whether another thread has found a replacement
    /// that this thread's caches may depend on.
    pub(super) fn begin(&mut self) -> (Checks, bool) {
        let replacements = REPLACEMENTS.load(Ordering::Acquire);
        let is_outdated = std::mem::replace(&mut self.replacements, replacements) != replacements;
        (Checks { remaining: if self.is_due { MAX_CHECKS } else { 0 }, ..Checks::default() }, is_outdated)
    }

    /// Adjusts the back-off to the outcome of the walk.
    pub(super) fn end(&mut self, checks: Checks) {
        if !self.is_due {
            return;
        }
        (self.is_due, self.captures) = (false, 0);
        self.back_off = (self.back_off + 1).min(MAX_BACK_OFF);
        if checks.found > 0 {
            self.replacements = self.replacements.wrapping_add(checks.found);
            self.back_off = 0;
        }
    }
}

impl Checks {
    /// Creates the state of a walk that may check the maximum number of rules.
    pub(super) fn all() -> Self {
        Self { remaining: MAX_CHECKS, ..Self::default() }
    }

    /// Whether the walk may check one more rule.
    pub(super) fn start_check(&mut self) -> bool {
        self.reached_generated = true;
        self.is_trusting |= self.remaining == 0;
        let may_check = self.remaining > 0;
        self.remaining = self.remaining.saturating_sub(1);
        may_check
    }

    /// Reports that a checked rule is out of date, and with it all caches that depend on the rule.
    pub(super) fn report_replacement(&mut self) {
        self.found += 1;
        REPLACEMENTS.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the walk found a rule that was out of date.
    pub(super) fn found_replacement(&self) -> bool {
        self.found > 0
    }

    /// Reports that the walk reached an address that has no rule yet.
    pub(super) fn note_new_address(&mut self) {
        self.is_surprised |= self.is_trusting;
    }

    /// Whether an unchecked rule may have led a walk astray. `is_cut` tells whether the walk was cut.
    pub(super) fn are_suspicious(&self, is_cut: bool) -> bool {
        self.is_trusting && (self.is_surprised || is_cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the captures that check; the captures in `replaced` find replaced code.
    fn checked(
        recheck: &mut RecheckBackoff,
        captures: u32,
        replaced: &[u32],
        is_suspicious: bool,
    ) -> Vec<u32> {
        let check = |capture: &u32| {
            recheck.count(is_suspicious) && {
                let (mut checks, _) = recheck.begin();
                let is_taken = checks.start_check();
                if replaced.contains(capture) {
                    checks.report_replacement();
                }
                recheck.end(checks);
                is_taken
            }
        };
        (1..=captures).filter(check).collect()
    }

    #[test]
    fn checks_without_a_finding_become_rarer_and_a_finding_resets_the_back_off() {
        let mut recheck = RecheckBackoff::default();
        // Another test of this process may find a replacement, which makes captures walk again, but not check.
        assert_eq!(checked(&mut recheck, 40, &[7], false), [1, 3, 7, 8, 10, 14, 22, 38]);
        for _ in 0..MAX_BACK_OFF {
            recheck.back_off = MAX_BACK_OFF;
            let found = checked(&mut recheck, 3 << MAX_BACK_OFF, &[], false);
            assert!(found.windows(2).all(|two| two[1] - two[0] == 1 << MAX_BACK_OFF), "{found:?}");
        }
        let found = checked(&mut recheck, 640, &[], true);
        assert!(found.windows(2).all(|two| two[1] - two[0] == 64) && found.len() >= 9, "{found:?}");
    }

    #[test]
    fn a_walk_checks_a_limited_number_of_rules() {
        let mut checks = Checks::all();
        assert_eq!((0..1000).filter(|_| checks.start_check()).count(), MAX_CHECKS as usize);
        assert!(!Checks::default().start_check());
    }

    #[test]
    fn a_replacement_that_one_thread_finds_makes_each_other_walk_again_once() {
        let [mut one, mut other] = [RecheckBackoff::default(), RecheckBackoff::default()];
        checked(&mut one, 1, &[1], false);
        (other.back_off, other.captures) = (MAX_BACK_OFF, 0);
        assert!(other.count(false));
        let (mut checks, is_outdated) = other.begin();
        assert!(is_outdated && !checks.start_check());
        other.end(checks);
        assert_eq!(other.back_off, MAX_BACK_OFF);
    }
}
