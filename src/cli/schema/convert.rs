//! Tables of the verbs that convert: `link-et`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame link-et`. `not_linked` is present if any GPU work is not linked.
    LinkEt {
        linked: LinkedRow,
        ?
        not_linked: NotLinkedRow,
    }
}

objects! {
    /// An execution trace that was joined with a Kineto trace.
    LinkedRow {
        /// Rank, if the Kineto trace gives it.
        rank: Option<u64>,
        /// Operators and ranges of the execution trace.
        operators: u64,
        /// Number of operators that were found in the Kineto trace.
        operators_linked: u64,
        /// Pieces of GPU work in the Kineto trace.
        gpu_work: u64,
        /// Number of pieces launched while the execution trace was recorded.
        in_window: u64,
        /// Number of pieces below the operator that launched them.
        linked: u64,
        /// Share of `linked` in `in_window`.
        share_percent: Option<f64>,
        /// GPU time of linked work, in ns.
        gpu_time_ns: u64,
        /// Part of the output files' names.
        tag: String,
    }
    /// GPU work that is not below an operator.
    NotLinkedRow {
        /// Number of pieces of GPU work.
        count: u64,
        /// Reason why the work is not below an operator.
        reason: String,
        /// Part of the output files' names.
        tag: String,
    }
}
