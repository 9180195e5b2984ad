//! JSON tables of `gpuflame states` and `gpuflame timeline`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame states`. The table `idle_culprits` is present with `--culprits`, and the table `intervals` with
    /// `--intervals`.
    States {
        states: StreamStateRow,
        causes: StateCauseRow,
        devices: StreamsRow,
        concurrency: ConcurrencyRow,
        launch_delays: LaunchDelayRow,
        over_time: OverTimeRow,
        ?
        idle_culprits: StateCulpritRow,
        intervals: IntervalRow,
    }
    /// `gpuflame states --as-hta`: tables by the rules of Holistic Trace Analysis.
    StatesAsHta {
        queue_length: QueueLengthRow,
        idle_time: IdleTimeRow,
        ?
    }
    /// `gpuflame timeline`.
    Timeline {
        timeline: TimelineRow,
        ?
    }
}

objects! {
    /// Queue length of a stream. The queue length is the number of launched operations that have not begun. The figures
    /// are computed over all changes of the queue length.
    QueueLengthRow {
        device: u32, stream: u64,
        /// Number of changes of the queue length.
        count: u64,
        /// Mean queue length over all changes.
        mean: f64,
        /// Standard deviation of the queue length (of a sample); null for a single change.
        std: Option<f64>,
        /// Minimum queue length.
        min: f64,
        /// Lower quartile of the queue length.
        p25: f64,
        /// Median queue length.
        p50: f64,
        /// Upper quartile of the queue length.
        p75: f64,
        /// Maximum queue length.
        max: f64,
    }
    /// Idle time of a stream in one category.
    IdleTimeRow {
        device: u32, stream: u64,
        /// Category of the idle time: `host_wait`, `kernel_wait` or `other`.
        idle_category: String,
        /// Sum of the gaps of this category in microseconds; negative if operations overlap.
        idle_time_us: f64,
        /// Share of this category in the idle time of the stream, from 0 to 1.
        idle_time_ratio: Option<f64>,
    }
    /// Times of a stream in one part of the window, by state. The times of all states add up to `duration_ns`.
    TimelineRow {
        device: u32,
        /// Id of the CUDA context that the stream belongs to.
        context: u64,
        stream: u64,
        /// Start of the part in ns since the start of the window.
        start_ns: u64,
        /// Length of the part, in ns.
        duration_ns: u64,
        /// Time in which an operation of the stream ran, in ns.
        busy_ns: u64, busy_percent: f64,
        /// Time in which the next operation had been launched and the stream waited for a CUDA event, in ns.
        waiting_ns: u64,
        /// Time in which the next operation had been launched but had not begun for another reason, in ns.
        pending_ns: u64,
        /// Time in which the next operation had not been launched yet, in ns.
        idle_ns: u64,
        /// Time after the end of the stream's last operation, in ns.
        finished_ns: u64,
        /// Time between two recording windows, in ns.
        not_recorded_ns: u64,
    }
    /// Time of a stream in each state. The times of all states add up to the time range that is shown.
    StreamStateRow {
        device: u64,
        /// Id of the CUDA context that the stream belongs to.
        context: u64, stream: u64,
        /// Time in which an operation of the stream ran, in ns.
        running_ns: u64,
        /// Time in which the next operation had been launched and the stream waited for a CUDA event, in ns.
        waiting_ns: u64,
        /// Time in which the next operation had been launched but had not begun, although the stream did not wait for a
        /// known CUDA event, in ns.
        pending_ns: u64,
        /// Time in which the next operation had not been launched yet, or its launch is unknown, in ns.
        idle_ns: u64,
        /// Time after the end of the stream's last operation, in ns.
        finished_ns: u64,
        /// Time in which no operation ran and no recording window was open, in ns.
        not_recorded_ns: u64,
    }
    /// Time that a stream spent in one state for one cause.
    StateCauseRow {
        device: u64,
        /// Id of the CUDA context that the stream belongs to.
        context: u64, stream: u64,
        /// State of the stream: `waiting`, `pending` or `idle`.
        state: String,
        /// Cause of the state: `event`, `collective`, `launch_latency`, `default_stream`, `other_streams`, `host_late`
        /// or `unknown`.
        cause: String,
        /// Time in this state for this cause, in ns.
        time_ns: u64,
        /// Time as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
    }
    /// Idle time of a stream with the cause `host_late` that is charged to one stack.
    StateCulpritRow {
        device: u64,
        /// Id of the CUDA context that the stream belongs to.
        context: u64, stream: u64,
        /// Idle time that is charged to the stack, in ns.
        time_ns: u64,
        /// Time as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
        /// Number of gaps of which this stack has the longest part.
        gaps: u64,
        /// Stack of the late thread, or the thread's two calls around the gap, as in `top --by idle`.
        stack: String,
    }
    /// Figures over all streams of one GPU.
    StreamsRow {
        device: u64,
        /// Length of the time range that is shown, in ns.
        window_ns: u64,
        busy_ns: u64, busy_percent: Option<f64>,
        /// Number of streams that ran at least one operation.
        streams: u64,
        /// Maximum number of streams that ran at the same time.
        streams_at_once: u64,
        /// Maximum number of operations on one stream that were launched and not finished.
        max_queue: u64,
    }
    /// Time in which a certain number of a GPU's streams ran at the same time.
    ConcurrencyRow {
        device: u64,
        /// Number of streams that ran at the same time.
        running_streams: u64,
        /// Time in which this number of streams ran, in ns.
        time_ns: u64,
        /// Time as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
    }
    /// Delays from the start of the launch call to the start of the launched operation, on one stream. Percentiles are
    /// null if there are no operations.
    LaunchDelayRow {
        device: u64,
        /// Id of the CUDA context that the stream belongs to.
        context: u64, stream: u64,
        /// Number of operations with a known launch that begin in the time range that is shown.
        launched: u64,
        p50_ns: Option<u64>, p95_ns: Option<u64>, max_ns: Option<u64>,
        /// Sum of the parts of the delays in which earlier work of the stream ran, in ns.
        in_order_ns: u64,
        /// Sum of the parts of the delays in which the stream waited for a CUDA event, in ns.
        event_ns: u64,
        /// Sum of the parts of the delays in which the stream waited for a CUDA event after a kernel that moves data
        /// between GPUs, in ns.
        collective_ns: u64,
        /// Sum of the parts of the delays in which the launch was in flight, in ns.
        launch_latency_ns: u64,
        /// Sum of the parts of the delays that the default stream caused, in ns.
        default_stream_ns: u64,
        /// Sum of the parts of the delays in which other streams ran and no other cause is known, in ns.
        other_streams_ns: u64,
        /// Sum of the parts of the delays with an unknown cause, in ns.
        unknown_ns: u64,
    }
    /// Figures of one GPU in one part of the window.
    OverTimeRow {
        /// Start of the row's time range, in ns since the start of the window.
        start_ns: u64,
        device: u64, busy_percent: Option<f64>,
        /// Sum of the running times of all streams, in ns.
        streams_ns: u64,
        /// Sum over all operations of the time in which the operation was launched and not finished, in ns.
        queued_ns: u64,
        bytes: u64,
        /// Bytes divided by time, in GB/s (1,000,000,000 bytes per second).
        bandwidth_gb_per_s: Option<f64>,
    }
    /// Interval in which a stream had one state.
    IntervalRow {
        /// Start of the row's time range, in ns since the start of the window.
        start_ns: u64,
        duration_ns: u64, device: u64,
        /// Id of the CUDA context that the stream belongs to.
        context: u64, stream: u64,
        /// State of the stream: `running`, `waiting`, `pending`, `idle`, `finished` or `not_recorded`.
        state: String,
        /// Cause of the state; null if the stream was running or finished.
        cause: Option<String>,
        /// Id of the CUDA event for which the stream waited; null if there is no such event, or if it is unknown.
        event: Option<u64>,
        /// Name of the first work that ran in the interval, or of the work that began next; null after the last work.
        work: Option<String>,
        /// With `--culprits`: stack to which most of the interval is charged. Null if the launch was not late.
        culprit: Option<String>,
    }
}
