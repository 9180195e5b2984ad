//! Programs that do everything at once, chosen by a number or for as long as wanted.

mod chaos;
mod stress;
