//! What is concluded from a profile and from joined rows: whether two runs differ by more than chance, how long
//! launches waited, which rank holds the others up, and what of a trace is to be doubted.
//!
//! Everything here is data; the command prints it.

mod communication;
mod delays;
mod findings;
mod stragglers;
mod welch;

pub use communication::{Communication, Doing, Share, Told, communication};
pub use delays::{Delay, Delays};
pub use findings::{Evidence, Figures, Finding, Severity, findings};
pub use stragglers::{Held, Standing, Time, standings};
pub use welch::{Change, Durations, change};
