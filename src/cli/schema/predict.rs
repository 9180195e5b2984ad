//! Tables of the verbs that predict: `replay`, `what-if`, `causal`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame replay`. `checks` are present with `--check`.
    Replay {
        replay: ReplayRow,
        lags: LagRow,
        unexplained_starts: UnexplainedStartsRow,
        digest: DigestRow,
        ?
        checks: ReplayCheckRow,
    }
    /// `gpuflame what-if`. `steps` are present if the run has steps.
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
    /// The replayed time, and the starts of GPU work that the records explain.
    ReplayRow {
        /// Replayed length of the run; with `--model`, predicted length of its second half. In ns.
        predicted_ns: u64,
        /// Difference from the recorded length, in ns.
        difference_ns: i64,
        /// Difference in percent of the recorded length.
        difference_percent: f64,
        /// Number of streams with work.
        streams: u64,
        /// Number of starts of GPU work and of graph launches.
        starts: u64,
        /// Number of starts within 2 us of the computed one.
        explained: u64,
        /// Share of explained starts in percent; null without starts.
        explained_percent: Option<f64>,
    }
    /// A typical lag of the run.
    LagRow {
        /// Median in ns. Work may begin before the end of its call.
        lag_ns: i64,
        /// Number of moments that such an edge decided.
        samples: u64,
        /// Kind of the dependency, as in `gpuflame deps`.
        of: String,
        /// `kernel`, `memory` or `graph`, for launches; null for other dependencies.
        submitted: Option<String>,
        /// Moment from which the lag counts.
        from: String,
        /// Function that launches; null for other dependencies.
        function: Option<String>,
    }
    /// Starts that the records do not explain.
    UnexplainedStartsRow {
        /// Sum of the times by which the starts are late, in ns; null if they are not late.
        time_ns: Option<u64>,
        /// Number of starts.
        starts: u64,
        /// Cause, as in `path_classes`, or `early` or `no_dependency`.
        cause: String,
        /// The cause in words.
        meaning: String,
    }
    /// A check of the replay.
    ReplayCheckRow {
        /// `yes` or `no`.
        holds: String,
        /// The condition in words.
        check: String,
    }
    /// SHA-256 of the starts and ends of GPU work.
    DigestRow {
        /// The sum in hexadecimal digits.
        sha256: String,
    }
    /// Length of the run before and after the changes.
    ChangedLengthRow {
        /// Before the changes, in ns.
        before_ns: u64,
        /// After the changes, in ns.
        after_ns: u64,
        /// Difference, in ns.
        change_ns: i64,
        /// Difference in percent of the time before.
        change_percent: f64,
    }
    /// Duration of a step before and after the changes.
    ChangedStepRow {
        /// Number of the step, from 1.
        step: u64,
        /// Before the changes, in ns.
        before_ns: u64,
        /// After the changes, in ns.
        after_ns: u64,
        /// Difference, in ns.
        change_ns: i64,
        /// Difference in percent of the time before.
        change_percent: f64,
    }
    /// A change by itself.
    EditRow {
        /// Change of the run's length if nothing else changes, in ns.
        alone_ns: i64,
        /// Number of pieces of work or calls that change; null if there is no such number.
        changed: Option<u64>,
        /// The change in words.
        change: String,
    }
    /// A part of the critical path after the changes, summed by class and name.
    NewPathRow {
        /// Time on the path, in ns.
        time_ns: u64,
        /// Share of the path.
        share_percent: Option<f64>,
        /// Number of parts of the path.
        parts: u64,
        /// Class, as in `path_classes`.
        class: String,
        name: String,
    }
    /// An assumption of the prediction.
    RelianceRow {
        /// `full_speed`, `change`, or a rule that replaces a missing record.
        rule: String,
        /// Number of uses of the rule; null for other assumptions.
        uses: Option<u64>,
        /// The assumption in words.
        assumption: String,
    }
    /// The effect of a 10 % faster function or kernel.
    CausalRow {
        /// Share of the run, or of its steps, that is saved.
        saved_percent: f64,
        /// Time that is saved, in ns.
        saved_ns: u64,
        /// Time of the function or kernel on the critical path, in ns.
        on_path_ns: u64,
        /// Largest speed-up in percent up to which the saved time grows as at first.
        holds_to_percent: u64,
        /// `work` or `function`.
        kind: String,
        name: String,
    }
}
