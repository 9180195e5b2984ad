//! The unwinding engine for x86-64: a table with one compact rule per return address, and the walk that uses this table.
//! `memo` caches the thread's last stack; `trails` caches the sequences of rules that the thread's walks followed.

pub(super) mod cold;
mod compile;
mod copied;
mod end;
mod epilogue;
mod generated;
mod memo;
mod registers;
mod routes;
mod rule;
mod slow;
mod stub;
mod table;
mod trails;
mod walk;
mod whole;
mod words;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use self::compile::Compiler;
use self::end::End;
use self::generated::Recheck;
use self::memo::Memo;
use self::routes::Routes;
use self::stub::Entry;
use self::trails::Trails;
use self::walk::{Cursor, Join, Step, Walk, Walked};
use self::whole::Whole;
use self::words::Own;
use super::bounds::StackBounds;
use super::copy::StackCopy;
use super::loader;
use super::loader_state::{self, LoaderState};
use super::{Captured, MAX_FRAMES, Seen, Skip, memory};
pub(super) use copied::OfCopies;
use gpuflame_model::record::{ContextFlags, Frame};
pub(super) use whole::STACKS;

/// Maximum number of times that a capture is repeated because objects were unloaded during it.
const ATTEMPTS: usize = 3;

/// One thread's engine, stored in its own memory mapping.
#[derive(Debug)]
pub(super) struct Owned(NonNull<Engine>);

/// Per-thread state for walking stacks. The large arrays come last, and their pages are touched only as far as stacks
/// reach.
#[repr(C)]
pub(super) struct Engine {
    /// Set while a capture runs, because a signal handler may start another capture meanwhile.
    is_busy: Busy,
    checks_every_capture: bool,
    forgets: bool,
    /// Index of the leaf in `memo.frames`; the root is the last element.
    leaf: usize,
    /// Index of the leafmost frame that this stack shares with that of the previous capture.
    joined: usize,
    /// Number of frames that the previous capture returned, and number that this capture returned.
    shown: [usize; 2],
    flags: ContextFlags,
    /// Whether a cached stack may be returned by its number, and the hint for finding that stack.
    tells: bool,
    hint: u64,
    /// Number of the cached stack that the last capture hit.
    met: Option<usize>,
    recheck: Recheck,
    whole: Whole,
    /// The thread's own stack.
    own: StackBounds,
    /// Copy of the stack that the thread is on, if the thread is not on its own stack.
    copy: StackCopy,
    /// Paths to the root that earlier walks of such other stacks found.
    routes: Routes,
    compiler: Compiler,
    /// The steps that were walked, leaf first: the steps of the frames leafward of `joined`.
    steps: [Step; MAX_FRAMES],
    memo: Memo,
    trails: Trails,
}

impl Owned {
    pub(super) fn new() -> Option<Self> {
        let engine = memory::map(size_of::<Engine>())?.cast::<Engine>();
        let place = engine.as_ptr();
        // SAFETY: the fresh mapping is large enough and page-aligned. The fields that are not written here are
        // valid as zeroes.
        unsafe {
            (&raw mut (*place).own).write(StackBounds::of_this_thread());
            (&raw mut (*place).compiler).write(Compiler::new());
            (&raw mut (*place).leaf).write(MAX_FRAMES);
            (*place).memo.prepare((*place).own);
        }
        Some(Self(engine))
    }

    pub(super) fn check_every_capture(&mut self, check: bool) {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        unsafe { self.0.as_mut() }.checks_every_capture = check;
    }

    pub(super) fn remember_stacks(&mut self, remember: bool) {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        unsafe { self.0.as_mut() }.forgets = !remember;
    }

    #[inline(always)]
    pub(super) fn capture(&mut self, skip: Skip) -> Captured<'_> {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        if !unsafe { stub::capture(self.0.as_ptr()) } {
            return Captured::NOTHING;
        }
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        unsafe { self.0.as_mut() }.captured(&skip)
    }

    #[inline(always)]
    pub(super) fn capture_or_tell(&mut self, skip: Skip, hint: u64) -> Seen<'_> {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        let engine = unsafe { self.0.as_mut() };
        (engine.tells, engine.hint) = (!engine.forgets, hint);
        // SAFETY: the engine is mapped and belongs to this thread; the reference is not used after this line.
        let is_captured = unsafe { stub::capture(self.0.as_ptr()) };
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        let engine = unsafe { self.0.as_mut() };
        engine.tells = false;
        match engine.met {
            _ if !is_captured => Seen::New(Captured::NOTHING),
            Some(number) => Seen::Again(number),
            None => Seen::New(engine.captured(&skip)),
        }
    }

    #[inline(always)]
    pub(super) fn keep_last(&mut self) -> Option<usize> {
        // SAFETY: the engine is mapped as long as `self` lives, and only this thread uses it.
        let engine = unsafe { self.0.as_mut() };
        if engine.whole.can_keep() { engine.keep_last() } else { None }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the engine is mapped as long as `self` lives.
        let engine = unsafe { self.0.as_mut() };
        engine.copy.release();
        engine.routes.release();
        engine.whole.release();
        // SAFETY: `new` created the mapping; its fields need no drop, and nothing refers to it.
        unsafe { memory::unmap(self.0.cast(), size_of::<Engine>()) };
    }
}

impl Engine {
    /// Captures the stack that starts at `entry`. Returns `false` if this engine is already capturing.
    ///
    /// # Safety
    /// `engine` must be valid and belong to the calling thread.
    unsafe fn capture(engine: *mut Self, entry: &Entry) -> bool {
        // SAFETY: `engine` is valid by contract; this reference ends before a reference to the whole engine is created.
        if unsafe { &(*engine).is_busy }.swap_here(true) {
            return false;
        }
        // SAFETY: only this thread uses the engine, and no other capture of it is running.
        unsafe { &mut *engine }.capture_idle(entry);
        // SAFETY: `engine` is valid by contract, and the reference to the whole engine has ended.
        unsafe { &(*engine).is_busy }.swap_here(false);
        true
    }

    fn capture_idle(&mut self, entry: &Entry) {
        let state = if self.checks_every_capture { loader::current() } else { loader_state::latest() };
        self.met = None;
        if !self.own.contains(entry.sp()) {
            return self.capture_on_another_stack(entry, state);
        }
        if self.tells {
            let met = self.whole.recognise(entry, self.hint, state, &mut self.recheck);
            // A cache hit by rules of an older loader state proves nothing about the present code.
            self.met = met.filter(|_| loader_state::latest() == state);
            if self.met.is_some() {
                return;
            }
        }
        self.capture_once(entry, state);
        // A stack with code that may be replaced is always flagged as cut or guessed.
        if (self.flags.0 != 0) | (loader_state::latest() != state) {
            self.confirm(entry, state);
        }
    }

    /// Captures a stack that is not the thread's own. This function is not inlined, because its frame would take room on
    /// that stack, which may be small.
    #[inline(never)]
    fn capture_on_another_stack(&mut self, entry: &Entry, state: LoaderState) {
        self.capture_elsewhere(entry, state);
        self.confirm(entry, state);
    }

    /// Captures again if the first result may differ from the present stack.
    #[cold]
    #[inline(never)]
    fn confirm(&mut self, entry: &Entry, mut state: LoaderState) {
        for left in (0..ATTEMPTS).rev() {
            if self.flags.0 != 0 {
                self.look_again(entry, state);
            }
            // Rules of an older loader state may have been overwritten during the walk.
            let now = loader_state::latest();
            if now == state {
                return;
            }
            state = now;
            if left > 0 {
                self.capture_once_more(entry, state);
            }
        }
        // Objects are loaded and unloaded all the time, so hold the loader's lock for one capture.
        if loader::with_lock(|state| self.capture_once_more(entry, state)).is_none() {
            self.memo.clear(state);
            self.flags.0 |= ContextFlags::GUESSED;
        }
    }

    /// Captures on the thread's own stack.
    #[inline(always)]
    fn capture_once(&mut self, entry: &Entry, state: LoaderState) {
        self.memo.expire(state);
        let mut standing = self.memo.verify(&self.steps, entry.sp());
        let mut words = Own::above(entry.sp(), self.own);
        let trails = (!self.forgets).then_some(&self.trails);
        let mut walk = Walk::new(state, &mut self.compiler, &mut self.steps, trails);
        let walked = walk.run(entry, &mut words, &mut standing);
        let lost = walk.lost;
        self.remember(lost, &walked, state);
        let joined = match walked.end {
            End::Joined(frame) => frame,
            End::Elsewhere => return self.capture_elsewhere(entry, state),
            _ => MAX_FRAMES,
        };
        if walked.count > joined {
            // The stack has more than `MAX_FRAMES` frames, so the outermost frames are omitted, and no part is shared with
            // the last stack.
            self.memo.clear(state);
            return self.capture_once_more(entry, state);
        }
        self.keep(&walked, joined, state);
    }

    /// Captures a stack with replaceable code again if rules or caches may be out of date.
    #[cold]
    #[inline(never)]
    fn look_again(&mut self, entry: &Entry, state: LoaderState) {
        let checks = std::mem::take(&mut self.compiler.checks);
        let is_generated = checks.met_generated || self.memo.is_generated(self.joined);
        let is_cut = self.flags.0 & ContextFlags::CUT != 0;
        if !(is_generated && self.recheck.count(checks.are_suspicious(is_cut))) {
            return;
        }
        let (checks, is_outdated) = self.recheck.begin();
        self.compiler.checks = checks;
        self.memo.clear(state);
        self.capture_once_more(entry, state);
        let checks = std::mem::take(&mut self.compiler.checks);
        if is_outdated || checks.found_replacement() {
            self.whole.forget_generated();
        }
        self.recheck.end(checks);
    }

    /// Captures without the memo, along a known route or through a copy. Used for a stack other than the thread's own, and
    /// for the thread's own stack if a signal handler's stack leads back to it.
    #[inline(never)]
    fn capture_elsewhere(&mut self, entry: &Entry, state: LoaderState) {
        self.memo.clear(state);
        let walked = if self.forgets { None } else { self.routes.follow(entry, state, &mut self.steps) };
        let walked = walked.unwrap_or_else(|| self.walk_copy(entry, state));
        self.keep(&walked, MAX_FRAMES, state);
    }

    /// Walks through a copy of the stack, and offers the path to `routes`.
    #[cold]
    #[inline(never)]
    fn walk_copy(&mut self, entry: &Entry, state: LoaderState) -> Walked {
        self.copy.clear();
        let mut walk = Walk::new(state, &mut self.compiler, &mut self.steps, None);
        let walked = walk.run(entry, &mut self.copy, &mut Nowhere);
        if !(self.forgets | walked.is_guessed) {
            self.routes.learn(&self.steps[..walked.count], walked.end, state);
        }
        walked
    }

    /// Stores the path of a walk, starting at the step from which on no stored path matched.
    #[inline(always)]
    fn remember(&mut self, lost: Option<usize>, walked: &Walked, state: LoaderState) {
        let steps = lost.and_then(|lost| self.steps[..walked.count].get(lost..)).unwrap_or_default();
        let mut plain = steps.iter().take_while(|step| step.rule.is_plain()).peekable();
        if let Some(&first) = plain.peek() {
            self.trails.keep((first.pc, first.sp), plain.map(|step| (step.pc, step.rule)), state);
        }
    }

    /// Caches the last stack, if the whole stack may be cached, and returns its number.
    #[cold]
    #[inline(never)]
    fn keep_last(&mut self) -> Option<usize> {
        self.memo.work_out_now(&self.steps);
        self.whole.keep(&self.memo, self.leaf, self.hint, self.memo.loader_state())
    }

    /// Captures again, on either kind of stack. This function is not inlined, since it is rarely called.
    #[cold]
    #[inline(never)]
    fn capture_once_more(&mut self, entry: &Entry, state: LoaderState) {
        if self.own.contains(entry.sp()) {
            self.capture_once(entry, state);
        } else {
            self.capture_elsewhere(entry, state);
        }
    }

    /// Converts the steps of a walk to frames, which are leafward of the frames that the walk joined.
    #[inline(always)]
    fn keep(&mut self, walked: &Walked, joined: usize, state: LoaderState) {
        self.joined = joined;
        self.leaf = joined - walked.count;
        for (frame, step) in self.memo.frames[self.leaf..joined].iter_mut().zip(&self.steps[..walked.count]) {
            *frame = step.rule.frame(step.pc);
        }
        self.flags = self.judge(walked);
        if walked.is_plain && !self.forgets {
            self.memo.extend(walked.count, walked.end);
        } else {
            self.memo.clear(state);
        }
    }

    #[inline(always)]
    fn judge(&self, walked: &Walked) -> ContextFlags {
        let (ended, is_guessed) = match walked.end {
            End::Bottom | End::ZeroReturn(_) => (0, false),
            End::NoInformation | End::Lost | End::Elsewhere => (ContextFlags::CUT, false),
            End::TooDeep => (ContextFlags::TRUNCATED, false),
            End::Joined(frame) => {
                (if self.memo.is_cut() { ContextFlags::CUT } else { 0 }, self.memo.is_guessed(frame))
            }
        };
        let guessed = if walked.is_guessed || is_guessed { ContextFlags::GUESSED } else { 0 };
        ContextFlags(ended | guessed)
    }

    #[inline(always)]
    fn captured(&mut self, skip: &Skip) -> Captured<'_> {
        let skipped = self.skipped(skip);
        let frames = &self.memo.frames[self.leaf + skipped..];
        self.shown = [self.shown[1], frames.len()];
        let kept = (MAX_FRAMES - self.joined).min(self.shown[0]).min(self.shown[1]);
        Captured { frames, kept, flags: self.flags, places: Places(Some(self)) }
    }

    /// Number of leading frames to omit.
    #[inline(always)]
    fn skipped(&self, skip: &Skip) -> usize {
        let total = MAX_FRAMES - self.leaf;
        match skip {
            Skip::None => 0,
            Skip::Count(count) => total.min(*count),
            Skip::Inside(range) => self.memo.frames[self.leaf..]
                .iter()
                .take_while(|frame| range.contains(&address(**frame)))
                .count(),
            Skip::UpTo(address) => self.stack_pointers().take_while(|sp| sp <= address).count(),
        }
    }

    fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        let walked = self.steps[..self.joined - self.leaf].iter().map(|step| step.sp);
        walked.chain((self.joined..MAX_FRAMES).map(|frame| self.memo.sp(frame)))
    }
}

/// Stack positions of the frames of the last capture; `None` if there was no capture.
#[derive(Clone, Copy)]
pub struct Places<'a>(Option<&'a Engine>);

impl Places<'_> {
    pub(super) const NONE: Self = Self(None);

    /// The stack pointers of the last `count` frames, leaf first.
    pub(super) fn of_last(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0.into_iter().flat_map(move |engine| {
            let others = (MAX_FRAMES - engine.leaf).saturating_sub(count);
            engine.stack_pointers().skip(others)
        })
    }
}

impl std::fmt::Debug for Places<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Places")
    }
}

/// A [`Join`] that knows no state: the walk continues to the root.
struct Nowhere;

impl Join for Nowhere {
    fn reached(&mut self, _cursor: &Cursor) -> Option<usize> {
        None
    }
}

/// A flag that a thread shares with its own signal handlers; other threads never access the flag.
struct Busy(AtomicBool);

impl Busy {
    /// Sets the flag and returns its previous value. The compiler moves no memory access across this call.
    #[inline(always)]
    fn swap_here(&self, busy: bool) -> bool {
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
