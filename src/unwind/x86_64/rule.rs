//! A rule is a 64-bit word that describes how a walk gets from a frame to the frame's caller ("leaves the frame").
//!
//! ```text
//!  63  60 59          48 47   46   45           32 31                              0
//! +------+--------------+----+----+---------------+---------------------------------+
//! | kind | module epoch | EX | BP | k             | offset (signed)                 |
//! +------+--------------+----+----+---------------+---------------------------------+
//! ```
//!
//! A *step* rule (kind 0) covers nearly all code. The canonical frame address (CFA, the caller's stack pointer) is
//! `rsp + offset`, or `rbp + offset` if the bit BP is set. The return address is at `CFA - 8`. If k is greater than 1,
//! the frame saved rbp at `CFA - 8k`; if k is 1, it did not save rbp. Because k is at least 1, the word at `CFA - 8k`
//! is always readable, so the walk reads it without a branch. The other kinds of rules cover the remaining code. The
//! module epoch is the epoch of the object that contains the code. A [`Frame`] contains the epoch in the same bits. In
//! the table, the bit EX of a rule is never set. A walk sets EX in its own copy of the rule if the frame's function was
//! interrupted by a signal instead of making a call.

use super::epilogue::Epilogue;
use gpuflame_model::record::{Frame, ModuleEpoch};

/// A rule by which a walk leaves a frame. The module's documentation shows the layout of the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Rule(pub(super) u64);

const _: () = assert!(size_of::<Rule>() == 8, "a rule is stored and read by one instruction");

/// The kinds of rules. The highest bit is set in all kinds but the plain step. Therefore one branch on the highest bit
/// distinguishes the plain step from the other kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RuleKind {
    /// A plain step.
    Step = 0,
    /// The outermost frame, whose return address is undefined.
    End = 8,
    /// A frame that realigned its stack: CFA = `*(rbp + offset)`, and rbp was saved at `*rbp`.
    Realigned = 9,
    /// A signal trampoline: rsp points to a `ucontext_t` from the kernel, which contains the registers of the
    /// interrupted code at the offsets below.
    Signal = 10,
    /// A frame without unwind information. The offset field contains the number of objects that had been loaded when
    /// the search for unwind information failed. The rule contains this number because an object that is loaded later
    /// may provide the unwind information. If an epilogue follows the call, the field `k` describes how this epilogue
    /// leaves the frame (see `epilogue`).
    Unknown = 11,
    /// Any frame that the other kinds of rules cannot describe. At such a frame, the plain walk, which follows only
    /// rip, rsp and rbp, is abandoned. Instead, the slow walk, which follows all registers, starts again at the leaf.
    Slow = 12,
}

/// Offsets into the `ucontext_t` that the kernel leaves at the stack pointer of a signal trampoline: `uc_mcontext`
/// at 40, then the registers in the order of `<sys/ucontext.h>`.
pub(super) const UCONTEXT_RBP: u64 = 120;
pub(super) const UCONTEXT_RSP: u64 = 160;
pub(super) const UCONTEXT_RIP: u64 = 168;

const BP: u64 = 1 << 46;
const EXACT: u64 = 1 << 47;
const KIND_SHIFT: u32 = 60;
const EPOCH_SHIFT: u32 = 48;
const EPOCH: u64 = 0xfff;
const SAVED_SHIFT: u32 = 32;
const SAVED: u64 = 0x3fff;

impl Rule {
    /// Maximum value of the field `saved` of a step rule, in words. Because of this limit, rbp may be saved at most
    /// 128 KiB below the CFA.
    pub(super) const MAX_SAVED: u16 = SAVED as u16;

    /// Creates the rule of a step. The CFA is rsp + `offset`, or rbp + `offset` if `from_bp`. The caller's rbp was
    /// saved at CFA - 8 * `saved`; a `saved` of 1 means that rbp was not saved.
    pub(super) fn step(from_bp: bool, offset: i32, saved: u16) -> Self {
        debug_assert!(saved <= Self::MAX_SAVED);
        let base = if from_bp { BP } else { 0 };
        Self(base | u64::from(saved.max(1)) << SAVED_SHIFT | u64::from(offset as u32))
    }

    /// Returns this rule with the epoch of the code's object.
    pub(super) fn in_epoch(self, epoch: ModuleEpoch) -> Self {
        Self(self.0 & !(EPOCH << EPOCH_SHIFT) | (u64::from(epoch.0) & EPOCH) << EPOCH_SHIFT)
    }

    /// Returns the [`Frame`] for the address `pc` with the epoch of this rule. Like a step, this function has no
    /// branch. No branch is needed, because rules and frames have the epoch in the same bits, and the bit EX of the
    /// rule only has to be shifted.
    #[inline(always)]
    pub(super) fn frame(self, pc: u64) -> Frame {
        const EXACT_FRAME: u64 = Frame::native_exact(0, ModuleEpoch(0)).0;
        let exact = (self.0 & EXACT) << (EXACT_FRAME.trailing_zeros() - EXACT.trailing_zeros());
        Frame(pc & ((1 << EPOCH_SHIFT) - 1) | self.0 & (EPOCH << EPOCH_SHIFT) | exact)
    }

    /// Creates the rule of a realigned frame: CFA = `*(rbp + offset)`.
    pub(super) fn realigned(offset: i32) -> Self {
        Self((RuleKind::Realigned as u64) << KIND_SHIFT | u64::from(offset as u32))
    }

    /// Creates the rule for code without unwind information. `loads` is the number of objects loaded so far.
    pub(super) fn unknown(loads: u32) -> Self {
        Self((RuleKind::Unknown as u64) << KIND_SHIFT | u64::from(loads))
    }

    /// Creates the rule for code without unwind information in which this epilogue follows the call. See
    /// [`Rule::unknown`].
    pub(super) fn unknown_with(loads: u32, Epilogue { words, saved }: Epilogue) -> Self {
        const _: () =
            assert!(SAVED == (Epilogue::MAX_WORDS as u64 + 1) * (Epilogue::MAX_SAVED as u64 + 1) - 1);
        let parts = u64::from(words) * (u64::from(Epilogue::MAX_SAVED) + 1) + u64::from(saved);
        Self(Self::unknown(loads).0 | parts << SAVED_SHIFT)
    }

    /// Returns the epilogue that was passed to [`Rule::unknown_with`].
    pub(super) fn epilogue(self) -> Option<Epilogue> {
        let parts = (self.0 >> SAVED_SHIFT & SAVED) as u16;
        let places = Epilogue::MAX_SAVED + 1;
        (parts != 0).then_some(Epilogue { words: parts / places, saved: parts % places })
    }

    pub(super) const END: Self = Self((RuleKind::End as u64) << KIND_SHIFT);
    pub(super) const SIGNAL: Self = Self((RuleKind::Signal as u64) << KIND_SHIFT);
    pub(super) const SLOW: Self = Self((RuleKind::Slow as u64) << KIND_SHIFT);

    #[inline(always)]
    pub(super) fn is_step(self) -> bool {
        self.0 as i64 >= 0
    }

    /// Whether this is a plain step of a frame whose function made a call (and was not interrupted by a signal).
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (1 << 63 | EXACT) == 0
    }

    pub(super) fn kind(self) -> RuleKind {
        match self.0 >> KIND_SHIFT {
            0 => RuleKind::Step,
            8 => RuleKind::End,
            9 => RuleKind::Realigned,
            10 => RuleKind::Signal,
            11 => RuleKind::Unknown,
            _ => RuleKind::Slow,
        }
    }

    #[inline(always)]
    pub(super) fn is_bp_based(self) -> bool {
        self.0 & BP != 0
    }

    #[inline(always)]
    pub(super) fn offset(self) -> i64 {
        i64::from(self.0 as i32)
    }

    /// Distance in bytes of the saved rbp below the CFA. If rbp was not saved, the distance is 8, which is the distance
    /// of the return address below the CFA.
    #[inline(always)]
    pub(super) fn saved(self) -> u64 {
        (self.0 >> SAVED_SHIFT & SAVED) * 8
    }

    /// Whether the frame saved the caller's rbp. If the frame did not save rbp, the caller has the same rbp as the
    /// frame.
    #[inline(always)]
    pub(super) fn restores_bp(self) -> bool {
        self.saved() > 8
    }

    /// Whether the frame's rbp is needed to find the caller's frame.
    pub(super) fn reads_bp(self) -> bool {
        match self.kind() {
            RuleKind::Realigned => true,
            RuleKind::Unknown => self.epilogue().is_none(),
            _ => self.is_bp_based(),
        }
    }

    /// Returns the address of the word that contains the caller's rbp. The frame's rbp is `bp`, and the caller's stack
    /// pointer is `cfa`. Returns `None` if the frame did not save rbp; the caller's rbp then equals `bp`.
    pub(super) fn bp_slot(self, bp: u64, cfa: u64) -> Option<u64> {
        let below_cfa = |bytes: u64| (bytes > 8).then(|| cfa.wrapping_sub(bytes));
        match (self.kind(), self.epilogue()) {
            (RuleKind::Unknown, Some(epilogue)) => below_cfa(8 * u64::from(epilogue.saved)),
            (RuleKind::Unknown, None) | (RuleKind::Realigned, _) => Some(bp),
            _ => below_cfa(self.saved()),
        }
    }

    /// Whether the code of this frame may be replaced without loading or unloading an object. Replaceable code has no
    /// unwind information and is outside all objects, for example because the program generates it.
    pub(super) fn may_be_replaced(self) -> bool {
        let epoch = self.0 >> EPOCH_SHIFT & EPOCH;
        self.kind() == RuleKind::Unknown && epoch == u64::from(ModuleEpoch::OUTSIDE.0) & EPOCH
    }

    /// Returns this rule, with the bit EX set if `is_exact`. In that case, the frame's address is the address of an
    /// interrupted instruction and not a return address.
    pub(super) fn at_exact(self, is_exact: bool) -> Self {
        if is_exact { Self(self.0 | EXACT) } else { self }
    }

    /// Whether the frame's address is the address of an interrupted instruction, and not a return address.
    pub(super) fn is_exact(self) -> bool {
        self.0 & EXACT != 0
    }

    /// Number of objects that were loaded before this [`RuleKind::Unknown`] rule was created.
    pub(super) fn loads(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_keeps_its_parts() {
        let rule = Rule::step(true, -24, Rule::MAX_SAVED)
            .in_epoch(ModuleEpoch(0x123))
            .in_epoch(ModuleEpoch::UNKNOWN);
        assert!(rule.is_step() && rule.is_plain() && rule.is_bp_based());
        assert_eq!((rule.offset(), rule.saved(), rule.kind()), (-24, 16383 * 8, RuleKind::Step));
        let epoch = ModuleEpoch::UNKNOWN;
        assert_eq!(rule.frame(u64::MAX), Frame::native((1 << 48) - 1, epoch));
        assert_eq!(rule.at_exact(true).frame(0x4000), Frame::native_exact(0x4000, epoch));
        assert!(rule.at_exact(true).is_step() && !rule.at_exact(true).is_plain());
        assert_eq!(Rule::step(false, i32::MAX, 1).offset(), i64::from(i32::MAX));
        assert!(rule.restores_bp() && !Rule::step(false, 8, 1).restores_bp());
    }

    #[test]
    fn the_callers_rbp_is_read_where_the_rule_restores_it_from() {
        const BP: u64 = 0x7001;
        const CFA: u64 = 0x9000;
        let with = |words, saved| Rule::unknown_with(7, Epilogue { words, saved });
        for (rule, slot, reads_bp) in [
            // The code `add $8, %rsp; ret` leaves rbp unchanged.
            (with(2, 1), None, false),
            // The code is `pop %rbp; ret`, then `pop %rbp; pop %r12; ret`.
            (with(2, 2), Some(CFA - 16), false),
            (with(3, 3), Some(CFA - 24), false),
            // All rules below use a frame pointer, except for the last rule.
            (Rule::unknown(7), Some(BP), true),
            (Rule::realigned(-8), Some(BP), true),
            (Rule::step(true, 16, 2), Some(CFA - 16), true),
            (Rule::step(false, 16, 1), None, false),
        ] {
            assert_eq!((rule.bp_slot(BP, CFA), rule.reads_bp()), (slot, reads_bp), "{rule:?}");
        }
    }

    #[test]
    fn only_code_outside_objects_may_be_replaced() {
        let outside = |rule: Rule| rule.in_epoch(ModuleEpoch::OUTSIDE);
        assert!(outside(Rule::unknown(7)).may_be_replaced());
        assert!(outside(Rule::unknown_with(7, Epilogue { words: 2, saved: 1 })).may_be_replaced());
        assert!(!Rule::unknown(7).in_epoch(ModuleEpoch(7)).may_be_replaced());
        assert!(!outside(Rule::step(false, 16, 1)).may_be_replaced());
    }

    #[test]
    fn special_rules_are_not_steps() {
        let special = [Rule::END, Rule::SIGNAL, Rule::SLOW, Rule::unknown(u32::MAX), Rule::realigned(-8)];
        assert!(
            special.iter().all(|rule| !rule.is_step() && rule.in_epoch(ModuleEpoch(7)).kind() == rule.kind())
        );
        assert_eq!(Rule::realigned(-8).offset(), -8);
        assert_eq!((Rule::unknown(77).loads(), Rule::unknown(77).epilogue()), (77, None));
        for (words, saved) in [(1, 1), (2, 2), (Epilogue::MAX_WORDS, Epilogue::MAX_SAVED)] {
            let rule = Rule::unknown_with(u32::MAX, Epilogue { words, saved }).in_epoch(ModuleEpoch::OUTSIDE);
            assert_eq!((rule.kind(), rule.loads()), (RuleKind::Unknown, u32::MAX));
            assert_eq!(rule.epilogue(), Some(Epilogue { words, saved }));
        }
    }
}
