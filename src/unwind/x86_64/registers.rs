//! Stores all registers of a frame, for the slow walk.

use gimli::{Register, X86_64};

use super::stub::StubRegisters;

/// The registers of a frame: rax to r15 in DWARF's order, then the instruction pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    values: [u64; 17],
    /// Bit mask of the known registers: bit n is set if the value of register n is known.
    valid: u32,
}

impl Registers {
    /// Stores values for all registers, in DWARF order.
    pub(super) fn all(values: [u64; 17]) -> Self {
        Self { values, valid: (1 << 17) - 1 }
    }

    pub(super) fn from_entry(entry: &StubRegisters) -> Self {
        let mut registers = Self { values: [0; 17], valid: 0 };
        for (register, value) in [
            (X86_64::RBX, entry.rbx),
            (X86_64::RBP, entry.rbp),
            (X86_64::RSP, entry.sp()),
            (X86_64::R12, entry.r12),
            (X86_64::R13, entry.r13),
            (X86_64::R14, entry.r14),
            (X86_64::R15, entry.r15),
            (X86_64::RA, entry.pc),
        ] {
            registers.set(register, value);
        }
        registers
    }

    pub(super) fn get(&self, register: Register) -> Option<u64> {
        let value = self.values.get(usize::from(register.0))?;
        (self.valid & (1 << register.0) != 0).then_some(*value)
    }

    pub(super) fn set(&mut self, register: Register, value: u64) {
        if let Some(slot) = self.values.get_mut(usize::from(register.0)) {
            *slot = value;
            self.valid |= 1 << register.0;
        }
    }

    pub(super) fn forget(&mut self, register: Register) {
        self.valid &= !(1u32.checked_shl(u32::from(register.0)).unwrap_or(0));
    }

    pub(super) fn pc(&self) -> u64 {
        self.values[usize::from(X86_64::RA.0)]
    }

    pub(super) fn sp(&self) -> u64 {
        self.values[usize::from(X86_64::RSP.0)]
    }

    pub(super) fn bp(&self) -> u64 {
        self.values[usize::from(X86_64::RBP.0)]
    }
}
