//! Tracks other clients of CUPTI that take over the activity records or the subscription, prints messages about these
//! clients, and takes both back afterwards.
//!
//! ```text
//! records        taken (seen directly, or by missing records) --> only launches are seen --> the client is done --> ours
//! subscription   requested, and GPUFLAME_YIELD=1 --> window closes, nothing is seen --> the client is done --> it opens
//! both           CUPTI is ended, for all clients ----^
//! ```
//!
//! The collector does most of this work. Threads that open or close a window only check which client owns the
//! subscription, and may ask for the records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::capture;
use crate::control::window;
use gpuflame_cupti::{Api, Others, Traffic};
use gpuflame_model::record::WindowEdge;

use super::edges::Edges;
use super::messages::{say, tell};
use super::progress;
use super::rivals::{Change, Rivals};
use super::told::Told;

/// Maximum time for which a client that asks for the subscription waits for the program's calls in flight. This is half
/// of the time for which the client waits for us.
const LONGEST_CALL: Duration = Duration::from_millis(500);

/// Maximum number of messages about another client taking the records.
const MOST_SAID: u64 = 10;

/// Minimum and maximum pause between our requests for the subscription while a client that we did not see owns the
/// subscription.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Clients {
    known: Mutex<Known>,
    /// Another client owns the subscription.
    is_lent: AtomicBool,
    /// A window should open when the subscription is ours again.
    is_to_open: AtomicBool,
}

#[derive(Debug)]
struct Known {
    rivals: Rivals,
    lent: Lent,
    /// Number of times that other clients had ended CUPTI when the collector last checked.
    ends: u64,
    /// Time of the last failed request for the subscription, and the pause that follows it.
    pause: Option<(Instant, Duration)>,
    /// A message was printed about another client, whose requested records are delivered to gpuflame instead.
    is_robbed: bool,
    /// Value of [`Others::takes`] when CUPTI last refused to return the records.
    refused: Option<u64>,
}

/// Times and total duration for which another client owned the subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lent {
    pub(super) times: u64,
    since: Option<Instant>,
    before: Duration,
}

impl Lent {
    fn ends(&mut self) {
        self.before = self.long();
        self.since = None;
    }

    /// Total duration so far.
    pub(super) fn long(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Counts of the times that other clients took the records or the subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Had {
    /// Number of times that other clients took the records.
    pub(super) records: u64,
    /// Times for which the subscription was lent to other clients.
    pub(super) subscription: Lent,
}

impl Clients {
    pub(super) fn new(now: Instant) -> Self {
        let known = Known {
            pause: None,
            rivals: Rivals::new(now),
            lent: Lent::default(),
            ends: 0,
            is_robbed: false,
            refused: None,
        };
        Self { known: Mutex::new(known), is_lent: AtomicBool::new(false), is_to_open: AtomicBool::new(false) }
    }

    /// Whether another client owns the subscription. If another client owns it, `is_wanted` decides whether a window
    /// opens once the subscription is ours again.
    pub(super) fn is_lent(&self, is_wanted: bool) -> bool {
        let is_lent = self.is_lent.load(Ordering::Acquire);
        if is_lent {
            self.is_to_open.store(is_wanted, Ordering::Release);
        }
        is_lent
    }

    /// Whether another client has the records. Does not wait for the lock.
    pub(super) fn have_records(&self) -> bool {
        self.known.try_lock().is_some_and(|known| known.rivals.have_records())
    }

    pub(super) fn had(&self) -> Had {
        let known = self.known.lock();
        Had { records: known.rivals.times(), subscription: known.lent }
    }

    /// Updates the state of the other clients. Returns true if a window should open because the subscription
    /// is ours again.
    pub(super) fn look(&self, api: &Api, told: &Told, edges: &Edges) -> bool {
        if api.is_retired() {
            return false;
        }
        // `api.others` may ask the loader.
        let others = progress::in_others(|| api.others());
        let is_lent = self.is_lent.load(Ordering::Acquire);
        if others.want_end && !is_lent {
            self.lend(told, edges);
            let _ = is_quiet();
            return false;
        }
        if self.is_ended_anew(&others) {
            if !is_lent {
                self.lend(told, edges);
            }
            say(
                "another CUPTI client called cuptiFinalize: nothing is recorded until gpuflame can subscribe \
                 again",
            );
            return false;
        }
        if others.want_subscription && api.is_subscribed() {
            self.lend(told, edges);
            return self.give_subscription(api, told);
        }
        if is_lent {
            let is_wanted = others.want_subscription || others.want_end || others.have_subscription;
            return !is_wanted && others.rest && self.is_ours_again(api, told);
        }
        let mut known = self.known.lock();
        let change = known.rivals.told(&others);
        let is_to_be_asked_for = others.are_done && known.refused != Some(others.takes);
        let is_robbed = !known.is_robbed && api.traffic().unasked > 0;
        known.is_robbed |= is_robbed;
        let times = known.rivals.times();
        drop(known);
        say_of_records(change, times, api.reclaims_records());
        if is_robbed {
            say("CUPTI delivers records to gpuflame that another client requested first, and that client \
                 gets none; run it without gpuflame (GPUFLAME_DISABLE=1)");
        }
        if is_to_be_asked_for {
            self.reclaim(api, &others);
        }
        false
    }

    fn is_ended_anew(&self, others: &Others) -> bool {
        others.ends != std::mem::replace(&mut self.known.lock().ends, others.ends)
    }

    /// Closes the window before the subscription is lent. Launches from now on are not seen.
    fn lend(&self, told: &Told, edges: &Edges) {
        self.is_to_open.store(window::state().is_open(), Ordering::Release);
        self.is_lent.store(true, Ordering::Release);
        edges.turn(WindowEdge::Close, window::close);
        told.ends(edges);
        let lent = &mut self.known.lock().lent;
        lent.times += 1;
        lent.since = Some(Instant::now());
    }

    /// Gives the subscription to the client that asked for it. If a call of the program is in flight, refuses, because
    /// we would not see the end of that call. Returns true if a window should open.
    fn give_subscription(&self, api: &Api, told: &Told) -> bool {
        if is_quiet() {
            progress::in_others(|| api.let_go());
            say(
                "another CUPTI client took the subscription (GPUFLAME_YIELD=1): nothing is recorded until it \
                 is done",
            );
            return false;
        }
        say("another CUPTI client asked for the subscription and was refused: a launching call is in flight");
        self.goes_on(told)
    }

    /// Resumes after a loan of the subscription. Returns true if a window should open.
    fn goes_on(&self, told: &Told) -> bool {
        told.begins();
        self.known.lock().lent.ends();
        self.is_lent.store(false, Ordering::Release);
        self.is_to_open.swap(false, Ordering::AcqRel)
    }

    /// Tries to subscribe again. Returns true if a window should open.
    fn is_ours_again(&self, api: &Api, told: &Told) -> bool {
        let mut known = self.known.lock();
        if known.pause.is_some_and(|(since, pause)| since.elapsed() < pause) {
            return false;
        }
        let pause = known.pause.map_or(SHORTEST_PAUSE, |(_, pause)| LONGEST_PAUSE.min(2 * pause));
        known.pause = Some((Instant::now(), pause));
        drop(known);
        if progress::in_others(|| api.subscribe_again()).is_err() {
            // A client that we did not see subscribe owns the subscription.
            return false;
        }
        self.known.lock().pause = None;
        say("gpuflame has the CUPTI subscription again");
        self.goes_on(told)
    }

    /// Examines the traffic after a flush that left `open` launches without an activity. After a flush of
    /// everything, `before_everything` is the traffic before it.
    pub(super) fn look_at_traffic(&self, api: &Api, open: u64, before_everything: Option<Traffic>) {
        if api.shares_records() || api.is_retired() {
            return;
        }
        let traffic = api.traffic();
        // This lock is released before CUPTI is called.
        let mut known = self.known.lock();
        let change = known.rivals.look(Instant::now(), traffic, open, before_everything);
        let times = known.rivals.times();
        drop(known);
        if change == Some(Change::Taken) {
            progress::in_others(|| api.yield_records());
        }
        say_of_records(change, times, false);
    }

    /// Asks CUPTI for the records again if another client has taken them, because a window is about to open. A client
    /// that is known to be at work keeps the records until it is done.
    pub(super) fn reclaim_if_taken(&self, api: &Api) {
        let others = api.others();
        let is_in_use = others.have_records && others.are_at_work;
        if !is_in_use && self.known.lock().rivals.have_records() {
            self.reclaim(api, &others);
        }
    }

    fn reclaim(&self, api: &Api, others: &Others) {
        let asked = progress::in_others(|| api.take_records_back(others));
        self.known.lock().refused = asked.is_err().then_some(others.takes);
        if let Err(error) = asked {
            tell(&format!("cannot take the activity records back: {error}"));
        }
    }
}

/// Whether no launching call of the program is in flight any more. New calls are already skipped.
fn is_quiet() -> bool {
    let begin = Instant::now();
    while capture::any_in_flight() {
        if begin.elapsed() >= LONGEST_CALL {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Prints that the records were taken over or arrive again. If `is_reclaimed`, gpuflame will take the records back when
/// the client is done. A profiler that starts every few steps is reported at most ten times; the ledger has the total.
fn say_of_records(change: Option<Change>, times: u64, is_reclaimed: bool) {
    match change {
        None => {}
        Some(_) if times > MOST_SAID => {}
        Some(Change::Taken) => {
            let until = if is_reclaimed { "that client is done" } else { "the next window opens" };
            say(&format!(
                "another CUPTI client, such as torch.profiler, took over the activity records: launches are \
                 recorded without their GPU work until {until}; record each tool in its own run"
            ));
        }
        Some(Change::Back) => say("activity records arrive again"),
    }
}
