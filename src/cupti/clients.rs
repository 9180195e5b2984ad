//! Other clients of CUPTI in this process, seen where they call it.
//!
//! CUPTI has one subscriber and one pair of functions for records, and whoever registers functions last has all records: nobody is
//! told. So functions of ours stand in the place of the few by which a client comes and goes ([`interpose`]). They pass every
//! call on as it is, and note it:
//!
//! ```text
//! registers functions   before: what is complete comes to us, and what we have set is put back;   after: it has the records
//! enables, disables     it is at work; all that it enabled is off and flushed: it is done, and we may have the records again
//! enables, functions    it is given the records again that it had before: it does not know that we took them back
//! known and not in use
//! subscribes, is refused    on request we let go, and the call is made again
//! ends CUPTI            before: what is complete comes to us, and no call of the program is under way; after: we subscribe again
//! ```
//!
//! While we take what a client has left ([`taking`]), one that comes waits, for a second at most; and where one has come
//! meanwhile nothing is taken.
//!
//! Who was given the address of a function before we came is not seen here; that nothing comes any more tells of him
//! ([`Traffic`](super::Traffic)).

use super::family::Functions;
use super::records;
use super::shared::{Shared, current};
use crate::host::interpose::{self, Place};
use crate::host::{cancel, threads};
use crate::tracer::{Approach, Tracer};
use cupti_sys::{ActivityKind, FlushFlag, Library, Status, Subscriber};
use std::ffi::c_void;
use std::io;
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

/// How long clients have to be at rest before anything is taken back.
const REST: Duration = Duration::from_secs(1);

/// How long a client waits for us.
const LONGEST_TAKING: Duration = Duration::from_secs(1);

/// What other clients have, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// How often one asked for the records.
    pub takes: u64,
    /// Whether one has them now.
    pub have_records: bool,
    /// Whether any kind of records is on that they enabled.
    pub are_at_work: bool,
    /// Whether what they switched, or have left, is to be taken back, and they have been at rest for a while.
    pub are_done: bool,
    /// Whether one waits for the subscription, which was refused to it.
    pub want_subscription: bool,
    /// Whether one waits to end CUPTI.
    pub want_end: bool,
    /// Whether one has it that was seen to subscribe.
    pub have_subscription: bool,
    /// How often one has ended CUPTI in this process, for all.
    pub ends: u64,
    /// Whether none has called for a while, and no call is under way.
    pub rest: bool,
    /// How many calls there were.
    pub calls: u64,
}

/// What is known of them. One a process, as CUPTI is.
struct Known {
    /// Calls so far, and those that are under way.
    calls: AtomicU64,
    under_way: AtomicU64,
    /// When one began or ended last, in ms since [`BEGINNING`].
    called: AtomicU64,
    /// We take what they have left: who comes waits.
    is_taking: AtomicBool,

    takes: AtomicU64,
    has_records: AtomicBool,
    /// Functions that were registered last, by another than us; null: none were.
    requested: AtomicPtr<c_void>,
    completed: AtomicPtr<c_void>,
    /// The clock for its records, if it registered one; and whether it is CUPTI's now.
    clock: AtomicPtr<c_void>,
    clock_is_theirs: AtomicBool,
    /// Kinds of records that they have enabled, a bit each; whether any was for one context alone, whose end is not seen.
    kinds: AtomicU64,
    by_context: AtomicBool,
    /// Whether any kind was switched since the records were ours, and whether a flush has followed.
    is_switched: AtomicBool,
    is_flushed: AtomicBool,

    yields: AtomicBool,
    wants_subscription: AtomicBool,
    wants_end: AtomicBool,
    subscriber: AtomicPtr<c_void>,
    ends: AtomicU64,
}

static KNOWN: Known = Known {
    calls: AtomicU64::new(0),
    under_way: AtomicU64::new(0),
    called: AtomicU64::new(0),
    is_taking: AtomicBool::new(false),
    takes: AtomicU64::new(0),
    has_records: AtomicBool::new(false),
    requested: AtomicPtr::new(ptr::null_mut()),
    completed: AtomicPtr::new(ptr::null_mut()),
    clock: AtomicPtr::new(ptr::null_mut()),
    clock_is_theirs: AtomicBool::new(false),
    kinds: AtomicU64::new(0),
    by_context: AtomicBool::new(false),
    is_switched: AtomicBool::new(false),
    is_flushed: AtomicBool::new(false),
    yields: AtomicBool::new(false),
    wants_subscription: AtomicBool::new(false),
    wants_end: AtomicBool::new(false),
    subscriber: AtomicPtr::new(ptr::null_mut()),
    ends: AtomicU64::new(0),
};

static BEGINNING: OnceLock<Instant> = OnceLock::new();

fn millis() -> u64 {
    BEGINNING.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// What other clients have now.
pub(super) fn others() -> Others {
    let calls = KNOWN.calls.load(SeqCst);
    let is_quiet = millis().saturating_sub(KNOWN.called.load(SeqCst)) >= REST.as_millis() as u64;
    let rest = is_quiet && KNOWN.under_way.load(SeqCst) == 0;
    let have_records = KNOWN.has_records.load(SeqCst);
    let are_at_work = KNOWN.kinds.load(SeqCst) != 0 || KNOWN.by_context.load(SeqCst);
    let are_off = KNOWN.is_switched.load(SeqCst) && (!have_records || KNOWN.is_flushed.load(SeqCst));
    let is_clock_left = KNOWN.clock_is_theirs.load(SeqCst) && !have_records;
    Others {
        takes: KNOWN.takes.load(SeqCst),
        have_records,
        are_at_work,
        are_done: !are_at_work && rest && (are_off || is_clock_left),
        want_subscription: KNOWN.wants_subscription.load(SeqCst),
        want_end: KNOWN.wants_end.load(SeqCst),
        have_subscription: !KNOWN.subscriber.load(SeqCst).is_null(),
        ends: KNOWN.ends.load(SeqCst),
        rest,
        calls,
    }
}

/// Takes what `decided` says that others have left, if that is so still: nobody comes while `take` runs, which asks for the
/// records. What it failed to take is theirs again.
pub(super) fn taking<R: Default, E>(
    functions: &Functions,
    decided: Option<&Others>,
    take: impl FnOnce() -> Result<R, E>,
) -> Result<R, E> {
    KNOWN.is_taking.store(true, SeqCst);
    let has_come =
        |decided: &Others| KNOWN.under_way.load(SeqCst) > 0 || KNOWN.calls.load(SeqCst) != decided.calls;
    let taken = if decided.is_some_and(has_come) {
        Ok(R::default())
    } else {
        if KNOWN.clock_is_theirs.swap(false, SeqCst) {
            let _ = functions.register_clock(usual_clock);
        }
        let had_records = KNOWN.has_records.swap(false, SeqCst);
        let taken = take();
        if taken.is_ok() {
            KNOWN.is_switched.store(false, SeqCst);
        } else if had_records {
            give_back(functions.library());
        }
        taken
    };
    KNOWN.is_taking.store(false, SeqCst);
    taken
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
    KNOWN.yields.store(yields, SeqCst);
    millis();
    let places: Vec<_> = places::<T>(library).into_iter().filter(|place| place.theirs != 0).collect();
    interpose::take(&places)
}

fn places<T: Tracer>(library: &Library) -> [Place; 10] {
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
        place!(cuptiActivityEnableContext, activity_enable_context, enable_context::<T>, SwitchContext),
        place!(cuptiActivityDisable, activity_disable, disable, Switch),
        place!(cuptiActivityFlushAll, activity_flush_all, flush, Flush),
        place!(cuptiSubscribe, subscribe, subscribe::<T>, Subscribe),
        place!(cuptiSubscribe_v2, subscribe_v2, subscribe_v2::<T>, SubscribeV2),
        place!(cuptiUnsubscribe, unsubscribe, unsubscribe, Unsubscribe),
        place!(cuptiFinalize, finalize, finalize::<T>, Finalize),
    ]
}

// As in `cupti_sys`, but for functions, which clients may hand over as null; and an exception that one throws in a function of
// its own, which the library calls, passes through.
type Register = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> Status;
type Clock = unsafe extern "C-unwind" fn(*mut c_void) -> Status;
type Switch = unsafe extern "C-unwind" fn(ActivityKind) -> Status;
type SwitchContext = unsafe extern "C-unwind" fn(*mut c_void, ActivityKind) -> Status;
type Flush = unsafe extern "C-unwind" fn(FlushFlag) -> Status;
type Subscribe = unsafe extern "C-unwind" fn(*mut Subscriber, *mut c_void, *mut c_void) -> Status;
type SubscribeV2 =
    unsafe extern "C-unwind" fn(*mut Subscriber, *mut c_void, *mut c_void, *mut c_void) -> Status;
type Unsubscribe = unsafe extern "C-unwind" fn(Subscriber) -> Status;
type Finalize = unsafe extern "C-unwind" fn() -> Status;

/// A client's call, from its beginning to its end, however it ends.
struct UnderWay;

impl UnderWay {
    fn begin() -> Self {
        KNOWN.under_way.fetch_add(1, SeqCst);
        KNOWN.calls.fetch_add(1, SeqCst);
        KNOWN.called.store(millis(), SeqCst);
        let begin = Instant::now();
        // Both are there before the other is looked for, by either side.
        while KNOWN.is_taking.load(SeqCst) && !threads::is_ours() && begin.elapsed() < LONGEST_TAKING {
            thread::sleep(Duration::from_micros(200));
        }
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        KNOWN.called.store(millis(), SeqCst);
        KNOWN.under_way.fetch_sub(1, SeqCst);
    }
}

/// Passes a call on: `call` gets what it is to be passed on to. Our frames are on the stack meanwhile, so that the thread is not
/// cancelled there.
fn passed(call: impl FnOnce(&'static Shared, &Library) -> Status) -> Status {
    // SAFETY: other clients are seen only when the records have been asked for, for which it was made current.
    let shared = unsafe { current() };
    cancel::barred(|| {
        let _under_way = UnderWay::begin();
        call(shared, shared.functions.library())
    })
}

/// The library's function as one of the type that clients call it by.
macro_rules! theirs {
    ($library:ident.$function:ident as $type:ty) => {
        match $library.$function {
            // SAFETY: the same function: pointers, for which clients may pass null, in the place of functions.
            Some(function) => unsafe { transmute::<*const (), $type>(function as *const ()) },
            None => return Status::API_NOT_IMPLEMENTED,
        }
    };
}

/// Another client is about to have this. What it comes to is passed on before, and done by a thread of ours, which need not
/// be told: it may be in a function of the client's that CUPTI calls.
fn tell<T: Tracer>(shared: &Shared, approach: Approach) {
    if !T::is_over() && !shared.is_off() && !threads::is_ours() {
        shared.guard::<T>(|| T::approached(approach));
    }
}

/// What is complete comes to us, and what we have set for ourselves is put back.
fn leave_records<T: Tracer>(shared: &Shared) {
    if !KNOWN.has_records.load(SeqCst) {
        tell::<T>(shared, Approach::Records);
        if !shared.is_off() {
            records::leave(shared);
        }
    }
}

fn has_taken() {
    KNOWN.takes.fetch_add(1, SeqCst);
    KNOWN.has_records.store(true, SeqCst);
}

unsafe extern "C-unwind" fn register<T: Tracer>(requested: *mut c_void, completed: *mut c_void) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.activity_register_callbacks as Register);
        leave_records::<T>(shared);
        give_clock_back(library);
        // SAFETY: the client's call.
        let status = unsafe { theirs(requested, completed) };
        if status.is_success() {
            KNOWN.requested.store(requested, SeqCst);
            KNOWN.completed.store(completed, SeqCst);
            has_taken();
        }
        status
    })
}

/// Records of before are on the clock of before.
unsafe extern "C-unwind" fn clock<T: Tracer>(clock: *mut c_void) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.register_timestamp_callback as Clock);
        if !KNOWN.has_records.load(SeqCst) {
            tell::<T>(shared, Approach::Records);
        }
        // SAFETY: the client's call.
        let status = unsafe { theirs(clock) };
        if status.is_success() {
            KNOWN.clock.store(clock, SeqCst);
            KNOWN.clock_is_theirs.store(true, SeqCst);
        }
        status
    })
}

/// The client registers a clock once, and does not know that ours came after it.
fn give_clock_back(library: &Library) -> Status {
    let clock = KNOWN.clock.load(SeqCst);
    if clock.is_null() || KNOWN.clock_is_theirs.swap(true, SeqCst) {
        return Status::SUCCESS;
    }
    let register = theirs!(library.register_timestamp_callback as Clock);
    // SAFETY: a clock that the client registered.
    unsafe { register(clock) }
}

/// The same of functions.
fn give_back(library: &Library) -> Status {
    let [requested, completed] = [&KNOWN.requested, &KNOWN.completed].map(|function| function.load(SeqCst));
    if completed.is_null() {
        return Status::SUCCESS;
    }
    give_clock_back(library);
    let register = theirs!(library.activity_register_callbacks as Register);
    // SAFETY: functions that the client registered.
    let status = unsafe { register(requested, completed) };
    if status.is_success() {
        has_taken();
    }
    status
}

/// A kind is about to be on: the client makes use of the records, if it had them.
fn begins_to_work<T: Tracer>(shared: &Shared, library: &Library) {
    if !KNOWN.has_records.load(SeqCst) && !KNOWN.completed.load(SeqCst).is_null() {
        leave_records::<T>(shared);
        give_back(library);
    }
}

/// One is switched. It may be one of ours: there is one switch for all.
fn is_switched() {
    KNOWN.is_flushed.store(false, SeqCst);
    KNOWN.is_switched.store(true, SeqCst);
}

fn bit(kind: ActivityKind) -> u64 {
    1_u64.checked_shl(kind.0).unwrap_or(0)
}

unsafe extern "C-unwind" fn enable<T: Tracer>(kind: ActivityKind) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.activity_enable as Switch);
        begins_to_work::<T>(shared, library);
        // SAFETY: the client's call.
        let status = unsafe { theirs(kind) };
        if status.is_success() {
            KNOWN.kinds.fetch_or(bit(kind), SeqCst);
            is_switched();
        }
        status
    })
}

unsafe extern "C-unwind" fn enable_context<T: Tracer>(context: *mut c_void, kind: ActivityKind) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.activity_enable_context as SwitchContext);
        begins_to_work::<T>(shared, library);
        // SAFETY: the client's call.
        let status = unsafe { theirs(context, kind) };
        if status.is_success() {
            KNOWN.by_context.store(true, SeqCst);
        }
        status
    })
}

unsafe extern "C-unwind" fn disable(kind: ActivityKind) -> Status {
    passed(|_, library| {
        let theirs = theirs!(library.activity_disable as Switch);
        // SAFETY: the client's call.
        let status = unsafe { theirs(kind) };
        if status.is_success() {
            KNOWN.kinds.fetch_and(!bit(kind), SeqCst);
            is_switched();
        }
        status
    })
}

unsafe extern "C-unwind" fn flush(flag: FlushFlag) -> Status {
    passed(|_, library| {
        let theirs = theirs!(library.activity_flush_all as Flush);
        // SAFETY: the client's call.
        let status = unsafe { theirs(flag) };
        if status.is_success() && KNOWN.kinds.load(SeqCst) == 0 {
            KNOWN.is_flushed.store(true, SeqCst);
        }
        status
    })
}

unsafe extern "C-unwind" fn subscribe<T: Tracer>(
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

unsafe extern "C-unwind" fn subscribe_v2<T: Tracer>(
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
    if status == Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && KNOWN.yields.load(SeqCst) && has_it() {
        KNOWN.wants_subscription.store(true, SeqCst);
        tell::<T>(shared, Approach::Subscription);
        if !has_it() {
            // That it was refused at first.
            shared.functions.forget_error();
            status = call();
        }
    }
    if status.is_success() {
        // SAFETY: what the library has just written there.
        KNOWN.subscriber.store(unsafe { out.read() }.0, SeqCst);
    }
    KNOWN.wants_subscription.store(false, SeqCst);
    status
}

unsafe extern "C-unwind" fn unsubscribe(subscriber: Subscriber) -> Status {
    passed(|_, library| {
        let theirs = theirs!(library.unsubscribe as Unsubscribe);
        // SAFETY: the client's call.
        let status = unsafe { theirs(subscriber) };
        if status.is_success() {
            let _ = KNOWN.subscriber.compare_exchange(subscriber.0, ptr::null_mut(), SeqCst, SeqCst);
        }
        status
    })
}

/// Nothing is registered and nobody subscribes any more, neither they nor we. We call nothing from before it on until we
/// subscribe again.
unsafe extern "C-unwind" fn finalize<T: Tracer>() -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.finalize as Finalize);
        if !shared.subscriber().0.is_null() {
            KNOWN.wants_end.store(true, SeqCst);
            tell::<T>(shared, Approach::End);
        }
        let ours = shared.subscriber.swap(ptr::null_mut(), SeqCst);
        shared.is_ended.store(true, SeqCst);
        // SAFETY: the client's call.
        let status = unsafe { theirs() };
        if status.is_success() {
            for function in [&KNOWN.requested, &KNOWN.completed, &KNOWN.clock, &KNOWN.subscriber] {
                function.store(ptr::null_mut(), SeqCst);
            }
            for flag in [&KNOWN.has_records, &KNOWN.clock_is_theirs, &KNOWN.by_context, &KNOWN.is_switched] {
                flag.store(false, SeqCst);
            }
            KNOWN.kinds.store(0, SeqCst);
            records::begin();
            KNOWN.ends.fetch_add(1, SeqCst);
        } else {
            shared.subscriber.store(ours, SeqCst);
            shared.is_ended.store(false, SeqCst);
        }
        KNOWN.wants_end.store(false, SeqCst);
        status
    })
}
