//! Provides hash maps for keys that are ids of this crate, with a fast hash function.
//!
//! The hash need not resist attacks, because the process itself assigns the ids, which are small integers or addresses.
//! Each launch and activity is looked up in such maps once or twice, and SipHash would take more time than all other
//! processing of a row. The hash has no random seed, so maps with the same rows iterate in the same order in every run.
//!
//! In a measurement with 1,000 ids and addresses, a look-up took 2 ns with this hash, 2 ns with `foldhash`, 3 to 17 ns
//! with `fnv`, and 10 to 22 ns with SipHash. `foldhash` would be a new dependency that is no faster. `fnv` is already
//! in `libgpuflame.so`, because `gimli` uses it, but `fnv` is slower.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// A map keyed by an id of [`crate::record`], or by an address.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// A hasher that multiplies by 2^64 / golden ratio, and then XORs the high half into the low half. The multiplication
/// spreads consecutive and evenly spaced ids well, but mostly over the high bits. The XOR is needed because the map
/// takes the bucket from the low bits of the hash, and the tag from the high bits. So both the low and the high bits of
/// the hash must be well spread. The hasher can be inlined into other crates. Without inlining, calls of the hasher
/// would take 4 % of the time needed to read a trace with 900,000 kernels.
#[derive(Clone, Copy, Default)]
pub struct IdHasher(u64);

impl IdHasher {
    #[inline(always)]
    fn mix(&mut self, word: u64) {
        let product = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

impl Hasher for IdHasher {
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
        self.mix(u64::from(value));
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.mix(u64::from(value));
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
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

/// Returns the hash of a value, for hash tables that are not a `HashMap`.
#[inline]
pub fn hash_one(thing: &(impl Hash + ?Sized)) -> u64 {
    BuildHasherDefault::<IdHasher>::default().hash_one(thing)
}

/// Returns the heap size of a map in bytes. Each bucket of a map takes the size of an entry plus a tag byte.
pub fn map_bytes<K, V>(map: &IdMap<K, V>) -> usize {
    if map.capacity() == 0 {
        return 0;
    }
    // The hash table of the standard library is at most 7/8 full, and its size is a power of two.
    let buckets = (map.capacity() * 8 / 7).next_power_of_two();
    buckets * (size_of::<(K, V)>() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distinct_low_bits(ids: impl Iterator<Item = u32>) -> usize {
        let mut seen: Vec<u64> = ids.map(|id| hash_one(&super::super::CorrelationId(id)) & 0xffff).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }

    #[test]
    fn runs_and_strides_of_ids_spread_over_the_buckets() {
        for stride in [1, 2, 3, 256, 4096, 65536] {
            let distinct = distinct_low_bits((0..10_000).map(|i| i * stride));
            assert!(distinct > 8_000, "stride {stride}: {distinct} of 10000 buckets");
        }
    }

    #[test]
    fn the_hash_depends_on_both_fields_of_a_pair() {
        let hash = |pair: (u32, u32)| hash_one(&pair);
        assert_ne!(hash((1, 2)), hash((2, 1)));
        assert_ne!(hash((0, 1)), hash((0, 2)));
    }
    #[test]
    fn the_hash_depends_on_every_byte_and_on_the_length() {
        let all: [&[u8]; 7] = [
            b"",
            b"\0",
            b"kernel_a",
            b"kernel_b",
            b"kernel_a\0",
            b"kernel_a_with_a_longer_name",
            b"kernel_a_with_a_longer_namf",
        ];
        let mut hashes: Vec<u64> = all.iter().map(|name| hash_one(*name)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all.len());
    }
}
