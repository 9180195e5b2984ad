//! Detects whether a code object's path or name has changed, by comparing the string at the known address with its
//! earlier contents.

use super::MAX_TEXT_CHARS;
use crate::memory;
use crate::python::layout::{self, Layout};

/// The texts of the code objects that a thread's walks have reached. The path of each code object is stored. A name is
/// stored only if Python has no hash for the name and the fingerprint cannot contain the name. Many functions have the
/// same path, so each text is compared only once per walk.
#[repr(C)]
pub(in crate::python) struct CodeTexts {
    /// Number of walks so far.
    walk: u64,
    count: usize,
    /// For each pair of texts: the number (`walk`) of the last walk that found the pair unchanged.
    unchanged_in: [u64; MAX_PAIRS],
    /// Indices of the pairs that were compared in the last walk, without duplicates.
    in_walk: [u16; MAX_PAIRS],
    count_in_walk: usize,
    pairs: [TextPair; MAX_PAIRS],
}

/// A pair of texts: the addresses of a path and of a name (each may be null), and the hash of their contents.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct TextPair {
    path: u64,
    name: u64,
    hash: u64,
    /// Number of letters in `letters`, which is the length of the path. If `count` is 0, the letters are not stored,
    /// and the hash is compared instead.
    count: u64,
    letters: [u8; MAX_STORED_LETTERS],
}

/// Maximum length in bytes of a path whose letters are stored. Longer paths are compared by their hash, which takes
/// three times as long.
const MAX_STORED_LETTERS: usize = 224;

const MAX_PAIRS: usize = 2048;

impl CodeTexts {
    /// Starts a new walk. All texts must be compared again in the new walk, because each text may have changed.
    #[inline(always)]
    pub(in crate::python) fn forget(&mut self) {
        self.walk += 1;
        self.count_in_walk = 0;
    }

    /// Whether the table of text pairs is full.
    pub(in crate::python) fn are_full(&self) -> bool {
        self.count >= MAX_PAIRS
    }

    /// Removes all pairs. The indices of the pairs become invalid, so the caller must drop all data that contains such
    /// an index.
    pub(in crate::python) fn clear(&mut self) {
        (self.count, self.count_in_walk) = (0, 0);
    }

    /// Returns the index of this pair of texts, and stores the pair if it is new. Returns `None` if the table is full.
    ///
    /// # Safety
    /// Each text must be null or a readable string.
    pub(super) unsafe fn add(&mut self, path: u64, name: u64, layout: &Layout) -> Option<u16> {
        // SAFETY: the caller guarantees that each text is null or a readable string.
        let hash = unsafe { hash_pair(path, name, layout) };
        let is_same = |cached: &TextPair| (cached.path, cached.name, cached.hash) == (path, name, hash);
        if let Some(at) = self.pairs[..self.count].iter().position(is_same) {
            self.mark_unchanged(at);
            return Some(at as u16);
        }
        if self.are_full() {
            return None;
        }
        let pair = &mut self.pairs[self.count];
        (pair.path, pair.name, pair.hash, pair.count) = (path, name, hash, 0);
        if path != 0 && name == 0 {
            // SAFETY: the caller guarantees that the path is a readable string.
            unsafe { pair.store_letters(layout) };
        }
        self.count += 1;
        self.mark_unchanged(self.count - 1);
        Some(self.count as u16 - 1)
    }

    /// Records that this pair of texts is unchanged in this walk.
    fn mark_unchanged(&mut self, at: usize) {
        if self.unchanged_in[at] == self.walk {
            return;
        }
        self.unchanged_in[at] = self.walk;
        if let Some(slot) = self.in_walk.get_mut(self.count_in_walk) {
            *slot = at as u16;
            self.count_in_walk += 1;
        }
    }

    /// Returns the indices of all pairs that were compared in the last walk.
    pub(in crate::python) fn in_walk(&self) -> &[u16] {
        &self.in_walk[..self.count_in_walk.min(MAX_PAIRS)]
    }

    /// Whether all pairs of texts with these indices are unchanged.
    ///
    /// # Safety
    /// Each text must be a string, or at least readable memory.
    #[inline(always)]
    pub(in crate::python) unsafe fn are_as_cached(&self, numbers: &[u16], layout: &Layout) -> bool {
        // SAFETY: the caller guarantees that each text is readable.
        numbers.is_empty() || unsafe { self.have_same_letters(numbers, layout) }
    }

    /// Whether all texts that were compared in the last walk are unchanged.
    ///
    /// # Safety
    /// Each text must be a string, or at least readable memory.
    #[inline(always)]
    pub(in crate::python) unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        // SAFETY: the caller guarantees that each text is readable.
        unsafe { self.are_as_cached(self.in_walk(), layout) }
    }

    /// Does the same as [`CodeTexts::are_as_cached`], for at least one index. This function is not inlined, because
    /// usually `numbers` is empty, and an inlined copy would then take registers without need.
    ///
    /// # Safety
    /// The conditions of [`CodeTexts::are_as_cached`] apply.
    #[inline(never)]
    unsafe fn have_same_letters(&self, numbers: &[u16], layout: &Layout) -> bool {
        for at in numbers {
            // SAFETY: the caller guarantees that each text is readable.
            if !unsafe { self.pairs[usize::from(*at) % MAX_PAIRS].are_as_before(layout) } {
                return false;
            }
        }
        true
    }

    /// Whether the pair of texts with this index is unchanged. An unchanged pair is compared only once per walk.
    ///
    /// # Safety
    /// The index must be from [`CodeTexts::add`]; each text must be a string, or at least readable memory.
    #[inline(always)]
    pub(super) unsafe fn are_unchanged(&mut self, number: u16, layout: &Layout) -> bool {
        // SAFETY: the index `number` is less than the number of pairs, which is at most the array's length.
        let unchanged_in = unsafe { *self.unchanged_in.get_unchecked(usize::from(number)) };
        // SAFETY: the caller guarantees that the index is from [`CodeTexts::add`] and that each text is readable.
        unchanged_in == self.walk || unsafe { self.compare(number, layout) }
    }

    /// Compares a pair of texts with its stored contents. If the pair is unchanged, records that the pair need not be
    /// compared again in this walk.
    ///
    /// # Safety
    /// The conditions of [`CodeTexts::are_unchanged`] apply.
    #[inline(never)]
    unsafe fn compare(&mut self, number: u16, layout: &Layout) -> bool {
        let at = usize::from(number) % MAX_PAIRS;
        // SAFETY: the caller guarantees that each text is readable.
        let are_same = unsafe { self.pairs[at].are_as_before(layout) };
        if are_same {
            self.mark_unchanged(at);
        }
        are_same
    }
}

impl TextPair {
    /// Whether the contents of both texts of the pair are unchanged.
    ///
    /// # Safety
    /// Each text must be a string, or at least readable memory.
    #[inline(always)]
    unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        match self.count {
            // SAFETY: the caller guarantees that each text is readable.
            0 => unsafe { hash_pair(self.path, self.name, layout) == self.hash },
            // SAFETY: the caller guarantees that the path is readable.
            _ => unsafe { self.has_same_letters(layout) },
        }
    }

    /// Stores the letters of the path, if all letters are ASCII and their number is from 8 to `MAX_STORED_LETTERS`.
    ///
    /// # Safety
    /// The path must be a readable string.
    unsafe fn store_letters(&mut self, layout: &Layout) {
        // SAFETY: the caller guarantees that the path is a readable string.
        let word = |at: u64| unsafe { memory::word(self.path + at) };
        let (count, is_ascii) = (word(layout::LENGTH), word(layout::STATE) >> 6 & 1 != 0);
        if is_ascii && (8..=MAX_STORED_LETTERS as u64).contains(&count) {
            let from = (self.path + u64::from(layout.text.ascii)) as *const u8;
            // SAFETY: at this address, the string has `count` letters.
            unsafe { from.copy_to_nonoverlapping(self.letters.as_mut_ptr(), count as usize) };
            self.count = count;
        }
    }

    /// Whether the path has the stored letters.
    ///
    /// # Safety
    /// The path must be a string, or at least readable memory.
    #[inline(always)]
    unsafe fn has_same_letters(&self, layout: &Layout) -> bool {
        // SAFETY: the caller guarantees that the path is readable.
        if unsafe { memory::word(self.path + layout::LENGTH) } != self.count {
            return false;
        }
        // A non-ASCII string has a pointer at this offset, and the bytes of this pointer do not equal the stored
        // letters.
        let theirs = self.path + u64::from(layout.text.ascii);
        let ours = self.letters.as_ptr() as u64;
        // SAFETY: the caller guarantees that the path is readable. The path and our copy both have `count` letters,
        // and `count` is at least eight, because shorter paths are not copied.
        unsafe {
            match self.count {
                // Paths of 33 to 64 letters are the most common, so this code compares them without a loop.
                33..=64 => are_same::<32>(theirs, ours) && self.has_same_end(theirs, ours),
                _ => self.has_same_end(theirs, ours) && self.has_same_beginning(theirs, ours),
            }
        }
    }

    /// Whether all letters at both addresses are the same, except for the last 32 letters. Compares 32 letters at a
    /// time.
    ///
    /// # Safety
    /// `count` letters must be readable at both addresses.
    #[inline(always)]
    unsafe fn has_same_beginning(&self, theirs: u64, ours: u64) -> bool {
        let mut at = 32;
        while at < self.count {
            // SAFETY: the caller guarantees that `count` letters are readable at both addresses.
            if !unsafe { are_same::<32>(theirs + at - 32, ours + at - 32) } {
                return false;
            }
            at += 32;
        }
        true
    }

    /// Whether the last 32 letters at both addresses are the same. If the path has fewer than 32 letters, all letters
    /// are compared.
    ///
    /// # Safety
    /// `count` letters must be readable at both addresses, and `count` must be at least eight.
    #[inline(always)]
    unsafe fn has_same_end(&self, theirs: u64, ours: u64) -> bool {
        let (their_end, our_end) = (theirs + self.count, ours + self.count);
        // SAFETY: the caller guarantees that `count` letters, at least eight, are readable at both addresses.
        unsafe {
            match self.count {
                32.. => are_same::<32>(their_end - 32, our_end - 32),
                16.. => are_same::<16>(theirs, ours) && are_same::<16>(their_end - 16, our_end - 16),
                _ => are_same::<8>(theirs, ours) && are_same::<8>(their_end - 8, our_end - 8),
            }
        }
    }
}

/// Whether `BYTES` bytes are the same at both addresses.
///
/// # Safety
/// The bytes must be readable, and must not be written during the call.
#[inline(always)]
unsafe fn are_same<const BYTES: usize>(one: u64, other: u64) -> bool {
    // SAFETY: the caller guarantees that the bytes are readable and not written during the call.
    unsafe { *(one as *const [u8; BYTES]) == *(other as *const [u8; BYTES]) }
}

/// Computes the hash of the contents of a path and a name.
///
/// # Safety
/// Each text must be null, a string, or at least readable memory.
#[inline(never)]
unsafe fn hash_pair(path: u64, name: u64, layout: &Layout) -> u64 {
    // SAFETY: the caller guarantees that each text is null or readable.
    let of = |text: u64| unsafe { hash_letters(text, layout) };
    if name == 0 { of(path) } else { of(path).rotate_left(32) ^ of(name) }
}

/// Computes the hash of a string, over at most `MAX_TEXT_CHARS` letters. Each step hashes two words, and no step
/// depends on the result of another step.
///
/// # Safety
/// `text` must be null, or point to readable memory, which need not be a string.
#[inline(always)]
unsafe fn hash_letters(text: u64, layout: &Layout) -> u64 {
    if text == 0 {
        return 0;
    }
    // SAFETY: the caller guarantees that the text is readable. The whole word that contains the string's last letter is
    // readable, because a string ends with a zero byte and objects are aligned to eight bytes.
    let word = |at: u64| unsafe { memory::word(text + at) };
    let (length, state) = (word(layout::LENGTH).min(MAX_TEXT_CHARS as u64), word(layout::STATE) as u32);
    let (kind, is_ascii) = (u64::from(state >> 2 & 7), state >> 6 & 1 != 0);
    let start = u64::from(if is_ascii { layout.text.ascii } else { layout.text.wide });
    let end = start + length * kind;
    let about = (length << 3 | kind) ^ 0xd6e8_feb8_6659_fd93;
    if end < start + 16 {
        // Set the bytes past the end of the string to zero.
        let word = |at: u64| match end.saturating_sub(at) {
            bytes @ 0..8 => word(at) & ((1 << (8 * bytes)) - 1),
            _ => word(at),
        };
        return mix(word(start), word(start + 8), about);
    }
    let (mut at, mut salt) = (start, about);
    let mut hash = 0_u64;
    while at < end - 16 {
        hash = hash.wrapping_add(mix(word(at), word(at + 8), salt));
        salt = salt.wrapping_add(0xa076_1d64_78bd_642f);
        at += 16;
    }
    // Also hash the last two words, which may overlap the words that the loop has hashed.
    hash.wrapping_add(mix(word(end - 16), word(end - 8), salt))
}

/// Hashes two words with a salt that depends on the words' position in the string.
#[inline(always)]
fn mix(one: u64, other: u64, salt: u64) -> u64 {
    let product = u128::from(one ^ 0x9e37_79b9_7f4a_7c15) * u128::from(other ^ salt);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
impl CodeTexts {
    pub(super) fn for_test() -> Box<Self> {
        const NONE: TextPair =
            TextPair { path: 0, name: 0, hash: 0, count: 0, letters: [0; MAX_STORED_LETTERS] };
        let in_walk = [0; MAX_PAIRS];
        Box::new(CodeTexts {
            walk: 1,
            count: 0,
            unchanged_in: [0; MAX_PAIRS],
            in_walk,
            count_in_walk: 0,
            pairs: [NONE; MAX_PAIRS],
        })
    }
}
