//! Reads the Python frames of the calling thread from CPython's memory, and merges them with the native frames.
//!
//! A walk calls only one function of CPython, which reads thread-local storage. (Before 3.11, `interpreter` also calls
//! a function that returns the version string.) Neither function takes the GIL or changes a reference count. The frames
//! of a thread do not change while the thread is inside a call to a C function, even if another thread holds the GIL.
//!
//! * `interpreter`: finds the interpreter of this process, its version and whether its frames can be read.
//! * `layout`: lists the offsets of the fields to read, as data for each version.
//! * `pages`: reads memory through pointers that may lead to any address.
//! * `code`: identifies code objects, and reads their names.
//! * `walk`: walks along the Python frames.
//! * `walk_cache`: caches earlier walks of the thread.
//! * `merge`: merges native and Python frames into one stack.
//! * `other_threads`: reads the frames of sampled threads through the kernel.
//!
//! # What it relies on, and what it checks
//!
//! 1. Frames are read only if the layout of this CPython version is known. If the interpreter publishes its layout in a
//!    table, the table must match the version (`layout`).
//!
//! 2. A pointer is followed only to pages that the kernel has reported readable (`pages`). Therefore, if the chain of
//!    frames is corrupted, the only effect is that the walk ends and Python frames are no longer recorded.
//!
//! 3. A code object, its name, file and line table must have the expected types. When a walk first reaches a code
//!    object, the objects' type addresses are compared with the expected addresses (`code`).
//!
//! 4. The native stack must agree with the Python frames (`merge`). Since 3.11, each C stack address that is found
//!    through the Python frames must be inside a native frame. Before 3.11, the native stack must have as many
//!    evaluator calls as the Python stack has frames. If the native and Python frames of a stack disagree, and have not
//!    agreed in any earlier stack, the recording of Python frames is switched off.
//!
//! 5. When the interpreter is finalized, it sets a flag and then frees the frames of other threads. Once this flag is
//!    set, only the finalizing thread's frames are read. During finalization, a walk may in rare cases still read freed
//!    memory. A walk takes about 50 ns. But the kernel may preempt a thread in the middle of a walk. Before the thread
//!    continues, the interpreter may set the flag and unmap the thread's frames.

mod code;
mod interpreter;
mod layout;
mod merge;
mod other_threads;
mod pages;
mod walk;
mod walk_cache;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

pub use code::Description;
use interpreter::Interpreter;
pub use interpreter::OffReason;
pub(crate) use interpreter::is_initialized;
use merge::{Agreement, MAX_MERGED_FRAMES, MergedFrames, StackPair};
pub use other_threads::{OtherThreads, SampledPython, waits_for_gil};
use walk::{PythonWalk, WalkError};
pub use walk_cache::WALKS;
use walk_cache::WalkCache;

use super::{Captured, memory};
use gpuflame_model::record::{CodeId, Frame};

/// Sets whether walks record Python frames after this call. By default Python frames are not recorded.
pub fn set_enabled(enabled: bool) {
    interpreter::set_enabled(enabled);
}

/// Returns the reason why Python frames are not recorded although the process has an interpreter. Returns `None` if
/// Python frames are recorded, or if the process has no interpreter.
pub fn off_reason() -> Option<OffReason> {
    interpreter::off_reason()
}

/// Walks the Python frames of the thread that created this value.
#[derive(Debug)]
pub struct PythonUnwinder {
    state: NonNull<PythonState>,
    interpreter: &'static Interpreter,
    /// The loader's unload count at the last check of whether the interpreter is still loaded.
    unloads: u32,
}

/// Per-thread state, stored in its own memory mapping. How many pages of this mapping are touched depends on the depth
/// of the thread's stacks.
#[repr(C)]
struct PythonState {
    walk: PythonWalk,
    walk_cache: WalkCache,
    merged: [Frame; MAX_MERGED_FRAMES],
}

/// Result of a walk along the Python frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkOutcome {
    /// The Python frames are the same as in the cached walk with this index. The stored frames of the last walk are not
    /// replaced.
    Cached(usize),
    /// The Python frames are the same as in the previous walk.
    Unchanged,
    /// The Python frames differ from the frames of the previous walk.
    Changed,
    /// The thread has no Python frame, because it does not belong to Python, or runs no Python code at this moment.
    NoFrames,
    /// The Python frames could not be read, because their chain is corrupted, or because the kernel refused memory.
    Unreadable,
}

/// A stack of native and Python frames.
pub struct MergedStack<'a> {
    /// The frames of the merged stack, leaf first.
    pub frames: &'a [Frame],
    /// Whether native and Python frames show the same evaluator calls.
    pub is_sure: bool,
    /// Whether Python frames are missing at the root of the merged stack.
    pub is_cut: bool,
}

/// Whether the Python frames have agreed with the native frames for at least one stack so far.
static HAS_AGREED: AtomicBool = AtomicBool::new(false);

impl PythonUnwinder {
    /// Creates the state for the calling thread, if the process has an interpreter whose frames can be read. Searches
    /// for an interpreter if objects were loaded since the last search.
    #[cold]
    pub fn of_this_thread() -> Option<Self> {
        let interpreter = interpreter::interpreter()?;
        let table = code::CodeTable::new()?;
        let state = memory::map(size_of::<PythonState>())?.cast::<PythonState>();
        // SAFETY: the fresh mapping is large enough and page-aligned; all other fields are valid as zeroes.
        unsafe { (&raw mut (*state.as_ptr()).walk.table).write(table) };
        Some(Self { state, interpreter, unloads: interpreter::unloads() })
    }

    /// Walks along the Python frames. `native` is the index of the thread's native stack in the cache of whole stacks,
    /// if the stack is cached. `number` returns the id for a code object that is new to the thread.
    #[inline(always)]
    pub fn walk(&mut self, native: usize, number: impl FnMut(Description<'_>) -> CodeId) -> WalkOutcome {
        let Self { interpreter, .. } = *self;
        self.state().walk_cache.set_native(native);
        let thread = self.readable_thread();
        let PythonState { walk, walk_cache, .. } = self.state();
        if thread != 0 && walk.is_as_before(interpreter, thread) {
            return WalkOutcome::Unchanged;
        }
        if thread != 0
            && let Some(number) = walk_cache.look_up(walk, interpreter, thread)
        {
            return WalkOutcome::Cached(number);
        }
        self.walk_changed(thread, number)
    }

    /// Returns the address of the calling thread's Python state. Returns 0 if the thread has no such state, or if the
    /// state must not be read now.
    #[inline(always)]
    fn readable_thread(&mut self) -> u64 {
        let is_usable =
            !interpreter::is_off() && (interpreter::unloads() == self.unloads || self.is_still_loaded());
        // SAFETY: the interpreter to which this function belongs is loaded, and the function needs none of Python's
        // locks.
        let thread = if is_usable { unsafe { (self.interpreter.this_thread)() }.addr() as u64 } else { 0 };
        if thread == 0 || is_ending(self.interpreter, thread) { 0 } else { thread }
    }

    /// Walks along the Python frames without the cache of walks.
    #[cold]
    pub fn walk_uncached(&mut self, number: impl FnMut(Description<'_>) -> CodeId) -> WalkOutcome {
        // Get the address of the thread's state again, because the state may have become unreadable since the last
        // walk.
        let thread = self.readable_thread();
        self.walk_changed(thread, number)
    }

    /// Caches the last walk and returns its index. Returns `None` if the back-off does not allow an insertion, or if
    /// the walk cannot be cached.
    #[inline(always)]
    pub fn cache_last(&mut self) -> Option<usize> {
        let PythonState { walk, walk_cache, .. } = self.state();
        if walk_cache.can_insert() { walk_cache.insert(walk) } else { None }
    }

    /// Walks along the Python frames, which have changed since the last walk. `thread` is the address of the thread's
    /// state, or 0 if no frame may be read. This function is not inlined, because the inlined code would need more
    /// registers than the processor has.
    #[inline(never)]
    fn walk_changed(
        &mut self,
        thread: u64,
        mut number: impl FnMut(Description<'_>) -> CodeId,
    ) -> WalkOutcome {
        let Self { interpreter, .. } = *self;
        let PythonState { walk, walk_cache, .. } = self.state();
        if thread == 0 {
            walk.forget();
            return WalkOutcome::NoFrames;
        }
        if walk.texts.are_full() {
            walk_cache.clear();
        }
        match walk.run(interpreter, thread, &mut number) {
            Ok(_) if walk.count == 0 => WalkOutcome::NoFrames,
            Ok(true) => WalkOutcome::Unchanged,
            Ok(false) => WalkOutcome::Changed,
            Err(why) => self.handle_error(why, thread),
        }
    }

    #[cold]
    fn is_still_loaded(&mut self) -> bool {
        self.unloads = interpreter::unloads();
        interpreter::is_loaded(self.interpreter)
    }

    #[cold]
    fn handle_error(&mut self, why: WalkError, thread: u64) -> WalkOutcome {
        self.state().walk.forget();
        if is_ending(self.interpreter, thread) {
            return WalkOutcome::NoFrames;
        }
        if why == WalkError::Garbage {
            interpreter::turn_off(OffReason::Unreadable);
        }
        WalkOutcome::Unreadable
    }

    /// Returns the number of frames at the root that the last walk has in common with the walk before it. Also returns,
    /// for each of the remaining frames (outermost first), a word that identifies the frame.
    #[inline(always)]
    pub fn words(&self) -> (usize, impl Iterator<Item = u64>) {
        // SAFETY: the state is mapped as long as `self` lives, and is used by this thread only.
        let walk = &unsafe { self.state.as_ref() }.walk;
        // The word also shows whether an evaluator call starts at the frame, because the same Python frames may belong
        // to a different number of evaluator calls.
        let word = |item: &walk::InterpreterFrame| item.frame.0 | u64::from(item.boundary != 0) << 63;
        (walk.unchanged, walk.items[walk.unchanged..walk.count].iter().map(word))
    }

    /// Merges the frames of the last walk with the frames of `captured`, which must be from the same moment.
    #[cold]
    pub fn merge(&mut self, captured: &Captured<'_>) -> MergedStack<'_> {
        let evaluator = &self.interpreter.evaluator;
        let PythonState { walk, merged, .. } = self.state();
        let stacks = StackPair {
            native: captured.frames,
            items: &walk.items[..walk.count],
            is_partial: captured.is_partial() || walk.is_cut,
            evaluator,
        };
        let (frames, agreement) = stacks.merge(captured.stack_pointers(), MergedFrames::new(merged));
        match agreement {
            Agreement::Complete => HAS_AGREED.store(true, Ordering::Relaxed),
            // If the native stack has more evaluator calls than the Python stack, this does not prove a mismatch. For
            // example, a program that launches only from greenlets has more native evaluator calls at its first launch.
            Agreement::MoreNative => {}
            Agreement::None if HAS_AGREED.load(Ordering::Relaxed) => {}
            Agreement::None => interpreter::turn_off(OffReason::Mismatch),
        }
        MergedStack { frames, is_sure: agreement == Agreement::Complete, is_cut: walk.is_cut }
    }

    fn state(&mut self) -> &mut PythonState {
        // SAFETY: the state is mapped as long as `self` lives, and is used by this thread only.
        unsafe { self.state.as_mut() }
    }
}

/// Whether a thread other than `thread` is finalizing the interpreter. The finalization frees the frames of all other
/// threads.
#[inline(always)]
fn is_ending(interpreter: &Interpreter, thread: u64) -> bool {
    let place = interpreter.runtime + u64::from(interpreter.layout.finalizing);
    // SAFETY: this word is part of a variable of the interpreter, and the interpreter is loaded.
    let by = unsafe { (place as *const u64).read_volatile() };
    by != 0 && by != thread
}

impl Drop for PythonUnwinder {
    fn drop(&mut self) {
        // SAFETY: the state is mapped until this statement unmaps it, and its table is dropped only here.
        unsafe {
            (&raw mut (*self.state.as_ptr()).walk.table).drop_in_place();
            (*self.state.as_ptr()).walk_cache.release();
            memory::unmap(self.state.cast(), size_of::<PythonState>());
        }
    }
}
