//! Turns CUPTI's launch callbacks off while no window is open. A launch outside windows then costs only the time that
//! CUPTI needs to record the GPU work.
//!
//! ```text
//! closed --1 s--> launches are skipped --1 s, and none in flight--> callbacks off --opens--> on, then open
//! ```
//!
//! Only the collector turns launch callbacks off, and only while no launch is in flight. Therefore, if gpuflame has
//! seen the beginning of an API call, it also sees the end of the call. The thread that opens a window turns the launch
//! callbacks on. If the thread that opens a window is inside a CUPTI callback, it waits for up to 100 ms until the
//! collector has turned the launch callbacks on. CUPTI's activity kinds stay enabled, because enabling or disabling
//! them may deadlock or lose the ids of graphs. Callbacks about graphs, CUDA contexts and the profiler API also stay
//! on.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::window;
use gpuflame_cupti::Api;

use crate::session::collect::edge_queue::EdgeQueue;
use crate::session::process::progress;

/// Time between the closing of a window and the moment at which gpuflame begins to ignore launches. When the same time
/// has passed again, the launch callbacks are turned off. This second delay is needed because a call may be in flight
/// that is not yet noted as a launch.
const MUTE_DELAY: Duration = Duration::from_secs(1);
/// Maximum time for which a thread that opens a window waits for the launch callbacks to be turned on.
const WINDOW_OPEN_TIMEOUT: Duration = Duration::from_millis(100);

/// Switch that turns CUPTI's launch callbacks on and off.
#[derive(Debug)]
pub(crate) struct CallbackSwitch {
    state: Mutex<SwitchState>,
    changed: Condvar,
}

#[derive(Debug)]
struct SwitchState {
    /// Whether the launch callbacks are on.
    is_on: bool,
    /// Time at which the collector noticed that no window is open any more.
    closed_since: Option<Instant>,
    /// Time at which gpuflame began to ignore launches; `None` while launches are not ignored.
    muted_since: Option<Instant>,
    /// Whether a thread inside a CUPTI callback is waiting for the collector to turn the launch callbacks on.
    is_switch_on_requested: bool,
    /// Whether the waiting thread also wants back the activity records, which another client has taken.
    wants_records: bool,
}

impl Default for CallbackSwitch {
    fn default() -> Self {
        let state = SwitchState {
            is_on: true,
            closed_since: None,
            muted_since: None,
            is_switch_on_requested: false,
            wants_records: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl CallbackSwitch {
    /// Turns the launch callbacks on or off when the delay for this has passed or a thread has requested it. Calls
    /// `reclaim` if a waiting thread wants the activity records back. Only the collector calls this function.
    pub(crate) fn update(&self, api: &Api, edges: &EdgeQueue, reclaim: impl FnOnce()) {
        let Some(mut state) = self.state.try_lock() else { return };
        if state.is_switch_on_requested {
            if std::mem::take(&mut state.wants_records) {
                reclaim();
            }
            state.switch_on(api);
            // The thread that is waiting is about to open the window. The delay after which the callbacks are turned
            // off starts again, so that the callbacks are still on when the window opens.
            state.muted_since = state.muted_since.map(|_| Instant::now());
            self.changed.notify_all();
            return;
        }
        if window::state().is_open() {
            state.closed_since = None;
            // The thread that opened the window could not lock this state in time. Therefore the collector turns the
            // launch callbacks on now.
            if state.muted_since.take().is_some() {
                progress::call_foreign(|| state.switch_on(api));
                edges.note_callbacks(true);
            }
            return;
        }
        match state.muted_since {
            None => {
                let closed_since = *state.closed_since.get_or_insert_with(Instant::now);
                if closed_since.elapsed() >= MUTE_DELAY && window::mute() {
                    edges.note_callbacks(false);
                    state.muted_since = Some(Instant::now());
                }
            }
            Some(since) => {
                if state.is_on && since.elapsed() >= MUTE_DELAY && !capture::any_in_flight() {
                    // If CUPTI refuses to turn the callbacks off, the callbacks stay on, and gpuflame ignores the
                    // reported calls.
                    let _ = progress::call_foreign(|| api.set_launch_callbacks(false));
                    state.is_on = false;
                }
            }
        }
    }

    /// Notes that the launch callbacks are off because gpuflame's CUPTI subscription has ended. This function is called
    /// only while no window is open.
    pub(super) fn on_unsubscribed(&self, edges: &EdgeQueue) {
        let mut state = self.state.lock();
        if state.muted_since.is_none() && window::mute() {
            edges.note_callbacks(false);
        }
        state.muted_since = Some(Instant::now());
        state.is_on = false;
    }

    /// Notes that the launch callbacks are on, as they always are at the start of a subscription.
    pub(super) fn on_subscribed(&self) {
        self.state.lock().is_on = true;
    }

    /// Turns the launch callbacks on for a window that is about to open. A caller inside a CUPTI callback must pass
    /// `nudge`. With a `nudge`, this function calls `nudge` to wake the collector, and then waits until the collector
    /// has turned the launch callbacks on. If `wants_records` is true, the collector also takes the activity records
    /// back from the client that owns them.
    pub(crate) fn before_window_opens(
        &self,
        api: &Api,
        edges: &EdgeQueue,
        nudge: Option<&dyn Fn()>,
        wants_records: bool,
    ) {
        let Some(mut state) = self.state.try_lock_for(WINDOW_OPEN_TIMEOUT) else { return };
        match nudge {
            None => state.switch_on(api),
            Some(nudge) => {
                if !state.is_on || wants_records {
                    (state.is_switch_on_requested, state.wants_records) = (true, wants_records);
                    nudge();
                    self.changed.wait_while_for(
                        &mut state,
                        |state| state.is_switch_on_requested,
                        WINDOW_OPEN_TIMEOUT,
                    );
                }
            }
        }
        state.closed_since = None;
        if state.muted_since.take().is_some() {
            edges.note_callbacks(true);
        }
    }
}

impl SwitchState {
    fn switch_on(&mut self, api: &Api) {
        self.is_switch_on_requested = false;
        if !self.is_on {
            let _ = api.set_launch_callbacks(true);
            self.is_on = true;
        }
    }
}
