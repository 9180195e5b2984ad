//! States of the host's threads, from traces of other tools.

use gpuflame_explain::timeline::StateHistory;
use gpuflame_model::record::{ContextId, HostState, IdMap, Row, ThreadId};

/// States of the host's threads, which show what the host did while a GPU waited for it. Only traces of other tools
/// contain states of threads.
#[derive(Debug, Default)]
pub struct HostStates {
    threads: IdMap<ThreadId, StateHistory>,
}

impl HostStates {
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Stores the row if it describes the state of a thread. Rows that do not describe the state of a thread are
    /// ignored.
    pub fn row(&mut self, row: &Row<'_>) {
        if let Row::HostState(HostState { thread, since, context }) = *row {
            self.threads.entry(thread).or_default().push(since.0, context);
        }
    }

    /// Returns the states of a thread between `from` and `to` as (start, end, context), in order of time. A state with
    /// the context [`ContextId::NONE`] is unknown.
    pub(crate) fn during(
        &self,
        thread: ThreadId,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (u64, u64, ContextId)> + '_ {
        let states = self.threads.get(&thread).into_iter().flat_map(move |states| states.since(from));
        let mut states = states.peekable();
        std::iter::from_fn(move || {
            let (since, context) = states.next()?;
            let end = states.peek().map_or(to, |(next, _)| (*next).min(to));
            (since < to).then(|| (since.max(from), end.max(from), context))
        })
    }
}
