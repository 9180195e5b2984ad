//! Other clients of CUPTI in this process, seen where they call it.
//!
//! CUPTI has one subscriber and one pair of functions for records, and whoever registers functions last has all records: nobody is
//! told. So functions of ours stand in the place of the few by which a client comes and goes ([`interpose`]). They pass every
//! call on as it is, and note it:
//!
//! ```text
//! registers functions   before: our kinds are disabled, our settings restored and our complete records flushed;
//! or a clock            after: it has the records
//! enables, disables     it is at work; all that it enabled is off and flushed: it is done, and we may have the records again
//! enables, functions    it is given the records again that it had before: it does not know that we took them back. Not if the
//! known and not in use  module of its functions was unloaded
//! subscribes, is refused    on request we let go, and the call is made again
//! ends CUPTI            before: what is complete comes to us, and no call of the program is under way; after: we subscribe again
//! ```
//!
//! While we take what a client has left ([`taking`]), one that comes waits, for a second at most; and where one has come
//! meanwhile nothing is taken.
//!
//! A client that is done may free its state and be unloaded, and its functions stay registered with CUPTI. So while functions of a
//! client are registered, no kind is enabled for us and no call of ours makes CUPTI call them ([`may_be_called`]).
//!
//! Who was given the address of a function before we came is not seen here; that nothing comes any more tells of him
//! ([`Traffic`](super::Traffic)).

use super::records::{self, bit};
use super::shared::{Shared, current};
use crate::host::interpose::{self, Place};
use crate::host::module::{self, ModuleId};
use crate::host::{cancel, threads};
use crate::tracer::{Approach, Tracer};
use cupti_sys::{ActivityKind, FlushFlag, Library, Status, Subscriber};
use std::cell::Cell;
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

/// A call of a client that is still in flight when no client has called for this long was left by `longjmp`, or by a switch to
/// another stack.
const LONGEST_CALL: Duration = Duration::from_secs(60);

/// Minimum distance between the frames of a client's call and of one that it makes from inside the first.
const NESTED_FRAME_BYTES: usize = 1024;

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
    /// Calls so far, and threads that are in one.
    calls: AtomicU64,
    under_way: AtomicU64,
    /// When one began or ended last, in ms since [`BEGINNING`].
    called: AtomicU64,
    /// We take what they have left: who comes waits.
    is_taking: AtomicBool,

    takes: AtomicU64,
    has_records: AtomicBool,
    /// Functions that were registered last, by another than us; null: none were.
    requested: Function,
    completed: Function,
    /// The clock for its records, if it registered one; and whether it is CUPTI's now.
    clock: Function,
    clock_is_theirs: AtomicBool,
    /// Kinds of records that they have enabled, a bit each; whether any was for one context alone, whose end is not seen.
    kinds: AtomicU64,
    by_context: AtomicBool,
    /// Whether any kind was switched since the records were ours, and whether a flush has followed.
    is_switched: AtomicBool,
    is_flushed: AtomicBool,

    yields: AtomicBool,
    reclaims: AtomicBool,
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
    requested: Function::none(),
    completed: Function::none(),
    clock: Function::none(),
    clock_is_theirs: AtomicBool::new(false),
    kinds: AtomicU64::new(0),
    by_context: AtomicBool::new(false),
    is_switched: AtomicBool::new(false),
    is_flushed: AtomicBool::new(false),
    yields: AtomicBool::new(false),
    reclaims: AtomicBool::new(false),
    wants_subscription: AtomicBool::new(false),
    wants_end: AtomicBool::new(false),
    subscriber: AtomicPtr::new(ptr::null_mut()),
    ends: AtomicU64::new(0),
};

/// A function of a client's.
struct Function {
    address: AtomicPtr<c_void>,
    /// [`ModuleId::number`] of the module that contains it; 0 for generated code.
    module: AtomicU64,
}

impl Function {
    const fn none() -> Self {
        Self { address: AtomicPtr::new(ptr::null_mut()), module: AtomicU64::new(0) }
    }

    fn set(&self, address: *mut c_void) {
        self.module.store(ModuleId::of(address.addr()).map_or(0, ModuleId::number), SeqCst);
        self.address.store(address, SeqCst);
    }

    fn forget(&self) {
        self.address.store(ptr::null_mut(), SeqCst);
    }

    fn is_known(&self) -> bool {
        !self.address.load(SeqCst).is_null()
    }

    /// Address of the function, if its module is still loaded. Asks the dynamic linker.
    fn loaded(&self) -> Option<*mut c_void> {
        let address = self.address.load(SeqCst);
        let module = ModuleId::of(address.addr()).map_or(0, ModuleId::number);
        let is_same = !address.is_null() && module == self.module.load(SeqCst);
        (is_same && (module != 0 || module::is_readable(address.addr()))).then_some(address)
    }
}

static BEGINNING: OnceLock<Instant> = OnceLock::new();

fn millis() -> u64 {
    BEGINNING.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// What other clients have now.
pub(super) fn others() -> Others {
    let calls = KNOWN.calls.load(SeqCst);
    let is_quiet = millis().saturating_sub(KNOWN.called.load(SeqCst)) >= REST.as_millis() as u64;
    let rest = is_quiet && !is_any_in_call();
    let have_records = KNOWN.has_records.load(SeqCst);
    let are_at_work = KNOWN.kinds.load(SeqCst) != 0 || KNOWN.by_context.load(SeqCst);
    // Many are unloaded without a flush.
    let is_done = || {
        KNOWN.is_switched.load(SeqCst) && KNOWN.is_flushed.load(SeqCst) || KNOWN.completed.loaded().is_none()
    };
    let are_off = match have_records {
        false => KNOWN.is_switched.load(SeqCst),
        true => KNOWN.reclaims.load(SeqCst) && !are_at_work && rest && is_done(),
    };
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

/// Whether a thread is in a client's call.
fn is_any_in_call() -> bool {
    let since_last = millis().saturating_sub(KNOWN.called.load(SeqCst));
    KNOWN.under_way.load(SeqCst) > 0 && since_last < LONGEST_CALL.as_millis() as u64
}

/// Whether functions of a client are registered with CUPTI, for records or as a clock. We must make no call that lets CUPTI call them:
/// without us there would be no such call, and the client may be gone.
pub(super) fn may_be_called() -> bool {
    KNOWN.has_records.load(SeqCst) || KNOWN.clock_is_theirs.load(SeqCst)
}

/// Kinds that clients have enabled, one bit each.
pub(super) fn kinds() -> u64 {
    KNOWN.kinds.load(SeqCst)
}

/// Takes what `decided` says that others have left, if that is so still: nobody comes while `take` runs, which asks for the
/// records; it is told whether CUPTI has handed over all records of clients. What it failed to take is theirs again.
pub(super) fn taking<R: Default, E>(
    shared: &Shared,
    decided: Option<&Others>,
    take: impl FnOnce(bool) -> Result<R, E>,
) -> Result<R, E> {
    let functions = &shared.functions;
    KNOWN.is_taking.store(true, SeqCst);
    let has_come = |decided: &Others| is_any_in_call() || KNOWN.calls.load(SeqCst) != decided.calls;
    let taken = if decided.is_some_and(has_come) {
        Ok(R::default())
    } else {
        if KNOWN.clock_is_theirs.load(SeqCst) && functions.register_clock(usual_clock).is_ok() {
            KNOWN.clock_is_theirs.store(false, SeqCst);
        }
        let (had_records, takes) = (KNOWN.has_records.load(SeqCst), KNOWN.takes.load(SeqCst));
        let taken = take(!had_records || KNOWN.is_flushed.load(SeqCst));
        match taken {
            // A client waits for a second at most, and may have registered meanwhile.
            Ok(_) if KNOWN.takes.load(SeqCst) == takes => {
                KNOWN.has_records.store(false, SeqCst);
                KNOWN.is_switched.store(false, SeqCst);
            }
            Err(_) if had_records => {
                records::leave(shared, kinds());
                give_back(functions.library());
                // The client did not ask for them again.
                KNOWN.takes.store(takes, SeqCst);
            }
            _ => {}
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

/// Sees other clients from now on. `yields`: the subscription is theirs if they want it. `reclaims`: the records are ours again when
/// they are done; otherwise when a window opens.
///
/// # Errors
/// Memory of this process cannot be written as a file.
pub(super) fn see<T: Tracer>(library: &Library, yields: bool, reclaims: bool) -> io::Result<usize> {
    KNOWN.yields.store(yields, SeqCst);
    KNOWN.reclaims.store(reclaims, SeqCst);
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

thread_local! {
    /// Frame of this thread's outermost call; 0: it is in none.
    static OUTERMOST: Cell<usize> = const { Cell::new(0) };
}

/// A client's call, from its beginning to its end. A client may leave it by `longjmp`, from a function that CUPTI calls: then it ends
/// when the thread makes another call at that depth.
struct UnderWay {
    frame: usize,
}

impl UnderWay {
    fn begin(shared: &Shared) -> Self {
        let place = 0_u8;
        let frame = (&raw const place).addr();
        match OUTERMOST.get() {
            0 => {
                KNOWN.under_way.fetch_add(1, SeqCst);
                OUTERMOST.set(frame);
            }
            // Stacks grow downwards: the earlier call was left, and its count is this call's.
            outermost if frame + NESTED_FRAME_BYTES >= outermost => OUTERMOST.set(frame),
            _ => {}
        }
        KNOWN.calls.fetch_add(1, SeqCst);
        KNOWN.called.store(millis(), SeqCst);
        let begin = Instant::now();
        // Both are there before the other is looked for, by either side.
        while must_wait(shared) && begin.elapsed() < LONGEST_TAKING {
            thread::sleep(Duration::from_micros(200));
        }
        Self { frame }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        KNOWN.called.store(millis(), SeqCst);
        if OUTERMOST.get() == self.frame {
            OUTERMOST.set(0);
            KNOWN.under_way.fetch_sub(1, SeqCst);
        }
    }
}

/// Whether we are taking the records back, on another thread. A forked child inherits the flag and not the thread.
fn must_wait(shared: &Shared) -> bool {
    KNOWN.is_taking.load(SeqCst) && !threads::is_ours() && !shared.is_retired()
}

/// Passes a call on: `call` gets what it is to be passed on to. Our frames are on the stack meanwhile, so that the thread is not
/// cancelled there.
fn passed(call: impl FnOnce(&'static Shared, &Library) -> Status) -> Status {
    // SAFETY: other clients are seen only when the records have been asked for, for which it was made current.
    let shared = unsafe { current() };
    if shared.is_inherited() {
        shared.retire();
    }
    cancel::barred(|| {
        let _under_way = UnderWay::begin(shared);
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

/// Disables our kinds, restores our settings, and flushes our complete records. Returns the kinds that were disabled.
fn leave_records<T: Tracer>(shared: &Shared) -> u64 {
    if may_be_called() || shared.is_retired() {
        return 0;
    }
    // A client may leave its call by `longjmp`: then the collector enables them again.
    is_switched();
    let left = records::leave(shared, kinds());
    tell::<T>(shared, Approach::Records);
    left
}

/// The client was refused what [`leave_records`] was for.
fn resume_records(shared: &Shared, left: u64) {
    if !may_be_called() && !shared.is_retired() {
        records::resume(shared, left);
    }
}

fn has_taken() {
    KNOWN.takes.fetch_add(1, SeqCst);
    KNOWN.has_records.store(true, SeqCst);
}

unsafe extern "C-unwind" fn register<T: Tracer>(requested: *mut c_void, completed: *mut c_void) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.activity_register_callbacks as Register);
        let left = leave_records::<T>(shared);
        give_clock_back(library);
        // SAFETY: the client's call.
        let status = unsafe { theirs(requested, completed) };
        if status.is_success() {
            KNOWN.requested.set(requested);
            KNOWN.completed.set(completed);
            has_taken();
        } else {
            resume_records(shared, left);
        }
        status
    })
}

/// Our records so far have the earlier clock's times. Later records of ours would make CUPTI call the client's clock.
unsafe extern "C-unwind" fn clock<T: Tracer>(clock: *mut c_void) -> Status {
    passed(|shared, library| {
        let theirs = theirs!(library.register_timestamp_callback as Clock);
        let left = leave_records::<T>(shared);
        // SAFETY: the client's call.
        let status = unsafe { theirs(clock) };
        if status.is_success() {
            KNOWN.clock.set(clock);
            KNOWN.clock_is_theirs.store(true, SeqCst);
        } else {
            resume_records(shared, left);
        }
        status
    })
}

/// The client registers a clock once, and does not know that ours came after it.
fn give_clock_back(library: &Library) -> Status {
    if !KNOWN.clock.is_known() || KNOWN.clock_is_theirs.load(SeqCst) {
        return Status::SUCCESS;
    }
    let Some(clock) = KNOWN.clock.loaded() else {
        KNOWN.clock.forget();
        return Status::SUCCESS;
    };
    KNOWN.clock_is_theirs.store(true, SeqCst);
    let register = theirs!(library.register_timestamp_callback as Clock);
    // SAFETY: a clock that the client registered, in a module that is still loaded.
    unsafe { register(clock) }
}

/// Registers the client's functions for records again. Functions of an unloaded module are forgotten.
fn give_back(library: &Library) -> Status {
    let (Some(requested), Some(completed)) = (KNOWN.requested.loaded(), KNOWN.completed.loaded()) else {
        [&KNOWN.requested, &KNOWN.completed].into_iter().for_each(Function::forget);
        return Status::SUCCESS;
    };
    give_clock_back(library);
    let register = theirs!(library.activity_register_callbacks as Register);
    // SAFETY: functions that the client registered, in modules that are still loaded.
    let status = unsafe { register(requested, completed) };
    if status.is_success() {
        has_taken();
    }
    status
}

/// A kind is about to be on: the client makes use of the records, if it had them.
fn begins_to_work<T: Tracer>(shared: &Shared, library: &Library) {
    if KNOWN.has_records.load(SeqCst) || !KNOWN.completed.is_known() || shared.is_retired() {
        return;
    }
    // Nothing is left to a client that was unloaded.
    let left = if KNOWN.completed.loaded().is_some() { leave_records::<T>(shared) } else { 0 };
    give_back(library);
    resume_records(shared, left);
}

/// One is switched. It may be one of ours: there is one switch for all.
fn is_switched() {
    KNOWN.is_flushed.store(false, SeqCst);
    KNOWN.is_switched.store(true, SeqCst);
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
        let _finalizing = shared.await_calls(LONGEST_TAKING);
        let ours = shared.subscriber.swap(ptr::null_mut(), SeqCst);
        shared.is_ended.store(true, SeqCst);
        // SAFETY: the client's call.
        let status = unsafe { theirs() };
        if status.is_success() {
            [&KNOWN.requested, &KNOWN.completed, &KNOWN.clock].into_iter().for_each(Function::forget);
            KNOWN.subscriber.store(ptr::null_mut(), SeqCst);
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

#[cfg(test)]
#[path = "clients_test.rs"]
mod tests;
