//! Raw bindings to NVIDIA CUPTI 11.8 to 13.5, loaded at run time.
//!
//! The bindings are written by hand and do not need the CUDA toolkit at build time. The bindings contain only the
//! numbers, names and byte offsets of CUPTI's interface, and no text from NVIDIA's headers. The bindings make no
//! decisions: the caller decides, for example, which library to load and which callbacks to enable.
//!
//! Two rules let one binary work with every CUPTI version from 11.8 to 13.5:
//!
//! - **No Rust enums.** A newer CUPTI sends numbers that an older header does not define, and an unknown enum
//!   discriminant is undefined behaviour. Therefore every enumeration is a newtype around `u32`.
//! - **Records are prefixes.** New versions of CUPTI only add fields at the end of a record. The structs in [`record`]
//!   contain the fields that are the same in all versions. A later field is read by its offset, and only if the record
//!   is long enough to contain it. See [`record::Record`].
//!
//! Functions are looked up with `dlsym`. The [`Library`] struct contains each function as an `Option`. A field is
//! optional for two reasons: an older CUPTI lacks some functions, and a test may fill in its own functions.

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
