//! The unwinding engine for x86-64. A walk of this engine uses a table with one compact rule per return address.
//! `last_stack` caches the thread's last stack. `path_cache` caches the sequences of rules that the thread's walks
//! used, and `stack_cache` caches whole stacks.

mod cached_stack;
pub(super) mod cold;
mod compile_eh_frame;
mod copied;
mod epilogue;
mod foreign_path_cache;
mod generated;
mod last_stack;
mod path_cache;
mod registers;
mod rule;
mod slow;
mod stack_cache;
mod stack_set;
mod stub;
mod table;
mod walk;
mod walk_end;
mod words;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use self::compile_eh_frame::Compiler;
use self::foreign_path_cache::ForeignPathCache;
use self::generated::RecheckBackoff;
use self::last_stack::LastStack;
use self::path_cache::PathCache;
use self::stack_cache::StackCache;
use self::stub::StubRegisters;
use self::walk::{Cursor, JoinTarget, Walk, WalkResult, WalkStep};
use self::walk_end::WalkEnd;
use self::words::DirectStack;
use super::bounds::StackBounds;
use super::copy::StackCopy;
use super::loader;
use super::loader_state::{self, LoaderState};
use super::{CachedCapture, Captured, MAX_FRAMES, Skip, memory};
pub(super) use copied::CopyWalker;
use gpuflame_model::record::{ContextFlags, Frame};
pub(super) use stack_cache::STACKS;

/// Maximum number of times that a capture is repeated because objects were loaded or unloaded during the capture.
const MAX_ATTEMPTS: usize = 3;

/// The unwinding state of one thread, stored in its own memory mapping.
#[derive(Debug)]
pub(super) struct ThreadEngine(NonNull<Engine>);

/// Per-thread state for walking stacks. The large arrays come last. Therefore a thread touches only as many of their
/// pages as the depth of its stacks requires.
#[repr(C)]
pub(super) struct Engine {
    /// This flag is set while a capture runs. If a signal handler interrupts the capture and starts a second capture,
    /// the second capture sees this flag and returns without a result.
    is_busy: BusyFlag,
    checks_every_capture: bool,
    is_uncached: bool,
    /// Index of the leaf in `last_stack.frames`, whose last element is the root.
    leaf: usize,
    /// Index of the leafmost frame that is also in the stack of the previous capture.
    joined: usize,
    /// Number of frames that the previous capture returned, and number of frames that the latest capture returned.
    returned: [usize; 2],
    flags: ContextFlags,
    /// Whether the present capture may return the index of a cached stack, and the caller's hint for finding this
    /// stack.
    may_hit: bool,
    hint: u64,
    /// Index of the cached stack that the last capture hit.
    hit: Option<usize>,
    recheck: RecheckBackoff,
    stack_cache: StackCache,
    /// The thread's own stack.
    bounds: StackBounds,
    /// Copy of the stack on which the thread runs, if this stack is not the thread's own.
    copy: StackCopy,
    /// Paths to the root that earlier walks found on stacks other than the thread's own.
    foreign_paths: ForeignPathCache,
    compiler: Compiler,
    /// The steps of the last walk, leaf first. The steps belong to the frames on the leaf side of `joined`.
    steps: [WalkStep; MAX_FRAMES],
    last_stack: LastStack,
    path_cache: PathCache,
}

impl ThreadEngine {
    pub(super) fn new() -> Option<Self> {
        let engine = memory::map(size_of::<Engine>())?.cast::<Engine>();
        let engine_ptr = engine.as_ptr();
        // SAFETY: the fresh mapping is large enough and page-aligned. The fields that are not written here are
        // valid as zeroes.
        unsafe {
            (&raw mut (*engine_ptr).bounds).write(StackBounds::of_this_thread());
            (&raw mut (*engine_ptr).compiler).write(Compiler::new());
            (&raw mut (*engine_ptr).leaf).write(MAX_FRAMES);
            (*engine_ptr).last_stack.prepare((*engine_ptr).bounds);
        }
        Some(Self(engine))
    }

    pub(super) fn check_every_capture(&mut self, check: bool) {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        unsafe { self.0.as_mut() }.checks_every_capture = check;
    }

    pub(super) fn use_caches(&mut self, enabled: bool) {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        unsafe { self.0.as_mut() }.is_uncached = !enabled;
    }

    #[inline(always)]
    pub(super) fn capture(&mut self, skip: Skip) -> Captured<'_> {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        if !unsafe { stub::capture(self.0.as_ptr()) } {
            return Captured::EMPTY;
        }
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        unsafe { self.0.as_mut() }.result(&skip)
    }

    #[inline(always)]
    pub(super) fn capture_with_cache(&mut self, skip: Skip, hint: u64) -> CachedCapture<'_> {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        let engine = unsafe { self.0.as_mut() };
        (engine.may_hit, engine.hint) = (!engine.is_uncached, hint);
        // SAFETY: the engine is mapped and belongs to this thread, and the reference is not used after this line.
        let is_captured = unsafe { stub::capture(self.0.as_ptr()) };
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        let engine = unsafe { self.0.as_mut() };
        engine.may_hit = false;
        match engine.hit {
            _ if !is_captured => CachedCapture::Miss(Captured::EMPTY),
            Some(number) => CachedCapture::Hit(number),
            None => CachedCapture::Miss(engine.result(&skip)),
        }
    }

    #[inline(always)]
    pub(super) fn cache_last(&mut self) -> Option<usize> {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        let engine = unsafe { self.0.as_mut() };
        if engine.stack_cache.can_insert() { engine.cache_last() } else { None }
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        // SAFETY: the engine is mapped as long as `self` lives.
        let engine = unsafe { self.0.as_mut() };
        engine.copy.release();
        engine.foreign_paths.release();
        engine.stack_cache.release();
        // SAFETY: `new` created the mapping; its fields need no drop, and nothing refers to it.
        unsafe { memory::unmap(self.0.cast(), size_of::<Engine>()) };
    }
}

impl Engine {
    /// Captures the stack that starts at `entry`. Returns `false` if this engine is already capturing.
    ///
    /// # Safety
    /// `engine` must be valid and belong to the calling thread.
    unsafe fn capture(engine: *mut Self, entry: &StubRegisters) -> bool {
        // SAFETY: `engine` is valid by contract; this reference ends before a reference to the whole engine is
        // created.
        if unsafe { &(*engine).is_busy }.swap(true) {
            return false;
        }
        // SAFETY: only this thread uses the engine, and no other capture of it is running.
        unsafe { &mut *engine }.capture_idle(entry);
        // SAFETY: `engine` is valid by contract, and the reference to the whole engine has ended.
        unsafe { &(*engine).is_busy }.swap(false);
        true
    }

    fn capture_idle(&mut self, entry: &StubRegisters) {
        let state = if self.checks_every_capture { loader::current() } else { loader_state::latest() };
        self.hit = None;
        if !self.bounds.contains(entry.sp()) {
            return self.capture_on_foreign_stack(entry, state);
        }
        if self.may_hit {
            let hit = self.stack_cache.look_up(entry, self.hint, state, &mut self.recheck);
            // Discard the hit if the loader's state has changed since the capture began, because the hit depends on
            // rules that may be out of date.
            self.hit = hit.filter(|_| loader_state::latest() == state);
            if self.hit.is_some() {
                return;
            }
        }
        self.capture_once(entry, state);
        // The flags are not 0 for any stack with code that may be replaced, because such a stack is flagged as cut or
        // guessed.
        if (self.flags.0 != 0) | (loader_state::latest() != state) {
            self.confirm(entry, state);
        }
    }

    /// Captures a stack that is not the thread's own. This function is not inlined, so that its callers need less
    /// space on the foreign stack, which may be small.
    #[inline(never)]
    fn capture_on_foreign_stack(&mut self, entry: &StubRegisters, state: LoaderState) {
        self.capture_foreign(entry, state);
        self.confirm(entry, state);
    }

    /// Captures again if the first capture may have used rules or caches that were out of date.
    #[cold]
    #[inline(never)]
    fn confirm(&mut self, entry: &StubRegisters, mut state: LoaderState) {
        for left in (0..MAX_ATTEMPTS).rev() {
            if self.flags.0 != 0 {
                self.recheck_generated(entry, state);
            }
            // Capture again if the loader's state changed during the walk, because rules that the walk used may have
            // been overwritten.
            let now = loader_state::latest();
            if now == state {
                return;
            }
            state = now;
            if left > 0 {
                self.recapture(entry, state);
            }
        }
        // Objects were loaded or unloaded during every attempt, so capture again while holding the loader's lock.
        if loader::with_lock(|state| self.recapture(entry, state)).is_none() {
            self.last_stack.clear(state);
            self.flags.0 |= ContextFlags::GUESSED;
        }
    }

    /// Captures on the thread's own stack.
    #[inline(always)]
    fn capture_once(&mut self, entry: &StubRegisters, state: LoaderState) {
        self.last_stack.clear_if_outdated(state);
        let mut unchanged_suffix = self.last_stack.verify(&self.steps, entry.sp());
        let mut words = DirectStack::above(entry.sp(), self.bounds);
        let path_cache = (!self.is_uncached).then_some(&self.path_cache);
        let mut walk = Walk::new(state, &mut self.compiler, &mut self.steps, path_cache);
        let walked = walk.run(entry, &mut words, &mut unchanged_suffix);
        let lost_at = walk.lost_at;
        self.cache_path(lost_at, &walked, state);
        let joined = match walked.end {
            WalkEnd::Joined(frame) => frame,
            WalkEnd::Elsewhere => return self.capture_foreign(entry, state),
            _ => MAX_FRAMES,
        };
        if walked.count > joined {
            // The new frames and the joined frames together exceed `MAX_FRAMES`. Capture again without the last-stack
            // cache, so that the outermost frames are omitted.
            self.last_stack.clear(state);
            return self.recapture(entry, state);
        }
        self.store_walk(&walked, joined, state);
    }

    /// Captures again if the stack contains code that may be replaced, and either the rules of this code are due for a
    /// check, or another thread has found replaced code.
    #[cold]
    #[inline(never)]
    fn recheck_generated(&mut self, entry: &StubRegisters, state: LoaderState) {
        let checks = std::mem::take(&mut self.compiler.checks);
        let is_generated = checks.reached_generated || self.last_stack.is_generated(self.joined);
        let is_cut = self.flags.0 & ContextFlags::CUT != 0;
        if !(is_generated && self.recheck.count(checks.are_suspicious(is_cut))) {
            return;
        }
        let (checks, is_outdated) = self.recheck.begin();
        self.compiler.checks = checks;
        self.last_stack.clear(state);
        self.recapture(entry, state);
        let checks = std::mem::take(&mut self.compiler.checks);
        if is_outdated || checks.found_replacement() {
            self.stack_cache.evict_generated();
        }
        self.recheck.end(checks);
    }

    /// Captures a stack by following a cached path or by walking a copy, without the last-stack cache. Call this
    /// function if the capture begins on a stack other than the thread's own, or if the walk of the thread's own stack
    /// arrived at another stack.
    #[inline(never)]
    fn capture_foreign(&mut self, entry: &StubRegisters, state: LoaderState) {
        self.last_stack.clear(state);
        let walked =
            if self.is_uncached { None } else { self.foreign_paths.follow(entry, state, &mut self.steps) };
        let walked = walked.unwrap_or_else(|| self.walk_copy(entry, state));
        self.store_walk(&walked, MAX_FRAMES, state);
    }

    /// Walks a copy of the stack, and records the walk in `foreign_paths`.
    #[cold]
    #[inline(never)]
    fn walk_copy(&mut self, entry: &StubRegisters, state: LoaderState) -> WalkResult {
        self.copy.clear();
        let mut walk = Walk::new(state, &mut self.compiler, &mut self.steps, None);
        let walked = walk.run(entry, &mut self.copy, &mut NeverJoins);
        if !(self.is_uncached | walked.is_guessed) {
            self.foreign_paths.insert(&self.steps[..walked.count], walked.end, state);
        }
        walked
    }

    /// Stores the rest of a walk's path in `path_cache`. The rest of the path starts at the step with the index
    /// `lost_at`, the first step for which no stored path matched.
    #[inline(always)]
    fn cache_path(&mut self, lost_at: Option<usize>, walked: &WalkResult, state: LoaderState) {
        let steps = lost_at.and_then(|lost_at| self.steps[..walked.count].get(lost_at..)).unwrap_or_default();
        let mut plain = steps.iter().take_while(|step| step.rule.is_plain()).peekable();
        if let Some(&first) = plain.peek() {
            self.path_cache.insert((first.pc, first.sp), plain.map(|step| (step.pc, step.rule)), state);
        }
    }

    /// Stores the last stack in `stack_cache` and returns its index. Returns `None` if the stack cannot be cached.
    #[cold]
    #[inline(never)]
    fn cache_last(&mut self) -> Option<usize> {
        self.last_stack.record_steps_now(&self.steps);
        self.stack_cache.insert(&self.last_stack, self.leaf, self.hint, self.last_stack.loader_state())
    }

    /// Captures again, on the thread's own stack or on another stack. This function is not inlined, because it is
    /// rarely called.
    #[cold]
    #[inline(never)]
    fn recapture(&mut self, entry: &StubRegisters, state: LoaderState) {
        if self.bounds.contains(entry.sp()) {
            self.capture_once(entry, state);
        } else {
            self.capture_foreign(entry, state);
        }
    }

    /// Converts the steps of a walk to frames. The walk ended at the frame `joined` of the last stack. The new frames
    /// are stored on the leaf side of the frame `joined`.
    #[inline(always)]
    fn store_walk(&mut self, walked: &WalkResult, joined: usize, state: LoaderState) {
        self.joined = joined;
        self.leaf = joined - walked.count;
        for (frame, step) in
            self.last_stack.frames[self.leaf..joined].iter_mut().zip(&self.steps[..walked.count])
        {
            *frame = step.rule.frame(step.pc);
        }
        self.flags = self.walk_flags(walked);
        if walked.is_plain && !self.is_uncached {
            self.last_stack.extend(walked.count, walked.end);
        } else {
            self.last_stack.clear(state);
        }
    }

    #[inline(always)]
    fn walk_flags(&self, walked: &WalkResult) -> ContextFlags {
        let (ended, is_guessed) = match walked.end {
            WalkEnd::Bottom | WalkEnd::ZeroReturn(_) => (0, false),
            WalkEnd::NoInformation | WalkEnd::Lost | WalkEnd::Elsewhere => (ContextFlags::CUT, false),
            WalkEnd::TooDeep => (ContextFlags::TRUNCATED, false),
            WalkEnd::Joined(frame) => (
                if self.last_stack.is_cut() { ContextFlags::CUT } else { 0 },
                self.last_stack.is_guessed(frame),
            ),
        };
        let guessed = if walked.is_guessed || is_guessed { ContextFlags::GUESSED } else { 0 };
        ContextFlags(ended | guessed)
    }

    #[inline(always)]
    fn result(&mut self, skip: &Skip) -> Captured<'_> {
        let skipped = self.count_skipped(skip);
        let frames = &self.last_stack.frames[self.leaf + skipped..];
        self.returned = [self.returned[1], frames.len()];
        let unchanged = (MAX_FRAMES - self.joined).min(self.returned[0]).min(self.returned[1]);
        Captured { frames, unchanged, flags: self.flags, positions: StackPositions(Some(self)) }
    }

    /// Returns the number of frames to omit at the leaf side.
    #[inline(always)]
    fn count_skipped(&self, skip: &Skip) -> usize {
        let total = MAX_FRAMES - self.leaf;
        match skip {
            Skip::None => 0,
            Skip::Count(count) => total.min(*count),
            Skip::Inside(range) => self.last_stack.frames[self.leaf..]
                .iter()
                .take_while(|frame| range.contains(&address(**frame)))
                .count(),
            Skip::UpTo(address) => self.stack_pointers().take_while(|sp| sp <= address).count(),
        }
    }

    fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        let walked = self.steps[..self.joined - self.leaf].iter().map(|step| step.sp);
        walked.chain((self.joined..MAX_FRAMES).map(|frame| self.last_stack.sp(frame)))
    }
}

/// Stack positions of the frames of the last capture, or `None` if there was no capture.
#[derive(Clone, Copy)]
pub struct StackPositions<'a>(Option<&'a Engine>);

impl StackPositions<'_> {
    pub(super) const NONE: Self = Self(None);

    /// The stack pointers of the last `count` frames, leaf first.
    pub(super) fn last_frames(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0.into_iter().flat_map(move |engine| {
            let others = (MAX_FRAMES - engine.leaf).saturating_sub(count);
            engine.stack_pointers().skip(others)
        })
    }
}

impl std::fmt::Debug for StackPositions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StackPositions")
    }
}

/// A [`JoinTarget`] that knows no frames, so that the walk continues to the root.
struct NeverJoins;

impl JoinTarget for NeverJoins {
    fn reached(&mut self, _cursor: &Cursor) -> Option<usize> {
        None
    }
}

/// A flag that a thread shares only with its own signal handlers.
struct BusyFlag(AtomicBool);

impl BusyFlag {
    /// Sets the flag and returns its previous value. The compiler moves no memory access across this call.
    #[inline(always)]
    fn swap(&self, busy: bool) -> bool {
        compiler_fence(Ordering::SeqCst);
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(busy, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        before
    }
}

/// The code address in a native frame.
#[inline(always)]
fn address(frame: Frame) -> u64 {
    frame.0 & ADDRESS
}

/// The address bits of a native frame.
const ADDRESS: u64 = (1 << 48) - 1;
