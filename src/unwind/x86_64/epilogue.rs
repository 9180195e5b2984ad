//! Unwinds a frame of a function that has no unwind information and will return soon after the call that it made. The
//! instructions after the call (the epilogue) show where the caller's frame is.
//!
//! Code generated at run time often has neither unwind information nor a frame pointer. Some of this code, for example
//! CPython's trampolines for `perf` and thunks, consists of only a call and an epilogue. The code is read starting at
//! the return address, so exactly the instructions that will run next are read.

use super::super::memory::copy_mapped;

/// Effect of an epilogue on the frame. Both fields are distances in words of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epilogue {
    /// Distance from the frame's stack pointer up to the caller's stack pointer, in words of eight bytes.
    pub(super) words: u16,
    /// Distance of the saved rbp below the caller's stack pointer, in words of eight bytes; 1 if rbp was not saved.
    pub(super) saved: u16,
}

/// Maximum length of an epilogue in bytes: an instruction that releases stack space, pop instructions for six
/// registers, and a return.
const MAX_BYTES: usize = 24;

impl Epilogue {
    pub(super) const MAX_WORDS: u16 = (1 << 9) - 1;
    pub(super) const MAX_SAVED: u16 = (1 << 5) - 1;

    /// Reads the epilogue at the return address `pc`, if there is one.
    pub(super) fn after_call(pc: u64) -> Option<Self> {
        let mut code = [0; MAX_BYTES];
        // SAFETY: `code` is writable for its full length.
        let copied = unsafe { copy_mapped(pc, code.as_mut_ptr(), code.len()) };
        Self::read(&code[..copied])
    }

    fn read(mut code: &[u8]) -> Option<Self> {
        let (mut words, mut rbp) = (0_u32, None);
        loop {
            let (length, popped) = match *code {
                // The instruction `ret` or `rep ret`.
                [0xc3, ..] | [0xf3, 0xc3, ..] => break,
                // The instruction `add imm, %rsp`.
                [0x48, 0x83, 0xc4, bytes, ..] if bytes < 0x80 && bytes % 8 == 0 => (4, u32::from(bytes) / 8),
                [0x48, 0x81, 0xc4, a, b, 0, 0, ..] if a % 8 == 0 => {
                    (7, u32::from(u16::from_le_bytes([a, b])) / 8)
                }
                // A `pop` of any register except rsp.
                [0x5d, ..] => {
                    rbp = Some(words);
                    (1, 1)
                }
                [0x58..=0x5b | 0x5e | 0x5f, ..] => (1, 1),
                [0x41, 0x58..=0x5f, ..] => (2, 1),
                // The instruction `vzeroupper` or `xor %eax, %eax`.
                [0xc5, 0xf8, 0x77, ..] => (3, 0),
                [0x31 | 0x33, 0xc0, ..] => (2, 0),
                // A `mov` of a register to rax.
                [0x48, 0x89, to, ..] if to & 0b11_000_111 == 0b11_000_000 => (3, 0),
                [0x89, to, ..] if to & 0b11_000_111 == 0b11_000_000 => (2, 0),
                _ => return None,
            };
            code = &code[length..];
            words += popped;
        }
        // Also count the word that contains the return address.
        let words = words + 1;
        let saved = rbp.map_or(1, |at| words - at);
        let fits = words <= Self::MAX_WORDS.into() && saved <= Self::MAX_SAVED.into();
        fits.then_some(Self { words: words as u16, saved: saved as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: &[u8]) -> Option<(u16, u16)> {
        Epilogue::read(code).map(|Epilogue { words, saved }| (words, saved))
    }

    #[test]
    fn an_epilogues_pops_locate_the_return_address() {
        // The code is `add $8, %rsp; ret`, CPython's trampoline up to version 3.12.
        assert_eq!(read(&[0x48, 0x83, 0xc4, 8, 0xc3]), Some((2, 1)));
        // The code is `pop %rbp; ret`, CPython's trampoline of later versions.
        assert_eq!(read(&[0x5d, 0xc3, 0x90]), Some((2, 2)));
        // The code is `add $0x28, %rsp; pop %rbx; pop %rbp; pop %r12; ret`: rbp is stored below r12 and the return
        // address.
        assert_eq!(read(&[0x48, 0x83, 0xc4, 0x28, 0x5b, 0x5d, 0x41, 0x5c, 0xc3]), Some((9, 3)));
        // The code is `vzeroupper; mov %rbx, %rax; add $0x108, %rsp; ret`.
        assert_eq!(
            read(&[0xc5, 0xf8, 0x77, 0x48, 0x89, 0xd8, 0x48, 0x81, 0xc4, 8, 1, 0, 0, 0xc3]),
            Some((34, 1))
        );
        assert_eq!(read(&[0x31, 0xc0, 0xf3, 0xc3]), Some((1, 1)));
    }

    #[test]
    fn other_code_after_a_call_is_not_an_epilogue() {
        for code in [
            &[][..],
            &[0x48, 0x83, 0xc4],
            &[0x48, 0x83, 0xc4, 8],
            // The code is `pop %rsp; ret`.
            &[0x5c, 0xc3],
            // The code is `add $-8, %rsp; ret`.
            &[0x48, 0x83, 0xc4, 0xf8, 0xc3],
            // The code is `add $4, %rsp; ret`.
            &[0x48, 0x83, 0xc4, 4, 0xc3],
            // The code is `leave; ret`, which belongs to code with a frame pointer.
            &[0xc9, 0xc3],
            // The code is `mov %rax, %rsp; ret`.
            &[0x48, 0x89, 0xc4, 0xc3],
            // The code is `add $0x10008, %rsp; ret`, which belongs to a frame that is larger than the limit
            // (`MAX_WORDS`).
            &[0x48, 0x81, 0xc4, 8, 0, 1, 0, 0xc3],
            &[0x48, 0x81, 0xc4, 8, 0x40, 0, 0, 0xc3],
            // jmp
            &[0xeb, 0],
        ] {
            assert_eq!(read(code), None, "{code:x?}");
        }
    }

    #[test]
    fn unmapped_addresses_have_no_epilogue() {
        assert_eq!(Epilogue::after_call(8), None);
        assert_eq!(Epilogue::after_call(1 << 46), None);
    }
}
