//! Defines the numbers in CUPTI's interface: results, domains, callback ids, activity kinds and attributes.
//!
//! Each set of numbers is a newtype of `u32`. If a newer CUPTI returns a number that these bindings do not define, the
//! number is still a valid value of the newtype. If a Rust enum were used instead of the newtype, a number that the
//! enum does not define would cause undefined behaviour.

use std::ffi::c_void;
use std::fmt;

/// Result of a CUPTI function (`CUptiResult`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        impl Status {
            $(#[doc = $doc] pub const $name: Self = Self($number);)*

            /// Returns the name of the status, without the prefix `CUPTI_` or `CUPTI_ERROR_`. Returns `None` if these
            /// bindings do not define a name for the status.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, "It worked.";
    INVALID_PARAMETER = 1, "An argument is wrong; also the end of a walk over callback names.";
    INVALID_DEVICE = 2, "No such device.";
    INVALID_CONTEXT = 3, "No such context.";
    INVALID_OPERATION = 7, "Not allowed in the present state.";
    OUT_OF_MEMORY = 8, "No memory.";
    HARDWARE = 9, "The hardware failed.";
    PARAMETER_SIZE_NOT_SUFFICIENT = 10, "The given size is too small.";
    API_NOT_IMPLEMENTED = 11, "This library does not implement the call.";
    MAX_LIMIT_REACHED = 12, "The end of a walk over records.";
    NOT_READY = 13, "Not ready yet.";
    NOT_COMPATIBLE = 14, "Excluded by something else in use, such as the other family of activity calls.";
    NOT_INITIALIZED = 15, "CUPTI could not start: no device, or a driver that does not fit (up to 12.9).";
    QUEUE_EMPTY = 18, "Nothing was pushed.";
    INVALID_STREAM = 20, "No such stream.";
    INVALID_KIND = 21, "This library does not know, or no longer collects, that kind of record.";
    DISABLED = 23, "Switched off by the driver or another tool.";
    INVALID_MODULE = 24, "No such module.";
    HARDWARE_BUSY = 26, "Another tool holds the hardware.";
    NOT_SUPPORTED = 27, "Not supported on this system or device.";
    UM_PROFILING_NOT_SUPPORTED = 28, "Unified memory is not counted on this system.";
    UM_PROFILING_NOT_SUPPORTED_ON_DEVICE = 29, "Unified memory is not counted on this device.";
    UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES = 30, "Nor with several devices that cannot reach one another.";
    UM_PROFILING_NOT_SUPPORTED_WITH_MPS = 31, "Nor with the multi-process service.";
    VIRTUALIZED_DEVICE_NOT_SUPPORTED = 33, "Not supported on this virtual GPU.";
    CUDA_COMPILER_NOT_COMPATIBLE = 34, "The program was compiled for another CUDA.";
    INSUFFICIENT_PRIVILEGES = 35, "The user may not do that.";
    LEGACY_PROFILER_NOT_SUPPORTED = 38, "The old profiling interface is not supported on this device.";
    MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39, "Another tool in this process is the one subscriber.";
    VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40, "The virtual GPU's owner does not allow it.";
    CONFIDENTIAL_COMPUTING_NOT_SUPPORTED = 41, "Not supported in confidential computing.";
    CMP_DEVICE_NOT_SUPPORTED = 42, "Not supported on mining processors.";
    MIG_DEVICE_NOT_SUPPORTED = 43, "Not supported on MIG instances.";
    SLI_DEVICE_NOT_SUPPORTED = 44, "Not supported on SLI devices.";
    WSL_DEVICE_NOT_SUPPORTED = 45, "Not supported under WSL.";
    UNKNOWN = 999, "Anything else; from 13.0 on also what NOT_INITIALIZED was before.";
}

impl Status {
    /// Whether the CUPTI call succeeded.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "error {}", self.0),
        }
    }
}

/// Group to which a callback belongs (`CUpti_CallbackDomain`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Domain(pub u32);

impl Domain {
    /// Callbacks about calls to the driver API (`cu…`).
    pub const DRIVER_API: Self = Self(1);
    /// Callbacks about calls to the runtime API (`cuda…`).
    pub const RUNTIME_API: Self = Self(2);
    /// Callbacks about the creation or destruction of CUDA contexts, streams, modules and graphs.
    pub const RESOURCE: Self = Self(3);
    /// Callbacks about finished waits for streams and CUDA contexts.
    pub const SYNCHRONIZE: Self = Self(4);
    /// Callbacks about NVTX calls.
    pub const NVTX: Self = Self(5);
    /// Callbacks about errors and warnings of CUPTI itself (12.2 and later).
    pub const STATE: Self = Self(6);
}

/// Id of a callback within its [`Domain`] (`CUpti_CallbackId`). To find the id of an API call by its name, pass one id
/// after another to `cuptiGetCallbackName`. The ids in the domains RESOURCE and STATE are listed below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CallbackId(pub u32);

impl CallbackId {
    /// Resource: a CUDA context was created.
    pub const CONTEXT_CREATED: Self = Self(1);
    /// Resource: a CUDA context is about to be destroyed.
    pub const CONTEXT_DESTROY_STARTING: Self = Self(2);
    /// Resource: a stream was created.
    pub const STREAM_CREATED: Self = Self(3);
    /// Resource: a stream is about to be destroyed.
    pub const STREAM_DESTROY_STARTING: Self = Self(4);
    /// Resource: a call to `cuInit` has finished.
    pub const CU_INIT_FINISHED: Self = Self(5);
    /// Resource: a cubin was loaded.
    pub const MODULE_LOADED: Self = Self(6);
    /// Resource: a cubin is about to be unloaded.
    pub const MODULE_UNLOAD_STARTING: Self = Self(7);
    /// Resource: a graph was created.
    pub const GRAPH_CREATED: Self = Self(9);
    /// Resource: a graph is about to be destroyed.
    pub const GRAPH_DESTROY_STARTING: Self = Self(10);
    /// Resource: a graph was copied.
    pub const GRAPH_CLONED: Self = Self(11);
    /// Resource: a graph node was created. (Stream capture also creates nodes.)
    pub const GRAPH_NODE_CREATED: Self = Self(13);
    /// Resource: a graph node is about to be destroyed.
    pub const GRAPH_NODE_DESTROY_STARTING: Self = Self(14);
    /// Resource: a dependency between two graph nodes was created.
    pub const GRAPH_DEPENDENCY_CREATED: Self = Self(15);
    /// Resource: a graph was instantiated.
    pub const GRAPH_EXEC_CREATED: Self = Self(18);
    /// Resource: an executable graph is about to be destroyed.
    pub const GRAPH_EXEC_DESTROY_STARTING: Self = Self(19);
    /// Resource: a graph node was copied, for example by instantiation.
    pub const GRAPH_NODE_CLONED: Self = Self(20);
    /// State: CUPTI has encountered a fatal error, and has already shut itself down.
    pub const FATAL_ERROR: Self = Self(1);
    /// State: the library CUPTI has encountered an error.
    pub const ERROR: Self = Self(2);
    /// State: the library CUPTI reports a warning.
    pub const WARNING: Self = Self(3);
}

/// States whether a callback is made at the entry or at the exit of an API call (`CUpti_ApiCallbackSite`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Site(pub u32);

impl Site {
    /// This callback is made before the API call.
    pub const ENTER: Self = Self(0);
    /// This callback is made after the API call.
    pub const EXIT: Self = Self(1);
}

/// Kind of an activity record (`CUpti_ActivityKind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ActivityKind(pub u32);

impl ActivityKind {
    /// Copies of memory, except copies from one device to another.
    pub const MEMCPY: Self = Self(1);
    /// Fills of memory.
    pub const MEMSET: Self = Self(2);
    /// Kernels, which run one at a time. While this kind is enabled, CUPTI does not let kernels run concurrently.
    pub const KERNEL: Self = Self(3);
    /// Calls to the driver API.
    pub const DRIVER: Self = Self(4);
    /// Calls to the runtime API.
    pub const RUNTIME: Self = Self(5);
    /// Properties of the devices.
    pub const DEVICE: Self = Self(8);
    /// Properties of the CUDA contexts.
    pub const CONTEXT: Self = Self(9);
    /// Kernels. While this kind is enabled, kernels can still run concurrently.
    pub const CONCURRENT_KERNEL: Self = Self(10);
    /// Overhead: time that CUPTI and the driver need for their own work.
    pub const OVERHEAD: Self = Self(17);
    /// Copies from one device to another.
    pub const MEMCPY2: Self = Self(22);
    /// Transfers and page faults of unified memory, which the GPU and the host share.
    pub const UNIFIED_MEMORY_COUNTER: Self = Self(25);
    /// CUDA events.
    pub const CUDA_EVENT: Self = Self(36);
    /// Properties of the CUDA streams.
    pub const STREAM: Self = Self(37);
    /// API calls that wait for GPU work.
    pub const SYNCHRONIZATION: Self = Self(38);
    /// External correlation ids. A tool pushes such an id before API calls, and each record of this kind assigns one
    /// external id to one API call.
    pub const EXTERNAL_CORRELATION: Self = Self(39);
    /// Launches that the driver makes internally, without a call to a public API.
    pub const INTERNAL_LAUNCH_API: Self = Self(48);
    /// Graph launches. While this kind is enabled, CUPTI delivers one record per graph launch, and no records for the
    /// graph's nodes.
    pub const GRAPH_TRACE: Self = Self(51);
}

/// A setting of CUPTI's activity interface (`CUpti_ActivityAttribute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ActivityAttribute(pub u32);

impl ActivityAttribute {
    /// `usize`: size of one device buffer in bytes.
    pub const DEVICE_BUFFER_SIZE: Self = Self(0);
    /// `usize`: maximum number of device buffers.
    pub const DEVICE_BUFFER_POOL_LIMIT: Self = Self(2);
    /// `u8`: whether the client provides buffers that are already zeroed.
    pub const ZEROED_OUT_ACTIVITY_BUFFER: Self = Self(5);
    /// `usize`: number of device buffers that are created together with a CUDA context.
    pub const DEVICE_BUFFER_PRE_ALLOCATE_VALUE: Self = Self(6);
    /// `u8`: whether device buffers are in pinned host memory.
    pub const MEM_ALLOCATION_TYPE_HOST_PINNED: Self = Self(8);
    /// `u8`: whether each thread fills its own buffer (12.3 and later).
    pub const PER_THREAD_ACTIVITY_BUFFER: Self = Self(9);
}

/// States how `cuptiActivityFlushAll` treats records that are not complete (`CUpti_ActivityFlag`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlushFlag(pub u32);

impl FlushFlag {
    /// CUPTI keeps the buffers that contain an incomplete record, and delivers all other buffers.
    pub const NONE: Self = Self(0);
    /// CUPTI delivers all buffers. If GPU work is still running, CUPTI delivers its records without an end time, and
    /// does not deliver these records again.
    pub const FORCED: Self = Self(1);
}

/// Type of a hardware channel, on which the GPU runs work (`CUpti_ChannelType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ChannelType(pub u32);

impl ChannelType {
    /// Invalid type, which means that the channel id in the same record has no meaning.
    pub const INVALID: Self = Self(0);
    /// Channel for kernels.
    pub const COMPUTE: Self = Self(1);
    /// Channel for asynchronous copies.
    pub const ASYNC_MEMCPY: Self = Self(2);
}

/// Kind of a unified-memory counter (`CUpti_ActivityUnifiedMemoryCounterKind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct UnifiedMemoryKind(pub u32);

impl UnifiedMemoryKind {
    /// Number of bytes transferred to a GPU.
    pub const BYTES_HTOD: Self = Self(1);
    /// Number of bytes transferred to the host.
    pub const BYTES_DTOH: Self = Self(2);
    /// Number of page faults on the host.
    pub const CPU_PAGE_FAULTS: Self = Self(3);
    /// Number of page faults on a GPU.
    pub const GPU_PAGE_FAULTS: Self = Self(4);
    /// Number of bytes transferred between GPUs.
    pub const BYTES_DTOD: Self = Self(8);
}

/// Configuration of one unified-memory counter (`CUpti_ActivityUnifiedMemoryCounterConfig`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UnifiedMemoryConfig {
    /// Scope of the counter (2 = all devices). This field has no effect since CUDA 7.
    pub scope: u32,
    /// Kind of the counter to configure.
    pub kind: UnifiedMemoryKind,
    /// Id of the device to which the counter applies. This field has no effect since CUDA 7.
    pub device_id: u32,
    /// Whether to collect the counter: 0 means no, and any other value means yes.
    pub enable: u32,
}

const _: () = assert!(size_of::<UnifiedMemoryConfig>() == 16);

/// Handle of a CUPTI subscription (`CUpti_SubscriberHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Subscriber(pub *mut c_void);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_a_name_still_shows_its_number() {
        assert_eq!(Status::NOT_INITIALIZED.to_string(), "NOT_INITIALIZED (15)");
        assert_eq!(Status(4711).to_string(), "error 4711");
    }
}
