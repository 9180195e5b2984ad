//! Determines the causes of a gap in a GPU's work: the host was late, the launch took time, or the work waited for
//! other work.

use super::stretches::LaunchSpan;
use gpuflame_model::profile::Cause;

/// Maximum time in ns from the return of a launch call to the beginning of its work, if nothing delays the work. On an
/// idle GPU, work begins about 3 to 10 us after the call began. The call itself takes most of this time.
pub const MAX_DELIVERY_NS: u64 = 10_000;

/// Splits the gap `from..to` among its causes. The work that ended the gap was launched by `call` and began at `start`.
/// If the window closed before the work began, `start` is later than `to`. The parts add up to the duration of the gap:
///
/// ```text
///   busy |from                                               to=start| busy
///              time|---- the call ----|returned    + DELIVERY
///        | host late | ------- launch latency ------- | dependency |
/// ```
///
/// If the call began before `from`, the host was not late. If the call also returned long before `from`, the work was
/// already queued, so the whole gap is dependency. If the CPU's and the GPU's clock disagree, work may seem to begin
/// before its launch. Then the host counts as late for the whole gap. But if the gap is not longer than this clock
/// error, its cause is unknown.
pub(super) fn split_by_cause(from: u64, to: u64, start: u64, call: &LaunchSpan) -> [(Cause, u64); 3] {
    let contradiction = call.time.saturating_sub(start);
    if call.time == 0 || contradiction > to - from {
        return [(Cause::Unknown, to - from), (Cause::HostLate, 0), (Cause::LaunchLatency, 0)];
    }
    let called = call.time.clamp(from, to);
    let delivered = match call.duration {
        // The call was synchronous, or took more than four seconds. The work began during the call.
        0 | u32::MAX => to,
        duration => call.time.saturating_add(u64::from(duration) + MAX_DELIVERY_NS).clamp(called, to),
    };
    [
        (Cause::HostLate, called - from),
        (Cause::LaunchLatency, delivered - called),
        (Cause::Dependency, to - delivered),
    ]
}
