//! The plain walk: one rule per frame, from the stub's caller to the root.
//!
//! The walk reads nothing but the stack, through [`Words`]. Frames that no compact rule can describe (see `rule`) are left
//! to `slow`, which starts over with all registers.

use std::hint::select_unpredictable;

use super::compile::Compiler;
use super::end::End;
use super::epilogue::Epilogue;
use super::registers::Registers;
use super::rule::{Kind, Rule, UCONTEXT_RBP, UCONTEXT_RIP, UCONTEXT_RSP};
use super::stub::Entry;
use super::table;
use super::trails::{Lead, Trails};
use super::words::Words;
use crate::loader::Object;
use crate::loader_state::LoaderState;
use crate::{MAX_FRAMES, epochs, object_lookup, outside_pages};
use gpuflame_model::record::ModuleEpoch;

/// A frame that the walk reached, with the full state that determines the frame's callers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Step {
    /// The return address into the frame, or the instruction at which it was interrupted.
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// The rule by which the walk leaves the frame.
    pub(super) rule: Rule,
}

impl Step {
    /// Copies the step word by word, in the widths in which the walk wrote the step a moment ago. The wider loads that
    /// compilers prefer would stall until those writes have left the processor's store buffer, which takes 5 ns per frame.
    #[inline(always)]
    pub(super) fn by_words(&self) -> Self {
        let read = |word: &u64| {
            // SAFETY: `word` is a reference, so it is valid to read.
            unsafe { std::ptr::from_ref(word).read_volatile() }
        };
        Self { pc: read(&self.pc), sp: read(&self.sp), bp: read(&self.bp), rule: Rule(read(&self.rule.0)) }
    }
}

/// A set of states from which on the rest of the stack is known.
pub(super) trait Join {
    /// Returns the known frame that `cursor` has reached, if any. The walk calls this function for every frame, leaf first.
    fn reached(&mut self, cursor: &Cursor) -> Option<usize>;
}

/// The results of a walk other than its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    /// Number of steps that the walk wrote.
    pub(super) count: usize,
    pub(super) end: End,
    /// Whether at least one step trusted a frame pointer for lack of unwind information.
    pub(super) is_guessed: bool,
    /// Whether all steps followed rules, on the thread's own stack, so that the memo may store the walk.
    pub(super) is_plain: bool,
}

/// The frame at which a walk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// The key of the frame's rule (see `table`): the return address, or the address of the interrupted instruction plus
    /// one.
    place: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// 1 if the frame was interrupted instead of calling. This field is a full word, because a byte would be stored as a
    /// byte but loaded together with its padding, and such a load stalls until the store has left the store buffer: at
    /// least 5 ns per frame.
    exact: u64,
}

impl Cursor {
    /// Creates a cursor at a frame whose instruction pointer is `pc`.
    pub(super) fn at(pc: u64, sp: u64, bp: u64, is_exact: bool) -> Self {
        let exact = u64::from(is_exact);
        Self { place: pc.wrapping_add(exact), sp, bp, exact }
    }

    /// The return address into the frame, or the address of the interrupted instruction.
    #[inline(always)]
    pub(super) fn pc(&self) -> u64 {
        self.place.wrapping_sub(self.exact)
    }

    /// Whether the frame was interrupted, instead of calling.
    #[inline(always)]
    pub(super) fn is_exact(&self) -> bool {
        self.exact != 0
    }

    /// The epilogue after the frame's call, according to the present code.
    fn epilogue(&self) -> Option<Epilogue> {
        if self.is_exact() { None } else { Epilogue::behind(self.place) }
    }

    #[inline(always)]
    fn leaving_by(&self, rule: Rule) -> Step {
        Step { pc: self.pc(), sp: self.sp, bp: self.bp, rule: rule.at_exact(self.is_exact()) }
    }
}

/// The state in which a walk starts.
pub(super) trait Beginning {
    /// Position of the walk at the first frame.
    fn cursor(&self) -> Cursor;

    /// The known registers of the first frame.
    fn registers(&self) -> Registers;
}

impl Beginning for Entry {
    #[inline(always)]
    fn cursor(&self) -> Cursor {
        Cursor { place: self.pc, sp: self.sp(), bp: self.rbp, exact: 0 }
    }

    fn registers(&self) -> Registers {
        Registers::at(self)
    }
}

/// The caller to which a step led, or the reason why the walk ends.
pub(super) type Left = Result<Cursor, End>;

/// The state of a walk, borrowed from the thread's engine.
pub(super) struct Walk<'a> {
    pub(super) state: LoaderState,
    pub(super) compiler: &'a mut Compiler,
    pub(super) steps: &'a mut [Step; MAX_FRAMES],
    pub(super) is_guessed: bool,
    /// The cached paths that earlier walks of this thread took.
    pub(super) trails: Option<&'a Trails>,
    /// The step from which on no cached path led the walk.
    pub(super) lost: Option<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        state: LoaderState,
        compiler: &'a mut Compiler,
        steps: &'a mut [Step; MAX_FRAMES],
        trails: Option<&'a Trails>,
    ) -> Self {
        Self { state, compiler, steps, is_guessed: false, trails, lost: None }
    }
}

impl Walk<'_> {
    /// Walks from `entry` on, reading through `words`, until `join` knows the rest of the stack. Writes the steps, leaf
    /// first.
    #[inline(always)]
    pub(super) fn run<W: Words>(
        &mut self,
        entry: &impl Beginning,
        words: &mut W,
        join: &mut impl Join,
    ) -> Walked {
        let cursor = entry.cursor();
        if let Err(end) = words.begin(cursor.sp) {
            return self.result(0, end, false);
        }
        // As often as not, this stack is the same as in the previous capture, so prepare nothing more before this check.
        if let Some(frame) = join.reached(&cursor) {
            return self.result(0, End::Joined(frame), W::ARE_OWN);
        }
        let mut lead = Lead::by(self.trails, self.state);
        let walked = self.run_by(&mut lead, entry, words, join);
        self.lost = lead.lost();
        walked
    }

    /// Walks from `entry` on, which is not a state that `join` knows.
    #[inline(always)]
    fn run_by<W: Words>(
        &mut self,
        lead: &mut Lead<'_>,
        entry: &impl Beginning,
        words: &mut W,
        join: &mut impl Join,
    ) -> Walked {
        let mut cursor = entry.cursor();
        let table = table::current(self.state);
        for count in 0..MAX_FRAMES {
            let known = lead.rule((cursor.place, cursor.sp), count);
            let rule = match known.or_else(|| table?.get(cursor.place, self.state)) {
                Some(rule) if rule.is_step() => rule,
                Some(rule) => self.up_to_date(rule, cursor, lead),
                None => self.compile_beside(lead, cursor),
            };
            self.steps[count] = cursor.leaving_by(rule);
            let left = if rule.is_step() {
                step(rule, cursor, words)
            } else {
                match rule.kind() {
                    Kind::Step => step(rule, cursor, words),
                    Kind::Realigned => realigned(rule, cursor, words),
                    Kind::Unknown => self.unknown(rule, cursor, words),
                    Kind::Signal => interrupted(cursor, words),
                    Kind::End => Err(End::Bottom),
                    Kind::Slow => return self.run_slowly(entry, words),
                }
            };
            match left {
                Ok(caller) => cursor = caller,
                Err(end) => return self.result(count + 1, end, W::ARE_OWN),
            }
            if let Some(frame) = join.reached(&cursor) {
                return self.result(count + 1, End::Joined(frame), W::ARE_OWN);
            }
        }
        self.result(MAX_FRAMES, End::TooDeep, W::ARE_OWN)
    }

    pub(super) fn result(&self, count: usize, end: End, is_plain: bool) -> Walked {
        Walked { count, end, is_guessed: self.is_guessed, is_plain }
    }

    /// The rule for the address at `cursor`.
    pub(super) fn rule(&mut self, cursor: Cursor) -> Rule {
        let known = table::current(self.state).and_then(|table| table.get(cursor.place, self.state));
        match known {
            Some(rule) => self.up_to_date(rule, cursor, &mut Lead::by(None, self.state)),
            None => self.compile(cursor),
        }
    }

    /// As [`Walk::compile`], for a walk that `lead` leads. `lead` does not learn rules that are new in this walk.
    #[cold]
    #[inline(never)]
    fn compile_beside(&mut self, lead: &mut Lead<'_>, cursor: Cursor) -> Rule {
        lead.forget();
        self.compiler.checks.met_new_address();
        self.compile(cursor)
    }

    /// Compiles the rule for the address at `cursor`, and stores the rule for all threads.
    #[cold]
    #[inline(never)]
    fn compile(&mut self, cursor: Cursor) -> Rule {
        let address = cursor.place.wrapping_sub(1);
        let compiler = &mut *self.compiler;
        let look = |object: &Object, state| {
            (compiler.rule(object, address, cursor.pc()), epochs::epoch_of(object, state))
        };
        let Some((state, found)) = object_lookup::with_object_at(address, look) else {
            return Rule::unknown(self.state.loads()).in_epoch(ModuleEpoch::UNKNOWN);
        };
        let (rule, epoch) = found.unwrap_or_else(|| {
            outside_pages::note(address, state);
            (None, Some(ModuleEpoch::OUTSIDE))
        });
        let rule = rule.unwrap_or_else(|| match cursor.epilogue() {
            Some(epilogue) => Rule::unknown_with(state.loads(), epilogue),
            None => Rule::unknown(state.loads()),
        });
        // A signal handler may be unable to get the epoch. Then the next capture asks for it again.
        let Some(epoch) = epoch else { return rule.in_epoch(ModuleEpoch::UNKNOWN) };
        let rule = rule.in_epoch(epoch);
        self.compiler.checks.met_generated |= rule.may_be_replaced();
        table::remember(cursor.place, rule, state);
        rule
    }

    /// Returns `rule`, or compiles a new rule if an object was loaded since, because that object may be at this address, or
    /// if the code was replaced.
    #[inline]
    fn up_to_date(&mut self, rule: Rule, cursor: Cursor, lead: &mut Lead<'_>) -> Rule {
        let is_old = rule.kind() == Kind::Unknown && rule.loads() != self.state.loads();
        if is_old || (rule.may_be_replaced() && self.is_replaced(rule, cursor)) {
            self.compile_beside(lead, cursor)
        } else {
            rule
        }
    }

    /// Whether the code for which `rule` was compiled has been replaced. False if the code was not checked.
    #[cold]
    #[inline(never)]
    fn is_replaced(&mut self, rule: Rule, cursor: Cursor) -> bool {
        if cursor.is_exact() || !self.compiler.checks.take() {
            return false;
        }
        let is_replaced = cursor.epilogue() != rule.epilogue();
        if is_replaced {
            self.compiler.checks.report_replacement();
        }
        is_replaced
    }

    /// Leaves a frame without unwind information, either by its epilogue, or by rbp if rbp can be a frame pointer at all.
    #[cold]
    #[inline(never)]
    pub(super) fn unknown(&mut self, rule: Rule, from: Cursor, words: &mut impl Words) -> Left {
        let (pc, sp, bp) = match rule.epilogue() {
            Some(epilogue) => by_epilogue(epilogue, from, words)?,
            None => by_frame_pointer(from.sp, from.bp, words)?,
        };
        self.is_guessed = true;
        arrive(pc, sp, bp)
    }
}

/// The caller's pc, sp and rbp according to the epilogue's instructions.
fn by_epilogue(
    Epilogue { words: popped, saved }: Epilogue,
    from: Cursor,
    words: &mut impl Words,
) -> Result<(u64, u64, u64), End> {
    let cfa = from.sp.wrapping_add(8 * u64::from(popped));
    let found = words.saved_and_return(from.sp, cfa, 8 * u64::from(saved));
    let (bp, pc) = found.ok_or(End::Lost)?;
    Ok((pc, cfa, if saved > 1 { bp } else { from.bp }))
}

/// The caller's pc, sp and rbp, if `bp` can point to a saved frame pointer with the return address above it.
pub(super) fn by_frame_pointer(sp: u64, bp: u64, words: &mut impl Words) -> Result<(u64, u64, u64), End> {
    if !bp.is_multiple_of(8) || bp < sp {
        return Err(End::NoInformation);
    }
    // The upper word is read first, because the lower word is readable if the upper one is.
    let pc = words.word(sp, bp.wrapping_add(8)).ok_or(End::NoInformation)?;
    let saved = words.word(sp, bp).ok_or(End::Lost)?;
    Ok((pc, bp.wrapping_add(16), saved))
}

/// Takes a plain step, without a branch that depends on the rule: stacks differ, and a mispredicted branch costs more than
/// the step.
#[inline(always)]
fn step(rule: Rule, from: Cursor, words: &mut impl Words) -> Left {
    let base = select_unpredictable(rule.is_bp_based(), from.bp, from.sp);
    let cfa = base.wrapping_add_signed(rule.offset());
    let (saved, pc) = words.saved_and_return(from.sp, cfa, rule.saved()).ok_or(End::Lost)?;
    arrive(pc, cfa, select_unpredictable(rule.restores_bp(), saved, from.bp))
}

#[inline(always)]
fn realigned(rule: Rule, from: Cursor, words: &mut impl Words) -> Left {
    let cfa = words.word(from.sp, from.bp.wrapping_add_signed(rule.offset())).ok_or(End::Lost)?;
    if !words.leads_on(from.sp, cfa) {
        return Err(End::Lost);
    }
    let pc = words.word(from.sp, cfa.wrapping_sub(8)).ok_or(End::Lost)?;
    arrive(pc, cfa, words.word(from.sp, from.bp).ok_or(End::Lost)?)
}

/// Continues at the code that a signal interrupted, whose registers the kernel saved. This code may be on another stack.
#[cold]
#[inline(never)]
fn interrupted(from: Cursor, words: &mut impl Words) -> Left {
    let mut saved = |offset| words.word(from.sp, from.sp.wrapping_add(offset)).ok_or(End::Lost);
    let (pc, sp, bp) = (saved(UCONTEXT_RIP)?, saved(UCONTEXT_RSP)?, saved(UCONTEXT_RBP)?);
    words.enter(from.sp, sp)?;
    // An address of 0 comes from a call of a null pointer. libgcc also ends the walk at such an address.
    check(pc, sp)?;
    Ok(Cursor { place: pc.wrapping_add(1), sp, bp, exact: 1 })
}

#[inline(always)]
fn arrive(pc: u64, sp: u64, bp: u64) -> Left {
    check(pc, sp)?;
    Ok(Cursor { place: pc, sp, bp, exact: 0 })
}

/// Checks whether the caller's `pc` can be code; `sp` is the caller's stack pointer. A `pc` of 0 ends a stack, and user
/// space addresses end at 2^47. Only addresses that pass this check are looked up.
#[inline(always)]
pub(super) fn check(pc: u64, sp: u64) -> Result<(), End> {
    if pc.wrapping_sub(1) >> 47 == 0 {
        return Ok(());
    }
    Err(if pc == 0 { End::ZeroReturn(sp) } else { End::Lost })
}
