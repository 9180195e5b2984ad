//! Stores the states of one thread (stacks or operations) in order of time, in 8 bytes per state. A trace contains a
//! state for each slice of a thread. A trace of half a gigabyte may contain a million states.

use gpuflame_model::record::ContextId;

/// States of one thread, in order of time. Each state lasts until the next state begins.
#[derive(Clone, Debug, Default)]
pub struct StateHistory {
    /// Lower half of the start time of each state, and the context of the state.
    states: Vec<(u32, ContextId)>,
    /// Each upper half of a start time that occurs, with the index of the first state with this upper half. The upper
    /// half of a time changes every 4.3 s.
    upper: Vec<(u32, usize)>,
}

impl StateHistory {
    /// Adds a state that begins at `since`. The states must be added in order of time.
    pub fn push(&mut self, since: u64, context: ContextId) {
        let [upper, lower] = halves(since);
        if self.upper.last().is_none_or(|(last, _)| *last != upper) {
            self.upper.push((upper, self.states.len()));
        }
        self.states.push((lower, context));
    }

    /// Returns the state that the thread had at `time`, and all later states, each with its start time. If `time` is
    /// before the first state, returns all states.
    pub fn since(&self, time: u64) -> impl Iterator<Item = (u64, ContextId)> + '_ {
        let first = self.count_until(time).saturating_sub(1);
        let mut at = self.upper.partition_point(|(_, index)| *index <= first).saturating_sub(1);
        (first..).zip(self.states.get(first..).unwrap_or_default()).map(move |(index, &(lower, context))| {
            if self.upper.get(at + 1).is_some_and(|(_, next)| *next <= index) {
                at += 1;
            }
            (u64::from(self.upper[at].0) << 32 | u64::from(lower), context)
        })
    }

    /// Returns the number of states that begin at or before `time`.
    fn count_until(&self, time: u64) -> usize {
        let [upper, lower] = halves(time);
        let after = self.upper.partition_point(|(known, _)| *known <= upper);
        let end = self.upper.get(after).map_or(self.states.len(), |(_, index)| *index);
        match after.checked_sub(1).map(|at| self.upper[at]) {
            Some((known, first)) if known == upper => {
                first + self.states[first..end].partition_point(|(known, _)| *known <= lower)
            }
            Some(_) => end,
            None => 0,
        }
    }

    /// Replaces each context by the context that the function `context` returns for it.
    pub(super) fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        self.states.iter_mut().for_each(|(_, state)| *state = context(*state));
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.states.capacity() * size_of::<(u32, ContextId)>()
            + self.upper.capacity() * size_of::<(u32, usize)>()
    }
}

/// Returns the upper and the lower 32 bits of a time in ns.
fn halves(time: u64) -> [u32; 2] {
    [(time >> 32) as u32, time as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_found_by_time_on_both_sides_of_a_change_of_the_upper_half() {
        const UPPER: u64 = 1 << 32;
        let mut history = StateHistory::default();
        let starts = [5, 9, UPPER - 1, UPPER, UPPER + 3, 7 * UPPER];
        for (start, context) in starts.into_iter().zip(10..) {
            history.push(start, ContextId(context));
        }
        let since = |time| history.since(time).map(|(start, context)| (start, context.0)).collect::<Vec<_>>();
        assert_eq!(since(0)[0], (5, 10), "the time is before the first state");
        assert_eq!(since(5)[..2], [(5, 10), (9, 11)]);
        assert_eq!(since(8)[0], (5, 10));
        assert_eq!(since(UPPER - 2)[..2], [(9, 11), (UPPER - 1, 12)]);
        assert_eq!(since(UPPER - 1), [(UPPER - 1, 12), (UPPER, 13), (UPPER + 3, 14), (7 * UPPER, 15)]);
        assert_eq!(since(UPPER + 2)[0], (UPPER, 13));
        assert_eq!(since(3 * UPPER), [(UPPER + 3, 14), (7 * UPPER, 15)], "between changes of the upper half");
        assert_eq!(since(u64::MAX), [(7 * UPPER, 15)]);
        assert_eq!(StateHistory::default().since(7).count(), 0);
    }
}
