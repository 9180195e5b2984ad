//! From the settings to the last output: sets a session up, keeps it while it runs, and reports its results.

pub(super) mod ledger_text;
pub(super) mod running;
pub(super) mod set_up;
pub(super) mod stage;
pub(super) mod stats;
