//! What gpuflame keeps for each application thread, and how the collector gets at it.
//!
//! A thread's state is mapped on its first launch and never unmapped; when the thread ends, the state serves the
//! next one, which writes on in the same logs. So memory follows the most threads there were at once, not how
//! many there have been, nor how many there were between two visits of the collector.

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

/// One application thread's state. The fields say who may touch them.
pub(super) struct Thread {
    next: AtomicPtr<Thread>,
    stage: AtomicU32,
    pub(super) launches: Log,
    pub(super) contexts: Log,
    pub(super) tally: Counts,
    pub(super) ended: Ended,
    pub(super) outside: Growing,
    pub(super) under_way: UnderWay,
    /// Where the stack stood when the thread came inside gpuflame, [`INHERITED`], [`WISHED`], or 0: it is not inside.
    inside: AtomicUsize,
    /// The last round of forgetting that the thread took part in.
    forgot: AtomicU32,
    /// What signal handlers did that came while the thread was inside.
    pub(super) refused: RefusedInHandlers,
    /// The application thread's alone, while it is inside.
    own: UnsafeCell<Own>,
    /// The collector's alone.
    readers: UnsafeCell<Readers>,
}

// SAFETY: `own` is reached only through `Entered`, which its thread alone makes, one at a time;
// `readers` only by the collector, which is one; all else is atomic or a log made for two ends.
unsafe impl Sync for Thread {}

/// A thread uses this state.
const LIVE: u32 = 0;
/// Its thread ended: the next new one may have it. Its logs may hold unread rows.
const ENDED: u32 = 1;
/// Its thread jumped out of gpuflame, or ended inside. It is read like the others, and no thread may have it: nobody
/// knows what was half done.
const LEFT: u32 = 2;

/// The most states that are left behind so, some 250 KiB each; after that, threads that jump out of gpuflame stay
/// inside, and what they launch is counted.
const MOST_LEFT: usize = 64;

/// Threads that get a state even if nothing is left below the ceiling. Launches of further threads are then only counted.
const MIN_THREADS: usize = 8;

/// The thread came from the process that this one was forked from.
const INHERITED: usize = 1;
/// It is not inside, and is to forget its stacks when it next comes in (see `forget`).
const WISHED: usize = 2;

/// What only the application thread touches.
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
    /// The launch that a signal handler's came in the middle of.
    pub(super) aside: Option<Pending>,
    pub(super) verifying: Option<Verifying>,
    pub(super) graph_call: Option<GraphCall>,
    pub(super) host_call: Option<HostCallBegun>,
    /// The graph that was copied last: what an instantiation that is announced next is made of.
    pub(super) copied_graph: Option<GraphId>,
    pub(super) calls: u64,
}

/// What only the collector touches; see `drain`.
pub(super) struct Readers {
    pub(super) launches: Reader,
    pub(super) contexts: Reader,
    pub(super) told: Told,
    /// Words of launches that were found unread and are to be handed over.
    pub(super) noted: usize,
    /// Nobody has looked since.
    pub(super) is_noted: bool,
    /// Words of launches that were found unread by who waits until they are read.
    pub(super) marked: usize,
}

/// Proof that this thread is inside gpuflame and was not before. Ends when dropped.
pub(super) struct Entered {
    thread: &'static Thread,
}

impl Entered {
    /// Enters, unless this thread is inside already or no memory can be had (see [`Refused`]). `at` is the address of something in
    /// the caller's frame, or nearer to the stack's root.
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
        // A signal handler on this thread must not see what follows before it sees `inside`.
        compiler_fence(Ordering::SeqCst);
        Self { thread }
    }

    #[cold]
    fn at_first(at: usize) -> Option<Self> {
        // What a thread without state was refused is refused to its end: it is counted once.
        if REFUSED.with(|refused| refused.is_around(at)) {
            return None;
        }
        Some(Self::into(cancel::barred(attach)?, at))
    }

    /// The thread seems to be inside: it is, and this is a signal handler; or it was when it jumped out of one; or
    /// the thread that was is another process's.
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
            // What it began inside is over, too.
            thread.refused.call_ends();
            return None;
        }
        Self::at_first(at)
    }

    /// What only this thread touches, with what it shares.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Own, &'static Thread) {
        // SAFETY: this thread is inside once, and the borrow of `self` keeps a second one away.
        (unsafe { &mut *self.thread.own.get() }, self.thread)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.thread.inside.store(0, Ordering::Relaxed);
    }
}

/// Why a thread may not enter.
pub(super) enum Refused {
    /// It is inside: this is a signal handler.
    Inside(&'static Thread),
    /// It has no state, and none can be had.
    WithoutMemory,
}

impl Refused {
    /// Why the calling thread was not let in.
    #[cold]
    pub(super) fn now() -> Self {
        of_this_thread().map_or(Self::WithoutMemory, Self::Inside)
    }

    /// A call begins that may not be noted. True: it is not part of another one, and is to be counted.
    #[cold]
    pub(super) fn begins(&self, call: &Call<'_>) -> bool {
        match self {
            Self::Inside(thread) => thread.refused.call_begins(call),
            Self::WithoutMemory => REFUSED.with(|refused| refused.call_begins(call)),
        }
    }

    /// Counts what is lost by it.
    #[cold]
    pub(super) fn lose(&self, loss: Loss) {
        match self {
            Self::Inside(thread) => thread.tally.lose(loss),
            Self::WithoutMemory => lose_without_state(loss),
        }
    }
}

thread_local! {
    /// What a thread was refused that has no state. It lies beside the pointer of [`tls`], whose first look made room for both.
    static REFUSED: RefusedInHandlers = const { RefusedInHandlers::new() };
}

static FIRST: AtomicPtr<Thread> = AtomicPtr::new(null_mut());
static WITHOUT_STATE: [AtomicU64; Loss::ALL.len()] = [const { AtomicU64::new(0) }; Loss::ALL.len()];
/// States that were left behind.
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

/// What threads lost for which no state could be had.
pub(super) fn lost_without_state(loss: Loss) -> u64 {
    WITHOUT_STATE[loss as usize - 1].load(Ordering::Relaxed)
}

fn lose_without_state(loss: Loss) {
    WITHOUT_STATE[loss as usize - 1].fetch_add(1, Ordering::Relaxed);
}

/// Gives the calling thread a state: a free one, or a new one.
#[cold]
fn attach() -> Option<&'static Thread> {
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

/// Takes its state from the calling thread, which jumped out of gpuflame. Should it return there after all, it finds
/// everything as it was: nobody else gets the state. False: too many were left behind.
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

/// Writes down who the calling thread is, before its first context: it may be gone when its rows are read. A range may be open
/// before a session is set up; until then there is no room, and the thread is announced with its first context.
pub(super) fn announce(id: ThreadId, thread: &Thread, contexts: &mut Writer) {
    let mut name = [0_u64; 2];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    // Without room it has a number and no name.
    contexts.push(&thread.contexts, [&thread_words(id, name)]);
}

/// The kernel's number of the calling thread.
fn this_thread() -> ThreadId {
    ThreadId(threads::number() as u32)
}

fn reuse_or_map(own: Own) -> Option<NonNull<Thread>> {
    let free = all().find(|thread| {
        thread.stage.compare_exchange(ENDED, LIVE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(thread) = free {
        // SAFETY: the exchange made this thread the only one that knows the state; its old `own` is
        // valid and replaced in place, but for the writers, which go on where they were, and the range of
        // launches outside of windows, which all ids between two threads' launches belong to as well.
        let old = unsafe { &mut *thread.own.get() };
        let (launches, contexts, outside) = (old.launches, old.contexts, old.outside.take());
        *old = Own { launches, contexts, outside, ..own };
        return Some(NonNull::from(thread));
    }
    // `own` has been mapped by now.
    let is_one_of_few = all().take(MIN_THREADS).count() < MIN_THREADS;
    if !is_one_of_few && !budget::has_room(size_of::<Thread>()) {
        return None;
    }
    let at = memory::map(size_of::<Thread>())?;
    leaks::keeps(at.cast(), size_of::<Thread>());
    let at = at.cast::<MaybeUninit<Thread>>();
    // SAFETY: a fresh mapping of that size, page-aligned, known to nobody else.
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

/// The round of forgetting that is under way, or was last; see `forget`.
static ROUND: AtomicU32 = AtomicU32::new(0);

/// Begins a round in which threads can be asked to forget their stacks.
pub(super) fn next_round() -> u32 {
    ROUND.fetch_add(1, Ordering::Relaxed) + 1
}

/// How the launches met the window that are under way on threads that live.
pub(super) fn under_way() -> impl Iterator<Item = window::State> {
    let live = all().filter(|thread| thread.stage.load(Ordering::Acquire) == LIVE);
    live.filter_map(|thread| thread.under_way.get())
}

impl Thread {
    /// What a thread does that comes in and was asked to forget its stacks.
    fn forget_stacks(&self, own: &mut Own) {
        if own.interner.forget() {
            self.forgot.store(ROUND.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Asks the thread to forget its stacks, unless it has done so in this `round` or will not come again. False: it
    /// is not sure yet that it will.
    pub(super) fn ask_to_forget(&self, round: u32) -> bool {
        if self.forgot.load(Ordering::Acquire) == round || self.stage.load(Ordering::Acquire) == LEFT {
            return true;
        }
        let asked = self.inside.compare_exchange(0, WISHED, Ordering::AcqRel, Ordering::Relaxed);
        matches!(asked, Err(WISHED | INHERITED))
    }
}

impl Thread {
    /// What only the collector touches.
    ///
    /// # Safety
    /// The caller is the collector, and holds no other result of this call.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn readers(&self) -> &mut Readers {
        // SAFETY: the caller vouches for being the only one.
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
        // So that a plugin that is loaded where another one was before is never taken for it: by address
        // alone the two stacks are the same.
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

/// The key whose destructor tells that a thread ends, plus 1; 0 = there is none yet.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// Makes ready what threads need, without a moment in which a child that is forked would wait for it.
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
        // SAFETY: the key exists; the value is only handed back to `thread_ends`.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, thread.as_ptr().cast()) };
    }
}

/// Runs on a thread that ends. Launches that other destructors make after this attach anew.
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

/// The call ends that a signal handler was refused, or a thread without state.
#[cold]
pub(super) fn refused_call_ends() {
    match of_this_thread() {
        Some(thread) => thread.refused.call_ends(),
        None => REFUSED.with(RefusedInHandlers::call_ends),
    }
}

/// Whether the calling thread is inside gpuflame, where a signal handler may have stopped it.
pub(super) fn is_inside() -> bool {
    of_this_thread().is_some_and(|thread| thread.inside.load(Ordering::Relaxed) > WISHED)
}

/// In a forked child: of these threads there is one at most, and it has another number. What was counted was not of
/// this process.
pub(super) fn go_on_in_child() {
    for thread in all() {
        thread.inside.store(INHERITED, Ordering::Relaxed);
        thread.tally.forget();
    }
    WITHOUT_STATE.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}
