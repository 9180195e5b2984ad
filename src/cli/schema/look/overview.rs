//! JSON tables of `gpuflame summary`, `info` and `check`.

use schemars::JsonSchema;

use super::critical_path::PathNameRow;
use super::tables::{CopyRow, ImpossibleRow};

verbs! {
    /// `gpuflame info`.
    Info {
        facts: FactRow,
        devices: DeviceRow,
        losses: LossRow,
        ?
        parts: PartRow,
        steps: StepRow,
        impossible_durations: ImpossibleRow,
    }
    /// `gpuflame info` for an execution trace of PyTorch or Chakra.
    InfoExecution {
        facts: FactRow,
        operators: OperatorRow,
        communication: CommunicationRow,
        ?
    }
    /// `gpuflame summary`. Names are cut, and tables have fewer rows, so that the output has at most 8,000 bytes.
    Summary {
        answers: AnswerRow,
        findings: CostRow,
        not_recorded: NotRecordedRow,
        next: NextRow,
        ?
        ranks: RankSummaryRow,
        gpus: SteadyGpuRow,
        idle_causes: SteadyCauseRow,
        idle_places: IdlePlaceRow,
        work: WorkRow,
        critical_path: PathNameRow,
        lines: WorkLineRow,
        copies: CopyRow,
        steps: StepRow,
    }
    /// `gpuflame check`.
    Check {
        findings: FindingRow,
        ?
        impossible_durations: ImpossibleRow,
    }
}

objects! {
    /// All operators, or all GPU work, with the same name in an execution trace.
    OperatorRow {
        /// Total time in ns; null for PyTorch's execution traces, which contain no times.
        total_ns: Option<u64>,
        /// Number of nodes of the execution trace with this name.
        count: u64,
        /// Name of the operator or of the GPU work.
        name: String,
    }
    /// All collectives or messages with the same name in an execution trace.
    CommunicationRow {
        /// Total time in ns; null for PyTorch's execution traces, which contain no times.
        total_ns: Option<u64>,
        /// Number of nodes of the execution trace with this name.
        count: u64,
        /// Total size of the tensors, in bytes.
        bytes: u64,
        /// Name of the collective or of its kernel.
        name: String,
    }
    /// A fact about the input.
    FactRow {
        what: String,
        /// Value of the fact: a text, a count or a percentage, depending on `what`; null if unknown.
        value: AnyValue,
    }
    /// Busy and idle time of one GPU.
    DeviceRow {
        device: u32, activities: u64,
        /// Sum of the durations of all activities, in ns.
        gpu_time_ns: u64,
        busy_ns: Option<u64>, idle_ns: Option<u64>, window_ns: Option<u64>, busy_percent: Option<f64>,
    }
    /// Busy and idle time of one GPU in one part of the run.
    PartRow {
        device: u32,
        /// Part of the run: `start-up`; `steps` or `repeated launches` (the steady part); or `shutdown`.
        part: String,
        busy_ns: u64, idle_ns: u64, window_ns: u64, busy_percent: Option<f64>,
    }
    /// A sentence that answers a question about the run.
    AnswerRow {
        /// The answer as a sentence.
        answer: String,
    }
    /// Data that the file does not contain.
    NotRecordedRow {
        /// The missing data, or the ids of the checks that lack data, separated by commas.
        not_recorded: String,
        /// Command, API call or option that records this data, as a clause.
        recorded_by: String,
    }
    /// A command that shows more about the run.
    NextRow {
        /// The suggested command line, quoted for a shell.
        command: String,
    }
    /// A rank of a job. Busy and idle time are sums over the rank's GPUs in the steady part of the rank's run.
    RankSummaryRow {
        rank: u64,
        busy_percent: Option<f64>, busy_ns: u64, idle_ns: Option<u64>,
        /// GPU time of work other than communication in the whole run, in ns.
        work_ns: u64,
        /// GPU time of communication in the whole run, in ns. Communication time includes waiting for other ranks.
        communication_ns: u64,
        /// Median duration of the steps, in ns; null if there are no steps. If there are several kinds of steps, this
        /// is the median of the kind with the longest total time.
        step_p50_ns: Option<u64>,
        /// Cause of most of the idle time; null if it is unknown.
        idle_cause: Option<String>,
        /// Place with the most idle time; null if it is unknown.
        idle_place: Option<String>,
    }
    /// Busy and idle time of one GPU in the steady part of the run.
    SteadyGpuRow {
        device: u32, busy_percent: Option<f64>, busy_ns: u64, idle_ns: Option<u64>, window_ns: u64,
    }
    /// Idle time with one cause in the steady part of the run.
    SteadyCauseRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Cause, as in `top --by idle`.
        cause: String,
    }
    /// Idle time at one place in the steady part of the run.
    IdlePlaceRow {
        total_ns: u64, share_percent: Option<f64>,
        /// The calls before and after the idle time, or the call or function in which the host was; null if unknown.
        place: Option<String>,
    }
    /// All GPU work with the same name, summed over all GPUs.
    WorkRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, avg_ns: u64, name: String,
    }
    /// Time of the GPU work that one source line launched.
    WorkLineRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Source line as `FILE:LINE`, or `[no line]`.
        line: String,
    }
    /// Durations of all steps with the same name.
    StepRow {
        /// Name of the steps, which is the name of their ranges without the number at the end; `step` if the steps have
        /// no name.
        step: String,
        /// Number of steps whose end is known.
        count: u64, total_ns: u64, p50_ns: u64, p95_ns: u64, max_ns: u64,
        /// Number of the longest step in its process, counted from 1.
        longest_step: u64,
    }
    /// Number of lost records of one kind.
    LossRow {
        /// Kind of record that was lost, or reason of the loss.
        lost: String,
        count: u64,
    }
    /// Result of one check.
    FindingRow {
        /// Result of the check: `BAD`, `cost` if GPUs lost time, `note`, `ok`, `none` if nothing was found, or
        /// `unknown` if the input lacks the data.
        result: String,
        /// Name of the check, which does not change between versions.
        id: String,
        what: String,
        /// Number of items for which the check found something; null if the check does not count items.
        count: Option<u64>,
        /// Share of `count` in the number of checked items, in percent.
        share_percent: Option<f64>,
        /// Time that the GPUs would gain without the cause, in ns; null if the check does not measure this time. The
        /// times of different findings overlap.
        cost_ns: Option<u64>,
        /// Source location, GPU or rank that is responsible; empty if there is none.
        culprit: String,
        /// Explanation of the finding; empty if nothing was found.
        why: String,
    }
    /// A finding about wrong data or lost time. The rows are in descending order of cost.
    CostRow {
        /// Result of the check: `BAD` (wrong data) or `cost` (GPUs lost time).
        result: String,
        /// Name of the check, which does not change between versions.
        id: String,
        /// Time that the GPUs would gain without the cause, in ns; null if the data is wrong. The times of different
        /// findings overlap.
        cost_ns: Option<u64>,
        /// `cost_ns` as a share of the steady part of the run, in percent.
        share_percent: Option<f64>,
        /// Source location, GPU or rank that is responsible; empty if there is none.
        culprit: String,
        /// Explanation of the finding.
        why: String,
    }
}

/// Text, number or null.
#[derive(JsonSchema)]
#[allow(dead_code)]
#[schemars(untagged, inline)]
enum AnyValue {
    Text(String),
    Number(f64),
    Null(()),
}
