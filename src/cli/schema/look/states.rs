//! Tables of `gpuflame states` and `gpuflame timeline`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame states`. `idle_culprits` is present with `--culprits`, and `intervals` with `--intervals`.
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
    /// Idle time of a stream, of the cause `host_late`, that is charged to one stack.
    StateCulpritRow {
        device: u64,
        /// Number of the GPU context.
        context: u64, stream: u64,
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
        /// Number of gaps of which this is the longest part.
        gaps: u64,
        /// Stack of the late thread, or its two calls around the gap, as in `top --by idle`.
        stack: String,
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
        /// With `--culprits`: stack to which most of the interval is charged, if the launch was late.
        culprit: Option<String>,
    }
}
