//! While no window is open, launches cost what they cost without us: a second after one closed the tracer is not asked to tell
//! of them any more, and when the next opens it is again.
//!
//! ```text
//! closed --1 s--> launches are passed over --1 s, and none under way--> callbacks off --opens--> on, then open
//! ```
//!
//! Off they are switched by the collector alone, so that no call has but one of its ends told; on by whoever opens the
//! window, unless that is a callback of the tracer's: then it waits for the collector, and not for long. Kinds of activities
//! stay on, since switching those may deadlock or lose ids of graphs; and so does all that tells of graphs, contexts and the
//! profiler's calls.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::window;
use crate::cupti::Api;

use super::edges::Edges;
use super::progress;

/// After a window closed, and again after launches are passed over: a call may be under way that is not noted yet.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// How long a window may take to open.
const LONGEST_OPENING: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Told {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether callbacks are on.
    is_on: bool,
    /// Since when no window is open, as far as anybody has looked.
    closed: Option<Instant>,
    /// Since when launches are passed over.
    hushed: Option<Instant>,
    /// Somebody waits for callbacks who may not switch them on.
    is_wanted: bool,
    /// And for the records, which another client has.
    wants_records: bool,
}

impl Default for Told {
    fn default() -> Self {
        let state = State { is_on: true, closed: None, hushed: None, is_wanted: false, wants_records: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Told {
    /// Switches what is due, and has `reclaim` ask for the records where somebody waits for them. For the collector.
    pub(super) fn look(&self, api: &Api, edges: &Edges, reclaim: impl FnOnce()) {
        let Some(mut state) = self.state.try_lock() else { return };
        if state.is_wanted {
            if std::mem::take(&mut state.wants_records) {
                reclaim();
            }
            state.switch_on(api);
            // Whoever waits is about to open the window.
            state.hushed = state.hushed.map(|_| Instant::now());
            self.changed.notify_all();
            return;
        }
        if window::state().is_open() {
            state.closed = None;
            // Whoever opened it did not wait for callbacks that were just being switched off.
            if state.hushed.take().is_some() {
                progress::in_others(|| state.switch_on(api));
                edges.told(true);
            }
            return;
        }
        match state.hushed {
            None => {
                let closed = *state.closed.get_or_insert_with(Instant::now);
                if closed.elapsed() >= QUIET_AFTER && window::hush() {
                    edges.told(false);
                    state.hushed = Some(Instant::now());
                }
            }
            Some(since) => {
                if state.is_on && since.elapsed() >= QUIET_AFTER && !capture::any_under_way() {
                    // What the tracer refuses is told on, and passed over.
                    let _ = progress::in_others(|| api.tell_launches(false));
                    state.is_on = false;
                }
            }
        }
    }

    /// Nothing is told any more, whatever was asked for: the subscription goes. No window is open.
    pub(super) fn ends(&self, edges: &Edges) {
        let mut state = self.state.lock();
        if state.hushed.is_none() && window::hush() {
            edges.told(false);
        }
        state.hushed = Some(Instant::now());
        state.is_on = false;
    }

    /// There is a subscription again, with all callbacks.
    pub(super) fn begins(&self) {
        self.state.lock().is_on = true;
    }

    /// A window is about to open. `nudge` wakes the collector where the caller is in a callback of the tracer's; it then asks
    /// for the records as well, if another client has them.
    pub(super) fn opens(&self, api: &Api, edges: &Edges, nudge: Option<&dyn Fn()>, wants_records: bool) {
        let Some(mut state) = self.state.try_lock_for(LONGEST_OPENING) else { return };
        match nudge {
            None => state.switch_on(api),
            Some(nudge) => {
                if !state.is_on || wants_records {
                    (state.is_wanted, state.wants_records) = (true, wants_records);
                    nudge();
                    self.changed.wait_while_for(&mut state, |state| state.is_wanted, LONGEST_OPENING);
                }
            }
        }
        state.closed = None;
        if state.hushed.take().is_some() {
            edges.told(true);
        }
    }
}

impl State {
    fn switch_on(&mut self, api: &Api) {
        self.is_wanted = false;
        if !self.is_on {
            let _ = api.tell_launches(true);
            self.is_on = true;
        }
    }
}
