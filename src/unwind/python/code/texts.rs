//! Paths, and names without a cached hash: detects whether their contents have changed.

use super::LONGEST_TEXT;
use crate::unwind::memory;
use crate::unwind::python::layout::{self, Layout};

/// Texts that are compared at most once per walk: paths, which many functions share, and names that Python has not
/// hashed.
#[repr(C)]
pub(in crate::unwind::python) struct Texts {
    /// Number of walks so far.
    walk: u64,
    count: usize,
    /// For each pair, the last walk in which it was found unchanged.
    seen: [u64; MOST_TEXTS],
    /// The pairs compared in the last walk, each once.
    of_walk: [u16; MOST_TEXTS],
    count_of_walk: usize,
    all: [Pair; MOST_TEXTS],
}

/// Addresses of a path and a name, either of which may be null, and their contents.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Pair {
    path: u64,
    name: u64,
    marks: u64,
    /// Number of stored letters of the path; 0 if the hash must be compared instead.
    count: u64,
    letters: [u8; MOST_LETTERS],
}

/// Longer paths are compared by their hash, at three times the cost.
const MOST_LETTERS: usize = 224;

const MOST_TEXTS: usize = 2048;

impl Texts {
    /// Starts a new walk: the texts may have changed.
    #[inline(always)]
    pub(in crate::unwind::python) fn forget(&mut self) {
        self.walk += 1;
        self.count_of_walk = 0;
    }

    /// Whether there is no room for another pair.
    pub(in crate::unwind::python) fn are_full(&self) -> bool {
        self.count >= MOST_TEXTS
    }

    /// Removes all pairs. Callers that hold numbers of pairs must drop them.
    pub(in crate::unwind::python) fn clear(&mut self) {
        (self.count, self.count_of_walk) = (0, 0);
    }

    /// Returns the number of this pair of texts. `None` if there are too many.
    ///
    /// # Safety
    /// Each must be null or a readable string.
    pub(super) unsafe fn enter(&mut self, path: u64, name: u64, layout: &Layout) -> Option<u16> {
        // SAFETY: guaranteed by the caller.
        let marks = unsafe { marks_of_both(path, name, layout) };
        let is_same = |known: &Pair| (known.path, known.name, known.marks) == (path, name, marks);
        if let Some(at) = self.all[..self.count].iter().position(is_same) {
            self.see(at);
            return Some(at as u16);
        }
        if self.are_full() {
            return None;
        }
        let pair = &mut self.all[self.count];
        (pair.path, pair.name, pair.marks, pair.count) = (path, name, marks, 0);
        if path != 0 && name == 0 {
            // SAFETY: guaranteed by the caller.
            unsafe { pair.keep_letters(layout) };
        }
        self.count += 1;
        self.see(self.count - 1);
        Some(self.count as u16 - 1)
    }

    /// Records that this pair is unchanged in this walk.
    fn see(&mut self, at: usize) {
        if self.seen[at] == self.walk {
            return;
        }
        self.seen[at] = self.walk;
        if let Some(place) = self.of_walk.get_mut(self.count_of_walk) {
            *place = at as u16;
            self.count_of_walk += 1;
        }
    }

    /// The numbers of all pairs that were compared in the last walk.
    pub(in crate::unwind::python) fn of_walk(&self) -> &[u16] {
        &self.of_walk[..self.count_of_walk.min(MOST_TEXTS)]
    }

    /// Whether the pairs with these numbers are unchanged.
    ///
    /// # Safety
    /// Each must be a string, or at least readable memory.
    #[inline(always)]
    pub(in crate::unwind::python) unsafe fn are_as_kept(&self, numbers: &[u16], layout: &Layout) -> bool {
        // SAFETY: guaranteed by the caller.
        numbers.is_empty() || unsafe { self.have_same_letters(numbers, layout) }
    }

    /// Whether all texts of the last walk are unchanged.
    ///
    /// # Safety
    /// Each must be a string, or at least readable memory.
    #[inline(always)]
    pub(in crate::unwind::python) unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        // SAFETY: guaranteed by the caller.
        unsafe { self.are_as_kept(self.of_walk(), layout) }
    }

    /// As [`Texts::are_as_kept`], for at least one pair. Not inlined, so that it takes no register from the empty
    /// case.
    ///
    /// # Safety
    /// As for [`Texts::are_as_kept`].
    #[inline(never)]
    unsafe fn have_same_letters(&self, numbers: &[u16], layout: &Layout) -> bool {
        for at in numbers {
            // SAFETY: guaranteed by the caller.
            if !unsafe { self.all[usize::from(*at) % MOST_TEXTS].are_as_before(layout) } {
                return false;
            }
        }
        true
    }

    /// Whether the pair with this number is unchanged.
    ///
    /// # Safety
    /// The number must be from [`Texts::enter`]; each text must be a string, or at least readable memory.
    #[inline(always)]
    pub(super) unsafe fn hold(&mut self, number: u16, layout: &Layout) -> bool {
        // SAFETY: numbers are less than the count, which is at most the array's length.
        let seen = unsafe { *self.seen.get_unchecked(usize::from(number)) };
        // SAFETY: guaranteed by the caller.
        seen == self.walk || unsafe { self.look(number, layout) }
    }

    /// Compares a pair. If it is unchanged, it is not compared again in this walk.
    ///
    /// # Safety
    /// As for [`Texts::hold`].
    #[inline(never)]
    unsafe fn look(&mut self, number: u16, layout: &Layout) -> bool {
        let at = usize::from(number) % MOST_TEXTS;
        // SAFETY: guaranteed by the caller.
        let are_same = unsafe { self.all[at].are_as_before(layout) };
        if are_same {
            self.see(at);
        }
        are_same
    }
}

impl Pair {
    /// Whether both texts are unchanged.
    ///
    /// # Safety
    /// Each must be a string, or at least readable memory.
    #[inline(always)]
    unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        match self.count {
            // SAFETY: guaranteed by the caller.
            0 => unsafe { marks_of_both(self.path, self.name, layout) == self.marks },
            // SAFETY: as above.
            _ => unsafe { self.has_same_letters(layout) },
        }
    }

    /// Stores the path's letters, if they are ASCII, at least eight and at most `MOST_LETTERS`.
    ///
    /// # Safety
    /// The path must be a readable string.
    unsafe fn keep_letters(&mut self, layout: &Layout) {
        // SAFETY: guaranteed by the caller.
        let word = |at: u64| unsafe { memory::word(self.path + at) };
        let (count, is_ascii) = (word(layout::LENGTH), word(layout::STATE) >> 6 & 1 != 0);
        if is_ascii && (8..=MOST_LETTERS as u64).contains(&count) {
            let from = (self.path + u64::from(layout.text.ascii)) as *const u8;
            // SAFETY: the string has `count` letters there.
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
        // SAFETY: guaranteed by the caller.
        if unsafe { memory::word(self.path + layout::LENGTH) } != self.count {
            return false;
        }
        // A string that is not ASCII has a pointer there, which does not equal letters.
        let theirs = self.path + u64::from(layout.text.ascii);
        let ours = self.letters.as_ptr() as u64;
        // SAFETY: guaranteed by the caller; our copy is as long, and a path has at least eight letters.
        unsafe {
            match self.count {
                // Most paths, without a loop.
                33..=64 => are_same::<32>(theirs, ours) && self.has_same_end(theirs, ours),
                _ => self.has_same_end(theirs, ours) && self.has_same_beginning(theirs, ours),
            }
        }
    }

    /// Whether all letters but the last 32 are the same, 32 at a time.
    ///
    /// # Safety
    /// `count` letters must be readable at both addresses.
    #[inline(always)]
    unsafe fn has_same_beginning(&self, theirs: u64, ours: u64) -> bool {
        let mut at = 32;
        while at < self.count {
            // SAFETY: guaranteed by the caller.
            if !unsafe { are_same::<32>(theirs + at - 32, ours + at - 32) } {
                return false;
            }
            at += 32;
        }
        true
    }

    /// Whether the last letters are the same: 32, or all if there are fewer.
    ///
    /// # Safety
    /// `count` letters must be readable at both addresses, and `count` must be at least eight.
    #[inline(always)]
    unsafe fn has_same_end(&self, theirs: u64, ours: u64) -> bool {
        let (their_end, our_end) = (theirs + self.count, ours + self.count);
        // SAFETY: guaranteed by the caller.
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
/// They must be readable, and must not be written meanwhile.
#[inline(always)]
unsafe fn are_same<const BYTES: usize>(one: u64, other: u64) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { *(one as *const [u8; BYTES]) == *(other as *const [u8; BYTES]) }
}

/// Hash of two strings.
///
/// # Safety
/// Each must be null, a string, or at least readable memory.
#[inline(never)]
unsafe fn marks_of_both(path: u64, name: u64, layout: &Layout) -> u64 {
    // SAFETY: guaranteed by the caller.
    let of = |text: u64| unsafe { marks_of_letters(text, layout) };
    if name == 0 { of(path) } else { of(path).rotate_left(32) ^ of(name) }
}

/// Hash of a string: of all letters up to the limit, two words at a time, without a dependency between the steps.
///
/// # Safety
/// It must be null, a string, or at least readable memory.
#[inline(always)]
unsafe fn marks_of_letters(text: u64, layout: &Layout) -> u64 {
    if text == 0 {
        return 0;
    }
    // SAFETY: guaranteed by the caller; a string ends with a zero byte, and objects are aligned to eight bytes.
    let word = |at: u64| unsafe { memory::word(text + at) };
    let (length, state) = (word(layout::LENGTH).min(LONGEST_TEXT as u64), word(layout::STATE) as u32);
    let (kind, is_ascii) = (u64::from(state >> 2 & 7), state >> 6 & 1 != 0);
    let start = u64::from(if is_ascii { layout.text.ascii } else { layout.text.wide });
    let end = start + length * kind;
    let about = (length << 3 | kind) ^ 0xd6e8_feb8_6659_fd93;
    if end < start + 16 {
        // Mask the bytes of the words that are past the end.
        let word = |at: u64| match end.saturating_sub(at) {
            bytes @ 0..8 => word(at) & ((1 << (8 * bytes)) - 1),
            _ => word(at),
        };
        return mixed(word(start), word(start + 8), about);
    }
    let (mut at, mut place) = (start, about);
    let mut marks = 0_u64;
    while at < end - 16 {
        marks = marks.wrapping_add(mixed(word(at), word(at + 8), place));
        place = place.wrapping_add(0xa076_1d64_78bd_642f);
        at += 16;
    }
    // These may overlap the words before.
    marks.wrapping_add(mixed(word(end - 16), word(end - 8), place))
}

/// Combines two words, depending on their position.
#[inline(always)]
fn mixed(one: u64, other: u64, place: u64) -> u64 {
    let product = u128::from(one ^ 0x9e37_79b9_7f4a_7c15) * u128::from(other ^ place);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
impl Texts {
    pub(super) fn for_test() -> Box<Self> {
        const NONE: Pair = Pair { path: 0, name: 0, marks: 0, count: 0, letters: [0; MOST_LETTERS] };
        let of_walk = [0; MOST_TEXTS];
        Box::new(Texts {
            walk: 1,
            count: 0,
            seen: [0; MOST_TEXTS],
            of_walk,
            count_of_walk: 0,
            all: [NONE; MOST_TEXTS],
        })
    }
}
