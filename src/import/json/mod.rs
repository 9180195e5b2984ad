//! Traces in Chrome's JSON format, from whatever tool: a scanner that reads through a small reused buffer,
//! and decides for each event by itself what it is.
//!
//! Seven dialects of GPU events are known (Paddle; Kineto of 2021, 2022 and 2024; Kineto on ROCm; the
//! eunomia tutorial; accelerators without a GPU category); keys may come in any order.

/// What was seen while reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of JSON, after decompression.
    pub bytes: u64,
    /// Elements of `traceEvents`.
    pub events: u64,
    /// Times (of events that were asked for) with digits behind the microsecond.
    pub fractions: u64,
    /// Times without.
    pub whole: u64,
    /// Events that were asked for, but whose times or duration are missing or no numbers: passed over.
    pub untimed: u64,
    /// Elements that are no event: `{}`, `null`.
    pub blank: u64,
}
