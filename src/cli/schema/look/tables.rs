//! Tables of `gpuflame top` and `gpuflame view`.

use schemars::JsonSchema;

use super::critical_path::WorkSlackRow;
use super::states::TimelineRow;

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
        slack: WorkSlackRow,
        impossible_durations: ImpossibleRow,
    }
    /// `gpuflame view`: `activities`, `stats` with `--stats`, or `timeline` with `--timeline`.
    View {
        ?
        activities: ActivityRow,
        stats: StatsRow,
        timeline: TimelineRow,
    }
}

objects! {
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
}
