//! Code objects: which one it is, and what it is called.
//!
//! An address alone does not say: of functions that come and go, most get the address of one that was dropped. So a code
//! object that was seen before is known by its address, the addresses of its name, file and line table, its first line,
//! and the number that CPython gives each code object since 3.12, no two the same. Where it has none, by what those
//! objects hold: the hash that Python keeps in the name, or its letters where 3.11 has no hash; all of the path (once in a
//! walk for each file); and length, beginning, middle and end of the line table. So another function at the same address is
//! never shown under a name that was dropped; before 3.12 one of the same name, file and first line, all of whose parts have
//! the addresses of the other's, is taken for it if their line tables differ only between those places.
//!
//! CPython 3.12 would tell when one is destroyed (`PyCode_AddWatcher`), but only to who registers with the global lock
//! held, in each interpreter anew: that takes a call on Python's own list of pending calls, which runs in the middle of
//! the program's code, at a time that nobody knows. Comparing what the object holds needs nothing of the kind.
//!
//! What is new is copied through the kernel, each object's type is looked at, and what is said of it is kept; nothing of
//! it is followed again unless it still has the same addresses.

mod description;
mod read;
mod table;
mod texts;

use super::layout::{self, Layout};
use crate::unwind::memory;

pub(crate) use description::Description;
pub(super) use read::{Scratch, read};
pub(super) use table::Table;
pub(super) use texts::Texts;

/// The longest name or path that is kept whole, in letters.
const LONGEST_TEXT: usize = 1024;
/// The longest line table: a longer one, of a function of some 10,000 lines, is left out.
const LONGEST_LINES: usize = 32 << 10;

/// What tells a code object from others that lay at its address, where Python numbers none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Marks {
    name: u64,
    file: u64,
    lines: u64,
    first_line: u64,
    /// The length of the line table.
    length: u64,
    /// The words below, the first line, and the line table's first word, as one: to compare each by itself would be so many loads
    /// more, and loads are what a comparison takes its time for.
    words: u64,
    places: Places,
}

/// What is asked of one word, which is read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
struct Places(u64);

impl Places {
    /// `of_name`: where the second and third word of the name's letters lie, which are all of it, if Python has not hashed it, as 3.11
    /// often has not; 0: it has. `end_of_lines`: where the last word of the line table lies in it. `texts`: the number in
    /// [`Texts`] of the path, and with it of a name of which words do not say all.
    fn new([second, third]: [u16; 2], end_of_lines: u16, texts: u16) -> Self {
        let parts = [end_of_lines, texts, third, second];
        Self(parts.iter().fold(0, |all, part| all << 16 | u64::from(*part)))
    }

    #[inline(always)]
    fn has_hash(self) -> bool {
        self.0 as u32 == 0
    }

    #[inline(always)]
    fn of_name(self) -> [u64; 2] {
        [self.0 & 0xffff, self.0 >> 16 & 0xffff]
    }

    #[inline(always)]
    fn texts(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline(always)]
    fn end_of_lines(self) -> u64 {
        self.0 >> 48
    }
}

const _: () =
    assert!(size_of::<Marks>() <= 64, "Marks grew: they are compared for each frame of each launch");

/// In versions before this all names have a hash.
const FIRST_WITHOUT_HASH: u16 = 0x030b;

/// The length of the line table of what cannot be known by its marks, and is met anew each time: none is so long.
const NEVER: u64 = u64::MAX;
/// Where its name and its line table are said to lie: no code object has them there, and it can be read.
static NOTHING: [u64; 8] = [0; 8];

impl Marks {
    /// Of a code object with these parts.
    ///
    /// # Safety
    /// They are strings and bytes (or null, each) that can be read.
    unsafe fn of(
        (name, file, lines): (u64, u64, u64),
        first_line: u32,
        layout: &Layout,
        texts: &mut Texts,
    ) -> Self {
        let nothing = NOTHING.as_ptr() as u64;
        let of_nothing = Self { name: nothing, lines: nothing, file, length: NEVER, ..Self::default() };
        if name == 0 || lines == 0 {
            return of_nothing;
        }
        // SAFETY: as the caller says.
        let (of_name, texts) = unsafe {
            let of_name = words_of_name(name, layout);
            (of_name, texts.enter(file, if of_name.is_none() { name } else { 0 }, layout))
        };
        let Some(texts) = texts else { return of_nothing };
        let of_name = of_name.unwrap_or_default();
        // SAFETY: as above.
        let length = unsafe { memory::word(lines + layout::LENGTH) };
        let end_of_lines = length.saturating_sub(8).min(LONGEST_LINES as u64) as u16;
        let first_line = first_line.into();
        let places = Places::new(of_name, end_of_lines, texts);
        let marks = Self { name, file, lines, first_line, length, words: 0, places };
        // SAFETY: as above.
        Self { words: unsafe { marks.read(first_line, layout) }, ..marks }
    }

    /// Whether the object at `code` has all of them but the texts.
    ///
    /// # Safety
    /// A frame refers to the object, or something that can be read lies there if it was met.
    #[inline(always)]
    pub(super) unsafe fn are_all_but_texts(&self, code: u64, layout: &Layout) -> bool {
        // SAFETY: as the caller says; the parts were seen to be readable when the object was met, which holds them.
        unsafe {
            // One that is shorter may end where memory does: its length is looked at before its words.
            self.has_same_objects(code, layout)
                && memory::word(self.lines + layout::LENGTH) == self.length
                && self.read(first_line_of(code, layout), layout) == self.words
        }
    }

    /// Whether the path still has its letters, and a name that is looked at with it. `texts` are those that were looked at in
    /// this walk.
    ///
    /// # Safety
    /// They belong to a code object that has all other marks.
    #[inline(always)]
    pub(super) unsafe fn have_same_texts(&self, layout: &Layout, texts: &mut Texts) -> bool {
        // SAFETY: as the caller says.
        unsafe { texts.hold(self.places.texts(), layout) }
    }

    /// Whether the object at `code` consists of the same objects.
    ///
    /// # Safety
    /// It can be read.
    #[inline(always)]
    unsafe fn has_same_objects(&self, code: u64, layout: &Layout) -> bool {
        // SAFETY: as the caller says.
        let word = |at: u32| unsafe { memory::word(code + u64::from(at)) };
        let parts = &layout.code;
        word(parts.name) == self.name && word(parts.file) == self.file && word(parts.lines) == self.lines
    }

    /// The words of the name and of the line table, and the first line of the object at hand, as one.
    ///
    /// # Safety
    /// Both can be read, and the line table is as long as it was.
    #[inline(always)]
    unsafe fn read(&self, first_line: u64, layout: &Layout) -> u64 {
        // SAFETY: as the caller says; both end with a zero, and objects on a multiple of eight. Of a name that is shorter than it
        // was at most the first bytes of what comes after it in its pool are read.
        let word = |object: u64, at: u64| unsafe { memory::word(object + at) };
        let and = |all: u64, word: u64| all.rotate_left(13) ^ word;
        let places = self.places;
        let has_hash = layout.version < FIRST_WITHOUT_HASH || places.has_hash();
        let name = if has_hash {
            word(self.name, layout::HASH)
        } else {
            let [second, third] = places.of_name().map(|at| word(self.name, at));
            and(and(word(self.name, layout.text.ascii.into()), second), third)
        };
        let end = places.end_of_lines();
        let middle = word(self.lines, layout::BYTES + end / 2);
        let first = and(name, first_line).wrapping_add(word(self.lines, layout::BYTES));
        and(and(first, middle), word(self.lines, layout::BYTES + end))
    }
}

/// Where the second and third of three words of a name lie that say all of it: its letters and the zero that ends them, or 0
/// where Python has a hash of it. `None`: there is none, and they are more than 23, or not ASCII.
///
/// # Safety
/// It is a string that can be read.
unsafe fn words_of_name(name: u64, layout: &Layout) -> Option<[u16; 2]> {
    // SAFETY: as the caller says.
    let word = |at: u64| unsafe { memory::word(name + at) };
    let (hash, length, state) = (word(layout::HASH), word(layout::LENGTH), word(layout::STATE));
    if hash != u64::MAX {
        return Some([0; 2]);
    }
    let (is_ascii, last) = (state >> 6 & 1 != 0, length.saturating_sub(7));
    (is_ascii && length < 24 && layout.version >= FIRST_WITHOUT_HASH)
        .then(|| [last / 2, last].map(|at| (u64::from(layout.text.ascii) + at) as u16))
}

/// A code object as a thread has met it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Known {
    /// Where it lies; 0 = this place of the table is empty.
    code: u64,
    pub(super) marks: Marks,
    /// The number that Python gave it; 0: none.
    pub(super) version: u32,
    /// Its number in the process.
    pub(super) number: u32,
    /// How many bytes of instructions come before the first at which a frame is complete.
    pub(super) traceable: u32,
}

impl Known {
    /// Whether the object at `code` is the one that was met. `texts` are those that were looked at in this walk.
    ///
    /// # Safety
    /// A frame refers to the object, or something that can be read lies there if it was met.
    #[inline(always)]
    pub(super) unsafe fn is(&self, code: u64, layout: &Layout, texts: &mut Texts) -> bool {
        // Null, where an empty place is found, is no object: a frame that is only being made has none yet.
        if self.code != code || code == 0 {
            return false;
        }
        match self.version {
            // SAFETY: as the caller says.
            0 => unsafe {
                self.marks.are_all_but_texts(code, layout) && self.marks.have_same_texts(layout, texts)
            },
            // SAFETY: as above.
            version => unsafe {
                version_of(code, layout) == version
                    && self.marks.has_same_objects(code, layout)
                    && first_line_of(code, layout) == self.marks.first_line
            },
        }
    }
}

/// The number that Python gave the code object, where it gives them any.
///
/// # Safety
/// It can be read.
#[inline(always)]
pub(super) unsafe fn version_of(code: u64, layout: &Layout) -> u32 {
    // SAFETY: as the caller says.
    unsafe { memory::word(code + u64::from(layout.code.version)) as u32 }
}

/// The line at which the code object begins.
///
/// # Safety
/// It can be read.
#[inline(always)]
unsafe fn first_line_of(code: u64, layout: &Layout) -> u64 {
    // SAFETY: as the caller says.
    u64::from(unsafe { memory::word(code + u64::from(layout.code.first_line)) as u32 })
}
