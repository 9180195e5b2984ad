//! The recorder runs inside the application's process, and has two parts: callbacks and the session. Callbacks run on
//! each CUDA API call and write rows. The session collects the rows, explains them (joins and sums them) and writes the
//! outputs.

#![deny(unsafe_code)]

pub mod capture;
pub mod control;
pub mod session;
