//! Ends of programs: by themselves, by a signal or by a crash. The tests check which files are left.

pub(super) mod checkpoint;
mod ending;
mod handlers;
mod killed_at_any_moment;
mod python_end;
