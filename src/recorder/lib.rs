//! The recorder, which runs inside the application's process: the callbacks of API calls, and the session that collects
//! their rows, explains them and writes the outputs.

#![deny(unsafe_code)]

pub mod capture;
pub mod control;
pub mod session;
