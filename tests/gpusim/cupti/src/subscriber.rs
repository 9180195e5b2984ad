//! The one subscriber, and what it has switched on.

use crate::frames::Callback;
use crate::link::{self, REFUSED, core, version};
use crate::result::{Code, INVALID_PARAMETER, MULTIPLE_SUBSCRIBERS, answer, parameter};
use crate::sim_lock;
use crate::{callbacks, worker};
use gpusim_core::arg::{Handle, Out, Text};
use gpusim_core::{callback_ids, settings};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The client's function as an address (0: nobody subscribes) and its argument.
static CALLBACK: AtomicUsize = AtomicUsize::new(0);
static USER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Domains other than the API's and the last id of each.
const OTHER_DOMAINS: [(u32, u32); 4] = [(3, 25), (4, 2), (5, 130), (6, 3)];

/// The client's function and argument.
pub(crate) fn current() -> Option<(Callback, *mut c_void)> {
    let callback = CALLBACK.load(Ordering::Acquire);
    if callback == 0 {
        return None;
    }
    // SAFETY: only `subscribe` stores here, a Callback's address.
    let callback = unsafe { std::mem::transmute::<usize, Callback>(callback) };
    Some((callback, USER.load(Ordering::Relaxed)))
}

/// What a subscriber's handle points to.
fn handle() -> Handle {
    (&raw const CALLBACK).cast_mut().cast()
}

fn subscribe(out: Out<Handle>, callback: Option<Callback>, user: *mut c_void) -> Result<(), Code> {
    let callback = callback.ok_or(INVALID_PARAMETER)?;
    let core = link::initialized()?;
    let _lock = sim_lock::hold("cuptiSubscribe");
    if settings::get().other_subscriber || current().is_some() {
        return Err(MULTIPLE_SUBSCRIBERS);
    }
    parameter(out.set(handle()))?;
    USER.store(user, Ordering::Relaxed);
    CALLBACK.store(callback as usize, Ordering::Release);
    (core.attach)(&callbacks::HOOKS);
    Ok(())
}

/// Stops all callbacks; the next tool may subscribe.
pub(crate) fn forget() {
    CALLBACK.store(0, Ordering::Release);
    if let Some(core) = core() {
        core.switches.silence();
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe(out: Out<Handle>, callback: Option<Callback>, user: *mut c_void) -> Code {
    let result = subscribe(out, callback, user);
    REFUSED.store(result.is_err(), Ordering::Relaxed);
    answer(result)
}

/// CUpti_SubscriberParams as of 13.0; later ones are longer.
#[repr(C)]
struct Params {
    size: usize,
    name: *const c_char,
    old_name: *mut c_char,
    old_name_size: usize,
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe_v2(
    out: Out<Handle>,
    callback: Option<Callback>,
    user: *mut c_void,
    params: *mut Params,
) -> Code {
    // SAFETY: the contract of the function: NULL or a filled CUpti_SubscriberParams.
    let params = unsafe { params.as_ref() };
    if params.is_none_or(|p| p.size < size_of::<Params>()) {
        return answer(Err(INVALID_PARAMETER));
    }
    let result = subscribe(out, callback, user);
    if let (Err(MULTIPLE_SUBSCRIBERS), Some(p)) = (result, params) {
        let _ = gpusim_core::arg::copy_text(c"gpusim-other-tool", Out(p.old_name), p.old_name_size);
    }
    REFUSED.store(result.is_err(), Ordering::Relaxed);
    answer(result)
}

fn check(subscriber: Handle) -> Result<(), Code> {
    if subscriber == handle() && current().is_some() { Ok(()) } else { Err(INVALID_PARAMETER) }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiUnsubscribe(subscriber: Handle) -> Code {
    answer(check(subscriber).map(|()| forget()))
}

fn last_id(domain: u32) -> Option<u32> {
    let other = OTHER_DOMAINS.iter().find(|(d, _)| *d == domain).map(|(_, last)| *last);
    let api = matches!(domain, callback_ids::DRIVER | callback_ids::RUNTIME)
        .then(|| version().last_callback(domain));
    api.or(other)
}

fn enable(on: u32, subscriber: Handle, domain: u32, id: Option<u32>) -> Result<(), Code> {
    check(subscriber)?;
    let core = link::ready()?;
    let last = last_id(domain).ok_or(INVALID_PARAMETER)?;
    let ids = match id {
        Some(id) if id == 0 || id > last => return Err(INVALID_PARAMETER),
        Some(id) => id..=id,
        None => 1..=last,
    };
    for id in ids {
        core.switches.set(domain, id, on != 0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableCallback(on: u32, subscriber: Handle, domain: u32, id: u32) -> Code {
    answer(enable(on, subscriber, domain, Some(id)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableDomain(on: u32, subscriber: Handle, domain: u32) -> Code {
    answer(enable(on, subscriber, domain, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableAllDomains(on: u32, subscriber: Handle) -> Code {
    answer((1..=6).try_for_each(|domain| enable(on, subscriber, domain, None)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetCallbackState(on: Out<u32>, subscriber: Handle, domain: u32, id: u32) -> Code {
    let state = || {
        check(subscriber)?;
        let core = link::ready()?;
        parameter(on.set(u32::from(core.switches.is_on(domain, id))))
    };
    answer(state())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetCallbackName(domain: u32, id: u32, name: Out<Text>) -> Code {
    let found = || {
        link::loaded()?;
        let found = callback_ids::name(version(), domain, id).ok_or(INVALID_PARAMETER)?;
        parameter(name.set(Text(found.as_ptr())))
    };
    answer(found())
}

/// Detaches: callbacks and recording end, buffers that are out are forgotten.
#[unsafe(no_mangle)]
extern "C" fn cuptiFinalize() -> Code {
    if let Err(code) = link::loaded() {
        return code;
    }
    forget();
    worker::detach();
    0
}
