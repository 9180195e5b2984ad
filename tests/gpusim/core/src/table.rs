//! Interface between libcuda, libcudart and libcupti. libcuda contains the core. Both libcudart and libcupti get a
//! [`CoreTable`] from `cuGetExportTable`, as the real libraries get NVIDIA's private tables; libcupti registers its
//! [`Hooks`]. The three libraries are built together, so the structs need no versions.

use crate::api::Call;
use crate::deps::Dependency;
use crate::faults::Fault;
use crate::layout::ApiCall;
use crate::thread::Client;
use crate::unified::Move;
use crate::work::{Fate, Work};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Id for which `cuGetExportTable` returns the [`CoreTable`]; for any other id, `cuGetExportTable` fails.
pub const GPUSIM_UUID: [u8; 16] = *b"gpusim-core-tab1";

/// Ids of the resource domain's callbacks.
pub mod resource {
    #![allow(missing_docs)] // these are CUPTI's names
    pub const CONTEXT_CREATED: u32 = 1;
    pub const CONTEXT_DESTROY_STARTING: u32 = 2;
    pub const STREAM_CREATED: u32 = 3;
    pub const STREAM_DESTROY_STARTING: u32 = 4;
    pub const CU_INIT_FINISHED: u32 = 5;
    pub const MODULE_LOADED: u32 = 6;
    pub const MODULE_UNLOAD_STARTING: u32 = 7;
    pub const GRAPH_CREATED: u32 = 9;
    pub const GRAPH_DESTROY_STARTING: u32 = 10;
    pub const GRAPH_CLONED: u32 = 11;
    pub const GRAPHNODE_CREATE_STARTING: u32 = 12;
    pub const GRAPHNODE_CREATED: u32 = 13;
    pub const GRAPHNODE_DESTROY_STARTING: u32 = 14;
    pub const GRAPHNODE_DEPENDENCY_CREATED: u32 = 15;
    pub const GRAPHEXEC_CREATE_STARTING: u32 = 17;
    pub const GRAPHEXEC_CREATED: u32 = 18;
    pub const GRAPHEXEC_DESTROY_STARTING: u32 = 19;
    pub const GRAPHNODE_CLONED: u32 = 20;
}

/// Ids of the synchronize domain's callbacks.
pub mod synchronize {
    #![allow(missing_docs)] // these are CUPTI's names
    pub const STREAM_SYNCHRONIZED: u32 = 1;
    pub const CONTEXT_SYNCHRONIZED: u32 = 2;
}

/// State of the driver in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// The program has not called cuInit yet, or it has called cuInit but cuInit found no device.
    Fresh,
    /// The devices are available.
    Ready,
    /// The driver's exit handler has run.
    Ended,
    /// The process is a forked child of a process in which the driver was ready.
    Child,
}

/// CUpti_TimestampCallbackFunc
pub type ClientClock = extern "C" fn() -> u64;

/// Size of an array that is indexed by callback domain. Domains are numbered from 1 to 6, so index 0 is unused.
const DOMAINS: usize = 7;
const WORDS: usize = 14;

/// One bit per callback, set if the callback is enabled. Callbacks are identified by domain and id.
#[derive(Debug)]
pub struct CallbackBits([[AtomicU64; WORDS]; DOMAINS]);

impl CallbackBits {
    /// Creates the bits with all callbacks disabled.
    pub const fn new() -> CallbackBits {
        CallbackBits([const { [const { AtomicU64::new(0) }; WORDS] }; DOMAINS])
    }

    /// Whether a callback is enabled.
    #[inline]
    pub fn is_on(&self, domain: u32, id: u32) -> bool {
        let word = self.0.get(domain as usize).and_then(|d| d.get(id as usize / 64));
        word.is_some_and(|w| w.load(Ordering::Relaxed) & (1 << (id % 64)) != 0)
    }

    /// Enables or disables a callback. Returns false if no callback has this id.
    pub fn set(&self, domain: u32, id: u32, on: bool) -> bool {
        let Some(word) = self.0.get(domain as usize).and_then(|d| d.get(id as usize / 64)) else {
            return false;
        };
        if on {
            word.fetch_or(1 << (id % 64), Ordering::Relaxed);
        } else {
            word.fetch_and(!(1 << (id % 64)), Ordering::Relaxed);
        }
        true
    }

    /// Enables exactly the callbacks that are enabled in at least one element of `all`.
    pub fn unite<'a>(&self, all: impl Iterator<Item = &'a CallbackBits> + Clone) {
        for (domain, words) in self.0.iter().enumerate() {
            for (at, word) in words.iter().enumerate() {
                let bits = all.clone().map(|one| one.0[domain][at].load(Ordering::Relaxed));
                word.store(bits.fold(0, |a, b| a | b), Ordering::Relaxed);
            }
        }
    }

    /// Disables all callbacks.
    pub fn silence(&self) {
        for word in self.0.iter().flatten() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl Default for CallbackBits {
    fn default() -> CallbackBits {
        CallbackBits::new()
    }
}

/// Callbacks and activity kinds that at least one CUPTI client has enabled. The library libcupti writes these switches,
/// and every API call reads them. If no client has enabled a callback or record for an API call, the API call only
/// loads two values to find this out.
#[derive(Debug)]
pub struct Switches {
    /// Callbacks that at least one client has enabled.
    pub callbacks: CallbackBits,
    /// Bits of the enabled activity kinds.
    pub kinds: AtomicU64,
    /// Whether the program has called an API function other than cuInit.
    pub api_seen: AtomicBool,
    /// Whether a query that finds unfinished work gets an activity record.
    pub all_syncs: AtomicBool,
    /// Address of the client's own clock function, which gives the timestamps of API calls, or 0 if the client
    /// registered none.
    pub client_clock: AtomicUsize,
    /// Bits of the enabled unified memory counters. The position of a counter's bit is CUPTI's value for this counter.
    pub counted: AtomicU32,
}

impl Switches {
    pub(crate) const fn new() -> Switches {
        Switches {
            callbacks: CallbackBits::new(),
            kinds: AtomicU64::new(0),
            api_seen: AtomicBool::new(false),
            all_syncs: AtomicBool::new(true),
            client_clock: AtomicUsize::new(0),
            counted: AtomicU32::new(0),
        }
    }

    /// Returns the current time on the client's clock; if the client has no clock function, on libcuda's clock, which
    /// `now` reads.
    pub fn client_time(&self, now: impl FnOnce() -> u64) -> u64 {
        match self.client_clock.load(Ordering::Relaxed) {
            0 => now(),
            // SAFETY: libcupti stores here the address of a ClientClock that the client registered.
            address => unsafe { std::mem::transmute::<usize, ClientClock>(address)() },
        }
    }

    /// Whether a callback is enabled.
    #[inline]
    pub fn is_on(&self, domain: u32, id: u32) -> bool {
        self.callbacks.is_on(domain, id)
    }
}

/// The switches of this copy of the core. libcudart and libcupti access libcuda's switches through the [`CoreTable`].
pub static SWITCHES: Switches = Switches::new();

/// Functions of libcupti that libcuda calls.
#[repr(C)]
#[allow(missing_docs)] // each field is a function in libcupti
pub struct Hooks {
    /// Called for an enabled API callback: `site` 0 is ENTER, `site` 1 is EXIT with the call's result.
    pub api: extern "C" fn(&mut Call, site: u32, result: *const u32, context: *mut c_void, uid: u32),
    /// Called for every resource callback, even if no client has enabled it, with the id, context, stream and
    /// descriptor.
    pub resource: extern "C" fn(u32, *mut c_void, *mut c_void, *mut c_void),
    /// Called for every synchronize callback, even if no client has enabled it, with the id, context and stream.
    pub synchronize: extern "C" fn(u32, *mut c_void, *mut c_void),
    /// Called when GPU work of an enabled activity kind was submitted. Returns the fate of the activity record.
    pub record: extern "C" fn(&Work) -> Fate,
    /// Called when an API call of an enabled kind has ended.
    pub api_record: extern "C" fn(&ApiCall),
    /// Called when a CUDA event was recorded, or a thread or stream waited, if that activity kind is enabled.
    pub dependency: extern "C" fn(&Dependency),
    /// Called when pages of unified memory have migrated, if the counter for this direction is enabled.
    pub unified: extern "C" fn(&Move),
    /// Called when the driver shuts down. After this function returns, libcupti makes no callback and delivers no
    /// buffer.
    pub stop: extern "C" fn(),
}

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(std::ptr::null_mut());

/// Calls a function of libcupti if libcupti is attached.
#[inline]
pub fn with_hooks<T>(f: impl FnOnce(&'static Hooks) -> T) -> Option<T> {
    // SAFETY: `attach` stores a `&'static Hooks`, and libcupti is never unloaded.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }.map(f)
}

/// Attaches libcupti: after this call, libcuda calls its hooks.
pub extern "C" fn attach(hooks: &'static Hooks) {
    HOOKS.store(std::ptr::from_ref(hooks).cast_mut(), Ordering::Release);
}

/// Functions that libcuda offers to libcudart and libcupti.
#[repr(C)]
#[allow(missing_docs)] // the fields have the names of functions in the core
pub struct CoreTable {
    pub switches: &'static Switches,
    pub enter: extern "C" fn(&mut Call),
    pub exit: extern "C" fn(&mut Call, u32),
    pub attach: extern "C" fn(&'static Hooks),
    pub phase: extern "C" fn() -> Phase,
    /// Finds the devices without loading an injected library; returns 0 or the driver's error.
    pub start_devices: extern "C" fn() -> u32,
    pub settle: extern "C" fn(*const Work, usize, Fate),
    /// Counts, in the truth file, a fault that is not related to any GPU work.
    pub count_fault: extern "C" fn(Fault),
    /// Sets the kind of client function that runs on this thread. Returns the kind that was set before.
    pub swap_client: extern "C" fn(Client) -> Client,
    pub client: extern "C" fn() -> Client,
    pub kernel: extern "C" fn(*const c_char) -> *mut c_void,
    /// Returns the name of the kernel to which a handle points, or NULL if the handle does not point to a kernel.
    pub kernel_name: extern "C" fn(*const c_void) -> *const c_char,
    /// Makes the device's primary context current.
    pub use_primary: extern "C" fn(device: u32) -> u32,
    /// Returns the device's primary context, which is created if necessary.
    pub primary: extern "C" fn(device: u32, &mut *mut c_void) -> u32,
    /// Writes the id and the device of a context; returns 0 if the handle is valid.
    pub context_ids: extern "C" fn(*mut c_void, &mut u32, &mut u32) -> u32,
    pub stream_id:
        extern "C" fn(context: *mut c_void, stream: *mut c_void, per_thread: bool, &mut u32) -> u32,
    pub reset_primary: extern "C" fn(device: u32) -> u32,
    /// Writes the id of the object to which a handle points. `what` is 0 for a graph, 1 for a node, and 2 for an
    /// executable graph. Returns 0 if the handle is valid.
    pub graph_id: extern "C" fn(what: u32, handle: *mut c_void, &mut u64) -> u32,
    pub site: extern "C" fn(*const c_char),
    /// The functions `gpusim_work` (0), `fork` (1), `begin` (2), `join` (3), `lock` (4), `unlock` (5) and `meet` (6).
    pub host: extern "C" fn(what: u32, u64, u64) -> u64,
}
