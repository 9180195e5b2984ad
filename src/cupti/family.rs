//! The calls we make, and which of CUPTI's two families of them.
//!
//! There is an old family (v1) for the one subscriber of a process, and one (v2), complete from 13.3 on, whose
//! calls take the subscriber as an argument, so that several tools can record at once. The two must not
//! be mixed in a process. [`Family`] is the only thing that knows which is in use.

use super::version::Version;
use cupti_sys::callback::SubscriberParams;
use cupti_sys::{
    ActivityAttribute, ActivityKind, BufferCompletedFn, BufferCompletedV2Fn, BufferRequestedFn,
    BufferRequestedV2Fn, CallbackFn, CallbackId, Domain, FlushFlag, Library, Status, Subscriber, TimestampFn,
    UnifiedMemoryConfig, UnifiedMemoryKind,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// A library that has every function we need, and may be called.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    library: Library,
    family: Family,
}

/// Which family of calls is in use, chosen once, before the subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// v1: the process has one subscriber.
    Sole,
    /// v2: others may subscribe too, and each has its own records.
    Shared,
}

/// The functions that lend buffers and take them back, as each family calls them.
pub(super) struct BufferFunctions {
    pub(super) sole: (BufferRequestedFn, BufferCompletedFn),
    pub(super) shared: (BufferRequestedV2Fn, BufferCompletedV2Fn),
}

/// What [`Family::Sole`] cannot do without. (Attributes and the timestamp it can.)
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

/// What [`Family::Shared`] needs besides. There is no flush of its own.
const REQUIRED_TO_SHARE: [&str; 5] = [
    "cuptiSubscribe_v2",
    "cuptiActivityRegisterCallbacks_v2",
    "cuptiActivityEnable_v2",
    "cuptiActivityGetNextRecord_v2",
    "cuptiActivityGetNumDroppedRecords_v2",
];

/// Calls `$library.$function`; a function that the library lacks answers as one that is not implemented.
macro_rules! call {
    ($self:ident.$function:ident($($argument:expr),* $(,)?)) => {
        match $self.library.$function {
            // SAFETY: `Functions::new`'s caller vouched that the library is CUPTI and may be called, and
            // the arguments have the meaning that `cupti_sys::Library` states for this function.
            Some(function) => unsafe { function($($argument),*) },
            None => Status::API_NOT_IMPLEMENTED,
        }
    };
}

impl Functions {
    /// Errors: the first symbol that is missing.
    ///
    /// # Safety
    /// The functions are a CUPTI's, the driver is mapped ([`super::driver::Driver`]), and no
    /// subscription to this library has failed before: after that, any call may crash.
    pub(super) unsafe fn new(library: Library) -> Result<Self, &'static str> {
        match library.symbols().find(|(symbol, found)| !found && REQUIRED.contains(symbol)) {
            Some((missing, _)) => Err(missing),
            None => Ok(Self { library, family: Family::Sole }),
        }
    }

    /// The same, of the family that shares, where the library has all of it. To be asked before the subscription.
    pub(super) fn shared(self) -> Self {
        let needed = |(symbol, found): (&str, bool)| found || !REQUIRED_TO_SHARE.contains(&symbol);
        let family = if self.library.symbols().all(needed) { Family::Shared } else { Family::Sole };
        Self { family, ..self }
    }

    /// Whether each client has records of its own.
    pub(super) fn shares(&self) -> bool {
        self.family == Family::Shared
    }

    pub(super) fn version(&self) -> Result<Version, Status> {
        let mut version = 0;
        done(call!(self.get_version(&raw mut version))).map(|()| Version(version))
    }

    /// # Safety
    /// `callback` may be called with `userdata` on any thread from now on, for ever.
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
            // It runs, for another client.
            self.forget_error();
        }
        subscribed.map(|()| subscriber)
    }

    /// Takes what went wrong last on this thread, which another client may ask for next, and think it its own.
    pub(super) fn forget_error(&self) {
        let _ = call!(self.get_last_error());
    }

    pub(super) fn unsubscribe(&self, subscriber: Subscriber) -> Result<(), Status> {
        done(call!(self.unsubscribe(subscriber)))
    }

    /// The functions themselves.
    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// What an attribute of one byte is now.
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

    /// Has records be on this clock.
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

    /// # Safety
    /// The functions may be called on any thread from now on, for ever.
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

    /// Whether queries of events and streams that are not done yet are to be recorded as waits.
    pub(super) fn record_unfinished_queries(&self, on: bool) -> Result<(), Status> {
        done(match self.family {
            Family::Sole => call!(self.activity_enable_all_sync_records(u8::from(on))),
            Family::Shared => Status::API_NOT_IMPLEMENTED,
        })
    }

    /// Chooses what is counted of unified memory: all that moves, and faults.
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

    /// The name of an API call; `None` where the library has no such call.
    pub(super) fn callback_name(&self, domain: Domain, id: CallbackId) -> Option<&'static str> {
        let mut name: *const c_char = ptr::null();
        done(call!(self.get_callback_name(domain, id, &raw mut name))).ok()?;
        if name.is_null() {
            return None;
        }
        // SAFETY: CUPTI gives a C string from its own constant table, and is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }

    /// From the record at `record` (null: none) to the next of a buffer.
    ///
    /// # Safety
    /// `valid` bytes at `buffer` were filled by this library, and `record` is null or one of them.
    pub(super) unsafe fn next_record(
        &self,
        subscriber: Subscriber,
        buffer: *mut u8,
        valid: usize,
        record: &mut *mut u8,
    ) -> Status {
        match self.family {
            Family::Sole => call!(self.activity_get_next_record(buffer, valid, record)),
            // Its buffers are not to be read any more.
            Family::Shared if subscriber.0.is_null() => Status::DISABLED,
            Family::Shared => call!(self.activity_get_next_record_v2(subscriber, buffer, valid, record)),
        }
    }

    pub(super) fn flush(&self, flag: FlushFlag) -> Result<(), Status> {
        done(call!(self.activity_flush_all(flag)))
    }

    /// Records dropped since the last question, in all contexts.
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

    /// A graph's number, as in records.
    pub(super) fn graph_id(&self, graph: *mut c_void) -> Option<u32> {
        let mut id = 0;
        done(call!(self.get_graph_id(graph, &raw mut id))).ok().map(|()| id)
    }

    /// A graph node's number, as in records.
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
