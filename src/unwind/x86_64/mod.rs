//! The engine for x86-64: a table of compact rules, one per return address, and the walk that uses it.

mod compile;
mod rule;
mod slow;
mod stub;
mod table;
mod walk;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use self::compile::Compiler;
use self::stub::Entry;
use self::walk::{End, Step, Walk, Walked};
use super::bounds::Stacks;
use super::loader::{self, Counts};
use super::{Captured, MAX_FRAMES, Skip, memory};
use crate::record::{ContextFlags, Frame};

/// How often a capture starts over when objects are unloaded under it.
const ATTEMPTS: usize = 3;

/// One thread's engine, in a mapping of its own.
#[derive(Debug)]
pub(super) struct Owned(NonNull<Engine>);

/// What a thread needs to walk its stack. The large arrays come last, and are only touched as far as
/// stacks reach.
#[repr(C)]
pub(super) struct Engine {
    /// Set while a capture runs: a signal handler may try another.
    is_busy: AtomicBool,
    checks_every_capture: bool,
    /// Index of the leaf in `frames`; the root lies at the end.
    leaf: usize,
    flags: ContextFlags,
    stacks: Stacks,
    compiler: Compiler,
    steps: [Step; MAX_FRAMES],
    frames: [Frame; MAX_FRAMES],
}

impl Owned {
    pub(super) fn new() -> Option<Self> {
        let engine = memory::map(size_of::<Engine>())?.cast::<Engine>();
        let place = engine.as_ptr();
        // SAFETY: the fresh mapping is large enough and page-aligned. The fields that are not written here
        // are valid as zeroes.
        unsafe {
            (&raw mut (*place).stacks).write(Stacks::of_this_thread());
            (&raw mut (*place).compiler).write(Compiler::new());
            (&raw mut (*place).leaf).write(MAX_FRAMES);
        }
        Some(Self(engine))
    }

    pub(super) fn check_every_capture(&mut self, check: bool) {
        // SAFETY: the engine is mapped as long as `self` lives, and used by this thread only.
        unsafe { self.0.as_mut() }.checks_every_capture = check;
    }

    #[inline(always)]
    pub(super) fn capture(&mut self, skip: Skip) -> Captured<'_> {
        // SAFETY: the engine is mapped as long as `self` lives, and used by this thread only.
        if !unsafe { stub::capture(self.0.as_ptr()) } {
            return Captured { frames: &[], kept: 0, flags: ContextFlags(ContextFlags::CUT) };
        }
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.captured(&skip)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`; its fields need no drop, and nothing refers to it.
        unsafe { memory::unmap(self.0.cast(), size_of::<Engine>()) };
    }
}

impl Engine {
    /// Captures the stack that `entry` begins, unless this engine is capturing already: then `false`.
    ///
    /// # Safety
    /// `engine` is valid and belongs to the calling thread.
    unsafe fn capture(engine: *mut Self, entry: &Entry) -> bool {
        // SAFETY: the caller vouches for `engine`; no reference to the whole is made before it is free.
        let is_busy = unsafe { &(*engine).is_busy };
        if is_busy.load(Ordering::Relaxed) {
            return false;
        }
        is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: only this thread uses the engine, and no capture of it is under way.
        unsafe { &mut *engine }.capture_idle(entry);
        compiler_fence(Ordering::SeqCst);
        is_busy.store(false, Ordering::Relaxed);
        true
    }

    fn capture_idle(&mut self, entry: &Entry) {
        let mut counts = if self.checks_every_capture { loader::poll() } else { loader::latest() };
        for _ in 0..ATTEMPTS {
            let walked = self.walk(entry, counts);
            self.keep(walked, counts);
            // Rules of an older loader state may have been overwritten while we read them.
            let now = loader::latest();
            if now == counts {
                break;
            }
            counts = now;
        }
    }

    fn walk(&mut self, entry: &Entry, counts: Counts) -> Walked {
        let mut walk = Walk {
            counts,
            stacks: &mut self.stacks,
            compiler: &mut self.compiler,
            steps: &mut self.steps,
            is_guessed: false,
        };
        walk.run(entry)
    }

    /// Turns the steps of a walk into frames.
    fn keep(&mut self, walked: Walked, counts: Counts) {
        let epoch = counts.epoch();
        self.leaf = MAX_FRAMES - walked.count;
        for (frame, step) in self.frames[self.leaf..].iter_mut().zip(&self.steps[..walked.count]) {
            *frame = if step.rule.is_exact() {
                Frame::native_exact(step.pc, epoch)
            } else {
                Frame::native(step.pc, epoch)
            };
        }
        let ended = match walked.end {
            End::Bottom | End::ZeroReturn(_) => 0,
            End::NoInformation | End::Lost => ContextFlags::CUT,
            End::TooDeep => ContextFlags::TRUNCATED,
        };
        let guessed = if walked.is_guessed { ContextFlags::GUESSED } else { 0 };
        self.flags = ContextFlags(ended | guessed);
    }

    fn captured(&self, skip: &Skip) -> Captured<'_> {
        let frames = &self.frames[self.leaf..];
        let steps = &self.steps[..frames.len()];
        let skipped = match skip {
            Skip::None => 0,
            Skip::Count(count) => frames.len().min(*count),
            Skip::Inside(range) => steps.iter().take_while(|step| range.contains(&step.pc)).count(),
            Skip::Below(address) => steps.iter().take_while(|step| step.sp < *address).count(),
        };
        Captured { frames: &frames[skipped..], kept: 0, flags: self.flags }
    }
}
