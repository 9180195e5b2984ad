//! The recorder, which runs inside the application's process and consists of callbacks and the session. A callback runs
//! on each CUDA API call and writes rows. The session collects these rows, explains them (joins and sums them) and
//! writes the outputs.

#![deny(unsafe_code)]

pub mod capture;
pub mod control;
pub mod session;
