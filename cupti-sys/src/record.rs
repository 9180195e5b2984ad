//! Defines CUPTI's activity records. A struct contains the first fields of each record, which are the same in CUPTI
//! 11.8 to 13.5. Constants contain the offsets of later fields.
//!
//! CUPTI adds fields to its activity records only at the end, so the first fields stay valid in all later versions. The
//! distance from a record to the next record (the *stride*) shows which of the later fields the record has. Only the
//! library's own function `cuptiActivityGetNextRecord` knows the stride. A field that the bindings do not use yet has a
//! name of the form `_…`.

use crate::{ActivityKind, UnifiedMemoryKind};
use std::ffi::c_char;
use std::mem::offset_of;

/// An activity record, as its bytes up to the start of the next record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// Creates a record from `bytes`, which begin at the first byte of the record and end where the next record begins.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the activity kind of the record. If the record is too short to contain its kind, returns `None`.
    pub fn kind(self) -> Option<ActivityKind> {
        self.field(0).map(ActivityKind)
    }

    /// Returns the beginning of the record as a value of type `T`. Returns `None` if the record is shorter than a `T`.
    pub fn prefix<T: Plain>(self) -> Option<T> {
        self.field(0)
    }

    /// Returns the field of type `T` at byte `offset`. Returns `None` if the record is too short to contain the field.
    pub fn field<T: Plain>(self, offset: usize) -> Option<T> {
        let bytes = self.0.get(offset..)?.get(..size_of::<T>())?;
        // SAFETY: `bytes` has the size of a `T`, all bytes are valid for a `T` (`Plain`), and the read may be
        // unaligned.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// A type that may be read from arbitrary bytes.
///
/// # Safety
/// Every bit pattern must be a valid value of the type.
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

            // SAFETY: the record contains only integers and raw pointers, for which every bit pattern is valid.
            unsafe impl Plain for $record {}
        )*
    };
}

records! {
    /// Record of the kinds KERNEL and CONCURRENT_KERNEL. The record has the fields of `CUpti_ActivityKernel8` to `13`
    /// up to the graph id.
    struct Kernel {
        /// Kind of the record, which is KERNEL or CONCURRENT_KERNEL.
        pub kind: ActivityKind,
        _cache: [u8; 2],
        /// Number of registers per thread.
        pub registers_per_thread: u16,
        _partitioned_cache: [u32; 2],
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the kernel in nanoseconds; 0 if this time was not collected, or if the kernel was still running
        /// at a forced flush.
        pub end: u64,
        /// Time in nanoseconds at which the kernel and all its child kernels had ended.
        pub completed: u64,
        /// Index of the GPU on which the activity ran.
        pub device_id: u32,
        /// Id of the CUDA context in which the kernel ran.
        pub context_id: u32,
        /// Id of the stream on which the kernel ran.
        pub stream_id: u32,
        /// Number of blocks in the x, y and z dimensions.
        pub grid: [i32; 3],
        /// Number of threads per block in the x, y and z dimensions.
        pub block: [i32; 3],
        /// Size of the statically allocated shared memory, in bytes per block.
        pub static_shared_memory: i32,
        /// Size of the dynamic shared memory that the launch requested, in bytes per block.
        pub dynamic_shared_memory: i32,
        /// Size of the local memory, in bytes per thread.
        pub local_memory_per_thread: u32,
        _local_memory_total: u32,
        /// Correlation id of the API call that launched this kernel.
        pub correlation_id: u32,
        /// Id of the grid (one run of a kernel).
        pub grid_id: i64,
        /// Mangled name of the kernel. The records of several kernels may point to the same string. The string belongs
        /// to CUPTI, which keeps the string as long as CUPTI is loaded.
        pub name: *const c_char,
        _reserved: u64,
        /// Time in nanoseconds at which the kernel was queued; 0 if latency timestamps are off.
        pub queued: u64,
        /// Time in nanoseconds at which the kernel was submitted; 0 if latency timestamps are off.
        pub submitted: u64,
        /// Type of the launch: a regular launch, a cooperative launch, or a launch by code that runs on a GPU.
        pub launch_type: u8,
        _carveout: [u8; 7],
        /// Id of the graph node that was executed; 0 if the activity belongs to no graph launch.
        pub graph_node_id: u64,
        _shared_memory_limit: u32,
        /// Id of the executable graph to which the kernel belongs; 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind MEMCPY. The record has the fields of `CUpti_ActivityMemcpy5` to `7` up to the graph id.
    struct Memcpy {
        /// Kind of the record, which is MEMCPY.
        pub kind: ActivityKind,
        /// Direction of the copy.
        pub copy_kind: u8,
        /// Kind of memory from which the copy reads.
        pub src_kind: u8,
        /// Kind of memory to which the copy writes.
        pub dst_kind: u8,
        /// Flags of the copy. Bit 0 is set if the API call was asynchronous.
        pub flags: u8,
        /// Number of bytes that were copied.
        pub bytes: u64,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds.
        pub end: u64,
        /// Index of the GPU on which the activity ran.
        pub device_id: u32,
        /// Id of the CUDA context in which the copy ran.
        pub context_id: u32,
        /// Id of the stream on which the copy ran.
        pub stream_id: u32,
        /// Correlation id of the API call that requested the copy.
        pub correlation_id: u32,
        _runtime_correlation: u32,
        _pad: u32,
        _reserved: u64,
        /// Id of the graph node that was executed; 0 if the activity belongs to no graph launch.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the copy belongs; 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind MEMCPY2. The record has the fields of `CUpti_ActivityMemcpyPtoP4` up to the graph id.
    struct MemcpyPeer {
        /// Kind of the record, which is MEMCPY2.
        pub kind: ActivityKind,
        /// Direction of the copy.
        pub copy_kind: u8,
        /// Kind of memory from which the copy reads.
        pub src_kind: u8,
        /// Kind of memory to which the copy writes.
        pub dst_kind: u8,
        /// Flags of the copy. Bit 0 is set if the API call was asynchronous.
        pub flags: u8,
        /// Number of bytes that were copied.
        pub bytes: u64,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds.
        pub end: u64,
        /// Index of the GPU that executed the copy.
        pub device_id: u32,
        /// Id of the CUDA context in which the copy ran.
        pub context_id: u32,
        /// Id of the stream on which the copy ran.
        pub stream_id: u32,
        /// Index of the GPU from which the copy reads.
        pub src_device_id: u32,
        /// Id of the CUDA context on the GPU from which the copy reads.
        pub src_context_id: u32,
        /// Index of the GPU to which the copy writes.
        pub dst_device_id: u32,
        /// Id of the CUDA context on the GPU to which the copy writes.
        pub dst_context_id: u32,
        /// Correlation id of the API call that requested the copy.
        pub correlation_id: u32,
        _reserved: u64,
        /// Id of the graph node that was executed; 0 if the activity belongs to no graph launch.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the copy belongs; 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind MEMSET. The record has the fields of `CUpti_ActivityMemset4` and `5` up to the graph id.
    struct Memset {
        /// Kind of the record, which is MEMSET.
        pub kind: ActivityKind,
        /// Value with which the memory was filled.
        pub value: u32,
        /// Number of bytes that were filled.
        pub bytes: u64,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds.
        pub end: u64,
        /// Index of the GPU on which the activity ran.
        pub device_id: u32,
        /// Id of the CUDA context in which the fill ran.
        pub context_id: u32,
        /// Id of the stream on which the fill ran.
        pub stream_id: u32,
        /// Correlation id of the API call that requested the fill.
        pub correlation_id: u32,
        /// Flags of the fill. Bit 0 is set if the API call was asynchronous.
        pub flags: u16,
        /// Kind of memory that was filled.
        pub memory_kind: u16,
        _pad: u32,
        _reserved: u64,
        /// Id of the graph node that was executed; 0 if the activity belongs to no graph launch.
        pub graph_node_id: u64,
        /// Id of the executable graph to which the fill belongs; 0 if it belongs to no graph.
        pub graph_id: u32,
    }

    /// Record of the kind SYNCHRONIZATION. The record has the fields of `CUpti_ActivitySynchronization`.
    struct Synchronization {
        /// Kind of the record, which is SYNCHRONIZATION.
        pub kind: ActivityKind,
        /// Type of the wait. The type states whether the host or a stream waits, and whether it waits for a CUDA event,
        /// a stream or a CUDA context.
        pub sync_type: u32,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds.
        pub end: u64,
        /// Correlation id of the API call that waited.
        pub correlation_id: u32,
        /// Id of the CUDA context to which the wait belongs.
        pub context_id: u32,
        /// Id of the stream that takes part in the wait. If no stream takes part in the wait, all bits of the id are 1.
        pub stream_id: u32,
        /// Id of the CUDA event that takes part in the wait. If no CUDA event takes part in the wait, all bits of the
        /// id are 1.
        pub cuda_event_id: u32,
    }

    /// Record of the kind CUDA_EVENT. The record has the fields of `CUpti_ActivityCudaEvent`.
    struct CudaEvent {
        /// Kind of the record, which is CUDA_EVENT.
        pub kind: ActivityKind,
        /// Correlation id of the API call that has recorded the CUDA event.
        pub correlation_id: u32,
        /// Id of the CUDA context to which the CUDA event belongs.
        pub context_id: u32,
        /// Id of the stream on which the CUDA event was recorded.
        pub stream_id: u32,
        /// Id of the CUDA event.
        pub event_id: u32,
        _pad: u32,
    }

    /// Record of the kind UNIFIED_MEMORY_COUNTER. The record has the fields of `CUpti_ActivityUnifiedMemoryCounter2`
    /// and `3` up to the flags.
    struct UnifiedMemoryCounter {
        /// Kind of the record, which is UNIFIED_MEMORY_COUNTER.
        pub kind: ActivityKind,
        /// Kind of the unified-memory counter.
        pub counter_kind: UnifiedMemoryKind,
        /// Value of the counter, which is either a number of bytes or a number of page faults.
        pub value: u64,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds; 0 if the record describes an instant.
        pub end: u64,
        /// Address at which the memory begins.
        pub address: u64,
        /// Index of the GPU from which memory was transferred.
        pub src_id: u32,
        /// Index of the GPU to which memory was transferred.
        pub dst_id: u32,
        /// Id of the stream to which the record belongs.
        pub stream_id: u32,
        /// Id of the process to which the record belongs.
        pub process_id: u32,
        /// Cause of the transfer or page fault that was counted. The meaning of this value depends on the counter.
        pub flags: u32,
        _pad: u32,
    }

    /// Record of the kind GRAPH_TRACE. The record has the fields of `CUpti_ActivityGraphTrace`.
    struct GraphTrace {
        /// Kind of the record, which is GRAPH_TRACE.
        pub kind: ActivityKind,
        /// Correlation id of the API call that launched the graph.
        pub correlation_id: u32,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds.
        pub end: u64,
        /// Index of the GPU on which the graph began to run.
        pub device_id: u32,
        /// Id of the executable graph that was launched.
        pub graph_id: u32,
        /// Id of the CUDA context in which the graph ran.
        pub context_id: u32,
        /// Id of the stream on which the graph was launched.
        pub stream_id: u32,
        _reserved: u64,
    }

    /// Record of the kinds DRIVER, RUNTIME and INTERNAL_LAUNCH_API. The record has the fields of `CUpti_ActivityAPI`.
    struct ApiCall {
        /// Kind of the record, which is DRIVER, RUNTIME or INTERNAL_LAUNCH_API.
        pub kind: ActivityKind,
        /// Callback id of the API call.
        pub cbid: u32,
        /// Start time of the activity in nanoseconds.
        pub start: u64,
        /// End time of the activity in nanoseconds.
        pub end: u64,
        /// Id of the process that made the API call.
        pub process_id: u32,
        /// Id of the thread that made the API call. By default, the id is the low half of the thread's pthread handle.
        pub thread_id: u32,
        /// Correlation id of the API call.
        pub correlation_id: u32,
        /// Result of the API call.
        pub return_value: u32,
    }

    /// Record of the kind EXTERNAL_CORRELATION. The record has the fields of `CUpti_ActivityExternalCorrelation`.
    struct ExternalCorrelation {
        /// Kind of the record, which is EXTERNAL_CORRELATION.
        pub kind: ActivityKind,
        /// Kind of the external id, which identifies the tool that has pushed the external id.
        pub external_kind: u32,
        /// The external id that the tool has pushed.
        pub external_id: u64,
        /// Correlation id of an API call that was made between the push and the pop of the external id.
        pub correlation_id: u32,
        _reserved: u32,
    }
}

/// Offsets of fields that only some activity records have. [`Record::field`] reads a field at an offset.
pub mod offset {
    /// Offset of the hardware channel's id, which is a `u32`. The field after this field is the [`crate::ChannelType`]
    /// of the channel, which is also a `u32`.
    pub mod channel {
        /// Offset of the channel in a [`super::super::Kernel`].
        pub const KERNEL: usize = 168;
        /// Offset of the channel in a [`super::super::Memcpy`].
        pub const MEMCPY: usize = 76;
        /// Offset of the channel in a [`super::super::MemcpyPeer`].
        pub const MEMCPY_PEER: usize = 84;
        /// Offset of the channel in a [`super::super::Memset`].
        pub const MEMSET: usize = 76;
    }

    /// Offset of the id of the graph from which the executable graph was instantiated, a `u32` (13.4 and later). The
    /// offset of the source node's id, which is a `u64`, is 8 bytes higher.
    pub mod source_graph {
        /// Offset of the graph id in a [`super::super::Kernel`].
        pub const KERNEL: usize = 232;
        /// Offset of the graph id in a [`super::super::Memcpy`].
        pub const MEMCPY: usize = 96;
        /// Offset of the graph id in a [`super::super::Memset`].
        pub const MEMSET: usize = 88;
    }

    /// Offset, in a [`super::Kernel`], of the number of blocks per cluster in the x, y and z dimensions (three `u32`).
    pub const KERNEL_CLUSTER: usize = 176;
    /// Offset, in a [`super::Kernel`], of a `u8` flag that states whether code on a GPU launched the kernel (13.0 and
    /// later).
    pub const KERNEL_IS_DEVICE_LAUNCHED: usize = 208;
    /// Offset, in a [`super::Kernel`], of the priority of the launch, an `i32` (13.1 and later).
    pub const KERNEL_PRIORITY: usize = 216;
    /// Offset, in a [`super::Synchronization`], of the sync id of the `cudaEventRecord` call for which a stream waits.
    /// The sync id is a `u64` (12.8 and later). If the wait has no sync id, the value is 0xFFFF_FFFF.
    pub const SYNCHRONIZATION_SYNC_ID: usize = 40;
    /// Offset, in a [`super::Synchronization`], of the result of the API call, a `u32` (12.8 and later).
    pub const SYNCHRONIZATION_RESULT: usize = 48;
    /// Offset, in a [`super::CudaEvent`], of the sync id of a CUDA event that was recorded on a stream. The sync id is
    /// a `u64` (12.8 and later).
    pub const CUDA_EVENT_SYNC_ID: usize = 48;
    /// Offset, in a [`super::Memcpy`], of the number of copies in a batch, a `u64` (12.8 and later).
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

// None of our structs may be longer than the record of any CUPTI version. If a struct were longer than the record of
// some version, that record could not be read as this struct. In CUPTI 11.8, a kernel record has 200 bytes and a copy
// record has 88 bytes. All fields of our structs for kernels and copies fit into records of these sizes.
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
