//! Paths, and names that Python has not hashed: whether they hold what they did.

use super::LONGEST_TEXT;
use crate::unwind::memory;
use crate::unwind::python::layout::{self, Layout};

/// Paths whose letters are looked at once in a walk: many functions share one. With them names that Python has not hashed.
#[repr(C)]
pub(in crate::unwind::python) struct Texts {
    /// How many walks there were.
    walk: u64,
    count: usize,
    /// The last walk in which each was seen to hold the same.
    seen: [u64; MOST_TEXTS],
    /// Those of the last walk, each once.
    of_walk: [u16; MOST_TEXTS],
    count_of_walk: usize,
    all: [Pair; MOST_TEXTS],
}

/// Where a path and a name lie, or null, and what they hold.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Pair {
    path: u64,
    name: u64,
    marks: u64,
    /// How many letters of the path are kept; 0: the marks are to be compared.
    count: u64,
    letters: [u8; MOST_LETTERS],
}

/// Of a longer path the marks are compared, at three times the cost.
const MOST_LETTERS: usize = 224;

const MOST_TEXTS: usize = 2048;

impl Texts {
    /// For the next walk: a text may be another by then.
    #[inline(always)]
    pub(in crate::unwind::python) fn forget(&mut self) {
        self.walk += 1;
        self.count_of_walk = 0;
    }

    /// Whether there is room for no more.
    pub(in crate::unwind::python) fn are_full(&self) -> bool {
        self.count >= MOST_TEXTS
    }

    /// There are none. Who knows them by number is to forget those.
    pub(in crate::unwind::python) fn clear(&mut self) {
        (self.count, self.count_of_walk) = (0, 0);
    }

    /// The number of these texts. `None`: there are too many.
    ///
    /// # Safety
    /// They are strings that can be read, or null.
    pub(super) unsafe fn enter(&mut self, path: u64, name: u64, layout: &Layout) -> Option<u16> {
        // SAFETY: as the caller says.
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
            // SAFETY: as the caller says.
            unsafe { pair.keep_letters(layout) };
        }
        self.count += 1;
        self.see(self.count - 1);
        Some(self.count as u16 - 1)
    }

    /// These hold what they did, in this walk.
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

    /// The numbers of all that were looked at in the last walk.
    pub(in crate::unwind::python) fn of_walk(&self) -> &[u16] {
        &self.of_walk[..self.count_of_walk.min(MOST_TEXTS)]
    }

    /// Whether these, by their numbers, still hold what they did.
    ///
    /// # Safety
    /// They are strings, or something that can be read lies there.
    #[inline(always)]
    pub(in crate::unwind::python) unsafe fn are_as_kept(&self, numbers: &[u16], layout: &Layout) -> bool {
        // SAFETY: as the caller says.
        numbers.is_empty() || unsafe { self.have_same_letters(numbers, layout) }
    }

    /// Whether all texts of the last walk still hold what they did.
    ///
    /// # Safety
    /// They are strings, or something that can be read lies there.
    #[inline(always)]
    pub(in crate::unwind::python) unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        // SAFETY: as the caller says.
        unsafe { self.are_as_kept(self.of_walk(), layout) }
    }

    /// The same of one or more. Apart from the others, which then keep no register.
    ///
    /// # Safety
    /// As above.
    #[inline(never)]
    unsafe fn have_same_letters(&self, numbers: &[u16], layout: &Layout) -> bool {
        for at in numbers {
            // SAFETY: as the caller says.
            if !unsafe { self.all[usize::from(*at) % MOST_TEXTS].are_as_before(layout) } {
                return false;
            }
        }
        true
    }

    /// Whether the texts with this number still hold what they did.
    ///
    /// # Safety
    /// The number is of [`Texts::enter`]; they are strings, or something that can be read lies there.
    #[inline(always)]
    pub(super) unsafe fn hold(&mut self, number: u16, layout: &Layout) -> bool {
        // SAFETY: numbers are below the count, and that is no more than there is room for.
        let seen = unsafe { *self.seen.get_unchecked(usize::from(number)) };
        // SAFETY: as the caller says.
        seen == self.walk || unsafe { self.look(number, layout) }
    }

    /// Looks at their letters; not again in this walk if they are the same.
    ///
    /// # Safety
    /// As for [`Texts::hold`].
    #[inline(never)]
    unsafe fn look(&mut self, number: u16, layout: &Layout) -> bool {
        let at = usize::from(number) % MOST_TEXTS;
        // SAFETY: as the caller says.
        let are_same = unsafe { self.all[at].are_as_before(layout) };
        if are_same {
            self.see(at);
        }
        are_same
    }
}

impl Pair {
    /// Whether both hold what they did.
    ///
    /// # Safety
    /// They are strings, or something that can be read lies there.
    #[inline(always)]
    unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        match self.count {
            // SAFETY: as the caller says.
            0 => unsafe { marks_of_both(self.path, self.name, layout) == self.marks },
            // SAFETY: as above.
            _ => unsafe { self.has_same_letters(layout) },
        }
    }

    /// Keeps the path's letters, if it is ASCII and they are neither too few nor too many.
    ///
    /// # Safety
    /// It is a string that can be read.
    unsafe fn keep_letters(&mut self, layout: &Layout) {
        // SAFETY: as the caller says.
        let word = |at: u64| unsafe { memory::word(self.path + at) };
        let (count, is_ascii) = (word(layout::LENGTH), word(layout::STATE) >> 6 & 1 != 0);
        if is_ascii && (8..=MOST_LETTERS as u64).contains(&count) {
            let from = (self.path + u64::from(layout.text.ascii)) as *const u8;
            // SAFETY: so many letters are there.
            unsafe { from.copy_to_nonoverlapping(self.letters.as_mut_ptr(), count as usize) };
            self.count = count;
        }
    }

    /// Whether the path has the letters that are kept.
    ///
    /// # Safety
    /// It is a string, or something that can be read lies there.
    #[inline(always)]
    unsafe fn has_same_letters(&self, layout: &Layout) -> bool {
        // SAFETY: as the caller says.
        if unsafe { memory::word(self.path + layout::LENGTH) } != self.count {
            return false;
        }
        // Of one that is not ASCII a pointer lies there, which is no letters.
        let theirs = self.path + u64::from(layout.text.ascii);
        let ours = self.letters.as_ptr() as u64;
        // SAFETY: as the caller says; ours are as many, and a path has at least eight letters.
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
    /// So many can be read at both places.
    #[inline(always)]
    unsafe fn has_same_beginning(&self, theirs: u64, ours: u64) -> bool {
        let mut at = 32;
        while at < self.count {
            // SAFETY: as the caller says.
            if !unsafe { are_same::<32>(theirs + at - 32, ours + at - 32) } {
                return false;
            }
            at += 32;
        }
        true
    }

    /// Whether the last letters are the same: 32, or all if they are fewer.
    ///
    /// # Safety
    /// So many can be read at both places, and no fewer than eight.
    #[inline(always)]
    unsafe fn has_same_end(&self, theirs: u64, ours: u64) -> bool {
        let (their_end, our_end) = (theirs + self.count, ours + self.count);
        // SAFETY: as the caller says.
        unsafe {
            match self.count {
                32.. => are_same::<32>(their_end - 32, our_end - 32),
                16.. => are_same::<16>(theirs, ours) && are_same::<16>(their_end - 16, our_end - 16),
                _ => are_same::<8>(theirs, ours) && are_same::<8>(their_end - 8, our_end - 8),
            }
        }
    }
}

/// Whether so many bytes are the same in both places.
///
/// # Safety
/// They can be read, and nobody writes them.
#[inline(always)]
unsafe fn are_same<const BYTES: usize>(one: u64, other: u64) -> bool {
    // SAFETY: as the caller says.
    unsafe { *(one as *const [u8; BYTES]) == *(other as *const [u8; BYTES]) }
}

/// What tells two strings from others.
///
/// # Safety
/// They are strings, or something that can be read lies there; or null.
#[inline(never)]
unsafe fn marks_of_both(path: u64, name: u64, layout: &Layout) -> u64 {
    // SAFETY: as the caller says.
    let of = |text: u64| unsafe { marks_of_letters(text, layout) };
    if name == 0 { of(path) } else { of(path).rotate_left(32) ^ of(name) }
}

/// What tells a string from others: all that is kept of it, two words at a time, none of which waits for the one before.
///
/// # Safety
/// It is a string, or something that can be read lies there; or null.
#[inline(always)]
unsafe fn marks_of_letters(text: u64, layout: &Layout) -> u64 {
    if text == 0 {
        return 0;
    }
    // SAFETY: as the caller says; a string ends with a zero, and objects on a multiple of eight.
    let word = |at: u64| unsafe { memory::word(text + at) };
    let (length, state) = (word(layout::LENGTH).min(LONGEST_TEXT as u64), word(layout::STATE) as u32);
    let (kind, is_ascii) = (u64::from(state >> 2 & 7), state >> 6 & 1 != 0);
    let start = u64::from(if is_ascii { layout.text.ascii } else { layout.text.wide });
    let end = start + length * kind;
    let about = (length << 3 | kind) ^ 0xd6e8_feb8_6659_fd93;
    if end < start + 16 {
        // What the words have beyond the end is cut off.
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
    // These may be the same as the ones before in part.
    marks.wrapping_add(mixed(word(end - 16), word(end - 8), place))
}

/// Two words as one, which depends on where they stand.
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
