//! Looks up the functions of a loaded `libcupti`, each as an `Option`.
//!
//! The caller decides which file to load. A library is never closed, because CUPTI's threads and exit handlers run the
//! library's code.

use crate::callback::{BufferCompleteInfo, SubscriberParams};
use crate::{
    ActivityAttribute, ActivityKind, CallbackId, Domain, FlushFlag, Status, Subscriber, UnifiedMemoryConfig,
};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Function that CUPTI calls before and after API calls, and when it reports changes of resources or its own errors.
/// The function's arguments are a pointer that the subscriber chose, the domain, the callback id, and a pointer to the
/// data that [`crate::callback`] documents for the domain.
pub type CallbackFn = unsafe extern "C" fn(*mut c_void, Domain, CallbackId, *const c_void);

/// Function that CUPTI calls when it needs a buffer. Through its arguments, the function returns the buffer (aligned
/// to 8 bytes), its size in bytes, and the maximum number of activity records in it (0 = as many as fit).
pub type BufferRequestedFn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);

/// Function that CUPTI calls to return a buffer. Arguments: context and stream (both unused since CUDA 6), the buffer,
/// its size in bytes, and the number of bytes that contain activity records.
pub type BufferCompletedFn = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Like [`BufferRequestedFn`], with an additional struct that describes the request. The first field of the struct is
/// its size.
pub type BufferRequestedV2Fn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize, *mut c_void);

/// Like [`BufferCompletedFn`], but without context and stream, and with an additional struct that describes the
/// buffer.
pub type BufferCompletedV2Fn = unsafe extern "C" fn(*mut u8, usize, usize, *mut BufferCompleteInfo);

/// Function that returns the current time in nanoseconds. CUPTI uses it as the clock of activity records.
pub type TimestampFn = unsafe extern "C" fn() -> u64;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// The functions of a loaded `libcupti`. A field is `None` if the library lacks the function.
        ///
        /// The fields are public, so that a test can fill in its own functions: `Library { get_version: Some(mine),
        /// ..Library::default() }`.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Library {
            $($(#[$doc])* #[doc = concat!("\n\n`", stringify!($symbol), "`")]
            pub $field: Option<unsafe extern "C" fn($($argument),*) -> Status>,)*
        }

        impl Library {
            /// Looks up every function in a library that is already loaded.
            ///
            /// # Safety
            /// `handle` was returned by `dlopen` for a `libcupti`, and is never closed.
            pub unsafe fn from_handle(handle: *mut c_void) -> Self {
                Self {
                    // SAFETY: the caller's handle is open, and in a libcupti the symbol of this name has this type.
                    $($field: unsafe { function!(handle, $symbol, $($argument),*) },)*
                }
            }

            /// Returns the name of every function, in the order of the fields, and whether this library has the
            /// function.
            pub fn symbols(&self) -> impl Iterator<Item = (&'static str, bool)> {
                [$((stringify!($symbol), self.$field.is_some()),)*].into_iter()
            }
        }
    };
}

macro_rules! function {
    ($handle:ident, $symbol:ident, $($argument:ty),*) => {{
        let name = concat!(stringify!($symbol), "\0");
        let address = libc::dlsym($handle, name.as_ptr().cast());
        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($argument),*) -> Status>>(address)
    }};
}

functions! {
    /// Returns the API version: 18 for CUDA 11.8, 28 for 12.9; since 13.0, a number of the form MMmmpp (130000 and
    /// up).
    get_version = cuptiGetVersion(*mut u32);
    /// Returns the text that describes a status code.
    get_result_string = cuptiGetResultString(Status, *mut *const c_char);
    /// Returns the error of this thread's last CUPTI call.
    get_last_error = cuptiGetLastError();
    /// Returns the name of the API call with this domain and id. Fails if the domain has no call with that id.
    get_callback_name = cuptiGetCallbackName(Domain, CallbackId, *mut *const c_char);
    /// Subscribes the callback function. The last argument is a pointer that CUPTI passes to the callback function.
    subscribe = cuptiSubscribe(*mut Subscriber, CallbackFn, *mut c_void);
    /// Ends a subscription.
    unsubscribe = cuptiUnsubscribe(Subscriber);
    /// Switches one callback on (1) or off (0).
    enable_callback = cuptiEnableCallback(u32, Subscriber, Domain, CallbackId);
    /// Switches all callbacks of a domain on (1) or off (0).
    enable_domain = cuptiEnableDomain(u32, Subscriber, Domain);
    /// Shuts CUPTI down in this process.
    finalize = cuptiFinalize();
    /// Returns the current time in nanoseconds, on the clock of the activity records.
    get_timestamp = cuptiGetTimestamp(*mut u64);
    /// Makes CUPTI use another clock for the timestamps of activity records.
    register_timestamp_callback = cuptiActivityRegisterTimestampCallback(TimestampFn);
    /// Registers the two functions by which CUPTI requests and returns buffers.
    activity_register_callbacks = cuptiActivityRegisterCallbacks(BufferRequestedFn, BufferCompletedFn);
    /// Starts collecting activity records of one kind.
    activity_enable = cuptiActivityEnable(ActivityKind);
    /// Stops collecting activity records of one kind.
    activity_disable = cuptiActivityDisable(ActivityKind);
    /// Starts collecting activity records of one kind, in one CUDA context only.
    activity_enable_context = cuptiActivityEnableContext(*mut c_void, ActivityKind);
    /// Reads an attribute. Arguments: the attribute, the size of the value in bytes (in and out), and the value.
    activity_get_attribute = cuptiActivityGetAttribute(ActivityAttribute, *mut usize, *mut c_void);
    /// Writes an attribute. Arguments: the attribute, the size of the value in bytes, and the value.
    activity_set_attribute = cuptiActivitySetAttribute(ActivityAttribute, *mut usize, *mut c_void);
    /// Steps through a buffer. Arguments: the buffer, the number of valid bytes, and a pointer to the previous
    /// activity record (null at first), which CUPTI replaces by a pointer to the next record.
    activity_get_next_record = cuptiActivityGetNextRecord(*mut u8, usize, *mut *mut u8);
    /// Returns the number of activity records dropped since the last query. Arguments: context (null: all), stream,
    /// and the result.
    activity_get_num_dropped_records = cuptiActivityGetNumDroppedRecords(*mut c_void, u32, *mut usize);
    /// Delivers buffers of activity records before it returns.
    activity_flush_all = cuptiActivityFlushAll(FlushFlag);
    /// Delivers full buffers periodically, at an interval in milliseconds (0: never).
    activity_flush_period = cuptiActivityFlushPeriod(u32);
    /// Pushes an external id of the given kind on this thread's stack. API calls on this thread have this external id
    /// until the id is popped.
    activity_push_external_correlation_id = cuptiActivityPushExternalCorrelationId(u32, u64);
    /// Pops the last external id of the given kind that was pushed on this thread, and returns that id.
    activity_pop_external_correlation_id = cuptiActivityPopExternalCorrelationId(u32, *mut u64);
    /// Sets whether to collect the times at which kernels were queued and submitted (1) or not (0).
    activity_enable_latency_timestamps = cuptiActivityEnableLatencyTimestamps(u8);
    /// Sets whether queries of unfinished CUDA events and streams are also recorded (1, the default) or not (0).
    /// Exists since 12.8.
    activity_enable_all_sync_records = cuptiActivityEnableAllSyncRecords(u8);
    /// Selects the unified-memory counters to collect. Call this function before enabling the activity kind of
    /// unified-memory counters.
    activity_configure_unified_memory_counter =
        cuptiActivityConfigureUnifiedMemoryCounter(*mut UnifiedMemoryConfig, u32);
    /// Returns the id of a graph node, as used in activity records.
    get_graph_node_id = cuptiGetGraphNodeId(*mut c_void, *mut u64);
    /// Returns the id of a graph, as used in activity records.
    get_graph_id = cuptiGetGraphId(*mut c_void, *mut u32);
    /// Returns the id of an executable graph, as used in activity records (12.3 and later).
    get_graph_exec_id = cuptiGetGraphExecId(*mut c_void, *mut u32);
    /// Returns the id of a CUDA context, as used in activity records.
    get_context_id = cuptiGetContextId(*mut c_void, *mut u32);
    /// Returns the id of a stream, as used in activity records. Arguments: the CUDA context, the stream, and whether a
    /// null stream means the per-thread stream.
    get_stream_id_ex = cuptiGetStreamIdEx(*mut c_void, *mut c_void, u8, *mut u32);
    /// Returns the size of an activity record of the given kind, for a client of the given API version (13.2 and
    /// later).
    activity_get_struct_size = cuptiActivityGetStructSize(ActivityKind, u32, *mut usize);

    /// Like `subscribe`, but can also allow other subscribers (13.0 and later).
    subscribe_v2 = cuptiSubscribe_v2(*mut Subscriber, CallbackFn, *mut c_void, *mut SubscriberParams);
    /// Like `get_timestamp`, on the subscriber's clock (13.3 and later).
    get_timestamp_v2 = cuptiGetTimestamp_v2(Subscriber, *mut u64);
    /// Like `activity_register_callbacks`, for one subscriber (13.2 and later).
    activity_register_callbacks_v2 =
        cuptiActivityRegisterCallbacks_v2(Subscriber, BufferRequestedV2Fn, BufferCompletedV2Fn);
    /// Like `activity_enable`, for one subscriber, with an optional configuration (13.2 and later).
    activity_enable_v2 = cuptiActivityEnable_v2(Subscriber, ActivityKind, *mut c_void);
    /// Like `activity_disable`, for one subscriber (13.2 and later).
    activity_disable_v2 = cuptiActivityDisable_v2(Subscriber, ActivityKind, *mut c_void);
    /// Like `activity_get_attribute`, for one subscriber (13.2 and later).
    activity_get_attribute_v2 =
        cuptiActivityGetAttribute_v2(Subscriber, ActivityAttribute, *mut usize, *mut c_void);
    /// Like `activity_set_attribute`, for one subscriber (13.2 and later).
    activity_set_attribute_v2 =
        cuptiActivitySetAttribute_v2(Subscriber, ActivityAttribute, *mut usize, *mut c_void);
    /// Like `activity_get_next_record`, for one subscriber (13.3 and later).
    activity_get_next_record_v2 = cuptiActivityGetNextRecord_v2(Subscriber, *mut u8, usize, *mut *mut u8);
    /// Like `activity_get_num_dropped_records`, for one subscriber (13.3 and later).
    activity_get_num_dropped_records_v2 =
        cuptiActivityGetNumDroppedRecords_v2(Subscriber, *mut c_void, u32, *mut usize);
}

impl Library {
    /// Loads `file` (a path, or a bare name for the dynamic linker).
    ///
    /// Errors: the message of the dynamic linker.
    ///
    /// # Safety
    /// `file` must be a `libcupti` whose initialisers are safe to run.
    pub unsafe fn open(file: &CStr) -> Result<Self, String> {
        // SAFETY: `file` ends with NUL, and the caller guarantees that its initialisers are safe to run.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(linker_error());
        }
        // SAFETY: the handle was just opened on a file that the caller guarantees to be a libcupti, and is never
        // closed.
        Ok(unsafe { Self::from_handle(handle) })
    }

    /// Returns the path of the file that contains the functions. Returns `None` if the functions are not in a library,
    /// as in a test.
    pub fn file(&self) -> Option<PathBuf> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let address = self.get_version? as *const c_void;
        // SAFETY: dladdr accepts any address, and `info` has room for the answer.
        if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: dladdr has filled `info`, whose all-zero initial value was already valid.
        let name = unsafe { info.assume_init() }.dli_fname;
        if name.is_null() {
            return None;
        }
        // SAFETY: a non-null name is a C string that lives as long as the library, which is never closed.
        let name = unsafe { CStr::from_ptr(name) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }

    /// Like [`Library::open`], but succeeds only if this process has already mapped `file`. Does not map a file that
    /// is not mapped yet.
    ///
    /// # Safety
    /// `file` must be a `libcupti`.
    pub unsafe fn open_mapped(file: &CStr) -> Option<Self> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
        // SAFETY: `file` ends with NUL, and because of `RTLD_NOLOAD` no initialiser runs.
        let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
        // SAFETY: the handle was just opened on a file that the caller guarantees to be a libcupti, and is never
        // closed.
        (!handle.is_null()).then(|| unsafe { Self::from_handle(handle) })
    }
}

/// Returns the dynamic linker's last error message on this thread.
fn linker_error() -> String {
    // SAFETY: dlerror takes no arguments and touches only this thread's message.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the dynamic linker gave no reason".to_owned();
    }
    // SAFETY: a non-null message is a C string that is valid until this thread's next dl call.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error_with_the_linkers_words() {
        // SAFETY: the file does not exist, so no code runs.
        let error = unsafe { Library::open(c"/nowhere/libcupti.so.13") }.unwrap_err();
        assert!(error.contains("/nowhere/libcupti.so.13"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_mapped_is_not_loaded_by_asking() {
        // SAFETY: the file does not exist, so no library is mapped under that name.
        assert!(unsafe { Library::open_mapped(c"/nowhere/libcupti.so.13") }.is_none());
    }

    #[test]
    fn a_symbol_that_the_file_lacks_is_none() {
        // SAFETY: a null file name means the program itself, which has no CUPTI functions.
        let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
        // SAFETY: the handle is open, and the program contains none of these symbols, so no function can have the wrong
        // type.
        let library = unsafe { Library::from_handle(program) };
        assert!(library.symbols().all(|(_, found)| !found));
        assert_eq!(library.symbols().next(), Some(("cuptiGetVersion", false)));
    }
}
