//! Reads what other tools wrote: traces of torch.profiler, Paddle, vLLM, Nsight Systems, rocprofv3 and
//! others become one stream of [`Event`]s, in file order, with times as exact nanoseconds.
//!
//! [`open()`] tells what a file is by its content, [`Opened::read`] hands its events to a [`Sink`]; nothing is
//! kept, files may be larger than memory. [`rows()`] finds out what belongs together (a GPU operation, the
//! call that launched it, what that thread was in) and makes of it the rows that our own capture makes, and
//! [`recording()`] reads those.

pub mod json;

mod capture;
mod collect;
mod cupti_text;
mod edges;
mod folded;
mod frames;
mod gzip;
mod kind;
mod late;
mod lines;
mod link;
mod model;
mod names;
mod nsys;
mod open;
mod options;
mod recording;
mod rocprof;
mod rows;
mod sbt;
mod slices;
mod stack;
mod text;
mod told;
mod work;

pub use capture::Tied;
pub use collect::Collect;
pub use json::Seen;
pub use link::Linked;
pub use model::{
    Begin, Call, CpuKind, CpuOp, End, Event, Flow, Folded, Fork, Id, Op, OpKind, Property, PythonFrame, Sink,
    SliceKind, StackLine, Sync, ThreadName, Wants,
};
pub use names::NameNumbers;
pub use open::{Kind, Opened, open};
pub use options::Options;
pub use recording::{CutOff, Recorded, recording};
pub use rows::rows;
pub use text::Text;

/// A number of microseconds as people write it, in nanoseconds; `None` where it is no number.
pub(crate) fn json_micros(text: &str) -> Option<i64> {
    json::number::micros(text.as_bytes()).map(|(nanos, _)| nanos)
}
