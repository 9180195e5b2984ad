//! JSON tables of the verbs that convert traces: `link-et`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame link-et`. The table `not_linked` is present if any GPU work is not linked to an operator.
    LinkEt {
        linked: LinkedRow,
        ?
        not_linked: NotLinkedRow,
    }
}

objects! {
    /// An execution trace that was combined with a Kineto trace.
    LinkedRow {
        /// Rank of the process; null if the Kineto trace does not contain the rank.
        rank: Option<u64>,
        /// Number of operators and ranges in the execution trace.
        operators: u64,
        /// Number of operators and ranges that were found in the Kineto trace.
        operators_linked: u64,
        /// Number of kernels, copies and fills in the Kineto trace.
        gpu_work: u64,
        /// Number of kernels, copies and fills that were launched while the execution trace was recorded.
        in_window: u64,
        /// Number of kernels, copies and fills that are linked to the operator that launched them.
        linked: u64,
        /// `linked` as a share of `in_window`, in percent.
        share_percent: Option<f64>,
        /// Total GPU time of the linked kernels, copies and fills, in ns.
        gpu_time_ns: u64,
        /// Part of the execution trace's file name that the names of the output files contain.
        tag: String,
    }
    /// GPU work that is not linked to an operator, for one reason.
    NotLinkedRow {
        /// Number of kernels, copies and fills that are not linked for this reason.
        count: u64,
        /// Reason why the GPU work is not linked to an operator.
        reason: String,
        /// Part of the execution trace's file name that the names of the output files contain.
        tag: String,
    }
}
