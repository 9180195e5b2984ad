//! Reads what other tools wrote: traces of torch.profiler, Paddle, vLLM, Nsight Systems, rocprofv3 and
//! others become one stream of [`Event`]s, in file order, with times as exact nanoseconds.
//!
//! [`open`] tells what a file is by its content, [`Opened::read`] hands its events to a [`Sink`]. Nothing
//! is kept here: files may be larger than memory. What belongs together (a GPU operation and the call that
//! launched it) is found by `explain`; this module only says what stands in the file.

pub mod json;

mod folded;
mod gzip;
mod kind;
mod lines;
mod model;
mod open;
mod text;

pub use json::Seen;
pub use model::{
    Call, CpuKind, CpuOp, Event, Folded, Fork, Id, Op, OpKind, Property, PythonFrame, Sink, StackLine, Sync,
    ThreadName, Wants,
};
pub use open::{Kind, Opened, Options, open};
pub use text::Text;

/// A number of microseconds as people write it, in nanoseconds; `None` where it is no number.
pub(crate) fn json_micros(text: &str) -> Option<i64> {
    json::number::micros(text.as_bytes()).map(|(nanos, _)| nanos)
}
