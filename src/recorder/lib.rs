//! The recorder runs inside the application's process. It consists of the callbacks of API calls, which write rows, and
//! the session, which collects the rows, explains them (joins and sums them) and writes the outputs.

#![deny(unsafe_code)]

pub mod capture;
pub mod control;
pub mod session;
