//! Python frames: those that CPython keeps for the calling thread, read from memory and merged with the native
//! ones.
//!
//! A walk calls a single Python function, which reads thread-local storage (and `find` one that returns the version
//! string, before 3.11): none that takes the global lock, and none that counts references. The frames of a thread do
//! not change while it is inside a call, whichever thread has the lock.
//!
//! * `find`: the interpreter of this process, its version and whether its frames can be read.
//! * `layout`: the offsets of the fields to read, as data per version.
//! * `read`: reading through pointers that may lead anywhere.
//! * `code`: identifies code objects, and reads their names.
//! * `walk`: walks along the frames.
//! * `walks`: a cache of the thread's earlier walks.
//! * `merge`: merges both kinds of frames to one stack.
//!
//! # What it relies on, and what it checks
//!
//! 1. A version whose layout is not known is not read, and neither is one that publishes another layout than its
//!    version has (`layout`).
//! 2. A pointer is followed only to pages that the kernel has reported readable (`read`). So a corrupted chain ends
//!    the walk, and the recording of Python frames, but harms nothing.
//! 3. A code object, its name, file and line table must have their types, which are compared by address when the
//!    object is first met (`code`).
//! 4. The native stack must agree. Since 3.11, the addresses on the C stack that frames refer to must be inside
//!    native frames; before 3.11, there must be as many evaluator calls as Python frames (`merge`). If a stack
//!    disagrees before any has agreed, Python frames are switched off.
//! 5. When the interpreter is finalized, it frees other threads' frames. It sets a flag before that, and from then
//!    on only the finalizing thread is read. A thread that the kernel preempts in the middle of a walk (about 50
//!    ns), for as long as the interpreter takes from that flag to unmapping the thread's frames, would read freed
//!    memory: not excluded.

mod code;
mod find;
mod layout;
mod merge;
mod read;
mod walk;
mod walks;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use code::Description;
use find::Interpreter;
pub use find::Off;
use merge::{Agreement, MOST_MERGED, Out, Stacks};
use walk::{Broken, Walk};
pub(crate) use walks::WALKS;
use walks::Walks;

use super::{Captured, memory};
use crate::record::{CodeId, Frame};

/// Sets whether Python frames are recorded from now on. By default they are not.
pub fn want(wanted: bool) {
    find::want(wanted);
}

/// Why Python frames are missing although there is a Python. `None` if they are not, or if there is no Python.
pub fn off() -> Option<Off> {
    find::off()
}

/// The Python frames of the thread that created it.
#[derive(Debug)]
pub(crate) struct Python {
    state: NonNull<State>,
    interpreter: &'static Interpreter,
    /// The loader's unload count when the interpreter was last seen.
    unloads: u32,
}

/// Per-thread state, in its own mapping: touched only as far as the thread's stacks reach.
#[repr(C)]
struct State {
    walk: Walk,
    walks: Walks,
    merged: [Frame; MOST_MERGED],
}

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The frames are those of the cached walk with this number; the last walk is unchanged.
    Again(usize),
    /// The frames are those of the last walk.
    Same,
    /// The frames have changed.
    Other,
    /// There is no Python frame: the thread is not Python's, or is not in Python code now.
    Nothing,
    /// The frames could not be read: the chain is corrupted, or memory was refused.
    Lost,
}

/// A stack of native and Python frames.
pub(crate) struct Merged<'a> {
    /// The frames, leaf first.
    pub(crate) frames: &'a [Frame],
    /// Whether native and Python frames show the same evaluator calls.
    pub(crate) is_sure: bool,
    /// Whether Python frames are missing at the root.
    pub(crate) is_cut: bool,
}

/// Whether any stack has agreed with its native frames.
static HAS_AGREED: AtomicBool = AtomicBool::new(false);

impl Python {
    /// Creates it for the calling thread, if there is a readable interpreter. Searches for one if objects were
    /// loaded since.
    #[cold]
    pub(crate) fn of_this_thread() -> Option<Self> {
        let interpreter = find::interpreter()?;
        let table = code::Table::new()?;
        let state = memory::map(size_of::<State>())?.cast::<State>();
        // SAFETY: the fresh mapping is large enough and page-aligned; all other fields are valid as zeroes.
        unsafe { (&raw mut (*state.as_ptr()).walk.table).write(table) };
        Some(Self { state, interpreter, unloads: find::unloads() })
    }

    /// Walks along the frames. `native` identifies the thread's native frames as far as they are known; `number`
    /// assigns the number of a code object that is new to the thread.
    #[inline(always)]
    pub(crate) fn walk(&mut self, native: usize, number: impl FnMut(Description<'_>) -> CodeId) -> Found {
        let Self { interpreter, .. } = *self;
        self.state().walks.under(native);
        let thread = self.readable_thread();
        let State { walk, walks, .. } = self.state();
        if thread != 0 && walk.is_as_before(interpreter, thread) {
            return Found::Same;
        }
        if thread != 0
            && let Some(number) = walks.recognise(walk, interpreter, thread)
        {
            return Found::Again(number);
        }
        self.walk_anew(thread, number)
    }

    /// Address of the calling thread's state; 0 if it has none, or if its state must not be read now.
    #[inline(always)]
    fn readable_thread(&mut self) -> u64 {
        let is_usable = !find::is_off() && (find::unloads() == self.unloads || self.is_still_there());
        // SAFETY: this function belongs to an interpreter that is loaded, and needs no lock of Python's.
        let thread = if is_usable { unsafe { (self.interpreter.this_thread)() }.addr() as u64 } else { 0 };
        if thread == 0 || is_ending(self.interpreter, thread) { 0 } else { thread }
    }

    /// Walks along the frames without the cache of walks.
    #[cold]
    pub(crate) fn walk_plainly(&mut self, number: impl FnMut(Description<'_>) -> CodeId) -> Found {
        // Read the state again: a native walk may have happened in between.
        let thread = self.readable_thread();
        self.walk_anew(thread, number)
    }

    /// Caches the last walk, if the back-off allows it, and returns its number.
    #[inline(always)]
    pub(crate) fn keep(&mut self) -> Option<usize> {
        let State { walk, walks, .. } = self.state();
        if walks.can_keep() { walks.keep(walk) } else { None }
    }

    /// Walks along changed frames; `thread` is 0 if nothing may be read. Not inlined: it needs more registers than
    /// are available.
    #[inline(never)]
    fn walk_anew(&mut self, thread: u64, mut number: impl FnMut(Description<'_>) -> CodeId) -> Found {
        let Self { interpreter, .. } = *self;
        let State { walk, walks, .. } = self.state();
        if thread == 0 {
            walk.forget();
            return Found::Nothing;
        }
        if walk.texts.are_full() {
            walks.forget();
        }
        match walk.run(interpreter, thread, &mut number) {
            Ok(_) if walk.count == 0 => Found::Nothing,
            Ok(true) => Found::Same,
            Ok(false) => Found::Other,
            Err(why) => self.lose(why, thread),
        }
    }

    #[cold]
    fn is_still_there(&mut self) -> bool {
        self.unloads = find::unloads();
        find::is_there(self.interpreter)
    }

    #[cold]
    fn lose(&mut self, why: Broken, thread: u64) -> Found {
        self.state().walk.forget();
        if is_ending(self.interpreter, thread) {
            return Found::Nothing;
        }
        if why == Broken::Garbage {
            find::switch_off(Off::Unreadable);
        }
        Found::Lost
    }

    /// Number of frames at the root that the last walk shares with the one before, and the words that identify the
    /// other frames, outermost first.
    #[inline(always)]
    pub(crate) fn words(&self) -> (usize, impl Iterator<Item = u64>) {
        // SAFETY: the state is mapped as long as `self` lives, and used by this thread only.
        let walk = &unsafe { self.state.as_ref() }.walk;
        // The start of evaluator calls is included: the same frames may belong to more or fewer calls.
        let word = |item: &walk::Item| item.frame.0 | u64::from(item.boundary != 0) << 63;
        (walk.kept, walk.items[walk.kept..walk.count].iter().map(word))
    }

    /// Merges the frames of the last walk with those of `captured`, which must be from the same moment.
    #[cold]
    pub(crate) fn merge(&mut self, captured: &Captured<'_>) -> Merged<'_> {
        let evaluator = &self.interpreter.evaluator;
        let State { walk, merged, .. } = self.state();
        let stacks = Stacks {
            native: captured.frames,
            items: &walk.items[..walk.count],
            is_partial: captured.is_partial() || walk.is_cut,
            evaluator,
        };
        let (frames, agreement) = stacks.merge(captured.stack_pointers(), Out::new(merged));
        match agreement {
            Agreement::Whole => HAS_AGREED.store(true, Ordering::Relaxed),
            // Possible at the first launch of a program that launches only from greenlets.
            Agreement::MoreNative => {}
            Agreement::None if HAS_AGREED.load(Ordering::Relaxed) => {}
            Agreement::None => find::switch_off(Off::Mismatch),
        }
        Merged { frames, is_sure: agreement == Agreement::Whole, is_cut: walk.is_cut }
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: the state is mapped as long as `self` lives, and used by this thread only.
        unsafe { self.state.as_mut() }
    }
}

/// Whether another thread is finalizing the interpreter, which frees the frames of all other threads.
#[inline(always)]
fn is_ending(interpreter: &Interpreter, thread: u64) -> bool {
    let place = interpreter.runtime + u64::from(interpreter.layout.finalizing);
    // SAFETY: a word of a variable of the interpreter, which is loaded.
    let by = unsafe { (place as *const u64).read_volatile() };
    by != 0 && by != thread
}

impl Drop for Python {
    fn drop(&mut self) {
        // SAFETY: the state is mapped as long as `self` lives, and unmapped here; its table is dropped once.
        unsafe {
            (&raw mut (*self.state.as_ptr()).walk.table).drop_in_place();
            (*self.state.as_ptr()).walks.give_back();
            memory::unmap(self.state.cast(), size_of::<State>());
        }
    }
}
