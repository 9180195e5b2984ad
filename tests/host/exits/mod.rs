//! Programs that exit, that are ended by a signal, or that crash. The tests check which files such programs leave.

pub(super) mod checkpoint;
mod ending;
mod handlers;
mod killed_at_any_moment;
mod python_end;
