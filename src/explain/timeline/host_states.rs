//! Stores the states of CPU threads from traces of other tools. A state is the stack or operation that a thread was in.
//! The states show what a thread did while a GPU waited for the thread.
//!
//! If the states are known, time in which the host was late with a launch is divided among the states of the launching
//! thread. The idle time is not charged to the late launch at its end, because the states before that launch delayed
//! it.

use std::sync::Arc;

use super::state_history::StateHistory;
use gpuflame_model::record::{Caller, ContextId, HostState, IdMap, ThreadId, map_bytes};

/// States of all threads. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct HostStates {
    /// States of each thread, in order of time.
    threads: IdMap<ThreadId, Arc<StateHistory>>,
    /// For each launch context, the thread that makes the launches with this context.
    launching: IdMap<ContextId, ThreadId>,
}

impl HostStates {
    /// Adds a state that a thread entered. The states of each thread must be added in order of time.
    pub(super) fn add(&mut self, state: &HostState) {
        let states = self.threads.entry(state.thread).or_default();
        // The history is shared only between this struct and snapshots, which are short-lived. So `make_mut` rarely has
        // to copy the history.
        Arc::make_mut(states).push(state.since.0, state.context);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Notes that `thread` makes the launches with this context.
    pub(super) fn note_launching_thread(&mut self, context: ContextId, thread: ThreadId) {
        self.launching.insert(context, thread);
    }

    /// Divides the time `from..to`, during which a launch with the context `caller` was late, among the culprits. Each
    /// culprit is returned only once. If no state of the thread is known, the launch itself is the culprit.
    pub(super) fn blame(&self, caller: Caller, from: u64, to: u64) -> Vec<(Caller, u64)> {
        let thread = caller.launched().ok().and_then(|context| self.launching.get(&context));
        let Some(states) = thread.and_then(|thread| self.threads.get(thread)) else {
            return vec![(caller, to - from)];
        };
        let mut blamed: Vec<(Caller, u64)> = Vec::new();
        // The time `from..to` may contain thousands of states with different stacks.
        let mut known: IdMap<Caller, usize> = IdMap::default();
        let mut add = |culprit: Caller, nanos: u64| {
            if nanos > 0 {
                let at = *known.entry(culprit).or_insert(blamed.len());
                match blamed.get_mut(at) {
                    Some((_, sum)) => *sum += nanos,
                    None => blamed.push((culprit, nanos)),
                }
            }
        };
        let mut done = from;
        let mut culprit = caller;
        for (since, context) in states.since(from).take_while(|(since, _)| *since < to) {
            let since = since.max(from);
            add(culprit, since - done);
            (done, culprit) = (since, if context == ContextId::NONE { caller } else { context.into() });
        }
        add(culprit, to - done);
        blamed
    }

    /// Replaces each context by the context that the function `context` returns for it.
    pub(super) fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        self.threads.values_mut().for_each(|states| Arc::make_mut(states).rename(&context));
        let launching = std::mem::take(&mut self.launching);
        self.launching = launching.into_iter().map(|(id, thread)| (context(id), thread)).collect();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let states = self.threads.values().map(|states| states.heap_bytes());
        states.sum::<usize>() + map_bytes(&self.threads) + map_bytes(&self.launching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::Nanos;

    fn host_states(states: &[(u64, u32)]) -> HostStates {
        let mut host_states = HostStates::default();
        host_states.note_launching_thread(ContextId(100), ThreadId(1));
        for &(since, context) in states {
            let state = HostState { thread: ThreadId(1), since: Nanos(since), context: ContextId(context) };
            host_states.add(&state);
        }
        host_states
    }

    fn blame(host_states: &HostStates, launch: u32, from: u64, to: u64) -> Vec<(u32, u64)> {
        let blamed = host_states.blame(ContextId(launch).into(), from, to);
        blamed.into_iter().map(|(culprit, nanos)| (culprit.launched().unwrap().0, nanos)).collect()
    }

    #[test]
    fn a_gap_is_split_where_the_threads_stack_changes() {
        let host_states = host_states(&[(10, 101), (30, 102), (40, 101), (50, ContextId::NONE.0)]);
        assert_eq!(blame(&host_states, 100, 20, 45), [(101, 15), (102, 10)]);
        assert_eq!(blame(&host_states, 100, 30, 40), [(102, 10)]);
        assert_eq!(
            blame(&host_states, 100, 45, 60),
            [(101, 5), (100, 10)],
            "the launch's stack is blamed while the thread's stack is unknown"
        );
        assert_eq!(blame(&host_states, 100, 0, 11), [(100, 10), (101, 1)]);
        assert_eq!(blame(&host_states, 103, 20, 45), [(103, 25)], "another thread made the launch");
        assert_eq!(blame(&host_states, 100, 20, 20), []);
    }
}
