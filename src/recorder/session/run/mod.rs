//! The run of a session from the settings to the last output: how the session is set up, its state while it runs, and
//! its results.

pub(super) mod ledger_text;
pub(super) mod running;
pub(super) mod set_up;
pub(super) mod stage;
pub(super) mod stats;
