//! State that gpuflame keeps for each application thread, and the collector's access to it.
//!
//! A thread's state is mapped on its first launch and never unmapped. When the thread ends, the state is reused by
//! the next thread, which continues the same logs. So memory grows with the maximum number of concurrent threads, not
//! with the total number of threads, nor with the number between two visits of the collector.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, size_of};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use crate::control::window;
use crate::host::{cancel, leaks, signals, threads};
use crate::record::{GraphId, Loss, ThreadId};
use crate::tracer::Call;
use crate::unwind::{Unwinder, memory, tls};

use super::budget;
use super::calls::{GraphCall, HostCallBegun, Pending, UnderWay};
use super::counts::Counts;
use super::intern::Interner;
use super::log::{Log, Reader, Writer};
use super::open_ranges::{Ended, Ranges};
use super::outside::{Growing, Range, Told};
use super::python::PythonFrames;
use super::records::thread_words;
use super::refused::RefusedInHandlers;
use super::verifying::Verifying;

/// State of one application thread. The fields document which thread may access them.
pub(super) struct Thread {
    next: AtomicPtr<Thread>,
    stage: AtomicU32,
    pub(super) launches: Log,
    pub(super) contexts: Log,
    pub(super) tally: Counts,
    pub(super) ended: Ended,
    pub(super) outside: Growing,
    pub(super) under_way: UnderWay,
    /// Stack depth at which the thread entered gpuflame, [`INHERITED`], [`WISHED`], or 0 if it is not inside.
    inside: AtomicUsize,
    /// Last round of forgetting in which the thread took part.
    forgot: AtomicU32,
    /// Calls and ranges of signal handlers that came while the thread was inside.
    pub(super) refused: RefusedInHandlers,
    /// Only for the application thread, while it is inside.
    own: UnsafeCell<Own>,
    /// Only for the collector.
    readers: UnsafeCell<Readers>,
}

// SAFETY: `own` is reached only through `Entered`, which only its thread creates, one at a time; `readers` only by
// the collector, of which there is one; all other fields are atomic or a log made for two ends.
unsafe impl Sync for Thread {}

/// A thread uses this state.
const LIVE: u32 = 0;
/// The thread ended: the next new thread may reuse it. Its logs may hold unread rows.
const ENDED: u32 = 1;
/// The thread jumped out of gpuflame, or ended inside it. Its logs are read, but no thread may reuse it: an operation
/// on it may be incomplete.
const LEFT: u32 = 2;

/// Maximum number of such abandoned states, about 250 KiB each. After that, threads that jump out of gpuflame stay
/// inside, and their launches are only counted.
const MOST_LEFT: usize = 64;

/// Number of threads that get a state even if no memory is left below the ceiling. Launches of further threads are
/// only counted.
const MIN_THREADS: usize = 8;

/// The thread came from the process that this process was forked from.
const INHERITED: usize = 1;
/// The thread is not inside, and must forget its stacks when it next enters (see `forget`).
const WISHED: usize = 2;

/// State that only the application thread accesses.
pub(super) struct Own {
    pub(super) id: ThreadId,
    pub(super) unwinder: Unwinder,
    pub(super) interner: Interner,
    /// `None` until a stack was new while there was an interpreter.
    pub(super) python: Option<PythonFrames>,
    pub(super) ranges: Ranges,
    pub(super) launches: Writer,
    pub(super) contexts: Writer,
    pub(super) pending: Pending,
    pub(super) outside: Option<Range>,
    /// The launch that was interrupted by a signal handler's launch.
    pub(super) aside: Option<Pending>,
    pub(super) verifying: Option<Verifying>,
    pub(super) graph_call: Option<GraphCall>,
    pub(super) host_call: Option<HostCallBegun>,
    /// Graph that was copied last: the source of the executable graph that is announced next.
    pub(super) copied_graph: Option<GraphId>,
    pub(super) calls: u64,
}

/// State that only the collector accesses; see `drain`.
pub(super) struct Readers {
    pub(super) launches: Reader,
    pub(super) contexts: Reader,
    pub(super) told: Told,
    /// Number of unread words of launches that were noted and must be passed on.
    pub(super) noted: usize,
    /// Set when unread words are noted, cleared by the first drain after that.
    pub(super) is_noted: bool,
    /// Number of words of launches that were unread at a mark, and on which a thread waits.
    pub(super) marked: usize,
}

/// Proof that this thread is inside gpuflame and was not before. Ends when dropped.
pub(super) struct Entered {
    thread: &'static Thread,
}

impl Entered {
    /// Enters, unless this thread is inside already or there is no memory (see [`Refused`]). `at` is the address of
    /// something in the caller's frame, or nearer to the stack's root.
    #[inline]
    pub(super) fn new(at: usize) -> Option<Self> {
        let Some(thread) = NonNull::new(tls::get().cast::<Thread>()) else { return Self::at_first(at) };
        // SAFETY: the pointer in thread-local storage is a `Thread` that is never unmapped.
        let thread: &'static Thread = unsafe { thread.as_ref() };
        if thread.inside.load(Ordering::Relaxed) != 0 {
            return Self::once_more(thread, at);
        }
        Some(Self::into(thread, at))
    }

    #[inline]
    fn into(thread: &'static Thread, at: usize) -> Self {
        thread.inside.store(at, Ordering::Relaxed);
        // A signal handler on this thread must see `inside` before it sees any of the following stores.
        compiler_fence(Ordering::SeqCst);
        Self { thread }
    }

    #[cold]
    fn at_first(at: usize) -> Option<Self> {
        // A call that was refused because its thread had no state is refused until its end: it is counted once.
        if REFUSED.with(|refused| refused.is_around(at)) {
            return None;
        }
        Some(Self::into(cancel::barred(attach)?, at))
    }

    /// Handles a thread that seems to be inside: it is, and this is a signal handler; or it was when it jumped out
    /// of a handler; or the thread that was inside belongs to the parent process.
    #[cold]
    fn once_more(thread: &'static Thread, at: usize) -> Option<Self> {
        let inside = thread.inside.load(Ordering::Relaxed);
        if inside == INHERITED {
            let mut entered = Self::into(thread, at);
            let (own, thread) = entered.parts();
            own.id = this_thread();
            announce(own.id, thread, &mut own.contexts);
            return Some(entered);
        }
        if inside == WISHED {
            let mut entered = Self::into(thread, at);
            let (own, thread) = entered.parts();
            thread.forget_stacks(own);
            return Some(entered);
        }
        if !signals::jumped_out_of(inside, at) {
            return None;
        }
        if !leave_behind(thread) {
            // The call that it began inside has ended, too.
            thread.refused.call_ends();
            return None;
        }
        Self::at_first(at)
    }

    /// Returns the state that only this thread accesses, and its shared state.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Own, &'static Thread) {
        // SAFETY: this thread is inside once, and the borrow of `self` excludes a second one.
        (unsafe { &mut *self.thread.own.get() }, self.thread)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.thread.inside.store(0, Ordering::Relaxed);
    }
}

/// Reason why a thread may not enter.
pub(super) enum Refused {
    /// The thread is inside: this is a signal handler.
    Inside(&'static Thread),
    /// The thread has no state, and there is no memory for one.
    WithoutMemory,
}

impl Refused {
    /// Returns why the calling thread could not enter.
    #[cold]
    pub(super) fn now() -> Self {
        of_this_thread().map_or(Self::WithoutMemory, Self::Inside)
    }

    /// Notes the start of a call that cannot be recorded. Returns true if it is not part of another call and must be
    /// counted.
    #[cold]
    pub(super) fn begins(&self, call: &Call<'_>) -> bool {
        match self {
            Self::Inside(thread) => thread.refused.call_begins(call),
            Self::WithoutMemory => REFUSED.with(|refused| refused.call_begins(call)),
        }
    }

    /// Counts a loss that this causes.
    #[cold]
    pub(super) fn lose(&self, loss: Loss) {
        match self {
            Self::Inside(thread) => thread.tally.lose(loss),
            Self::WithoutMemory => lose_without_state(loss),
        }
    }
}

thread_local! {
    /// Refused calls of a thread without a state. Stored next to the pointer of [`tls`], whose first access allocated
    /// room for both.
    static REFUSED: RefusedInHandlers = const { RefusedInHandlers::new() };
}

static FIRST: AtomicPtr<Thread> = AtomicPtr::new(null_mut());
static WITHOUT_STATE: [AtomicU64; Loss::ALL.len()] = [const { AtomicU64::new(0) }; Loss::ALL.len()];
/// Number of abandoned states.
static LEFT_BEHIND: AtomicUsize = AtomicUsize::new(0);

pub(super) fn all() -> impl Iterator<Item = &'static Thread> {
    let mut at = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: states in the list are initialised before they are linked, and never unmapped.
        let thread = unsafe { at.as_ref() }?;
        at = thread.next.load(Ordering::Acquire);
        Some(thread)
    })
}

/// Returns the losses of threads for which there was no memory for a state.
pub(super) fn lost_without_state(loss: Loss) -> u64 {
    WITHOUT_STATE[loss as usize - 1].load(Ordering::Relaxed)
}

fn lose_without_state(loss: Loss) {
    WITHOUT_STATE[loss as usize - 1].fetch_add(1, Ordering::Relaxed);
}

/// Gives the calling thread a state: a free one, or a new one.
#[cold]
fn attach() -> Option<&'static Thread> {
    // Creating a state only to refuse it would map and unmap memory on every launch of the thread.
    if !may_be_created() && !all().any(|thread| thread.stage.load(Ordering::Relaxed) == ENDED) {
        return None;
    }
    let thread = Own::new().and_then(reuse_or_map)?;
    // SAFETY: a state that is never unmapped.
    let state: &'static Thread = unsafe { thread.as_ref() };
    // SAFETY: the state is this thread's alone, and is not entered before it is stored below.
    let own = unsafe { &mut *state.own.get() };
    announce(own.id, state, &mut own.contexts);
    tls::set(thread.as_ptr().cast());
    tell_me_when_this_thread_ends(thread);
    Some(state)
}

/// Abandons the state of the calling thread, which jumped out of gpuflame. If it returns there after all, it finds
/// everything unchanged, because no other thread gets the state. Returns `false` if too many states were abandoned.
fn leave_behind(thread: &Thread) -> bool {
    let left = LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
    if left >= MOST_LEFT {
        LEFT_BEHIND.store(MOST_LEFT, Ordering::Relaxed);
        return false;
    }
    thread.stage.store(LEFT, Ordering::Release);
    tls::set(null_mut());
    true
}

/// Records the calling thread's id and name, before its first context: the thread may have ended when its rows are
/// read. A range may be opened before a session is set up; until then there is no room, and the thread is announced
/// with its first context.
pub(super) fn announce(id: ThreadId, thread: &Thread, contexts: &mut Writer) {
    let mut name = [0_u64; 2];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    // Without room the thread has an id but no name.
    contexts.push(&thread.contexts, [&thread_words(id, name)]);
}

/// Returns the kernel's id of the calling thread.
fn this_thread() -> ThreadId {
    ThreadId(threads::number() as u32)
}

/// Whether there may be another state: below the memory limit, and always for the first threads.
fn may_be_created() -> bool {
    all().take(MIN_THREADS).count() < MIN_THREADS || budget::has_room(size_of::<Thread>())
}

fn reuse_or_map(own: Own) -> Option<NonNull<Thread>> {
    let free = all().find(|thread| {
        thread.stage.compare_exchange(ENDED, LIVE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(thread) = free {
        // SAFETY: the exchange made this thread the only one that knows the state. Its old `own` is valid and
        // replaced in place, except for the writers, which continue where they were, and the range of launches
        // outside windows, to which all ids between the launches of two successive threads belong as well.
        let old = unsafe { &mut *thread.own.get() };
        let (launches, contexts, outside) = (old.launches, old.contexts, old.outside.take());
        *old = Own { launches, contexts, outside, ..own };
        return Some(NonNull::from(thread));
    }
    if !may_be_created() {
        return None;
    }
    let at = memory::map(size_of::<Thread>())?;
    leaks::keeps(at.cast(), size_of::<Thread>());
    let at = at.cast::<MaybeUninit<Thread>>();
    // SAFETY: a fresh mapping of that size, page-aligned, to which no other thread refers.
    let thread = unsafe { &mut *at.as_ptr() }.write(Thread::new(own));
    let mut first = FIRST.load(Ordering::Acquire);
    loop {
        thread.next.store(first, Ordering::Relaxed);
        match FIRST.compare_exchange_weak(first, thread, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(NonNull::from(thread)),
            Err(now) => first = now,
        }
    }
}

/// The current or last round of forgetting; see `forget`.
static ROUND: AtomicU32 = AtomicU32::new(0);

/// Begins a round in which threads can be asked to forget their stacks.
pub(super) fn next_round() -> u32 {
    ROUND.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns the window states at the start of the launches that are in flight on live threads.
pub(super) fn under_way() -> impl Iterator<Item = window::State> {
    let live = all().filter(|thread| thread.stage.load(Ordering::Acquire) == LIVE);
    live.filter_map(|thread| thread.under_way.get())
}

impl Thread {
    /// Forgets the thread's stacks, as it was asked to, when it enters.
    fn forget_stacks(&self, own: &mut Own) {
        if own.interner.forget() {
            self.forgot.store(ROUND.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Asks the thread to forget its stacks, unless it has done so in this `round` or will never enter again. Returns
    /// `false` if it is not certain yet that it will.
    pub(super) fn ask_to_forget(&self, round: u32) -> bool {
        if self.forgot.load(Ordering::Acquire) == round || self.stage.load(Ordering::Acquire) == LEFT {
            return true;
        }
        let asked = self.inside.compare_exchange(0, WISHED, Ordering::AcqRel, Ordering::Relaxed);
        matches!(asked, Err(WISHED | INHERITED))
    }
}

impl Thread {
    /// Returns the state that only the collector accesses.
    ///
    /// # Safety
    /// The caller is the collector, and holds no other result of this call.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn readers(&self) -> &mut Readers {
        // SAFETY: the caller guarantees that it is the only one.
        unsafe { &mut *self.readers.get() }
    }

    fn new(own: Own) -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            stage: AtomicU32::new(LIVE),
            launches: Log::new(),
            contexts: Log::new(),
            tally: Counts::new(),
            ended: Ended::new(),
            outside: Growing::new(),
            under_way: UnderWay::new(),
            inside: AtomicUsize::new(0),
            forgot: AtomicU32::new(0),
            refused: RefusedInHandlers::new(),
            own: UnsafeCell::new(own),
            readers: UnsafeCell::new(Readers {
                launches: Reader::new(),
                contexts: Reader::new(),
                told: Told::new(),
                noted: 0,
                is_noted: false,
                marked: 0,
            }),
        }
    }
}

impl Own {
    fn new() -> Option<Self> {
        let mut unwinder = Unwinder::new()?;
        // So that a plugin that is loaded where another was before is never mistaken for it: by address alone the two
        // stacks are the same.
        unwinder.check_every_capture(true);
        Some(Self {
            id: this_thread(),
            unwinder,
            interner: Interner::new()?,
            python: None,
            ranges: Ranges::NONE,
            launches: Writer::new(),
            contexts: Writer::new(),
            pending: Pending::NONE,
            outside: None,
            aside: None,
            verifying: Verifying::new(),
            graph_call: None,
            host_call: None,
            copied_graph: None,
            calls: 0,
        })
    }
}

/// Key whose destructor runs when a thread ends, plus 1; 0 = there is none yet.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// Prepares what threads need, at no time holding a lock for which a forked child would wait.
pub(super) fn prepare() {
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    leaks::prepare();
    let mut key = 0;
    // SAFETY: `key` is a place to write to, and the destructor is a function of the right type.
    if unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0
        && KEY.compare_exchange(0, key as usize + 1, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        // SAFETY: the key is ours, and no thread has used it.
        unsafe { libc::pthread_key_delete(key) };
    }
}

fn tell_me_when_this_thread_ends(thread: NonNull<Thread>) {
    prepare();
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: the key exists; the value is only passed to `thread_ends`.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, thread.as_ptr().cast()) };
    }
}

/// Runs on a thread that ends. Launches that other destructors make after this attach a new state.
unsafe extern "C" fn thread_ends(state: *mut libc::c_void) {
    tls::set(null_mut());
    // SAFETY: the value that was stored with the key: a state, which is never unmapped.
    if let Some(thread) = unsafe { state.cast::<Thread>().as_ref() } {
        let is_inside = thread.inside.load(Ordering::Relaxed) > WISHED;
        thread.stage.store(if is_inside { LEFT } else { ENDED }, Ordering::Release);
    }
}

fn of_this_thread() -> Option<&'static Thread> {
    // SAFETY: the pointer in thread-local storage is null or a `Thread` that is never unmapped.
    unsafe { tls::get().cast::<Thread>().as_ref() }
}

/// Notes the end of a call that was refused to a signal handler or to a thread without a state.
#[cold]
pub(super) fn refused_call_ends() {
    match of_this_thread() {
        Some(thread) => thread.refused.call_ends(),
        None => REFUSED.with(RefusedInHandlers::call_ends),
    }
}

/// Whether the calling thread is inside gpuflame, where a signal handler may have interrupted it.
pub(super) fn is_inside() -> bool {
    of_this_thread().is_some_and(|thread| thread.inside.load(Ordering::Relaxed) > WISHED)
}

/// Re-initialises threads in a forked child. At most one of them exists there, and it has another id. The counts
/// belong to the parent process.
pub(super) fn go_on_in_child() {
    for thread in all() {
        thread.inside.store(INHERITED, Ordering::Relaxed);
        thread.tally.forget();
    }
    WITHOUT_STATE.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}
