//! JSON tables of the verbs that predict times: `replay`, `what-if`, `causal`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame replay`. The table `checks` is present with `--check`.
    Replay {
        replay: ReplayRow,
        lags: LagRow,
        unexplained_starts: UnexplainedStartsRow,
        digest: DigestRow,
        ?
        checks: ReplayCheckRow,
    }
    /// `gpuflame what-if`. The table `steps` is present if the run has steps.
    WhatIf {
        total: ChangedLengthRow,
        changes: EditRow,
        new_path: NewPathRow,
        assumptions: RelianceRow,
        ?
        steps: ChangedStepRow,
    }
    /// `gpuflame causal`: the time that a 10 % faster function or kernel saves.
    Causal {
        causal: CausalRow,
        ?
    }
}

objects! {
    /// Replayed length of the run, and the number of starts of GPU work that the recorded dependencies explain.
    ReplayRow {
        /// Replayed length of the run, in ns. With `--model`: predicted length of the second half of the run, in ns.
        predicted_ns: u64,
        /// Difference between the replayed and the recorded length, in ns.
        difference_ns: i64,
        /// Difference between the replayed and the recorded length, in percent of the recorded length.
        difference_percent: f64,
        /// Number of streams with GPU work.
        streams: u64,
        /// Number of starts of GPU work and of graph launches.
        starts: u64,
        /// Number of starts whose recorded time is at most 2 us from the computed time.
        explained: u64,
        /// `explained` as a share of `starts`, in percent; null if there are no starts.
        explained_percent: Option<f64>,
    }
    /// A typical lag between a cause and its effect in the run.
    LagRow {
        /// Median lag in ns. The lag may be negative, because GPU work may begin before its launch call ends.
        lag_ns: i64,
        /// Number of times that a dependency of this kind decided when its effect happened.
        samples: u64,
        /// Kind of the dependency, as in `gpuflame deps`.
        of: String,
        /// Kind of the launched work: `kernel`, `memory` or `graph`; null for dependencies other than launches.
        submitted: Option<String>,
        /// Moment of the cause from which the lag counts, such as the end of the call.
        from: String,
        /// API function that launches the work; null for dependencies other than launches.
        function: Option<String>,
    }
    /// Starts of GPU work with one cause that the recorded dependencies do not explain.
    UnexplainedStartsRow {
        /// Sum of the times by which the starts are later than computed, in ns; null if they are not later.
        time_ns: Option<u64>,
        /// Number of starts with this cause.
        starts: u64,
        /// Cause of the unexplained starts, as in the table `path_classes`, or `early` or `no_dependency`.
        cause: String,
        /// Explanation of the cause in words.
        meaning: String,
    }
    /// Result of one check of the replay.
    ReplayCheckRow {
        /// Whether the condition holds: `yes` or `no`.
        holds: String,
        /// The checked condition in words.
        check: String,
    }
    /// Digest of the replayed starts and ends of all GPU work, to compare two replays.
    DigestRow {
        /// SHA-256 digest in hexadecimal digits.
        sha256: String,
    }
    /// Length of the run before and after the changes.
    ChangedLengthRow {
        /// Duration before the changes, in ns.
        before_ns: u64,
        /// Duration after the changes, in ns.
        after_ns: u64,
        /// Difference of the durations, after minus before, in ns.
        change_ns: i64,
        /// Difference of the durations in percent of the duration before the changes.
        change_percent: f64,
    }
    /// Duration of a step before and after the changes.
    ChangedStepRow {
        /// Number of the step, counted from 1.
        step: u64,
        /// Duration before the changes, in ns.
        before_ns: u64,
        /// Duration after the changes, in ns.
        after_ns: u64,
        /// Difference of the durations, after minus before, in ns.
        change_ns: i64,
        /// Difference of the durations in percent of the duration before the changes.
        change_percent: f64,
    }
    /// Effect of one change without the other changes.
    EditRow {
        /// Difference of the run's length if only this change is made, in ns.
        alone_ns: i64,
        /// Number of kernels, copies, fills or calls that change; null if the change does not have such a count.
        changed: Option<u64>,
        /// Description of the change in words.
        change: String,
    }
    /// Time that parts with the same class and name have on the critical path after the changes.
    NewPathRow {
        /// Total time on the path, in ns.
        time_ns: u64,
        /// Time as a share of the path's length, in percent.
        share_percent: Option<f64>,
        /// Number of parts of the path with this class and name.
        parts: u64,
        /// Class of the parts, as in the table `path_classes`.
        class: String,
        name: String,
    }
    /// An assumption on which the prediction relies.
    RelianceRow {
        /// Name of the assumption: `full_speed`, `change`, or the name of a rule that replaces a missing record.
        rule: String,
        /// Number of times that the rule was applied; null for assumptions that are not rules.
        uses: Option<u64>,
        /// The assumption in words.
        assumption: String,
    }
    /// The effect on the run if one function or kernel were 10 % faster.
    CausalRow {
        /// Saved time as a share of the run or of its steps, in percent.
        saved_percent: f64,
        /// Time that the run or its steps would save, in ns.
        saved_ns: u64,
        /// Time of the function or kernel on the critical path, in ns.
        on_path_ns: u64,
        /// Largest speed-up in percent up to which the saved time grows linearly.
        holds_to_percent: u64,
        /// Kind of object that becomes faster: `work` (GPU work) or `function` (a host function).
        kind: String,
        name: String,
    }
}
