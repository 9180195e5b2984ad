//! The CUPTI functions that we call, each in the version of the family that is in use. CUPTI has two families of
//! functions.
//!
//! The old family (v1) is for the single subscriber of a process. The calls of the new family (v2), which is complete
//! from 13.3 on, take the subscriber as an argument, so that several tools can record at once. A process must not mix
//! the two families. Only [`Family`] knows which family is in use.

use super::version::Version;
use cupti_sys::callback::SubscriberParams;
use cupti_sys::{
    ActivityAttribute, ActivityKind, BufferCompletedFn, BufferCompletedV2Fn, BufferRequestedFn,
    BufferRequestedV2Fn, CallbackFn, CallbackId, Domain, FlushFlag, Library, Status, Subscriber, TimestampFn,
    UnifiedMemoryConfig, UnifiedMemoryKind,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// A CUPTI library that has every function that we need and whose functions may be called.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    library: Library,
    family: Family,
}

/// The family of calls in use, chosen once, before the subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// v1: the process has one subscriber.
    Sole,
    /// v2: several clients may subscribe, and each has its own records.
    Shared,
}

/// The buffer functions, with the signatures that each family requires.
pub(super) struct BufferFunctions {
    pub(super) sole: (BufferRequestedFn, BufferCompletedFn),
    pub(super) shared: (BufferRequestedV2Fn, BufferCompletedV2Fn),
}

/// Functions that [`Family::Sole`] requires. (Attributes and the timestamp are optional.)
const REQUIRED: [&str; 10] = [
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

/// Functions that [`Family::Shared`] requires in addition. This family has no flush function of its own.
const REQUIRED_TO_SHARE: [&str; 5] = [
    "cuptiSubscribe_v2",
    "cuptiActivityRegisterCallbacks_v2",
    "cuptiActivityEnable_v2",
    "cuptiActivityGetNextRecord_v2",
    "cuptiActivityGetNumDroppedRecords_v2",
];

/// Calls `$library.$function`. If the library lacks the function, the result is `API_NOT_IMPLEMENTED`.
macro_rules! call {
    ($self:ident.$function:ident($($argument:expr),* $(,)?)) => {
        match $self.library.$function {
            // SAFETY: the caller of `Functions::new` guaranteed that the library is CUPTI and may be called, and the
            // arguments have the meaning that `cupti_sys::Library` documents for this function.
            Some(function) => unsafe { function($($argument),*) },
            None => Status::API_NOT_IMPLEMENTED,
        }
    };
}

impl Functions {
    /// Checks that the library has all required functions.
    ///
    /// Errors: the name of the first function that is missing.
    ///
    /// # Safety
    /// The functions belong to a CUPTI library, the driver is mapped ([`super::driver::Driver`]), and no subscription
    /// to this library has failed before, because after a failed subscription any call may crash.
    pub(super) unsafe fn new(library: Library) -> Result<Self, &'static str> {
        match library.symbols().find(|(symbol, found)| !found && REQUIRED.contains(symbol)) {
            Some((missing, _)) => Err(missing),
            None => Ok(Self { library, family: Family::Sole }),
        }
    }

    /// Switches to [`Family::Shared`] if the library has all functions of that family. Call before subscribing.
    pub(super) fn shared(self) -> Self {
        let needed = |(symbol, found): (&str, bool)| found || !REQUIRED_TO_SHARE.contains(&symbol);
        let family = if self.library.symbols().all(needed) { Family::Shared } else { Family::Sole };
        Self { family, ..self }
    }

    /// Whether each client has its own records.
    pub(super) fn shares(&self) -> bool {
        self.family == Family::Shared
    }

    pub(super) fn version(&self) -> Result<Version, Status> {
        let mut version = 0;
        done(call!(self.get_version(&raw mut version))).map(|()| Version(version))
    }

    /// Subscribes `callback`.
    ///
    /// # Safety
    /// `callback` may be called with `userdata` on any thread from now on, until the process ends.
    pub(super) unsafe fn subscribe(
        &self,
        callback: CallbackFn,
        userdata: *mut c_void,
    ) -> Result<Subscriber, Status> {
        let mut subscriber = Subscriber(ptr::null_mut());
        let subscribed = match self.family {
            Family::Sole => done(call!(self.subscribe(&raw mut subscriber, callback, userdata))),
            Family::Shared => {
                let mut about = SubscriberParams {
                    struct_size: size_of::<SubscriberParams>(),
                    subscriber_name: c"gpuflame".as_ptr(),
                    old_subscriber_name: ptr::null_mut(),
                    old_subscriber_size: 0,
                    allow_multiple_subscribers: 1,
                    padding: [0; 7],
                };
                done(call!(self.subscribe_v2(&raw mut subscriber, callback, userdata, &raw mut about)))
            }
        };
        if let Err(Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED | Status::NOT_COMPATIBLE) = subscribed {
            // CUPTI still works for the client that owns the subscription, and that client must not see our error.
            self.forget_error();
        }
        subscribed.map(|()| subscriber)
    }

    /// Clears CUPTI's last error of this thread. Otherwise another client might query the error and mistake it for an
    /// error of its own call.
    pub(super) fn forget_error(&self) {
        let _ = call!(self.get_last_error());
    }

    pub(super) fn unsubscribe(&self, subscriber: Subscriber) -> Result<(), Status> {
        done(call!(self.unsubscribe(subscriber)))
    }

    /// Returns the table of functions.
    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// Reads an attribute of one byte.
    pub(super) fn attribute(
        &self,
        subscriber: Subscriber,
        attribute: ActivityAttribute,
    ) -> Result<u8, Status> {
        let (mut value, mut size) = (0_u8, size_of::<u8>());
        let (at, size) = ((&raw mut value).cast(), &raw mut size);
        done(match self.family {
            Family::Sole => call!(self.activity_get_attribute(attribute, size, at)),
            Family::Shared => call!(self.activity_get_attribute_v2(subscriber, attribute, size, at)),
        })?;
        Ok(value)
    }

    /// Makes CUPTI use this clock for records.
    pub(super) fn register_clock(&self, clock: TimestampFn) -> Result<(), Status> {
        done(call!(self.register_timestamp_callback(clock)))
    }

    pub(super) fn set_attribute(
        &self,
        subscriber: Subscriber,
        attribute: ActivityAttribute,
        mut value: u8,
    ) -> Result<(), Status> {
        let mut size = size_of::<u8>();
        let (size, value) = (&raw mut size, (&raw mut value).cast());
        done(match self.family {
            Family::Sole => call!(self.activity_set_attribute(attribute, size, value)),
            Family::Shared => call!(self.activity_set_attribute_v2(subscriber, attribute, size, value)),
        })
    }

    /// Registers the buffer functions.
    ///
    /// # Safety
    /// The functions may be called on any thread from now on, until the process ends.
    pub(super) unsafe fn register_buffers(
        &self,
        subscriber: Subscriber,
        functions: &BufferFunctions,
    ) -> Result<(), Status> {
        let BufferFunctions { sole, shared } = functions;
        done(match self.family {
            Family::Sole => call!(self.activity_register_callbacks(sole.0, sole.1)),
            Family::Shared => call!(self.activity_register_callbacks_v2(subscriber, shared.0, shared.1)),
        })
    }

    pub(super) fn enable_kind(&self, subscriber: Subscriber, kind: ActivityKind) -> Result<(), Status> {
        done(match self.family {
            Family::Sole => call!(self.activity_enable(kind)),
            Family::Shared => call!(self.activity_enable_v2(subscriber, kind, ptr::null_mut())),
        })
    }

    pub(super) fn disable_kind(&self, subscriber: Subscriber, kind: ActivityKind) -> Result<(), Status> {
        done(match self.family {
            Family::Sole => call!(self.activity_disable(kind)),
            Family::Shared => call!(self.activity_disable_v2(subscriber, kind, ptr::null_mut())),
        })
    }

    /// Sets whether CUPTI records queries of unfinished events and streams as waits.
    pub(super) fn record_unfinished_queries(&self, on: bool) -> Result<(), Status> {
        done(match self.family {
            Family::Sole => call!(self.activity_enable_all_sync_records(u8::from(on))),
            Family::Shared => Status::API_NOT_IMPLEMENTED,
        })
    }

    /// Configures the counters of unified memory: all transfers, and page faults.
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
        done(match self.family {
            Family::Sole => {
                call!(self.activity_configure_unified_memory_counter(counters.as_mut_ptr(), many))
            }
            Family::Shared => Status::API_NOT_IMPLEMENTED,
        })
    }

    pub(super) fn enable_callback(
        &self,
        subscriber: Subscriber,
        domain: Domain,
        id: CallbackId,
        on: bool,
    ) -> Result<(), Status> {
        done(call!(self.enable_callback(u32::from(on), subscriber, domain, id)))
    }

    /// Returns the name of an API call; `None` if the library has no such call.
    pub(super) fn callback_name(&self, domain: Domain, id: CallbackId) -> Option<&'static str> {
        let mut name: *const c_char = ptr::null();
        done(call!(self.get_callback_name(domain, id, &raw mut name))).ok()?;
        if name.is_null() {
            return None;
        }
        // SAFETY: CUPTI returns a C string from its own constant table, and CUPTI is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }

    /// Steps from the record at `record` (null for the first step) to the next record of a buffer.
    ///
    /// # Safety
    /// `valid` bytes at `buffer` were filled by this library, and `record` is null or points to one of its records.
    pub(super) unsafe fn next_record(
        &self,
        subscriber: Subscriber,
        buffer: *mut u8,
        valid: usize,
        record: &mut *mut u8,
    ) -> Status {
        match self.family {
            Family::Sole => call!(self.activity_get_next_record(buffer, valid, record)),
            // Without a subscriber, the buffers of the former subscriber can no longer be read.
            Family::Shared if subscriber.0.is_null() => Status::DISABLED,
            Family::Shared => call!(self.activity_get_next_record_v2(subscriber, buffer, valid, record)),
        }
    }

    pub(super) fn flush(&self, flag: FlushFlag) -> Result<(), Status> {
        done(call!(self.activity_flush_all(flag)))
    }

    /// Returns the number of records dropped since the last query, in all contexts.
    pub(super) fn dropped(&self, subscriber: Subscriber) -> Result<u64, Status> {
        let (mut dropped, all) = (0, ptr::null_mut());
        let count = &raw mut dropped;
        done(match self.family {
            Family::Sole => call!(self.activity_get_num_dropped_records(all, 0, count)),
            Family::Shared if subscriber.0.is_null() => Status::DISABLED,
            Family::Shared => call!(self.activity_get_num_dropped_records_v2(subscriber, all, 0, count)),
        })?;
        Ok(dropped as u64)
    }

    /// Returns a graph's id, as used in records.
    pub(super) fn graph_id(&self, graph: *mut c_void) -> Option<u32> {
        let mut id = 0;
        done(call!(self.get_graph_id(graph, &raw mut id))).ok().map(|()| id)
    }

    /// Returns a graph node's id, as used in records.
    pub(super) fn graph_node_id(&self, node: *mut c_void) -> Option<u64> {
        let mut id = 0;
        done(call!(self.get_graph_node_id(node, &raw mut id))).ok().map(|()| id)
    }

    pub(super) fn timestamp(&self, subscriber: Subscriber) -> Result<u64, Status> {
        let mut now = 0;
        done(match self.family {
            Family::Sole => call!(self.get_timestamp(&raw mut now)),
            Family::Shared if subscriber.0.is_null() => Status::DISABLED,
            Family::Shared => call!(self.get_timestamp_v2(subscriber, &raw mut now)),
        })?;
        Ok(now)
    }
}

fn done(status: Status) -> Result<(), Status> {
    if status.is_success() { Ok(()) } else { Err(status) }
}
