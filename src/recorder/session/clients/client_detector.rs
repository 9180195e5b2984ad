//! Detects whether another client of CUPTI has taken over the activity records. CUPTI delivers all activity records to
//! the client that requested them last, and does not notify the previous client.
//!
//! For example, Kineto (torch.profiler) requests activity records without a subscription. CUPTI refuses a second
//! subscriber, but it accepts Kineto's request, because Kineto does not subscribe. After such a takeover, gpuflame sees
//! launches but gets no activity records. CUPTI then delivers even the buffers that gpuflame has provided to the other
//! client.
//!
//! For most clients, gpuflame notices the call with which the client requests the records. If gpuflame does not notice
//! this call, it detects the client because buffer traffic with CUPTI is missing. In this file, traffic means that
//! CUPTI requests or delivers buffers. Two signs show that traffic is missing. First, if the program has waited for its
//! GPU work, this work is complete, so a flush should deliver its records. Second, the record of each kernel or copy
//! takes space in a buffer, so after many kernels or copies, CUPTI should request another buffer.

use std::time::{Duration, Instant};

use gpuflame_cupti::{ClientActivity, DeliveryCounts};

/// Minimum time without buffer traffic after which gpuflame assumes a takeover, if the program has also waited for all
/// of its GPU work. If the time without traffic is shorter, this does not prove a takeover. For example, a program with
/// several GPUs may wait for one GPU while another GPU runs a single kernel for up to 2 s.
const MIN_SILENCE: Duration = Duration::from_secs(2);
/// Minimum number of flush intervals in which the program must have waited for all of its GPU work before gpuflame
/// assumes a takeover. A flush interval is the time between two flushes.
const MIN_WAITED_INTERVALS: u32 = 2;
/// Minimum size in bytes of an activity record.
const MIN_RECORD_BYTES: u64 = 64;
/// Size in bytes of gpuflame's activity buffers.
const BUFFER_BYTES: u64 = 1 << 20;

/// State of the detection, including whether another client seems to get the activity records.
#[derive(Debug)]
pub(super) struct ClientDetector {
    /// Delivery counts at the time when CUPTI last requested or delivered a buffer.
    last_traffic: DeliveryCounts,
    last_move: Instant,
    /// Number of times that, until the last flush, the program had waited for all of its GPU work. `waited_intervals`
    /// is the number of flush intervals in which the program has waited for all of its GPU work, since CUPTI last
    /// requested or delivered a buffer.
    waits: u64,
    waited_intervals: u32,
    /// Number of launches that were still without an activity at the last flush.
    open_launches: u64,
    is_taken: bool,
    /// Whether gpuflame saw the call with which another client took the activity records. If gpuflame saw the start of
    /// a takeover, it will also see the end of the takeover. `takes` counts the takeovers whose start gpuflame saw.
    is_seen_directly: bool,
    takes: u64,
    /// Total number of takeovers, including those that gpuflame has detected because buffer traffic was missing.
    takeovers: u64,
}

/// Change of the client that gets the activity records from CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordsChange {
    /// CUPTI now delivers the records to another client.
    Taken,
    /// CUPTI now delivers the records to gpuflame again.
    Returned,
}

impl ClientDetector {
    pub(super) fn new(now: Instant) -> Self {
        let last_traffic = DeliveryCounts::default();
        Self {
            last_traffic,
            last_move: now,
            waits: 0,
            waited_intervals: 0,
            open_launches: 0,
            is_taken: false,
            is_seen_directly: false,
            takes: 0,
            takeovers: 0,
        }
    }

    /// Whether another client currently gets the activity records.
    pub(super) fn are_records_taken(&self) -> bool {
        self.is_taken
    }

    /// Number of times that another client has taken the activity records.
    pub(super) fn takeovers(&self) -> u64 {
        self.takeovers
    }

    /// Updates the state with the calls of other clients that gpuflame has seen. A takeover that has begun and ended
    /// since the last update is counted but not reported.
    pub(super) fn update_from_calls(&mut self, others: &ClientActivity) -> Option<RecordsChange> {
        let is_news = others.takeovers != std::mem::replace(&mut self.takes, others.takeovers);
        if is_news && others.own_records {
            self.is_seen_directly = true;
            return self.set_taken(true);
        }
        self.takeovers += u64::from(is_news && !self.is_taken);
        if others.own_records || !std::mem::take(&mut self.is_seen_directly) {
            return None;
        }
        self.set_taken(false)
    }

    /// Updates the state with the buffer traffic up to now. Call this function after a flush. `open` is the number of
    /// launches that still have no activity. If the flush also covered incomplete records, `before_everything` contains
    /// the delivery counts before that flush.
    pub(super) fn update_from_traffic(
        &mut self,
        now: Instant,
        traffic: DeliveryCounts,
        open: u64,
        before_everything: Option<DeliveryCounts>,
    ) -> Option<RecordsChange> {
        let waits = std::mem::replace(&mut self.waits, traffic.device_waits);
        let opened = open > std::mem::replace(&mut self.open_launches, open);
        if self.is_seen_directly {
            (self.last_traffic, self.last_move, self.waited_intervals) = (traffic, now, 0);
            return None;
        }
        let is_kept = |before: DeliveryCounts| {
            open > 0 && traffic.buffers_lent > 0 && traffic.buffers_exchanged == before.buffers_exchanged
        };
        if before_everything.is_some_and(is_kept) {
            return self.set_taken(true);
        }
        if traffic.buffers_exchanged != self.last_traffic.buffers_exchanged {
            (self.last_traffic, self.last_move, self.waited_intervals) = (traffic, now, 0);
            return self.set_taken(false);
        }
        if open == 0 {
            (self.last_move, self.waited_intervals) = (now, 0);
            return None;
        }
        // Before a takeover is assumed, the program must have waited for all GPU work at least twice. The first of
        // these waits may already have been in progress at the last flush, so it may cover only earlier launches. The
        // second of these waits covers all launches that were already made at the last flush. In addition, the number
        // of launches without an activity must have grown, because the launch of a zero-byte copy never gets an
        // activity.
        self.waited_intervals += u32::from(opened && traffic.device_waits >= waits + 2);
        let is_waited_for = self.waited_intervals >= MIN_WAITED_INTERVALS
            && now.duration_since(self.last_move) >= MIN_SILENCE;
        let has_no_room = open > (traffic.buffers_lent + 1) * (BUFFER_BYTES / MIN_RECORD_BYTES);
        if is_waited_for || has_no_room { self.set_taken(true) } else { None }
    }

    fn set_taken(&mut self, is_taken: bool) -> Option<RecordsChange> {
        if is_taken == self.is_taken {
            return None;
        }
        self.is_taken = is_taken;
        self.takeovers += u64::from(is_taken);
        Some(if is_taken { RecordsChange::Taken } else { RecordsChange::Returned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(buffers_exchanged: u64, device_waits: u64) -> DeliveryCounts {
        DeliveryCounts { buffers_exchanged, device_waits, buffers_lent: 1, ..DeliveryCounts::default() }
    }

    struct Checks(ClientDetector, Instant);

    impl Checks {
        fn new() -> Self {
            let now = Instant::now();
            Self(ClientDetector::new(now), now)
        }

        fn after(&mut self, millis: u64, traffic: DeliveryCounts, open: u64) -> Option<RecordsChange> {
            self.1 += Duration::from_millis(millis);
            self.0.update_from_traffic(self.1, traffic, open, None)
        }
    }

    #[test]
    fn repeated_waits_without_any_records_indicate_another_client() {
        let mut checks = Checks::new();
        assert_eq!(checks.after(0, traffic(2, 0), 3), None);
        for (waits, change) in [(2, None), (4, None), (6, Some(RecordsChange::Taken)), (8, None)] {
            assert_eq!(checks.after(900, traffic(2, waits), 9 + waits), change, "{waits}");
        }
        assert!(checks.0.are_records_taken());
        assert_eq!(checks.after(900, traffic(3, 8), 9), Some(RecordsChange::Returned));
        assert!(!checks.0.are_records_taken() && checks.0.takeovers() == 1);
    }

    #[test]
    fn missing_records_without_waits_may_be_a_long_kernel() {
        let mut checks = Checks::new();
        for _ in 0..100 {
            assert_eq!(checks.after(60_000, traffic(2, 0), 1000), None);
        }
        // In this test, there is only one wait per flush interval. That wait may have begun before the launch, so it
        // does not prove that the launch has ended.
        for waits in 0..100 {
            assert_eq!(checks.after(60_000, traffic(2, waits), 1000 + waits), None);
        }
    }

    #[test]
    fn waits_without_launches_do_not_indicate_another_client() {
        let mut checks = Checks::new();
        for waits in 0..100 {
            assert_eq!(checks.after(60_000, traffic(2, 10 * waits), 0), None);
        }
        assert_eq!(checks.after(1000, traffic(2, 2000), 1), None, "the work was launched a moment ago");
        for waits in 0..100 {
            assert_eq!(
                checks.after(60_000, traffic(2, 3000 + 10 * waits), 1),
                None,
                "a zero-byte copy has no activity"
            );
        }
    }

    #[test]
    fn a_client_seen_taking_records_owns_them_until_it_is_done() {
        let mut checks = Checks::new();
        let has =
            |takeovers, own_records| ClientActivity { takeovers, own_records, ..ClientActivity::default() };
        assert_eq!(checks.0.update_from_calls(&has(0, false)), None);
        assert_eq!(checks.0.update_from_calls(&has(1, true)), Some(RecordsChange::Taken));
        assert_eq!(checks.after(0, traffic(9, 0), 9), None, "the buffer was already in flight");
        assert_eq!(checks.0.update_from_calls(&has(2, true)), None, "the client asked again");
        assert!(checks.0.are_records_taken());
        assert_eq!(checks.0.update_from_calls(&has(2, false)), Some(RecordsChange::Returned));
        assert!(!checks.0.are_records_taken() && checks.0.takeovers() == 1);
        assert_eq!(
            checks.0.update_from_calls(&has(3, false)),
            None,
            "the client was done before the next check"
        );
        assert!(!checks.0.are_records_taken() && checks.0.takeovers() == 2);
        assert_eq!(checks.0.update_from_calls(&has(4, true)), Some(RecordsChange::Taken));
        assert_eq!(checks.0.update_from_calls(&has(5, false)), Some(RecordsChange::Returned));
        assert_eq!(checks.0.takeovers(), 3);
    }

    #[test]
    fn pending_work_beyond_one_buffer_without_records_indicates_another_client() {
        let mut checks = Checks::new();
        assert_eq!(checks.after(0, traffic(2, 0), 30_000), None);
        assert_eq!(checks.after(50, traffic(2, 0), 30_000), None);
        assert_eq!(checks.after(50, traffic(2, 0), 40_000), Some(RecordsChange::Taken));
    }

    #[test]
    fn launches_still_open_after_a_full_flush_indicate_another_client() {
        let mut checks = Checks::new();
        let mut check = |buffers_exchanged, open| {
            checks.0.update_from_traffic(checks.1, traffic(buffers_exchanged, 0), open, Some(traffic(2, 0)))
        };
        assert_eq!(check(2, 0), None, "nothing is missing");
        assert_eq!(check(3, 3), None, "some came back");
        assert_eq!(check(2, 3), Some(RecordsChange::Taken));
    }
}
