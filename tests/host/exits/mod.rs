//! How a program ends, by itself, by a signal or by a crash, and what is left then.

pub(super) mod checkpoint;
mod ending;
mod handlers;
mod killed_at_any_moment;
mod python_end;
