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

use std::ptr::NonNull;

use super::find::Types;
use super::layout::{self, Layout};
use super::read::copy_into;
use crate::unwind::memory;

/// The longest name or path that is kept whole, in letters.
const LONGEST_TEXT: usize = 1024;
/// The longest line table: a longer one, of a function of some 10,000 lines, is left out.
const LONGEST_LINES: usize = 32 << 10;

/// What is said of a code object, as bytes: what it is known by in the whole process.
///
/// ```text
/// version:u16 0:u16 first_line:u32 file_length:u32 name_length:u32 file name lines
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description<'a>(pub(crate) &'a [u8]);

const HEAD: usize = 16;
/// Of letters of the path and the name, each takes at most four bytes.
const ROOM: usize = HEAD + 2 * 4 * LONGEST_TEXT + LONGEST_LINES;

/// The parts of a [`Description`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts<'a> {
    pub(crate) version: u16,
    pub(crate) first_line: u32,
    pub(crate) file: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) lines: &'a [u8],
}

impl<'a> Description<'a> {
    /// `None`: it was not made here.
    pub(crate) fn parts(self) -> Option<Parts<'a>> {
        let (head, rest) = self.0.split_at_checked(HEAD)?;
        let number = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (file, rest) = rest.split_at_checked(number(8) as usize)?;
        let (name, lines) = rest.split_at_checked(number(12) as usize)?;
        Some(Parts { version: number(0) as u16, first_line: number(4), file, name, lines })
    }
}

/// What tells a code object from others that lay at its address, where Python numbers none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Marks {
    name: u64,
    file: u64,
    lines: u64,
    /// Or [`NO_LINE`].
    first_line: u64,
    /// The length of the line table.
    length: u64,
    /// The words below, and the line table's first, as one.
    words: u64,
    /// Where the second and third word of the name's letters lie, which are all of it, if Python has not hashed it, as 3.11
    /// often has not; 0: it has.
    of_name: [u16; 2],
    /// Where the last word of the line table lies in it.
    end_of_lines: u16,
    /// The number in [`Texts`] of the path, and with it of a name of which words do not say all.
    texts: u16,
}

const _: () =
    assert!(size_of::<Marks>() <= 64, "Marks grew: they are compared for each frame of each launch");

/// In versions before this all names have a hash.
const FIRST_WITHOUT_HASH: u16 = 0x030b;

/// The first line of what cannot be known by its marks, and is met anew each time: no code object has it.
const NO_LINE: u64 = u64::MAX;

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
        let of_nothing = Self { name, file, lines, first_line: NO_LINE, ..Self::default() };
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
        let marks = Self { name, file, lines, first_line, length, words: 0, of_name, end_of_lines, texts };
        // SAFETY: as above.
        Self { words: unsafe { marks.read(layout) }, ..marks }
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
            self.has_same_parts(code, layout)
                && memory::word(self.lines + layout::LENGTH) == self.length
                && self.read(layout) == self.words
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
        unsafe { texts.hold(self.texts, layout) }
    }

    /// Whether the object at `code` consists of the same objects.
    ///
    /// # Safety
    /// It can be read.
    #[inline(always)]
    unsafe fn has_same_parts(&self, code: u64, layout: &Layout) -> bool {
        // SAFETY: as the caller says.
        let word = |at: u32| unsafe { memory::word(code + u64::from(at)) };
        let parts = &layout.code;
        word(parts.name) == self.name
            && word(parts.file) == self.file
            && word(parts.lines) == self.lines
            && u64::from(word(parts.first_line) as u32) == self.first_line
    }

    /// The words of the name and of the line table, as one.
    ///
    /// # Safety
    /// Both can be read, and the line table is as long as it was.
    #[inline(always)]
    unsafe fn read(&self, layout: &Layout) -> u64 {
        // SAFETY: as the caller says; both end with a zero, and objects on a multiple of eight. Of a name that is shorter than it
        // was at most the first bytes of what comes after it in its pool are read.
        let word = |object: u64, at: u64| unsafe { memory::word(object + at) };
        let and = |all: u64, word: u64| all.rotate_left(13) ^ word;
        let has_hash = layout.version < FIRST_WITHOUT_HASH || self.of_name == [0; 2];
        let name = if has_hash {
            word(self.name, layout::HASH)
        } else {
            let [second, third] = self.of_name.map(|at| word(self.name, at.into()));
            and(and(word(self.name, layout.text.ascii.into()), second), third)
        };
        let end = u64::from(self.end_of_lines);
        let middle = word(self.lines, layout::BYTES + end / 2);
        let first = name.wrapping_add(word(self.lines, layout::BYTES));
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
                version_of(code, layout) == version && self.marks.has_same_parts(code, layout)
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

/// Paths whose letters are looked at once in a walk: many functions share one. With them names that Python has not hashed.
#[repr(C)]
pub(super) struct Texts {
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
    pub(super) fn forget(&mut self) {
        self.walk += 1;
        self.count_of_walk = 0;
    }

    /// Whether there is room for no more.
    pub(super) fn are_full(&self) -> bool {
        self.count >= MOST_TEXTS
    }

    /// There are none. Who knows them by number is to forget those.
    pub(super) fn clear(&mut self) {
        (self.count, self.count_of_walk) = (0, 0);
    }

    /// The number of these texts. `None`: there are too many.
    ///
    /// # Safety
    /// They are strings that can be read, or null.
    unsafe fn enter(&mut self, path: u64, name: u64, layout: &Layout) -> Option<u16> {
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

    /// Whether all texts of the last walk still hold what they did.
    ///
    /// # Safety
    /// They are strings, or something that can be read lies there.
    #[inline(always)]
    pub(super) unsafe fn are_as_before(&self, layout: &Layout) -> bool {
        // SAFETY: as the caller says.
        self.count_of_walk == 0 || unsafe { self.have_same_letters(layout) }
    }

    /// The same of one or more. Apart from the others, which then keep no register.
    ///
    /// # Safety
    /// As above.
    #[inline(never)]
    unsafe fn have_same_letters(&self, layout: &Layout) -> bool {
        for at in &self.of_walk[..self.count_of_walk.min(MOST_TEXTS)] {
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
    unsafe fn hold(&mut self, number: u16, layout: &Layout) -> bool {
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

const FIRST_PLACES: usize = 256;
/// Places a table may have: 2.5 MiB, room for 16,384 code objects. A thread that meets more forgets them all.
const MOST_PLACES: usize = 1 << 15;

/// The code objects that a thread has met.
#[derive(Debug)]
pub(super) struct Table {
    places: NonNull<Known>,
    capacity: usize,
    used: usize,
}

impl Table {
    pub(super) fn new() -> Option<Self> {
        Some(Self { places: map_places(FIRST_PLACES)?, capacity: FIRST_PLACES, used: 0 })
    }

    #[inline(always)]
    pub(super) fn get(&self, place: u32) -> &Known {
        debug_assert!((place as usize) < self.capacity);
        // SAFETY: places are handed out below the capacity, and zeroes are a valid empty place.
        unsafe { self.places.add(place as usize).as_ref() }
    }

    /// Where the code object at `code` stands, or the empty place where it would.
    #[inline]
    pub(super) fn find(&self, code: u64) -> u32 {
        let mask = self.capacity - 1;
        let mut at = (code.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        loop {
            let known = self.get(at as u32);
            if known.code == code || known.code == 0 {
                return at as u32;
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn is_empty(&self, place: u32) -> bool {
        self.get(place).code == 0
    }

    /// Whether entering one more has the places of others changed.
    pub(super) fn is_full(&self) -> bool {
        2 * (self.used + 1) > self.capacity
    }

    /// Makes room, at the cost of all or none of what is known. A place that there was is one afterwards, of whatever
    /// code object. False: the kernel gives no memory.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        let keeps = 2 * self.capacity <= MOST_PLACES;
        let capacity = if keeps { 2 * self.capacity } else { self.capacity };
        let Some(places) = map_places(capacity) else { return false };
        let old = std::mem::replace(self, Self { places, capacity, used: 0 });
        for place in (0..old.capacity as u32).filter(|place| keeps && !old.is_empty(*place)) {
            self.set(self.find(old.get(place).code), *old.get(place));
        }
        true
    }

    pub(super) fn set(&mut self, place: u32, known: Known) {
        self.used += usize::from(self.is_empty(place));
        // SAFETY: as in `get`; `&mut self` means that nobody else reads.
        unsafe { self.places.add(place as usize).write(known) };
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the table came from `map_places` with this capacity, and goes with its owner.
        unsafe { memory::unmap(self.places.cast(), self.capacity * size_of::<Known>()) };
    }
}

fn map_places(count: usize) -> Option<NonNull<Known>> {
    Some(memory::map(count * size_of::<Known>())?.cast())
}

/// Room for what is said of one code object.
#[repr(C)]
pub(super) struct Scratch {
    bytes: [u8; ROOM],
}

/// Text being written.
struct Out<'a> {
    bytes: &'a mut [u8; ROOM],
    at: usize,
}

/// Reads the code object at `code`. `None`: there is none.
pub(super) fn read<'a>(
    code: u64,
    layout: &Layout,
    types: &Types,
    scratch: &'a mut Scratch,
    texts: &mut Texts,
) -> Option<(Known, Description<'a>)> {
    let mut copied = [0; layout::MOST_CODE];
    let object = copied.get_mut(..layout.code.bytes as usize)?;
    if !copy_into(code, object) || word(object, layout::TYPE)? != types.code {
        return None;
    }
    let at = |offset: u32| word(object, offset.into());
    let (name, file, lines) = (at(layout.code.name)?, at(layout.code.file)?, at(layout.code.lines)?);
    let first_line = at(layout.code.first_line)? as u32;
    let traceable = match layout.code.traceable {
        0 => 0,
        // A number of instructions of two bytes.
        offset => (at(offset)? as u32).wrapping_mul(2),
    };
    let version = match layout.code.version {
        0 => 0,
        offset => at(offset)? as u32,
    };
    let mut out = Out { bytes: &mut scratch.bytes, at: HEAD };
    // What is of another type, as something that a program has put there, or cannot be read, counts as not there.
    let file = if is_of(file, types.text) && out.text(file, layout) { file } else { out.unknown() };
    let file_length = out.at - HEAD;
    let name = if is_of(name, types.text) && out.text(name, layout) { name } else { out.unknown() };
    let name_length = out.at - HEAD - file_length;
    let lines = if is_of(lines, types.bytes) && out.lines(lines) { lines } else { 0 };
    let Out { bytes, at } = out;
    let head = [u32::from(layout.version), first_line, file_length as u32, name_length as u32];
    for (place, number) in bytes.chunks_exact_mut(4).zip(head) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    let marks = match version {
        // SAFETY: null, or objects of their types, which were just read.
        0 => unsafe { Marks::of((name, file, lines), first_line, layout, texts) },
        _ => Marks { name, file, lines, first_line: first_line.into(), ..Marks::default() },
    };
    let known = Known { code, marks, version, number: 0, traceable };
    Some((known, Description(&bytes[..at])))
}

/// Whether an object of just that type lies there.
fn is_of(object: u64, kind: u64) -> bool {
    let mut head = [0; 40];
    copy_into(object, &mut head) && word(&head, layout::TYPE) == Some(kind)
}

fn word(bytes: &[u8], at: u64) -> Option<u64> {
    bytes.get(at as usize..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Hands over the beginning of a string as UTF-8. `None`: it cannot be read.
fn letters(text: u64, layout: &Layout, mut each: impl FnMut(&[u8])) -> Option<()> {
    let mut head = [0; 40];
    if !copy_into(text, &mut head) {
        return None;
    }
    let state = word(&head, layout::STATE)? as u32;
    let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 != 0, state >> 6 & 1 != 0);
    let count = (word(&head, layout::LENGTH)? as usize).min(LONGEST_TEXT);
    if !is_compact || !matches!(kind, 1 | 2 | 4) {
        return None;
    }
    let (kind, start) = (kind as usize, if is_ascii { layout.text.ascii } else { layout.text.wide });
    let mut from = text + u64::from(start);
    let mut left = count * kind;
    let mut piece = [0; 256];
    while left > 0 {
        let piece = &mut piece[..left.min(256)];
        if !copy_into(from, piece) {
            return None;
        }
        for letter in piece.chunks_exact(kind) {
            let letter = letter.iter().rev().fold(0, |letter, byte| letter << 8 | u32::from(*byte));
            // Lone surrogates stand for bytes of a path that is not UTF-8.
            let letter = char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER);
            each(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
        from += piece.len() as u64;
        left -= piece.len();
    }
    Some(())
}

impl Out<'_> {
    fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }

    /// Appends the beginning of a string as UTF-8. False: it cannot be read, and nothing is appended.
    fn text(&mut self, text: u64, layout: &Layout) -> bool {
        let begin = self.at;
        let is_read = letters(text, layout, |letters| self.push(letters)).is_some();
        self.at = if is_read { self.at } else { begin };
        is_read
    }

    /// Appends a question mark, for what is not there.
    fn unknown(&mut self) -> u64 {
        self.push(b"?");
        0
    }

    /// Appends a line table, unless it is too long. False: it cannot be read.
    fn lines(&mut self, lines: u64) -> bool {
        let mut head = [0; 24];
        let length = copy_into(lines, &mut head).then(|| word(&head, layout::LENGTH)).flatten();
        let Some(length) = length.map(|length| length as usize) else { return false };
        if length > LONGEST_LINES {
            return copy_into(lines + layout::BYTES + LONGEST_LINES as u64, &mut [0; 8]);
        }
        let place = self.bytes.get_mut(self.at..self.at + length);
        let is_read = place.is_some_and(|place| copy_into(lines + layout::BYTES, place));
        self.at += if is_read { length } else { 0 };
        is_read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Box<Texts> {
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

    fn known(code: u64, number: u32) -> Known {
        Known { code, marks: Marks::default(), version: 0, number, traceable: 0 }
    }

    #[test]
    fn what_was_entered_is_found_while_the_table_grows_and_until_all_is_forgotten() {
        let mut table = Table::new().unwrap();
        let mut enter = |number: u32| {
            let code = u64::from(number) * 64 + 4096;
            if table.is_full() {
                assert!(table.make_room());
            }
            let place = table.find(code);
            assert!(table.is_empty(place), "{number}");
            table.set(place, known(code, number));
            table.get(table.find(4096 + 64)).number
        };
        for number in 1..=MOST_PLACES as u32 / 2 {
            assert_eq!(enter(number), 1);
        }
        assert_eq!(enter(MOST_PLACES as u32), 0, "it was forgotten with all others");
        assert!(table.capacity == MOST_PLACES && table.used == 1);
    }

    #[test]
    fn a_description_is_taken_apart_as_it_was_put_together() {
        let mut bytes = Vec::new();
        for number in [0x030b, 12, 4, 3] {
            bytes.extend(u32::to_ne_bytes(number));
        }
        bytes.extend(b"a.pyrun\x80\x01");
        let parts = Parts { version: 0x030b, first_line: 12, file: b"a.py", name: b"run", lines: &[0x80, 1] };
        assert_eq!(Description(&bytes).parts(), Some(parts));
        assert_eq!(Description(&bytes[..20]).parts(), None);
        assert_eq!(Description(&bytes[..8]).parts(), None);
    }

    #[test]
    fn what_is_no_code_object_is_not_read() {
        let types = Types { code: 77, text: 78, bytes: 79, frame: 80 };
        let layout = Layout::of(0x030b_0000, &[0; layout::TABLE_BYTES]).unwrap();
        let memory = memory::map(size_of::<Scratch>()).unwrap();
        // SAFETY: a mapping of that size, where zeroes are valid.
        let scratch = unsafe { memory.cast::<Scratch>().as_mut() };
        let mut texts = texts();
        let words = [1u64; 64];
        for address in [0, 8, words.as_ptr() as u64, 1 << 46, u64::MAX - 7] {
            assert!(read(address, &layout, &types, scratch, &mut texts).is_none(), "{address:x}");
        }
        let mut object = [0u64; 64];
        object[1] = 77;
        object[9] = 5;
        let (known, description) =
            read(object.as_ptr() as u64, &layout, &types, scratch, &mut texts).unwrap();
        let parts = description.parts().unwrap();
        assert_eq!(
            (known.marks.first_line, parts.first_line, parts.file, parts.name),
            (NO_LINE, 5, &b"?"[..], &b"?"[..])
        );
    }
}
