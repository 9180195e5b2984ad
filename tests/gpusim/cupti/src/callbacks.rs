//! Passes the core's callbacks on to the CUPTI clients.

use crate::link::core;
use crate::{frames, lanes, subscriber, worker};
use gpusim_core::api::Call;
use gpusim_core::callback_ids::{DRIVER, RUNTIME};
use gpusim_core::faults::Fault;
use gpusim_core::settings;
use gpusim_core::table::Hooks;
use gpusim_core::thread::Client;
use std::ffi::{c_char, c_void};

/// Functions of this library that the core calls.
pub(crate) static HOOKS: Hooks = Hooks {
    api,
    resource,
    synchronize,
    record: lanes::record,
    api_record: lanes::record_api,
    dependency: lanes::record_dependency,
    unified: lanes::record_move,
    stop: worker::stop,
};

const RESOURCE: u32 = 3;
const SYNCHRONIZE: u32 = 4;
const STATE: u32 = 6;
const FATAL_ERROR: u32 = 1;

/// CUpti_CallbackData
#[repr(C)]
struct CallbackData {
    site: u32,
    name: *const c_char,
    params: *const c_void,
    result: *const u32,
    symbol: *const c_char,
    context: *mut c_void,
    context_uid: u32,
    correlation_data: *mut u64,
    correlation: u32,
}

const _: () = assert!(size_of::<CallbackData>() == 72, "unchanged from 11.8 to 13.5");

/// CUpti_ResourceData
#[repr(C)]
struct ResourceData {
    context: *mut c_void,
    stream: *mut c_void,
    descriptor: *mut c_void,
}

/// CUpti_SynchronizeData
#[repr(C)]
struct SynchronizeData {
    context: *mut c_void,
    stream: *mut c_void,
}

/// CUpti_StateData
#[repr(C)]
struct StateData {
    result: u32,
    message: *const c_char,
}

#[inline(never)]
extern "C" fn api(call: &mut Call, site: u32, result: *const u32, context: *mut c_void, context_uid: u32) {
    let slots = (&raw mut call.data).cast::<u64>();
    let data = |place: usize| CallbackData {
        site,
        name: call.name,
        params: call.params,
        result,
        symbol: call.symbol,
        context,
        context_uid,
        correlation_data: slots.wrapping_add(place),
        correlation: call.correlation,
    };
    tell(Client::ApiCallback, call.domain, call.cbid, data);
}

extern "C" fn resource(id: u32, context: *mut c_void, stream: *mut c_void, descriptor: *mut c_void) {
    if core().is_some_and(|c| c.switches.is_on(RESOURCE, id)) {
        tell(Client::ResourceCallback, RESOURCE, id, |_| ResourceData { context, stream, descriptor });
    }
}

extern "C" fn synchronize(id: u32, context: *mut c_void, stream: *mut c_void) {
    if core().is_some_and(|c| c.switches.is_on(SYNCHRONIZE, id)) {
        tell(Client::SynchronizeCallback, SYNCHRONIZE, id, |_| SynchronizeData { context, stream });
    }
}

/// Makes the STATE callback with which CUPTI reports a fatal error. After this error, CUPTI no longer works.
pub(crate) fn fatal_error() {
    if core().is_some_and(|c| c.switches.is_on(STATE, FATAL_ERROR)) {
        let message = c"simulated fatal error".as_ptr();
        tell(Client::StateCallback, STATE, FATAL_ERROR, |_| StateData { result: 999, message });
    }
}

/// Counts a callback in this callback domain. Returns true if the fault `null_data` requires that the callback is
/// repeated without data.
fn comes_without_data(domain: u32) -> bool {
    let is_api_call = matches!(domain, DRIVER | RUNTIME);
    (is_api_call || domain == RESOURCE) && settings::get().faults.comes_without_data(is_api_call)
}

/// Calls each client that has enabled the callback. `data` builds the callback's data for a client, given the client's
/// index in the table of subscribers.
fn tell<T>(client: Client, domain: u32, id: u32, data: impl Fn(usize) -> T) {
    let Some(core) = core() else { return };
    let before = (core.swap_client)(client);
    for (place, callback, user) in subscriber::listening(domain, id) {
        frames::call(callback, user, domain, id, std::ptr::from_ref(&data(place)).cast());
        if comes_without_data(domain) {
            (core.count_fault)(Fault::NullData);
            frames::call(callback, user, domain, id, std::ptr::null());
        }
    }
    (core.swap_client)(before);
}
