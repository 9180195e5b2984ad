//! Detects other CUPTI clients in this process, by interposing on the CUPTI functions that these clients call.
//!
//! CUPTI has only one subscriber and one pair of buffer functions. If several clients register buffer functions, the
//! last client to register gets all activity records, and the other clients are not notified. Therefore we
//! [`interpose`] on the few CUPTI functions that a client calls when it starts or stops recording. Each of our
//! replacement functions notes the client's call, and then makes the same call to CUPTI:
//!
//! ```text
//! client registers its     before: we disable our kinds, restore the settings that we changed, flush our complete records
//! functions or a clock     after:  the client owns the records
//! client enables or        the client is using the records; once all its kinds are off and flushed, we may take the
//! disables a kind          records back
//! client enables a kind,   the client gets back the records that it owned before, because it cannot know that we took
//! its known functions      them; not if the module that contains its functions was unloaded
//! are not registered
//! CUPTI refuses a client's if configured, we release our subscription, and the client's call is repeated
//! request to subscribe
//! client ends CUPTI        before: complete records are flushed, and we wait until no launch of the program is in flight
//!                          after:  we subscribe again
//! ```
//!
//! While we take back the activity records or the clock that a client has released, calls of other clients wait for at
//! most one second ([`register_unless_called`]). If a client has made a call after our decision to take the records or
//! the clock back, we do not take them back.
//!
//! A client that has finished may free its state and be unloaded, even though its functions are still registered with
//! CUPTI. Therefore we enable no activity kind while a client's functions are registered. Also, we make no CUPTI call
//! that would make CUPTI call these functions ([`has_client_functions`]).
//!
//! Interposition cannot detect a client that got the address of a CUPTI function before we interposed on that function.
//! A client that interposition cannot detect is detected only when our activity records stop arriving
//! ([`DeliveryCounts`](super::DeliveryCounts)).

use super::callback_state::{CallbackState, current};
use super::records::{self, kind_bit};
use crate::tracer::{ClientTakeover, Tracer};
use cupti_sys::{ActivityKind, FlushFlag, Library, Status, Subscriber};
use gpuflame_os::interpose::{self, Interposition};
use gpuflame_os::module::{self, ModuleId};
use gpuflame_os::{cancel, threads};
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

/// Time without a call by any other client that must pass before we take the activity records or the clock back.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// Maximum time for which we make a call by another client wait.
const MAX_CLIENT_WAIT: Duration = Duration::from_secs(1);

/// Time after which a client's call that is in flight counts as abandoned, if no client has made a call in this time.
/// The thread of an abandoned call has probably left the call by a `longjmp`, or by switching to another stack.
const ABANDONED_CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum distance in bytes between the stack frames of two nested calls by a client.
const NESTED_FRAME_BYTES: usize = 1024;

/// State of the other CUPTI clients that were detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientActivity {
    /// Number of times that a client has registered buffer functions of its own to get the activity records.
    pub takeovers: u64,
    /// Whether a client currently owns the activity records.
    pub own_records: bool,
    /// Whether any activity kind that a client has enabled is still enabled.
    pub are_recording: bool,
    /// Whether we can take back activity records or a clock: a client has released them, and no client has made a call
    /// for `QUIET_PERIOD`.
    pub have_finished: bool,
    /// Whether a client wants the CUPTI subscription. This is the case if CUPTI has refused the client's request
    /// because we own the subscription.
    pub want_subscription: bool,
    /// Whether a client has called `cuptiFinalize` and waits until we pass this call on.
    pub want_finalize: bool,
    /// Whether a client owns the CUPTI subscription.
    pub own_subscription: bool,
    /// Number of times that a client has called `cuptiFinalize`, which shuts CUPTI down for all clients in this
    /// process.
    pub finalizations: u64,
    /// Whether no client has made a call for `QUIET_PERIOD` and no client is inside a CUPTI call.
    pub are_quiet: bool,
    /// Number of CUPTI calls that clients have made so far.
    pub calls: u64,
}

/// Internal state about the other CUPTI clients. There is one such state per process, because a process has only one
/// CUPTI.
struct ClientState {
    /// Number of CUPTI calls that clients have made so far. `calls_in_flight` is the number of threads that are inside
    /// a CUPTI call by a client.
    calls: AtomicU64,
    calls_in_flight: AtomicU64,
    /// Time at which a CUPTI call by a client last began or ended, in ms since [`CLOCK_START`].
    last_call_ms: AtomicU64,
    /// Whether we are currently taking back activity records or a clock that clients have released. While this flag is
    /// set, CUPTI calls by clients wait.
    is_taking_records: AtomicBool,

    takeovers: AtomicU64,
    has_records: AtomicBool,
    /// The two buffer functions that a client has registered most recently; null if no client has registered any.
    requested: ClientFunction,
    completed: ClientFunction,
    /// Timestamp function that a client has registered for activity records. `clock_is_theirs` is true while CUPTI uses
    /// this function.
    clock: ClientFunction,
    clock_is_theirs: AtomicBool,
    /// Activity kinds that clients have enabled, with one bit per kind. `has_context_kinds` states whether a client has
    /// enabled a kind for a single CUDA context. Such kinds have a separate flag, because we cannot detect when a
    /// client disables a kind for a single CUDA context.
    kinds: AtomicU64,
    has_context_kinds: AtomicBool,
    /// Whether a client has enabled or disabled an activity kind since we owned the activity records for the last time.
    /// `is_flushed` states whether a client has flushed CUPTI since a kind was last enabled or disabled.
    is_switched: AtomicBool,
    is_flushed: AtomicBool,

    yields: AtomicBool,
    reclaims: AtomicBool,
    wants_subscription: AtomicBool,
    wants_finalize: AtomicBool,
    subscriber: AtomicPtr<c_void>,
    finalizations: AtomicU64,
}

static CLIENTS: ClientState = ClientState {
    calls: AtomicU64::new(0),
    calls_in_flight: AtomicU64::new(0),
    last_call_ms: AtomicU64::new(0),
    is_taking_records: AtomicBool::new(false),
    takeovers: AtomicU64::new(0),
    has_records: AtomicBool::new(false),
    requested: ClientFunction::none(),
    completed: ClientFunction::none(),
    clock: ClientFunction::none(),
    clock_is_theirs: AtomicBool::new(false),
    kinds: AtomicU64::new(0),
    has_context_kinds: AtomicBool::new(false),
    is_switched: AtomicBool::new(false),
    is_flushed: AtomicBool::new(false),
    yields: AtomicBool::new(false),
    reclaims: AtomicBool::new(false),
    wants_subscription: AtomicBool::new(false),
    wants_finalize: AtomicBool::new(false),
    subscriber: AtomicPtr::new(ptr::null_mut()),
    finalizations: AtomicU64::new(0),
};

/// A function that a client has registered with CUPTI.
struct ClientFunction {
    address: AtomicPtr<c_void>,
    /// [`ModuleId::number`] of the module that contains the function; 0 if the function is generated code.
    module: AtomicU64,
}

impl ClientFunction {
    const fn none() -> Self {
        Self { address: AtomicPtr::new(ptr::null_mut()), module: AtomicU64::new(0) }
    }

    fn set(&self, address: *mut c_void) {
        self.module.store(ModuleId::containing(address.addr()).map_or(0, ModuleId::number), SeqCst);
        self.address.store(address, SeqCst);
    }

    fn clear(&self) {
        self.address.store(ptr::null_mut(), SeqCst);
    }

    fn is_registered(&self) -> bool {
        !self.address.load(SeqCst).is_null()
    }

    /// Returns the address of the client's function. Returns `None` if the module that contains this function is no
    /// longer loaded. Queries the dynamic linker to find out whether the module is loaded.
    fn address_if_loaded(&self) -> Option<*mut c_void> {
        let address = self.address.load(SeqCst);
        let module = ModuleId::containing(address.addr()).map_or(0, ModuleId::number);
        let is_same = !address.is_null() && module == self.module.load(SeqCst);
        (is_same && (module != 0 || module::is_readable(address.addr()))).then_some(address)
    }
}

static CLOCK_START: OnceLock<Instant> = OnceLock::new();

fn elapsed_ms() -> u64 {
    CLOCK_START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// Returns the current state of the other CUPTI clients.
pub(super) fn other_clients() -> ClientActivity {
    let calls = CLIENTS.calls.load(SeqCst);
    let is_quiet =
        elapsed_ms().saturating_sub(CLIENTS.last_call_ms.load(SeqCst)) >= QUIET_PERIOD.as_millis() as u64;
    let are_quiet = is_quiet && !is_any_in_call();
    let own_records = CLIENTS.has_records.load(SeqCst);
    let are_recording = CLIENTS.kinds.load(SeqCst) != 0 || CLIENTS.has_context_kinds.load(SeqCst);
    // A client whose module was unloaded counts as finished, because many clients are unloaded without a flush.
    let is_done = || {
        CLIENTS.is_switched.load(SeqCst) && CLIENTS.is_flushed.load(SeqCst)
            || CLIENTS.completed.address_if_loaded().is_none()
    };
    let are_off = match own_records {
        false => CLIENTS.is_switched.load(SeqCst),
        true => CLIENTS.reclaims.load(SeqCst) && !are_recording && are_quiet && is_done(),
    };
    let is_clock_left = CLIENTS.clock_is_theirs.load(SeqCst) && !own_records;
    ClientActivity {
        takeovers: CLIENTS.takeovers.load(SeqCst),
        own_records,
        are_recording,
        have_finished: !are_recording && are_quiet && (are_off || is_clock_left),
        want_subscription: CLIENTS.wants_subscription.load(SeqCst),
        want_finalize: CLIENTS.wants_finalize.load(SeqCst),
        own_subscription: !CLIENTS.subscriber.load(SeqCst).is_null(),
        finalizations: CLIENTS.finalizations.load(SeqCst),
        are_quiet,
        calls,
    }
}

/// Whether any thread is inside a CUPTI call by a client.
fn is_any_in_call() -> bool {
    let since_last = elapsed_ms().saturating_sub(CLIENTS.last_call_ms.load(SeqCst));
    CLIENTS.calls_in_flight.load(SeqCst) > 0 && since_last < ABANDONED_CALL_TIMEOUT.as_millis() as u64
}

/// Whether functions of a client are registered with CUPTI, either for activity records or as a clock. While functions
/// of a client are registered, we must make no CUPTI call that would make CUPTI call these functions. Calling these
/// functions would be unsafe, because the client may have been unloaded. Without gpuflame, CUPTI would not call these
/// functions.
pub(super) fn has_client_functions() -> bool {
    CLIENTS.has_records.load(SeqCst) || CLIENTS.clock_is_theirs.load(SeqCst)
}

/// Returns the activity kinds that clients have enabled, with one bit per kind.
pub(super) fn client_kinds() -> u64 {
    CLIENTS.kinds.load(SeqCst)
}

/// Runs `take`, which registers us to get the activity records, unless a client has made a call since `decided` was
/// read. While `take` runs, calls by clients wait. The argument of `take` is true if CUPTI has delivered all records to
/// the clients. If `take` fails, the client that owned the activity records gets them back.
pub(super) fn register_unless_called<R: Default, E>(
    shared: &CallbackState,
    decided: Option<&ClientActivity>,
    take: impl FnOnce(bool) -> Result<R, E>,
) -> Result<R, E> {
    let functions = &shared.functions;
    CLIENTS.is_taking_records.store(true, SeqCst);
    let has_called =
        |decided: &ClientActivity| is_any_in_call() || CLIENTS.calls.load(SeqCst) != decided.calls;
    let taken = if decided.is_some_and(has_called) {
        Ok(R::default())
    } else {
        if CLIENTS.clock_is_theirs.load(SeqCst) && functions.register_clock(default_clock).is_ok() {
            CLIENTS.clock_is_theirs.store(false, SeqCst);
        }
        let (had_records, takeovers) = (CLIENTS.has_records.load(SeqCst), CLIENTS.takeovers.load(SeqCst));
        let taken = take(!had_records || CLIENTS.is_flushed.load(SeqCst));
        match taken {
            // The client that owned the records may have registered its functions again while `take` ran, because calls
            // by clients wait for at most one second.
            Ok(_) if CLIENTS.takeovers.load(SeqCst) == takeovers => {
                CLIENTS.has_records.store(false, SeqCst);
                CLIENTS.is_switched.store(false, SeqCst);
            }
            Err(_) if had_records => {
                records::release(shared, client_kinds());
                restore_client_functions(functions.library());
                // Restores the number of takeovers: we registered the client's functions ourselves, and the client made
                // no call.
                CLIENTS.takeovers.store(takeovers, SeqCst);
            }
            _ => {}
        }
        taken
    };
    CLIENTS.is_taking_records.store(false, SeqCst);
    taken
}

/// The clock that CUPTI uses if no client has registered one.
unsafe extern "C" fn default_clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` has room for one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Starts to detect other CUPTI clients. If `yields` is true, a client that requests the subscription gets it. If
/// `reclaims` is true, we take the activity records back as soon as the client that took them has finished. If
/// `reclaims` is false, we take the records back when a window opens.
///
/// # Errors
/// gpuflame cannot write to the memory of this process through `/proc/self/mem`.
pub(super) fn interpose_on_clients<T: Tracer>(
    library: &Library,
    yields: bool,
    reclaims: bool,
) -> io::Result<usize> {
    CLIENTS.yields.store(yields, SeqCst);
    CLIENTS.reclaims.store(reclaims, SeqCst);
    elapsed_ms();
    let places: Vec<_> =
        interpositions::<T>(library).into_iter().filter(|place| place.original != 0).collect();
    interpose::replace_functions(&places)
}

fn interpositions<T: Tracer>(library: &Library) -> [Interposition; 10] {
    macro_rules! interposition {
        ($symbol:ident, $theirs:ident, $ours:expr, $type:ty) => {{
            let ours: $type = $ours;
            Interposition {
                name: stringify!($symbol),
                original: library.$theirs.map_or(0, |function| function as usize),
                replacement: ours as usize,
            }
        }};
    }
    [
        interposition!(cuptiActivityRegisterCallbacks, activity_register_callbacks, register::<T>, Register),
        interposition!(
            cuptiActivityRegisterTimestampCallback,
            register_timestamp_callback,
            register_clock::<T>,
            RegisterClock
        ),
        interposition!(cuptiActivityEnable, activity_enable, enable::<T>, Switch),
        interposition!(
            cuptiActivityEnableContext,
            activity_enable_context,
            enable_context::<T>,
            SwitchContext
        ),
        interposition!(cuptiActivityDisable, activity_disable, disable, Switch),
        interposition!(cuptiActivityFlushAll, activity_flush_all, flush, Flush),
        interposition!(cuptiSubscribe, subscribe, subscribe::<T>, Subscribe),
        interposition!(cuptiSubscribe_v2, subscribe_v2, subscribe_v2::<T>, SubscribeV2),
        interposition!(cuptiUnsubscribe, unsubscribe, unsubscribe, Unsubscribe),
        interposition!(cuptiFinalize, finalize, finalize::<T>, Finalize),
    ]
}

// Types of the interposed functions, which differ from the types in `cupti_sys` in two ways. First, parameters that are
// functions have pointer types in the interposed functions, because clients may pass null. Second, the interposed
// functions may unwind. If CUPTI calls a function of the client and this function throws an exception, the exception
// must be able to pass through our stack frames.
type Register = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> Status;
type RegisterClock = unsafe extern "C-unwind" fn(*mut c_void) -> Status;
type Switch = unsafe extern "C-unwind" fn(ActivityKind) -> Status;
type SwitchContext = unsafe extern "C-unwind" fn(*mut c_void, ActivityKind) -> Status;
type Flush = unsafe extern "C-unwind" fn(FlushFlag) -> Status;
type Subscribe = unsafe extern "C-unwind" fn(*mut Subscriber, *mut c_void, *mut c_void) -> Status;
type SubscribeV2 =
    unsafe extern "C-unwind" fn(*mut Subscriber, *mut c_void, *mut c_void, *mut c_void) -> Status;
type Unsubscribe = unsafe extern "C-unwind" fn(Subscriber) -> Status;
type Finalize = unsafe extern "C-unwind" fn() -> Status;

thread_local! {
    /// Address of the stack frame of the outermost CUPTI call by a client on this thread; 0 if the thread is not inside
    /// such a call.
    static OUTERMOST_FRAME: Cell<usize> = const { Cell::new(0) };
}

/// A CUPTI call by a client that is in flight. A client may leave its call by a `longjmp` out of a function that CUPTI
/// calls. If a client has left a call in this way, the call counts as ended when the thread makes another call at the
/// same stack depth.
struct ClientCall {
    frame: usize,
}

impl ClientCall {
    fn begin(shared: &CallbackState) -> Self {
        let place = 0_u8;
        let frame = (&raw const place).addr();
        match OUTERMOST_FRAME.get() {
            0 => {
                CLIENTS.calls_in_flight.fetch_add(1, SeqCst);
                OUTERMOST_FRAME.set(frame);
            }
            // Stacks grow downwards, so the new call is not nested in the earlier call. Therefore the thread has left
            // the earlier call without returning from it. In `calls_in_flight`, the new call replaces the earlier call.
            outermost if frame + NESTED_FRAME_BYTES >= outermost => OUTERMOST_FRAME.set(frame),
            _ => {}
        }
        CLIENTS.calls.fetch_add(1, SeqCst);
        CLIENTS.last_call_ms.store(elapsed_ms(), SeqCst);
        let begin = Instant::now();
        // The client's thread and our thread each set their own flag, and then read the flag of the other thread.
        // Therefore at least one of the two threads notices that the other thread's flag is set.
        while must_wait(shared) && begin.elapsed() < MAX_CLIENT_WAIT {
            thread::sleep(Duration::from_micros(200));
        }
        Self { frame }
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        CLIENTS.last_call_ms.store(elapsed_ms(), SeqCst);
        if OUTERMOST_FRAME.get() == self.frame {
            OUTERMOST_FRAME.set(0);
            CLIENTS.calls_in_flight.fetch_sub(1, SeqCst);
        }
    }
}

/// Whether one of our threads is taking back the activity records, and the calling thread is not one of ours. Returns
/// false in a forked child, which inherits the flag but not the thread that has set it.
fn must_wait(shared: &CallbackState) -> bool {
    CLIENTS.is_taking_records.load(SeqCst) && !threads::is_ours() && !shared.is_retired()
}

/// Passes on a CUPTI call by a client: runs `call` with the CUPTI library that the client wanted to call. Thread
/// cancellation is disabled during the call, because a cancellation would unwind our stack frames.
fn forward_call(call: impl FnOnce(&'static CallbackState, &Library) -> Status) -> Status {
    // SAFETY: `make_current` was called, because calls by clients are interposed only after we have registered for the
    // records.
    let shared = unsafe { current() };
    if shared.is_inherited() {
        shared.retire();
    }
    cancel::without_cancellation(|| {
        let _call = ClientCall::begin(shared);
        call(shared, shared.functions.library())
    })
}

/// The library's function, cast to the type with which clients call it.
macro_rules! library_function {
    ($library:ident.$function:ident as $type:ty) => {
        match $library.$function {
            // SAFETY: the new type is another type for the same C function. Function parameters are replaced by
            // pointers, because clients may pass null.
            Some(function) => unsafe { transmute::<*const (), $type>(function as *const ()) },
            None => return Status::API_NOT_IMPLEMENTED,
        }
    };
}

/// Notifies the tracer that another CUPTI client is about to take over. The tracer handles the takeover on one of our
/// own threads, before the client's call is passed on. If the client makes its call on one of our own threads, the
/// tracer is not notified. The reason is that the call on our thread may come from a function of the client that CUPTI
/// has called.
fn notify_takeover<T: Tracer>(shared: &CallbackState, takeover: ClientTakeover) {
    if !T::has_ended() && !shared.is_off() && !threads::is_ours() {
        shared.guard::<T>(|| T::on_client_takeover(takeover));
    }
}

/// Disables our activity kinds, restores the settings that we have changed, and flushes our complete activity records.
/// Returns the activity kinds that were disabled.
fn release_records<T: Tracer>(shared: &CallbackState) -> u64 {
    if has_client_functions() || shared.is_retired() {
        return 0;
    }
    // We note the change of kinds before we pass on the client's call, because the client may leave this call by a
    // `longjmp`. After such a `longjmp`, the collector enables our activity kinds again.
    note_kind_switched();
    let left = records::release(shared, client_kinds());
    notify_takeover::<T>(shared, ClientTakeover::Records);
    left
}

/// Undoes [`release_records`] if CUPTI has refused the client's call.
fn resume_records(shared: &CallbackState, left: u64) {
    if !has_client_functions() && !shared.is_retired() {
        records::resume(shared, left);
    }
}

fn note_takeover() {
    CLIENTS.takeovers.fetch_add(1, SeqCst);
    CLIENTS.has_records.store(true, SeqCst);
}

unsafe extern "C-unwind" fn register<T: Tracer>(requested: *mut c_void, completed: *mut c_void) -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.activity_register_callbacks as Register);
        let left = release_records::<T>(shared);
        restore_client_clock(library);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(requested, completed) };
        if status.is_success() {
            CLIENTS.requested.set(requested);
            CLIENTS.completed.set(completed);
            note_takeover();
        } else {
            resume_records(shared, left);
        }
        status
    })
}

/// Interposes on `cuptiActivityRegisterTimestampCallback`. Flushes our activity records first, because their timestamps
/// come from the old clock. After the client's call, our activity kinds stay disabled, because CUPTI would call the
/// client's clock for our records.
unsafe extern "C-unwind" fn register_clock<T: Tracer>(clock: *mut c_void) -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.register_timestamp_callback as RegisterClock);
        let left = release_records::<T>(shared);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(clock) };
        if status.is_success() {
            CLIENTS.clock.set(clock);
            CLIENTS.clock_is_theirs.store(true, SeqCst);
        } else {
            resume_records(shared, left);
        }
        status
    })
}

/// Registers the client's clock with CUPTI again, in place of our clock. The client does not register its clock a
/// second time, because it cannot know that we have replaced its clock.
fn restore_client_clock(library: &Library) -> Status {
    if !CLIENTS.clock.is_registered() || CLIENTS.clock_is_theirs.load(SeqCst) {
        return Status::SUCCESS;
    }
    let Some(clock) = CLIENTS.clock.address_if_loaded() else {
        CLIENTS.clock.clear();
        return Status::SUCCESS;
    };
    CLIENTS.clock_is_theirs.store(true, SeqCst);
    let register = library_function!(library.register_timestamp_callback as RegisterClock);
    // SAFETY: the client has registered this clock, and the clock's module is still loaded.
    unsafe { register(clock) }
}

/// Registers the client's buffer functions with CUPTI again, to return the activity records to the client. If the
/// module that contains these functions was unloaded, forgets them instead.
fn restore_client_functions(library: &Library) -> Status {
    let (Some(requested), Some(completed)) =
        (CLIENTS.requested.address_if_loaded(), CLIENTS.completed.address_if_loaded())
    else {
        [&CLIENTS.requested, &CLIENTS.completed].into_iter().for_each(ClientFunction::clear);
        return Status::SUCCESS;
    };
    restore_client_clock(library);
    let register = library_function!(library.activity_register_callbacks as Register);
    // SAFETY: the client has registered these functions, and their modules are still loaded.
    let status = unsafe { register(requested, completed) };
    if status.is_success() {
        note_takeover();
    }
    status
}

/// If we have taken the activity records back, returns them to the client that owned them before. Called before a
/// client enables an activity kind, because a client that enables a kind is about to use the records.
fn return_records_to_client<T: Tracer>(shared: &CallbackState, library: &Library) {
    if CLIENTS.has_records.load(SeqCst) || !CLIENTS.completed.is_registered() || shared.is_retired() {
        return;
    }
    // A client that was unloaded does not get the activity records back.
    let left = if CLIENTS.completed.address_if_loaded().is_some() { release_records::<T>(shared) } else { 0 };
    restore_client_functions(library);
    resume_records(shared, left);
}

/// Notes that a client has enabled or disabled an activity kind. If a client switches a kind on or off, this may affect
/// us too, because CUPTI has only one switch per kind for all clients.
fn note_kind_switched() {
    CLIENTS.is_flushed.store(false, SeqCst);
    CLIENTS.is_switched.store(true, SeqCst);
}

unsafe extern "C-unwind" fn enable<T: Tracer>(kind: ActivityKind) -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.activity_enable as Switch);
        return_records_to_client::<T>(shared, library);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(kind) };
        if status.is_success() {
            CLIENTS.kinds.fetch_or(kind_bit(kind), SeqCst);
            note_kind_switched();
        }
        status
    })
}

unsafe extern "C-unwind" fn enable_context<T: Tracer>(context: *mut c_void, kind: ActivityKind) -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.activity_enable_context as SwitchContext);
        return_records_to_client::<T>(shared, library);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(context, kind) };
        if status.is_success() {
            CLIENTS.has_context_kinds.store(true, SeqCst);
        }
        status
    })
}

unsafe extern "C-unwind" fn disable(kind: ActivityKind) -> Status {
    forward_call(|_, library| {
        let theirs = library_function!(library.activity_disable as Switch);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(kind) };
        if status.is_success() {
            CLIENTS.kinds.fetch_and(!kind_bit(kind), SeqCst);
            note_kind_switched();
        }
        status
    })
}

unsafe extern "C-unwind" fn flush(flag: FlushFlag) -> Status {
    forward_call(|_, library| {
        let theirs = library_function!(library.activity_flush_all as Flush);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(flag) };
        if status.is_success() && CLIENTS.kinds.load(SeqCst) == 0 {
            CLIENTS.is_flushed.store(true, SeqCst);
        }
        status
    })
}

unsafe extern "C-unwind" fn subscribe<T: Tracer>(
    out: *mut Subscriber,
    callback: *mut c_void,
    data: *mut c_void,
) -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.subscribe as Subscribe);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        subscribe_client::<T>(shared, out, || unsafe { theirs(out, callback, data) })
    })
}

unsafe extern "C-unwind" fn subscribe_v2<T: Tracer>(
    out: *mut Subscriber,
    callback: *mut c_void,
    data: *mut c_void,
    about: *mut c_void,
) -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.subscribe_v2 as SubscribeV2);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        subscribe_client::<T>(shared, out, || unsafe { theirs(out, callback, data, about) })
    })
}

/// Passes on a client's request to subscribe to CUPTI. If CUPTI refuses the request and we may release our own
/// subscription, releases it and repeats the request.
fn subscribe_client<T: Tracer>(
    shared: &CallbackState,
    out: *const Subscriber,
    call: impl Fn() -> Status,
) -> Status {
    let has_it = || !shared.subscriber().0.is_null();
    let mut status = call();
    if status == Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && CLIENTS.yields.load(SeqCst) && has_it() {
        CLIENTS.wants_subscription.store(true, SeqCst);
        notify_takeover::<T>(shared, ClientTakeover::Subscription);
        if !has_it() {
            // Clears the error that the refused request has left.
            shared.functions.forget_error();
            status = call();
        }
    }
    if status.is_success() {
        // SAFETY: CUPTI has just written the subscriber to `out`.
        CLIENTS.subscriber.store(unsafe { out.read() }.0, SeqCst);
    }
    CLIENTS.wants_subscription.store(false, SeqCst);
    status
}

unsafe extern "C-unwind" fn unsubscribe(subscriber: Subscriber) -> Status {
    forward_call(|_, library| {
        let theirs = library_function!(library.unsubscribe as Unsubscribe);
        // SAFETY: this is the call that the client wanted to make, with the client's arguments.
        let status = unsafe { theirs(subscriber) };
        if status.is_success() {
            let _ = CLIENTS.subscriber.compare_exchange(subscriber.0, ptr::null_mut(), SeqCst, SeqCst);
        }
        status
    })
}

/// Interposes on `cuptiFinalize`. cuptiFinalize removes all registrations and subscriptions, both the client's and
/// ours. From the start of the client's call until our next subscription, we make no CUPTI call.
unsafe extern "C-unwind" fn finalize<T: Tracer>() -> Status {
    forward_call(|shared, library| {
        let theirs = library_function!(library.finalize as Finalize);
        if !shared.subscriber().0.is_null() {
            CLIENTS.wants_finalize.store(true, SeqCst);
            notify_takeover::<T>(shared, ClientTakeover::Shutdown);
        }
        let _finalizing = shared.block_calls(MAX_CLIENT_WAIT);
        let ours = shared.subscriber.swap(ptr::null_mut(), SeqCst);
        shared.is_finalized.store(true, SeqCst);
        // SAFETY: this is the call that the client wanted to make, and it has no arguments.
        let status = unsafe { theirs() };
        if status.is_success() {
            [&CLIENTS.requested, &CLIENTS.completed, &CLIENTS.clock]
                .into_iter()
                .for_each(ClientFunction::clear);
            CLIENTS.subscriber.store(ptr::null_mut(), SeqCst);
            for flag in [
                &CLIENTS.has_records,
                &CLIENTS.clock_is_theirs,
                &CLIENTS.has_context_kinds,
                &CLIENTS.is_switched,
            ] {
                flag.store(false, SeqCst);
            }
            CLIENTS.kinds.store(0, SeqCst);
            records::reset();
            CLIENTS.finalizations.fetch_add(1, SeqCst);
        } else {
            shared.subscriber.store(ours, SeqCst);
            shared.is_finalized.store(false, SeqCst);
        }
        CLIENTS.wants_finalize.store(false, SeqCst);
        status
    })
}

#[cfg(test)]
#[path = "clients_test.rs"]
mod tests;
