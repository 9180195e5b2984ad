//! Computes bit masks that show the positions of quotes, backslashes and brackets in blocks of 64 bytes. A mask has one
//! bit for each byte of the block.
//!
//! The scanner is compiled for several instruction sets, and [`run`] selects the best of them at run time. So a
//! portable build is as fast as a build for one processor. Among the importers, only this file contains `unsafe` code.

#![allow(unsafe_code)]

/// Masks for a block of 64 bytes. The lowest bit of a mask represents the first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) quotes: u64,
    pub(super) backslashes: u64,
    /// Mask of the bytes that are `{` or `[`.
    pub(super) opens: u64,
    /// Mask of the bytes that are `}` or `]`.
    pub(super) closes: u64,
}

/// An instruction set of a processor.
pub(super) trait InstructionSet: Copy {
    /// Computes the masks for 64 bytes.
    fn block(bytes: &[u8; 64]) -> Block;

    /// Computes the masks of quotes and backslashes for the beginning of a string. The masks cover 32 bytes, because
    /// most strings are short.
    fn string(bytes: &[u8; 32]) -> (u32, u32);

    /// Computes the prefix xor of a mask: each bit is replaced by the xor of this bit and all lower bits. For the mask
    /// of quotes, the result is the mask of the bytes that are inside strings.
    #[inline(always)]
    fn prefix_xor(mut bits: u64) -> u64 {
        for shift in [1, 2, 4, 8, 16, 32] {
            bits ^= bits << shift;
        }
        bits
    }
}

/// A piece of code that can run with any instruction set. `run` and all functions that it calls with an
/// [`InstructionSet`] must be `#[inline(always)]`, because only inlined code is compiled for this instruction set.
pub(super) trait Job {
    type Out;
    fn run<L: InstructionSet>(self) -> Self::Out;
}

/// Runs `job` with the best instruction set that this processor supports.
pub(super) fn run<J: Job>(job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: `has_avx512` has just detected every processor feature for which the function is compiled.
            return unsafe { x86::run_avx512(job) };
        }
        if x86::has_avx2() {
            // SAFETY: `has_avx2` has just detected every processor feature for which the function is compiled.
            return unsafe { x86::run_avx2(job) };
        }
        job.run::<x86::Sse2>()
    }
    #[cfg(not(target_arch = "x86_64"))]
    job.run::<Portable>()
}

/// Runs `job` with each instruction set that this processor supports. Returns each result together with the name of the
/// instruction set.
#[cfg(test)]
pub(super) fn run_all<J: Job + Clone>(job: &J) -> Vec<(&'static str, J::Out)> {
    let mut all = vec![("portable", job.clone().run::<Portable>())];
    #[cfg(target_arch = "x86_64")]
    {
        all.push(("sse2", job.clone().run::<x86::Sse2>()));
        if x86::has_avx2() {
            // SAFETY: the processor has AVX2, as just checked.
            all.push(("avx2", unsafe { x86::run_avx2(job.clone()) }));
        }
        if x86::has_avx512() {
            // SAFETY: the processor has AVX-512, as just checked.
            all.push(("avx512", unsafe { x86::run_avx512(job.clone()) }));
        }
    }
    all
}

/// Implementation that processes one byte after another, for processors without a vector implementation in this file.
#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
pub(super) struct Portable;

impl InstructionSet for Portable {
    #[inline(always)]
    fn block(bytes: &[u8; 64]) -> Block {
        let mut block = Block::default();
        for (at, byte) in bytes.iter().enumerate() {
            // `[` and `{` differ only in bit 5, and so do `]` and `}`.
            let folded = byte | 0x20;
            block.quotes |= u64::from(*byte == b'"') << at;
            block.backslashes |= u64::from(*byte == b'\\') << at;
            block.opens |= u64::from(folded == b'{') << at;
            block.closes |= u64::from(folded == b'}') << at;
        }
        block
    }

    #[inline(always)]
    fn string(bytes: &[u8; 32]) -> (u32, u32) {
        let (mut quotes, mut backslashes) = (0, 0);
        for (at, byte) in bytes.iter().enumerate() {
            quotes |= u32::from(*byte == b'"') << at;
            backslashes |= u32::from(*byte == b'\\') << at;
        }
        (quotes, backslashes)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Sse2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, InstructionSet, Job};

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("pclmulqdq")
    }

    pub(super) fn has_avx512() -> bool {
        has_avx2() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt,pclmulqdq")]
    pub(super) fn run_avx2<J: Job>(job: J) -> J::Out {
        job.run::<Avx2>()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt,pclmulqdq")]
    pub(super) fn run_avx512<J: Job>(job: J) -> J::Out {
        job.run::<Avx512>()
    }

    /// Implementation with SSE2, which every x86-64 processor supports.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Sse2;

    impl InstructionSet for Sse2 {
        #[inline(always)]
        fn block(bytes: &[u8; 64]) -> Block {
            let mut block = Block::default();
            for (at, bytes) in bytes.as_chunks::<16>().0.iter().enumerate() {
                // SAFETY: every x86-64 processor has SSE2, and 16 bytes are read from an array of 16.
                let [quotes, backslashes, opens, closes] = unsafe {
                    let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
                    let folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
                    [(bytes, b'"'), (bytes, b'\\'), (folded, b'{'), (folded, b'}')].map(|(bytes, letter)| {
                        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(letter as i8))) as u64
                    })
                };
                block.quotes |= quotes << (16 * at);
                block.backslashes |= backslashes << (16 * at);
                block.opens |= opens << (16 * at);
                block.closes |= closes << (16 * at);
            }
            block
        }

        #[inline(always)]
        fn string(bytes: &[u8; 32]) -> (u32, u32) {
            let [low, high] = [&bytes[..16], &bytes[16..]].map(|bytes| {
                // SAFETY: every x86-64 processor has SSE2, and 16 bytes are read from a slice of 16.
                unsafe {
                    let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
                    let quotes = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8)));
                    let backslashes = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8)));
                    (quotes as u32, backslashes as u32)
                }
            });
            (low.0 | high.0 << 16, low.1 | high.1 << 16)
        }
    }

    /// Implementation with AVX2. This type is used only inside [`run_avx2`].
    #[derive(Clone, Copy)]
    pub(super) struct Avx2;

    impl InstructionSet for Avx2 {
        #[inline(always)]
        fn block(bytes: &[u8; 64]) -> Block {
            let mut block = Block::default();
            for (at, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
                // SAFETY: this type is used only inside `run_avx2`; 32 bytes are read from an array of 32.
                let [quotes, backslashes, opens, closes] = unsafe {
                    let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
                    let folded = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
                    let quotes = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'"' as i8));
                    let backslashes = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'\\' as i8));
                    let opens = _mm256_cmpeq_epi8(folded, _mm256_set1_epi8(b'{' as i8));
                    let closes = _mm256_cmpeq_epi8(folded, _mm256_set1_epi8(b'}' as i8));
                    [
                        u64::from(_mm256_movemask_epi8(quotes) as u32),
                        u64::from(_mm256_movemask_epi8(backslashes) as u32),
                        u64::from(_mm256_movemask_epi8(opens) as u32),
                        u64::from(_mm256_movemask_epi8(closes) as u32),
                    ]
                };
                block.quotes |= quotes << (32 * at);
                block.backslashes |= backslashes << (32 * at);
                block.opens |= opens << (32 * at);
                block.closes |= closes << (32 * at);
            }
            block
        }

        #[inline(always)]
        fn string(bytes: &[u8; 32]) -> (u32, u32) {
            // SAFETY: this type is used only inside `run_avx2`; 32 bytes are read from an array of 32.
            unsafe {
                let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
                let quotes = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'"' as i8));
                let backslashes = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'\\' as i8));
                (_mm256_movemask_epi8(quotes) as u32, _mm256_movemask_epi8(backslashes) as u32)
            }
        }

        #[inline(always)]
        fn prefix_xor(bits: u64) -> u64 {
            // SAFETY: this type is used only inside `run_avx2`, which also requires PCLMULQDQ.
            unsafe {
                let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, bits as i64), _mm_set1_epi8(-1));
                _mm_cvtsi128_si64(product) as u64
            }
        }
    }

    /// Implementation with AVX-512. This type is used only inside [`run_avx512`].
    #[derive(Clone, Copy)]
    pub(super) struct Avx512;

    impl InstructionSet for Avx512 {
        #[inline(always)]
        fn block(bytes: &[u8; 64]) -> Block {
            // SAFETY: this type is used only inside `run_avx512`; 64 bytes are read from an array of 64.
            unsafe {
                let bytes = _mm512_loadu_si512(bytes.as_ptr().cast());
                let folded = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
                Block {
                    quotes: _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'"' as i8)),
                    backslashes: _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'\\' as i8)),
                    opens: _mm512_cmpeq_epi8_mask(folded, _mm512_set1_epi8(b'{' as i8)),
                    closes: _mm512_cmpeq_epi8_mask(folded, _mm512_set1_epi8(b'}' as i8)),
                }
            }
        }

        #[inline(always)]
        fn string(bytes: &[u8; 32]) -> (u32, u32) {
            Avx2::string(bytes)
        }

        #[inline(always)]
        fn prefix_xor(bits: u64) -> u64 {
            Avx2::prefix_xor(bits)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct All<'a>(&'a [u8; 64]);

    impl Job for All<'_> {
        type Out = (Block, (u32, u32), u64);
        #[inline(always)]
        fn run<L: InstructionSet>(self) -> Self::Out {
            let block = L::block(self.0);
            (block, L::string(self.0.first_chunk().unwrap()), L::prefix_xor(block.quotes))
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_masks() {
        let mut state = 1_u32;
        for round in 0..2000 {
            let bytes: [u8; 64] = std::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if round % 2 == 0 { br#""\{}[]a,"#[(state >> 29) as usize] } else { (state >> 24) as u8 }
            });
            let all = run_all(&All(&bytes));
            let bit = |letters: &[u8]| {
                (0..64).filter(|&at| letters.contains(&bytes[at])).fold(0, |bits, at| bits | 1_u64 << at)
            };
            let block =
                Block { quotes: bit(b"\""), backslashes: bit(b"\\"), opens: bit(b"{["), closes: bit(b"}]") };
            for (name, (masks, (quotes, backslashes), inside)) in all {
                assert_eq!(masks, block, "{name}: {bytes:?}");
                assert_eq!((quotes, backslashes), (block.quotes as u32, block.backslashes as u32), "{name}");
                let count = |at: u32| (block.quotes & (u64::MAX >> (63 - at))).count_ones() % 2;
                let expected = (0..64).fold(0, |bits, at| bits | u64::from(count(at)) << at);
                assert_eq!(inside, expected, "{name}");
            }
        }
    }
}
