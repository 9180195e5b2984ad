//! The plain walk: one rule per frame, from the stub's caller to the root.
//!
//! The walk reads only words of the stack, through [`Words`]. If the walk reaches a frame that no compact rule can
//! describe (see `rule`), the walk is repeated by `slow`, which follows all registers.

use std::hint::select_unpredictable;

use super::compile_eh_frame::Compiler;
use super::epilogue::Epilogue;
use super::path_cache::{PathCache, PathFollower};
use super::registers::Registers;
use super::rule::{Rule, RuleKind, UCONTEXT_RBP, UCONTEXT_RIP, UCONTEXT_RSP};
use super::stub::StubRegisters;
use super::table;
use super::walk_end::WalkEnd;
use super::words::Words;
use crate::loader::Object;
use crate::loader_state::LoaderState;
use crate::{MAX_FRAMES, epochs, object_lookup, outside_pages};
use gpuflame_model::record::ModuleEpoch;

/// A frame that the walk reached: the registers and the rule that determine the frame's callers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct WalkStep {
    /// The return address into the frame's function, or the instruction at which a signal interrupted the function.
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// The rule by which the walk leaves the frame.
    pub(super) rule: Rule,
}

impl WalkStep {
    /// Copies the step with one load per word, because the walk has just written the step with one store per word. A
    /// compiler would prefer wider loads. But a wide load directly after narrower stores stalls until the stores have
    /// left the processor's store buffer, which takes 5 ns per frame.
    #[inline(always)]
    pub(super) fn by_words(&self) -> Self {
        let read = |word: &u64| {
            // SAFETY: `word` is a reference, so reading through it is valid.
            unsafe { std::ptr::from_ref(word).read_volatile() }
        };
        Self { pc: read(&self.pc), sp: read(&self.sp), bp: read(&self.bp), rule: Rule(read(&self.rule.0)) }
    }
}

/// A set of frames at which a walk can end, because the rest of the stack, from there to the root, is known.
pub(super) trait JoinTarget {
    /// If `cursor` is at a frame of this set, returns the index of the frame. The walk calls this function for every
    /// frame, leaf first.
    fn reached(&mut self, cursor: &Cursor) -> Option<usize>;
}

/// The result of a walk, without its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkResult {
    /// Number of steps that the walk wrote.
    pub(super) count: usize,
    pub(super) end: WalkEnd,
    /// Whether at least one frame had no unwind information, so the walk guessed the caller of this frame.
    pub(super) is_guessed: bool,
    /// Whether the walk stayed on the thread's own stack, and all its steps followed compact rules. Only a walk with
    /// this flag may be stored in the last-stack cache.
    pub(super) is_plain: bool,
}

/// The present position of a walk: a frame of the stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// The key of the frame's rule (see `table`): the return address, or the address of the interrupted instruction
    /// plus one.
    lookup_pc: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// The field is 1 if a signal interrupted the frame's function, and 0 if that function made a call. The field is a
    /// full word because a byte would be slower. A byte would be stored alone but loaded together with its padding. A
    /// load that is wider than the preceding store stalls until the store has left the processor's store buffer, which
    /// takes at least 5 ns per frame.
    exact: u64,
}

impl Cursor {
    /// Creates a cursor at a frame whose instruction pointer is `pc`.
    pub(super) fn at(pc: u64, sp: u64, bp: u64, is_exact: bool) -> Self {
        let exact = u64::from(is_exact);
        Self { lookup_pc: pc.wrapping_add(exact), sp, bp, exact }
    }

    /// The return address into the frame, or the address of the interrupted instruction.
    #[inline(always)]
    pub(super) fn pc(&self) -> u64 {
        self.lookup_pc.wrapping_sub(self.exact)
    }

    /// Whether a signal interrupted the frame's function. If no signal interrupted the function, the function made a
    /// call.
    #[inline(always)]
    pub(super) fn is_exact(&self) -> bool {
        self.exact != 0
    }

    /// Reads from memory the code that now follows the frame's call instruction. Returns `None` if this code is not an
    /// epilogue.
    fn epilogue(&self) -> Option<Epilogue> {
        if self.is_exact() { None } else { Epilogue::after_call(self.lookup_pc) }
    }

    #[inline(always)]
    fn leaving_by(&self, rule: Rule) -> WalkStep {
        WalkStep { pc: self.pc(), sp: self.sp, bp: self.bp, rule: rule.at_exact(self.is_exact()) }
    }
}

/// The state in which a walk starts.
pub(super) trait WalkStart {
    /// Returns the position of the walk, which is the first frame.
    fn cursor(&self) -> Cursor;

    /// The known registers of the first frame.
    fn registers(&self) -> Registers;
}

impl WalkStart for StubRegisters {
    #[inline(always)]
    fn cursor(&self) -> Cursor {
        Cursor { lookup_pc: self.pc, sp: self.sp(), bp: self.rbp, exact: 0 }
    }

    fn registers(&self) -> Registers {
        Registers::from_entry(self)
    }
}

/// The result of a step: the caller at which the step arrived, or the reason why the walk ends.
pub(super) type StepResult = Result<Cursor, WalkEnd>;

/// The state of a walk, borrowed from the thread's engine.
pub(super) struct Walk<'a> {
    pub(super) state: LoaderState,
    pub(super) compiler: &'a mut Compiler,
    pub(super) steps: &'a mut [WalkStep; MAX_FRAMES],
    pub(super) is_guessed: bool,
    /// Cached paths of earlier walks of this thread. `None` if this walk must not use cached paths.
    pub(super) path_cache: Option<&'a PathCache>,
    /// Number of steps after which the walk found no cached path. `None` if the walk has always found a cached path.
    pub(super) lost_at: Option<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        state: LoaderState,
        compiler: &'a mut Compiler,
        steps: &'a mut [WalkStep; MAX_FRAMES],
        path_cache: Option<&'a PathCache>,
    ) -> Self {
        Self { state, compiler, steps, is_guessed: false, path_cache, lost_at: None }
    }
}

impl Walk<'_> {
    /// Walks the stack that starts at `entry`, to the root or to a frame that `join` knows. Reads the stack through
    /// `words`. Writes the steps to `steps`, leaf first.
    #[inline(always)]
    pub(super) fn run<W: Words>(
        &mut self,
        entry: &impl WalkStart,
        words: &mut W,
        join: &mut impl JoinTarget,
    ) -> WalkResult {
        let cursor = entry.cursor();
        if let Err(end) = words.begin(cursor.sp) {
            return self.result(0, end, false);
        }
        // Before preparing anything else, check whether the stack is the same as in the previous capture. In about
        // half of all captures, the stack is the same.
        if let Some(frame) = join.reached(&cursor) {
            return self.result(0, WalkEnd::Joined(frame), W::IS_OWN_STACK);
        }
        let mut follower = PathFollower::new(self.path_cache, self.state);
        let walked = self.run_along(&mut follower, entry, words, join);
        self.lost_at = follower.lost_at();
        walked
    }

    /// Walks the stack that starts at `entry`, after `run` has found that `join` does not know the first frame.
    #[inline(always)]
    fn run_along<W: Words>(
        &mut self,
        follower: &mut PathFollower<'_>,
        entry: &impl WalkStart,
        words: &mut W,
        join: &mut impl JoinTarget,
    ) -> WalkResult {
        let mut cursor = entry.cursor();
        let table = table::current(self.state);
        for count in 0..MAX_FRAMES {
            let cached = follower.rule((cursor.lookup_pc, cursor.sp), count);
            let rule = match cached.or_else(|| table?.get(cursor.lookup_pc, self.state)) {
                Some(rule) if rule.is_step() => rule,
                Some(rule) => self.refresh_rule(rule, cursor, follower),
                None => self.compile_off_path(follower, cursor),
            };
            self.steps[count] = cursor.leaving_by(rule);
            let left = if rule.is_step() {
                step(rule, cursor, words)
            } else {
                match rule.kind() {
                    RuleKind::Step => step(rule, cursor, words),
                    RuleKind::Realigned => realigned(rule, cursor, words),
                    RuleKind::Unknown => self.unknown(rule, cursor, words),
                    RuleKind::Signal => interrupted(cursor, words),
                    RuleKind::End => Err(WalkEnd::Bottom),
                    RuleKind::Slow => return self.run_slow(entry, words),
                }
            };
            match left {
                Ok(caller) => cursor = caller,
                Err(end) => return self.result(count + 1, end, W::IS_OWN_STACK),
            }
            if let Some(frame) = join.reached(&cursor) {
                return self.result(count + 1, WalkEnd::Joined(frame), W::IS_OWN_STACK);
            }
        }
        self.result(MAX_FRAMES, WalkEnd::TooDeep, W::IS_OWN_STACK)
    }

    pub(super) fn result(&self, count: usize, end: WalkEnd, is_plain: bool) -> WalkResult {
        WalkResult { count, end, is_guessed: self.is_guessed, is_plain }
    }

    /// Returns the rule for the frame at `cursor`. The rule is from the table or newly compiled.
    pub(super) fn rule(&mut self, cursor: Cursor) -> Rule {
        let cached = table::current(self.state).and_then(|table| table.get(cursor.lookup_pc, self.state));
        match cached {
            Some(rule) => self.refresh_rule(rule, cursor, &mut PathFollower::new(None, self.state)),
            None => self.compile(cursor),
        }
    }

    /// Compiles a rule like [`Walk::compile`], for a walk that uses `follower`. Also prevents this walk's path from
    /// being cached, because the path contains a new rule.
    #[cold]
    #[inline(never)]
    fn compile_off_path(&mut self, follower: &mut PathFollower<'_>, cursor: Cursor) -> Rule {
        follower.discard_path();
        self.compiler.checks.note_new_address();
        self.compile(cursor)
    }

    /// Compiles the rule for the frame at `cursor`, and stores the rule in the table for all threads.
    #[cold]
    #[inline(never)]
    fn compile(&mut self, cursor: Cursor) -> Rule {
        let address = cursor.lookup_pc.wrapping_sub(1);
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
        // If `epoch_of` returns no epoch, as may happen in a signal handler, the rule is not stored, and the next
        // capture compiles the rule again.
        let Some(epoch) = epoch else { return rule.in_epoch(ModuleEpoch::UNKNOWN) };
        let rule = rule.in_epoch(epoch);
        self.compiler.checks.reached_generated |= rule.may_be_replaced();
        table::insert(cursor.lookup_pc, rule, state);
        rule
    }

    /// Returns `rule` if it is still valid, otherwise compiles a new rule. A rule of the kind [`RuleKind::Unknown`] is
    /// invalid if generated code was replaced. An unknown rule is also invalid if an object was loaded after the rule
    /// was compiled, because the object may be at this address.
    #[inline]
    fn refresh_rule(&mut self, rule: Rule, cursor: Cursor, follower: &mut PathFollower<'_>) -> Rule {
        let is_old = rule.kind() == RuleKind::Unknown && rule.loads() != self.state.loads();
        if is_old || (rule.may_be_replaced() && self.is_replaced(rule, cursor)) {
            self.compile_off_path(follower, cursor)
        } else {
            rule
        }
    }

    /// Whether the code for which `rule` was compiled has been replaced. Returns false if the code was not checked.
    #[cold]
    #[inline(never)]
    fn is_replaced(&mut self, rule: Rule, cursor: Cursor) -> bool {
        if cursor.is_exact() || !self.compiler.checks.start_check() {
            return false;
        }
        let is_replaced = cursor.epilogue() != rule.epilogue();
        if is_replaced {
            self.compiler.checks.report_replacement();
        }
        is_replaced
    }

    /// Takes the step from a frame without unwind information to the frame's caller. Uses the epilogue if the rule
    /// contains one. If the rule contains no epilogue, and the value of rbp can be a frame pointer, uses rbp as the
    /// frame pointer.
    #[cold]
    #[inline(never)]
    pub(super) fn unknown(&mut self, rule: Rule, from: Cursor, words: &mut impl Words) -> StepResult {
        let (pc, sp, bp) = match rule.epilogue() {
            Some(epilogue) => by_epilogue(epilogue, from, words)?,
            None => by_frame_pointer(from.sp, from.bp, words)?,
        };
        self.is_guessed = true;
        caller_cursor(pc, sp, bp)
    }
}

/// Returns the caller's pc, sp and rbp according to the epilogue's instructions.
fn by_epilogue(
    Epilogue { words: popped, saved }: Epilogue,
    from: Cursor,
    words: &mut impl Words,
) -> Result<(u64, u64, u64), WalkEnd> {
    let cfa = from.sp.wrapping_add(8 * u64::from(popped));
    let found = words.saved_and_return(from.sp, cfa, 8 * u64::from(saved));
    let (bp, pc) = found.ok_or(WalkEnd::Lost)?;
    Ok((pc, cfa, if saved > 1 { bp } else { from.bp }))
}

/// Returns the caller's pc, sp and rbp, if `bp` can be the address of a saved frame pointer that has the return
/// address directly above it.
pub(super) fn by_frame_pointer(sp: u64, bp: u64, words: &mut impl Words) -> Result<(u64, u64, u64), WalkEnd> {
    if !bp.is_multiple_of(8) || bp < sp {
        return Err(WalkEnd::NoInformation);
    }
    // Read the upper word (the return address) first: if the upper word is readable, so is the lower word.
    let pc = words.word(sp, bp.wrapping_add(8)).ok_or(WalkEnd::NoInformation)?;
    let saved = words.word(sp, bp).ok_or(WalkEnd::Lost)?;
    Ok((pc, bp.wrapping_add(16), saved))
}

/// Takes a plain step, without a branch that depends on the rule. A branch on the rule would often be mispredicted,
/// because the next rule differs from stack to stack, and a misprediction costs more than the step.
#[inline(always)]
fn step(rule: Rule, from: Cursor, words: &mut impl Words) -> StepResult {
    let base = select_unpredictable(rule.is_bp_based(), from.bp, from.sp);
    let cfa = base.wrapping_add_signed(rule.offset());
    let (saved, pc) = words.saved_and_return(from.sp, cfa, rule.saved()).ok_or(WalkEnd::Lost)?;
    caller_cursor(pc, cfa, select_unpredictable(rule.restores_bp(), saved, from.bp))
}

#[inline(always)]
fn realigned(rule: Rule, from: Cursor, words: &mut impl Words) -> StepResult {
    let cfa = words.word(from.sp, from.bp.wrapping_add_signed(rule.offset())).ok_or(WalkEnd::Lost)?;
    if !words.can_be_caller_sp(from.sp, cfa) {
        return Err(WalkEnd::Lost);
    }
    let pc = words.word(from.sp, cfa.wrapping_sub(8)).ok_or(WalkEnd::Lost)?;
    caller_cursor(pc, cfa, words.word(from.sp, from.bp).ok_or(WalkEnd::Lost)?)
}

/// Continues the walk at the code that a signal interrupted, with the registers that the kernel saved. The interrupted
/// code may be on another stack.
#[cold]
#[inline(never)]
fn interrupted(from: Cursor, words: &mut impl Words) -> StepResult {
    let mut saved = |offset| words.word(from.sp, from.sp.wrapping_add(offset)).ok_or(WalkEnd::Lost);
    let (pc, sp, bp) = (saved(UCONTEXT_RIP)?, saved(UCONTEXT_RSP)?, saved(UCONTEXT_RBP)?);
    words.enter_interrupted(from.sp, sp)?;
    // After a call through a null function pointer, the interrupted instruction is at address 0. At address 0 the walk
    // ends, as libgcc's walk does.
    check_return_address(pc, sp)?;
    Ok(Cursor { lookup_pc: pc.wrapping_add(1), sp, bp, exact: 1 })
}

#[inline(always)]
fn caller_cursor(pc: u64, sp: u64, bp: u64) -> StepResult {
    check_return_address(pc, sp)?;
    Ok(Cursor { lookup_pc: pc, sp, bp, exact: 0 })
}

/// Checks whether the caller's `pc` can be the address of code. `sp` is the caller's stack pointer. A `pc` of 0 ends a
/// stack, and user space addresses end at 2^47. A walk looks up an address only if the address passes this check.
#[inline(always)]
pub(super) fn check_return_address(pc: u64, sp: u64) -> Result<(), WalkEnd> {
    if pc.wrapping_sub(1) >> 47 == 0 {
        return Ok(());
    }
    Err(if pc == 0 { WalkEnd::ZeroReturn(sp) } else { WalkEnd::Lost })
}
