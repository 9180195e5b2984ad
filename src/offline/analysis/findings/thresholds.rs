//! Thresholds of the findings about lost time. A finding below its threshold is not reported, because a reader would look
//! for a fault where there is none: healthy programs lose 1 to 5 % of their time in many small pieces.

/// Minimum cost of a finding, in percent of the steady part of the run.
pub(super) const MIN_COST_PERCENT: f64 = 2.0;
/// Minimum cost of a launch-bound run, in percent of the steady part. Launches cost every program a little.
pub(super) const MIN_LAUNCH_COST_PERCENT: f64 = 3.0;

/// Maximum mean length of gaps that launches cause, in ns. In longer gaps, the host did something else.
pub(super) const MAX_LAUNCH_GAP_NS: u64 = 50_000;
/// Maximum duration of a call that launches, in ns. A longer one loads code, or waits for a full queue.
pub(super) const MAX_LAUNCH_CALL_NS: u64 = 500_000;
/// Minimum mean time for which a function must delay the GPU to count as loading data because of its name alone, in ns.
pub(super) const MIN_LOADING_NS: u64 = 200_000;
/// Maximum length of a gap that the GPU itself needs between two kernels that depend on each other, in ns.
pub(super) const MAX_HARDWARE_GAP_NS: u64 = 2_500;
/// Maximum mean duration of tiny kernels, in ns: a launch costs the host more than such a kernel costs the GPU.
pub(super) const MAX_TINY_KERNEL_NS: u64 = 5_000;
/// Maximum mean length of gaps that tiny kernels cause, in ns. A launch from Python takes 5 to 50 us.
pub(super) const MAX_TINY_GAP_NS: u64 = 200_000;
/// Minimum number of tiny kernels that a function launches per iteration.
pub(super) const MIN_TINY_KERNELS: u64 = 8;
/// Minimum number of copies that a function makes per iteration for the copies to count as fragments.
pub(super) const MIN_FRAGMENTS: u64 = 8;
/// Maximum mean duration of a fragment, in ns. Its set-up takes longer than moving its bytes.
pub(super) const MAX_FRAGMENT_NS: u64 = 10_000;
/// Maximum mean duration of a copy that reads a value for the host, in ns. Such a copy is short: its cost is the wait.
pub(super) const MAX_READ_NS: u64 = 50_000;
/// Minimum time from the return of a launch to the start of its kernel at which the kernel was queued, in ns. A launch is delivered
/// in about 10 us, and a kernel that waits for another stream may wait longer.
pub(super) const MIN_QUEUED_NS: u64 = 100_000;

/// Maximum number of gaps of a pause, in percent of the iterations of the program: a pause is rare.
pub(super) const MAX_PAUSES_PERCENT: u64 = 20;
/// Minimum number of gaps in a launch-bound run whose gaps are as long as pauses.
pub(super) const MIN_LAUNCH_GAPS: u64 = 3;
/// Minimum length of a pause, as a multiple of the median gap at other places, and in ns.
pub(super) const MIN_PAUSE_FACTOR: u64 = 5;
pub(super) const MIN_PAUSE_NS: u64 = 500_000;

/// Minimum number of steps for a finding about some steps.
pub(super) const MIN_STEPS: usize = 10;
/// Maximum number of steps that warm up, in percent of all steps.
pub(super) const MAX_WARM_UP_PERCENT: usize = 25;
/// Minimum duration of a step that warms up, and of a slow step, in percent of the median step.
pub(super) const MIN_SLOW_STEP_PERCENT: u64 = 110;
/// Maximum spread of the middle half of steps that are not slow, in percent of the median.
pub(super) const MAX_SPREAD_PERCENT: u64 = 10;
/// Minimum difference between the GPU work of late and of early steps, in percent.
pub(super) const MIN_SLOWDOWN_PERCENT: u64 = 3;

/// Minimum difference between the idle times of two GPUs of a process, in percent of the steady part.
pub(super) const MIN_IDLE_DIFFERENCE_PERCENT: f64 = 5.0;
/// Minimum share of a rank's GPU time that is in kernels as long as on other ranks, if its work is divided unevenly and its GPU is
/// not slow, in percent.
pub(super) const MIN_UNEVEN_PERCENT: u64 = 50;
/// Minimum difference between the clocks of two ranks, in ns. Collectives end a few microseconds apart.
pub(super) const MIN_RANK_CLOCK_NS: u64 = 100_000;
/// Minimum share of changes between two streams at which work waits for the other stream, in percent.
pub(super) const MIN_SERIAL_PERCENT: u64 = 80;
/// Maximum time from the end of work on one stream to the start of work on another that waited for it, in ns.
pub(super) const MAX_HANDOVER_NS: u64 = 5_000;
