//! The plain walk: a rule per frame, from the stub's caller to the bottom of the stack.
//!
//! It reads the stack and nothing else, and no word outside the bounds of the stack that it is on. What
//! a compact rule cannot say (see `rule`) is done in `slow`, which starts over with all registers.

use super::compile::Compiler;
use super::rule::{Kind, Rule};
use super::stub::Entry;
use super::table::{self, Table};
use crate::unwind::bounds::{Stack, Stacks};
use crate::unwind::loader::{self, Counts, Object};
use crate::unwind::memory::{word, word_if_mapped};
use crate::unwind::{MAX_FRAMES, notes};

/// Offsets into the `ucontext_t` that the kernel leaves at the stack pointer of a signal trampoline:
/// `uc_mcontext` at 40, then the registers in the order of `<sys/ucontext.h>`.
pub(super) const UCONTEXT_RBP: u64 = 120;
pub(super) const UCONTEXT_RSP: u64 = 160;
pub(super) const UCONTEXT_RIP: u64 = 168;

/// A frame as the walk meets it: all that decides what comes after it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Step {
    /// The return address into it, or the instruction that it was interrupted at.
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// How it is left.
    pub(super) rule: Rule,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The unwind information says that this is the outermost frame.
    Bottom,
    /// The return address was 0. It lay right below this address.
    ZeroReturn(u64),
    /// There is no unwind information, and rbp holds no frame pointer: decided without reading memory.
    NoInformation,
    /// An address was out of bounds, or an unwind program failed.
    Lost,
    /// There are more frames than are kept.
    TooDeep,
    /// The walk reached this frame of the stack before, all of whose outer part still stands.
    Joined(usize),
}

/// Knows states that need no walk from there on.
pub(super) trait Join {
    /// The known frame that `cursor` has reached. Asked for every frame, leaf first.
    fn reached(&mut self, cursor: &Cursor) -> Option<usize>;
}

/// Knows none.
pub(super) struct Never;

impl Join for Never {
    #[inline(always)]
    fn reached(&mut self, _cursor: &Cursor) -> Option<usize> {
        None
    }
}

/// What a walk found out beside its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    /// How many steps were written.
    pub(super) count: usize,
    pub(super) end: End,
    /// At least one step trusted a frame pointer where there is no unwind information.
    pub(super) is_guessed: bool,
    /// The walk ended on the thread's own stack, which stays mapped.
    pub(super) is_on_own_stack: bool,
}

/// The stack that a walk is on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    stack: Stack,
    /// Whether this is the thread's own stack, which stays mapped to its very end.
    is_own: bool,
}

impl Bounds {
    /// The stack that holds `sp`.
    pub(super) fn around(sp: u64, stacks: &mut Stacks) -> Option<Self> {
        let stack = stacks.holding(sp)?;
        Some(Self { stack, is_own: stack == stacks.own() })
    }

    /// Whether a frame at `sp` may have kept something at `address`: above `sp`, or in the 128 bytes
    /// below it that a leaf function may use.
    #[inline(always)]
    pub(super) fn has_word(&self, sp: u64, address: u64) -> bool {
        let Stack { lo, hi } = self.stack;
        address.wrapping_sub(lo) <= hi.wrapping_sub(8).wrapping_sub(lo) && address >= sp.wrapping_sub(128)
    }

    #[inline(always)]
    pub(super) fn read(&self, sp: u64, address: u64) -> Option<u64> {
        // SAFETY: the word lies on a stack that the thread is on, where live frames keep their words.
        self.has_word(sp, address).then(|| unsafe { word(address) })
    }

    /// Whether a frame at `sp` may have its caller's stack pointer at `cfa`.
    #[inline(always)]
    pub(super) fn leads_on(&self, sp: u64, cfa: u64) -> bool {
        cfa.wrapping_sub(sp).wrapping_sub(1) < self.stack.hi.wrapping_sub(sp)
    }

    /// A word that a frame pointer leads to. The cached bounds of a foreign stack are not enough here.
    pub(super) fn read_guess(&self, sp: u64, address: u64) -> Option<u64> {
        if !self.has_word(sp, address) {
            None
        } else if self.is_own {
            self.read(sp, address)
        } else {
            word_if_mapped(address)
        }
    }
}

/// Where a walk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// Whether `pc` is an interrupted instruction and no return address.
    pub(super) is_exact: bool,
}

/// What a walk needs: borrowed from the thread's engine.
pub(super) struct Walk<'a> {
    pub(super) counts: Counts,
    pub(super) stacks: &'a mut Stacks,
    pub(super) compiler: &'a mut Compiler,
    pub(super) steps: &'a mut [Step; MAX_FRAMES],
    pub(super) is_guessed: bool,
}

impl Walk<'_> {
    /// Walks from `entry` on until `join` knows the rest, and writes the steps, leaf first.
    #[inline(always)]
    pub(super) fn run(&mut self, entry: &Entry, join: &mut impl Join) -> Walked {
        let mut cursor = Cursor { pc: entry.pc, sp: entry.sp(), bp: entry.rbp, is_exact: false };
        let Some(mut bounds) = Bounds::around(cursor.sp, self.stacks) else {
            return self.result(0, End::Lost, false);
        };
        let table = table::current(self.counts);
        for count in 0..MAX_FRAMES {
            if let Some(frame) = join.reached(&cursor) {
                return self.result(count, End::Joined(frame), bounds.is_own);
            }
            let rule = self.rule(table, &cursor);
            self.steps[count] =
                Step { pc: cursor.pc, sp: cursor.sp, bp: cursor.bp, rule: rule.at_exact(cursor.is_exact) };
            let ended = if rule.is_step() {
                step(rule, &mut cursor, &bounds)
            } else if rule.kind() == Kind::Slow {
                return self.run_slowly(entry);
            } else {
                self.special(rule, &mut cursor, &mut bounds)
            };
            if let Some(end) = ended {
                return self.result(count + 1, end, bounds.is_own);
            }
        }
        self.result(MAX_FRAMES, End::TooDeep, bounds.is_own)
    }

    pub(super) fn result(&self, count: usize, end: End, is_on_own_stack: bool) -> Walked {
        Walked { count, end, is_guessed: self.is_guessed, is_on_own_stack }
    }

    #[inline(always)]
    fn rule(&mut self, table: Option<&Table>, cursor: &Cursor) -> Rule {
        let address = cursor.pc.wrapping_sub(u64::from(!cursor.is_exact));
        match table.and_then(|table| table.get(table::key(address, self.counts))) {
            Some(rule) => rule,
            None => self.compile(address, cursor.pc),
        }
    }

    /// Finds out the rule for `address` and stores it for all threads.
    #[cold]
    #[inline(never)]
    fn compile(&mut self, address: u64, pc: u64) -> Rule {
        let counts = loader::poll();
        let compiler = &mut *self.compiler;
        let mut look = |object: &Object| {
            notes::object(object, counts);
            compiler.rule(object, address, pc)
        };
        // Code on the stack cannot be unloaded; but after a guess this may be no code on the stack.
        let found = if self.is_guessed {
            Object::visiting(address, look).flatten()
        } else {
            Object::holding(address).and_then(|object| look(&object))
        };
        let rule = found.unwrap_or_else(|| {
            notes::unknown(address, counts);
            Rule::unknown(counts.loads())
        });
        table::remember(table::key(address, counts), rule, counts);
        rule
    }

    /// Leaves a frame whose rule is no plain step.
    #[cold]
    #[inline(never)]
    fn special(&mut self, rule: Rule, cursor: &mut Cursor, bounds: &mut Bounds) -> Option<End> {
        match rule.kind() {
            Kind::Step => step(rule, cursor, bounds),
            Kind::End => Some(End::Bottom),
            Kind::Realigned => realigned(rule, cursor, bounds),
            Kind::Signal => self.interrupted(cursor, bounds),
            Kind::Unknown => self.unknown(rule, cursor, bounds),
            Kind::Slow => Some(End::Lost),
        }
    }

    /// Goes on below a signal, where the kernel saved the registers; perhaps on another stack.
    fn interrupted(&mut self, cursor: &mut Cursor, bounds: &mut Bounds) -> Option<End> {
        let saved = |offset| bounds.read(cursor.sp, cursor.sp.wrapping_add(offset));
        let (Some(pc), Some(sp), Some(bp)) = (saved(UCONTEXT_RIP), saved(UCONTEXT_RSP), saved(UCONTEXT_RBP))
        else {
            return Some(End::Lost);
        };
        *cursor = Cursor { pc, sp, bp, is_exact: true };
        match Bounds::around(sp, self.stacks) {
            Some(next) => *bounds = next,
            None => return Some(End::Lost),
        }
        // A call of a null pointer: libgcc ends here too.
        (pc == 0).then_some(End::ZeroReturn(sp))
    }

    /// Trusts rbp where there is no unwind information, if it can be a frame pointer at all.
    fn unknown(&mut self, rule: Rule, cursor: &mut Cursor, bounds: &mut Bounds) -> Option<End> {
        if rule.loads() != self.counts.loads() {
            let address = cursor.pc.wrapping_sub(u64::from(!cursor.is_exact));
            let rule = self.compile(address, cursor.pc);
            match rule.kind() {
                Kind::Unknown => {}
                // Another thread just loaded an object here. The counts moved on, so the capture starts over.
                _ => return Some(End::Lost),
            }
        }
        let Cursor { sp, bp: frame, .. } = *cursor;
        if !is_frame_pointer(sp, frame, bounds) {
            return Some(End::NoInformation);
        }
        let (Some(bp), Some(pc)) = (bounds.read_guess(sp, frame), bounds.read_guess(sp, frame + 8)) else {
            return Some(End::Lost);
        };
        self.is_guessed = true;
        arrive(cursor, pc, frame + 16, bp)
    }
}

/// Whether `bp` can point to a saved frame pointer and the return address above it.
pub(super) fn is_frame_pointer(sp: u64, bp: u64, bounds: &Bounds) -> bool {
    bp.is_multiple_of(8) && bp >= sp && bounds.has_word(sp, bp.wrapping_add(8))
}

#[inline(always)]
fn step(rule: Rule, cursor: &mut Cursor, bounds: &Bounds) -> Option<End> {
    let base = if rule.is_bp_based() { cursor.bp } else { cursor.sp };
    let cfa = base.wrapping_add_signed(rule.offset());
    if !bounds.leads_on(cursor.sp, cfa) {
        return Some(End::Lost);
    }
    let mut bp = cursor.bp;
    if rule.saved() != 0 {
        match bounds.read(cursor.sp, cfa.wrapping_sub(rule.saved())) {
            Some(saved) => bp = saved,
            None => return Some(End::Lost),
        }
    }
    match bounds.read(cursor.sp, cfa.wrapping_sub(8)) {
        Some(pc) => arrive(cursor, pc, cfa, bp),
        None => Some(End::Lost),
    }
}

fn realigned(rule: Rule, cursor: &mut Cursor, bounds: &Bounds) -> Option<End> {
    let Some(cfa) = bounds.read(cursor.sp, cursor.bp.wrapping_add_signed(rule.offset())) else {
        return Some(End::Lost);
    };
    if !bounds.leads_on(cursor.sp, cfa) {
        return Some(End::Lost);
    }
    match (bounds.read(cursor.sp, cfa.wrapping_sub(8)), bounds.read(cursor.sp, cursor.bp)) {
        (Some(pc), Some(bp)) => arrive(cursor, pc, cfa, bp),
        _ => Some(End::Lost),
    }
}

#[inline(always)]
fn arrive(cursor: &mut Cursor, pc: u64, sp: u64, bp: u64) -> Option<End> {
    *cursor = Cursor { pc, sp, bp, is_exact: false };
    (pc == 0).then_some(End::ZeroReturn(sp))
}
