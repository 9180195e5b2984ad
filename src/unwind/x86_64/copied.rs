//! Walks another thread's stack, from copies of the stack and of the thread's registers that the kernel made at one moment.
//!
//! The thread has continued to run since the copy was made, so no word is read from the original stack: words outside the
//! copy are unknown, and the stack is cut where the copy ends.

use std::ptr::NonNull;

use gimli::X86_64;

use super::compile::Compiler;
use super::end::End;
use super::generated::Checks;
use super::registers::Registers;
use super::walk::{Beginning, Cursor, Step, Walk, Walked, check};
use super::words::Words;
use super::{ATTEMPTS, Nowhere, Places};
use crate::copy::RED_ZONE;
use crate::loader_state::{self, LoaderState};
use crate::{Captured, MAX_FRAMES, loader, memory};
use gpuflame_model::record::{ContextFlags, Frame};

/// Walks copied stacks, in its own memory mapping.
#[derive(Debug)]
pub(crate) struct OfCopies(NonNull<Room>);

// SAFETY: only this value refers to the mapping.
unsafe impl Send for OfCopies {}

#[repr(C)]
struct Room {
    flags: ContextFlags,
    /// The loader's unload count at the last look, and whether objects had been unloaded between the last look and the one
    /// before.
    unloads: u32,
    is_unsure: bool,
    count: usize,
    compiler: Compiler,
    steps: [Step; MAX_FRAMES],
    frames: [Frame; MAX_FRAMES],
}

impl OfCopies {
    pub(crate) fn new() -> Option<Self> {
        let room = memory::map(size_of::<Room>())?.cast::<Room>();
        // SAFETY: the fresh mapping is large enough and page-aligned. All other fields are valid as zeroes.
        unsafe {
            (&raw mut (*room.as_ptr()).compiler).write(Compiler::new());
            (&raw mut (*room.as_ptr()).unloads).write(loader::current().unloads());
        }
        Some(Self(room))
    }

    pub(crate) fn look(&mut self) {
        // SAFETY: the room is mapped as long as `self` lives, and is used only through `self`.
        let room = unsafe { self.0.as_mut() };
        let unloads = loader::current().unloads();
        room.is_unsure = unloads != std::mem::replace(&mut room.unloads, unloads);
    }

    /// Walks from the point at which a thread had these registers (in DWARF order). `stack` is the memory above the
    /// thread's stack pointer.
    pub(crate) fn walk(&mut self, registers: &[u64; 17], stack: &[u8]) -> Captured<'_> {
        // SAFETY: the room is mapped as long as `self` lives, and is used only through `self`.
        let room = unsafe { self.0.as_mut() };
        room.walk(registers, stack);
        room.flags.0 |= if room.is_unsure { ContextFlags::GUESSED } else { 0 };
        Captured { frames: &room.frames[..room.count], kept: 0, flags: room.flags, places: Places(None) }
    }
}

impl Drop for OfCopies {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping; its fields need no drop, and nothing refers to it.
        unsafe { memory::unmap(self.0.cast(), size_of::<Room>()) };
    }
}

impl Room {
    fn walk(&mut self, registers: &[u64; 17], stack: &[u8]) {
        let mut state = loader::current();
        for _ in 0..ATTEMPTS {
            self.walk_once(registers, stack, state);
            // Rules of an older loader state may have been overwritten during the walk.
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
        let at = Interrupted(registers);
        // This address is not in user space code, but for example in the vsyscall page of old kernels, so it is not looked
        // up.
        if check(at.pc(), at.sp()).is_err() {
            (self.count, self.flags) = (0, ContextFlags(ContextFlags::CUT));
            return;
        }
        // This walk runs on a thread of ours, on which a system call per frame of generated code does not matter.
        self.compiler.checks = Checks::all();
        let mut words = Copied { base: at.sp(), stack, bp: at.bp() };
        let mut walk = Walk::new(state, &mut self.compiler, &mut self.steps, None);
        let walked = walk.run(&at, &mut words, &mut Nowhere);
        for (frame, step) in self.frames.iter_mut().zip(&self.steps[..walked.count]) {
            *frame = step.rule.frame(step.pc);
        }
        (self.count, self.flags) = (walked.count, judge(&walked));
    }
}

fn judge(walked: &Walked) -> ContextFlags {
    let ended = match walked.end {
        End::Bottom | End::ZeroReturn(_) => 0,
        End::TooDeep => ContextFlags::TRUNCATED,
        _ => ContextFlags::CUT,
    };
    ContextFlags(ended | if walked.is_guessed { ContextFlags::GUESSED } else { 0 })
}

/// The registers of an interrupted thread.
struct Interrupted<'a>(&'a [u64; 17]);

impl Interrupted<'_> {
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

impl Beginning for Interrupted<'_> {
    fn cursor(&self) -> Cursor {
        Cursor::at(self.pc(), self.sp(), self.bp(), true)
    }

    fn registers(&self) -> Registers {
        Registers::all(*self.0)
    }
}

/// The copied words of a stack, from the stack pointer upwards.
struct Copied<'a> {
    /// Stack pointer of the interrupted thread.
    base: u64,
    stack: &'a [u8],
    /// Value of rbp when the stack pointer was `base`.
    bp: u64,
}

impl Copied<'_> {
    fn at(&self, address: u64) -> Option<u64> {
        let from = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let word = self.stack.get(from..from.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

impl Words for Copied<'_> {
    const ARE_OWN: bool = false;

    fn begin(&mut self, sp: u64) -> Result<(), End> {
        if sp == self.base { Ok(()) } else { Err(End::Lost) }
    }

    fn word(&mut self, sp: u64, address: u64) -> Option<u64> {
        self.at(address).filter(|_| address >= sp.saturating_sub(RED_ZONE))
    }

    fn leads_on(&mut self, sp: u64, cfa: u64) -> bool {
        cfa >= sp.saturating_add(8) && self.at(cfa - 8).is_some()
    }

    fn saved_and_return(&mut self, sp: u64, cfa: u64, saved: u64) -> Option<(u64, u64)> {
        if !self.leads_on(sp, cfa) {
            return None;
        }
        let slot = cfa.wrapping_sub(saved);
        // Directly after the `pop` that restored rbp, the unwind information still locates rbp in the popped slot.
        let was_popped = sp == self.base && (sp.saturating_sub(RED_ZONE)..sp).contains(&slot);
        let saved = if was_popped { self.bp } else { self.word(sp, slot)? };
        Some((saved, self.at(cfa - 8)?))
    }

    /// Accepts a signal frame that leads to this stack, because there is no copy of any other stack.
    fn enter(&mut self, from: u64, sp: u64) -> Result<(), End> {
        if sp > from && self.at(sp).is_some() { Ok(()) } else { Err(End::Lost) }
    }
}
