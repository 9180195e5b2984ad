//! Whether a window is open. One word, read once on every launch.
//!
//! The word is also the session's off switch: `Dead` is final and means that nothing of ours may run
//! any more (the process is ending, forked, or met a bug of ours).

use std::sync::atomic::{AtomicU32, Ordering};

/// Whether launches are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Launches are counted as outside.
    Closed,
    /// Launches are recorded.
    Open,
    /// Nothing is done at all, for good.
    Dead,
}

static STATE: AtomicU32 = AtomicU32::new(State::Closed as u32);

/// The present state.
pub fn state() -> State {
    match STATE.load(Ordering::Acquire) {
        0 => State::Closed,
        1 => State::Open,
        _ => State::Dead,
    }
}

/// Opens the window. False: it was open already, or the session is dead.
pub fn open() -> bool {
    turn(State::Closed, State::Open)
}

/// Closes the window. False: it was not open.
pub fn close() -> bool {
    turn(State::Open, State::Closed)
}

/// Ends it all; nothing opens the window again.
pub fn kill() {
    STATE.store(State::Dead as u32, Ordering::Release);
}

fn turn(from: State, to: State) -> bool {
    STATE.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the state is the process's.
    #[test]
    fn a_window_opens_and_closes_until_it_is_killed() {
        assert_eq!(state(), State::Closed);
        assert!(!close());
        assert!(open());
        assert!(!open());
        assert_eq!(state(), State::Open);
        assert!(close());
        kill();
        assert!(!open());
        assert_eq!(state(), State::Dead);
    }
}
