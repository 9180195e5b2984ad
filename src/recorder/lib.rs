//! The recorder, which runs inside the application's process. It contains the callbacks of API calls, and the session,
//! which collects their rows, explains them (joins and sums them) and writes the outputs.

#![deny(unsafe_code)]

pub mod capture;
pub mod control;
pub mod session;
