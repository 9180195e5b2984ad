//! Python frames: those that CPython keeps for the calling thread, read as memory and put among the native ones.
//!
//! No function of Python's is called but one that looks at thread-local storage: none that takes the global lock, and
//! none that counts references. The frames of a thread stand still while it is inside a call, whoever has the lock.
//!
//! * `find`: the interpreter of this process, its version and whether it can be read.
//! * `layout`: where what is read lies, as data for each version.
//! * `read`: reading where a pointer may lead anywhere.
//! * `code`: which code object that is, and what it is called.
//! * `walk`: along the frames.
//! * `walks`: those that a thread made before, recognised.
//! * `merge`: both kinds of frames as one stack.
//!
//! # What it trusts, and what it does not
//!
//! 1. A version whose layout is not known is not read, nor one that tells another layout than its version has (`layout`).
//! 2. No pointer is followed to a page that the kernel has not said to be readable (`read`). So a chain that is corrupted
//!    ends the walk, and Python frames with it, and harms nobody.
//! 3. What is said to be a code object has the type of one, as seen by address, when it is met, and so have its name,
//!    file and lines (`code`).
//! 4. The native stack is a second witness: since 3.11 what frames say of the C stack lies in native frames, before that
//!    there are as many calls of the evaluator as frames (`merge`). If the first stack does not agree, nothing is believed.
//! 5. When the interpreter ends, it frees other threads' frames. It says so before it does, and from then on only the
//!    thread that ends it is read. A thread that was stopped by the kernel in the midst of a walk, some 50 ns, for as long
//!    as the interpreter needs from saying so to unmapping that thread's frames, would read what is gone: not excluded.

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

/// Has Python frames taken from now on, or not. Not taken is the default.
pub fn want(wanted: bool) {
    find::want(wanted);
}

/// Why there are no Python frames although there is a Python; `None`: there are, or there is no Python.
pub fn off() -> Option<Off> {
    find::off()
}

/// The Python frames of the thread that made it.
#[derive(Debug)]
pub(crate) struct Python {
    state: NonNull<State>,
    interpreter: &'static Interpreter,
    /// How often objects had been unloaded when the interpreter was last seen.
    unloads: u32,
}

/// What a thread needs, in a mapping of its own: used only as far as its stacks reach.
#[repr(C)]
struct State {
    walk: Walk,
    walks: Walks,
    merged: [Frame; MOST_MERGED],
}

/// What a walk has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Those of the kept walk with this number; the last walk stays what it was.
    Again(usize),
    /// The frames of the last walk.
    Same,
    /// Others.
    Other,
    /// No Python frame: the thread is not Python's, or not in it now.
    Nothing,
    /// Something that is no chain of frames, or there was no memory: what there was is lost.
    Lost,
}

/// A stack of both kinds of frames.
pub(crate) struct Merged<'a> {
    /// Leaf first.
    pub(crate) frames: &'a [Frame],
    /// Whether native and Python frames told of the same calls.
    pub(crate) is_sure: bool,
    /// Whether Python frames are missing at the root.
    pub(crate) is_cut: bool,
}

/// Whether any stack has agreed with its native frames.
static HAS_AGREED: AtomicBool = AtomicBool::new(false);

impl Python {
    /// For the calling thread, if there is an interpreter that can be read. It is looked for where objects came since.
    #[cold]
    pub(crate) fn of_this_thread() -> Option<Self> {
        let interpreter = find::interpreter()?;
        let table = code::Table::new()?;
        let state = memory::map(size_of::<State>())?.cast::<State>();
        // SAFETY: the fresh mapping is large enough and page-aligned; all other fields are valid as zeroes.
        unsafe { (&raw mut (*state.as_ptr()).walk.table).write(table) };
        Some(Self { state, interpreter, unloads: find::unloads() })
    }

    /// Walks along the frames. `native` says which native frames the thread is in, as far as that is known; `number` gives the
    /// number of a code object that is new to the thread.
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

    /// The state of the calling thread; 0: it has none, or nothing of it is to be read now.
    #[inline(always)]
    fn readable_thread(&mut self) -> u64 {
        let is_usable = !find::is_off() && (find::unloads() == self.unloads || self.is_still_there());
        // SAFETY: the function of an interpreter that is loaded; it needs no lock of Python's.
        let thread = if is_usable { unsafe { (self.interpreter.this_thread)() }.addr() as u64 } else { 0 };
        if thread == 0 || is_ending(self.interpreter, thread) { 0 } else { thread }
    }

    /// Walks along the frames, whether they are of a kept walk or not.
    #[cold]
    pub(crate) fn walk_plainly(&mut self, number: impl FnMut(Description<'_>) -> CodeId) -> Found {
        // Asked again: a native walk may have come between.
        let thread = self.readable_thread();
        self.walk_anew(thread, number)
    }

    /// Keeps the last walk, if that pays by now, and gives its number.
    #[inline(always)]
    pub(crate) fn keep(&mut self) -> Option<usize> {
        let State { walk, walks, .. } = self.state();
        if walks.can_keep() { walks.keep(walk) } else { None }
    }

    /// The same where something is not as it was; `thread` is 0 where nothing is to be read. Apart: it needs more registers
    /// than there are.
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

    /// How many frames at the root of the last walk are those of the one before, and the words that identify the others,
    /// the outermost first.
    #[inline(always)]
    pub(crate) fn words(&self) -> (usize, impl Iterator<Item = u64>) {
        // SAFETY: the state is mapped as long as `self` lives, and used by this thread only.
        let walk = &unsafe { self.state.as_ref() }.walk;
        // Where calls of the evaluator begin is a part of it: the same frames may be more or fewer calls.
        let word = |item: &walk::Item| item.frame.0 | u64::from(item.boundary != 0) << 63;
        (walk.kept, walk.items[walk.kept..walk.count].iter().map(word))
    }

    /// The frames of the last walk among those of `captured`, which are of the same moment.
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
            // As of the first launch of a program that launches from greenlets alone.
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

/// Whether another thread ends the interpreter, and frees the frames of all others.
#[inline(always)]
fn is_ending(interpreter: &Interpreter, thread: u64) -> bool {
    let place = interpreter.runtime + u64::from(interpreter.layout.finalizing);
    // SAFETY: a word of a variable of the interpreter, which is loaded.
    let by = unsafe { (place as *const u64).read_volatile() };
    by != 0 && by != thread
}

impl Drop for Python {
    fn drop(&mut self) {
        // SAFETY: the state is mapped as long as `self` lives, and goes with it; its table is dropped once.
        unsafe {
            (&raw mut (*self.state.as_ptr()).walk.table).drop_in_place();
            (*self.state.as_ptr()).walks.give_back();
            memory::unmap(self.state.cast(), size_of::<State>());
        }
    }
}
