//! Hashes of names and of the fields of events. A trace has millions of them.
//!
//! The hash is that of `gpuflame_model::record::IdMap`, but it is compiled into this crate. Calls into the other crate, one for
//! each field, took 4 % of the time in which a trace with 900,000 kernels is read.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// A map with this hash.
pub(super) type FieldMap<K, V> = HashMap<K, V, BuildHasherDefault<FieldHasher>>;

/// Returns the hash of one value.
#[inline]
pub(super) fn hash_fields(thing: &(impl Hash + ?Sized)) -> u64 {
    BuildHasherDefault::<FieldHasher>::default().hash_one(thing)
}

/// Hasher that multiplies each word by 2^64 / golden ratio, and then XORs the high half into the low half.
#[derive(Clone, Copy, Default)]
pub(super) struct FieldHasher(u64);

impl FieldHasher {
    #[inline(always)]
    fn mix(&mut self, word: u64) {
        let product = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

impl Hasher for FieldHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    #[inline]
    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_every_byte_and_on_the_length() {
        let all: Vec<Vec<u8>> = vec![
            b"".to_vec(),
            b"\0".to_vec(),
            b"kernel_a".to_vec(),
            b"kernel_b".to_vec(),
            b"kernel_a\0".to_vec(),
            b"kernel_a_with_a_longer_name".to_vec(),
            b"kernel_a_with_a_longer_namf".to_vec(),
        ];
        let mut hashes: Vec<u64> = all.iter().map(|name| hash_fields(name.as_slice())).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all.len());
        assert_ne!(hash_fields(&(1_u32, 2_u32)), hash_fields(&(2_u32, 1_u32)));
    }
}
