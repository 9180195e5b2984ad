//! Looks up the functions of a loaded `libcupti`. Each function is an `Option`.
//!
//! The caller decides which library file to load. The library is never closed, because CUPTI's threads and exit
//! handlers run code that is in the library.

use crate::callback::{BufferCompleteInfo, SubscriberParams};
use crate::{
    ActivityAttribute, ActivityKind, CallbackId, Domain, FlushFlag, Status, Subscriber, UnifiedMemoryConfig,
};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Function that CUPTI calls before and after API calls. CUPTI also calls this function to report changes of resources
/// and its own errors. The arguments of the function are a pointer that the subscriber has chosen, the domain, the
/// callback id, and a pointer to data. For each domain, [`crate::callback`] documents the data.
pub type CallbackFn = unsafe extern "C" fn(*mut c_void, Domain, CallbackId, *const c_void);

/// Function that CUPTI calls when it needs a buffer for activity records. The function returns the buffer through its
/// arguments: the buffer's address (aligned to 8 bytes), its size in bytes, and the maximum number of activity records
/// in it (0 = as many as fit).
pub type BufferRequestedFn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);

/// Function that CUPTI calls to return a buffer with activity records. The arguments of the function are the context
/// and the stream (both unused since CUDA 6), the buffer, its size in bytes, and the number of bytes that contain
/// activity records.
pub type BufferCompletedFn = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Like [`BufferRequestedFn`], but with an additional argument: a struct that describes the request. The first field of
/// the additional struct is the size of the struct.
pub type BufferRequestedV2Fn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize, *mut c_void);

/// Like [`BufferCompletedFn`], but without the context and the stream, and with an additional struct that describes the
/// buffer.
pub type BufferCompletedV2Fn = unsafe extern "C" fn(*mut u8, usize, usize, *mut BufferCompleteInfo);

/// Function that returns the current time in nanoseconds. CUPTI uses this function as the clock for activity records.
pub type TimestampFn = unsafe extern "C" fn() -> u64;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// The functions of a `libcupti` that is loaded. A field is `None` if the library does not contain the function
        /// after which the field is named.
        ///
        /// The fields are public, so that a test can provide functions of its own:
        /// `Library { get_version: Some(mine), ..Library::default() }`.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Library {
            $($(#[$doc])* #[doc = concat!("\n\n`", stringify!($symbol), "`")]
            pub $field: Option<unsafe extern "C" fn($($argument),*) -> Status>,)*
        }

        impl Library {
            /// Looks up all functions in a library that is already loaded.
            ///
            /// # Safety
            /// `dlopen` must have returned `handle` for a `libcupti`, and the handle must never be closed.
            pub unsafe fn from_handle(handle: *mut c_void) -> Self {
                Self {
                    // SAFETY: the handle that the caller has passed is open. In a libcupti, the symbol with this name
                    // has the type of this field.
                    $($field: unsafe { function!(handle, $symbol, $($argument),*) },)*
                }
            }

            /// Returns the name of every function, and whether this library has the function. The functions are
            /// returned in the order of the fields.
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
    /// Returns the version of CUPTI's API: 18 for CUDA 11.8, and 28 for 12.9. Since CUPTI 13.0, the version is a number
    /// of the form MMmmpp (130000 or more).
    get_version = cuptiGetVersion(*mut u32);
    /// Returns the text that describes a status code.
    get_result_string = cuptiGetResultString(Status, *mut *const c_char);
    /// Returns the error of the last CUPTI call on this thread that has failed.
    get_last_error = cuptiGetLastError();
    /// Returns the name of the API call that has this domain and id. Returns an error if the domain contains no call
    /// with this id.
    get_callback_name = cuptiGetCallbackName(Domain, CallbackId, *mut *const c_char);
    /// Creates a subscription with a callback function. The last argument is a pointer, which CUPTI passes to the
    /// callback function.
    subscribe = cuptiSubscribe(*mut Subscriber, CallbackFn, *mut c_void);
    /// Ends a subscription.
    unsubscribe = cuptiUnsubscribe(Subscriber);
    /// Turns one callback on (1) or off (0).
    enable_callback = cuptiEnableCallback(u32, Subscriber, Domain, CallbackId);
    /// Turns all callbacks in a domain on (1) or off (0).
    enable_domain = cuptiEnableDomain(u32, Subscriber, Domain);
    /// Shuts CUPTI down in this process.
    finalize = cuptiFinalize();
    /// Returns the current time in nanoseconds, according to the clock of the activity records.
    get_timestamp = cuptiGetTimestamp(*mut u64);
    /// Makes CUPTI use another clock for the timestamps in activity records.
    register_timestamp_callback = cuptiActivityRegisterTimestampCallback(TimestampFn);
    /// Registers the two functions that CUPTI calls to request and to return buffers.
    activity_register_callbacks = cuptiActivityRegisterCallbacks(BufferRequestedFn, BufferCompletedFn);
    /// Starts to collect activity records of one kind.
    activity_enable = cuptiActivityEnable(ActivityKind);
    /// Stops collecting activity records of one kind.
    activity_disable = cuptiActivityDisable(ActivityKind);
    /// Starts to collect activity records of one kind, but only in one CUDA context.
    activity_enable_context = cuptiActivityEnableContext(*mut c_void, ActivityKind);
    /// Reads an attribute of the activity interface. The arguments are the attribute, the size of the value in bytes
    /// (in and out), and the value.
    activity_get_attribute = cuptiActivityGetAttribute(ActivityAttribute, *mut usize, *mut c_void);
    /// Sets an attribute of the activity interface. The arguments are the attribute, the size of the value in bytes,
    /// and the value.
    activity_set_attribute = cuptiActivitySetAttribute(ActivityAttribute, *mut usize, *mut c_void);
    /// Steps to the next activity record in a buffer. The arguments are the buffer, the number of valid bytes, and a
    /// pointer to the previous record (null at first). CUPTI replaces this pointer with a pointer to the next record.
    activity_get_next_record = cuptiActivityGetNextRecord(*mut u8, usize, *mut *mut u8);
    /// Returns the number of activity records that were dropped since the previous call of this function. The arguments
    /// are the context (null: all contexts), the stream, and a pointer to which the function writes the number.
    activity_get_num_dropped_records = cuptiActivityGetNumDroppedRecords(*mut c_void, u32, *mut usize);
    /// Delivers buffers with activity records before it returns.
    activity_flush_all = cuptiActivityFlushAll(FlushFlag);
    /// Makes CUPTI deliver full buffers periodically. The argument is the interval in milliseconds (0: never).
    activity_flush_period = cuptiActivityFlushPeriod(u32);
    /// Pushes an external correlation id of this kind onto a stack of the calling thread. API calls on this thread have
    /// this external id until the id is popped.
    activity_push_external_correlation_id = cuptiActivityPushExternalCorrelationId(u32, u64);
    /// Pops the external correlation id of this kind that was last pushed on this thread, and returns the id.
    activity_pop_external_correlation_id = cuptiActivityPopExternalCorrelationId(u32, *mut u64);
    /// Switches the collection of the times at which kernels are queued and submitted on (1) or off (0).
    activity_enable_latency_timestamps = cuptiActivityEnableLatencyTimestamps(u8);
    /// Switches the recording of queries about unfinished CUDA events and streams on (1, the default) or off (0). CUPTI
    /// has this function since version 12.8.
    activity_enable_all_sync_records = cuptiActivityEnableAllSyncRecords(u8);
    /// Selects which unified-memory counters to collect. Call this function before the activity kind for unified-memory
    /// counters is enabled.
    activity_configure_unified_memory_counter =
        cuptiActivityConfigureUnifiedMemoryCounter(*mut UnifiedMemoryConfig, u32);
    /// Returns the id that stands for a graph node in activity records.
    get_graph_node_id = cuptiGetGraphNodeId(*mut c_void, *mut u64);
    /// Returns the id that stands for a graph in activity records.
    get_graph_id = cuptiGetGraphId(*mut c_void, *mut u32);
    /// Returns the id that stands for an executable graph in activity records (12.3 and later).
    get_graph_exec_id = cuptiGetGraphExecId(*mut c_void, *mut u32);
    /// Returns the id that stands for a CUDA context in activity records.
    get_context_id = cuptiGetContextId(*mut c_void, *mut u32);
    /// Returns the id that stands for a stream in activity records. The arguments are the CUDA context, the stream, and
    /// whether a null stream means the per-thread stream.
    get_stream_id_ex = cuptiGetStreamIdEx(*mut c_void, *mut c_void, u8, *mut u32);
    /// Returns the size of an activity record of this kind, for a client that uses this API version (13.2 and later).
    activity_get_struct_size = cuptiActivityGetStructSize(ActivityKind, u32, *mut usize);

    /// Like `subscribe`, but can allow other subscribers too (13.0 and later).
    subscribe_v2 = cuptiSubscribe_v2(*mut Subscriber, CallbackFn, *mut c_void, *mut SubscriberParams);
    /// Like `get_timestamp`, but with the clock of one subscriber (13.3 and later).
    get_timestamp_v2 = cuptiGetTimestamp_v2(Subscriber, *mut u64);
    /// Like `activity_register_callbacks`, but for one subscriber (13.2 and later).
    activity_register_callbacks_v2 =
        cuptiActivityRegisterCallbacks_v2(Subscriber, BufferRequestedV2Fn, BufferCompletedV2Fn);
    /// Like `activity_enable`, but for one subscriber, and with an optional configuration (13.2 and later).
    activity_enable_v2 = cuptiActivityEnable_v2(Subscriber, ActivityKind, *mut c_void);
    /// Like `activity_disable`, but for one subscriber (13.2 and later).
    activity_disable_v2 = cuptiActivityDisable_v2(Subscriber, ActivityKind, *mut c_void);
    /// Like `activity_get_attribute`, but for one subscriber (13.2 and later).
    activity_get_attribute_v2 =
        cuptiActivityGetAttribute_v2(Subscriber, ActivityAttribute, *mut usize, *mut c_void);
    /// Like `activity_set_attribute`, but for one subscriber (13.2 and later).
    activity_set_attribute_v2 =
        cuptiActivitySetAttribute_v2(Subscriber, ActivityAttribute, *mut usize, *mut c_void);
    /// Like `activity_get_next_record`, but for one subscriber (13.3 and later).
    activity_get_next_record_v2 = cuptiActivityGetNextRecord_v2(Subscriber, *mut u8, usize, *mut *mut u8);
    /// Like `activity_get_num_dropped_records`, but for one subscriber (13.3 and later).
    activity_get_num_dropped_records_v2 =
        cuptiActivityGetNumDroppedRecords_v2(Subscriber, *mut c_void, u32, *mut usize);
}

impl Library {
    /// Loads the library `file`. `file` is a path, or a bare name that the dynamic linker looks up.
    ///
    /// Errors: the message of the dynamic linker.
    ///
    /// # Safety
    /// `file` must be a `libcupti`, and running its initialisers must be safe.
    pub unsafe fn open(file: &CStr) -> Result<Self, String> {
        // SAFETY: `file` ends with a NUL, and the caller guarantees that its initialisers are safe to run.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(linker_error());
        }
        // SAFETY: the handle was just opened, and is never closed. The caller guarantees that the file is a libcupti.
        Ok(unsafe { Self::from_handle(handle) })
    }

    /// Returns the path of the library file that contains the functions. If the functions are not in a library (for
    /// example, in a test), returns `None`.
    pub fn file(&self) -> Option<PathBuf> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let address = self.get_version? as *const c_void;
        // SAFETY: dladdr accepts any address, and `info` has room for the answer.
        if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: `info` is valid, because dladdr has filled it, and its initial value of zero bytes was already valid.
        let name = unsafe { info.assume_init() }.dli_fname;
        if name.is_null() {
            return None;
        }
        // SAFETY: a name that is not null is a C string that lives as long as the library, and the library is never
        // closed.
        let name = unsafe { CStr::from_ptr(name) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }

    /// Like [`Library::open`], but succeeds only if this process has already mapped `file`. If the file is not mapped
    /// yet, this function does not map it.
    ///
    /// # Safety
    /// `file` must be a `libcupti`.
    pub unsafe fn open_mapped(file: &CStr) -> Option<Self> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
        // SAFETY: `file` ends with a NUL, and `dlopen` runs no initialiser, because the flag `RTLD_NOLOAD` is set.
        let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
        // SAFETY: the handle was just opened, and is never closed. The caller guarantees that the file is a libcupti.
        (!handle.is_null()).then(|| unsafe { Self::from_handle(handle) })
    }
}

/// Returns the last error message of the dynamic linker on this thread.
fn linker_error() -> String {
    // SAFETY: dlerror takes no arguments, and accesses only the message of this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the dynamic linker gave no reason".to_owned();
    }
    // SAFETY: a message that is not null is a C string, which is valid until the next dl call on this thread.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error_with_the_linkers_words() {
        // SAFETY: the file does not exist, so no code of it runs.
        let error = unsafe { Library::open(c"/nowhere/libcupti.so.13") }.unwrap_err();
        assert!(error.contains("/nowhere/libcupti.so.13"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_mapped_is_not_loaded_by_asking() {
        // SAFETY: the file does not exist, so no library with that name is mapped.
        assert!(unsafe { Library::open_mapped(c"/nowhere/libcupti.so.13") }.is_none());
    }

    #[test]
    fn a_symbol_that_the_file_lacks_is_none() {
        // SAFETY: a null file name stands for the program itself, which contains no CUPTI functions.
        let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
        // SAFETY: the handle is open. The program contains none of these symbols, so no function can have a wrong type.
        let library = unsafe { Library::from_handle(program) };
        assert!(library.symbols().all(|(_, found)| !found));
        assert_eq!(library.symbols().next(), Some(("cuptiGetVersion", false)));
    }
}
