//! JSON tables of `gpuflame critical-path`.

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
    /// `gpuflame critical-path`. The table `ranges` is present with `--range`, and the table `path` with `--list`.
    CriticalPath {
        path_classes: PathClassRow,
        path_names: PathNameRow,
        slack: SlackRow,
        ?
        ranges: PathRangeRow,
        path: PathPartRow,
    }
    /// `gpuflame critical-path` with the files of several ranks. The table `path` is present with `--list`.
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
    /// Length of the critical path by the rules of Holistic Trace Analysis (HTA).
    HtaPathRow {
        /// Length of the analysed window, in ns.
        window_ns: i64,
        /// Sum of the weights of the path's edges, in ns.
        path_ns: i64,
        /// Length of the path as a share of the window, in percent.
        share_percent: Option<f64>,
        /// Number of trace events on the critical path.
        critical_events: u64,
        /// Number of nodes (starts and ends of trace events) on the critical path.
        critical_nodes: u64,
        /// Number of edges on the critical path.
        critical_edges: u64,
    }
    /// Edges of one type in the dependency graph.
    HtaEdgeTypeRow {
        /// Type of the edge, in the words of Holistic Trace Analysis (HTA).
        r#type: String,
        /// Number of edges.
        edges: u64,
        /// Sum of the weights of these edges, in ns.
        time_ns: i64,
        /// Number of edges on the path.
        critical_edges: u64,
        /// Sum of the weights of the edges on the critical path, in ns.
        critical_ns: i64,
    }
    /// Time on the critical path that one resource limits.
    HtaBoundRow {
        /// Resource that limits the path, in the words of Holistic Trace Analysis (HTA); null for edges without weight.
        bound_by: Option<String>,
        /// Number of edges.
        edges: u64,
        /// Sum of the weights of these edges, in ns.
        time_ns: i64,
        /// Time of these edges as a share of the critical path's length, in percent.
        share_percent: Option<f64>,
    }
    /// A rule that makes the path shorter than the window.
    HtaRuleRow {
        /// Name of the rule: `cpu_gap`, `blocking_exit`, `long_gap` or `call_start`.
        rule: String,
        /// Number of edges to which the rule applies. For the rule `long_gap`: number of gaps.
        edges: u64,
        /// Time that the edges' weights do not include because of the rule, in ns. For the rule `call_start`: sum of
        /// the edges' weights, in ns.
        time_ns: i64,
        /// Number of edges on the path.
        critical_edges: u64,
        /// The part of `time_ns` that belongs to edges on the critical path, in ns.
        critical_ns: i64,
    }
    /// A node of the critical path: the start or the end of a trace event.
    HtaNodeRow {
        /// Index of the trace event in `traceEvents`.
        event: u64,
        /// Side of the trace event at which the node is: `start` or `end`.
        side: String,
        /// Time of the node, in ns since the start of the window.
        time_ns: i64,
        /// Name of the trace event.
        name: Option<String>,
    }
    /// An edge between two nodes of the dependency graph.
    HtaEdgeRow {
        /// Index in `traceEvents` of the trace event at which the edge begins.
        from_event: u64,
        /// Side of the trace event at which the edge begins: `start` or `end`.
        from_side: String,
        /// Time of the node at which the edge begins, in ns since the start of the window.
        from_ns: i64,
        /// Index in `traceEvents` of the trace event at which the edge ends.
        to_event: u64,
        /// Side of the trace event at which the edge ends: `start` or `end`.
        to_side: String,
        /// Time of the node at which the edge ends, in ns since the start of the window.
        to_ns: i64,
        /// Type of the edge, in the words of Holistic Trace Analysis (HTA).
        r#type: String,
        /// Weight of the edge in ns; negative if the edge leads back in time.
        weight_ns: i64,
        /// Whether the edge is on the critical path: `yes` or `no`.
        critical: String,
        /// Index in `traceEvents` of the trace event to which the weight is attributed.
        attributed_event: Option<u64>,
        /// Rule that applies to the edge, as in the table `rules`.
        rule: Option<String>,
    }
    /// Time that parts of one class have on the critical path. The times of all rows add up to the time range that is
    /// shown.
    PathClassRow {
        /// Time on the critical path, in ns.
        time_ns: u64,
        /// Time on the critical path as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
        /// Number of parts of the critical path.
        parts: u64,
        /// `kernel`, `memory`, `graph`, `host_function`, `call`, `return`, `host`, `hand_off`, `launch`, `gap` or
        /// `unexplained`.
        class: String,
        /// Data that is missing in the input if the class is `unexplained`; otherwise null.
        cause: Option<String>,
    }
    /// Time that parts with the same class, function and name have on the critical path.
    PathNameRow {
        /// Time on the critical path, in ns.
        time_ns: u64,
        /// Time on the critical path as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
        /// Number of parts of the critical path.
        parts: u64,
        /// Class of the parts, as in the table `path_classes`.
        class: String,
        /// Innermost function of the user's code; null if no function is known.
        function: Option<String>,
        /// Name of the kernel, direction of the copy, name of the call, or names of the two calls around host time.
        name: String,
    }
    /// Slack of the activities of one kernel, or of the copies with one direction. Slack is the time by which an
    /// activity may end later without the run ending later.
    SlackRow {
        /// Total time of these activities on the critical path, in ns.
        on_path_ns: u64,
        /// Total time of all these activities, in ns.
        total_ns: u64,
        /// Number of these activities that are on the critical path.
        on_path: u64,
        /// Number of activities.
        count: u64,
        /// Smallest slack of these activities (time by which one may end later without the run ending later), in ns.
        min_slack_ns: Option<u64>,
        /// Median slack of these activities (time by which one may end later without the run ending later), in ns.
        median_slack_ns: Option<u64>,
        /// Largest time by which the run would end earlier if one of these activities took no time, in ns.
        max_saving_ns: u64,
        name: String,
    }
    /// Slack of the activities of one kernel, or of the copies with one direction, in `top --by slack`. Slack is the
    /// time by which an activity may end later without the run ending later.
    WorkSlackRow {
        /// Total time of all these activities, in ns.
        total_ns: u64,
        /// Time of these activities as a share of the time of all GPU work, in percent.
        share_percent: Option<f64>,
        /// Number of activities.
        count: u64,
        /// Smallest slack of these activities (time by which one may end later without the run ending later), in ns.
        min_slack_ns: Option<u64>,
        /// Median slack of these activities (time by which one may end later without the run ending later), in ns.
        median_slack_ns: Option<u64>,
        /// Largest time by which the run would end earlier if one of these activities took no time, in ns.
        max_saving_ns: u64,
        /// Total time of these activities on the critical path, in ns.
        on_path_ns: u64,
        /// Number of these activities that are on the critical path.
        on_path: u64,
        name: String,
    }
    /// The critical path during one occurrence of a named range. `gpu_ns`, `host_ns`, `latency_ns` and `unexplained_ns`
    /// add up to `duration_ns`.
    PathRangeRow {
        /// Start of the range, in ns since the start of the path.
        start_ns: i64,
        /// Duration of the range in ns. Only the time within the path's time range counts.
        duration_ns: u64,
        /// Time on the path of the classes `kernel`, `memory` and `graph`, in ns.
        gpu_ns: u64,
        /// Time on the path of the classes `call`, `return`, `host`, `hand_off` and `host_function`, in ns.
        host_ns: u64,
        /// Time on the path of the classes `launch` and `gap`, in ns.
        latency_ns: u64,
        /// Time on the path of the class `unexplained`, in ns.
        unexplained_ns: u64,
        /// Id of the thread that opened the range.
        thread: u64,
        /// Name of the range.
        range: String,
    }
    /// Time that one rank has on the critical path of a job. `gpu_ns`, `host_ns`, `latency_ns` and `unexplained_ns` add
    /// up to `time_ns`.
    PathRankRow {
        rank: u64,
        /// Time on the critical path as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
        /// Time on the critical path, in ns.
        time_ns: u64,
        /// Time on the path of the classes `kernel`, `memory` and `graph`, in ns.
        gpu_ns: u64,
        /// Time on the path of the classes `call`, `return`, `host`, `hand_off` and `host_function`, in ns.
        host_ns: u64,
        /// Time on the path of the classes `launch` and `gap`, in ns.
        latency_ns: u64,
        /// Time on the path of the class `unexplained`, in ns.
        unexplained_ns: u64,
        /// Number of collectives on the path in which other ranks waited for this rank.
        waited_for: u64,
    }
    /// Alignment of a rank's clock with the clock of the first rank.
    RankClockRow {
        /// Rank.
        rank: u64,
        /// Time by which the rank's clock is ahead of the first rank's clock, in ns.
        ahead_ns: i64,
        /// Maximum error of `ahead_ns` of any rank, in ns.
        error_ns: u64,
        /// Maximum time by which the ranks' ends of the same collective differ after the alignment, in ns. The ends of
        /// 90 % of the collectives differ by at most this time.
        ends_apart_ns: u64,
        /// Number of collectives by which the clock was aligned.
        collectives: u64,
    }
    /// Time that parts with the same rank, class, function and name have on the critical path of a job.
    RankPathNameRow {
        /// Time on the critical path, in ns.
        time_ns: u64,
        /// Time on the critical path as a share of the time range that is shown, in percent.
        share_percent: Option<f64>,
        /// Number of parts of the critical path.
        parts: u64,
        rank: u64,
        /// Class of the parts, as in the table `path_classes`.
        class: String,
        /// Innermost function of the user's code; null if no function is known.
        function: Option<String>,
        /// Name of the kernel, direction of the copy, name of the call, or names of the two calls around host time.
        name: String,
    }
    /// A part of a job's critical path.
    RankPathPartRow {
        /// Start of the part, in ns since the start of the path.
        start_ns: i64,
        duration_ns: u64,
        rank: u64,
        /// Class of the part, as in the table `path_classes`.
        class: String,
        /// Id of the host thread of a call or of host time; null for GPU work.
        thread: Option<u64>,
        device: Option<u64>, stream: Option<u64>,
        /// Maximum time by which the job would end earlier if the part took no time, in ns.
        saving_ns: u64,
        /// Innermost function of the user's code; null if no function is known.
        function: Option<String>,
        /// Name of the kernel, direction of the copy, name of the call, or names of the two calls around host time.
        name: String,
        /// Reason why the part begins when the part before it ends.
        reason: String,
    }
    /// A part of the critical path.
    PathPartRow {
        /// Start of the part, in ns since the start of the path.
        start_ns: i64,
        duration_ns: u64,
        /// Class of the part, as in the table `path_classes`.
        class: String,
        /// Id of the host thread of a call or of host time; null for GPU work.
        thread: Option<u64>,
        device: Option<u64>, stream: Option<u64>,
        /// Maximum time by which the run would end earlier if the part took no time, in ns.
        saving_ns: u64,
        /// Innermost function of the user's code; null if no function is known.
        function: Option<String>,
        /// Name of the kernel, direction of the copy, name of the call, or names of the two calls around host time.
        name: String,
        /// Reason why the part begins when the part before it ends.
        reason: String,
    }
}
