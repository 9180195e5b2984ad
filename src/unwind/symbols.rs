//! Reads an object's exported symbols from the object's own tables.
//!
//! `dlsym` cannot be used, because it takes the loader's load lock. A thread may hold the load lock while it runs a
//! constructor that launches GPU work. Like all contents of an object, the tables are read only while the lock of
//! `dl_iterate_phdr` is held.

use super::loader::Object;

/// An exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportedSymbol {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl ExportedSymbol {
    /// Whether `address` is inside the symbol's address range.
    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.address) < self.bytes
    }
}

/// Tags of entries in the dynamic section of an ELF file.
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Size of a symbol table entry in bytes.
const SYMBOL_BYTES: usize = size_of::<libc::Elf64_Sym>();

/// The symbol tables of one object. Use these tables only while the loader's lock is held.
pub(super) struct Exports<'a> {
    object: &'a Object,
    strings: &'static [u8],
    symbols: &'static [u8],
    hashes: &'static [u8],
}

impl<'a> Exports<'a> {
    /// Finds the symbol tables of `object`. Returns `None` if the object exports nothing, or if its only hash table has
    /// the format that was usual before 2006 (instead of GNU's format).
    pub(super) fn read(object: &'a Object) -> Option<Self> {
        let dynamic = object.dynamic()?;
        let entry = |tag: u64| {
            let (entries, _) = dynamic.as_chunks::<16>();
            let halves = entries.iter().map(|entry| (read_u64(entry, 0), read_u64(entry, 8)));
            let found = halves.take_while(|(tag, _)| *tag != Some(0)).find(|(found, _)| *found == Some(tag));
            // For most objects, glibc has replaced the offset in this entry of the dynamic section by an address. The
            // loaders of other C libraries do not replace the offset.
            let at = found?.1?;
            object.rest_of_segment(if object.contains(at) { at } else { object.bias.wrapping_add(at) })
        };
        Some(Self {
            object,
            strings: entry(DT_STRTAB)?,
            symbols: entry(DT_SYMTAB)?,
            hashes: entry(DT_GNU_HASH)?,
        })
    }

    /// Looks up the symbol `name`. Ignores symbol versions.
    pub(super) fn find(&self, name: &str) -> Option<ExportedSymbol> {
        let hash = name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let word = |at: usize| read_u32(self.hashes, 4 * at);
        let [buckets, first, blooms, shift] = [word(0)?, word(1)?, word(2)?, word(3)?];
        let bloom = read_u64(self.hashes, 16 + 8 * (hash / 64).checked_rem(blooms)? as usize)?;
        let is_set = |bit: u32| bloom >> (bit % 64) & 1 != 0;
        if !is_set(hash) || !is_set(hash.checked_shr(shift)?) {
            return None;
        }
        let from = 4 + 2 * blooms as usize;
        let mut at = word(from + hash.checked_rem(buckets)? as usize)?;
        // An empty hash bucket contains 0. The last entry of a hash chain is odd.
        while at >= first {
            let link = word(from + buckets as usize + (at - first) as usize)?;
            if link | 1 == hash | 1
                && let Some(found) = self.symbol(at as usize, name)
            {
                return Some(found);
            }
            if link & 1 != 0 {
                return None;
            }
            at += 1;
        }
        None
    }

    /// Returns the symbol at the index `at`, if it has this name and is defined in this object.
    fn symbol(&self, at: usize, name: &str) -> Option<ExportedSymbol> {
        let symbol = self.symbols.get(at.checked_mul(SYMBOL_BYTES)?..)?.get(..SYMBOL_BYTES)?;
        let text = self.strings.get(read_u32(symbol, 0)? as usize..)?;
        let has_name = text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0));
        let is_defined = symbol[6] != 0 || symbol[7] != 0;
        let address = self.object.bias.wrapping_add(read_u64(symbol, 8)?);
        (has_name && is_defined).then_some(ExportedSymbol { address, bytes: read_u64(symbol, 16)? })
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::{self, Visit};

    fn found(name: &std::ffi::CStr) -> Vec<u64> {
        let mut found = Vec::new();
        loader::visit(|object| {
            let exports = Exports::read(object);
            found.extend(
                exports.and_then(|exports| exports.find(name.to_str().unwrap())).map(|it| it.address),
            );
            Visit::Next
        });
        found
    }

    #[test]
    fn libc_exports_are_found_at_the_loaders_addresses() {
        for name in [c"getpid", c"environ", c"pthread_self", c"strtoul", c"exit"] {
            // SAFETY: the name is a C string.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr() as u64;
            assert!(found(name).contains(&expected), "{name:?}");
        }
    }

    #[test]
    fn names_that_are_not_exported_are_not_found() {
        for name in [c"", c"getpi", c"getpidd", c"nobody_exports_this"] {
            assert_eq!(found(name), Vec::<u64>::new(), "{name:?}");
        }
    }
}
