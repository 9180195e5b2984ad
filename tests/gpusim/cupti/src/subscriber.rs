//! The table of CUPTI clients, with the callbacks and activity kinds that each client has enabled. The first entry of
//! the table is for CUPTI's old interface. In the old interface, calls about records do not pass a subscriber, so all
//! these calls count as calls of one client. The other entries of the table are for clients that call
//! cuptiSubscribe_v2. Each entry has its own activity kinds, buffers and attributes, and is never reused.

use crate::buffers::Registration;
use crate::frames::Callback;
use crate::link::{self, REFUSED, core, version};
use crate::result::{Code, INVALID_PARAMETER, MULTIPLE_SUBSCRIBERS, NOT_COMPATIBLE, answer, parameter};
use crate::{activity, callbacks, contexts, sim_lock, worker};
use gpusim_core::api::MOST_SUBSCRIBERS;
use gpusim_core::arg::{Handle, Out, Text};
use gpusim_core::sync::lock;
use gpusim_core::table::CallbackBits;
use gpusim_core::{callback_ids, settings};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// A CUPTI client.
pub(crate) struct Subscriber {
    /// Index of the client's entry in the table.
    pub(crate) place: usize,
    /// Address of the client's callback function (0: not subscribed), and the function's argument.
    callback: AtomicUsize,
    user: AtomicPtr<c_void>,
    /// Whether the client allows other subscribers.
    shares: AtomicBool,
    name: Mutex<Option<CString>>,
    /// Whether a client has ever subscribed with this entry.
    is_taken: AtomicBool,
    callbacks: CallbackBits,
    /// Bits of the activity kinds that the client has enabled. After a fatal error these bits stay set, although the
    /// core's own switches are off.
    pub(crate) kinds: AtomicU64,
    /// The client's buffer functions and buffers.
    pub(crate) buffers: Registration,
    /// Value of attribute 9; if the client has not set it, the version's default applies.
    per_thread: OnceLock<AtomicBool>,
    /// Attribute values that the client has set, indexed by attribute.
    pub(crate) attributes: [AtomicUsize; 10],
}

/// The table of CUPTI clients.
pub(crate) static ALL: [Subscriber; MOST_SUBSCRIBERS] =
    [Subscriber::new(0), Subscriber::new(1), Subscriber::new(2), Subscriber::new(3)];

/// The client to which calls about records in the old interface refer.
pub(crate) static GLOBAL: &Subscriber = &ALL[0];

/// Callback domains other than the two API domains, each with its last callback id.
const OTHER_DOMAINS: [(u32, u32); 4] = [(3, 25), (4, 2), (5, 130), (6, 3)];

impl Subscriber {
    const fn new(place: usize) -> Subscriber {
        const DEFAULTS: [usize; 10] = [3 << 20, 8 << 20, 250, 64 << 10, 250, 0, 3, 3, 1, 0];
        let mut attributes = [const { AtomicUsize::new(0) }; 10];
        let mut at = 0;
        while at < DEFAULTS.len() {
            attributes[at] = AtomicUsize::new(DEFAULTS[at]);
            at += 1;
        }
        Subscriber {
            place,
            callback: AtomicUsize::new(0),
            user: AtomicPtr::new(ptr::null_mut()),
            shares: AtomicBool::new(false),
            name: Mutex::new(None),
            is_taken: AtomicBool::new(false),
            callbacks: CallbackBits::new(),
            kinds: AtomicU64::new(0),
            buffers: Registration::new(),
            per_thread: OnceLock::new(),
            attributes,
        }
    }

    /// Returns the client's callback function and its argument.
    fn current(&self) -> Option<(Callback, *mut c_void)> {
        let callback = self.callback.load(Ordering::Acquire);
        if callback == 0 {
            return None;
        }
        // SAFETY: only `subscribe` stores a value in this field, the address of a Callback.
        let callback = unsafe { std::mem::transmute::<usize, Callback>(callback) };
        Some((callback, self.user.load(Ordering::Relaxed)))
    }

    /// Returns attribute 9: whether each thread has its own buffers.
    pub(crate) fn per_thread(&self) -> &AtomicBool {
        self.per_thread.get_or_init(|| AtomicBool::new(version().has_thread_buffers()))
    }

    /// Returns the handle by which the client refers to this subscriber.
    fn handle(&'static self) -> Handle {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Whether the client has enabled an activity kind or registered buffer functions.
    pub(crate) fn records(&self) -> bool {
        self.kinds.load(Ordering::Relaxed) != 0 || self.buffers.is_registered()
    }

    fn name(&self) -> MutexGuard<'_, Option<CString>> {
        lock(&self.name)
    }

    fn forget(&self) {
        self.callback.store(0, Ordering::Release);
        self.callbacks.silence();
    }
}

/// Returns the clients that have enabled a callback: their index, callback function and argument.
pub(crate) fn listening(domain: u32, id: u32) -> impl Iterator<Item = (usize, Callback, *mut c_void)> {
    let listens = move |one: &&Subscriber| one.callbacks.is_on(domain, id);
    ALL.iter().filter(listens).filter_map(|one| one.current().map(|(f, user)| (one.place, f, user)))
}

/// Enables, in the core, every callback that at least one client has enabled.
fn renew_switches() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    if let Some(core) = core() {
        core.switches.callbacks.unite(ALL.iter().map(|one| &one.callbacks));
    }
}

/// Enables, in the core, every activity kind that at least one client has enabled.
pub(crate) fn renew_kinds() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    if let Some(core) = core() {
        let all = ALL.iter().fold(contexts::on_in_any(), |all, one| all | one.kinds.load(Ordering::Relaxed));
        core.switches.kinds.store(all, Ordering::Relaxed);
    }
}

/// Returns the table entry for a new subscriber. `shares` is `None` if the client calls the old function; otherwise, it
/// is true if the client allows other subscribers.
fn place_for(shares: Option<bool>) -> Option<&'static Subscriber> {
    let can_share = version().shares(settings::get().driver);
    let admits = |one: &Subscriber| {
        shares == Some(true) && can_share && one.place > 0 && one.shares.load(Ordering::Relaxed)
    };
    if settings::get().other_subscriber || !ALL.iter().filter(|one| one.current().is_some()).all(admits) {
        return None;
    }
    match shares {
        None => Some(GLOBAL),
        Some(_) => ALL[1..].iter().find(|one| !one.is_taken.load(Ordering::Relaxed)),
    }
}

fn subscribe(
    out: Out<Handle>,
    callback: Option<Callback>,
    user: *mut c_void,
    new: Option<(bool, &CStr)>,
) -> Result<(), Code> {
    let callback = callback.ok_or(INVALID_PARAMETER)?;
    let core = link::initialized()?;
    let _lock = sim_lock::hold("cuptiSubscribe");
    let one = place_for(new.map(|(shares, _)| shares)).ok_or(MULTIPLE_SUBSCRIBERS)?;
    parameter(out.set(one.handle()))?;
    if let Some((shares, name)) = new {
        one.shares.store(shares, Ordering::Relaxed);
        *one.name() = Some(name.to_owned());
    }
    one.is_taken.store(true, Ordering::Relaxed);
    one.user.store(user, Ordering::Relaxed);
    one.callback.store(callback as usize, Ordering::Release);
    (core.attach)(&callbacks::HOOKS);
    Ok(())
}

/// Sets `REFUSED` if a subscription failed and no client is subscribed; otherwise, clears `REFUSED`.
fn note(result: Result<(), Code>) -> Code {
    REFUSED.store(result.is_err() && ALL.iter().all(|one| one.current().is_none()), Ordering::Relaxed);
    answer(result)
}

/// Unsubscribes all clients, which stops all callbacks. Other tools may then subscribe.
pub(crate) fn forget() {
    ALL.iter().for_each(Subscriber::forget);
    renew_switches();
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe(out: Out<Handle>, callback: Option<Callback>, user: *mut c_void) -> Code {
    note(subscribe(out, callback, user, None))
}

/// CUpti_SubscriberParams of CUPTI 13.0.
#[repr(C)]
struct Params {
    size: usize,
    name: *const c_char,
    old_name: *mut c_char,
    old_name_size: usize,
}

/// CUpti_SubscriberParams of CUPTI 13.2.
#[repr(C)]
struct LongParams {
    short: Params,
    shares: u8,
}

/// Size of the longer of the two structs, in bytes.
const LONG: usize = 40;

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe_v2(
    out: Out<Handle>,
    callback: Option<Callback>,
    user: *mut c_void,
    params: *mut Params,
) -> Code {
    // SAFETY: the caller passes NULL or a filled CUpti_SubscriberParams.
    let Some(short) = (unsafe { params.as_ref() }).filter(|p| p.size >= size_of::<Params>()) else {
        return answer(Err(INVALID_PARAMETER));
    };
    // SAFETY: the caller passes a filled CUpti_SubscriberParams, whose size field covers the longer struct.
    let shares = short.size >= LONG && unsafe { (*params.cast::<LongParams>()).shares } != 0;
    let name = if short.name.is_null() {
        c"unnamed"
    } else {
        // SAFETY: the caller passes a filled CUpti_SubscriberParams, whose name is a C string.
        unsafe { CStr::from_ptr(short.name) }
    };
    let result = subscribe(out, callback, user, Some((shares, name)));
    if result == Err(MULTIPLE_SUBSCRIBERS) {
        let other = ALL.iter().find(|one| one.current().is_some() && one.place > 0);
        let other = other.and_then(|one| one.name().clone());
        let other = other.unwrap_or_else(|| c"gpusim-other-tool".to_owned());
        let _ = gpusim_core::arg::copy_text(&other, Out(short.old_name), short.old_name_size);
    }
    note(result)
}

fn check(subscriber: Handle) -> Result<&'static Subscriber, Code> {
    let is_it = |one: &&'static Subscriber| one.handle() == subscriber && one.current().is_some();
    ALL.iter().find(is_it).ok_or(INVALID_PARAMETER)
}

/// Returns the client to which a call about records refers. In a process, either all calls about records pass a
/// subscriber, or none of them does.
pub(crate) fn of_records(subscriber: Option<Handle>) -> Result<&'static Subscriber, Code> {
    let one = subscriber.map_or(Ok(GLOBAL), check)?;
    let is_other = |other: &&Subscriber| (other.place == 0) != subscriber.is_none();
    if subscriber.is_some() && one.place == 0 {
        return Err(NOT_COMPATIBLE);
    }
    if ALL.iter().filter(is_other).any(Subscriber::records) { Err(NOT_COMPATIBLE) } else { Ok(one) }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiUnsubscribe(subscriber: Handle) -> Code {
    let leave = |one: &Subscriber| {
        one.forget();
        renew_switches();
        if one.place > 0 {
            one.kinds.store(0, Ordering::Relaxed);
            renew_kinds();
            one.buffers.forget();
        }
    };
    answer(check(subscriber).map(leave))
}

fn last_id(domain: u32) -> Option<u32> {
    let other = OTHER_DOMAINS.iter().find(|(d, _)| *d == domain).map(|(_, last)| *last);
    let api = matches!(domain, callback_ids::DRIVER | callback_ids::RUNTIME)
        .then(|| version().last_callback(domain));
    api.or(other)
}

fn enable(on: u32, subscriber: Handle, domain: u32, id: Option<u32>) -> Result<(), Code> {
    let one = check(subscriber)?;
    link::ready()?;
    let last = last_id(domain).ok_or(INVALID_PARAMETER)?;
    let ids = match id {
        Some(id) if id == 0 || id > last => return Err(INVALID_PARAMETER),
        Some(id) => id..=id,
        None => 1..=last,
    };
    for id in ids {
        one.callbacks.set(domain, id, on != 0);
    }
    renew_switches();
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
        let one = check(subscriber)?;
        link::ready()?;
        parameter(on.set(u32::from(one.callbacks.is_on(domain, id))))
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

/// Detaches CUPTI: ends callbacks and recording, and drops the clients' buffers.
#[unsafe(no_mangle)]
extern "C" fn cuptiFinalize() -> Code {
    if let Err(code) = link::loaded() {
        return code;
    }
    activity::check_no_flush();
    forget();
    worker::detach();
    0
}
