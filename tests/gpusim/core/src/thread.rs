//! The driver's state per thread: the API calls in progress, the thread's contexts and its call site. When a thread
//! exits, the next new thread reuses the exited thread's tally. Therefore memory use does not grow in a program that
//! starts thousands of threads.

use crate::context::Context;
use crate::site::Site;
use crate::stream::Stream;
use crate::sync::lock;
use crate::truth::ThreadTally;
use crate::turn;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::{Mutex, OnceLock};

/// Kind of CUPTI client function that runs on a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Client {
    #[default]
    None,
    ApiCallback,
    ResourceCallback,
    SynchronizeCallback,
    StateCallback,
    BufferRequested,
    BufferCompleted,
}

/// Computes the end of a kernel that works together with kernels on other GPUs, such as the kernel of a collective.
#[derive(Clone, Copy)]
pub struct Meeting {
    /// Returns the time at which a kernel that began at `start` ends; blocks until this time is known.
    pub end: extern "C" fn(argument: *mut c_void, start: u64) -> u64,
    /// Argument of `end`.
    pub argument: *mut c_void,
}

/// The driver's state for one thread. Other threads access only the field `tally`.
pub struct Thread {
    /// Id of the thread, from gettid().
    pub tid: u32,
    /// Number of API calls in progress, each nested in the previous one.
    pub depth: Cell<u32>,
    /// Correlation id of the outermost API call.
    pub correlation: Cell<u32>,
    /// Correlation id of the nested call, with GPUSIM_CORR=distinct.
    pub nested_correlation: Cell<u32>,
    /// With the stepped clock: time on the thread's own clock in ns, or 0 before the first call.
    pub host: Cell<u64>,
    /// With the stepped clock: the thread's index, if the thread is declared.
    pub number: Cell<Option<usize>>,
    /// With the stepped clock: the time in ns that the running host function has taken so far.
    pub host_function: Cell<Option<u64>>,
    /// Whether GPUSIM_LEAVE_OUT names the current call, which then takes no time.
    pub is_left_out: Cell<bool>,
    /// Whether the current call has submitted a programmatic launch.
    pub is_programmatic: Cell<bool>,
    /// Time at which the outermost API call began.
    pub enter: Cell<u64>,
    /// Name of the outermost API call.
    pub api: Cell<*const c_char>,
    /// Name of the kernel that the outermost API call launches.
    pub symbol: Cell<*const c_char>,
    /// Call site that the program last set with gpusim_site.
    pub site: Cell<Option<&'static Site>>,
    /// Function that returns the end time of the next submitted kernel.
    pub meeting: Cell<Option<Meeting>>,
    /// Kind of client function that runs on this thread.
    pub client: Cell<Client>,
    /// The thread's stack of current CUDA contexts; the top is the last entry.
    pub contexts: RefCell<Vec<&'static Context>>,
    /// This thread's own default streams, one per context.
    pub own_streams: RefCell<Vec<(&'static Context, &'static Stream)>>,
    /// The counts of this thread's GPU work for the truth file.
    pub tally: &'static ThreadTally,
    /// Cache of recent call sites, keyed by the pointer to the text, because programs set the same string literals
    /// repeatedly.
    sites: [Cell<Option<(*const c_char, &'static Site)>>; 16],
}

thread_local! {
    static CURRENT: Cell<*const Thread> = const { Cell::new(null()) };
}

/// Tallies of ended threads, for reuse by new threads.
static SPARE: Mutex<Vec<&'static ThreadTally>> = Mutex::new(Vec::new());

/// Returns the calling thread's state.
#[inline]
pub fn current() -> &'static Thread {
    let thread = CURRENT.get();
    let thread = if thread.is_null() { begin() } else { thread };
    // SAFETY: `begin` leaked the thread's state, and only `end` frees it, which is the last step of this thread.
    unsafe { &*thread }
}

#[cold]
fn begin() -> *const Thread {
    let spare = lock(&SPARE).pop();
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    let thread = Box::into_raw(Box::new(Thread {
        tid,
        depth: Cell::new(0),
        correlation: Cell::new(0),
        nested_correlation: Cell::new(0),
        host: Cell::new(0),
        number: Cell::new(None),
        host_function: Cell::new(None),
        is_left_out: Cell::new(false),
        is_programmatic: Cell::new(false),
        enter: Cell::new(0),
        api: Cell::new(null()),
        symbol: Cell::new(null()),
        site: Cell::new(None),
        meeting: Cell::new(None),
        client: Cell::default(),
        contexts: RefCell::default(),
        own_streams: RefCell::default(),
        tally: spare.unwrap_or_else(ThreadTally::register),
        sites: [const { Cell::new(None) }; 16],
    }));
    CURRENT.set(thread);
    // SAFETY: the key is valid and the value is what `end` expects.
    unsafe { libc::pthread_setspecific(exit_key(), thread.cast()) };
    thread
}

/// Creates the pthread key whose destructor frees a thread's state. A Rust thread-local destructor is not enough,
/// because API calls in later destructors of the thread could not create a new state.
fn exit_key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` outlives the call, and `end` accepts the values that are set under the key.
        if unsafe { libc::pthread_key_create(&mut key, Some(end)) } != 0 {
            crate::abort!("no pthread key left");
        }
        key
    })
}

unsafe extern "C" fn end(thread: *mut c_void) {
    CURRENT.set(null());
    // SAFETY: `begin` made the state with Box. pthread passes the state to this function once, on the thread that used
    // it.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    turn::end(&thread);
    for (_, stream) in thread.own_streams.borrow_mut().drain(..) {
        stream.retire();
    }
    lock(&SPARE).push(thread.tally);
}

impl Thread {
    /// Stores the call site that the program set; `None` clears it.
    pub fn set_site(&self, text: Option<&CStr>) {
        let Some(text) = text else { return self.site.set(None) };
        let key = text.as_ptr();
        let slot = &self.sites[(key as usize >> 3) % self.sites.len()];
        let same = |site: &Site| text.to_bytes() == site.path().as_bytes();
        if let Some((_, site)) = slot.get().filter(|(k, site)| *k == key && same(site)) {
            return self.site.set(Some(site));
        }
        let site = Site::intern(text);
        slot.set(site.map(|site| (key, site)));
        self.site.set(site);
    }

    /// Returns the thread's current CUDA context.
    pub fn context(&self) -> Option<&'static Context> {
        self.contexts.borrow().last().copied()
    }

    /// Replaces the top of the thread's stack of CUDA contexts, or removes the top if `context` is `None`.
    pub fn set_context(&self, context: Option<&'static Context>) {
        let mut contexts = self.contexts.borrow_mut();
        contexts.pop();
        contexts.extend(context);
    }
}
