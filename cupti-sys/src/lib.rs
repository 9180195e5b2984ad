//! Raw bindings to NVIDIA CUPTI 11.8 to 13.5, which is loaded at run time.
//!
//! The bindings are written by hand, so building them does not need the CUDA toolkit. The bindings contain only the
//! numbers, names and byte offsets of CUPTI's interface, and no text from NVIDIA's headers. The bindings contain no
//! policy. For example, the caller decides which library to load and which callbacks to enable.
//!
//! The bindings follow two rules, so that one binary works with every CUPTI version from 11.8 to 13.5:
//!
//! - **No Rust enums.** A newer CUPTI sends numbers that the header of an older CUPTI does not define. If such a number
//!   were stored in a Rust enum, this would cause undefined behaviour. Therefore every enumeration is a newtype of
//!   `u32`.
//! - **Records are prefixes.** New versions of CUPTI add fields only at the end of a record. The structs in [`record`]
//!   contain the first fields of each record, which are the same in all versions of CUPTI. A field that exists only in
//!   later versions is read by its offset, and only if the record is long enough to contain this field. See
//!   [`record::Record`] for the details.
//!
//! The functions of CUPTI are looked up with `dlsym`. The struct [`Library`] contains each function as an `Option`.
//! There are two reasons why a function is optional: older CUPTI versions lack some functions, and tests may provide
//! functions of their own.

pub mod callback;
mod ids;
mod library;
pub mod record;

pub use ids::{
    ActivityAttribute, ActivityKind, CallbackId, ChannelType, Domain, FlushFlag, Site, Status, Subscriber,
    UnifiedMemoryConfig, UnifiedMemoryKind,
};
pub use library::{
    BufferCompletedFn, BufferCompletedV2Fn, BufferRequestedFn, BufferRequestedV2Fn, CallbackFn, Library,
    TimestampFn,
};
