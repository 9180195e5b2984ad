//! Determines the causes of a gap in a GPU's work: the host was late, the launch took time, or the next work waited for
//! other GPU work.

use super::stretches::LaunchSpan;
use gpuflame_model::profile::Cause;

/// Maximum time in ns from the return of a launch call to the beginning of its work, if the work does not have to wait.
/// On an idle GPU, work begins about 3 to 10 us after the launch call began. The launch call itself takes most of the 3
/// to 10 us.
pub const MAX_DELIVERY_NS: u64 = 10_000;

/// Divides the gap `from..to` among its causes. The gap ended with work that `call` launched and that began at `start`.
/// If the window closed before the work began, `start` is later than `to`. The durations in the result add up to the
/// duration of the gap:
///
/// ```text
///   busy |from                                               to=start| busy
///              time|---- the call ----|returned    + DELIVERY
///        | host late | ------- launch latency ------- | dependency |
/// ```
///
/// If the launch call began before `from`, the host was not late. If the launch call also returned long before `from`,
/// the work was already in a queue, so the cause of the whole gap is a dependency. If the clocks of the CPU and the GPU
/// disagree, work may seem to begin before its launch. If work seems to begin before its launch, the host counts as
/// late during the whole gap. But if the gap is not longer than the error of the clocks, the cause is unknown.
pub(super) fn split_by_cause(from: u64, to: u64, start: u64, call: &LaunchSpan) -> [(Cause, u64); 3] {
    let contradiction = call.time.saturating_sub(start);
    if call.time == 0 || contradiction > to - from {
        return [(Cause::Unknown, to - from), (Cause::HostLate, 0), (Cause::LaunchLatency, 0)];
    }
    let called = call.time.clamp(from, to);
    let delivered = match call.duration {
        // A duration of 0 means a synchronous call, and `u32::MAX` means a call of more than four seconds. For the
        // durations 0 and `u32::MAX`, the work began during the call.
        0 | u32::MAX => to,
        duration => call.time.saturating_add(u64::from(duration) + MAX_DELIVERY_NS).clamp(called, to),
    };
    [
        (Cause::HostLate, called - from),
        (Cause::LaunchLatency, delivered - called),
        (Cause::Dependency, to - delivered),
    ]
}
