//! Raw bindings to NVIDIA CUPTI 11.8 to 13.5, loaded at run time.
//!
//! Written by hand: only the numbers, names and byte offsets of the interface. No policy (which library to load,
//! which callbacks to enable), no build-time dependency on the CUDA toolkit, and no text of NVIDIA's headers.
//!
//! Two rules let one binary work with every CUPTI of that range:
//!
//! - **No Rust enums.** A newer CUPTI sends numbers that an older header does not define, and an unknown
//!   discriminant is undefined behaviour. Every enumeration is a newtype around `u32`.
//! - **Records are prefixes.** CUPTI only ever appends to its records. The structs in [`record`] hold the
//!   fields that all versions share; a later field is read by its offset, and only if the record is long enough to
//!   contain it. See [`record::Record`].
//!
//! Functions are looked up with `dlsym` into the [`Library`] struct, one `Option` each: an older CUPTI lacks some of
//! them, and a test may fill in its own.

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
