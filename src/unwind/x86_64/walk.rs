//! The plain walk: a rule per frame, from the stub's caller to the bottom of the stack.
//!
//! It reads the stack and nothing else, by way of [`Words`]. What a compact rule cannot say (see `rule`) is
//! done in `slow`, which starts over with all registers.

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
use crate::record::ModuleEpoch;
use crate::unwind::counts::Counts;
use crate::unwind::loader::Object;
use crate::unwind::{MAX_FRAMES, find, known, notes};

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
    /// It was by rules, on the thread's own stack: the memo may have it.
    pub(super) is_plain: bool,
}

/// Where a walk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// What rules are stored under (see `table`): the return address, or one more than the address that was
    /// interrupted.
    place: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// 1 if the frame was interrupted, and did not call. A word: as a byte it would be stored as one and read with what
    /// fills it up to a word, which waits until the store has left the processor's buffer, 5 ns a frame and more.
    exact: u64,
}

impl Cursor {
    /// At a frame whose instruction pointer is `pc`.
    pub(super) fn at(pc: u64, sp: u64, bp: u64, is_exact: bool) -> Self {
        let exact = u64::from(is_exact);
        Self { place: pc.wrapping_add(exact), sp, bp, exact }
    }

    /// The return address, or the instruction that was interrupted.
    #[inline(always)]
    pub(super) fn pc(&self) -> u64 {
        self.place.wrapping_sub(self.exact)
    }

    /// Whether the frame was interrupted, and did not call.
    #[inline(always)]
    pub(super) fn is_exact(&self) -> bool {
        self.exact != 0
    }

    /// The epilogue that the frame's call returns to, as the code is now.
    fn epilogue(&self) -> Option<Epilogue> {
        if self.is_exact() { None } else { Epilogue::behind(self.place) }
    }

    #[inline(always)]
    fn leaving_by(&self, rule: Rule) -> Step {
        Step { pc: self.pc(), sp: self.sp, bp: self.bp, rule: rule.at_exact(self.is_exact()) }
    }
}

/// What a walk begins with.
pub(super) trait Beginning {
    /// The first frame.
    fn cursor(&self) -> Cursor;

    /// Its registers, as far as they are known.
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

/// Where leaving a frame led to, or why it ends there.
pub(super) type Left = Result<Cursor, End>;

/// What a walk needs: borrowed from the thread's engine.
pub(super) struct Walk<'a> {
    pub(super) counts: Counts,
    pub(super) compiler: &'a mut Compiler,
    pub(super) steps: &'a mut [Step; MAX_FRAMES],
    pub(super) is_guessed: bool,
    /// The ways that walks have taken.
    pub(super) trails: Option<&'a Trails>,
    /// From which step on none of them led the walk.
    pub(super) lost: Option<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        counts: Counts,
        compiler: &'a mut Compiler,
        steps: &'a mut [Step; MAX_FRAMES],
        trails: Option<&'a Trails>,
    ) -> Self {
        Self { counts, compiler, steps, is_guessed: false, trails, lost: None }
    }
}

impl Walk<'_> {
    /// Walks from `entry` on, by `words`, until `join` knows the rest, and writes the steps, leaf first.
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
        // The stack of the capture before, as often as not: nothing is made ready for more.
        if let Some(frame) = join.reached(&cursor) {
            return self.result(0, End::Joined(frame), W::ARE_OWN);
        }
        let mut lead = Lead::by(self.trails, self.counts);
        let walked = self.run_by(&mut lead, entry, words, join);
        self.lost = lead.lost();
        walked
    }

    /// Walks from `entry` on, which `join` does not know.
    #[inline(always)]
    fn run_by<W: Words>(
        &mut self,
        lead: &mut Lead<'_>,
        entry: &impl Beginning,
        words: &mut W,
        join: &mut impl Join,
    ) -> Walked {
        let mut cursor = entry.cursor();
        let table = table::current(self.counts);
        for count in 0..MAX_FRAMES {
            let known = lead.rule((cursor.place, cursor.sp), count);
            let rule = match known.or_else(|| table?.get(cursor.place, self.counts)) {
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

    /// The rule for where `cursor` is.
    pub(super) fn rule(&mut self, cursor: Cursor) -> Rule {
        let known = table::current(self.counts).and_then(|table| table.get(cursor.place, self.counts));
        match known {
            Some(rule) => self.up_to_date(rule, cursor, &mut Lead::by(None, self.counts)),
            None => self.compile(cursor),
        }
    }

    /// The same for a walk that `lead` leads: it does not learn what was made just now.
    #[cold]
    #[inline(never)]
    fn compile_beside(&mut self, lead: &mut Lead<'_>, cursor: Cursor) -> Rule {
        lead.forget();
        self.compiler.checks.met_new_address();
        self.compile(cursor)
    }

    /// Finds out the rule for where `cursor` is, and stores it for all threads.
    #[cold]
    #[inline(never)]
    fn compile(&mut self, cursor: Cursor) -> Rule {
        let address = cursor.place.wrapping_sub(1);
        let compiler = &mut *self.compiler;
        let look = |object: &Object, counts| {
            (compiler.rule(object, address, cursor.pc()), known::epoch_of(object, counts))
        };
        let Some((counts, found)) = find::look_at(address, look) else {
            return Rule::unknown(self.counts.loads()).in_epoch(ModuleEpoch::UNKNOWN);
        };
        let (rule, epoch) = found.unwrap_or_else(|| {
            notes::outside(address, counts);
            (None, Some(ModuleEpoch::OUTSIDE))
        });
        let rule = rule.unwrap_or_else(|| match cursor.epilogue() {
            Some(epilogue) => Rule::unknown_with(counts.loads(), epilogue),
            None => Rule::unknown(counts.loads()),
        });
        // Where a signal handler could not be told the epoch, the next capture asks again.
        let Some(epoch) = epoch else { return rule.in_epoch(ModuleEpoch::UNKNOWN) };
        let rule = rule.in_epoch(epoch);
        self.compiler.checks.met_generated |= rule.may_be_replaced();
        table::remember(cursor.place, rule, counts);
        rule
    }

    /// Returns `rule`, or a new one if `rule` is from before an object was loaded, which may be here, or if other code is here
    /// now.
    #[inline]
    fn up_to_date(&mut self, rule: Rule, cursor: Cursor, lead: &mut Lead<'_>) -> Rule {
        let is_old = rule.kind() == Kind::Unknown && rule.loads() != self.counts.loads();
        if is_old || (rule.may_be_replaced() && self.is_replaced(rule, cursor)) {
            self.compile_beside(lead, cursor)
        } else {
            rule
        }
    }

    /// Whether the code that `rule` was made for has been replaced. False without a check.
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

    /// Where there is no unwind information, goes by the epilogue, or trusts rbp if it can be a frame pointer at all.
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

/// The caller's pc, sp and rbp by the instructions that lead there.
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

/// The caller's pc, sp and rbp, if `bp` can point to a saved frame pointer and the return address above it.
pub(super) fn by_frame_pointer(sp: u64, bp: u64, words: &mut impl Words) -> Result<(u64, u64, u64), End> {
    if !bp.is_multiple_of(8) || bp < sp {
        return Err(End::NoInformation);
    }
    // Read first: then the lower one is readable as well.
    let pc = words.word(sp, bp.wrapping_add(8)).ok_or(End::NoInformation)?;
    let saved = words.word(sp, bp).ok_or(End::Lost)?;
    Ok((pc, bp.wrapping_add(16), saved))
}

/// A plain step, without a branch that depends on the rule: stacks differ, and a wrong guess of the
/// processor costs more than the step.
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

/// Goes on below a signal, where the kernel saved the registers; perhaps on another stack.
#[cold]
#[inline(never)]
fn interrupted(from: Cursor, words: &mut impl Words) -> Left {
    let mut saved = |offset| words.word(from.sp, from.sp.wrapping_add(offset)).ok_or(End::Lost);
    let (pc, sp, bp) = (saved(UCONTEXT_RIP)?, saved(UCONTEXT_RSP)?, saved(UCONTEXT_RBP)?);
    words.enter(from.sp, sp)?;
    // 0 is a call of a null pointer: libgcc ends here too.
    check(pc, sp)?;
    Ok(Cursor { place: pc.wrapping_add(1), sp, bp, exact: 1 })
}

#[inline(always)]
fn arrive(pc: u64, sp: u64, bp: u64) -> Left {
    check(pc, sp)?;
    Ok(Cursor { place: pc, sp, bp, exact: 0 })
}

/// Whether there can be code at `pc`, the caller's, whose stack pointer is `sp`: 0 ends a stack, and the addresses
/// of programs end at 2^47. So no other address is looked up.
#[inline(always)]
pub(super) fn check(pc: u64, sp: u64) -> Result<(), End> {
    if pc.wrapping_sub(1) >> 47 == 0 {
        return Ok(());
    }
    Err(if pc == 0 { End::ZeroReturn(sp) } else { End::Lost })
}
