//! JSON tables of `gpuflame top` and `gpuflame view`.

use schemars::JsonSchema;

use super::critical_path::WorkSlackRow;
use super::states::TimelineRow;

verbs! {
    /// `gpuflame top`: the tables that `--by` names.
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
        slack: WorkSlackRow,
        impossible_durations: ImpossibleRow,
    }
    /// `gpuflame view`: the table `activities`, or `stats` with `--stats`, or `timeline` with `--timeline`.
    View {
        ?
        activities: ActivityRow,
        stats: StatsRow,
        timeline: TimelineRow,
    }
}

objects! {
    /// All GPU work with the same name on one GPU.
    KernelRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, avg_ns: u64, min_ns: u64, p50_ns: u64, p95_ns: u64,
        max_ns: u64, device: u32, name: String,
    }
    /// All GPU work that one stack launched.
    StackRow { total_ns: u64, share_percent: Option<f64>, count: u64, stack: String, }
    /// All GPU work that one source line launched.
    LineRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, line: String, function: String,
        /// Names of the kernels with the most GPU time, and the number of further kernels.
        kernels: String,
    }
    /// Times of one function, including its callees.
    FunctionRow {
        /// GPU time of the work that the function launched, in ns; null if unknown.
        gpu_ns: Option<u64>,
        /// CPU time of the launching threads in the function, in ns; null if it was not recorded.
        cpu_ns: Option<u64>,
        /// Time in which the launching threads waited in the function, in ns; null if it was not recorded.
        waiting_ns: Option<u64>,
        function: String,
    }
    /// All copies on one GPU with the same direction and the same kinds of memory.
    CopyRow {
        total_ns: u64,
        /// Share of the total time of all copies, including rows that are left out; null if that time is 0.
        share_percent: Option<f64>,
        count: u64,
        /// Number of bytes copied; null if the trace does not contain this number.
        bytes: Option<u64>,
        /// Bytes divided by time, in GB/s (1,000,000,000 bytes per second); null if either is 0 or unknown.
        bandwidth_gb_per_s: Option<f64>,
        device: u32,
        /// Direction of the copies: `HtoD`, `DtoH`, `DtoD`, `PtoP` and so on; null if unknown.
        direction: Option<String>,
        /// Kind of memory that the copies read: `pageable`, `pinned`, `device`, `managed` and so on; null if unknown.
        from: Option<String>,
        /// Kind of memory that the copies write; null if unknown.
        to: Option<String>,
    }
    /// Delay between the launching call and the start on the GPU, for all work with the same name.
    DelayRow {
        avg_ns: u64, p50_ns: u64, p95_ns: u64, max_ns: u64, count: u64,
        /// Number of activities that began before their launching call, which means that the clocks of host and GPU
        /// differ.
        before_launch: u64,
        name: String,
    }
    /// Idle time with one cause.
    IdleCauseRow { total_ns: u64, share_percent: Option<f64>, gaps: u64, cause: String, }
    /// Idle time during which the launching thread was in one call.
    IdleCallRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// API call or built-in function in which the thread was; null if no call is known.
        call: Option<String>,
    }
    /// Idle time during which the launching thread was in one function.
    IdleFunctionRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// Innermost function in which the thread was; null if no function is known.
        function: Option<String>,
    }
    /// Idle time during which the launching thread was at one source line.
    IdleLineRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// Source line of the user's code as `FILE:LINE`; null if no line is known.
        line: Option<String>,
    }
    /// Idle time during which the launching thread was in one module.
    IdleModuleRow {
        total_ns: u64, share_percent: Option<f64>, gaps: u64,
        /// PyTorch module, or file of the innermost function; null if neither is known.
        module: Option<String>,
    }
    /// Idle time with one cause and stack. If idle time is unknown, one row contains the reason, and its numbers are
    /// null.
    IdleRow {
        total_ns: Option<u64>, share_percent: Option<f64>, gaps: Option<u64>, cause: String,
        /// Stack to which the idle time is charged, outermost frame first, frames separated by `;`.
        stack: String,
    }
    /// Time of communication and computation on one GPU.
    CommRow {
        device: u32,
        /// Time in which at least one communication operation ran, in ns.
        comm_ns: u64,
        exposed_ns: u64,
        /// Share of the communication time in which no computation ran, in percent.
        exposed_percent: Option<f64>,
        /// Time in which communication and computation ran at the same time, in ns.
        overlapped_ns: u64,
        /// Share of the communication time in which computation ran too, in percent.
        overlap_percent: Option<f64>,
        /// Time in which at least one computation ran, in ns.
        compute_ns: u64,
    }
    /// All communication that one stack launched.
    CommStackRow {
        exposed_ns: u64,
        /// Share of the exposed communication time of all stacks, in percent.
        share_percent: Option<f64>,
        total_ns: u64, count: u64, stack: String,
    }
    /// A time that impossible durations change. The first two rows are sums; every other row is an activity with an
    /// impossible duration.
    ImpossibleRow {
        /// The time as it was recorded, in ns.
        recorded_ns: u64,
        /// The time if each activity with an impossible duration ended when later work of its stream begins, in ns.
        clamped_ns: u64,
        device: Option<u32>, stream: Option<u64>, start_ns: Option<u64>,
        /// Name of the sum or of the activity.
        what: String,
    }
    /// An activity. The times of an activity are null if CUPTI did not collect them.
    ActivityRow {
        start_ns: Option<u64>, duration_ns: Option<u64>, device: u32, stream: u64,
        /// Correlation id that the activity shares with its API call; null if the trace does not contain a correlation
        /// id.
        correlation: Option<u64>,
        bytes: u64,
        /// Kind of memory that a copy reads; null if unknown or if the activity is not a copy.
        from: Option<String>,
        /// Kind of memory that a copy or fill writes; null if unknown or if the activity is neither.
        to: Option<String>,
        name: String,
        /// Launching stack, outermost frame first, frames separated by `;`.
        launched_by: String,
    }
    /// All GPU work with the same name, summed over all GPUs.
    StatsRow {
        total_ns: u64, share_percent: Option<f64>, count: u64, avg_ns: u64, min_ns: u64, max_ns: u64, name: String,
    }
}
