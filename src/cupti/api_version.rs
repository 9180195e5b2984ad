//! Calls the functions of CUPTI. Many functions of CUPTI exist in two API versions, and this module calls the function
//! of the API version that is in use.
//!
//! The old API version (v1) allows only one subscriber per process. In the new API version (v2), functions take the
//! subscriber as an argument, so several tools can subscribe and record at the same time. The new API version is
//! complete in CUPTI 13.3 and later. A process must not mix the two API versions. Only [`ApiVersion`] knows which API
//! version is in use.

use super::version::Version;
use cupti_sys::callback::SubscriberParams;
use cupti_sys::{
    ActivityAttribute, ActivityKind, BufferCompletedFn, BufferCompletedV2Fn, BufferRequestedFn,
    BufferRequestedV2Fn, CallbackFn, CallbackId, Domain, FlushFlag, Library, Status, Subscriber, TimestampFn,
    UnifiedMemoryConfig, UnifiedMemoryKind,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// Function table of a CUPTI library that has all functions that we need, and that may be called.
#[derive(Clone, Copy)]
pub(super) struct CuptiFunctions {
    library: Library,
    api_version: ApiVersion,
}

/// The API version that is in use, which is chosen once, before the subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApiVersion {
    /// API version v1, in which the process has one subscriber.
    V1,
    /// API version v2, in which several clients may subscribe and each client has activity records of its own.
    V2,
}

/// Our buffer functions, with the signatures of both API versions.
pub(super) struct BufferFunctions {
    pub(super) v1: (BufferRequestedFn, BufferCompletedFn),
    pub(super) v2: (BufferRequestedV2Fn, BufferCompletedV2Fn),
}

/// Functions that [`ApiVersion::V1`] requires. (The functions for attributes and the timestamp are optional.)
const REQUIRED_V1: [&str; 10] = [
    "cuptiGetVersion",
    "cuptiGetCallbackName",
    "cuptiSubscribe",
    "cuptiUnsubscribe",
    "cuptiEnableCallback",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable",
    "cuptiActivityGetNextRecord",
    "cuptiActivityGetNumDroppedRecords",
    "cuptiActivityFlushAll",
];

/// Functions that [`ApiVersion::V2`] requires in addition to the functions of v1. For a flush, v2 has no function of
/// its own and uses the function of v1.
const REQUIRED_V2: [&str; 5] = [
    "cuptiSubscribe_v2",
    "cuptiActivityRegisterCallbacks_v2",
    "cuptiActivityEnable_v2",
    "cuptiActivityGetNextRecord_v2",
    "cuptiActivityGetNumDroppedRecords_v2",
];

/// Calls `$library.$function`. If the library does not have the function, the result is `API_NOT_IMPLEMENTED`.
macro_rules! call {
    ($self:ident.$function:ident($($argument:expr),* $(,)?)) => {
        match $self.library.$function {
            // SAFETY: the caller of `CuptiFunctions::new` has guaranteed that the library is CUPTI and may be called.
            // The arguments have the meaning that `cupti_sys::Library` documents for this function.
            Some(function) => unsafe { function($($argument),*) },
            None => Status::API_NOT_IMPLEMENTED,
        }
    };
}

impl CuptiFunctions {
    /// Checks that the library has all required functions.
    ///
    /// Errors: the name of the first required function that the library does not have.
    ///
    /// # Safety
    /// The functions must belong to a CUPTI library, and the driver must be mapped ([`super::driver::Driver`]). No
    /// earlier subscription to this library may have failed, because after a failed subscription any call to the
    /// library may crash.
    pub(super) unsafe fn new(library: Library) -> Result<Self, &'static str> {
        match library.symbols().find(|(symbol, found)| !found && REQUIRED_V1.contains(symbol)) {
            Some((missing, _)) => Err(missing),
            None => Ok(Self { library, api_version: ApiVersion::V1 }),
        }
    }

    /// Switches to [`ApiVersion::V2`] if the library has all functions that this API version requires. Call this
    /// function before the subscription.
    pub(super) fn shared(self) -> Self {
        let needed = |(symbol, found): (&str, bool)| found || !REQUIRED_V2.contains(&symbol);
        let api_version = if self.library.symbols().all(needed) { ApiVersion::V2 } else { ApiVersion::V1 };
        Self { api_version, ..self }
    }

    /// Whether each client has activity records of its own.
    pub(super) fn shares(&self) -> bool {
        self.api_version == ApiVersion::V2
    }

    pub(super) fn version(&self) -> Result<Version, Status> {
        let mut version = 0;
        to_result(call!(self.get_version(&raw mut version))).map(|()| Version(version))
    }

    /// Subscribes to CUPTI, with `callback` as the function that CUPTI calls.
    ///
    /// # Safety
    /// From this call until the process ends, CUPTI may call `callback` with `userdata` on any thread.
    pub(super) unsafe fn subscribe(
        &self,
        callback: CallbackFn,
        userdata: *mut c_void,
    ) -> Result<Subscriber, Status> {
        let mut subscriber = Subscriber(ptr::null_mut());
        let subscribed = match self.api_version {
            ApiVersion::V1 => to_result(call!(self.subscribe(&raw mut subscriber, callback, userdata))),
            ApiVersion::V2 => {
                let mut about = SubscriberParams {
                    struct_size: size_of::<SubscriberParams>(),
                    subscriber_name: c"gpuflame".as_ptr(),
                    old_subscriber_name: ptr::null_mut(),
                    old_subscriber_size: 0,
                    allow_multiple_subscribers: 1,
                    padding: [0; 7],
                };
                to_result(call!(self.subscribe_v2(&raw mut subscriber, callback, userdata, &raw mut about)))
            }
        };
        if let Err(Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED | Status::NOT_COMPATIBLE) = subscribed {
            // The client that owns the subscription continues to use CUPTI, and must not see the error of our refused
            // request.
            self.forget_error();
        }
        subscribed.map(|()| subscriber)
    }

    /// Clears CUPTI's last error on this thread. If this error were not cleared, another client might query the error
    /// and mistake it for an error of its own call.
    pub(super) fn forget_error(&self) {
        let _ = call!(self.get_last_error());
    }

    pub(super) fn unsubscribe(&self, subscriber: Subscriber) -> Result<(), Status> {
        to_result(call!(self.unsubscribe(subscriber)))
    }

    /// Returns the function table of the library.
    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// Reads an activity attribute of one byte.
    pub(super) fn attribute(
        &self,
        subscriber: Subscriber,
        attribute: ActivityAttribute,
    ) -> Result<u8, Status> {
        let (mut value, mut size) = (0_u8, size_of::<u8>());
        let (at, size) = ((&raw mut value).cast(), &raw mut size);
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_get_attribute(attribute, size, at)),
            ApiVersion::V2 => call!(self.activity_get_attribute_v2(subscriber, attribute, size, at)),
        })?;
        Ok(value)
    }

    /// Makes CUPTI use `clock` for the timestamps in activity records.
    pub(super) fn register_clock(&self, clock: TimestampFn) -> Result<(), Status> {
        to_result(call!(self.register_timestamp_callback(clock)))
    }

    pub(super) fn set_attribute(
        &self,
        subscriber: Subscriber,
        attribute: ActivityAttribute,
        mut value: u8,
    ) -> Result<(), Status> {
        let mut size = size_of::<u8>();
        let (size, value) = (&raw mut size, (&raw mut value).cast());
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_set_attribute(attribute, size, value)),
            ApiVersion::V2 => call!(self.activity_set_attribute_v2(subscriber, attribute, size, value)),
        })
    }

    /// Registers the functions by which CUPTI requests and returns buffers.
    ///
    /// # Safety
    /// From this call until the process ends, CUPTI may call these functions on any thread.
    pub(super) unsafe fn register_buffers(
        &self,
        subscriber: Subscriber,
        functions: &BufferFunctions,
    ) -> Result<(), Status> {
        let BufferFunctions { v1, v2 } = functions;
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_register_callbacks(v1.0, v1.1)),
            ApiVersion::V2 => call!(self.activity_register_callbacks_v2(subscriber, v2.0, v2.1)),
        })
    }

    pub(super) fn enable_kind(&self, subscriber: Subscriber, kind: ActivityKind) -> Result<(), Status> {
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_enable(kind)),
            ApiVersion::V2 => call!(self.activity_enable_v2(subscriber, kind, ptr::null_mut())),
        })
    }

    pub(super) fn disable_kind(&self, subscriber: Subscriber, kind: ActivityKind) -> Result<(), Status> {
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_disable(kind)),
            ApiVersion::V2 => call!(self.activity_disable_v2(subscriber, kind, ptr::null_mut())),
        })
    }

    /// Sets whether CUPTI also records queries about CUDA events and streams that are unfinished. CUPTI records such
    /// queries as waits.
    pub(super) fn record_unfinished_queries(&self, on: bool) -> Result<(), Status> {
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_enable_all_sync_records(u8::from(on))),
            ApiVersion::V2 => Status::API_NOT_IMPLEMENTED,
        })
    }

    /// Configures the unified-memory counters that we record, which count transfers and page faults.
    pub(super) fn count_unified_memory(&self) -> Result<(), Status> {
        const ALL_DEVICES: u32 = 2;
        let kinds = [
            UnifiedMemoryKind::BYTES_HTOD,
            UnifiedMemoryKind::BYTES_DTOH,
            UnifiedMemoryKind::BYTES_DTOD,
            UnifiedMemoryKind::CPU_PAGE_FAULTS,
            UnifiedMemoryKind::GPU_PAGE_FAULTS,
        ];
        let count = |kind| UnifiedMemoryConfig { scope: ALL_DEVICES, kind, device_id: 0, enable: 1 };
        let mut counters = kinds.map(count);
        let many = counters.len() as u32;
        to_result(match self.api_version {
            ApiVersion::V1 => {
                call!(self.activity_configure_unified_memory_counter(counters.as_mut_ptr(), many))
            }
            ApiVersion::V2 => Status::API_NOT_IMPLEMENTED,
        })
    }

    pub(super) fn enable_callback(
        &self,
        subscriber: Subscriber,
        domain: Domain,
        id: CallbackId,
        on: bool,
    ) -> Result<(), Status> {
        to_result(call!(self.enable_callback(u32::from(on), subscriber, domain, id)))
    }

    /// Returns the name of an API call, in the form in which CUPTI returns it. Returns `None` if the library has no
    /// such call.
    pub(super) fn callback_name(&self, domain: Domain, id: CallbackId) -> Option<&'static str> {
        let mut name: *const c_char = ptr::null();
        to_result(call!(self.get_callback_name(domain, id, &raw mut name))).ok()?;
        if name.is_null() {
            return None;
        }
        // SAFETY: CUPTI returns a C string from its own constant table, and CUPTI is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }

    /// Steps from the activity record at `record` (null for the first step) to the next record of a buffer.
    ///
    /// # Safety
    /// This library must have filled the `valid` bytes at `buffer`, and `record` must be null or point to one of the
    /// records there.
    pub(super) unsafe fn next_record(
        &self,
        subscriber: Subscriber,
        buffer: *mut u8,
        valid: usize,
        record: &mut *mut u8,
    ) -> Status {
        match self.api_version {
            ApiVersion::V1 => call!(self.activity_get_next_record(buffer, valid, record)),
            // After the subscriber has unsubscribed, the buffers that were filled for it can no longer be read.
            ApiVersion::V2 if subscriber.0.is_null() => Status::DISABLED,
            ApiVersion::V2 => call!(self.activity_get_next_record_v2(subscriber, buffer, valid, record)),
        }
    }

    pub(super) fn flush(&self, flag: FlushFlag) -> Result<(), Status> {
        to_result(call!(self.activity_flush_all(flag)))
    }

    /// Returns the number of activity records in all CUDA contexts that were dropped since the last query.
    pub(super) fn dropped(&self, subscriber: Subscriber) -> Result<u64, Status> {
        let (mut dropped, all) = (0, ptr::null_mut());
        let count = &raw mut dropped;
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.activity_get_num_dropped_records(all, 0, count)),
            ApiVersion::V2 if subscriber.0.is_null() => Status::DISABLED,
            ApiVersion::V2 => call!(self.activity_get_num_dropped_records_v2(subscriber, all, 0, count)),
        })?;
        Ok(dropped as u64)
    }

    /// Returns the id that stands for a CUDA graph in activity records.
    pub(super) fn graph_id(&self, graph: *mut c_void) -> Option<u32> {
        let mut id = 0;
        to_result(call!(self.get_graph_id(graph, &raw mut id))).ok().map(|()| id)
    }

    /// Returns the id that stands for a node of a CUDA graph in activity records.
    pub(super) fn graph_node_id(&self, node: *mut c_void) -> Option<u64> {
        let mut id = 0;
        to_result(call!(self.get_graph_node_id(node, &raw mut id))).ok().map(|()| id)
    }

    pub(super) fn timestamp(&self, subscriber: Subscriber) -> Result<u64, Status> {
        let mut now = 0;
        to_result(match self.api_version {
            ApiVersion::V1 => call!(self.get_timestamp(&raw mut now)),
            ApiVersion::V2 if subscriber.0.is_null() => Status::DISABLED,
            ApiVersion::V2 => call!(self.get_timestamp_v2(subscriber, &raw mut now)),
        })?;
        Ok(now)
    }
}

fn to_result(status: Status) -> Result<(), Status> {
    if status.is_success() { Ok(()) } else { Err(status) }
}
