//! Decides how often to check whether the rules of generated code still match the code's instructions.
//!
//! The rule for code without unwind information is derived from the code's instructions (see `epilogue`). But a program
//! may replace generated code by other code at the same address at any time. Generated code can be read safely only
//! through the kernel, which costs one system call per frame. Checking the rules in every capture would be too
//! expensive, so a thread checks the rules of stacks with generated code as follows:
//!
//! * The rules are checked in the first capture of a stack with generated code, and then at intervals of up to 4,096
//!   captures. Each check that finds no replaced code doubles the interval.
//! * While a thread's stacks are suspicious, the rules are checked 64 times as often as otherwise. A stack is
//!   suspicious if its walk fails at or after generated code. A stack is also suspicious if its walk goes from
//!   generated code to an address without a rule, because an outdated rule leads into the middle of a frame.
//! * After a check that found replaced code, the rules are also checked in the next capture.
//!
//! After a check that found replaced code, the stack is walked a second time, without caches. The caches of other
//! threads may also depend on the outdated rule. Therefore a global counter counts the replacements that were found. At
//! each stack with generated code, a thread compares this counter with the value that the thread saw last. Until the
//! next check finds that code was replaced, the part of a stack from the replaced code to the root may be wrong. A
//! stack that may be wrong is flagged as guessed, like every stack with generated code.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of times that any thread has found replaced code, modulo 2^32.
static REPLACEMENTS: AtomicU32 = AtomicU32::new(0);

/// Amount that the capture of a suspicious stack (whose walk may have used an outdated rule) adds to `captures`, so
/// that the next check comes sooner. A capture of a stack with generated code that is not suspicious adds 1.
const SUSPICIOUS: u32 = 64;
/// Binary logarithm of the maximum number of captures between two checks.
const MAX_BACK_OFF: u32 = 12;
/// Maximum number of rules checked per walk.
const MAX_CHECKS: u32 = 256;

/// The state by which one thread decides when to check rules of generated code. Zeroed memory is a valid initial
/// state.
#[derive(Debug, Default)]
pub(super) struct RecheckBackoff {
    /// Number of captures of stacks with generated code since the last check. A suspicious stack counts as
    /// `SUSPICIOUS` captures.
    captures: u32,
    /// Binary logarithm of the number of captures between two checks.
    back_off: u32,
    /// Value of `REPLACEMENTS` when this thread's caches were last brought up to date.
    replacements: u32,
    is_due: bool,
}

/// State of one walk's checks of the rules of generated code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checks {
    /// Number of rules that the walk may still check.
    remaining: u32,
    /// Number of checked rules that were out of date.
    found: u32,
    /// Whether the walk reached generated code.
    pub(super) reached_generated: bool,
    /// Whether the walk used a rule of generated code without checking it.
    is_trusting: bool,
    /// Whether the walk has used an unchecked rule and then reached an address without a rule.
    is_surprised: bool,
}

impl RecheckBackoff {
    /// Counts a capture of a stack with generated code. Returns true if the rules of that code must be checked.
    pub(super) fn count(&mut self, is_suspicious: bool) -> bool {
        self.captures = self.captures.saturating_add(if is_suspicious { SUSPICIOUS } else { 1 });
        self.is_due |= self.captures >= 1 << self.back_off;
        self.is_due || self.is_outdated()
    }

    /// Whether another thread has found replaced code since this thread's caches were last brought up to date.
    fn is_outdated(&self) -> bool {
        self.replacements != REPLACEMENTS.load(Ordering::Acquire)
    }

    /// Begins a walk without caches. Returns the state of this walk's checks. Also returns whether this thread's
    /// caches may be out of date, because another thread has found replaced code since the last call.
    pub(super) fn begin(&mut self) -> (Checks, bool) {
        let replacements = REPLACEMENTS.load(Ordering::Acquire);
        let is_outdated = std::mem::replace(&mut self.replacements, replacements) != replacements;
        (Checks { remaining: if self.is_due { MAX_CHECKS } else { 0 }, ..Checks::default() }, is_outdated)
    }

    /// Ends a walk that began with [`begin`](Self::begin). If the walk checked rules, sets the interval until the next
    /// check.
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
    /// Creates the state for a walk that checks up to `MAX_CHECKS` rules of generated code.
    pub(super) fn all() -> Self {
        Self { remaining: MAX_CHECKS, ..Self::default() }
    }

    /// Records that the walk reached generated code. Returns true if the walk may check the rule of this code.
    pub(super) fn start_check(&mut self) -> bool {
        self.reached_generated = true;
        self.is_trusting |= self.remaining == 0;
        let may_check = self.remaining > 0;
        self.remaining = self.remaining.saturating_sub(1);
        may_check
    }

    /// Counts a checked rule that is out of date, so that all threads drop their cached data about generated code.
    pub(super) fn report_replacement(&mut self) {
        self.found += 1;
        REPLACEMENTS.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the walk found a rule that was out of date.
    pub(super) fn found_replacement(&self) -> bool {
        self.found > 0
    }

    /// Notes that the walk reached an address without a rule.
    pub(super) fn note_new_address(&mut self) {
        self.is_surprised |= self.is_trusting;
    }

    /// Whether the walk may be wrong because it used an outdated rule without checking it. `is_cut` states whether the
    /// walk was cut.
    pub(super) fn are_suspicious(&self, is_cut: bool) -> bool {
        self.is_trusting && (self.is_surprised || is_cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `captures` captures. Simulates captures. The captures with an index in `replaced` find replaced code.
    /// Returns the indices (from 1) of the captures that check their rules.
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
        // Another test in this process may find replaced code during this test. If another test finds replaced code,
        // captures walk the stack again, but do not check rules.
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
