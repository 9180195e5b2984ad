//! Tables of `gpuflame critical-path`.

use schemars::JsonSchema;

verbs! {
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
    /// `gpuflame critical-path`. `ranges` is present with `--range`, and `path` with `--list`.
    CriticalPath {
        path_classes: PathClassRow,
        path_names: PathNameRow,
        slack: SlackRow,
        ?
        ranges: PathRangeRow,
        path: PathPartRow,
    }
    /// `gpuflame critical-path` with the files of several ranks. `path` is present with `--list`.
    CriticalPathOfJob {
        path_ranks: PathRankRow,
        path_classes: PathClassRow,
        path_names: RankPathNameRow,
        slack: SlackRow,
        clocks: RankClockRow,
        ?
        path: RankPathPartRow,
    }
}

objects! {
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
    /// Time on the critical path by class. The sum of all rows is the time that is shown.
    PathClassRow {
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
        /// Number of parts of the path.
        parts: u64,
        /// `kernel`, `memory`, `graph`, `host_function`, `call`, `return`, `host`, `hand_off`, `launch`, `gap` or
        /// `unexplained`.
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
    /// Slack of one kernel's activities, or those of one direction of copies, in `top --by slack`.
    WorkSlackRow {
        /// Time of all activities, in ns.
        total_ns: u64,
        /// Share of the time of all work.
        share_percent: Option<f64>,
        /// Number of activities.
        count: u64,
        /// Smallest time by which an activity may end later without the run ending later, in ns.
        min_slack_ns: Option<u64>,
        /// Median of these times, in ns.
        median_slack_ns: Option<u64>,
        /// Largest time by which the run would end earlier if one activity took no time, in ns.
        max_saving_ns: u64,
        /// Time on the critical path, in ns.
        on_path_ns: u64,
        /// Number of activities on the critical path.
        on_path: u64,
        name: String,
    }
    /// The critical path during one range. `gpu_ns`, `host_ns`, `latency_ns` and `unexplained_ns` add up to `duration_ns`.
    PathRangeRow {
        /// Start, in ns after the start of the path.
        start_ns: i64,
        /// Length of the range, as far as it is inside the path's time, in ns.
        duration_ns: u64,
        /// Time of the classes `kernel`, `memory` and `graph`.
        gpu_ns: u64,
        /// Time of the classes `call`, `return`, `host`, `hand_off` and `host_function`.
        host_ns: u64,
        /// Time of the classes `launch` and `gap`.
        latency_ns: u64,
        /// Time of the class `unexplained`.
        unexplained_ns: u64,
        /// Thread that opened the range.
        thread: u64,
        /// Name of the range.
        range: String,
    }
    /// Time on the critical path of a job by rank. `gpu_ns`, `host_ns`, `latency_ns` and `unexplained_ns` add up to
    /// `time_ns`.
    PathRankRow {
        rank: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
        /// Time, in ns.
        time_ns: u64,
        /// Time of the classes `kernel`, `memory` and `graph`.
        gpu_ns: u64,
        /// Time of the classes `call`, `return`, `host`, `hand_off` and `host_function`.
        host_ns: u64,
        /// Time of the classes `launch` and `gap`.
        latency_ns: u64,
        /// Time of the class `unexplained`.
        unexplained_ns: u64,
        /// Number of collectives on the path in which another rank waited for this one.
        waited_for: u64,
    }
    /// Clock of a rank.
    RankClockRow {
        /// Rank.
        rank: u64,
        /// Time by which the clock is ahead of the first rank's, in ns.
        ahead_ns: i64,
        /// Maximum error of `ahead_ns` over the ranks, in ns.
        error_ns: u64,
        /// Time by which the ends of one collective differ after the alignment, in ns, for 90 % of the collectives.
        ends_apart_ns: u64,
        /// Number of collectives.
        collectives: u64,
    }
    /// Time on the critical path of a job by rank, class, function and name.
    RankPathNameRow {
        /// Time, in ns.
        time_ns: u64,
        /// Share of the time that is shown.
        share_percent: Option<f64>,
        /// Number of parts of the path.
        parts: u64,
        rank: u64,
        /// Class, as in `path_classes`.
        class: String,
        /// Innermost function of the user's code; null if none is known.
        function: Option<String>,
        /// Kernel, direction of a copy, call, or the two calls around a stretch of the host.
        name: String,
    }
    /// A part of the critical path of a job.
    RankPathPartRow {
        /// Start, in ns after the start of the path.
        start_ns: i64,
        duration_ns: u64,
        rank: u64,
        /// Class, as in `path_classes`.
        class: String,
        /// Thread of a call or of a stretch of the host; null for GPU work.
        thread: Option<u64>,
        device: Option<u64>, stream: Option<u64>,
        /// Time by which the job would end earlier at most if the part took no time, in ns.
        saving_ns: u64,
        /// Innermost function of the user's code; null if none is known.
        function: Option<String>,
        /// Kernel, direction of a copy, call, or the two calls around a stretch of the host.
        name: String,
        /// Why the part begins where the one before it ends.
        reason: String,
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
}
