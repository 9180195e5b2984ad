//! Limits the CPU time that the sampler's thread uses, because this thread may be woken thousands of times per second.

/// Maximum debt of a budget in ns. A debt that is larger than this maximum can only mean that the clock was set back.
/// In this case, the debt is reset.
const MAX_DEBT_NS: u64 = 1_000_000_000;

/// A budget of time, for example of CPU time. The cost of each piece of work is added to a debt, and the debt decreases
/// as time passes.
#[derive(Debug)]
pub(super) struct Budget {
    /// Maximum total cost in ns of the work that may be done without a break after a pause.
    burst: u64,
    /// Time in ns at which the cost of all work so far will be paid off.
    paid_until: u64,
}

impl Budget {
    pub(super) const fn new(burst: u64) -> Self {
        Self { burst, paid_until: 0 }
    }

    /// Adds a piece of work that was done at the time `now` and costs `cost` ns.
    pub(super) fn pay(&mut self, now: u64, cost: u64) {
        let paid_until = if self.is_plausible(now) { self.paid_until } else { 0 };
        let from = paid_until.max(now.saturating_sub(self.burst));
        self.paid_until = from.saturating_add(cost).min(now.saturating_add(MAX_DEBT_NS));
    }

    /// Whether the cost of the work so far is not yet paid off at the time `now`.
    pub(super) fn is_overdrawn(&self, now: u64) -> bool {
        self.paid_until > now && self.is_plausible(now)
    }

    fn is_plausible(&self, now: u64) -> bool {
        self.paid_until <= now.saturating_add(MAX_DEBT_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn work_is_limited_after_a_burst() {
        // Each piece of work costs half a millisecond. The maximum burst of 20 ms therefore allows 40 pieces of work
        // without a break.
        let (mut budget, start) = (Budget::new(20 * MS), 1_000_000_000_000);
        let mut is_done = |now| {
            budget.pay(now, MS / 2);
            !budget.is_overdrawn(now)
        };
        assert_eq!((0..70).filter(|_| is_done(start)).count(), 40);
        let later = (100..1100).filter(|at| is_done(start + at * MS)).count();
        assert_eq!(later, 1000, "pieces of work that are a millisecond apart");
        // In this part of the test, the thread is woken all the time, but sleeps while its budget is overdrawn.
        let (mut now, end, mut pieces) = (start + 2_000 * MS, start + 3_000 * MS, 0);
        while now < end {
            now += if is_done(now) { MS / 50 } else { 5 * MS };
            pieces += 1;
        }
        assert!((1_500..=2_100).contains(&pieces), "{pieces} in a second");
        assert!((0..50).any(|_| is_done(start - 900_000 * MS)), "the clock was set back");
    }

    #[test]
    fn a_piece_that_costs_more_than_a_burst_is_paid_for_before_the_next_one() {
        let (mut budget, start) = (Budget::new(100 * MS), 1_000_000_000_000);
        budget.pay(start, 400 * MS);
        assert!(budget.is_overdrawn(start + 299 * MS) && !budget.is_overdrawn(start + 300 * MS));
        budget.pay(start, u64::MAX);
        assert!(!budget.is_overdrawn(start + MAX_DEBT_NS), "a debt is limited");
    }
}
