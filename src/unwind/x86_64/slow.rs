//! The slow walk follows all registers. The slow walk is used for stacks with a frame that no compact rule can
//! describe.
//!
//! Frames that no compact rule can describe are rare: they belong to at most 0.3 % of a library's code, and nearly all
//! of this code makes no call. One example is the dynamic loader's function for lazy binding, whose frame address is in
//! rbx. Another example is hand-written assembly that follows no calling convention. The slow walk starts again at the
//! stub, where all registers are known, and runs the unwind program of every frame.

use std::cell::RefCell;

use gimli::{CfaRule, RegisterRule, X86_64};

use super::compile_eh_frame::{UnwindRow, is_handwritten};
use super::registers::Registers;
use super::rule::Rule;
use super::walk::{Cursor, Walk, WalkResult, WalkStart, WalkStep, check_return_address};
use super::walk_end::WalkEnd;
use super::words::Words;
use crate::loader::Object;
use crate::loader_state::LoaderState;
use crate::{MAX_FRAMES, epochs, object_lookup, outside_pages};
use gpuflame_model::record::ModuleEpoch;

/// Result of leaving a frame in the slow walk.
enum Leaving {
    /// The caller's registers, and whether a signal interrupted the caller. If the flag is false, the caller was not
    /// interrupted but made a call.
    To(Registers, bool),
    End(WalkEnd),
    /// The frame cannot be left, because it has no unwind information.
    Unknown,
}

impl Walk<'_> {
    /// Walks the stack that starts at `entry`, following all registers. Overwrites the steps that the abandoned plain
    /// walk has stored.
    #[cold]
    #[inline(never)]
    pub(super) fn run_slow<W: Words>(&mut self, entry: &impl WalkStart, words: &mut W) -> WalkResult {
        let mut registers = entry.registers();
        let mut is_exact = entry.cursor().is_exact();
        if let Err(end) = words.begin(registers.sp()) {
            return self.result(0, end, false);
        }
        for count in 0..MAX_FRAMES {
            let (pc, sp, bp) = (registers.pc(), registers.sp(), registers.bp());
            let (leaving, epoch) = self.leave(&registers, is_exact, words);
            self.steps[count] = WalkStep { pc, sp, bp, rule: Rule::SLOW.at_exact(is_exact).in_epoch(epoch) };
            let leaving = match leaving {
                Leaving::Unknown => self.without_information(&registers, is_exact, words),
                leaving => leaving,
            };
            match leaving {
                Leaving::To(caller, was_interrupted) => (registers, is_exact) = (caller, was_interrupted),
                Leaving::End(end) => return self.result(count + 1, end, false),
                Leaving::Unknown => return self.result(count + 1, WalkEnd::NoInformation, false),
            }
            if is_exact && let Err(end) = words.enter_interrupted(sp, registers.sp()) {
                return self.result(count + 1, end, false);
            }
            if let Err(end) = check_return_address(registers.pc(), registers.sp()) {
                return self.result(count + 1, end, false);
            }
        }
        self.result(MAX_FRAMES, WalkEnd::TooDeep, false)
    }

    /// Computes the caller's registers from the registers of the frame. Also returns the epoch of the object that
    /// contains the frame's code.
    fn leave(
        &mut self,
        registers: &Registers,
        is_exact: bool,
        words: &mut impl Words,
    ) -> (Leaving, ModuleEpoch) {
        let address = registers.pc().wrapping_sub(u64::from(!is_exact));
        let compiler = &mut *self.compiler;
        let look = |object: &Object, state: LoaderState| {
            let leaving = match compiler.row(object, address) {
                Some(row) => leave_by(&row, registers, words),
                None if is_handwritten(object, registers.pc()) => Leaving::End(WalkEnd::Bottom),
                None => Leaving::Unknown,
            };
            (leaving, epochs::epoch_of(object, state).unwrap_or(ModuleEpoch::UNKNOWN))
        };
        match object_lookup::with_object_at(address, look) {
            Some((_, Some(found))) => found,
            Some((state, None)) => {
                outside_pages::note(address, state);
                (Leaving::Unknown, ModuleEpoch::OUTSIDE)
            }
            None => (Leaving::Unknown, ModuleEpoch::UNKNOWN),
        }
    }

    /// Computes the caller's registers for a frame without unwind information, in the same way as the plain walk.
    fn without_information(
        &mut self,
        registers: &Registers,
        is_exact: bool,
        words: &mut impl Words,
    ) -> Leaving {
        let cursor = Cursor::at(registers.pc(), registers.sp(), registers.bp(), is_exact);
        let rule = self.rule(cursor);
        let caller = match self.unknown(rule, cursor, words) {
            Ok(caller) => caller,
            Err(end) => return Leaving::End(end),
        };
        let mut leaving = *registers;
        leaving.set(X86_64::RBP, caller.bp);
        leaving.set(X86_64::RSP, caller.sp);
        leaving.set(X86_64::RA, caller.pc());
        Leaving::To(leaving, false)
    }
}

/// Computes the caller's registers according to one row of an unwind program. This function is not inlined into the
/// code that finds the row, so that the two functions do not need stack space at the same time.
#[inline(never)]
fn leave_by(row: &UnwindRow<'_>, registers: &Registers, words: &mut impl Words) -> Leaving {
    match row.row.register(X86_64::RA) {
        None | Some(RegisterRule::Undefined) => return Leaving::End(WalkEnd::Bottom),
        Some(_) => {}
    }
    let words = RefCell::new(words);
    let memory = |address| words.borrow_mut().word(registers.sp(), address);
    let Some(cfa) = cfa(row, registers, memory) else { return Leaving::End(WalkEnd::Lost) };
    let mut caller = *registers;
    caller.set(X86_64::RSP, cfa);
    for (register, rule) in row.row.registers() {
        let evaluate = |expression| row.evaluate(expression, Some(cfa), |r| registers.get(r), memory);
        let value = match rule {
            RegisterRule::Undefined | RegisterRule::SameValue => continue,
            RegisterRule::Offset(offset) => memory(cfa.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => registers.get(*other),
            RegisterRule::Expression(expression) => evaluate(expression).and_then(memory),
            RegisterRule::ValExpression(expression) => evaluate(expression),
            _ => None,
        };
        match value {
            Some(value) => caller.set(*register, value),
            None if *register == X86_64::RA || *register == X86_64::RSP => {
                return Leaving::End(WalkEnd::Lost);
            }
            None => caller.forget(*register),
        }
    }
    // Check that the caller's frame is above the called frame, because unwind information may be wrong. Only a signal
    // frame may have its caller on another stack.
    let is_above = row.is_signal || words.borrow_mut().can_be_caller_sp(registers.sp(), caller.sp());
    if is_above { Leaving::To(caller, row.is_signal) } else { Leaving::End(WalkEnd::Lost) }
}

fn cfa(row: &UnwindRow<'_>, registers: &Registers, memory: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    match row.row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            Some(registers.get(*register)?.wrapping_add_signed(*offset))
        }
        CfaRule::Expression(expression) => {
            row.evaluate(expression, None, |register| registers.get(register), memory)
        }
    }
}
