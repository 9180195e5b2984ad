//! Identifies CPython's code objects, and reads their names. A code object describes one function.
//!
//! An address alone does not identify a code object, because most short-lived functions get the address of a freed
//! function. Therefore a code object is recognized only if the following data are the same as before: its address; the
//! addresses of its name, file and line table; its first line; and its version number. Since 3.12, CPython gives each
//! code object a unique version number. If a code object has no version number, the contents of its name, file and line
//! table are compared instead:
//! - the name, by the hash that Python caches (or by the letters if 3.11 has not computed the hash);
//! - the whole path of the file, once per walk and file;
//! - the length, beginning, middle and end of the line table.
//!
//! Therefore a function is never shown under the name of a freed function that was at the same address. Before CPython
//! 3.12, there is one exception: a function may get the name of a freed function. Before CPython 3.12, a new function
//! is mistaken for a freed function if three conditions hold: they have the same name, file and first line; their parts
//! have the same addresses; their line tables differ only in words that are not compared.
//!
//! Since 3.12, CPython can call a watcher when a code object is destroyed (`PyCode_AddWatcher`). But a thread that
//! holds the GIL would have to register the watcher, once per interpreter. Therefore gpuflame uses no watcher. To run
//! on a thread that holds the GIL, gpuflame would need a pending call (`Py_AddPendingCall`). A pending call runs at an
//! unpredictable time, in the middle of the program's code. Comparing the object's contents needs neither a watcher nor
//! the GIL.
//!
//! When a walk reaches a new code object, the object is copied through the kernel, the type of each part is checked,
//! and a description is stored. Later walks read the object's name, file and line table in place, but only if the
//! object still contains the same addresses of these parts.

mod code_table;
mod code_texts;
mod description;
mod read;

use super::layout::{self, Layout};
use crate::memory;

pub(super) use code_table::CodeTable;
pub(super) use code_texts::CodeTexts;
pub use description::Description;
pub(super) use read::{Scratch, copy_parts, read};

/// Maximum number of letters of a name or path that are stored. A longer text is truncated.
const MAX_TEXT_CHARS: usize = 1024;
/// Maximum length of a line table in bytes. A longer line table, which only a function with more than about 10,000
/// lines has, is omitted.
const MAX_LINE_TABLE_BYTES: usize = 32 << 10;

/// Data that distinguishes a code object from other code objects that may be at the same address at other times. The
/// fingerprint is used if Python gave the code object no version number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct CodeFingerprint {
    name: u64,
    file: u64,
    lines: u64,
    first_line: u64,
    /// Length of the line table in bytes.
    length: u64,
    /// Hash of the words at `offsets`, of the first line, and of the line table's first word. The words themselves are
    /// not stored, because a comparison would then have to load each stored word, and loads dominate the cost of a
    /// comparison.
    words: u64,
    offsets: WordOffsets,
}

/// Offsets of the compared words, packed into one word, so that a single load reads all offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
struct WordOffsets(u64);

impl WordOffsets {
    /// Packs the offsets. `second` and `third` are the offsets of two words of the name's letters. Together with the
    /// first word, the words at these two offsets contain the whole name. The words `second` and `third` are needed if
    /// Python has not computed the name's hash, as is often the case in 3.11. If Python has computed the name's hash,
    /// both offsets are zero. `end_of_lines` is the offset of the line table's last word. `texts` is the index of the
    /// pair in [`CodeTexts`] that contains the path of the file. If Python has not computed the name's hash, and the
    /// name is longer than three words, the same pair also contains the name.
    fn new([second, third]: [u16; 2], end_of_lines: u16, texts: u16) -> Self {
        let parts = [end_of_lines, texts, third, second];
        Self(parts.iter().fold(0, |all, part| all << 16 | u64::from(*part)))
    }

    #[inline(always)]
    fn has_hash(self) -> bool {
        self.0 as u32 == 0
    }

    #[inline(always)]
    fn in_name(self) -> [u64; 2] {
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

const _: () = assert!(
    size_of::<CodeFingerprint>() <= 64,
    "CodeFingerprint grew: every frame of every launch compares one"
);

/// First version of CPython in which the hash of a code object's name may not be computed yet.
const FIRST_WITHOUT_NAME_HASH: u16 = 0x030b;

/// Length of the line table in a fingerprint that must never match. No line table has this length, so the code object
/// is read again in each walk.
const NEVER_MATCHES: u64 = u64::MAX;
/// Readable memory that replaces the name and the line table in a fingerprint with the length `NEVER_MATCHES`. No code
/// object has its name or line table at this address.
static NO_OBJECT: [u64; 8] = [0; 8];

impl CodeFingerprint {
    /// Computes the fingerprint of a code object with these parts.
    ///
    /// # Safety
    /// Each part must be null, or a readable string or bytes object.
    unsafe fn new(
        (name, file, lines): (u64, u64, u64),
        first_line: u32,
        layout: &Layout,
        texts: &mut CodeTexts,
    ) -> Self {
        let no_object = NO_OBJECT.as_ptr() as u64;
        let never_matching =
            Self { name: no_object, lines: no_object, file, length: NEVER_MATCHES, ..Self::default() };
        if name == 0 || lines == 0 {
            return never_matching;
        }
        // SAFETY: the caller guarantees that each part is null or readable.
        let (in_name, texts) = unsafe {
            let in_name = word_offsets_of_name(name, layout);
            (in_name, texts.add(file, if in_name.is_none() { name } else { 0 }, layout))
        };
        let Some(texts) = texts else { return never_matching };
        let in_name = in_name.unwrap_or_default();
        // SAFETY: the caller guarantees that the line table is readable.
        let length = unsafe { memory::word(lines + layout::LENGTH) };
        let end_of_lines = length.saturating_sub(8).min(MAX_LINE_TABLE_BYTES as u64) as u16;
        let first_line = first_line.into();
        let offsets = WordOffsets::new(in_name, end_of_lines, texts);
        let fingerprint = Self { name, file, lines, first_line, length, words: 0, offsets };
        // SAFETY: the caller guarantees that the name and the line table are readable.
        Self { words: unsafe { fingerprint.hash_words(first_line, layout) }, ..fingerprint }
    }

    /// Whether the object at `code` has this fingerprint. Does not compare the texts that are stored in [`CodeTexts`].
    ///
    /// # Safety
    /// The caller guarantees that a frame refers to the code object at `code`. For an object that an earlier walk
    /// reached, it is enough that the object's memory is readable.
    #[inline(always)]
    pub(super) unsafe fn matches_except_texts(&self, code: u64, layout: &Layout) -> bool {
        // SAFETY: the caller guarantees that the object is readable; its parts were readable when a walk first reached
        // the object.
        unsafe {
            // Check the length of the line table before its words, because a shorter table may end at the end of
            // mapped memory.
            self.has_same_objects(code, layout)
                && memory::word(self.lines + layout::LENGTH) == self.length
                && self.hash_words(first_line_of(code, layout), layout) == self.words
        }
    }

    /// Whether the path still has the letters that are stored in [`CodeTexts`]. Also compares the code object's name,
    /// if the name is stored in the same pair of texts. `texts` caches the results of the comparisons in this walk.
    ///
    /// # Safety
    /// The texts must belong to a code object that has all other parts of this fingerprint.
    #[inline(always)]
    pub(super) unsafe fn has_same_texts(&self, layout: &Layout, texts: &mut CodeTexts) -> bool {
        // SAFETY: the caller guarantees that the texts belong to a code object with all other parts of this
        // fingerprint.
        unsafe { texts.are_unchanged(self.offsets.texts(), layout) }
    }

    /// Whether the name, file and line table of the object at `code` have the same addresses as in this fingerprint.
    ///
    /// # Safety
    /// The object must be readable.
    #[inline(always)]
    unsafe fn has_same_objects(&self, code: u64, layout: &Layout) -> bool {
        // SAFETY: the caller guarantees that the object is readable.
        let word = |at: u32| unsafe { memory::word(code + u64::from(at)) };
        let parts = &layout.code;
        word(parts.name) == self.name && word(parts.file) == self.file && word(parts.lines) == self.lines
    }

    /// Computes the hash over the words of the name and the line table, and over the object's first line.
    ///
    /// # Safety
    /// The name and the line table must be readable, and the line table must be as long as when the fingerprint was
    /// computed.
    #[inline(always)]
    unsafe fn hash_words(&self, first_line: u64, layout: &Layout) -> u64 {
        // SAFETY: the caller guarantees that the name and the line table are readable. The name and the line table end
        // with a zero byte, and objects are aligned to eight bytes. If the name is shorter than before, the read ends
        // at most a few bytes inside the next object in the name's memory pool.
        let word = |object: u64, at: u64| unsafe { memory::word(object + at) };
        let and = |all: u64, word: u64| all.rotate_left(13) ^ word;
        let offsets = self.offsets;
        let has_hash = layout.version < FIRST_WITHOUT_NAME_HASH || offsets.has_hash();
        let name = if has_hash {
            word(self.name, layout::HASH)
        } else {
            let [second, third] = offsets.in_name().map(|at| word(self.name, at));
            and(and(word(self.name, layout.text.ascii.into()), second), third)
        };
        let end = offsets.end_of_lines();
        let middle = word(self.lines, layout::BYTES + end / 2);
        let first = and(name, first_line).wrapping_add(word(self.lines, layout::BYTES));
        and(and(first, middle), word(self.lines, layout::BYTES + end))
    }
}

/// Returns the offsets of the second and the third word of a name. Together with the first word, these two words
/// contain the whole name with its final zero byte. Both offsets are 0 if Python has computed the name's hash. Returns
/// `None` if Python has not computed the hash, and the name has more than 23 letters or is not ASCII.
///
/// # Safety
/// `name` must be a readable string.
unsafe fn word_offsets_of_name(name: u64, layout: &Layout) -> Option<[u16; 2]> {
    // SAFETY: the caller guarantees that the name is a readable string.
    let word = |at: u64| unsafe { memory::word(name + at) };
    let (hash, length, state) = (word(layout::HASH), word(layout::LENGTH), word(layout::STATE));
    if hash != u64::MAX {
        return Some([0; 2]);
    }
    let (is_ascii, last) = (state >> 6 & 1 != 0, length.saturating_sub(7));
    (is_ascii && length < 24 && layout.version >= FIRST_WITHOUT_NAME_HASH)
        .then(|| [last / 2, last].map(|at| (u64::from(layout.text.ascii) + at) as u16))
}

/// A code object that a walk of the thread has reached.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CachedCode {
    /// Address of the code object; 0 for an empty slot of the table.
    code: u64,
    pub(super) fingerprint: CodeFingerprint,
    /// The version number that Python gave the code object; 0 if Python gave no number.
    pub(super) version: u32,
    /// The id that this process has given the code object.
    pub(super) number: u32,
    /// Number of leading instruction bytes during which a frame of the function is not complete yet. Python hides a
    /// frame that is still at one of these instructions.
    pub(super) traceable: u32,
}

impl CachedCode {
    /// Whether the object at `code` is the code object of this entry. `texts` caches the results of text comparisons
    /// in this walk.
    ///
    /// # Safety
    /// The caller guarantees that a frame refers to the code object at `code`. For an object that an earlier walk
    /// reached, it is enough that the object's memory is readable.
    #[inline(always)]
    pub(super) unsafe fn matches(&self, code: u64, layout: &Layout, texts: &mut CodeTexts) -> bool {
        // A frame that is being constructed has a null pointer instead of a code object. A null pointer would match an
        // empty slot of the table.
        if self.code != code || code == 0 {
            return false;
        }
        match self.version {
            // SAFETY: the caller guarantees that a frame refers to the object, or that the object's memory is
            // readable.
            0 => unsafe {
                self.fingerprint.matches_except_texts(code, layout)
                    && self.fingerprint.has_same_texts(layout, texts)
            },
            // SAFETY: the caller guarantees that a frame refers to the object, or that the object's memory is
            // readable.
            version => unsafe {
                version_of(code, layout) == version
                    && self.fingerprint.has_same_objects(code, layout)
                    && first_line_of(code, layout) == self.fingerprint.first_line
            },
        }
    }
}

/// Returns the version number that Python gave the code object, in Python versions that have such numbers.
///
/// # Safety
/// The code object must be readable.
#[inline(always)]
pub(super) unsafe fn version_of(code: u64, layout: &Layout) -> u32 {
    // SAFETY: the caller guarantees that the code object is readable.
    unsafe { memory::word(code + u64::from(layout.code.version)) as u32 }
}

/// Returns the first line of the code object.
///
/// # Safety
/// The code object must be readable.
#[inline(always)]
unsafe fn first_line_of(code: u64, layout: &Layout) -> u64 {
    // SAFETY: the caller guarantees that the code object is readable.
    u64::from(unsafe { memory::word(code + u64::from(layout.code.first_line)) as u32 })
}
