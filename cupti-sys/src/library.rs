//! The functions of one loaded `libcupti`, each an `Option`.
//!
//! Which file to load is the caller's business. A library is never closed: CUPTI has threads and exit
//! handlers of its own in it.

use crate::callback::{BufferCompleteInfo, SubscriberParams};
use crate::{
    ActivityAttribute, ActivityKind, CallbackId, Domain, FlushFlag, Status, Subscriber, UnifiedMemoryConfig,
};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Called around API calls and at events. Arguments: the caller's own pointer, the domain, the callback
/// id, and a pointer to what [`crate::callback`] describes for that domain.
pub type CallbackFn = unsafe extern "C" fn(*mut c_void, Domain, CallbackId, *const c_void);

/// CUPTI wants a buffer. Out: the buffer (aligned to 8 bytes), its size in bytes, and the most records
/// to put in it (0 = as many as fit).
pub type BufferRequestedFn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);

/// CUPTI gives a buffer back. Arguments: context and stream (both unused since CUDA 6), the buffer, its
/// size, and how many bytes of it hold records.
pub type BufferCompletedFn = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// As [`BufferRequestedFn`], with a struct about the request that begins with its own size.
pub type BufferRequestedV2Fn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize, *mut c_void);

/// As [`BufferCompletedFn`], without context and stream, with a struct about the buffer.
pub type BufferCompletedV2Fn = unsafe extern "C" fn(*mut u8, usize, usize, *mut BufferCompleteInfo);

/// Gives the time in nanoseconds.
pub type TimestampFn = unsafe extern "C" fn() -> u64;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// The functions of a loaded `libcupti`; `None` where it has no such symbol.
        ///
        /// The fields are open so that a test can fill in functions of its own:
        /// `Library { get_version: Some(mine), ..Library::default() }`.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Library {
            $($(#[$doc])* #[doc = concat!("\n\n`", stringify!($symbol), "`")]
            pub $field: Option<unsafe extern "C" fn($($argument),*) -> Status>,)*
        }

        impl Library {
            /// Looks up every function in a library that is loaded already.
            ///
            /// # Safety
            /// `handle` comes from `dlopen` of a `libcupti`, and is never closed.
            pub unsafe fn from_handle(handle: *mut c_void) -> Self {
                Self {
                    // SAFETY: the caller's handle is open, and a libcupti's symbol of this name has this type.
                    $($field: unsafe { function!(handle, $symbol, $($argument),*) },)*
                }
            }

            /// The symbols, in the order of the fields, with whether this library has them.
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
    /// The API version: 18 for 11.8, 28 for 12.9, then MMmmpp: 130000 and up.
    get_version = cuptiGetVersion(*mut u32);
    /// A status in words.
    get_result_string = cuptiGetResultString(Status, *mut *const c_char);
    /// The error of this thread's last call.
    get_last_error = cuptiGetLastError();
    /// A call's name, by domain and id. Ends with an error at the first unknown id.
    get_callback_name = cuptiGetCallbackName(Domain, CallbackId, *mut *const c_char);
    /// Installs the one callback function, with a pointer that is handed back to it.
    subscribe = cuptiSubscribe(*mut Subscriber, CallbackFn, *mut c_void);
    /// Ends a subscription.
    unsubscribe = cuptiUnsubscribe(Subscriber);
    /// Switches one callback on (1) or off (0).
    enable_callback = cuptiEnableCallback(u32, Subscriber, Domain, CallbackId);
    /// Switches all callbacks of a domain on (1) or off (0).
    enable_domain = cuptiEnableDomain(u32, Subscriber, Domain);
    /// Ends CUPTI in this process.
    finalize = cuptiFinalize();
    /// Now, in nanoseconds, on the clock of the records.
    get_timestamp = cuptiGetTimestamp(*mut u64);
    /// Installs another clock for the records.
    register_timestamp_callback = cuptiActivityRegisterTimestampCallback(TimestampFn);
    /// Installs the two buffer functions.
    activity_register_callbacks = cuptiActivityRegisterCallbacks(BufferRequestedFn, BufferCompletedFn);
    /// Begins to collect a kind of record.
    activity_enable = cuptiActivityEnable(ActivityKind);
    /// Stops collecting a kind of record.
    activity_disable = cuptiActivityDisable(ActivityKind);
    /// The same for one context alone.
    activity_enable_context = cuptiActivityEnableContext(*mut c_void, ActivityKind);
    /// Reads a setting: which, the room in and the size out (bytes), the value.
    activity_get_attribute = cuptiActivityGetAttribute(ActivityAttribute, *mut usize, *mut c_void);
    /// Writes a setting: which, its size (bytes), the value.
    activity_set_attribute = cuptiActivitySetAttribute(ActivityAttribute, *mut usize, *mut c_void);
    /// Steps through a buffer: buffer, valid bytes, and the record before (null: none) to the next.
    activity_get_next_record = cuptiActivityGetNextRecord(*mut u8, usize, *mut *mut u8);
    /// How many records were dropped since the last question; context (null: all) and stream.
    activity_get_num_dropped_records = cuptiActivityGetNumDroppedRecords(*mut c_void, u32, *mut usize);
    /// Hands buffers back now.
    activity_flush_all = cuptiActivityFlushAll(FlushFlag);
    /// Hands full buffers back every so many milliseconds (0: never).
    activity_flush_period = cuptiActivityFlushPeriod(u32);
    /// Begins a stretch of calls with an external id, of some kind, on this thread.
    activity_push_external_correlation_id = cuptiActivityPushExternalCorrelationId(u32, u64);
    /// Ends it, and gives the id.
    activity_pop_external_correlation_id = cuptiActivityPopExternalCorrelationId(u32, *mut u64);
    /// Collects when kernels were queued and submitted (1) or not (0).
    activity_enable_latency_timestamps = cuptiActivityEnableLatencyTimestamps(u8);
    /// Has queries of events and streams that are not done yet recorded as well (1, as it is) or not (0) (12.8 on).
    activity_enable_all_sync_records = cuptiActivityEnableAllSyncRecords(u8);
    /// Says which counters of unified memory are to be collected; before their kind is enabled.
    activity_configure_unified_memory_counter =
        cuptiActivityConfigureUnifiedMemoryCounter(*mut UnifiedMemoryConfig, u32);
    /// A graph node's number, as in records.
    get_graph_node_id = cuptiGetGraphNodeId(*mut c_void, *mut u64);
    /// A graph's number, as in records.
    get_graph_id = cuptiGetGraphId(*mut c_void, *mut u32);
    /// An executable graph's number, as in records (12.3 on).
    get_graph_exec_id = cuptiGetGraphExecId(*mut c_void, *mut u32);
    /// A context's number, as in records.
    get_context_id = cuptiGetContextId(*mut c_void, *mut u32);
    /// A stream's number, as in records: context, stream, whether null means the thread's own stream.
    get_stream_id_ex = cuptiGetStreamIdEx(*mut c_void, *mut c_void, u8, *mut u32);
    /// The size of a kind's record for a client of some API version (13.2 on).
    activity_get_struct_size = cuptiActivityGetStructSize(ActivityKind, u32, *mut usize);

    /// As `subscribe`, able to share with other subscribers (13.0 on).
    subscribe_v2 = cuptiSubscribe_v2(*mut Subscriber, CallbackFn, *mut c_void, *mut SubscriberParams);
    /// As `get_timestamp`, on the subscriber's clock (13.3 on).
    get_timestamp_v2 = cuptiGetTimestamp_v2(Subscriber, *mut u64);
    /// As `activity_register_callbacks`, for one subscriber (13.2 on).
    activity_register_callbacks_v2 =
        cuptiActivityRegisterCallbacks_v2(Subscriber, BufferRequestedV2Fn, BufferCompletedV2Fn);
    /// As `activity_enable`, for one subscriber, with an optional configuration (13.2 on).
    activity_enable_v2 = cuptiActivityEnable_v2(Subscriber, ActivityKind, *mut c_void);
    /// As `activity_disable`, for one subscriber (13.2 on).
    activity_disable_v2 = cuptiActivityDisable_v2(Subscriber, ActivityKind, *mut c_void);
    /// As `activity_get_attribute`, for one subscriber (13.2 on).
    activity_get_attribute_v2 =
        cuptiActivityGetAttribute_v2(Subscriber, ActivityAttribute, *mut usize, *mut c_void);
    /// As `activity_set_attribute`, for one subscriber (13.2 on).
    activity_set_attribute_v2 =
        cuptiActivitySetAttribute_v2(Subscriber, ActivityAttribute, *mut usize, *mut c_void);
    /// As `activity_get_next_record`, for one subscriber (13.3 on).
    activity_get_next_record_v2 = cuptiActivityGetNextRecord_v2(Subscriber, *mut u8, usize, *mut *mut u8);
    /// As `activity_get_num_dropped_records`, for one subscriber (13.3 on).
    activity_get_num_dropped_records_v2 =
        cuptiActivityGetNumDroppedRecords_v2(Subscriber, *mut c_void, u32, *mut usize);
}

impl Library {
    /// Loads `file` (a path, or a bare name for the dynamic linker to look for).
    ///
    /// Errors: what the dynamic linker said.
    ///
    /// # Safety
    /// The file is a `libcupti`; its initialisers run.
    pub unsafe fn open(file: &CStr) -> Result<Self, String> {
        // SAFETY: `file` ends with NUL, and the caller vouches for its initialisers.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(linker_error());
        }
        // SAFETY: the handle was just opened on what the caller says is a libcupti; nothing closes it.
        Ok(unsafe { Self::from_handle(handle) })
    }

    /// The file that the functions come from; `None` if they come from no library, as in a test.
    pub fn file(&self) -> Option<PathBuf> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let address = self.get_version? as *const c_void;
        // SAFETY: any address may be asked about, and there is room for the answer.
        if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: dladdr has filled it, and zeros were valid before.
        let name = unsafe { info.assume_init() }.dli_fname;
        if name.is_null() {
            return None;
        }
        // SAFETY: a non-null name is a C string that lives as long as the library, which is not closed.
        let name = unsafe { CStr::from_ptr(name) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }

    /// As [`Library::open`], but only if this process has `file` mapped already: maps nothing new.
    ///
    /// # Safety
    /// The file is a `libcupti`.
    pub unsafe fn open_mapped(file: &CStr) -> Option<Self> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
        // SAFETY: `file` ends with NUL; with NOLOAD no initialiser runs.
        let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
        // SAFETY: the handle was just opened on what the caller says is a libcupti; nothing closes it.
        (!handle.is_null()).then(|| unsafe { Self::from_handle(handle) })
    }
}

/// What the dynamic linker last complained about on this thread.
fn linker_error() -> String {
    // SAFETY: dlerror takes nothing and touches this thread's message only.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the dynamic linker gave no reason".to_owned();
    }
    // SAFETY: a non-null message is a C string that stays until this thread's next dl call.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error_with_the_linkers_words() {
        // SAFETY: there is no such file, so nothing runs.
        let error = unsafe { Library::open(c"/nowhere/libcupti.so.13") }.unwrap_err();
        assert!(error.contains("/nowhere/libcupti.so.13"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_mapped_is_not_loaded_by_asking() {
        // SAFETY: there is no such file, so nothing is mapped under that name.
        assert!(unsafe { Library::open_mapped(c"/nowhere/libcupti.so.13") }.is_none());
    }

    #[test]
    fn a_symbol_that_the_file_lacks_is_none() {
        // SAFETY: a null file name stands for the program itself, which has no CUPTI functions.
        let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
        // SAFETY: the handle is open; no symbol is found in it, so none has the wrong type.
        let library = unsafe { Library::from_handle(program) };
        assert!(library.symbols().all(|(_, found)| !found));
        assert_eq!(library.symbols().next(), Some(("cuptiGetVersion", false)));
    }
}
