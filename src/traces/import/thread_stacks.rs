//! Finds the stacks of all threads in a trace, one thread after another (see `call_stacks`).

use super::NameTable;
use super::call_stacks::StackBuilder;
use super::host_delays::{GapLabels, HostDelays};
use super::operator_links::OperatorLinks;
use super::slice_runs::SliceRuns;
use super::slices::{NONE, StackTree};
use super::thread_states::ThreadStates;

/// The slices of a trace, with all other data from which the stacks of its calls are found.
pub(super) struct ThreadSlices {
    pub(super) of_threads: Vec<SliceRuns>,
    pub(super) labels: NameTable,
    pub(super) links: OperatorLinks,
    /// Number of calls in the trace.
    pub(super) calls: usize,
}

/// The stacks that were found for a trace.
pub(super) struct FoundStacks {
    pub(super) tree: StackTree,
    /// Stack of each call. The index of an entry is the call's index.
    pub(super) of_calls: Vec<u32>,
    /// Stacks that each thread had during the requested spans. The index of an entry is the thread.
    pub(super) delay_states: Vec<ThreadStates>,
    pub(super) labels: NameTable,
    pub(super) links: OperatorLinks,
    /// Number of slices that were left out of all stacks, because they cross too many other slices.
    pub(super) left_out: u64,
    /// Number of Python functions whose end the profiler missed.
    pub(super) unclosed: u64,
}

impl ThreadSlices {
    /// Finds the stack of each call, and the stacks that each thread had during the requested spans. `spans` contains
    /// the requested spans for each thread.
    pub(super) fn find_stacks(self, spans: Vec<Vec<(i64, i64)>>) -> FoundStacks {
        let Self { of_threads, labels, mut links, calls } = self;
        let (mut tree, mut of_calls) = (StackTree::default(), vec![NONE; calls]);
        let (mut left_out, mut unclosed) = (0, 0);
        let mut labels = GapLabels::new(labels);
        let mut delay_states = Vec::new();
        for (slices, spans) in of_threads.into_iter().zip(spans) {
            let mut delays = HostDelays::new(spans, labels);
            let mut of_thread = StackBuilder {
                tree: &mut tree,
                links: &mut links,
                delays: &mut delays,
                left_out: 0,
                unclosed: 0,
            };
            of_thread.build_thread(slices, &mut of_calls);
            left_out += of_thread.left_out;
            unclosed += of_thread.unclosed;
            delay_states.push(delays.states);
            labels = delays.labels;
        }
        FoundStacks { tree, of_calls, delay_states, labels: labels.into_labels(), links, left_out, unclosed }
    }
}
