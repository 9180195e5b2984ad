//! Thresholds of the findings about lost time. A finding whose cost is below its threshold is not reported, because
//! users would search for problems that do not exist. Healthy programs lose 1 to 5 % of their time in many small
//! pieces.

/// Minimum cost of a finding, in percent of the steady part of the run.
pub(super) const MIN_COST_PERCENT: f64 = 2.0;
/// Minimum cost of the finding that a run is launch-bound, in percent of the steady part of the run. This minimum is
/// higher than [`MIN_COST_PERCENT`], because launches cost some time in every program.
pub(super) const MIN_LAUNCH_COST_PERCENT: f64 = 3.0;

/// Maximum mean duration of gaps that launches cause, in ns. In longer gaps, the host did other work in addition to
/// launching.
pub(super) const MAX_LAUNCH_GAP_NS: u64 = 50_000;
/// Maximum duration of a call that only launches, in ns. If a launch call takes longer, it also loads code or waits for
/// a full queue.
pub(super) const MAX_LAUNCH_CALL_NS: u64 = 500_000;
/// Minimum mean time in ns by which a function must delay the GPU to count as loading data because of its name. A name
/// alone does not show that a function loads data, so the name of a function that delays the GPU less is ignored.
pub(super) const MIN_LOADING_NS: u64 = 200_000;
/// Maximum duration in ns of the gap that the GPU hardware itself needs between two dependent kernels.
pub(super) const MAX_HARDWARE_GAP_NS: u64 = 2_500;
/// Maximum mean duration of tiny kernels, in ns. The host needs longer to launch a tiny kernel than the GPU needs to
/// run it.
pub(super) const MAX_TINY_KERNEL_NS: u64 = 5_000;
/// Maximum mean duration of gaps that tiny kernels cause, in ns. A launch from Python takes 5 to 50 us.
pub(super) const MAX_TINY_GAP_NS: u64 = 200_000;
/// Minimum number of tiny kernels that a function must launch per iteration to be reported.
pub(super) const MIN_TINY_KERNELS: u64 = 8;
/// Minimum number of copies that a function must make per iteration for these copies to count as fragments.
pub(super) const MIN_FRAGMENTS: u64 = 8;
/// Maximum mean duration in ns of a fragment, which is a copy whose set-up takes longer than the transfer of its bytes.
pub(super) const MAX_FRAGMENT_NS: u64 = 10_000;
/// Maximum mean duration of a copy that reads a value for the host, in ns. A copy that reads a value is short, and its
/// main cost is the wait.
pub(super) const MAX_READ_NS: u64 = 50_000;
/// A kernel was queued if it started more than this many ns after its launch call returned. A launch reaches an idle
/// GPU in about 10 us. The limit is much higher, because a kernel that waits for another stream may start later.
pub(super) const MIN_QUEUED_NS: u64 = 100_000;

/// Maximum number of pauses at one place in the code, in percent of the number of iterations of the program. If a place
/// has more gaps than this, its gaps do not count as pauses, because pauses are rare by definition.
pub(super) const MAX_PAUSES_PERCENT: u64 = 20;
/// Minimum number of gaps that a run must have to count as launch-bound although its gaps are as long as pauses.
pub(super) const MIN_LAUNCH_GAPS: u64 = 3;
/// Minimum duration of a pause, as a multiple of the median gap at other places in the code. The constant
/// `MIN_PAUSE_NS` gives the minimum duration of a pause in ns.
pub(super) const MIN_PAUSE_FACTOR: u64 = 5;
pub(super) const MIN_PAUSE_NS: u64 = 500_000;

/// Minimum number of steps in a run for findings about single steps. In a run with fewer than this number of steps, the
/// durations of single steps are not examined.
pub(super) const MIN_STEPS: usize = 10;
/// Maximum number of steps that count as warm-up, in percent of all steps.
pub(super) const MAX_WARM_UP_PERCENT: usize = 25;
/// Minimum duration of a warm-up step or a slow step, in percent of the median step.
pub(super) const MIN_SLOW_STEP_PERCENT: u64 = 110;
/// Maximum spread of the middle half of the step durations, in percent of their median.
pub(super) const MAX_SPREAD_PERCENT: u64 = 10;
/// Minimum difference in GPU work between late and early steps, in percent.
pub(super) const MIN_SLOWDOWN_PERCENT: u64 = 3;

/// Minimum difference between the idle times of two GPUs of a process, in percent of the steady part.
pub(super) const MIN_IDLE_DIFFERENCE_PERCENT: f64 = 5.0;
/// Minimum percentage of a rank's GPU time that kernels with the same duration as on other ranks must take. If such
/// kernels take more than this percentage, the work is divided unevenly. If such kernels take less than this
/// percentage, the rank's GPU is slow.
pub(super) const MIN_UNEVEN_PERCENT: u64 = 50;
/// Minimum difference in ns between the clocks of two ranks that is reported. If all ranks used one clock, the ends of
/// a collective on all ranks would be within a few microseconds.
pub(super) const MIN_RANK_CLOCK_NS: u64 = 100_000;
/// Minimum percentage of changes from one stream to another at which the later kernel waits for the earlier kernel. If
/// the later kernel waits at a lower percentage of the changes, no finding is reported.
pub(super) const MIN_SERIAL_PERCENT: u64 = 80;
/// Maximum time in ns from the end of work on one stream to the start of work on another stream that waited for it.
pub(super) const MAX_HANDOVER_NS: u64 = 5_000;
