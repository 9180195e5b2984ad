//! Thresholds of the findings about lost time. A finding below its threshold is not reported, because the user would
//! search for a problem that does not exist. Healthy programs lose 1 to 5 % of their time in many small pieces.

/// Minimum cost of a finding, in percent of the steady part of the run.
pub(super) const MIN_COST_PERCENT: f64 = 2.0;
/// Minimum cost of a launch-bound run, in percent of the steady part. The limit is higher than [`MIN_COST_PERCENT`],
/// because launches cost some time in every program.
pub(super) const MIN_LAUNCH_COST_PERCENT: f64 = 3.0;

/// Maximum mean duration of gaps that launches cause, in ns. In longer gaps, the host did something else.
pub(super) const MAX_LAUNCH_GAP_NS: u64 = 50_000;
/// Maximum duration of a call that only launches, in ns. A longer call also loads code or waits for a full queue.
pub(super) const MAX_LAUNCH_CALL_NS: u64 = 500_000;
/// Minimum mean time in ns by which a function must delay the GPU to count as loading data because of its name alone.
pub(super) const MIN_LOADING_NS: u64 = 200_000;
/// Maximum duration of a gap that the GPU itself needs between two dependent kernels, in ns.
pub(super) const MAX_HARDWARE_GAP_NS: u64 = 2_500;
/// Maximum mean duration of tiny kernels, in ns. Launching such a kernel takes the host longer than running it takes
/// the GPU.
pub(super) const MAX_TINY_KERNEL_NS: u64 = 5_000;
/// Maximum mean duration of gaps that tiny kernels cause, in ns. A launch from Python takes 5 to 50 us.
pub(super) const MAX_TINY_GAP_NS: u64 = 200_000;
/// Minimum number of tiny kernels that a function must launch per iteration to be reported.
pub(super) const MIN_TINY_KERNELS: u64 = 8;
/// Minimum number of copies that a function must make per iteration for them to count as fragments.
pub(super) const MIN_FRAGMENTS: u64 = 8;
/// Maximum mean duration of a fragment, in ns. Setting up such a copy takes longer than moving its bytes.
pub(super) const MAX_FRAGMENT_NS: u64 = 10_000;
/// Maximum mean duration of a copy that reads a value for the host, in ns. Such a copy is short, and its main cost is
/// the wait.
pub(super) const MAX_READ_NS: u64 = 50_000;
/// Minimum time in ns from the return of a launch call to the start of its kernel that shows that the kernel was
/// queued. Launches reach an idle GPU in about 10 us, and a kernel that waits for another stream may take longer.
pub(super) const MIN_QUEUED_NS: u64 = 100_000;

/// Maximum number of gaps at one place that count as pauses, in percent of the iterations of the program. Pauses are
/// rare by definition.
pub(super) const MAX_PAUSES_PERCENT: u64 = 20;
/// Minimum number of gaps for a run to count as launch-bound if its gaps are as long as pauses.
pub(super) const MIN_LAUNCH_GAPS: u64 = 3;
/// Minimum duration of a pause, as a multiple of the median gap at other places. The next constant is the minimum in
/// ns.
pub(super) const MIN_PAUSE_FACTOR: u64 = 5;
pub(super) const MIN_PAUSE_NS: u64 = 500_000;

/// Minimum number of steps in a run for findings about single steps.
pub(super) const MIN_STEPS: usize = 10;
/// Maximum number of steps that count as warm-up, in percent of all steps.
pub(super) const MAX_WARM_UP_PERCENT: usize = 25;
/// Minimum duration of a warm-up step or a slow step, in percent of the median step.
pub(super) const MIN_SLOW_STEP_PERCENT: u64 = 110;
/// Maximum spread of the middle half of the normal steps, in percent of their median.
pub(super) const MAX_SPREAD_PERCENT: u64 = 10;
/// Minimum difference in GPU work between late and early steps, in percent.
pub(super) const MIN_SLOWDOWN_PERCENT: u64 = 3;

/// Minimum difference between the idle times of two GPUs of a process, in percent of the steady part.
pub(super) const MIN_IDLE_DIFFERENCE_PERCENT: f64 = 5.0;
/// Minimum share of a rank's GPU time, in percent, in kernels that take as long as on other ranks. A larger share shows
/// that the work is divided unevenly and that the GPU is not slow.
pub(super) const MIN_UNEVEN_PERCENT: u64 = 50;
/// Minimum difference between the clocks of two ranks that is reported, in ns. Collectives end within a few
/// microseconds on all ranks.
pub(super) const MIN_RANK_CLOCK_NS: u64 = 100_000;
/// Minimum share of the changes from one stream to another at which the work waits for the previous stream, in percent.
pub(super) const MIN_SERIAL_PERCENT: u64 = 80;
/// Maximum time in ns from the end of work on one stream to the start of work on another stream that waited for it.
pub(super) const MAX_HANDOVER_NS: u64 = 5_000;
