//! Walks another thread's stack, from copies of the stack and of the thread's registers. The kernel made both copies
//! at the same moment.
//!
//! The thread has continued to run since the copy was made, so no word is read from the original stack. Words outside
//! the copy are unknown, so the stack is cut where the copy ends.

use std::ptr::NonNull;

use gimli::X86_64;

use super::compile_eh_frame::Compiler;
use super::generated::Checks;
use super::registers::Registers;
use super::walk::{Cursor, Walk, WalkResult, WalkStart, WalkStep, check_return_address};
use super::walk_end::WalkEnd;
use super::words::Words;
use super::{MAX_ATTEMPTS, NeverJoins, StackPositions};
use crate::copy::RED_ZONE;
use crate::loader_state::{self, LoaderState};
use crate::{Captured, MAX_FRAMES, loader, memory};
use gpuflame_model::record::{ContextFlags, Frame};

/// Walks copied stacks. The state of the walker has its own memory mapping.
#[derive(Debug)]
pub(crate) struct CopyWalker(NonNull<WalkerState>);

// SAFETY: only this value refers to the mapping.
unsafe impl Send for CopyWalker {}

#[repr(C)]
struct WalkerState {
    flags: ContextFlags,
    /// The loader's unload count at the last call of `check_loaded_objects`, and whether objects were unloaded between
    /// the last two calls.
    unloads: u32,
    had_unloads: bool,
    count: usize,
    compiler: Compiler,
    steps: [WalkStep; MAX_FRAMES],
    frames: [Frame; MAX_FRAMES],
}

impl CopyWalker {
    pub(crate) fn new() -> Option<Self> {
        let state = memory::map(size_of::<WalkerState>())?.cast::<WalkerState>();
        // SAFETY: the fresh mapping is large enough and page-aligned. All other fields are valid as zeroes.
        unsafe {
            (&raw mut (*state.as_ptr()).compiler).write(Compiler::new());
            (&raw mut (*state.as_ptr()).unloads).write(loader::current().unloads());
        }
        Some(Self(state))
    }

    pub(crate) fn check_loaded_objects(&mut self) {
        // SAFETY: the state is mapped as long as `self` lives, and is used only through `self`.
        let state = unsafe { self.0.as_mut() };
        let unloads = loader::current().unloads();
        state.had_unloads = unloads != std::mem::replace(&mut state.unloads, unloads);
    }

    /// Walks the copied stack of another thread. `registers` are the thread's registers at the time of the copy, in
    /// DWARF order. `stack` is the copied memory, which starts at the thread's stack pointer.
    pub(crate) fn walk(&mut self, registers: &[u64; 17], stack: &[u8]) -> Captured<'_> {
        // SAFETY: the state is mapped as long as `self` lives, and is used only through `self`.
        let state = unsafe { self.0.as_mut() };
        state.walk(registers, stack);
        state.flags.0 |= if state.had_unloads { ContextFlags::GUESSED } else { 0 };
        self.last_walk().0
    }

    /// Returns the result of the last walk, and the stack pointers of its frames.
    pub(crate) fn last_walk(&self) -> (Captured<'_>, Vec<u64>) {
        // SAFETY: the state is mapped as long as `self` lives, and is used only through `self`.
        let state = unsafe { self.0.as_ref() };
        let positions = StackPositions(None);
        let (frames, flags) = (&state.frames[..state.count], state.flags);
        let stack_pointers = state.steps[..state.count].iter().map(|step| step.sp).collect();
        (Captured { frames, unchanged: 0, flags, positions }, stack_pointers)
    }
}

impl Drop for CopyWalker {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping; its fields need no drop, and nothing refers to it.
        unsafe { memory::unmap(self.0.cast(), size_of::<WalkerState>()) };
    }
}

impl WalkerState {
    fn walk(&mut self, registers: &[u64; 17], stack: &[u8]) {
        let mut state = loader::current();
        for _ in 0..MAX_ATTEMPTS {
            self.walk_once(registers, stack, state);
            // Walk again if the loader's state changed during the walk, because rules that the walk used may have been
            // overwritten.
            let now = loader_state::latest();
            if now == state {
                return;
            }
            state = now;
        }
        if loader::with_lock(|state| self.walk_once(registers, stack, state)).is_none() {
            self.flags.0 |= ContextFlags::GUESSED;
        }
    }

    fn walk_once(&mut self, registers: &[u64; 17], stack: &[u8], state: LoaderState) {
        let at = CopiedRegisters(registers);
        // The sampled thread was not executing code in user space. For example, the thread may have been in the
        // vsyscall page of an old kernel. An address outside user space is not looked up.
        if check_return_address(at.pc(), at.sp()).is_err() {
            (self.count, self.flags) = (0, ContextFlags(ContextFlags::CUT));
            return;
        }
        // Walks of copied stacks run on gpuflame's own threads. Therefore these walks may check the rules of generated
        // code, although a check takes one system call per frame of generated code.
        self.compiler.checks = Checks::all();
        let mut words = CopiedStack { base: at.sp(), stack, bp: at.bp() };
        let mut walk = Walk::new(state, &mut self.compiler, &mut self.steps, None);
        let walked = walk.run(&at, &mut words, &mut NeverJoins);
        for (frame, step) in self.frames.iter_mut().zip(&self.steps[..walked.count]) {
            *frame = step.rule.frame(step.pc);
        }
        (self.count, self.flags) = (walked.count, walk_flags(&walked));
    }
}

fn walk_flags(walked: &WalkResult) -> ContextFlags {
    let ended = match walked.end {
        WalkEnd::Bottom | WalkEnd::ZeroReturn(_) => 0,
        WalkEnd::TooDeep => ContextFlags::TRUNCATED,
        _ => ContextFlags::CUT,
    };
    ContextFlags(ended | if walked.is_guessed { ContextFlags::GUESSED } else { 0 })
}

/// The registers of an interrupted thread.
struct CopiedRegisters<'a>(&'a [u64; 17]);

impl CopiedRegisters<'_> {
    fn pc(&self) -> u64 {
        self.0[usize::from(X86_64::RA.0)]
    }

    fn sp(&self) -> u64 {
        self.0[usize::from(X86_64::RSP.0)]
    }

    fn bp(&self) -> u64 {
        self.0[usize::from(X86_64::RBP.0)]
    }
}

impl WalkStart for CopiedRegisters<'_> {
    fn cursor(&self) -> Cursor {
        Cursor::at(self.pc(), self.sp(), self.bp(), true)
    }

    fn registers(&self) -> Registers {
        Registers::all(*self.0)
    }
}

/// The copied words of a stack, from the stack pointer upwards.
struct CopiedStack<'a> {
    /// Stack pointer of the interrupted thread.
    base: u64,
    stack: &'a [u8],
    /// Value of rbp when the stack pointer was `base`.
    bp: u64,
}

impl CopiedStack<'_> {
    fn word_at(&self, address: u64) -> Option<u64> {
        let from = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let word = self.stack.get(from..from.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

impl Words for CopiedStack<'_> {
    const IS_OWN_STACK: bool = false;

    fn begin(&mut self, sp: u64) -> Result<(), WalkEnd> {
        if sp == self.base { Ok(()) } else { Err(WalkEnd::Lost) }
    }

    fn word(&mut self, sp: u64, address: u64) -> Option<u64> {
        self.word_at(address).filter(|_| address >= sp.saturating_sub(RED_ZONE))
    }

    fn can_be_caller_sp(&mut self, sp: u64, cfa: u64) -> bool {
        cfa >= sp.saturating_add(8) && self.word_at(cfa - 8).is_some()
    }

    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)> {
        if !self.can_be_caller_sp(sp, cfa) {
            return None;
        }
        let slot = cfa.wrapping_sub(saved);
        // Directly after a `pop` has restored rbp, the unwind information still states that rbp is saved in the popped
        // slot.
        let was_popped = sp == self.base && (sp.saturating_sub(RED_ZONE)..sp).contains(&slot);
        let saved = if was_popped { self.bp } else { self.word(sp, slot)? };
        Some((saved, self.word_at(cfa - 8)?))
    }

    /// Continues the walk at the code that a signal interrupted, if that code is on this stack, above the signal frame.
    /// If that code is on another stack, the walk ends, because no other stack was copied.
    fn enter_interrupted(&mut self, from: u64, sp: u64) -> Result<(), WalkEnd> {
        if sp > from && self.word_at(sp).is_some() { Ok(()) } else { Err(WalkEnd::Lost) }
    }
}
