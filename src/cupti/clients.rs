//! Other clients of CUPTI in this process, seen where they call it.
//!
//! CUPTI has one subscriber and one pair of functions for records, and whoever registers functions last has all records: nobody is told.
//! So functions of ours stand in the place of the few by which a client comes and goes ([`interpose`]). They pass every
//! call on as it is, and note it:
//!
//! ```text
//! registers functions   before: what is complete comes to us, and what we have set is put back;   after: it has the records
//! enables, disables     it is at work; all that it enabled is off: it is done, and we may have the records again
//! enables, functions    it is given the records again that it had before: it does not know that we took them back
//! known and not in use
//! subscribes, is refused    on request we let go, and the call is made again
//! ends CUPTI            before: what is complete comes to us, and no call of the program is under way; after: we subscribe again
//! ```
//!
//! Who was given the address of a function before we came is not seen here; that nothing comes any more tells of him
//! ([`Traffic`](super::Traffic)).

use super::family::Functions;
use super::records;
use super::shared::{Shared, current};
use crate::host::cancel;
use crate::host::interpose::{self, Place};
use crate::tracer::{Approach, Tracer};
use cupti_sys::{ActivityKind, FlushFlag, Library, Status, Subscriber};
use std::ffi::c_void;
use std::io;
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a client has to be at rest before what it has is taken back: with Kineto a flush follows what it disables.
const REST: Duration = Duration::from_secs(1);

/// What other clients have, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// How often one asked for the records.
    pub takes: u64,
    /// Whether one has them now.
    pub have_records: bool,
    /// Whether any kind of records is on that they enabled.
    pub are_at_work: bool,
    /// Whether all kinds of records are off that they enabled, and nothing was called for a while.
    pub are_done: bool,
    /// Whether one waits for the subscription, which was refused to it.
    pub want_subscription: bool,
    /// Whether one waits to end CUPTI.
    pub want_end: bool,
    /// Whether one has it that was seen to subscribe.
    pub have_subscription: bool,
    /// How often one has ended CUPTI in this process, for all.
    pub ends: u64,
    /// Whether none has called for a while.
    pub rest: bool,
}

/// What is known of them. One a process, as CUPTI is.
struct Known {
    takes: AtomicU64,
    has_records: AtomicBool,
    /// Functions that were registered last, by another than us; null: none were.
    requested: AtomicPtr<c_void>,
    completed: AtomicPtr<c_void>,
    /// The clock for its records, if it registered one; and whether it is CUPTI's now.
    clock: AtomicPtr<c_void>,
    clock_is_theirs: AtomicBool,
    /// Kinds of records that they have enabled, a bit each, and whether any was switched since the records were ours.
    kinds: AtomicU64,
    any_kind: AtomicBool,
    /// When one called last, in ms since [`BEGINNING`].
    called: AtomicU64,
    yields: AtomicBool,
    wants_subscription: AtomicBool,
    wants_end: AtomicBool,
    subscriber: AtomicPtr<c_void>,
    finalized: AtomicU64,
}

static KNOWN: Known = Known {
    takes: AtomicU64::new(0),
    has_records: AtomicBool::new(false),
    requested: AtomicPtr::new(ptr::null_mut()),
    completed: AtomicPtr::new(ptr::null_mut()),
    clock: AtomicPtr::new(ptr::null_mut()),
    clock_is_theirs: AtomicBool::new(false),
    kinds: AtomicU64::new(0),
    any_kind: AtomicBool::new(false),
    called: AtomicU64::new(0),
    yields: AtomicBool::new(false),
    wants_subscription: AtomicBool::new(false),
    wants_end: AtomicBool::new(false),
    subscriber: AtomicPtr::new(ptr::null_mut()),
    finalized: AtomicU64::new(0),
};

static BEGINNING: OnceLock<Instant> = OnceLock::new();

fn millis() -> u64 {
    BEGINNING.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// What other clients have now.
pub(super) fn others() -> Others {
    let is_set = |flag: &AtomicBool| flag.load(Ordering::Acquire);
    let are_at_work = KNOWN.kinds.load(Ordering::Acquire) != 0;
    let rest = millis().saturating_sub(KNOWN.called.load(Ordering::Acquire)) >= REST.as_millis() as u64;
    Others {
        takes: KNOWN.takes.load(Ordering::Acquire),
        have_records: is_set(&KNOWN.has_records),
        are_at_work,
        are_done: is_set(&KNOWN.any_kind) && !are_at_work && rest,
        want_subscription: is_set(&KNOWN.wants_subscription),
        want_end: is_set(&KNOWN.wants_end),
        have_subscription: !KNOWN.subscriber.load(Ordering::Acquire).is_null(),
        ends: KNOWN.finalized.load(Ordering::Acquire),
        rest,
    }
}

/// The records are about to be ours, and on CUPTI's own clock.
pub(super) fn take_clock(functions: &Functions) {
    if KNOWN.clock_is_theirs.swap(false, Ordering::AcqRel) {
        let _ = functions.register_clock(usual_clock);
    }
}

/// Our functions are registered, and the kinds that we want are enabled.
pub(super) fn records_are_ours() {
    KNOWN.has_records.store(false, Ordering::Release);
    KNOWN.any_kind.store(KNOWN.kinds.load(Ordering::Acquire) != 0, Ordering::Release);
}

/// What CUPTI's clock is if nobody registers one.
unsafe extern "C" fn usual_clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for one.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sees other clients from now on. `yields`: the subscription is theirs if they want it.
///
/// # Errors
/// Memory of this process cannot be written as a file.
pub(super) fn see<T: Tracer>(library: &Library, yields: bool) -> io::Result<usize> {
    KNOWN.yields.store(yields, Ordering::Release);
    millis();
    let places: Vec<_> = places::<T>(library).into_iter().filter(|place| place.theirs != 0).collect();
    interpose::take(&places)
}

fn places<T: Tracer>(library: &Library) -> [Place; 9] {
    macro_rules! place {
        ($symbol:ident, $theirs:ident, $ours:expr, $type:ty) => {{
            let ours: $type = $ours;
            Place {
                name: stringify!($symbol),
                theirs: library.$theirs.map_or(0, |function| function as usize),
                ours: ours as usize,
            }
        }};
    }
    [
        place!(cuptiActivityRegisterCallbacks, activity_register_callbacks, register::<T>, Register),
        place!(cuptiActivityRegisterTimestampCallback, register_timestamp_callback, clock::<T>, Clock),
        place!(cuptiActivityEnable, activity_enable, enable::<T>, Switch),
        place!(cuptiActivityDisable, activity_disable, disable, Switch),
        place!(cuptiActivityFlushAll, activity_flush_all, flush, Flush),
        place!(cuptiSubscribe, subscribe, subscribe::<T>, Subscribe),
        place!(cuptiSubscribe_v2, subscribe_v2, subscribe_v2::<T>, SubscribeV2),
        place!(cuptiUnsubscribe, unsubscribe, unsubscribe, Unsubscribe),
        place!(cuptiFinalize, finalize, finalize::<T>, Finalize),
    ]
}

// As in `cupti_sys`, but for functions, which clients may hand over as null.
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status;
type Clock = unsafe extern "C" fn(*mut c_void) -> Status;
type Switch = unsafe extern "C" fn(ActivityKind) -> Status;
type Flush = unsafe extern "C" fn(FlushFlag) -> Status;
type Subscribe = unsafe extern "C" fn(*mut Subscriber, *mut c_void, *mut c_void) -> Status;
type SubscribeV2 = unsafe extern "C" fn(*mut Subscriber, *mut c_void, *mut c_void, *mut c_void) -> Status;
type Unsubscribe = unsafe extern "C" fn(Subscriber) -> Status;
type Finalize = unsafe extern "C" fn() -> Status;

/// Passes a call on: `call` gets what it is to be passed on to. Our frames are on the stack meanwhile, so that the thread is not
/// cancelled there.
fn passed(call: impl FnOnce(&'static Shared, &Library) -> Status) -> Status {
    // SAFETY: other clients are seen only when the records have been asked for, for which it was made current.
    let shared = unsafe { current() };
    let status = cancel::barred(|| call(shared, shared.functions.library()));
    KNOWN.called.store(millis(), Ordering::Release);
    status
}

/// The library's function, if need be as one of the type that clients call it by.
macro_rules! theirs {
    ($library:ident.$function:ident) => {
        match $library.$function {
            Some(function) => function,
            None => return Status::API_NOT_IMPLEMENTED,
        }
    };
    ($library:ident.$function:ident as $type:ty) => {{
        let function = theirs!($library.$function) as *const ();
        // SAFETY: the same function: pointers, for which clients may pass null, in the place of functions.
        unsafe { transmute::<*const (), $type>(function) }
    }};
}

/// Another client is about to have this. What it comes to is passed on before, and by a thread of ours.
fn tell<T: Tracer>(shared: &Shared, approach: Approach) {
    if !T::is_over() && !shared.is_off() {
        shared.guard::<T>(|| T::approached(approach));
    }
}

/// What is complete comes to us, and what we have set for ourselves is put back.
fn leave_records<T: Tracer>(shared: &Shared) {
    if !KNOWN.has_records.load(Ordering::Acquire) && !shared.subscriber().0.is_null() {
        tell::<T>(shared, Approach::Records);
        if !shared.is_off() {
            records::leave(shared);
        }
    }
}

fn has_taken() {
    KNOWN.takes.fetch_add(1, Ordering::AcqRel);
    KNOWN.has_records.store(true, Ordering::Release);
}

unsafe extern "C" fn register<T: Tracer>(requested: *mut c_void, completed: *mut c_void) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.activity_register_callbacks as Register);
        leave_records::<T>(shared);
        // SAFETY: the client's call.
        let status = unsafe { theirs(requested, completed) };
        if status.is_success() {
            KNOWN.requested.store(requested, Ordering::Release);
            KNOWN.completed.store(completed, Ordering::Release);
            has_taken();
        }
        status
    })
}

/// Records of before are on the clock of before.
unsafe extern "C" fn clock<T: Tracer>(clock: *mut c_void) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.register_timestamp_callback as Clock);
        leave_records::<T>(shared);
        // SAFETY: the client's call.
        let status = unsafe { theirs(clock) };
        if status.is_success() {
            KNOWN.clock.store(clock, Ordering::Release);
            KNOWN.clock_is_theirs.store(true, Ordering::Release);
        }
        status
    })
}

fn bit(kind: ActivityKind) -> u64 {
    1_u64.checked_shl(kind.0).unwrap_or(0)
}

unsafe extern "C" fn enable<T: Tracer>(kind: ActivityKind) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.activity_enable);
        if !KNOWN.has_records.load(Ordering::Acquire) {
            give_back::<T>(shared, library);
        }
        // SAFETY: the client's call.
        let status = unsafe { theirs(kind) };
        if status.is_success() {
            KNOWN.kinds.fetch_or(bit(kind), Ordering::AcqRel);
            KNOWN.any_kind.store(true, Ordering::Release);
        }
        status
    })
}

/// The client had the records, and does not know that we took them back while it made no use of them.
fn give_back<T: Tracer>(shared: &Shared, library: &Library) -> Status {
    let [requested, completed, clock] =
        [&KNOWN.requested, &KNOWN.completed, &KNOWN.clock].map(|function| function.load(Ordering::Acquire));
    if completed.is_null() {
        return Status::SUCCESS;
    }
    leave_records::<T>(shared);
    if !clock.is_null() && !KNOWN.clock_is_theirs.swap(true, Ordering::AcqRel) {
        let register_clock = theirs!(library.register_timestamp_callback as Clock);
        // SAFETY: a clock that the client registered.
        let _ = unsafe { register_clock(clock) };
    }
    let register = theirs!(library.activity_register_callbacks as Register);
    // SAFETY: functions that the client registered.
    let status = unsafe { register(requested, completed) };
    if status.is_success() {
        has_taken();
    }
    status
}

unsafe extern "C" fn disable(kind: ActivityKind) -> Status {
    passed(|_, library| {
        let theirs = theirs!(library.activity_disable);
        // SAFETY: the client's call.
        let status = unsafe { theirs(kind) };
        if status.is_success() {
            KNOWN.kinds.fetch_and(!bit(kind), Ordering::AcqRel);
            // It may be one of ours: there is one switch for all.
            KNOWN.any_kind.store(true, Ordering::Release);
        }
        status
    })
}

unsafe extern "C" fn flush(flag: FlushFlag) -> Status {
    passed(|_, library| {
        let theirs = theirs!(library.activity_flush_all);
        // SAFETY: the client's call.
        unsafe { theirs(flag) }
    })
}

unsafe extern "C" fn subscribe<T: Tracer>(
    out: *mut Subscriber,
    callback: *mut c_void,
    data: *mut c_void,
) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.subscribe as Subscribe);
        // SAFETY: the client's call.
        subscribed::<T>(shared, out, || unsafe { theirs(out, callback, data) })
    })
}

unsafe extern "C" fn subscribe_v2<T: Tracer>(
    out: *mut Subscriber,
    callback: *mut c_void,
    data: *mut c_void,
    about: *mut c_void,
) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.subscribe_v2 as SubscribeV2);
        // SAFETY: the client's call.
        subscribed::<T>(shared, out, || unsafe { theirs(out, callback, data, about) })
    })
}

/// Makes the call, and once more where it is refused and we may let go.
fn subscribed<T: Tracer>(shared: &Shared, out: *const Subscriber, call: impl Fn() -> Status) -> Status {
    let has_it = || !shared.subscriber().0.is_null();
    let mut status = call();
    if status == Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        && KNOWN.yields.load(Ordering::Acquire)
        && has_it()
    {
        KNOWN.wants_subscription.store(true, Ordering::Release);
        tell::<T>(shared, Approach::Subscription);
        if !has_it() {
            // That it was refused at first.
            shared.functions.forget_error();
            status = call();
        }
    }
    if status.is_success() {
        // SAFETY: what the library has just written there.
        KNOWN.subscriber.store(unsafe { out.read() }.0, Ordering::Release);
    }
    KNOWN.wants_subscription.store(false, Ordering::Release);
    status
}

unsafe extern "C" fn unsubscribe(subscriber: Subscriber) -> Status {
    passed(|_, library| {
        let theirs = theirs!(library.unsubscribe);
        // SAFETY: the client's call.
        let status = unsafe { theirs(subscriber) };
        if status.is_success() {
            let (held, none) = (subscriber.0, ptr::null_mut());
            let _ = KNOWN.subscriber.compare_exchange(held, none, Ordering::AcqRel, Ordering::Acquire);
        }
        status
    })
}

/// Nothing is registered and nobody subscribes any more, neither they nor we.
unsafe extern "C" fn finalize<T: Tracer>() -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.finalize);
        if !shared.subscriber().0.is_null() {
            KNOWN.wants_end.store(true, Ordering::Release);
            tell::<T>(shared, Approach::End);
        }
        // SAFETY: the client's call.
        let status = unsafe { theirs() };
        if status.is_success() {
            for function in [&KNOWN.requested, &KNOWN.completed, &KNOWN.clock, &KNOWN.subscriber] {
                function.store(ptr::null_mut(), Ordering::Release);
            }
            KNOWN.kinds.store(0, Ordering::Release);
            KNOWN.finalized.fetch_add(1, Ordering::AcqRel);
        }
        KNOWN.wants_end.store(false, Ordering::Release);
        status
    })
}
