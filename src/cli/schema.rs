//! The JSON Schema of `--format json`, from types that describe the rows of every verb. Only tests use the types:
//! tables are built by the verbs, and `tests/cli/schema.rs` checks that the command's output conforms to
//! `docs/schema.json`.
//!
//! `GPUFLAME_RENEW_GOLDEN=1 cargo test -p gpuflame-cli --bins schema::` writes `docs/schema.json` and the tables of
//! `docs/schema.md` again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use schemars::{JsonSchema, schema_for};
use serde_json::{Map, Value, json};

use super::table_output::SCHEMA;

/// Declares the objects of the JSON. All keys of an object are always present. An `Option` is null if a value is
/// unknown.
macro_rules! objects {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $key:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(JsonSchema)]
            #[allow(dead_code)]
            struct $name { $($(#[$doc])* $key: $kind,)* }
        )*
    };
}

/// Output of `--format json`, by verb.
#[derive(JsonSchema)]
#[allow(dead_code)]
#[schemars(untagged, title = "Output of gpuflame VERB --format json")]
enum Output {
    Top(Top),
    View(View),
    Info(Info),
    Summary(Summary),
    Check(Check),
    Diff(Diff),
    Gate(Gate),
    MergeRanks(MergeRanks),
    Doctor(Doctor),
    Devices(Devices),
    Settings(Settings),
    LinkEt(LinkEt),
    InfoExecution(InfoExecution),
    States(States),
    StatesAsHta(StatesAsHta),
    CriticalPath(CriticalPath),
    CriticalPathAsHta(CriticalPathAsHta),
    Timeline(Timeline),
    InstructionsHead(InstructionsHead),
    Instruction(Instruction),
}

/// Declares the output of a verb: the version, and tables. The tables after `?` are present only if the user asked for
/// them.
macro_rules! verbs {
    ($($(#[$about:meta])* $name:ident { $($key:ident: $row:ty,)* ? $($maybe:ident: $maybe_row:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(JsonSchema)]
            #[allow(dead_code)]
            struct $name {
                /// Version of this description.
                #[schemars(range(min = 1, max = 1))]
                schema: u32,
                $($key: Vec<$row>,)*
                $(#[schemars(default)] $maybe: Vec<$maybe_row>,)*
            }
        )*
    };
}

verbs! {
    /// `gpuflame top`: the tables named by `--by`.
    Top {
        ?
        kernels: KernelRow,
        stacks: StackRow,
        line: LineRow,
        function: FunctionRow,
        copies: CopyRow,
        delay: DelayRow,
        idle_causes: IdleCauseRow,
        idle_calls: IdleCallRow,
        idle_functions: IdleFunctionRow,
        idle_lines: IdleLineRow,
        idle_modules: IdleModuleRow,
        idle: IdleRow,
        comm: CommRow,
        comm_stacks: CommStackRow,
        impossible_durations: ImpossibleRow,
    }
    /// `gpuflame view`: `activities`, `stats` with `--stats`, or `timeline` with `--timeline`.
    View {
        ?
        activities: ActivityRow,
        stats: StatsRow,
        timeline: TimelineRow,
    }
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
    /// `gpuflame info` of an execution trace: PyTorch's, or Chakra's.
    InfoExecution {
        facts: FactRow,
        operators: OperatorRow,
        communication: CommunicationRow,
        ?
    }
    /// `gpuflame states`. `intervals` is present with `--intervals`.
    States {
        states: StreamStateRow,
        causes: StateCauseRow,
        devices: StreamsRow,
        concurrency: ConcurrencyRow,
        launch_delays: LaunchDelayRow,
        over_time: OverTimeRow,
        ?
        intervals: IntervalRow,
    }
    /// `gpuflame states --as-hta`: tables by the rules of Holistic Trace Analysis.
    StatesAsHta {
        queue_length: QueueLengthRow,
        idle_time: IdleTimeRow,
        ?
    }
    /// `gpuflame critical-path --as-hta`: the critical path by the rules of Holistic Trace Analysis.
    CriticalPathAsHta {
        path: HtaPathRow,
        edge_types: HtaEdgeTypeRow,
        bound_by: HtaBoundRow,
        rules: HtaRuleRow,
        critical_nodes: HtaNodeRow,
        edges: HtaEdgeRow,
        ?
    }
    /// `gpuflame timeline`.
    Timeline {
        timeline: TimelineRow,
        ?
    }
    /// `gpuflame critical-path`. `path` is present with `--list`.
    CriticalPath {
        path_classes: PathClassRow,
        path_names: PathNameRow,
        slack: SlackRow,
        ?
        path: PathPartRow,
    }
    /// `gpuflame link-et`. `not_linked` is present if any GPU work is not linked.
    LinkEt {
        linked: LinkedRow,
        ?
        not_linked: NotLinkedRow,
    }
    /// `gpuflame summary`. Names are cut, and tables have fewer rows, so that the output has at most 8,000 bytes.
    Summary {
        answers: AnswerRow,
        findings: CostRow,
        not_recorded: NotRecordedRow,
        next: NextRow,
        ?
        gpus: SteadyGpuRow,
        idle_causes: SteadyCauseRow,
        idle_places: IdlePlaceRow,
        work: WorkRow,
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
    /// `gpuflame diff`.
    Diff {
        total: TotalChangeRow,
        run: TimeChangeRow,
        matched: MatchedRow,
        ?
        kernels: ChangeRow,
        stacks: ChangeRow,
        modules: ChangeRow,
        impossible_durations_before: ImpossibleRow,
        impossible_durations_after: ImpossibleRow,
    }
    /// `gpuflame diff BASE... --new NEW...`.
    Gate {
        verdict: VerdictRow,
        changes: PairChangeRow,
        ?
    }
    /// `gpuflame merge-ranks`.
    MergeRanks {
        ranks: RankRow,
        last_to_collectives: ArrivalRow,
        kernels: RankKernelRow,
        stacks: RankStackRow,
        idle: IdleCauseRow,
        job: JobRow,
        ?
    }
    /// `gpuflame doctor`.
    Doctor {
        doctor: DoctorRow,
        ?
    }
    /// `gpuflame devices`.
    Devices {
        found_gpus: FoundGpuRow,
        driver: DriverRow,
        cupti: CuptiRow,
        ?
    }
    /// `gpuflame settings`.
    Settings {
        settings: SettingRow,
        ?
    }
}

objects! {
    /// Operators or GPU work of one name in an execution trace.
    OperatorRow {
        /// Time in ns; null in PyTorch's execution traces, which have no times.
        total_ns: Option<u64>,
        /// Number of nodes.
        count: u64,
        /// Name of the operator or of the GPU work.
        name: String,
    }
    /// Collectives or messages of one name in an execution trace.
    CommunicationRow {
        /// Time in ns; null in PyTorch's execution traces, which have no times.
        total_ns: Option<u64>,
        /// Number of nodes.
        count: u64,
        /// Size of the tensors in bytes.
        bytes: u64,
        /// Name of the collective or of its kernel.
        name: String,
    }
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
    /// GPU work of one name on one GPU.
    KernelRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, avg_ns: u64, min_ns: u64, p50_ns: u64, p95_ns: u64,
        max_ns: u64, device: u32, name: String,
    }
    /// GPU work of one launching stack.
    StackRow { total_ns: u64, share_percent: Option<f64>, count: u64, stack: String, }
    /// GPU work launched by one source line.
    LineRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, line: String, function: String,
        /// Names of the kernels with the most GPU time, and how many more there are.
        kernels: String,
    }
    /// Time of one function and its callees.
    FunctionRow {
        /// GPU time launched in the function, in ns.
        gpu_ns: Option<u64>,
        /// CPU time of the launching threads in the function, in ns.
        cpu_ns: Option<u64>,
        /// Time in which the launching threads waited in the function, in ns.
        waiting_ns: Option<u64>,
        function: String,
    }
    /// Copies of one GPU with one direction and the same kinds of memory.
    CopyRow {
        total_ns: u64,
        /// Share of the copies' total time, including rows that are left out; null if that time is 0.
        share_percent: Option<f64>,
        count: u64,
        /// Bytes copied; null if the trace does not give them.
        bytes: Option<u64>,
        /// Bytes divided by time, in GB/s (1,000,000,000 bytes per second); null if either is 0 or unknown.
        bandwidth_gb_per_s: Option<f64>,
        device: u32,
        /// `HtoD`, `DtoH`, `DtoD`, `PtoP` and so on; null if unknown.
        direction: Option<String>,
        /// Kind of memory that is read: `pageable`, `pinned`, `device`, `managed` and so on; null if unknown.
        from: Option<String>,
        /// Kind of memory that is written; null if unknown.
        to: Option<String>,
    }
    /// Delay between the launching call and the start on the GPU, for work of one name.
    DelayRow {
        avg_ns: u64, p50_ns: u64, p95_ns: u64, max_ns: u64, count: u64,
        /// Number of activities that began before their call, which clocks that differ explain.
        before_launch: u64,
        name: String,
    }
    /// Idle time of one cause.
    IdleCauseRow { total_ns: u64, share_percent: Option<f64>, gaps: u64, cause: String, }
    /// Idle time by the call that the launching thread was in.
    IdleCallRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// API call or built-in function; null if none is known.
        call: Option<String>,
    }
    /// Idle time by function.
    IdleFunctionRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// Innermost function; null if none is known.
        function: Option<String>,
    }
    /// Idle time by source line.
    IdleLineRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// `FILE:LINE` of the user's code; null if none is known.
        line: Option<String>,
    }
    /// Idle time by module.
    IdleModuleRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// Module of PyTorch, or file of the innermost function; null if none is known.
        module: Option<String>,
    }
    /// Idle time of one cause and stack. The numbers are null in a row that says why idle time is unknown.
    IdleRow { total_ns: Option<u64>, share_percent: Option<f64>, gaps: Option<u64>, cause: String, stack: String, }
    /// Communication of one GPU.
    CommRow {
        device: u32,
        /// Time in which communication ran, in ns.
        comm_ns: u64,
        exposed_ns: u64,
        /// Share of the communication that is exposed.
        exposed_percent: Option<f64>,
        /// Time in which communication and computation ran at once, in ns.
        overlapped_ns: u64,
        /// Share of the communication that is overlapped.
        overlap_percent: Option<f64>,
        /// Time in which computation ran, in ns.
        compute_ns: u64,
    }
    /// Communication launched by one stack.
    CommStackRow {
        exposed_ns: u64,
        /// Share of all exposed communication.
        share_percent: Option<f64>,
        total_ns: u64, count: u64, stack: String,
    }
    /// Times that impossible durations change. The first two rows are sums.
    ImpossibleRow {
        /// Time as recorded, in ns.
        recorded_ns: u64,
        /// Time if each impossible duration ends where later work of its stream begins, in ns.
        clamped_ns: u64,
        device: Option<u32>, stream: Option<u64>, start_ns: Option<u64>,
        /// Sum, or name of the activity.
        what: String,
    }
    /// An activity. Its times are null if they were not collected.
    ActivityRow {
        start_ns: Option<u64>, duration_ns: Option<u64>, device: u32, stream: u64,
        /// Id that links the activity to its call; null if the trace gives none.
        correlation: Option<u64>,
        bytes: u64,
        /// Kind of memory that a copy reads; null if unknown or not a copy.
        from: Option<String>,
        /// Kind of memory that a copy or fill writes; null if unknown or neither.
        to: Option<String>,
        name: String,
        /// Launching stack, outermost frame first, frames separated by `;`.
        launched_by: String,
    }
    /// GPU work of one name.
    StatsRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, avg_ns: u64, min_ns: u64, max_ns: u64, name: String,
    }
    /// Queue length of a stream: minimum, quartiles and maximum over its changes.
    QueueLengthRow {
        device: u32, stream: u64,
        /// Number of changes.
        count: u64,
        /// Mean queue length.
        mean: f64,
        /// Standard deviation of a sample; null for a single change.
        std: Option<f64>,
        /// Minimum.
        min: f64,
        /// Lower quartile.
        p25: f64,
        /// Median.
        p50: f64,
        /// Upper quartile.
        p75: f64,
        /// Maximum.
        max: f64,
    }
    /// Idle time of a stream by category.
    IdleTimeRow {
        device: u32, stream: u64,
        /// `host_wait`, `kernel_wait` or `other`.
        idle_category: String,
        /// Sum of the gaps in microseconds; negative if operations overlap.
        idle_time_us: f64,
        /// Share of the idle time of the stream.
        idle_time_ratio: Option<f64>,
    }
    /// Length of the critical path.
    HtaPathRow {
        /// Length of the window in ns.
        window_ns: i64,
        /// Sum of the weights of the path in ns.
        path_ns: i64,
        /// Share of the window.
        share_percent: Option<f64>,
        /// Number of events on the path.
        critical_events: u64,
        /// Number of nodes of the path.
        critical_nodes: u64,
        /// Number of edges of the path.
        critical_edges: u64,
    }
    /// Edges by type.
    HtaEdgeTypeRow {
        /// Type, in HTA's word.
        r#type: String,
        /// Number of edges.
        edges: u64,
        /// Sum of the weights in ns.
        time_ns: i64,
        /// Number of edges on the path.
        critical_edges: u64,
        /// Sum of the weights on the path in ns.
        critical_ns: i64,
    }
    /// Time of the path by the resource that limits it.
    HtaBoundRow {
        /// Class, in HTA's word; null for edges without weight.
        bound_by: Option<String>,
        /// Number of edges.
        edges: u64,
        /// Sum of the weights in ns.
        time_ns: i64,
        /// Share of the path.
        share_percent: Option<f64>,
    }
    /// Rules by which the path is shorter than the window.
    HtaRuleRow {
        /// `cpu_gap`, `blocking_exit`, `long_gap` or `call_start`.
        rule: String,
        /// Number of edges; of `long_gap`, number of gaps.
        edges: u64,
        /// Time that the weights leave out, in ns; of `call_start`, sum of the weights.
        time_ns: i64,
        /// Number of edges on the path.
        critical_edges: u64,
        /// The time on the path, in ns.
        critical_ns: i64,
    }
    /// A node of the path.
    HtaNodeRow {
        /// Position of the event in `traceEvents`.
        event: u64,
        /// `start` or `end`.
        side: String,
        /// Time in ns after the start of the window.
        time_ns: i64,
        /// Name of the event.
        name: Option<String>,
    }
    /// An edge.
    HtaEdgeRow {
        /// Position of the event at which the edge begins.
        from_event: u64,
        /// `start` or `end` of this event.
        from_side: String,
        /// Time of the node in ns after the start of the window.
        from_ns: i64,
        /// Position of the event at which the edge ends.
        to_event: u64,
        /// `start` or `end` of this event.
        to_side: String,
        /// Time of the node in ns after the start of the window.
        to_ns: i64,
        /// Type, in HTA's word.
        r#type: String,
        /// Weight in ns; negative if the edge leads back in time.
        weight_ns: i64,
        /// `yes` if the edge is on the path, else `no`.
        critical: String,
        /// Position of the event to which the weight is attributed.
        attributed_event: Option<u64>,
        /// Rule that applies to the edge.
        rule: Option<String>,
    }
    /// A part of the time in which a stream ran, waited or had launched work that had not begun. The times by state add up to
    /// the length.
    TimelineRow {
        device: u32,
        /// GPU context of the stream.
        context: u64,
        stream: u64,
        /// Start in ns after the start of the window.
        start_ns: u64,
        /// Length of the part, in ns.
        duration_ns: u64,
        /// Time in which the stream ran, in ns.
        busy_ns: u64, busy_percent: f64,
        /// Time in which a launched operation waited for an event, in ns.
        waiting_ns: u64,
        /// Time in which a launched operation had not begun, in ns.
        pending_ns: u64,
        /// Time without a launched operation, in ns.
        idle_ns: u64,
        /// Time after the last operation of the stream, in ns.
        finished_ns: u64,
        /// Time between two windows, in ns.
        not_recorded_ns: u64,
    }
    /// A fact about the input.
    FactRow {
        what: String,
        /// Text, count or percentage, depending on `what`; null if unknown.
        value: AnyValue,
    }
    /// Time of one GPU.
    DeviceRow {
        device: u32, activities: u64,
        /// Sum of the durations of all activities, in ns.
        gpu_time_ns: u64,
        busy_ns: Option<u64>, idle_ns: Option<u64>, window_ns: Option<u64>, busy_percent: Option<f64>,
    }
    /// Time of one GPU in one part of the run.
    PartRow {
        device: u32,
        /// `start-up`, `steps` or `repeated launches`, `shutdown`.
        part: String,
        busy_ns: u64, idle_ns: u64, window_ns: u64, busy_percent: Option<f64>,
    }
    /// A sentence that answers a question about the run.
    AnswerRow {
        /// The sentence.
        answer: String,
    }
    /// Data that the file does not contain.
    NotRecordedRow {
        /// The missing data.
        not_recorded: String,
        /// Command, call or option that records this data, as a clause.
        recorded_by: String,
    }
    /// The command to run next.
    NextRow {
        /// The command, quoted for a shell.
        command: String,
    }
    /// Time of one GPU in the steady part of the run.
    SteadyGpuRow {
        device: u32, busy_percent: Option<f64>, busy_ns: u64, idle_ns: Option<u64>, window_ns: u64,
    }
    /// Idle time of one cause in the steady part of the run.
    SteadyCauseRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Cause, as in `top --by idle`.
        cause: String,
    }
    /// Idle time at one place in the steady part of the run.
    IdlePlaceRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Calls before and after the idle time, or the call or function of the host; null if unknown.
        place: Option<String>,
    }
    /// GPU work of one name, over all GPUs.
    WorkRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, avg_ns: u64, name: String,
    }
    /// GPU work that one source line launched.
    WorkLineRow {
        total_ns: u64, share_percent: Option<f64>,
        /// `FILE:LINE`; null if unknown.
        line: Option<String>,
    }
    /// Durations of the steps with one name.
    StepRow {
        /// Name of the ranges that began the steps, without a number at its end; `step` if the steps have no name.
        step: String,
        /// Number of steps whose end is known.
        count: u64, total_ns: u64, p50_ns: u64, p95_ns: u64, max_ns: u64,
        /// Number of the longest step in its process, counted from 1.
        longest_step: u64,
    }
    /// Number of losses of one kind.
    LossRow {
        /// Kind of loss.
        lost: String,
        count: u64,
    }
    /// Result of one check.
    FindingRow {
        /// `BAD`, `cost` if GPUs lost time, `note`, `ok`, `none` if nothing was found, or `unknown` if the input lacks the data.
        result: String,
        /// Stable name of the check.
        id: String,
        what: String,
        /// Number of findings; null if the check does not count them.
        count: Option<u64>,
        /// Share of the findings among the checked items.
        share_percent: Option<f64>,
        /// Time that the GPUs would gain without the cause, in ns; null if the check does not measure it. Such times overlap.
        cost_ns: Option<u64>,
        /// Place in the code, GPU or rank that is responsible; empty if there is none.
        culprit: String,
        /// Meaning of the finding; empty if nothing was found.
        why: String,
    }
    /// Something that is wrong, or that costs time, the most expensive first.
    CostRow {
        /// `BAD` or `cost`.
        result: String,
        /// Stable name of the check.
        id: String,
        /// Time that the GPUs would gain without the cause, in ns; null if the data is wrong. Such times overlap.
        cost_ns: Option<u64>,
        /// Share of the steady part of the run.
        share_percent: Option<f64>,
        /// Place in the code, GPU or rank that is responsible; empty if there is none.
        culprit: String,
        /// Meaning of the finding.
        why: String,
    }
    /// Change of the total GPU work.
    TotalChangeRow {
        change_ns: i64, change_percent: Option<f64>, before_ns: u64, after_ns: u64, before_count: u64, after_count: u64,
    }
    /// Change of busy or idle time, over all GPUs.
    TimeChangeRow {
        change_ns: Option<i64>, change_percent: Option<f64>, before_ns: Option<u64>, after_ns: Option<u64>,
        what: String,
    }
    /// Share of GPU time whose names occur in both runs.
    MatchedRow {
        /// Share of the GPU time of the run before.
        before_percent: Option<f64>,
        /// Share of the GPU time of the run after.
        after_percent: Option<f64>,
        /// `kernels`, `stacks` or `modules`.
        by: String,
    }
    /// Change of a kernel, stack or module.
    ChangeRow {
        change_ns: i64, change_percent: Option<f64>, before_ns: u64, after_ns: u64, before_count: u64, after_count: u64,
        /// Change of the average duration.
        average_percent: Option<f64>,
        /// Whether the change of the average is statistically significant: `yes`, `no`, `too few`, `new` or `gone`.
        sure: String,
        name: String,
    }
    /// Verdict on several runs before and after a change.
    VerdictRow {
        /// `same`, `faster`, `slower`, `inconclusive` or `invalid`.
        verdict: String,
        /// Whether the gate passes: `yes` or `no`.
        passes: String,
        /// Exit code of the command.
        exit_code: u64,
        /// Change of the row that decided, as a share of the value before; null if the runs were not compared.
        change_percent: Option<f64>,
        /// Lower end of the interval that contains the true change with a probability of 99 %.
        low_percent: Option<f64>,
        /// Upper end of the interval.
        high_percent: Option<f64>,
        /// Change above which the gate fails.
        fail_above_percent: f64,
        /// Number of pairs of runs that would find or exclude a change of `fail_above_percent`; null unless the verdict is
        /// `inconclusive`, or if it takes more than 10,000.
        pairs_needed: Option<u64>,
        /// Why the runs were not compared; null if they were.
        reason: Option<String>,
        /// The verdict as a sentence.
        sentence: String,
    }
    /// Change of one value between several runs before and after a change.
    PairChangeRow {
        /// Change per run, or per step if runs have different numbers of steps, in ns, without drift.
        change_ns: i64,
        /// Change as a share of the value before, or of the sum named by `share_of`.
        change_percent: f64,
        /// Lower end of the interval that contains the true change with a probability of 99 %.
        low_percent: f64,
        /// Upper end of the interval.
        high_percent: f64,
        /// Mean before the change, in ns.
        before_ns: u64,
        /// Mean after the change, in ns.
        after_ns: u64,
        /// `same`, `faster`, `slower` or `inconclusive`.
        verdict: String,
        /// Number of pairs of runs that would find or exclude a change of `--fail-above`; null unless the verdict is
        /// `inconclusive`, or if it takes more than 10,000.
        pairs_needed: Option<u64>,
        /// `total`, `step`, `time`, `kernel`, `stack` or `idle`.
        by: String,
        /// What percentages are shares of: `row`, or `GPU work` or `wall` if the row's own value can be 0.
        share_of: String,
        name: String,
    }
    /// Time of one rank.
    RankRow {
        rank: u32, busy_ns: u64, idle_ns: Option<u64>,
        /// Share of the time in which the rank's GPUs were busy.
        busy_share_percent: Option<f64>,
        /// GPU time except communication, in ns.
        work_ns: u64,
        /// GPU time of communication, in ns.
        communication_ns: u64,
        /// Difference from the median rank.
        vs_median_percent: Option<f64>,
        /// Share of the activities that are linked to a launch.
        linked_percent: Option<f64>,
        /// Number of steps or windows.
        steps: Option<u64>,
        /// Why the rank is the straggler; empty if it is not.
        straggler: String,
        /// Source line in which the straggler's host was late; null if unknown or no straggler.
        host_line: Option<String>,
        /// Files of the rank.
        source: String,
    }
    /// Number of times that a rank came last to a collective. If it is unknown, all keys except `ranks`,
    /// `collective` and `unknown_because` are null.
    ArrivalRow {
        rank: Option<u32>,
        /// Number of times that the rank came last.
        last: Option<u64>,
        /// Number of times that the collective ran.
        of: Option<u64>,
        /// Sum of the times by which the rank came after the second last rank, in ns.
        behind_next_ns: Option<u64>,
        /// Time that the other ranks waited, in ns.
        others_waited_ns: Option<u64>,
        /// Number of ranks that took part.
        ranks: u64,
        /// Name of the kernel; null if no kernel is common.
        collective: Option<String>,
        /// Why the arrivals are unknown; null if they are known.
        unknown_because: Option<String>,
    }
    /// A kernel of one rank.
    RankKernelRow { rank: u32, total_ns: u64, name: String, }
    /// GPU work of one launching stack, over all ranks.
    RankStackRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Number of ranks in which the stack occurs.
        ranks: u64,
        stack: String,
    }
    /// Ranks of the job.
    JobRow {
        /// Number of ranks that the job has; null if the files do not contain it.
        world_size: Option<u64>,
        /// Number of ranks that were given.
        ranks: u64,
        /// Number of ranks that were not given; null if unknown.
        missing: Option<u64>,
        /// Numbers of the missing ranks (`1, 3 to 5`); null if unknown.
        missing_ranks: Option<String>,
    }
    /// Time on the critical path by class. The sum of all rows is the time that is shown.
    PathClassRow {
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
        /// Number of parts of the path.
        parts: u64,
        /// `kernel`, `memory`, `graph`, `call`, `return`, `host`, `hand_off`, `launch`, `gap` or `unexplained`.
        class: String,
        /// What is missing in the records if the class is `unexplained`; otherwise null.
        cause: Option<String>,
    }
    /// Time on the critical path by class, function and name.
    PathNameRow {
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
        /// Number of parts of the path.
        parts: u64,
        /// Class, as in `path_classes`.
        class: String,
        /// Innermost function of the user's code; null if none is known.
        function: Option<String>,
        /// Kernel, direction of a copy, call, or the two calls around a stretch of the host.
        name: String,
    }
    /// Slack of one kernel's activities, or those of one direction of copies.
    SlackRow {
        /// Time on the critical path, in ns.
        on_path_ns: u64,
        /// Time of all activities, in ns.
        total_ns: u64,
        /// Number of activities on the critical path.
        on_path: u64,
        /// Number of activities.
        count: u64,
        /// Smallest time by which an activity may end later without the run ending later, in ns.
        min_slack_ns: Option<u64>,
        /// Median of these times, in ns.
        median_slack_ns: Option<u64>,
        /// Largest time by which the run would end earlier if one activity took no time, in ns.
        max_saving_ns: u64,
        name: String,
    }
    /// A part of the critical path.
    PathPartRow {
        /// Start, in ns after the start of the path.
        start_ns: i64,
        duration_ns: u64,
        /// Class, as in `path_classes`.
        class: String,
        /// Thread of a call or of a stretch of the host; null for GPU work.
        thread: Option<u64>,
        device: Option<u64>, stream: Option<u64>,
        /// Time by which the run would end earlier at most if the part took no time, in ns.
        saving_ns: u64,
        /// Innermost function of the user's code; null if none is known.
        function: Option<String>,
        /// Kernel, direction of a copy, call, or the two calls around a stretch of the host.
        name: String,
        /// Why the part begins where the one before it ends.
        reason: String,
    }
    /// Time of a stream by state. The sum of all states is the time that is shown.
    StreamStateRow {
        device: u64,
        /// Number of the GPU context.
        context: u64, stream: u64,
        /// Time in which an operation ran, in ns.
        running_ns: u64,
        /// Time in which the next operation was launched and its stream waited for an event, in ns.
        waiting_ns: u64,
        /// Time in which the next operation was launched, had not begun, and waited for no known event, in ns.
        pending_ns: u64,
        /// Time in which the next operation was not launched, or its launch is unknown, in ns.
        idle_ns: u64,
        /// Time after the last operation, in ns.
        finished_ns: u64,
        /// Time in which no operation ran and no window was open, in ns.
        not_recorded_ns: u64,
    }
    /// Time of a stream in one state for one cause.
    StateCauseRow {
        device: u64,
        /// Number of the GPU context.
        context: u64, stream: u64,
        /// State of the stream: `waiting`, `pending` or `idle`.
        state: String,
        /// Why: `event`, `collective`, `launch_latency`, `default_stream`, `other_streams`, `host_late` or `unknown`.
        cause: String,
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
    }
    /// Streams of one GPU.
    StreamsRow {
        device: u64,
        /// Time that is shown, in ns.
        window_ns: u64,
        busy_ns: u64, busy_percent: Option<f64>,
        /// Number of streams with work.
        streams: u64,
        /// Maximum number of streams that ran at the same time.
        streams_at_once: u64,
        /// Maximum number of operations of one stream that were launched and not finished.
        max_queue: u64,
    }
    /// Time in which a number of streams of a GPU ran at the same time.
    ConcurrencyRow {
        device: u64,
        /// Number of streams that ran.
        running_streams: u64,
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
    }
    /// Times from launch calls to the begin of their operations on one stream. Percentiles are null without operations.
    LaunchDelayRow {
        device: u64,
        /// Number of the GPU context.
        context: u64, stream: u64,
        /// Number of operations with a known launch that begin in the time that is shown.
        launched: u64,
        p50_ns: Option<u64>, p95_ns: Option<u64>, max_ns: Option<u64>,
        /// Sum of the delays while earlier work of the stream ran, in ns.
        in_order_ns: u64,
        /// Sum of the delays until an event, in ns.
        event_ns: u64,
        /// Sum of the delays until an event after a kernel that moves data between GPUs, in ns.
        collective_ns: u64,
        /// Sum of the delays of launches in flight, in ns.
        launch_latency_ns: u64,
        /// Sum of the delays by the default stream, in ns.
        default_stream_ns: u64,
        /// Sum of the delays while other streams ran and no other cause is known, in ns.
        other_streams_ns: u64,
        /// Sum of the delays of unknown cause, in ns.
        unknown_ns: u64,
    }
    /// A part of the time, on one GPU.
    OverTimeRow {
        /// Start, in ns since the start of the window.
        start_ns: u64,
        device: u64, busy_percent: Option<f64>,
        /// Sum of the streams' running times, in ns.
        streams_ns: u64,
        /// Sum of the times in which operations were launched and not finished, in ns.
        queued_ns: u64,
        bytes: u64,
        /// Bytes by time, in GB/s.
        bandwidth_gb_per_s: Option<f64>,
    }
    /// Interval in which a stream had one state.
    IntervalRow {
        /// Start, in ns since the start of the window.
        start_ns: u64,
        duration_ns: u64, device: u64,
        /// Number of the GPU context.
        context: u64, stream: u64,
        /// State of the stream.
        state: String,
        /// Why; null if the stream was running or finished.
        cause: Option<String>,
        /// Event that the stream waited for; null if there is none, or it is unknown.
        event: Option<u64>,
        /// Work that ran first, or that began next; null after the last work.
        work: Option<String>,
    }
    /// Result of one check of this machine.
    DoctorRow {
        /// `ok`, `warn` or `fail`.
        result: String,
        what: String,
        /// Text of the finding.
        found: String,
        /// Suggested action; null if there is none.
        remedy: Option<String>,
    }
    /// A GPU that this user may use.
    FoundGpuRow {
        /// Number by which CUDA knows the GPU.
        gpu: u64,
        /// Size of the memory in bytes; null if the driver does not tell it.
        memory_bytes: Option<u64>,
        /// Compute capability, such as `9.0`; null if the driver does not tell it.
        capability: Option<String>,
        /// Number of streaming multiprocessors; null if the driver does not tell it.
        multiprocessors: Option<u64>,
        /// Place on the PCI bus; null if the driver does not tell it.
        pci: Option<String>,
        /// UUID, as `nvidia-smi -L` prints it; null if the driver does not tell it.
        uuid: Option<String>,
        /// Name of the model.
        name: String,
    }
    /// The NVIDIA driver; no row if there is none.
    DriverRow {
        /// Newest CUDA version that the driver supports; null if the driver does not tell it.
        cuda: Option<String>,
        /// Version of the kernel module, as `nvidia-smi` prints it; null if there is none.
        kernel_module: Option<String>,
        /// Path of `libcuda.so.1`.
        file: String,
    }
    /// A CUPTI library, in the order in which gpuflame tries them.
    CuptiRow {
        /// `used` by new processes, `usable`, `unusable`, or `not loaded`, because there is no driver.
        state: String,
        /// Version of the library; null if it could not be loaded.
        version: Option<String>,
        /// Path of the library.
        file: String,
        /// Place where it was found, or reason why it is unusable.
        why: String,
    }
    /// An environment variable.
    SettingRow {
        /// Name of the variable.
        name: String,
        /// Values that it takes.
        values: String,
        /// Value if it is not set; empty if there is none.
        default: String,
        /// Effect of the variable.
        help: String,
        /// `first` for important variables, `internal` for gpuflame's own commands and tests, else `more`.
        group: String,
    }
}

/// First line of `gpuflame instructions --format jsonl`: facts about the file.
#[derive(JsonSchema)]
#[allow(dead_code)]
struct InstructionsHead {
    /// Version of this description.
    #[schemars(range(min = 1, max = 1))]
    schema: u32,
    /// Path of the input.
    file: String,
    /// Clock of `zero_ns`: `unix` counts from 1970, `file` is the clock of the file.
    clock: String,
    /// Start of the window on the clock, in ns. Other times count from it.
    zero_ns: u64,
    /// Length of the window, in ns.
    window_ns: u64,
    /// Order of the lines: `issue` or `start`.
    order: String,
    /// Number of instructions in the file, including those that are not shown.
    instructions: u64,
}

/// Any other line of `gpuflame instructions --format jsonl`: an instruction. Keys that the data does not have are absent.
#[derive(JsonSchema)]
#[allow(dead_code)]
struct Instruction {
    /// Number in order of issue, from 0. It does not depend on filters.
    number: u32,
    /// `kernel`, `copy`, `fill`, `graph`, `launch` (a launch whose work is not in the file), `record`, `wait` or
    /// `synchronize`.
    kind: String,
    /// Name of the kernel.
    name: Option<String>,
    /// API function that issued the instruction.
    call: Option<String>,
    /// Id of the thread that called it.
    thread: Option<u32>,
    /// Start of the call; negative before the window.
    called_ns: Option<i64>,
    /// Duration of the call.
    call_duration_ns: Option<u64>,
    /// Id that links the call, the work and the records of waits.
    correlation: Option<u64>,
    /// Why the call of GPU work is unknown: `launched_before_recording`, `device_graph` or `no_launch_stack`.
    missing_call: Option<String>,
    /// Number of the GPU.
    device: Option<u32>,
    /// Number of the GPU context.
    context: Option<u32>,
    /// Stream that runs the instruction, or that the host waits for.
    stream: Option<u32>,
    /// Streams on which the nodes of a graph ran, if there are several.
    streams: Option<Vec<u32>>,
    /// Start of the GPU work; of a graph's first node for a graph.
    start_ns: Option<i64>,
    /// End of the GPU work; of a graph's last node for a graph.
    end_ns: Option<i64>,
    /// Number of blocks in x, y and z.
    grid: Option<Vec<u32>>,
    /// Number of threads per block in x, y and z.
    block: Option<Vec<u32>>,
    /// Shared memory per block, in bytes.
    shared_bytes: Option<u64>,
    /// Registers per thread.
    registers: Option<u32>,
    /// Direction of a copy: `HtoD`, `DtoH`, `DtoD`, `PtoP` and so on.
    direction: Option<String>,
    /// Kind of memory that a copy reads: `pageable`, `pinned`, `device`, `managed` and so on.
    from: Option<String>,
    /// Kind of memory that a copy or fill writes.
    to: Option<String>,
    /// GPU that a copy between two GPUs reads.
    from_device: Option<u32>,
    /// GPU that a copy between two GPUs writes.
    to_device: Option<u32>,
    /// Bytes copied or filled.
    bytes: Option<u64>,
    /// Value that a fill writes.
    value: Option<u32>,
    /// Whether the call of a copy or fill may return before the work is done. Only recordings tell.
    is_async: Option<bool>,
    /// Number of the event that is recorded or waited for.
    event: Option<u32>,
    /// Target of the host's wait: `event`, `stream` or `context`.
    waits_for: Option<String>,
    /// Return code of a wait of the host, if it is not 0: the call did not wait.
    result: Option<u32>,
    /// Id of the graph.
    graph: Option<u64>,
    /// Id of the graph's node.
    node: Option<u64>,
    /// Number of nodes that ran. Each is an instruction.
    nodes: Option<u32>,
    /// Number of the instruction that launched the graph of this node.
    launch: Option<u32>,
    /// True for work that the GPU itself launched.
    device_launched: Option<bool>,
    /// Instructions that must be done first.
    after: Option<Vec<After>>,
}

/// An instruction that must be done before another one.
#[derive(JsonSchema)]
#[allow(dead_code)]
struct After {
    /// Number of the instruction.
    number: u32,
    /// `stream`, `event`, `context`, `graph` or `same_graph`.
    reason: String,
}

/// Objects of JSON Lines, which have no tables.
const LINES: [&str; 3] = ["InstructionsHead", "Instruction", "After"];

/// Text, number or null.
#[derive(JsonSchema)]
#[allow(dead_code)]
#[schemars(untagged, inline)]
enum AnyValue {
    Text(String),
    Number(f64),
    Null(()),
}

/// Meanings of the keys that several tables share.
const MEANINGS: &[(&str, &str)] = &[
    ("total_ns", "Time, in ns."),
    ("share_percent", "Share of the total over all rows, shown or left out; null if the total is 0."),
    ("count", "Number of activities."),
    ("avg_ns", "Average, in ns."),
    ("min_ns", "Shortest, in ns."),
    ("p50_ns", "Median, in ns."),
    ("p95_ns", "95th percentile, in ns."),
    ("max_ns", "Longest, in ns."),
    ("device", "Number of the GPU."),
    ("stream", "Number of the stream."),
    ("name", "Name of the work."),
    ("stack", "Launching stack, outermost frame first, frames separated by `;`."),
    ("line", "`FILE:LINE` of the user's code, or `[no line]`."),
    ("function", "Name of the function."),
    ("gaps", "Number of gaps."),
    (
        "cause",
        "Why the GPU was idle: `host_late`, `launch_latency`, `dependency`, `start_up`, `shutdown` ...",
    ),
    ("exposed_ns", "Time in which communication ran and no computation, in ns."),
    ("start_ns", "Start, in ns since the first activity."),
    ("duration_ns", "Duration, in ns."),
    ("bytes", "Bytes copied or filled."),
    ("busy_ns", "Time in which at least one activity ran, in ns."),
    ("idle_ns", "Time in which no activity ran, in ns; null if unknown."),
    ("window_ns", "Time in which a window was open, in ns."),
    ("busy_percent", "Share of the time in which at least one activity ran."),
    ("activities", "Number of activities."),
    ("what", "Subject of the row."),
    ("change_ns", "Difference, after minus before, in ns."),
    ("change_percent", "Difference as a share of the time before; null if that is zero or unknown."),
    ("before_ns", "Time in the run before, in ns."),
    ("after_ns", "Time in the run after, in ns."),
    ("before_count", "Number of activities in the run before."),
    ("after_count", "Number of activities in the run after."),
    ("rank", "Number of the rank."),
];

/// Returns the schema, with a description for every key, and all keys of rows required.
fn schema() -> Value {
    let mut schema = schema_for!(Output).to_value();
    for (name, object) in schema["$defs"].as_object_mut().unwrap() {
        let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else { continue };
        for (key, property) in properties.iter_mut() {
            let meaning = MEANINGS.iter().find(|(known, _)| known == key);
            if let (None, Some((_, meaning))) = (property.get("description"), meaning) {
                property["description"] = json!(meaning);
            }
        }
        if LINES.contains(&name.as_str()) {
            // A key without a value is absent, and never null.
            for property in properties.values_mut() {
                if let Some(kind) = property["type"].get(0).cloned() {
                    property["type"] = kind;
                }
            }
        }
        if name.ends_with("Row") {
            let keys: Vec<_> = properties.keys().cloned().collect();
            object["required"] = json!(keys);
        }
    }
    schema
}

/// Returns the type of a property in words.
fn type_words(property: &Value) -> String {
    let word = |name: &str| match name {
        "integer" => "integer".to_owned(),
        "null" => "null".to_owned(),
        other => other.to_owned(),
    };
    match &property["type"] {
        Value::String(name) => word(name),
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(word).collect::<Vec<_>>().join(" or ")
        }
        _ => "string, number or null".to_owned(),
    }
}

/// Returns the tables of `docs/schema.md`.
fn page(schema: &Value) -> String {
    let mut text = String::new();
    let definitions = &schema["$defs"];
    let properties =
        |object: &Value| -> Map<String, Value> { object["properties"].as_object().unwrap().clone() };
    let row_of = |table: &Value| {
        let reference = table["items"]["$ref"].as_str().unwrap();
        reference.rsplit('/').next().unwrap().to_owned()
    };
    let mut described = BTreeSet::new();
    for verb in schema["anyOf"].as_array().unwrap() {
        let name = verb["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        if LINES.contains(&name) {
            continue;
        }
        let verb = &definitions[name];
        let about = verb["description"].as_str().unwrap();
        let heading = about.split('`').nth(1).unwrap().trim_start_matches("gpuflame ");
        let _ = write!(text, "\n## {heading}\n\n{about}\n");
        let required = verb["required"].as_array().unwrap();
        for (name, table) in properties(verb).iter().filter(|(name, _)| *name != "schema") {
            let row = row_of(table);
            let about = definitions[&row]["description"].as_str().unwrap().replace('\n', " ");
            let sometimes = if required.contains(&json!(name)) { "" } else { " (not always there)" };
            let _ = write!(text, "\n**`{name}`**{sometimes}: {about}");
            if !described.insert(row.clone()) {
                text.push_str(" The same keys as above.\n");
                continue;
            }
            text.push_str(&key_table(&definitions[&row]));
        }
    }
    text.push_str("\n## instructions\n");
    for name in LINES {
        let about = definitions[name]["description"].as_str().unwrap().replace('\n', " ");
        let _ = write!(text, "\n**`{name}`**: {about}{}", key_table(&definitions[name]));
    }
    text
}

/// Returns the table of an object's keys.
fn key_table(object: &Value) -> String {
    let mut text = "\n\n| key | type | meaning |\n|---|---|---|\n".to_owned();
    for (key, property) in object["properties"].as_object().unwrap() {
        let meaning = property["description"].as_str().unwrap_or_else(|| panic!("no description of {key}"));
        let meaning = meaning.replace('\n', " ");
        let _ = writeln!(text, "| `{key}` | {} | {meaning} |", type_words(property));
    }
    text
}

const BEGIN: &str = "<!-- The rest of this page is generated. -->\n";

#[test]
fn the_schema_and_its_page_are_up_to_date() {
    assert_eq!(SCHEMA, 1, "a new version needs a new description");
    let schema = schema();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (json_file, page_file) = (docs.join("schema.json"), docs.join("schema.md"));
    let old = fs::read_to_string(&page_file).unwrap_or_default();
    let introduction = old.split(BEGIN).next().unwrap();
    let json_text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let page_text = format!("{introduction}{BEGIN}{}", page(&schema));
    if std::env::var_os("GPUFLAME_RENEW_GOLDEN").is_some() {
        fs::write(&json_file, &json_text).unwrap();
        fs::write(&page_file, &page_text).unwrap();
    }
    assert!(
        fs::read_to_string(&json_file).unwrap_or_default() == json_text,
        "docs/schema.json is out of date"
    );
    assert!(fs::read_to_string(&page_file).unwrap_or_default() == page_text, "docs/schema.md is out of date");
}
