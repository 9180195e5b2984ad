//! What gpuflame keeps for each application thread, and how the collector gets at it.
//!
//! A thread's state is mapped on its first launch and never unmapped; when the thread ends, the state
//! waits until the collector has read its logs, and then serves the next thread. So memory follows
//! the most threads there were at once, not how many there have been.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, size_of};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::record::{GraphId, Loss, Row, ThreadId};
use crate::unwind::{Unwinder, memory, tls};

use super::buffers;
use super::calls::{BesideCall, GraphCall, Pending};
use super::cost::{self, Cost};
use super::intern::Interner;
use super::log::{Log, Reader, Writer};
use super::open_ranges::{Ended, Ranges};
use super::outside::{Growing, Range, Told};
use super::range_names;
use super::records::{read_contexts, read_launches};
use super::tally::{Tally, Verified};
use super::verifying::Verifying;

/// One application thread's state. The fields say who may touch them.
pub(super) struct Thread {
    next: AtomicPtr<Thread>,
    stage: AtomicU32,
    pub(super) launches: Log,
    pub(super) contexts: Log,
    pub(super) tally: Tally,
    pub(super) ended: Ended,
    pub(super) outside: Growing,
    /// The thread's number and its name when it came here, of which the collector has not heard yet.
    newcomer: Newcomer,
    busy: AtomicBool,
    /// The application thread's alone, while `busy` is held.
    own: UnsafeCell<Own>,
    /// The collector's alone.
    readers: UnsafeCell<Readers>,
}

// SAFETY: `own` is reached only through `Entered`, which its thread alone makes, one at a time;
// `readers` only by the collector, which is one; all else is atomic or a log made for two ends.
unsafe impl Sync for Thread {}

/// A thread uses this state.
const LIVE: u32 = 0;
/// Its thread ended; the logs may hold unread rows.
const ENDED: u32 = 1;
/// Read to the end; the next new thread may have it.
const FREE: u32 = 2;

/// What only the application thread touches.
pub(super) struct Own {
    pub(super) id: ThreadId,
    pub(super) unwinder: Unwinder,
    pub(super) interner: Interner,
    pub(super) ranges: Ranges,
    pub(super) launches: Writer,
    pub(super) contexts: Writer,
    pub(super) pending: Pending,
    pub(super) outside: Option<Range>,
    pub(super) verifying: Option<Verifying>,
    pub(super) graph_call: Option<GraphCall>,
    pub(super) beside: Option<BesideCall>,
    /// The graph that was copied last: what an instantiation that is announced next is made of.
    pub(super) copied_graph: Option<GraphId>,
    pub(super) calls: u64,
}

struct Readers {
    launches: Reader,
    contexts: Reader,
    told: Told,
}

/// Who a state belongs to, for the collector: a thread may be gone when its rows are read.
struct Newcomer {
    id: AtomicU32,
    /// As the kernel has it: up to 15 bytes and a NUL.
    name: [AtomicU64; 2],
    is_new: AtomicBool,
}

impl Newcomer {
    const fn new() -> Self {
        let name = [const { AtomicU64::new(0) }; 2];
        Self { id: AtomicU32::new(0), name, is_new: AtomicBool::new(false) }
    }

    /// Notes who the calling thread is.
    fn arrive(&self) {
        let mut name = [0_u64; 2];
        // SAFETY: gettid has no preconditions, and PR_GET_NAME writes at most 16 bytes.
        let id = unsafe {
            libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
            libc::gettid()
        };
        self.id.store(id as u32, Ordering::Relaxed);
        for (slot, word) in self.name.iter().zip(name) {
            slot.store(word, Ordering::Relaxed);
        }
        self.is_new.store(true, Ordering::Release);
    }

    /// Hands the row over, once.
    fn tell(&self, each: &mut impl FnMut(&Row<'_>)) {
        if !self.is_new.load(Ordering::Relaxed) || !self.is_new.swap(false, Ordering::Acquire) {
            return;
        }
        let mut bytes = [0; 16];
        for (part, word) in bytes.chunks_exact_mut(8).zip(&self.name) {
            part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let id = ThreadId(self.id.load(Ordering::Relaxed));
        each(&Row::Thread { id, name: &String::from_utf8_lossy(name) });
    }
}

/// Proof that this thread is inside gpuflame and was not before. Ends when dropped.
pub(super) struct Entered {
    thread: &'static Thread,
}

impl Entered {
    /// Enters, unless this thread is inside already or no memory can be had.
    #[inline]
    pub(super) fn new() -> Option<Self> {
        let thread = NonNull::new(tls::get().cast::<Thread>()).or_else(attach)?;
        // SAFETY: the pointer in thread-local storage is a `Thread` that is never unmapped.
        let thread: &'static Thread = unsafe { thread.as_ref() };
        if thread.busy.load(Ordering::Relaxed) {
            thread.tally.lose(Loss::StacksNested);
            return None;
        }
        thread.busy.store(true, Ordering::Relaxed);
        // A signal handler on this thread must not see what follows before it sees `busy`.
        compiler_fence(Ordering::SeqCst);
        Some(Self { thread })
    }

    /// What only this thread touches, with what it shares.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Own, &'static Thread) {
        // SAFETY: this thread holds `busy`, and the borrow of `self` keeps a second one away.
        (unsafe { &mut *self.thread.own.get() }, self.thread)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.thread.busy.store(false, Ordering::Relaxed);
    }
}

static FIRST: AtomicPtr<Thread> = AtomicPtr::new(null_mut());
/// Launches of threads for which no state could be had.
static UNATTACHED: AtomicU64 = AtomicU64::new(0);

pub(super) fn all() -> impl Iterator<Item = &'static Thread> {
    let mut at = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: states in the list are initialised before they are linked, and never unmapped.
        let thread = unsafe { at.as_ref() }?;
        at = thread.next.load(Ordering::Acquire);
        Some(thread)
    })
}

/// Gives the calling thread a state: a free one, or a new one.
#[cold]
fn attach() -> Option<NonNull<Thread>> {
    let thread = Own::new().and_then(reuse_or_map);
    match thread {
        Some(thread) => {
            tls::set(thread.as_ptr().cast());
            tell_me_when_this_thread_ends(thread);
        }
        None => {
            UNATTACHED.fetch_add(1, Ordering::Relaxed);
        }
    }
    thread
}

fn reuse_or_map(own: Own) -> Option<NonNull<Thread>> {
    let free = all().find(|thread| {
        thread.stage.compare_exchange(FREE, LIVE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(thread) = free {
        // SAFETY: the exchange made this thread the only one that knows the state; its old `own` is
        // valid and replaced in place, but for the writers, which go on where they were.
        let old = unsafe { &mut *thread.own.get() };
        let (launches, contexts) = (old.launches, old.contexts);
        *old = Own { launches, contexts, ..own };
        thread.newcomer.arrive();
        return Some(NonNull::from(thread));
    }
    let at = memory::map(size_of::<Thread>())?.cast::<MaybeUninit<Thread>>();
    // SAFETY: a fresh mapping of that size, page-aligned, known to nobody else.
    let thread = unsafe { &mut *at.as_ptr() }.write(Thread::new(own));
    let mut first = FIRST.load(Ordering::Acquire);
    loop {
        thread.next.store(first, Ordering::Relaxed);
        match FIRST.compare_exchange_weak(first, thread, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                thread.newcomer.arrive();
                return Some(NonNull::from(thread));
            }
            Err(now) => first = now,
        }
    }
}

impl Thread {
    fn new(own: Own) -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            stage: AtomicU32::new(LIVE),
            launches: Log::new(),
            contexts: Log::new(),
            tally: Tally::new(),
            ended: Ended::new(),
            outside: Growing::new(),
            newcomer: Newcomer::new(),
            busy: AtomicBool::new(false),
            own: UnsafeCell::new(own),
            readers: UnsafeCell::new(Readers {
                launches: Reader::new(),
                contexts: Reader::new(),
                told: Told::new(),
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
            // SAFETY: gettid has no preconditions.
            id: ThreadId(unsafe { libc::gettid() } as u32),
            unwinder,
            interner: Interner::new()?,
            ranges: Ranges::NONE,
            launches: Writer::new(),
            contexts: Writer::new(),
            pending: Pending::NONE,
            outside: None,
            verifying: Verifying::new(),
            graph_call: None,
            beside: None,
            copied_graph: None,
            calls: 0,
        })
    }
}

fn tell_me_when_this_thread_ends(thread: NonNull<Thread>) {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is a place to write to, and the destructor is a function of the right type.
        (unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0).then_some(key)
    });
    if let Some(key) = key {
        // SAFETY: the key exists; the value is only handed back to `thread_ends`.
        unsafe { libc::pthread_setspecific(*key, thread.as_ptr().cast()) };
    }
}

/// Runs on a thread that ends. Launches that other destructors make after this attach anew.
unsafe extern "C" fn thread_ends(state: *mut libc::c_void) {
    tls::set(null_mut());
    // SAFETY: the value that was stored with the key: a state, which is never unmapped.
    if let Some(thread) = unsafe { state.cast::<Thread>().as_ref() } {
        thread.stage.store(ENDED, Ordering::Release);
    }
}

/// Hands over some of what all threads have written since the last call: every new context, and then
/// launches, at most one chunk of a log from each thread. False: there was nothing.
///
/// Only one thread may be in here at a time: the caller holds the collector's lock.
pub fn drain(mut each: impl FnMut(&Row<'_>)) -> bool {
    let mut any = false;
    for thread in all() {
        let ended = thread.stage.load(Ordering::Acquire) == ENDED;
        // SAFETY: only the collector calls this, one thread at a time.
        let readers = unsafe { &mut *thread.readers.get() };
        // A launch refers to contexts that were written before it: mark launches first, read them last.
        let launches = readers.launches.mark_next(&thread.launches);
        let contexts = readers.contexts.mark(&thread.contexts);
        thread.newcomer.tell(&mut each);
        range_names::drain_names(&mut each);
        let Readers { launches: reader, told, .. } = readers;
        let grown = told.grown(&thread.outside);
        if let Some(new) = grown {
            each(&Row::Outside(new));
        }
        let some = grown.is_some()
            | readers.contexts.drain(&thread.contexts, contexts, |words| read_contexts(words, &mut each))
            | reader.drain(&thread.launches, launches, |words| read_launches(words, told, &mut each));
        if ended && !some {
            told.clear();
            thread.stage.store(FREE, Ordering::Release);
        }
        any |= some;
    }
    any
}

/// Hands over every new context of all threads. As with [`drain`], one thread at a time.
pub(super) fn drain_contexts(mut each: impl FnMut(&Row<'_>)) {
    for thread in all() {
        // SAFETY: as in `drain`.
        let readers = unsafe { &mut *thread.readers.get() };
        let contexts = readers.contexts.mark(&thread.contexts);
        thread.newcomer.tell(&mut each);
        range_names::drain_names(&mut each);
        readers.contexts.drain(&thread.contexts, contexts, |words| read_contexts(words, &mut each));
    }
}

/// What was lost on application threads so far.
pub fn losses() -> impl Iterator<Item = (Loss, u64)> {
    Loss::ALL.into_iter().map(|loss| {
        let counted = all().map(|thread| thread.tally.lost(loss)).sum::<u64>();
        let elsewhere = match loss {
            Loss::LaunchesDropped => UNATTACHED.load(Ordering::Relaxed),
            Loss::ActivitiesDropped => buffers::discarded(),
            _ => 0,
        };
        (loss, counted + elsewhere)
    })
}

/// What the callbacks cost the application so far.
pub fn cost() -> Cost {
    let calls = all().map(|thread| thread.tally.calls.get()).sum();
    cost::of_all(calls, all().flat_map(|thread| [&thread.tally.times, &thread.tally.graph_times]))
}

/// The same for `launches` of graphs.
pub fn graph_cost(launches: u64) -> Cost {
    cost::of_all(launches, all().map(|thread| &thread.tally.graph_times))
}

/// What was found by taking stacks again, so far.
pub fn verified() -> Verified {
    all().fold(Verified::default(), |sum, thread| sum.and(&thread.tally.verified))
}
