//! The plain walk: a rule per frame, from the stub's caller to the bottom of the stack.
//!
//! It reads the stack and nothing else, and no word outside the bounds of the stack that it is on. What
//! a compact rule cannot say (see `rule`) is done in `slow`, which starts over with all registers.

use std::hint::select_unpredictable;

use super::compile::Compiler;
use super::rule::{Kind, Rule, UCONTEXT_RBP, UCONTEXT_RIP, UCONTEXT_RSP};
use super::stub::Entry;
use super::table;
use crate::unwind::bounds::Stacks;
use crate::unwind::counts::{self, Counts};
use crate::unwind::loader::{self, Object};
use crate::unwind::memory::{word, word_if_mapped};
use crate::unwind::{MAX_FRAMES, find, notes};

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

impl Step {
    /// A copy, made word by word as the walk wrote it a moment ago. Wider loads, which a compiler is fond of,
    /// would wait until those writes have left the processor's store buffer: 5 ns a frame.
    #[inline(always)]
    pub(super) fn by_words(&self) -> Self {
        let read = |word: &u64| {
            // SAFETY: a reference is valid to read.
            unsafe { std::ptr::from_ref(word).read_volatile() }
        };
        Self { pc: read(&self.pc), sp: read(&self.sp), bp: read(&self.bp), rule: Rule(read(&self.rule.0)) }
    }
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
    hi: u64,
    /// How far below its stack pointer a frame may have kept something: the 128 bytes that a leaf function
    /// may use, unless the stack ends before.
    below: u64,
    /// Whether this is the thread's own stack, which stays mapped to its very end.
    is_own: bool,
    /// A frame pointer was trusted, and this is no stack that is known to be mapped: whatever follows may lie anywhere
    /// in bounds that are out of date.
    is_doubtful: bool,
}

impl Bounds {
    /// The stack that holds `sp`, where a walk enters it: from there it goes up.
    pub(super) fn entered_at(sp: u64, stacks: &mut Stacks) -> Option<Self> {
        let stack = stacks.holding(sp)?;
        let is_own = stack == stacks.own();
        Some(Self { hi: stack.hi, below: (sp - stack.lo).min(128), is_own, is_doubtful: false })
    }

    /// Whether a frame at `sp` may have kept a word at `address`.
    #[inline(always)]
    pub(super) fn has_word(&self, sp: u64, address: u64) -> bool {
        (address >= sp.wrapping_sub(self.below)) & (address <= self.hi.wrapping_sub(8))
    }

    #[inline(always)]
    pub(super) fn read(&self, sp: u64, address: u64) -> Option<u64> {
        if !self.has_word(sp, address) {
            None
        } else if self.is_doubtful {
            word_if_mapped(address)
        } else {
            // SAFETY: the word lies on a stack that the thread is on, where live frames keep their words.
            Some(unsafe { word(address) })
        }
    }

    /// The same bounds once a frame pointer was trusted, which may have led anywhere.
    pub(super) fn after_guess(self) -> Self {
        Self { is_doubtful: !self.is_own, ..self }
    }

    /// Whether a frame at `sp` may have its caller's stack pointer at `cfa`, and a return address below.
    #[inline(always)]
    pub(super) fn leads_on(&self, sp: u64, cfa: u64) -> bool {
        (cfa >= sp.wrapping_add(8)) & (cfa <= self.hi)
    }
}

/// Where a walk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// What rules are stored under (see `table`): the return address, or one more than the address that was
    /// interrupted.
    place: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// Whether the frame was interrupted, and did not call.
    pub(super) is_exact: bool,
}

impl Cursor {
    /// The return address, or the instruction that was interrupted.
    #[inline(always)]
    pub(super) fn pc(&self) -> u64 {
        self.place.wrapping_sub(u64::from(self.is_exact))
    }

    #[inline(always)]
    fn leaving_by(&self, rule: Rule) -> Step {
        Step { pc: self.pc(), sp: self.sp, bp: self.bp, rule: rule.at_exact(self.is_exact) }
    }
}

/// Where leaving a frame led to, or why it ends there.
type Left = Result<Cursor, End>;

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
        let mut cursor = Cursor { place: entry.pc, sp: entry.sp(), bp: entry.rbp, is_exact: false };
        let Some(mut bounds) = Bounds::entered_at(cursor.sp, self.stacks) else {
            return self.result(0, End::Lost, false);
        };
        let table = table::current(self.counts);
        for count in 0..MAX_FRAMES {
            if let Some(frame) = join.reached(&cursor) {
                return self.result(count, End::Joined(frame), bounds.is_own);
            }
            let rule = match table.and_then(|table| table.get(cursor.place, self.counts)) {
                Some(rule) => rule,
                None => self.compile(cursor),
            };
            let rule = if rule.is_step() { rule } else { self.up_to_date(rule, cursor) };
            self.steps[count] = cursor.leaving_by(rule);
            let left = if rule.is_step() {
                step(rule, cursor, bounds)
            } else {
                match rule.kind() {
                    Kind::Step => step(rule, cursor, bounds),
                    Kind::Realigned => realigned(rule, cursor, bounds),
                    // What a guess leads to on another stack is read with care, which only the slow walk takes.
                    Kind::Unknown if !bounds.is_own => return self.run_slowly(entry),
                    Kind::Unknown => self.unknown(cursor, bounds),
                    Kind::Signal => match self.interrupted(cursor, bounds) {
                        Ok((_, on)) if on.is_doubtful => return self.run_slowly(entry),
                        entered => entered.map(|(interrupted, on)| {
                            bounds = on;
                            interrupted
                        }),
                    },
                    Kind::End => Err(End::Bottom),
                    Kind::Slow => return self.run_slowly(entry),
                }
            };
            match left {
                Ok(caller) => cursor = caller,
                Err(end) => return self.result(count + 1, end, bounds.is_own),
            }
        }
        self.result(MAX_FRAMES, End::TooDeep, bounds.is_own)
    }

    pub(super) fn result(&self, count: usize, end: End, is_on_own_stack: bool) -> Walked {
        Walked { count, end, is_guessed: self.is_guessed, is_on_own_stack }
    }

    /// Finds out the rule for where `cursor` is, and stores it for all threads.
    #[cold]
    #[inline(never)]
    fn compile(&mut self, cursor: Cursor) -> Rule {
        let address = cursor.place.wrapping_sub(1);
        let counts = loader::current();
        counts::use_epoch();
        let compiler = &mut *self.compiler;
        let mut look = |object: &Object| {
            notes::object(object, counts);
            compiler.rule(object, address, cursor.pc())
        };
        // Code on the stack cannot be unloaded; but after a guess this may be no code on the stack.
        let found = if self.is_guessed {
            Object::visiting(address, look).flatten()
        } else {
            find::object_at(address).and_then(|object| look(&object))
        };
        let rule = found.unwrap_or_else(|| {
            notes::unknown(address, counts);
            Rule::unknown(counts.loads())
        });
        table::remember(cursor.place, rule, counts);
        rule
    }

    /// Goes on below a signal, where the kernel saved the registers; perhaps on another stack.
    #[cold]
    #[inline(never)]
    fn interrupted(&mut self, from: Cursor, bounds: Bounds) -> Result<(Cursor, Bounds), End> {
        let saved = |offset| bounds.read(from.sp, from.sp.wrapping_add(offset)).ok_or(End::Lost);
        let (pc, sp, bp) = (saved(UCONTEXT_RIP)?, saved(UCONTEXT_RSP)?, saved(UCONTEXT_RBP)?);
        let on = self.enter(sp).ok_or(End::Lost)?;
        if pc == 0 {
            // A call of a null pointer: libgcc ends here too.
            return Err(End::ZeroReturn(sp));
        }
        Ok((Cursor { place: pc.wrapping_add(1), sp, bp, is_exact: true }, on))
    }

    /// The stack that holds `sp`, where the walk goes on after a signal.
    pub(super) fn enter(&mut self, sp: u64) -> Option<Bounds> {
        let bounds = Bounds::entered_at(sp, self.stacks)?;
        Some(if self.is_guessed { bounds.after_guess() } else { bounds })
    }

    /// The rule, unless it says that nothing is known here and an object was loaded since: it may have been here.
    #[inline]
    fn up_to_date(&mut self, rule: Rule, cursor: Cursor) -> Rule {
        let is_old = rule.kind() == Kind::Unknown && rule.loads() != self.counts.loads();
        if is_old { self.compile(cursor) } else { rule }
    }

    /// Trusts rbp where there is no unwind information, if it can be a frame pointer at all. On the thread's own stack.
    #[cold]
    #[inline(never)]
    fn unknown(&mut self, from: Cursor, bounds: Bounds) -> Left {
        let Cursor { sp, bp: frame, .. } = from;
        if !is_frame_pointer(sp, frame, bounds) {
            return Err(End::NoInformation);
        }
        let bp = bounds.read(sp, frame).ok_or(End::Lost)?;
        let pc = bounds.read(sp, frame + 8).ok_or(End::Lost)?;
        self.is_guessed = true;
        arrive(pc, frame + 16, bp)
    }
}

/// Whether `bp` can point to a saved frame pointer and the return address above it.
pub(super) fn is_frame_pointer(sp: u64, bp: u64, bounds: Bounds) -> bool {
    bp.is_multiple_of(8) && bp >= sp && bounds.has_word(sp, bp.wrapping_add(8))
}

/// A plain step, without a branch that depends on the rule: stacks differ, and a wrong guess of the
/// processor costs more than the step.
#[inline(always)]
fn step(rule: Rule, from: Cursor, bounds: Bounds) -> Left {
    let base = select_unpredictable(rule.is_bp_based(), from.bp, from.sp);
    let cfa = base.wrapping_add_signed(rule.offset());
    // At or below the return address, so that one bound is left to check.
    let bp_slot = cfa.wrapping_sub(rule.saved());
    if !(bounds.leads_on(from.sp, cfa) & (bp_slot >= from.sp.wrapping_sub(bounds.below))) {
        return Err(End::Lost);
    }
    // SAFETY: the word lies on a stack that the thread is on, where live frames keep their words.
    let saved = unsafe { word(bp_slot) };
    // SAFETY: likewise, for it lies between that slot and the CFA.
    let pc = unsafe { word(cfa.wrapping_sub(8)) };
    arrive(pc, cfa, select_unpredictable(rule.restores_bp(), saved, from.bp))
}

#[inline(always)]
fn realigned(rule: Rule, from: Cursor, bounds: Bounds) -> Left {
    let cfa = bounds.read(from.sp, from.bp.wrapping_add_signed(rule.offset())).ok_or(End::Lost)?;
    if !bounds.leads_on(from.sp, cfa) {
        return Err(End::Lost);
    }
    let pc = bounds.read(from.sp, cfa.wrapping_sub(8)).ok_or(End::Lost)?;
    arrive(pc, cfa, bounds.read(from.sp, from.bp).ok_or(End::Lost)?)
}

#[inline(always)]
fn arrive(pc: u64, sp: u64, bp: u64) -> Left {
    if pc == 0 { Err(End::ZeroReturn(sp)) } else { Ok(Cursor { place: pc, sp, bp, is_exact: false }) }
}
