//! Tracks other clients of CUPTI that take over the activity records or the CUPTI subscription. Prints messages about
//! the other clients. Takes the activity records and the subscription back when the other clients have finished.
//!
//! ```text
//! records        taken (seen directly, or by missing records) --> only launches are seen --> the client is done --> ours
//! subscription   requested, and GPUFLAME_YIELD=1 --> window closes, nothing is seen --> the client is done --> it opens
//! both           CUPTI is ended, for all clients ----^
//! ```
//!
//! The collector does most of this work. A thread that opens or closes a window does only two things: it checks which
//! client owns the subscription, and it may ask CUPTI to return the records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::capture;
use crate::control::window;
use gpuflame_cupti::{Api, ClientActivity, DeliveryCounts};
use gpuflame_model::record::WindowEdge;

use super::callback_switch::CallbackSwitch;
use super::client_detector::{ClientDetector, RecordsChange};
use crate::session::collect::edge_queue::EdgeQueue;
use crate::session::process::messages::{print_from_app, print_from_own};
use crate::session::process::progress;

/// Maximum time for which gpuflame waits for the program's launches in flight before it releases the subscription to
/// another client. This limit is half of the time for which the other client waits for gpuflame.
const CALLS_IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of takeovers of the activity records about which a message is printed. Takeovers beyond this maximum
/// are only counted.
const MAX_TAKEOVER_MESSAGES: u64 = 10;

/// Minimum and maximum pause between two attempts to subscribe again. Repeated attempts are needed, because gpuflame
/// may not see that another client has ended its subscription.
const MIN_RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);
const MAX_RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(30);

/// State of the other clients of CUPTI that gpuflame has detected.
#[derive(Debug)]
pub(crate) struct OtherClients {
    state: Mutex<ClientState>,
    /// Whether another client owns the CUPTI subscription.
    is_lent: AtomicBool,
    /// Whether a window must open as soon as gpuflame has the subscription again.
    opens_after_loan: AtomicBool,
}

#[derive(Debug)]
struct ClientState {
    detector: ClientDetector,
    loans: SubscriptionLoans,
    /// Number of calls of `cuptiFinalize` by other clients when the collector last checked.
    ends: u64,
    /// Time of the last failed attempt to subscribe again, and the pause after that attempt.
    pause: Option<(Instant, Duration)>,
    /// Whether gpuflame has already printed a message that it receives records that another client has requested.
    has_reported_unasked: bool,
    /// Value of [`ClientActivity::takeovers`] when CUPTI last refused to deliver the records to gpuflame again; `None`
    /// if CUPTI has never refused.
    refused: Option<u64>,
}

/// Number and total duration of loans. (A loan is a time during which another client owns the CUPTI subscription.)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SubscriptionLoans {
    pub(crate) times: u64,
    since: Option<Instant>,
    finished: Duration,
}

impl SubscriptionLoans {
    fn end_current(&mut self) {
        self.finished = self.duration();
        self.since = None;
    }

    /// Total duration of all loans so far, including the current loan.
    pub(crate) fn duration(&self) -> Duration {
        self.finished + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// How often other clients have taken the activity records or borrowed the subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimesLost {
    /// Number of times that other clients have taken the activity records.
    pub(crate) records: u64,
    /// Loans of the subscription to other clients.
    pub(crate) subscription: SubscriptionLoans,
}

impl OtherClients {
    pub(crate) fn new(now: Instant) -> Self {
        let state = ClientState {
            pause: None,
            detector: ClientDetector::new(now),
            loans: SubscriptionLoans::default(),
            ends: 0,
            has_reported_unasked: false,
            refused: None,
        };
        Self {
            state: Mutex::new(state),
            is_lent: AtomicBool::new(false),
            opens_after_loan: AtomicBool::new(false),
        }
    }

    /// Whether another client owns the CUPTI subscription. If another client owns the subscription, stores `is_wanted`.
    /// This flag states whether a window must open as soon as gpuflame has the subscription again.
    pub(crate) fn defer_if_lent(&self, is_wanted: bool) -> bool {
        let is_lent = self.is_lent.load(Ordering::Acquire);
        if is_lent {
            self.opens_after_loan.store(is_wanted, Ordering::Release);
        }
        is_lent
    }

    /// Whether another client currently gets the activity records. This function never waits. If another thread holds
    /// the lock of the state, this function returns false.
    pub(crate) fn are_records_taken(&self) -> bool {
        self.state.try_lock().is_some_and(|state| state.detector.are_records_taken())
    }

    pub(crate) fn times_lost(&self) -> TimesLost {
        let state = self.state.lock();
        TimesLost { records: state.detector.takeovers(), subscription: state.loans }
    }

    /// Checks what other clients of CUPTI have done, and reacts to their actions. Returns true if a window must open
    /// because gpuflame owns the subscription again.
    pub(crate) fn update(&self, api: &Api, callbacks: &CallbackSwitch, edges: &EdgeQueue) -> bool {
        if api.is_retired() {
            return false;
        }
        // `call_foreign` is needed because `api.other_clients` may call the loader.
        let others = progress::call_foreign(|| api.other_clients());
        let is_lent = self.is_lent.load(Ordering::Acquire);
        if others.want_finalize && !is_lent {
            self.begin_loan(callbacks, edges);
            let _ = wait_for_calls_in_flight();
            return false;
        }
        if self.was_finalized_again(&others) {
            if !is_lent {
                self.begin_loan(callbacks, edges);
            }
            print_from_own(
                "another CUPTI client called cuptiFinalize: nothing is recorded until gpuflame can subscribe \
                 again",
            );
            return false;
        }
        if others.want_subscription && api.is_subscribed() {
            self.begin_loan(callbacks, edges);
            return self.hand_over_subscription(api, callbacks);
        }
        if is_lent {
            let is_wanted = others.want_subscription || others.want_finalize || others.own_subscription;
            return !is_wanted && others.are_quiet && self.try_resubscribe(api, callbacks);
        }
        let mut state = self.state.lock();
        let change = state.detector.update_from_calls(&others);
        let should_reclaim = others.have_finished && state.refused != Some(others.takeovers);
        let has_unasked_records = !state.has_reported_unasked && api.delivery_counts().foreign_records > 0;
        state.has_reported_unasked |= has_unasked_records;
        let times = state.detector.takeovers();
        drop(state);
        print_records_change(change, times, api.reclaims_records());
        if has_unasked_records {
            print_from_own(
                "CUPTI delivers records to gpuflame that another client requested first, and that client \
                 gets none; run it without gpuflame (GPUFLAME_DISABLE=1)",
            );
        }
        if should_reclaim {
            self.reclaim_records(api, &others);
        }
        false
    }

    fn was_finalized_again(&self, others: &ClientActivity) -> bool {
        others.finalizations != std::mem::replace(&mut self.state.lock().ends, others.finalizations)
    }

    /// Closes the window, because the subscription is about to be lent to another client. During the loan, gpuflame
    /// sees no launches.
    fn begin_loan(&self, callbacks: &CallbackSwitch, edges: &EdgeQueue) {
        self.opens_after_loan.store(window::state().is_open(), Ordering::Release);
        self.is_lent.store(true, Ordering::Release);
        edges.note_edge(WindowEdge::Close, window::close);
        callbacks.on_unsubscribed(edges);
        let loans = &mut self.state.lock().loans;
        loans.times += 1;
        loans.since = Some(Instant::now());
    }

    /// Releases the CUPTI subscription to the client that has requested it. Refuses to release the subscription if a
    /// launch of the program stays in flight, because gpuflame would not see the end of that launch. Returns true if a
    /// window must open.
    fn hand_over_subscription(&self, api: &Api, callbacks: &CallbackSwitch) -> bool {
        if wait_for_calls_in_flight() {
            progress::call_foreign(|| api.release_subscription());
            print_from_own(
                "another CUPTI client took the subscription (GPUFLAME_YIELD=1): nothing is recorded until it \
                 is done",
            );
            return false;
        }
        print_from_own(
            "another CUPTI client asked for the subscription and was refused: a launching call is in flight",
        );
        self.resume(callbacks)
    }

    /// Resumes recording after a loan of the CUPTI subscription. Returns true if a window must open.
    fn resume(&self, callbacks: &CallbackSwitch) -> bool {
        callbacks.on_subscribed();
        self.state.lock().loans.end_current();
        self.is_lent.store(false, Ordering::Release);
        self.opens_after_loan.swap(false, Ordering::AcqRel)
    }

    /// Tries to subscribe to CUPTI again. Returns true if a window must open.
    fn try_resubscribe(&self, api: &Api, callbacks: &CallbackSwitch) -> bool {
        let mut state = self.state.lock();
        if state.pause.is_some_and(|(since, pause)| since.elapsed() < pause) {
            return false;
        }
        let pause =
            state.pause.map_or(MIN_RESUBSCRIBE_PAUSE, |(_, pause)| MAX_RESUBSCRIBE_PAUSE.min(2 * pause));
        state.pause = Some((Instant::now(), pause));
        drop(state);
        if progress::call_foreign(|| api.resubscribe()).is_err() {
            // Another client still owns the subscription, although gpuflame did not see this client subscribe.
            return false;
        }
        self.state.lock().pause = None;
        print_from_own("gpuflame has the CUPTI subscription again");
        self.resume(callbacks)
    }

    /// Detects other clients by missing buffer traffic (see `client_detector`). Call this function after a flush.
    /// `open` is the number of launches that still have no activity. If the flush also covered incomplete records,
    /// `before_everything` contains the delivery counts before that flush.
    pub(crate) fn check_traffic(&self, api: &Api, open: u64, before_everything: Option<DeliveryCounts>) {
        if api.shares_records() || api.is_retired() {
            return;
        }
        let traffic = api.delivery_counts();
        // The lock of this state must be released before CUPTI is called.
        let mut state = self.state.lock();
        let change = state.detector.update_from_traffic(Instant::now(), traffic, open, before_everything);
        let times = state.detector.takeovers();
        drop(state);
        if change == Some(RecordsChange::Taken) {
            progress::call_foreign(|| api.yield_records());
        }
        print_records_change(change, times, false);
    }

    /// If another client gets the activity records, asks CUPTI to deliver the records to gpuflame again, because a
    /// window is about to open. If gpuflame saw the other client start to record, that client keeps the records until
    /// it has finished.
    pub(crate) fn reclaim_records_if_taken(&self, api: &Api) {
        let others = api.other_clients();
        let is_in_use = others.own_records && others.are_recording;
        if !is_in_use && self.state.lock().detector.are_records_taken() {
            self.reclaim_records(api, &others);
        }
    }

    fn reclaim_records(&self, api: &Api, others: &ClientActivity) {
        let asked = progress::call_foreign(|| api.reclaim_records(others));
        self.state.lock().refused = asked.is_err().then_some(others.takeovers);
        if let Err(error) = asked {
            print_from_app(&format!("cannot take the activity records back: {error}"));
        }
    }
}

/// Waits until no launch call of the program is in flight. Returns false if a launch call stays in flight for too long.
/// New launch calls are already ignored.
fn wait_for_calls_in_flight() -> bool {
    let begin = Instant::now();
    while capture::any_in_flight() {
        if begin.elapsed() >= CALLS_IN_FLIGHT_TIMEOUT {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Prints that another client has taken the activity records, or that gpuflame gets them again. `is_reclaimed` states
/// whether gpuflame will take the records back when the other client has finished. A profiler that starts every few
/// steps is reported at most `MAX_TAKEOVER_MESSAGES` times. The ledger contains the total number of takeovers.
fn print_records_change(change: Option<RecordsChange>, times: u64, is_reclaimed: bool) {
    match change {
        None => {}
        Some(_) if times > MAX_TAKEOVER_MESSAGES => {}
        Some(RecordsChange::Taken) => {
            let until = if is_reclaimed { "that client is done" } else { "the next window opens" };
            print_from_own(&format!(
                "another CUPTI client, such as torch.profiler, took over the activity records: launches are \
                 recorded without their GPU work until {until}; record each tool in its own run"
            ));
        }
        Some(RecordsChange::Returned) => print_from_own("activity records arrive again"),
    }
}
