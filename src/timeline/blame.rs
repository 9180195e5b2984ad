//! Whose time a gap was: the host's, the launch's, or that of something the work waited for.

use super::stretches::Call;
use crate::profile::Cause;

/// How long after a launch call has returned its work may take to begin before something else must be
/// the reason. Work that a free GPU can start begins some 3 to 10 us after the call began, and most of
/// that is the call.
pub(super) const DELIVERY: u64 = 10_000;

/// Splits the gap `from..to`, which work launched by `call` ended at `start` (later than `to` where the
/// window closed before), among its causes. The parts add up to the gap:
///
/// ```text
///   busy |from                                               to=start| busy
///              time|---- the call ----|returned    + DELIVERY
///        | host late | ------- launch latency ------- | dependency |
/// ```
///
/// A call that began before `from` was not late; one that returned long before was waiting in the queue,
/// so that all of the gap is dependency. Where the clocks have the work begin before its launch, the host
/// was late for all of the gap if that is longer than the clocks are wrong; else nothing can be said.
pub(super) fn split(from: u64, to: u64, start: u64, call: &Call) -> [(Cause, u64); 3] {
    let contradiction = call.time.saturating_sub(start);
    if call.time == 0 || contradiction > to - from {
        return [(Cause::Unknown, to - from), (Cause::HostLate, 0), (Cause::LaunchLatency, 0)];
    }
    let called = call.time.clamp(from, to);
    let delivered = match call.duration {
        // A synchronous call, or one of more than four seconds: the work began while it was under way.
        0 | u32::MAX => to,
        duration => call.time.saturating_add(u64::from(duration) + DELIVERY).clamp(called, to),
    };
    [
        (Cause::HostLate, called - from),
        (Cause::LaunchLatency, delivered - called),
        (Cause::Dependency, to - delivered),
    ]
}
