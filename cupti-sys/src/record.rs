//! Defines activity records: their first fields, which are the same in CUPTI 11.8 to 13.5, and the offsets of later
//! fields.
//!
//! CUPTI only appends fields to its records, so the first fields stay valid in all later versions. The distance to the
//! next record (the *stride*) shows which later fields a record has. Only the library's own
//! `cuptiActivityGetNextRecord` knows the stride. Members named `_…` are fields that are not used yet.

use crate::{ActivityKind, UnifiedMemoryKind};
use std::ffi::c_char;
use std::mem::offset_of;

/// An activity record: all bytes up to the next record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// Creates a record from `bytes`, which begin at the record's first byte and end at the next record.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the kind of the record; `None` if the record is too short to contain a kind.
    pub fn kind(self) -> Option<ActivityKind> {
        self.field(0).map(ActivityKind)
    }

    /// Returns the first bytes of the record as a `T`; `None` if the record is too short.
    pub fn prefix<T: Plain>(self) -> Option<T> {
        self.field(0)
    }

    /// Returns the `T` at byte `offset`; `None` if the record is too short to contain it.
    pub fn field<T: Plain>(self, offset: usize) -> Option<T> {
        let bytes = self.0.get(offset..)?.get(..size_of::<T>())?;
        // SAFETY: `bytes` has the size of a `T`, any bytes are a valid `T` (`Plain`), and the read may be unaligned.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// Types that may be read from arbitrary bytes.
///
/// # Safety
/// Every bit pattern is a valid value of the type.
pub unsafe trait Plain: Copy {}

// SAFETY: every bit pattern is a valid integer.
unsafe impl Plain for u8 {}
// SAFETY: every bit pattern is a valid integer.
unsafe impl Plain for u16 {}
// SAFETY: every bit pattern is a valid integer.
unsafe impl Plain for u32 {}
// SAFETY: every bit pattern is a valid integer.
unsafe impl Plain for u64 {}

macro_rules! records {
    ($($(#[$doc:meta])* struct $record:ident { $($(#[$field_doc:meta])* $vis:vis $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $record { $($(#[$field_doc])* $vis $field: $type,)* }

            // SAFETY: the record consists only of integers and raw pointers, for which every bit pattern is valid.
            unsafe impl Plain for $record {}
        )*
    };
}

records! {
    /// Record of kinds KERNEL and CONCURRENT_KERNEL: `CUpti_ActivityKernel8` to `13`, up to the graph id.
    struct Kernel {
        /// Kind of the record: KERNEL or CONCURRENT_KERNEL.
        pub kind: ActivityKind,
        _cache: [u8; 2],
        /// Registers per thread.
        pub registers_per_thread: u16,
        _partitioned_cache: [u32; 2],
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds; 0 if the time was not collected, or if the kernel was still running when a flush
        /// was forced.
        pub end: u64,
        /// End time in nanoseconds, including all child kernels.
        pub completed: u64,
        /// Number of the GPU.
        pub device_id: u32,
        /// Id of the context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that context.
        pub stream_id: u32,
        /// Blocks in x, y, z.
        pub grid: [i32; 3],
        /// Threads per block in x, y, z.
        pub block: [i32; 3],
        /// Statically allocated shared memory, bytes per block.
        pub static_shared_memory: i32,
        /// Dynamic shared memory requested at launch, bytes per block.
        pub dynamic_shared_memory: i32,
        /// Local memory, bytes per thread.
        pub local_memory_per_thread: u32,
        _local_memory_total: u32,
        /// Correlation id of the API call that launched this work.
        pub correlation_id: u32,
        /// Id of the grid.
        pub grid_id: i64,
        /// Mangled name of the kernel. Several records share the string, which CUPTI owns and keeps while CUPTI is
        /// loaded.
        pub name: *const c_char,
        _reserved: u64,
        /// Time in nanoseconds at which the kernel was queued; 0 unless latency timestamps are on.
        pub queued: u64,
        /// Time in nanoseconds at which the kernel was submitted; 0 unless latency timestamps are on.
        pub submitted: u64,
        /// Type of the launch: regular, cooperative, or launched by a device.
        pub launch_type: u8,
        _carveout: [u8; 7],
        /// Id of the graph node that was executed; 0 if none.
        pub graph_node_id: u64,
        _shared_memory_limit: u32,
        /// Id of the executable graph to which the work belongs; 0 if none.
        pub graph_id: u32,
    }

    /// Record of kind MEMCPY: `CUpti_ActivityMemcpy5` to `7`, up to the graph id.
    struct Memcpy {
        /// Kind of the record: MEMCPY.
        pub kind: ActivityKind,
        /// Direction of the copy.
        pub copy_kind: u8,
        /// Kind of the source memory.
        pub src_kind: u8,
        /// Kind of the destination memory.
        pub dst_kind: u8,
        /// Flags; bit 0 = the call was asynchronous.
        pub flags: u8,
        /// Number of bytes copied or set.
        pub bytes: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Number of the GPU.
        pub device_id: u32,
        /// Id of the context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that context.
        pub stream_id: u32,
        /// Correlation id of the API call that requested this work.
        pub correlation_id: u32,
        _runtime_correlation: u32,
        _pad: u32,
        _reserved: u64,
        /// Id of the graph node that was executed; 0 if none.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the work belongs; 0 if none.
        pub graph_id: u32,
    }

    /// Record of kind MEMCPY2: `CUpti_ActivityMemcpyPtoP4`, up to the graph id.
    struct MemcpyPeer {
        /// Kind of the record: MEMCPY2.
        pub kind: ActivityKind,
        /// Direction of the copy.
        pub copy_kind: u8,
        /// Kind of the source memory.
        pub src_kind: u8,
        /// Kind of the destination memory.
        pub dst_kind: u8,
        /// Flags; bit 0 = the call was asynchronous.
        pub flags: u8,
        /// Number of bytes copied or set.
        pub bytes: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Number of the GPU that performed the copy.
        pub device_id: u32,
        /// Id of the context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that context.
        pub stream_id: u32,
        /// Number of the source GPU.
        pub src_device_id: u32,
        /// Id of the context on the source GPU.
        pub src_context_id: u32,
        /// Number of the destination GPU.
        pub dst_device_id: u32,
        /// Id of the context on the destination GPU.
        pub dst_context_id: u32,
        /// Correlation id of the API call that requested this work.
        pub correlation_id: u32,
        _reserved: u64,
        /// Id of the graph node that was executed; 0 if none.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the work belongs; 0 if none.
        pub graph_id: u32,
    }

    /// Record of kind MEMSET: `CUpti_ActivityMemset4` and `5`, up to the graph id.
    struct Memset {
        /// Kind of the record: MEMSET.
        pub kind: ActivityKind,
        /// Value to which the memory was set.
        pub value: u32,
        /// Number of bytes copied or set.
        pub bytes: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Number of the GPU.
        pub device_id: u32,
        /// Id of the context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that context.
        pub stream_id: u32,
        /// Correlation id of the API call that requested this work.
        pub correlation_id: u32,
        /// Flags; bit 0 = the call was asynchronous.
        pub flags: u16,
        /// Kind of the destination memory.
        pub memory_kind: u16,
        _pad: u32,
        _reserved: u64,
        /// Id of the graph node that was executed; 0 if none.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the work belongs; 0 if none.
        pub graph_id: u32,
    }

    /// Record of kind SYNCHRONIZATION: `CUpti_ActivitySynchronization`.
    struct Synchronization {
        /// Kind of the record: SYNCHRONIZATION.
        pub kind: ActivityKind,
        /// Type of the wait, and of the awaited object.
        pub sync_type: u32,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Correlation id of the API call.
        pub correlation_id: u32,
        /// Id of the context.
        pub context_id: u32,
        /// Id of the stream; all bits are 1 if there is none.
        pub stream_id: u32,
        /// Id of the event; all bits are 1 if there is none.
        pub cuda_event_id: u32,
    }

    /// Record of kind CUDA_EVENT: `CUpti_ActivityCudaEvent`.
    struct CudaEvent {
        /// Kind of the record: CUDA_EVENT.
        pub kind: ActivityKind,
        /// Correlation id of the API call.
        pub correlation_id: u32,
        /// Id of the context.
        pub context_id: u32,
        /// Id of the stream.
        pub stream_id: u32,
        /// Id of the event.
        pub event_id: u32,
        _pad: u32,
    }

    /// Record of kind UNIFIED_MEMORY_COUNTER: `CUpti_ActivityUnifiedMemoryCounter2` and `3`, up to the flags.
    struct UnifiedMemoryCounter {
        /// Kind of the record: UNIFIED_MEMORY_COUNTER.
        pub kind: ActivityKind,
        /// Kind of the counter.
        pub counter_kind: UnifiedMemoryKind,
        /// Value of the counter: bytes, or page faults.
        pub value: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds; 0 if the record describes an instant.
        pub end: u64,
        /// First address of the memory.
        pub address: u64,
        /// Number of the source GPU.
        pub src_id: u32,
        /// Number of the destination GPU.
        pub dst_id: u32,
        /// Id of the stream.
        pub stream_id: u32,
        /// Id of the process.
        pub process_id: u32,
        /// Cause of the counted event; the meaning depends on the counter.
        pub flags: u32,
        _pad: u32,
    }

    /// Record of kind GRAPH_TRACE: `CUpti_ActivityGraphTrace`.
    struct GraphTrace {
        /// Kind of the record: GRAPH_TRACE.
        pub kind: ActivityKind,
        /// Correlation id of the API call that launched this work.
        pub correlation_id: u32,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Number of the GPU on which the graph started.
        pub device_id: u32,
        /// Id of the executable graph.
        pub graph_id: u32,
        /// Id of the context.
        pub context_id: u32,
        /// Id of the stream.
        pub stream_id: u32,
        _reserved: u64,
    }

    /// Record of kinds DRIVER, RUNTIME and INTERNAL_LAUNCH_API: `CUpti_ActivityAPI`.
    struct ApiCall {
        /// Kind of the record: DRIVER, RUNTIME or INTERNAL_LAUNCH_API.
        pub kind: ActivityKind,
        /// Callback id of the call.
        pub cbid: u32,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Id of the process.
        pub process_id: u32,
        /// Id of the thread; by default, the low half of its pthread handle.
        pub thread_id: u32,
        /// Correlation id of the call.
        pub correlation_id: u32,
        /// Result of the call.
        pub return_value: u32,
    }

    /// Record of kind EXTERNAL_CORRELATION: `CUpti_ActivityExternalCorrelation`.
    struct ExternalCorrelation {
        /// Kind of the record: EXTERNAL_CORRELATION.
        pub kind: ActivityKind,
        /// Kind of the external id, which identifies the tool that pushed the id.
        pub external_kind: u32,
        /// The external id that was pushed.
        pub external_id: u64,
        /// Correlation id of an API call that was made while the id was pushed.
        pub correlation_id: u32,
        _reserved: u32,
    }
}

/// Offsets of fields that only some records have. Read these fields with [`Record::field`].
pub mod offset {
    /// The hardware channel, `u32`, followed by its [`crate::ChannelType`], `u32`.
    pub mod channel {
        /// Offset in a [`super::super::Kernel`].
        pub const KERNEL: usize = 168;
        /// Offset in a [`super::super::Memcpy`].
        pub const MEMCPY: usize = 76;
        /// Offset in a [`super::super::MemcpyPeer`].
        pub const MEMCPY_PEER: usize = 84;
        /// Offset in a [`super::super::Memset`].
        pub const MEMSET: usize = 76;
    }

    /// Id of the graph from which the executable graph was instantiated, `u32` (13.4 on). The id of the source node,
    /// `u64`, is 8 bytes later.
    pub mod source_graph {
        /// Offset in a [`super::super::Kernel`].
        pub const KERNEL: usize = 232;
        /// Offset in a [`super::super::Memcpy`].
        pub const MEMCPY: usize = 96;
        /// Offset in a [`super::super::Memset`].
        pub const MEMSET: usize = 88;
    }

    /// Blocks per cluster in x, y, z, `u32` each, in a [`super::Kernel`].
    pub const KERNEL_CLUSTER: usize = 176;
    /// Whether a kernel was launched by the device, `u8` (13.0 on), in a [`super::Kernel`].
    pub const KERNEL_IS_DEVICE_LAUNCHED: usize = 208;
    /// The launch priority, `i32` (13.1 on), in a [`super::Kernel`].
    pub const KERNEL_PRIORITY: usize = 216;
    /// Sync id of the `cudaEventRecord` call for which a stream waits, `u64` (12.8 on), in a
    /// [`super::Synchronization`]; 0xFFFF_FFFF if there is none.
    pub const SYNCHRONIZATION_SYNC_ID: usize = 40;
    /// Result of the call, `u32` (12.8 on), in a [`super::Synchronization`].
    pub const SYNCHRONIZATION_RESULT: usize = 48;
    /// Sync id of an event that was recorded on a stream, `u64` (12.8 on), in a [`super::CudaEvent`].
    pub const CUDA_EVENT_SYNC_ID: usize = 48;
    /// Number of copies in a batch, `u64` (12.8 on), in a [`super::Memcpy`].
    pub const MEMCPY_COPY_COUNT: usize = 88;
}

macro_rules! layout {
    ($record:ident: $size:literal bytes; $($field:ident at $offset:literal),* $(,)?) => {
        const _: () = {
            assert!(size_of::<$record>() == $size);
            $(assert!(offset_of!($record, $field) == $offset);)*
        };
    };
}

layout!(Kernel: 160 bytes; kind at 0, registers_per_thread at 6, start at 16, end at 24, completed at 32,
    device_id at 40, context_id at 44, stream_id at 48, grid at 52, block at 64, static_shared_memory at 76,
    dynamic_shared_memory at 80, local_memory_per_thread at 84, correlation_id at 92, grid_id at 96,
    name at 104, queued at 120, submitted at 128, launch_type at 136, graph_node_id at 144, graph_id at 156);
layout!(Memcpy: 80 bytes; kind at 0, copy_kind at 4, src_kind at 5, dst_kind at 6, flags at 7, bytes at 8,
    start at 16, end at 24, device_id at 32, context_id at 36, stream_id at 40, correlation_id at 44,
    graph_node_id at 64, graph_id at 72);
layout!(MemcpyPeer: 88 bytes; kind at 0, copy_kind at 4, src_kind at 5, dst_kind at 6, flags at 7, bytes at 8,
    start at 16, end at 24, device_id at 32, context_id at 36, stream_id at 40, src_device_id at 44,
    src_context_id at 48, dst_device_id at 52, dst_context_id at 56, correlation_id at 60,
    graph_node_id at 72, graph_id at 80);
layout!(Memset: 80 bytes; kind at 0, value at 4, bytes at 8, start at 16, end at 24, device_id at 32,
    context_id at 36, stream_id at 40, correlation_id at 44, flags at 48, memory_kind at 50,
    graph_node_id at 64, graph_id at 72);
layout!(Synchronization: 40 bytes; kind at 0, sync_type at 4, start at 8, end at 16, correlation_id at 24,
    context_id at 28, stream_id at 32, cuda_event_id at 36);
layout!(CudaEvent: 24 bytes; kind at 0, correlation_id at 4, context_id at 8, stream_id at 12, event_id at 16);
layout!(UnifiedMemoryCounter: 64 bytes; kind at 0, counter_kind at 4, value at 8, start at 16, end at 24,
    address at 32, src_id at 40, dst_id at 44, stream_id at 48, process_id at 52, flags at 56);
layout!(GraphTrace: 48 bytes; kind at 0, correlation_id at 4, start at 8, end at 16, device_id at 24,
    graph_id at 28, context_id at 32, stream_id at 36);
layout!(ApiCall: 40 bytes; kind at 0, cbid at 4, start at 8, end at 16, process_id at 24, thread_id at 28,
    correlation_id at 32, return_value at 36);
layout!(ExternalCorrelation: 24 bytes; kind at 0, external_kind at 4, external_id at 8, correlation_id at 16);

// A struct must not be longer than the record of any version, because records of a version in which they are shorter
// could not be read. In CUPTI 11.8, a kernel record has 200 bytes, and a copy record has 88 bytes. Both begin with the
// fields above.
const _: () = assert!(size_of::<Kernel>() <= offset::channel::KERNEL);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_the_record_is_too_short_for_is_none() {
        let bytes = [0_u8; 12];
        assert_eq!(Record::new(&bytes).field::<u32>(8), Some(0));
        assert_eq!(Record::new(&bytes).field::<u32>(9), None);
        assert_eq!(Record::new(&bytes).field::<u32>(usize::MAX), None);
        assert!(Record::new(&bytes).prefix::<Memcpy>().is_none());
    }

    #[test]
    fn a_record_is_read_from_any_address() {
        let mut bytes = [0_u8; 25];
        bytes[1 + 16] = 7;
        let record = Record::new(&bytes[1..]).prefix::<ExternalCorrelation>().unwrap();
        assert_eq!(record.correlation_id, 7);
    }
}
