//! Defines CUPTI's activity records: their first fields, which are the same in CUPTI 11.8 to 13.5, and the offsets of
//! later fields.
//!
//! CUPTI only appends fields to its activity records, so the first fields stay valid in all later versions. The
//! distance to the next record (the *stride*) shows which later fields a record has. Only the library's own
//! `cuptiActivityGetNextRecord` knows the stride. Struct members named `_…` are fields that are not used yet.

use crate::{ActivityKind, UnifiedMemoryKind};
use std::ffi::c_char;
use std::mem::offset_of;

/// An activity record: its bytes up to the start of the next record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// Creates a record from `bytes`, which begin at the record's first byte and end where the next record begins.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the kind of the record. Returns `None` if the record is too short to contain a kind.
    pub fn kind(self) -> Option<ActivityKind> {
        self.field(0).map(ActivityKind)
    }

    /// Returns the first bytes of the record as a `T`. Returns `None` if the record is too short.
    pub fn prefix<T: Plain>(self) -> Option<T> {
        self.field(0)
    }

    /// Returns the field of type `T` at byte `offset`. Returns `None` if the record is too short to contain the field.
    pub fn field<T: Plain>(self, offset: usize) -> Option<T> {
        let bytes = self.0.get(offset..)?.get(..size_of::<T>())?;
        // SAFETY: `bytes` has the size of a `T`, any bytes are a valid `T` (`Plain`), and the read may be unaligned.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// A type that may be read from arbitrary bytes.
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
    /// Record of the kinds KERNEL and CONCURRENT_KERNEL: the structs `CUpti_ActivityKernel8` to `13`, up to the graph
    /// id.
    struct Kernel {
        /// Kind of the record: KERNEL or CONCURRENT_KERNEL.
        pub kind: ActivityKind,
        _cache: [u8; 2],
        /// Number of registers per thread.
        pub registers_per_thread: u16,
        _partitioned_cache: [u32; 2],
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds. 0 if the end time was not collected, or if the kernel was still running at a
        /// forced flush.
        pub end: u64,
        /// Time in nanoseconds at which the kernel and all its child kernels had ended.
        pub completed: u64,
        /// Index of the GPU.
        pub device_id: u32,
        /// Id of the CUDA context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that CUDA context.
        pub stream_id: u32,
        /// Number of blocks in x, y and z.
        pub grid: [i32; 3],
        /// Number of threads per block in x, y and z.
        pub block: [i32; 3],
        /// Size of the statically allocated shared memory, in bytes per block.
        pub static_shared_memory: i32,
        /// Size of the dynamic shared memory requested at the launch, in bytes per block.
        pub dynamic_shared_memory: i32,
        /// Size of the local memory, in bytes per thread.
        pub local_memory_per_thread: u32,
        _local_memory_total: u32,
        /// Correlation id of the API call that launched this kernel.
        pub correlation_id: u32,
        /// Id of the grid.
        pub grid_id: i64,
        /// Mangled name of the kernel. Several records may point to the same string. CUPTI owns the string and keeps
        /// it as long as CUPTI is loaded.
        pub name: *const c_char,
        _reserved: u64,
        /// Time in nanoseconds at which the kernel was queued, or 0 unless latency timestamps are on.
        pub queued: u64,
        /// Time in nanoseconds at which the kernel was submitted, or 0 unless latency timestamps are on.
        pub submitted: u64,
        /// Type of the launch: regular, cooperative, or launched by a device.
        pub launch_type: u8,
        _carveout: [u8; 7],
        /// Id of the executed graph node, or 0 if no graph was launched.
        pub graph_node_id: u64,
        _shared_memory_limit: u32,
        /// Id of the executable graph to which the kernel belongs, or 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind MEMCPY: the structs `CUpti_ActivityMemcpy5` to `7`, up to the graph id.
    struct Memcpy {
        /// Kind of the record: MEMCPY.
        pub kind: ActivityKind,
        /// Direction of the copy.
        pub copy_kind: u8,
        /// Kind of the source memory.
        pub src_kind: u8,
        /// Kind of the destination memory.
        pub dst_kind: u8,
        /// Flags. Bit 0 is set if the API call was asynchronous.
        pub flags: u8,
        /// Number of bytes copied.
        pub bytes: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Index of the GPU.
        pub device_id: u32,
        /// Id of the CUDA context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that CUDA context.
        pub stream_id: u32,
        /// Correlation id of the API call that requested this copy.
        pub correlation_id: u32,
        _runtime_correlation: u32,
        _pad: u32,
        _reserved: u64,
        /// Id of the executed graph node, or 0 if no graph was launched.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the copy belongs, or 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind MEMCPY2: the struct `CUpti_ActivityMemcpyPtoP4`, up to the graph id.
    struct MemcpyPeer {
        /// Kind of the record: MEMCPY2.
        pub kind: ActivityKind,
        /// Direction of the copy.
        pub copy_kind: u8,
        /// Kind of the source memory.
        pub src_kind: u8,
        /// Kind of the destination memory.
        pub dst_kind: u8,
        /// Flags. Bit 0 is set if the API call was asynchronous.
        pub flags: u8,
        /// Number of bytes copied.
        pub bytes: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Index of the GPU that performed the copy.
        pub device_id: u32,
        /// Id of the CUDA context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that CUDA context.
        pub stream_id: u32,
        /// Index of the source GPU.
        pub src_device_id: u32,
        /// Id of the CUDA context on the source GPU.
        pub src_context_id: u32,
        /// Index of the destination GPU.
        pub dst_device_id: u32,
        /// Id of the CUDA context on the destination GPU.
        pub dst_context_id: u32,
        /// Correlation id of the API call that requested this copy.
        pub correlation_id: u32,
        _reserved: u64,
        /// Id of the executed graph node, or 0 if no graph was launched.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the copy belongs, or 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind MEMSET: the structs `CUpti_ActivityMemset4` and `5`, up to the graph id.
    struct Memset {
        /// Kind of the record: MEMSET.
        pub kind: ActivityKind,
        /// Value with which the memory was filled.
        pub value: u32,
        /// Number of bytes filled.
        pub bytes: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Index of the GPU.
        pub device_id: u32,
        /// Id of the CUDA context on that GPU.
        pub context_id: u32,
        /// Id of the stream in that CUDA context.
        pub stream_id: u32,
        /// Correlation id of the API call that requested this fill.
        pub correlation_id: u32,
        /// Flags. Bit 0 is set if the API call was asynchronous.
        pub flags: u16,
        /// Kind of the filled memory.
        pub memory_kind: u16,
        _pad: u32,
        _reserved: u64,
        /// Id of the executed graph node, or 0 if no graph was launched.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the fill belongs, or 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind SYNCHRONIZATION: the struct `CUpti_ActivitySynchronization`.
    struct Synchronization {
        /// Kind of the record: SYNCHRONIZATION.
        pub kind: ActivityKind,
        /// Type of the wait: whether the host or a stream waits, and what it waits for (a CUDA event, a stream or a
        /// CUDA context).
        pub sync_type: u32,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Correlation id of the API call that waited.
        pub correlation_id: u32,
        /// Id of the CUDA context.
        pub context_id: u32,
        /// Id of the stream. All bits are 1 if the wait involves no stream.
        pub stream_id: u32,
        /// Id of the CUDA event. All bits are 1 if the wait involves no CUDA event.
        pub cuda_event_id: u32,
    }

    /// Record of the kind CUDA_EVENT: the struct `CUpti_ActivityCudaEvent`.
    struct CudaEvent {
        /// Kind of the record: CUDA_EVENT.
        pub kind: ActivityKind,
        /// Correlation id of the API call that recorded the CUDA event.
        pub correlation_id: u32,
        /// Id of the CUDA context.
        pub context_id: u32,
        /// Id of the stream on which the CUDA event was recorded.
        pub stream_id: u32,
        /// Id of the CUDA event.
        pub event_id: u32,
        _pad: u32,
    }

    /// Record of the kind UNIFIED_MEMORY_COUNTER: the structs `CUpti_ActivityUnifiedMemoryCounter2` and `3`, up to the
    /// flags.
    struct UnifiedMemoryCounter {
        /// Kind of the record: UNIFIED_MEMORY_COUNTER.
        pub kind: ActivityKind,
        /// Kind of the unified-memory counter.
        pub counter_kind: UnifiedMemoryKind,
        /// Value of the counter: a number of bytes, or a number of page faults.
        pub value: u64,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds, or 0 if the record describes an instant.
        pub end: u64,
        /// First address of the memory.
        pub address: u64,
        /// Index of the source GPU.
        pub src_id: u32,
        /// Index of the destination GPU.
        pub dst_id: u32,
        /// Id of the stream.
        pub stream_id: u32,
        /// Id of the process.
        pub process_id: u32,
        /// Cause of the counted transfer or page fault. The meaning of the value depends on the counter.
        pub flags: u32,
        _pad: u32,
    }

    /// Record of the kind GRAPH_TRACE: the struct `CUpti_ActivityGraphTrace`.
    struct GraphTrace {
        /// Kind of the record: GRAPH_TRACE.
        pub kind: ActivityKind,
        /// Correlation id of the API call that launched this graph.
        pub correlation_id: u32,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Index of the GPU on which the graph started.
        pub device_id: u32,
        /// Id of the executable graph.
        pub graph_id: u32,
        /// Id of the CUDA context.
        pub context_id: u32,
        /// Id of the stream.
        pub stream_id: u32,
        _reserved: u64,
    }

    /// Record of the kinds DRIVER, RUNTIME and INTERNAL_LAUNCH_API: the struct `CUpti_ActivityAPI`.
    struct ApiCall {
        /// Kind of the record: DRIVER, RUNTIME or INTERNAL_LAUNCH_API.
        pub kind: ActivityKind,
        /// Callback id of the API call.
        pub cbid: u32,
        /// Start time in nanoseconds.
        pub start: u64,
        /// End time in nanoseconds.
        pub end: u64,
        /// Id of the process.
        pub process_id: u32,
        /// Id of the thread. By default, the id is the low half of the thread's pthread handle.
        pub thread_id: u32,
        /// Correlation id of the API call.
        pub correlation_id: u32,
        /// Result of the API call.
        pub return_value: u32,
    }

    /// Record of the kind EXTERNAL_CORRELATION: the struct `CUpti_ActivityExternalCorrelation`.
    struct ExternalCorrelation {
        /// Kind of the record: EXTERNAL_CORRELATION.
        pub kind: ActivityKind,
        /// Kind of the external id, which identifies the tool that pushed the id.
        pub external_kind: u32,
        /// The external id that was pushed.
        pub external_id: u64,
        /// Correlation id of an API call that was made between the push and the pop of the external id.
        pub correlation_id: u32,
        _reserved: u32,
    }
}

/// Offsets of fields that only some activity records have. Read these fields with [`Record::field`].
pub mod offset {
    /// Offset of the hardware channel, a `u32`. The next field is the channel's [`crate::ChannelType`], a `u32`.
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

    /// Offset of the id of the graph from which the executable graph was instantiated, a `u32` (13.4 and later). The
    /// id of the source node, a `u64`, is 8 bytes later.
    pub mod source_graph {
        /// Offset in a [`super::super::Kernel`].
        pub const KERNEL: usize = 232;
        /// Offset in a [`super::super::Memcpy`].
        pub const MEMCPY: usize = 96;
        /// Offset in a [`super::super::Memset`].
        pub const MEMSET: usize = 88;
    }

    /// Offset in a [`super::Kernel`] of the number of blocks per cluster in x, y and z, a `u32` each.
    pub const KERNEL_CLUSTER: usize = 176;
    /// Offset in a [`super::Kernel`] of the flag whether a device launched the kernel, a `u8` (13.0 and later).
    pub const KERNEL_IS_DEVICE_LAUNCHED: usize = 208;
    /// Offset in a [`super::Kernel`] of the launch priority, an `i32` (13.1 and later).
    pub const KERNEL_PRIORITY: usize = 216;
    /// Offset in a [`super::Synchronization`] of the sync id of the `cudaEventRecord` call for which a stream waits, a
    /// `u64` (12.8 and later). The value is 0xFFFF_FFFF if the wait has no sync id.
    pub const SYNCHRONIZATION_SYNC_ID: usize = 40;
    /// Offset in a [`super::Synchronization`] of the result of the API call, a `u32` (12.8 and later).
    pub const SYNCHRONIZATION_RESULT: usize = 48;
    /// Offset in a [`super::CudaEvent`] of the sync id of a CUDA event that was recorded on a stream, a `u64` (12.8
    /// and later).
    pub const CUDA_EVENT_SYNC_ID: usize = 48;
    /// Offset in a [`super::Memcpy`] of the number of copies in a batch, a `u64` (12.8 and later).
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

// A struct must not be longer than the record of any CUPTI version, because the shorter records of that version could
// not be read as this struct. In CUPTI 11.8, a kernel record has 200 bytes, and a copy record has 88 bytes. Both
// records begin with the fields of our structs.
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
