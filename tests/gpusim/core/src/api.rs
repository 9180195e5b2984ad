//! Entry and exit of every API function of the driver and the runtime: assigns correlation ids, tracks nested calls,
//! and calls the callbacks of CUPTI's subscribers.

use crate::callback_ids::{DRIVER, RUNTIME};
use crate::clock;
use crate::init;
use crate::journal;
use crate::layout::ApiCall;
use crate::settings;
use crate::table::{SWITCHES, with_hooks};
use crate::thread::{self, Client, Thread};
use crate::turn;
use crate::version::kind;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of CUPTI clients that can subscribe during the life of a process. Further subscriptions fail.
pub const MOST_SUBSCRIBERS: usize = 4;

/// An API call in progress. This struct is on the calling thread's stack.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// Callback domain: 1 driver, 2 runtime.
    pub domain: u32,
    /// Callback id of the API function.
    pub cbid: u32,
    /// Name of the API function without a version suffix, as a static string.
    pub name: *const c_char,
    /// The arguments as a C struct.
    pub params: *const c_void,
    /// Mangled name of the kernel, if the call is a launch.
    pub symbol: *const c_char,
    /// Correlation id of the call, set by [`enter`].
    pub correlation: u32,
    /// A word of memory per subscriber, in which the subscriber can store data. The ENTER and EXIT callbacks of this
    /// call get the same word for the same subscriber.
    pub data: [u64; MOST_SUBSCRIBERS],
    start: u64,
    /// Whether CUPTI callbacks are made for this API call. False if the call is nested and GPUSIM_NESTED=0.
    audible: bool,
}

impl Call {
    /// Creates the description of a call that is about to begin.
    pub fn new<P>(domain: u32, cbid: u32, name: &'static CStr, params: &P, symbol: *const c_char) -> Call {
        let params = std::ptr::from_ref(params).cast();
        Call {
            domain,
            cbid,
            name: name.as_ptr(),
            params,
            symbol,
            correlation: 0,
            data: [0; MOST_SUBSCRIBERS],
            start: 0,
            audible: true,
        }
    }
}

static IDS: AtomicU64 = AtomicU64::new(0);

/// Returns the next correlation id. The ids are 32 bits wide and wrap around, like those of the real CUPTI.
fn next_correlation() -> u32 {
    let number = IDS.fetch_add(1, Relaxed);
    settings::get().corr_start.wrapping_add(number as u32)
}

/// Returns the number of correlation ids that have been assigned.
pub fn correlations_used() -> u64 {
    IDS.load(Relaxed)
}

/// Begins an API call: assigns its correlation id, reads the time, and makes the ENTER callback.
pub extern "C" fn enter(call: &mut Call) {
    let thread = thread::current();
    let client = thread.client.get();
    if client != Client::None {
        check_reentry(call, client);
    }
    let depth = thread.depth.get();
    if depth == 0 {
        if settings::get().stepped {
            turn::begin_call(thread);
        }
        thread.correlation.set(next_correlation());
        thread.nested_correlation.set(0);
        thread.enter.set(clock::now());
        thread.api.set(call.name);
        call.correlation = thread.correlation.get();
        if !SWITCHES.api_seen.load(Relaxed) {
            SWITCHES.api_seen.store(true, Relaxed);
        }
    } else {
        enter_nested(thread, call);
    }
    thread.depth.set(depth + 1);
    if wants_api_record(call.domain, depth) {
        call.start = SWITCHES.client_time(|| clock::now() + turn::shift());
    }
    if call.audible && SWITCHES.is_on(call.domain, call.cbid) {
        call_back(thread, call, 0, null());
    }
}

fn enter_nested(thread: &Thread, call: &mut Call) {
    let settings = settings::get();
    if settings.distinct_corr {
        thread.nested_correlation.set(next_correlation());
        call.correlation = thread.nested_correlation.get();
    } else {
        call.correlation = thread.correlation.get();
    }
    call.audible = settings.nested || call.domain == RUNTIME;
}

/// Ends an API call: makes the EXIT callback and, if enabled, writes the call's activity record.
pub extern "C" fn exit(call: &mut Call, result: u32) {
    let thread = thread::current();
    if thread.depth.get() == 1 && settings::get().stepped {
        end_stepped(thread, call);
    }
    if call.audible && SWITCHES.is_on(call.domain, call.cbid) {
        call_back(thread, call, 1, &result);
    }
    if call.start != 0 && call.audible && wants_api_record(call.domain, thread.depth.get() - 1) {
        let record = ApiCall {
            domain: call.domain,
            cbid: call.cbid,
            start: call.start,
            end: SWITCHES.client_time(|| clock::now() + turn::shift()),
            tid: thread.tid,
            correlation: call.correlation,
            result,
        };
        with_hooks(|h| (h.api_record)(&record));
    }
    thread.depth.set(thread.depth.get() - 1);
}

/// Ends an outermost call on the stepped clock, and advances that clock so that the call takes at least its configured
/// cost.
#[cold]
fn end_stepped(thread: &Thread, call: &Call) {
    const OTHER_CALLS: u64 = 1_000;
    // SAFETY: the name of an API call is a string literal.
    let name: &'static CStr = unsafe { CStr::from_ptr(call.name) };
    let costs = &settings::get().costs;
    let of = |key: &str| costs.iter().find(|(name, _)| name == key).map(|(_, cost)| *cost);
    let cost = name.to_str().ok().and_then(of).or_else(|| of("*")).unwrap_or(OTHER_CALLS);
    // If GPUSIM_LEAVE_OUT names the call's kernel or wait, the call takes no time. If GPUSIM_LEAVE_OUT names the wait
    // of a copy call, the call still submits the copy, so the call keeps its cost.
    let is_left_out = thread.is_left_out.take() && !name.to_bytes().windows(6).any(|word| word == b"Memcpy");
    let cost = if is_left_out { 0 } else { cost };
    turn::end_call(thread, thread.enter.get(), cost);
    journal::call(thread, name, (call.domain, call.cbid));
}

fn call_back(thread: &Thread, call: &mut Call, site: u32, result: *const u32) {
    let context = thread.context();
    let (handle, uid) = context.map_or((null_mut(), 0), |c| (c.handle(), c.uid));
    with_hooks(|h| (h.api)(call, site, result, handle, uid));
}

/// Whether an activity record is written for the API call. A nested call has callbacks but no activity record, as on
/// the real stack. Seven public traces with runtime and driver calls confirm this: none of their 1,067 driver launches
/// is inside a runtime call.
fn wants_api_record(domain: u32, depth: u32) -> bool {
    if depth > 0 {
        return false;
    }
    let kind = if domain == DRIVER { kind::DRIVER } else { kind::RUNTIME };
    SWITCHES.kinds.load(Relaxed) & (1 << kind) != 0
}

/// In strict mode, aborts if a client's function calls CUDA, because the real stack may then hang. Inside an API
/// callback, a client may only call CUDA functions that synchronise.
#[cold]
fn check_reentry(call: &Call, client: Client) {
    // SAFETY: the name of an API call is a string literal.
    let name = unsafe { CStr::from_ptr(call.name) }.to_string_lossy();
    let legal = client == Client::ApiCallback && name.contains("Synchronize");
    if settings::get().strict && !legal {
        crate::abort!("{name} was called inside the client's {client:?}: the real stack may hang here");
    }
}

/// Runs one driver API function: returns an error unless the driver is ready, otherwise runs it between [`enter`] and
/// [`exit`].
#[inline]
pub fn driver<P>(
    cbid: u32,
    name: &'static CStr,
    params: &P,
    symbol: *const c_char,
    body: impl FnOnce() -> Result<(), u32>,
) -> u32 {
    if let Err(refused) = init::check_ready() {
        return refused;
    }
    let mut call = Call::new(DRIVER, cbid, name, params, symbol);
    enter(&mut call);
    let result = crate::error::code(body());
    exit(&mut call, result);
    result
}
