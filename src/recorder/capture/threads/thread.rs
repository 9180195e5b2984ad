//! State that gpuflame keeps for each application thread, and the functions with which the collector reads this state.
//!
//! A thread's state is mapped on the thread's first launch, and is never unmapped. After the thread has ended, the next
//! new thread takes over the state and continues the same logs. Therefore the memory for thread states depends on the
//! peak number of simultaneous threads, but not on the total number of threads.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, size_of};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use crate::control::window;
use gpuflame_cupti::tracer::Call;
use gpuflame_model::record::{Loss, Nanos, ThreadId};
use gpuflame_os::{cancel, host_signals, leaks, threads};
use gpuflame_unwind::{Unwinder, memory, tls};

use super::calls::{CopiedGraphs, InFlightLaunch, PendingGraphCall, PendingHostCall, PendingLaunch};
use super::open_ranges::{OpenRanges, PendingEnds};
use super::outside::{OutsideRange, OutsideReader, SharedOutsideRange};
use super::python::PythonFrames;
use super::records::thread_words;
use super::refusals::OpenRefusals;
use super::thread_counters::ThreadCounters;
use super::verifying::StackVerification;
use crate::capture::ids::intern::Interner;
use crate::capture::logs::log::{Log, LogReader, LogWriter};
use crate::capture::logs::unread_limit;

/// State of one application thread. The comments on the fields state which thread may access each field.
pub(crate) struct ThreadState {
    next: AtomicPtr<ThreadState>,
    stage: AtomicU32,
    pub(crate) launches: Log,
    pub(crate) contexts: Log,
    pub(crate) counters: ThreadCounters,
    pub(crate) pending_ends: PendingEnds,
    pub(crate) outside: SharedOutsideRange,
    pub(crate) in_flight: InFlightLaunch,
    /// Stack depth at which the thread has entered gpuflame; 0 while the thread is outside gpuflame. [`INHERITED`] and
    /// [`FORGET_REQUESTED`] are special values of this field.
    inside: AtomicUsize,
    /// Sequence number of the last round in which the thread has forgotten its stack ids (see `forget_round`).
    forgot_round: AtomicU32,
    /// Calls and ranges that gpuflame refused because a signal handler made them while the thread was inside gpuflame.
    pub(crate) refused: OpenRefusals,
    /// Only the application thread accesses this field, and only while it is inside gpuflame.
    own: UnsafeCell<ThreadOnly>,
    /// Only the collector accesses this field.
    readers: UnsafeCell<LogReaders>,
}

// SAFETY: `own` is accessed only through `EntryGuard`. Only the thread that owns the state creates guards, one at a
// time. Only the collector accesses `readers`, and there is only one collector. The other fields are atomic, or are
// logs that support one writer and one reader.
unsafe impl Sync for ThreadState {}

/// Stage of a thread state while its thread is running.
const LIVE: u32 = 0;
/// Stage of a thread state after its thread has ended. The next new thread may reuse this state. The logs of this state
/// may contain unread rows.
const ENDED: u32 = 1;
/// Stage of a thread state after its thread has jumped out of gpuflame or has ended inside gpuflame. The collector
/// still reads the logs of this state. No other thread may reuse this state, because the thread may have left a change
/// of the state unfinished.
const ABANDONED: u32 = 2;

/// Maximum number of abandoned thread states. An abandoned thread state occupies about 250 KiB of memory. When this
/// number of states is abandoned, a thread that jumps out of gpuflame counts as inside gpuflame permanently. Its
/// launches are then only counted.
const MAX_ABANDONED_STATES: usize = 64;

/// Memory in bytes that a thread state and the first chunks of its logs take. The memory limit divided by this number
/// is the maximum number of threads with a state. Launches on threads without a state are only counted.
const BYTES_PER_THREAD: usize = 384 << 10;

/// Value of `inside` in a forked child, which means that the thread state is a copy of the parent's state.
const INHERITED: usize = 1;
/// Value of `inside` after a request by the collector. The value means that the thread is outside gpuflame, and must
/// forget its stack ids when it next enters gpuflame (see `forget_round`).
const FORGET_REQUESTED: usize = 2;

/// State of a thread that only the thread itself accesses.
pub(crate) struct ThreadOnly {
    pub(crate) id: ThreadId,
    pub(crate) unwinder: Unwinder,
    pub(crate) interner: Interner,
    /// `None` until the thread captures a new stack in a process with a Python interpreter.
    pub(crate) python: Option<PythonFrames>,
    pub(crate) ranges: OpenRanges,
    pub(crate) launches: LogWriter,
    pub(crate) contexts: LogWriter,
    pub(crate) pending: PendingLaunch,
    pub(crate) outside: Option<OutsideRange>,
    /// A launch that is in flight and was interrupted by a signal handler that makes another launch.
    pub(crate) aside: Option<PendingLaunch>,
    pub(crate) verifying: Option<StackVerification>,
    pub(crate) graph_call: Option<PendingGraphCall>,
    pub(crate) host_call: Option<PendingHostCall>,
    pub(crate) copied_graphs: CopiedGraphs,
    pub(crate) calls: u64,
}

/// State of a thread that only the collector accesses (see `drain`).
pub(super) struct LogReaders {
    pub(super) launches: LogReader,
    pub(super) contexts: LogReader,
    pub(super) outside_reader: OutsideReader,
    /// Number of words in the launch log that were already unread at the last call to `note_unread`, and have not been
    /// read since.
    pub(super) noted: usize,
    /// Whether `note_unread` was called after the thread's logs were last drained.
    pub(super) is_noted: bool,
    /// Number of words in the launch log that were already unread at the last call to `mark_unread`, and have not been
    /// read since. The windows that closed before the last call to `mark_unread` are passed on only after these words
    /// are read.
    pub(super) marked: usize,
    /// Time of the launch that was read last.
    pub(super) last_launch: Nanos,
}

/// A guard that exists while this thread is inside gpuflame. The thread leaves gpuflame when the guard is dropped.
pub(crate) struct EntryGuard {
    thread: &'static ThreadState,
}

impl EntryGuard {
    /// Makes the calling thread enter gpuflame. Returns `None` if the thread is already inside gpuflame, or if there is
    /// no memory for its state (see [`EntryRefusal`]). `at` is an address in the caller's stack frame, or in a frame
    /// nearer to the root of the stack.
    #[inline]
    pub(crate) fn new(at: usize) -> Option<Self> {
        let Some(thread) = NonNull::new(tls::get().cast::<ThreadState>()) else {
            return Self::enter_first(at);
        };
        // SAFETY: the pointer in thread-local storage points to a `ThreadState`, which is never unmapped.
        let thread: &'static ThreadState = unsafe { thread.as_ref() };
        if thread.inside.load(Ordering::Relaxed) != 0 {
            return Self::enter_again(thread, at);
        }
        Some(Self::enter(thread, at))
    }

    #[inline]
    fn enter(thread: &'static ThreadState, at: usize) -> Self {
        thread.inside.store(at, Ordering::Relaxed);
        // Signal handlers on this thread must see the store to `inside` before they see any later store.
        compiler_fence(Ordering::SeqCst);
        Self { thread }
    }

    #[cold]
    fn enter_first(at: usize) -> Option<Self> {
        // If a call was refused because its thread has no state, the calls that are nested in it are refused too.
        // Therefore only one loss is counted.
        if REFUSED.with(|refused| refused.encloses(at)) {
            return None;
        }
        Some(Self::enter(cancel::without_cancellation(attach)?, at))
    }

    /// Handles a thread whose `inside` is not 0 when it enters gpuflame. The value of `inside` can have four causes:
    /// - The state was inherited from a parent process.
    /// - The thread must forget its stack ids.
    /// - A signal handler that had interrupted the thread inside gpuflame has jumped out of gpuflame.
    /// - The thread really is inside gpuflame, and the caller is a signal handler that has interrupted it.
    #[cold]
    fn enter_again(thread: &'static ThreadState, at: usize) -> Option<Self> {
        let inside = thread.inside.load(Ordering::Relaxed);
        if inside == INHERITED {
            let mut entered = Self::enter(thread, at);
            let (own, thread) = entered.parts();
            own.id = this_thread_id();
            announce(own.id, thread, &mut own.contexts);
            return Some(entered);
        }
        if inside == FORGET_REQUESTED {
            let mut entered = Self::enter(thread, at);
            let (own, thread) = entered.parts();
            thread.forget_stacks(own);
            return Some(entered);
        }
        if !host_signals::has_jumped_out(inside, at) {
            return None;
        }
        if !abandon_state(thread) {
            // With this jump, the handler has also left any refused call that it made while the thread was inside
            // gpuflame.
            thread.refused.end_call();
            return None;
        }
        Self::enter_first(at)
    }

    /// Returns the part of the thread's state that only this thread accesses, and the part that it shares with other
    /// threads.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut ThreadOnly, &'static ThreadState) {
        // SAFETY: only one `EntryGuard` exists per thread, and the borrow of `self` excludes a second reference.
        (unsafe { &mut *self.thread.own.get() }, self.thread)
    }
}

impl Drop for EntryGuard {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.thread.inside.store(0, Ordering::Relaxed);
    }
}

/// Reason why a thread could not enter gpuflame.
pub(crate) enum EntryRefusal {
    /// The thread is already inside gpuflame, so the caller must be a signal handler.
    Inside(&'static ThreadState),
    /// The thread has no state, and there is no memory for a new state.
    WithoutMemory,
}

impl EntryRefusal {
    /// Returns the reason why the calling thread could not enter gpuflame.
    #[cold]
    pub(crate) fn determine() -> Self {
        of_this_thread().map_or(Self::WithoutMemory, Self::Inside)
    }

    /// Notes the start of a refused call. Returns true if the call must be counted as a loss, and false if it is nested
    /// in another refused call.
    #[cold]
    pub(crate) fn begin_call(&self, call: &Call<'_>) -> bool {
        match self {
            Self::Inside(thread) => thread.refused.begin_call(call),
            Self::WithoutMemory => REFUSED.with(|refused| refused.begin_call(call)),
        }
    }

    /// Counts a loss that results from a refused entry.
    #[cold]
    pub(crate) fn lose(&self, loss: Loss) {
        match self {
            Self::Inside(thread) => thread.counters.lose(loss),
            Self::WithoutMemory => lose_without_state(loss),
        }
    }
}

thread_local! {
    /// Refused calls of a thread that has no state. Accessing this variable never allocates memory. The variable is
    /// stored next to the pointer of [`tls`], and memory for both was allocated at the first access to that pointer.
    static REFUSED: OpenRefusals = const { OpenRefusals::new() };
}

static FIRST: AtomicPtr<ThreadState> = AtomicPtr::new(null_mut());
static WITHOUT_STATE: [AtomicU64; Loss::ALL.len()] = [const { AtomicU64::new(0) }; Loss::ALL.len()];
/// Number of abandoned thread states.
static ABANDONED_STATES: AtomicUsize = AtomicUsize::new(0);
/// Number of thread states that no new thread may reuse, because they belong to running threads or are abandoned.
static OCCUPIED_STATES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn all() -> impl Iterator<Item = &'static ThreadState> {
    let mut at = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: a state is initialised before it is linked into the list, and is never unmapped.
        let thread = unsafe { at.as_ref() }?;
        at = thread.next.load(Ordering::Acquire);
        Some(thread)
    })
}

/// Returns the number of losses of this kind on threads that have no state because there was no memory for it.
pub(super) fn lost_without_state(loss: Loss) -> u64 {
    WITHOUT_STATE[loss as usize - 1].load(Ordering::Relaxed)
}

fn lose_without_state(loss: Loss) {
    WITHOUT_STATE[loss as usize - 1].fetch_add(1, Ordering::Relaxed);
}

/// Assigns a state to the calling thread, either an unused state or a new state. Returns `None` if there is no memory,
/// or if the memory limit does not allow another state.
#[cold]
fn attach() -> Option<&'static ThreadState> {
    if OCCUPIED_STATES.fetch_add(1, Ordering::Relaxed) >= unread_limit::bytes() / BYTES_PER_THREAD {
        OCCUPIED_STATES.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // `ThreadOnly` must be created before the state is mapped. If the state were mapped first and `ThreadOnly` could
    // not be created, each launch of the thread would map a state and unmap it again.
    let Some(thread) = ThreadOnly::new().and_then(reuse_or_map) else {
        OCCUPIED_STATES.fetch_sub(1, Ordering::Relaxed);
        return None;
    };
    // SAFETY: `thread` points to a state, and states are never unmapped.
    let state: &'static ThreadState = unsafe { thread.as_ref() };
    // SAFETY: the state belongs to this thread alone, and the thread cannot enter gpuflame with it before `tls::set`
    // has stored it.
    let own = unsafe { &mut *state.own.get() };
    announce(own.id, state, &mut own.contexts);
    tls::set(thread.as_ptr().cast());
    notify_at_thread_end(thread);
    Some(state)
}

/// Abandons the state of the calling thread after the thread has jumped out of gpuflame. Threads other than this thread
/// will not use the abandoned state. Therefore the state stays valid in case the thread later jumps back into the call
/// that it left. Returns `false` if the number of abandoned states has already reached its maximum.
fn abandon_state(thread: &ThreadState) -> bool {
    let abandoned = ABANDONED_STATES.fetch_add(1, Ordering::Relaxed);
    if abandoned >= MAX_ABANDONED_STATES {
        ABANDONED_STATES.store(MAX_ABANDONED_STATES, Ordering::Relaxed);
        return false;
    }
    thread.stage.store(ABANDONED, Ordering::Release);
    tls::set(null_mut());
    true
}

/// Writes the id and the name of the calling thread to its context log, before the thread's first stack. The name is
/// recorded at this time, because the thread may already have ended when the collector reads the thread's rows. If the
/// thread opens a range before the session is set up, the context log has no room yet. In this case, this function is
/// called again before the thread's first stack is recorded.
pub(crate) fn announce(id: ThreadId, thread: &ThreadState, contexts: &mut LogWriter) {
    let mut name = [0_u64; 2];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    // If the context log has no room for the name, the recording does not contain the thread's name.
    contexts.push(&thread.contexts, [&thread_words(id, name)]);
}

/// Returns the kernel's id of the calling thread.
fn this_thread_id() -> ThreadId {
    ThreadId(threads::current_id() as u32)
}

fn reuse_or_map(own: ThreadOnly) -> Option<NonNull<ThreadState>> {
    let free = all().find(|thread| {
        thread.stage.compare_exchange(ENDED, LIVE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(thread) = free {
        // SAFETY: because of the exchange, this thread is the only owner of the state. The old value of `own` is valid
        // and is replaced in place. The new thread continues the old log writers and the old range of launches outside
        // windows. The new thread may continue this range, although it then also covers the ids between the launches of
        // the old thread and those of the new thread.
        let old = unsafe { &mut *thread.own.get() };
        let (launches, contexts, outside) = (old.launches, old.contexts, old.outside.take());
        *old = ThreadOnly { launches, contexts, outside, ..own };
        return Some(NonNull::from(thread));
    }
    let at = memory::map(size_of::<ThreadState>())?;
    leaks::register_root(at.cast(), size_of::<ThreadState>());
    let at = at.cast::<MaybeUninit<ThreadState>>();
    // SAFETY: `at` is a fresh, page-aligned mapping of `size_of::<ThreadState>()` bytes, and no other thread refers to
    // it.
    let thread = unsafe { &mut *at.as_ptr() }.write(ThreadState::new(own));
    let mut first = FIRST.load(Ordering::Acquire);
    loop {
        thread.next.store(first, Ordering::Relaxed);
        match FIRST.compare_exchange_weak(first, thread, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(NonNull::from(thread)),
            Err(now) => first = now,
        }
    }
}

/// Sequence number of the current or latest round in which threads forget their stack ids (see `forget_round`).
static FORGET_ROUND: AtomicU32 = AtomicU32::new(0);

/// Begins a round in which threads can be asked to forget their stack ids. Returns the sequence number of the new
/// round.
pub(crate) fn next_forget_round() -> u32 {
    FORGET_ROUND.fetch_add(1, Ordering::Relaxed) + 1
}

/// For each launch in flight, returns the state of the window when the launch began. Threads that have ended are
/// skipped.
pub(super) fn in_flight() -> impl Iterator<Item = window::WindowState> {
    let live = all().filter(|thread| thread.stage.load(Ordering::Acquire) == LIVE);
    live.filter_map(|thread| thread.in_flight.get())
}

impl ThreadState {
    /// Forgets the thread's stack ids. Called when the thread enters gpuflame after the collector has requested that it
    /// forget its stack ids.
    fn forget_stacks(&self, own: &mut ThreadOnly) {
        if own.interner.forget() {
            self.forgot_round.store(FORGET_ROUND.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Asks the thread to forget its stack ids. Does nothing if the thread has already forgotten its ids in the round
    /// `round`, or if the thread will never enter gpuflame again. Returns `false` as long as it is uncertain whether
    /// the thread will forget its ids.
    pub(crate) fn ask_to_forget(&self, round: u32) -> bool {
        if self.forgot_round.load(Ordering::Acquire) == round
            || self.stage.load(Ordering::Acquire) == ABANDONED
        {
            return true;
        }
        let asked = self.inside.compare_exchange(0, FORGET_REQUESTED, Ordering::AcqRel, Ordering::Relaxed);
        matches!(asked, Err(FORGET_REQUESTED | INHERITED))
    }
}

impl ThreadState {
    /// Returns the part of the thread's state that only the collector accesses.
    ///
    /// # Safety
    /// The caller must be the collector, and must hold no other reference from this function for this thread.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn readers(&self) -> &mut LogReaders {
        // SAFETY: the caller guarantees that no other reference to `readers` exists.
        unsafe { &mut *self.readers.get() }
    }

    fn new(own: ThreadOnly) -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            stage: AtomicU32::new(LIVE),
            launches: Log::new(),
            contexts: Log::new(),
            counters: ThreadCounters::new(),
            pending_ends: PendingEnds::new(),
            outside: SharedOutsideRange::new(),
            in_flight: InFlightLaunch::new(),
            inside: AtomicUsize::new(0),
            forgot_round: AtomicU32::new(0),
            refused: OpenRefusals::new(),
            own: UnsafeCell::new(own),
            readers: UnsafeCell::new(LogReaders {
                launches: LogReader::new(),
                contexts: LogReader::new(),
                outside_reader: OutsideReader::new(),
                noted: 0,
                is_noted: false,
                marked: 0,
                last_launch: Nanos(0),
            }),
        }
    }
}

impl ThreadOnly {
    fn new() -> Option<Self> {
        let mut unwinder = Unwinder::new()?;
        // After a plugin was unloaded, another plugin may be loaded at the same addresses. Without a check at every
        // capture, the unwinder would confuse the stacks of the two plugins.
        unwinder.check_every_capture(true);
        Some(Self {
            id: this_thread_id(),
            unwinder,
            interner: Interner::new()?,
            python: None,
            ranges: OpenRanges::NONE,
            launches: LogWriter::new(),
            contexts: LogWriter::new(),
            pending: PendingLaunch::NONE,
            outside: None,
            aside: None,
            verifying: StackVerification::new(),
            graph_call: None,
            host_call: None,
            copied_graphs: CopiedGraphs::default(),
            calls: 0,
        })
    }
}

/// The `pthread` key whose destructor runs when a thread ends, plus 1; 0 if this key was not created yet.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// Prepares the process-wide data that thread states need. This function never holds a lock, because a forked child
/// could then wait for that lock forever.
pub(super) fn prepare() {
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    leaks::find_leak_checker();
    let mut key = 0;
    // SAFETY: `key` can be written to, and the destructor has the required function type.
    if unsafe { libc::pthread_key_create(&mut key, Some(on_thread_end)) } == 0
        && KEY.compare_exchange(0, key as usize + 1, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        // SAFETY: the key was created above, and no thread has used it yet.
        unsafe { libc::pthread_key_delete(key) };
    }
}

fn notify_at_thread_end(thread: NonNull<ThreadState>) {
    prepare();
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: the key exists, and the value is only passed to `on_thread_end`.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, thread.as_ptr().cast()) };
    }
}

/// Runs when a thread ends, and marks the thread's state as ended or abandoned. If another destructor later launches
/// GPU work on this thread, the thread gets a new state.
unsafe extern "C" fn on_thread_end(state: *mut libc::c_void) {
    tls::set(null_mut());
    // SAFETY: `state` is the value that was stored with the key: the address of a thread state, which is never
    // unmapped.
    if let Some(thread) = unsafe { state.cast::<ThreadState>().as_ref() } {
        let is_inside = thread.inside.load(Ordering::Relaxed) > FORGET_REQUESTED;
        thread.stage.store(if is_inside { ABANDONED } else { ENDED }, Ordering::Release);
        OCCUPIED_STATES.fetch_sub(usize::from(!is_inside), Ordering::Relaxed);
    }
}

fn of_this_thread() -> Option<&'static ThreadState> {
    // SAFETY: the pointer in thread-local storage is null or points to a `ThreadState`, which is never unmapped.
    unsafe { tls::get().cast::<ThreadState>().as_ref() }
}

/// Notes the end of a refused call, which was made by a signal handler or by a thread without a state.
#[cold]
pub(crate) fn end_refused_call() {
    match of_this_thread() {
        Some(thread) => thread.refused.end_call(),
        None => REFUSED.with(OpenRefusals::end_call),
    }
}

/// Whether the calling thread is inside gpuflame. A caller inside gpuflame may be a signal handler that has interrupted
/// gpuflame.
pub(super) fn is_inside() -> bool {
    of_this_thread().is_some_and(|thread| thread.inside.load(Ordering::Relaxed) > FORGET_REQUESTED)
}

/// Sets up all thread states again in a forked child. At most one thread of the parent process exists in the child, and
/// it has a different thread id there. The counters are reset, because up to the fork they have counted the launches
/// and losses of the parent process.
pub(super) fn continue_in_child() {
    for thread in all() {
        thread.inside.store(INHERITED, Ordering::Relaxed);
        thread.counters.forget();
    }
    WITHOUT_STATE.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    // Only the thread that forked exists in the child. The states of the other threads take no extra memory, because
    // the child shares their pages with the parent.
    OCCUPIED_STATES.store(1, Ordering::Relaxed);
}
