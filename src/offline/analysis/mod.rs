//! Analyses that draw conclusions from a profile and from joined rows. Some analyses find out whether two runs differ
//! by more than chance, and how long launches waited. Further analyses find out which rank delays the job, and which
//! figures of a trace are doubtful.
//!
//! The analyses return their results as data, and the command prints these results.

mod arrivals;
mod beside_lost;
mod communication;
mod copies;
mod coverage;
mod critical_path;
mod delays;
mod device_waits;
mod findings;
mod host_history;
mod hta_path;
mod instructions;
mod job_path;
mod jobs;
mod mann_whitney;
mod packed_ops;
mod packed_times;
mod rank_clocks;
mod replay;
mod run_pairs;
mod slowdown;
mod states;
mod stragglers;
mod stream_order;
mod two_threads;
mod welch;
mod work_spans;

pub use arrivals::{
    Arrivals, CollectiveArrivals, CollectiveKernel, CollectiveKernels, Lateness, NotComparable,
    compare_arrivals, shift_collectives,
};
pub use beside_lost::note_idle_beside_lost;
pub use communication::{Communication, CommunicationFilter, StackShare, WorkClass, sum_communication};
pub use copies::CopySums;
pub use coverage::StepCoverage;
pub use critical_path::{
    Contradiction, CriticalPath, Edge, EdgeKind, HostCall, Moment, MomentKind, PathClass, PathPart, Savings,
    Unexplained, What, host_stack_name,
};
pub use delays::{LaunchDelays, WorkDelays};
pub use findings::{
    Evidence, Figures, Finding, HostStates, RankRun, RunCosts, RunEvidence, Severity, UserFunctions,
    cost_findings, count_unset_times, job_findings, record_findings, run_costs,
};
pub use host_history::{HostHistory, HostHistoryRows};
pub use hta_path::{
    EdgeType, HtaBound, HtaEdge, HtaEvents, HtaNode, HtaPath, HtaPathOptions, HtaRule, Unconnected, hta_path,
};
pub use instructions::{
    After, AfterReason, Instruction, InstructionDetail, InstructionKind, InstructionList, InstructionOrder,
    InstructionRows, IssuingCall,
};
pub use job_path::{JobPath, JobRank, LastRank, RankCollective};
pub use jobs::{JobDifference, JobMember, find_difference, find_missing};
pub use rank_clocks::{
    ClocksRefused, GroupCollectives, MAX_END_SPREAD_NS, RankClocks, align_groups, align_ranks, base_shifts,
};
pub use replay::{
    Edit, EditedRun, ExplainedStarts, HostTime, LagRow, Lags, LaunchAnchor, Reliance, Replay, ReplayCheck,
    ReplayedWork, Schedule, Selection,
};
pub use run_pairs::{MIN_RUNS, PairChange, PairRow, PairVerdict, RunOrder};
pub use slowdown::{
    EvenedPart, JobModel, MIN_DECOMPOSED, ModelError, PartKind, PipelineKind, PipelineOp, ProcessGroup,
    RankFacts, RankTimeline, Share, SlowdownReport, StepTime, TimedCollective, align_process_groups,
    align_timelines, pipeline_model, ranks_model, slowdown_report,
};
pub use states::{
    Column, Concurrency, Delays, HtaIdle, HtaOp, HtaQueue, IdleCulprit, Interval, MAX_PARTS, SeriesRow,
    State, StateCause, StateColumns, StateOptions, StateReport, StateSums, StreamKey, StreamRows,
    StreamStates, enters_queue, hta_idle, hta_queues, reconstruct_states, shown_window,
};
pub use stragglers::{RankComparison, RankTime, StragglerVerdict, compare_ranks, median};
pub use stream_order::{
    DurationContradiction, ImpossibleDuration, Overlaps, StreamOrder, check_stream_order,
};
pub use welch::{DurationChange, Durations, compare_durations};
pub use work_spans::{PlausibleSpans, WorkSpans};
