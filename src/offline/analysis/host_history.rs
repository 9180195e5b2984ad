//! Collects the stacks of the host's threads for the times between API calls that launch GPU work or wait for GPU work.
//!
//! Traces of other tools contain rows about states, which give the stack of a thread over time. Recordings made by
//! gpuflame contain only the calls that allocate, free or wait.

use super::findings::HostStates;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{Activity, ContextId, CorrelationId, HostCallSpan, IdMap, Row, ThreadId};

/// A [`Sink`] that stores the rows from which a [`HostHistory`] is created.
#[derive(Debug, Default)]
pub struct HostHistoryRows {
    states: HostStates,
    /// Host calls as (start, end, stack), in the order of their ends.
    calls: Vec<(u64, u64, ContextId)>,
}

impl Sink for HostHistoryRows {
    fn activity(&mut self, _activity: &Activity, _origin: Origin) {}

    fn pending(&mut self, _id: CorrelationId, _launched: Launched) {}

    fn host(&mut self, row: &Row<'_>) {
        match *row {
            Row::HostState(_) => self.states.row(row),
            // Calls are not stored if the data contains states, because the states include the calls. Rows about states
            // come before rows about calls.
            Row::HostCallSpan(HostCallSpan { ended, duration, context }) if self.states.is_empty() => {
                self.calls.push((ended.0.saturating_sub(duration.into()), ended.0, context));
            }
            _ => {}
        }
    }
}

/// Stacks of the host's threads over time.
#[derive(Debug, Default)]
pub struct HostHistory {
    states: HostStates,
    /// Host calls of each thread, sorted by start. Calls of one thread do not overlap.
    calls: IdMap<ThreadId, Vec<(u64, u64, ContextId)>>,
}

impl HostHistory {
    /// Creates the history of a run from its stored rows and its profile.
    pub fn new(rows: HostHistoryRows, profile: &Profile) -> Self {
        let HostHistoryRows { states, calls: mut all } = rows;
        // If an outer and an inner call begin at the same time, the outer call comes first.
        all.sort_unstable_by_key(|(begin, end, _)| (*begin, std::cmp::Reverse(*end)));
        let mut calls: IdMap<ThreadId, Vec<(u64, u64, ContextId)>> = IdMap::default();
        for (begin, end, context) in all {
            let Some(thread) = profile.context(context).map(|context| context.thread) else { continue };
            let of_thread = calls.entry(thread).or_default();
            let begin = of_thread.last().map_or(begin, |(_, before, _)| begin.max(*before));
            if begin < end {
                of_thread.push((begin, end, context));
            }
        }
        Self { states, calls }
    }

    /// Returns the known stacks of `thread` between `from` and `to` (ns since 1970) as (start, end, stack), sorted by
    /// start. The returned time ranges never overlap, even if a damaged file contains rows that overlap.
    pub(super) fn during(
        &self,
        thread: ThreadId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (u64, u64, ContextId)> + '_ {
        let calls = self.calls.get(&thread).filter(|_| self.states.is_empty()).map_or(&[][..], Vec::as_slice);
        let first = calls.partition_point(|(_, end, _)| *end <= from);
        let calls = calls[first..].iter().take_while(move |(begin, ..)| *begin < to).copied();
        let known = self.states.during(thread, from, to).chain(calls);
        let mut at = from;
        known.filter_map(move |(begin, end, context)| {
            let (begin, end) = (begin.max(at), end.min(to));
            if begin >= end {
                return None;
            }
            at = end;
            (context >= ContextId::FIRST).then_some((begin, end, context))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{HostState, Nanos};

    #[test]
    fn states_of_a_damaged_file_do_not_overlap() {
        let mut rows = HostHistoryRows::default();
        let thread = ThreadId(1);
        let call = HostCallSpan { ended: Nanos(90), duration: 80, context: ContextId(9) };
        rows.host(&Row::HostCallSpan(call));
        for (since, context) in [(10, 5), (40, 6), (20, 7), (60, 0)] {
            rows.host(&Row::HostState(HostState {
                thread,
                since: Nanos(since),
                context: ContextId(context),
            }));
        }
        let history = HostHistory {
            states: rows.states,
            calls: [(thread, vec![(10, 90, ContextId(9))])].into_iter().collect(),
        };
        let spans: Vec<_> =
            history.during(thread, 15, 80).map(|(begin, end, context)| (begin, end, context.0)).collect();
        assert_eq!(spans, [(15, 40, 5), (40, 60, 7)]);
    }
}
