//! Compiles the unwind programs in `.eh_frame` to compact rules. A few frames cannot be described by a compact rule.
//! For such frames, `slow` runs the unwind program at each walk.
//!
//! All storage has a fixed size, because rules are compiled inside the host program, possibly inside its allocator.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, Evaluation, EvaluationResult,
    EvaluationStorage, Expression, FrameDescriptionEntry, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, Value, X86_64,
};

use super::generated::Checks;
use super::rule::{Rule, UCONTEXT_RBP, UCONTEXT_RIP, UCONTEXT_RSP};
use crate::loader::Object;

type Bytes = EndianSlice<'static, LittleEndian>;

/// Storage for running one unwind program. The storage has room for the rules of 18 registers (a frame that the kernel
/// pushes has rules for 17 registers), and for 6 rows that the program may save with `DW_CFA_remember_state`. The
/// storage is small because rows are copied on the launching thread's stack, and that stack may be small.
pub(super) struct UnwindStorage;

impl UnwindContextStorage<usize> for UnwindStorage {
    type Rules = [(Register, RegisterRule<usize>); 18];
    type Stack = [UnwindTableRow<usize, Self>; 6];
}

impl EvaluationStorage<Bytes> for UnwindStorage {
    type Stack = [Value; 16];
    type ExpressionStack = [(Bytes, Bytes); 1];
    type Result = [gimli::Piece<Bytes>; 1];
}

/// Maximum number of operations per expression. Only an expression with an endless loop reaches this limit: no real
/// unwind expression has as many operations.
const MAX_OPERATIONS: u32 = 256;

/// The unwind information of one frame: the row of its unwind program that applies to the requested address, and the
/// data needed to evaluate the row's expressions.
pub(super) struct UnwindRow<'a> {
    section: EhFrame<Bytes>,
    encoding: gimli::Encoding,
    pub(super) row: &'a UnwindTableRow<usize, UnwindStorage>,
    /// Whether this frame is a signal trampoline. The caller of a signal trampoline did not make a call, but was
    /// interrupted by a signal.
    pub(super) is_signal: bool,
}

/// Runs unwind programs and compiles them to rules. Each thread has its own compiler, which contains all storage that
/// it needs.
pub(super) struct Compiler {
    context: UnwindContext<usize, UnwindStorage>,
    /// The unwind program that is being run. The unwind program is stored here to save stack space.
    found: Option<FoundFde>,
    /// State of the checks with which the present walk detects outdated rules of generated code.
    pub(super) checks: Checks,
}

impl Compiler {
    pub(super) fn new() -> Self {
        Self { context: UnwindContext::new_in(), found: None, checks: Checks::default() }
    }

    /// Returns the unwind information for `address`, or `None` if `object` has no unwind information for this address.
    pub(super) fn row(&mut self, object: &Object, address: u64) -> Option<UnwindRow<'_>> {
        store_fde(object, address, &mut self.found);
        self.run(address)
    }

    /// Runs the unwind program in `found` up to `address`. This function and `store_fde`, which finds the unwind
    /// program, each need 1 KiB of stack space, and the stack may be small. The two functions are not inlined, so that
    /// they do not need this space at the same time.
    #[inline(never)]
    fn run(&mut self, address: u64) -> Option<UnwindRow<'_>> {
        let (section, bases, fde) = self.found.as_ref()?;
        if fde.cie().return_address_register() != X86_64::RA {
            return None;
        }
        let row = fde.unwind_info_for_address(section, bases, &mut self.context, address).ok()?;
        let encoding = fde.cie().encoding();
        Some(UnwindRow { section: *section, encoding, row, is_signal: fde.is_signal_trampoline() })
    }

    /// Compiles the rule for a frame whose code is in `object` and whose instruction pointer is `pc`. The argument
    /// `address` is the address to look up: `pc - 1` if `pc` is a return address, otherwise `pc`.
    #[inline(never)]
    pub(super) fn rule(&mut self, object: &Object, address: u64, pc: u64) -> Option<Rule> {
        match self.row(object, address) {
            Some(row) => Some(row.rule(pc, pc == address)),
            None => is_handwritten(object, pc).then_some(Rule::END),
        }
    }
}

/// Whether `pc` is the first byte of a function. Call this function for a return address if the preceding call
/// instruction would be in code without unwind information. No call instruction pushes the address of a function's
/// first byte. Therefore, if `pc` is the first byte of a function, the frame is the outermost frame of a stack that
/// `makecontext` or similar code has set up.
#[inline(never)]
pub(super) fn is_handwritten(object: &Object, pc: u64) -> bool {
    find_fde(object, pc).is_some_and(|(_, _, fde)| fde.initial_address() == pc)
}

/// Address range of the function that contains `address`. If the function is split into parts, returns the range of
/// the part that contains `address`.
pub(super) fn function(object: &Object, address: u64) -> Option<Range<u64>> {
    let (_, _, fde) = find_fde(object, address)?;
    Some(fde.initial_address()..fde.initial_address().checked_add(fde.len())?)
}

type Fde = FrameDescriptionEntry<Bytes>;

/// A function's entry in `.eh_frame` (its FDE), the section that contains this entry, and the section's base
/// addresses.
type FoundFde = (EhFrame<Bytes>, BaseAddresses, Fde);

/// Stores the result of [`find_fde`] in `found`.
#[inline(never)]
fn store_fde(object: &Object, address: u64, found: &mut Option<FoundFde>) {
    *found = find_fde(object, address);
}

/// Finds the FDE of the function that contains `address`.
fn find_fde(object: &Object, address: u64) -> Option<FoundFde> {
    let header = object.eh_frame_hdr()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.as_ptr() as u64);
    let parsed = EhFrameHdr::new(header, LittleEndian).parse(&bases, 8).ok()?;
    let start = parsed.eh_frame_ptr().direct().ok()?;
    let bases = bases.set_eh_frame(start);
    let section = EhFrame::new(object.rest_of_segment(start)?, LittleEndian);
    let fde = match parsed.table() {
        Some(table) => {
            let entry = table.lookup(address, &bases).ok()?.direct().ok()?;
            let offset = usize::try_from(entry.checked_sub(start)?).ok()?;
            let fde = section.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
            fde.contains(address).then_some(fde)?
        }
        None => find_fde_by_scan(&section, &bases, address)?,
    };
    Some((section, bases, fde))
}

/// Finds a function's FDE by reading the whole `.eh_frame` section. This slow search is needed for objects that have no
/// binary search table.
#[cold]
#[inline(never)]
fn find_fde_by_scan(section: &EhFrame<Bytes>, bases: &BaseAddresses, address: u64) -> Option<Fde> {
    section.fde_for_address(bases, address, EhFrame::cie_from_offset).ok()
}

impl UnwindRow<'_> {
    /// Converts this row to a rule. This function is not inlined into the code that runs the unwind program, so that
    /// the two functions do not need stack space at the same time.
    #[inline(never)]
    fn rule(&self, pc: u64, is_exact: bool) -> Rule {
        if self.is_signal {
            return if self.is_kernel_frame() { Rule::SIGNAL } else { Rule::SLOW };
        }
        match self.row.register(X86_64::RA) {
            Some(RegisterRule::Offset(-8)) => {}
            None | Some(RegisterRule::Undefined) => return Rule::END,
            Some(_) => return Rule::SLOW,
        }
        if self.row.register(X86_64::RSP).is_some() {
            return Rule::SLOW;
        }
        self.step(pc, is_exact).or_else(|| self.realigned()).unwrap_or(Rule::SLOW)
    }

    /// Converts this row to the rule of a plain step. Returns `None` if a plain step cannot express the whole row.
    fn step(&self, pc: u64, is_exact: bool) -> Option<Rule> {
        let (from_bp, offset) = match self.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } if *register == X86_64::RSP => (false, *offset),
            CfaRule::RegisterAndOffset { register, offset } if *register == X86_64::RBP => (true, *offset),
            CfaRule::RegisterAndOffset { .. } => return None,
            // In PLT code, the linker describes the CFA by an expression, whose result for a given pc is always `rsp +
            // n` with the same `n`.
            CfaRule::Expression(_) if !is_exact => return None,
            CfaRule::Expression(expression) => (false, self.constant_above_rsp(expression, pc)?),
        };
        let saved = match self.row.register(X86_64::RBP) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => 1,
            Some(RegisterRule::Offset(below)) if below < -8 && below % 8 == 0 => {
                u16::try_from(-below / 8).ok().filter(|saved| *saved <= Rule::MAX_SAVED)?
            }
            Some(_) => return None,
        };
        Some(Rule::step(from_bp, i32::try_from(offset).ok()?, saved))
    }

    /// The rule for a function that realigned its stack and stored its CFA in memory: CFA = `*(rbp + n)`, with rbp
    /// saved at `*rbp`. Functions with a realigned stack are 5 to 11 % of the code of the large GPU libraries.
    fn realigned(&self) -> Option<Rule> {
        let CfaRule::Expression(cfa) = self.row.cfa() else { return None };
        let offset = self.offset_then_deref(cfa, X86_64::RBP)?;
        let Some(RegisterRule::Expression(saved)) = self.row.register(X86_64::RBP) else { return None };
        (self.offset_only(&saved, X86_64::RBP)? == 0).then(|| Rule::realigned(offset))
    }

    /// Whether this row describes the frame that the Linux kernel pushes for a signal, with all registers at their
    /// usual offsets in `sigcontext`.
    fn is_kernel_frame(&self) -> bool {
        let at = |register, offset| match self.row.register(register) {
            Some(RegisterRule::Expression(saved)) => {
                self.offset_only(&saved, X86_64::RSP) == Some(offset as i32)
            }
            _ => false,
        };
        let CfaRule::Expression(cfa) = self.row.cfa() else { return false };
        self.offset_then_deref(cfa, X86_64::RSP) == Some(UCONTEXT_RSP as i32)
            && at(X86_64::RA, UCONTEXT_RIP)
            && at(X86_64::RBP, UCONTEXT_RBP)
    }

    /// Returns `n` if the expression is exactly `register + n`.
    fn offset_only(&self, expression: &UnwindExpression<usize>, register: Register) -> Option<i32> {
        let mut operations = self.bytes(expression)?.operations(self.encoding);
        let first = operations.next().ok()??;
        let end = operations.next().ok()?;
        (end.is_none()).then(|| register_offset(&first, register))?
    }

    /// Returns `n` if the expression is exactly `*(register + n)`.
    fn offset_then_deref(&self, expression: &UnwindExpression<usize>, register: Register) -> Option<i32> {
        let mut operations = self.bytes(expression)?.operations(self.encoding);
        let first = operations.next().ok()??;
        let gimli::Operation::Deref { size: 8, space: false, .. } = operations.next().ok()?? else {
            return None;
        };
        let end = operations.next().ok()?;
        (end.is_none()).then(|| register_offset(&first, register))?
    }

    /// Returns `n` if the expression evaluates to `rsp + n` at this `pc`, tested with two different values of rsp.
    fn constant_above_rsp(&self, expression: &UnwindExpression<usize>, pc: u64) -> Option<i64> {
        let at = |rsp: u64| {
            let registers = |register| match register {
                X86_64::RSP => Some(rsp),
                X86_64::RA => Some(pc),
                _ => None,
            };
            self.evaluate(expression, None, registers, |_| None).map(|value| value.wrapping_sub(rsp) as i64)
        };
        let offset = at(0x7000_0000_0000)?;
        (at(0x1230) == Some(offset)).then_some(offset)
    }

    /// Evaluates an expression, which may read registers and memory, and returns its value.
    pub(super) fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        initial: Option<u64>,
        registers: impl Fn(Register) -> Option<u64>,
        memory: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let bytes = self.bytes(expression)?.0;
        let mut evaluation = Evaluation::<Bytes, UnwindStorage>::new_in(bytes, self.encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut state = evaluation.evaluate().ok()?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(registers(register)?)).ok()?
                }
                EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                    evaluation.resume_with_memory(Value::Generic(memory(address)?)).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.as_result() {
            [gimli::Piece { location: gimli::Location::Address { address }, .. }] => Some(*address),
            _ => None,
        }
    }

    fn bytes(&self, expression: &UnwindExpression<usize>) -> Option<Expression<Bytes>> {
        expression.get(&self.section).ok()
    }
}

fn register_offset(operation: &gimli::Operation<Bytes>, wanted: Register) -> Option<i32> {
    match operation {
        gimli::Operation::RegisterOffset { register, offset, .. } if *register == wanted => {
            i32::try_from(*offset).ok()
        }
        _ => None,
    }
}
