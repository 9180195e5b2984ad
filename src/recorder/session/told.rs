//! Turns CUPTI's launch callbacks off while no window is open, so that launches outside windows cost no more than with
//! CUPTI's records alone.
//!
//! ```text
//! closed --1 s--> launches are skipped --1 s, and none in flight--> callbacks off --opens--> on, then open
//! ```
//!
//! Only the collector turns launch callbacks off, so that no call is seen on entry but not on exit. The thread that
//! opens a window turns the callbacks on. Inside a CUPTI callback, that thread instead waits for the collector to turn
//! them on, for at most 100 ms. Activity kinds stay enabled, because switching them may deadlock or lose ids of graphs.
//! Callbacks about graphs, contexts and the profiler's calls stay on as well.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::window;
use gpuflame_cupti::Api;

use super::edges::Edges;
use super::progress;

/// Time from the closing of a window until launches are skipped, and from then until callbacks are turned off. The
/// second interval is needed, because a call may be in flight that has not been noted yet.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Maximum time for a window to open.
const LONGEST_OPENING: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Told {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether the callbacks are on.
    is_on: bool,
    /// Time at which the collector first saw that no window is open.
    closed: Option<Instant>,
    /// Time from which launches are skipped; `None` while they are not skipped.
    hushed: Option<Instant>,
    /// A thread that must not turn the callbacks on itself waits until the collector has turned them on.
    is_wanted: bool,
    /// The waiting thread also wants the records, which another client has.
    wants_records: bool,
}

impl Default for Told {
    fn default() -> Self {
        let state = State { is_on: true, closed: None, hushed: None, is_wanted: false, wants_records: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Told {
    /// Turns the callbacks on or off if necessary, and calls `reclaim` if a waiting thread wants the records. Called by
    /// the collector.
    pub(super) fn look(&self, api: &Api, edges: &Edges, reclaim: impl FnOnce()) {
        let Some(mut state) = self.state.try_lock() else { return };
        if state.is_wanted {
            if std::mem::take(&mut state.wants_records) {
                reclaim();
            }
            state.switch_on(api);
            // The waiting thread is about to open the window, so the time until the callbacks are turned off starts
            // again.
            state.hushed = state.hushed.map(|_| Instant::now());
            self.changed.notify_all();
            return;
        }
        if window::state().is_open() {
            state.closed = None;
            // The thread that opened the window did not wait long enough while the callbacks were being turned off, so
            // they are turned on now.
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
                if state.is_on && since.elapsed() >= QUIET_AFTER && !capture::any_in_flight() {
                    // If CUPTI refuses, its callbacks continue, and gpuflame ignores them.
                    let _ = progress::in_others(|| api.tell_launches(false));
                    state.is_on = false;
                }
            }
        }
    }

    /// Marks the callbacks as off, whatever was requested, because the subscription ends. No window is open.
    pub(super) fn ends(&self, edges: &Edges) {
        let mut state = self.state.lock();
        if state.hushed.is_none() && window::hush() {
            edges.told(false);
        }
        state.hushed = Some(Instant::now());
        state.is_on = false;
    }

    /// Marks the callbacks as on, as they are in a new subscription.
    pub(super) fn begins(&self) {
        self.state.lock().is_on = true;
    }

    /// Prepares for a window that is about to open. A caller inside a CUPTI callback passes `nudge`, which
    /// wakes the collector; the collector then also asks for the records, if another client has them.
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
