//! The names of ranges, and the domains that keep them apart: each has a number, the same in all of the process.
//!
//! Any thread may ask for one at any time: in a signal handler, inside the application's allocator, in a forked child
//! into which no other thread has followed. So nothing here is locked or allocated, and nobody waits for another
//! thread: a name is found by others once all of it is written, and one whose thread was stopped before that is
//! written again by whoever wants it next, under another number.

use std::borrow::Cow;
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::record::{RangeId, Row};
use crate::unwind::memory;

use super::intern::Hash;

/// Names there may be in all: a program that puts a number into each must not fill the memory.
const MOST_NAMES: usize = 1 << 16;
/// Domains there may be when there are no more names.
const MOST_DOMAINS: usize = 1 << 10;
/// Bytes of a name that are looked at.
const LONGEST_NAME: usize = 512;

/// What keeps ranges apart: those of one domain are popped by that domain alone. Its number is that of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDomain(u32);

impl RangeDomain {
    /// Ranges of NVTX outside of all domains.
    pub const DEFAULT: Self = Self(0);
    /// `gpuflame_range_push`.
    pub const USER: Self = Self(u32::MAX);
    /// Domains that the user does not want to see.
    pub const IGNORED: Self = Self(u32::MAX - 1);
    /// What the names of domains are in themselves.
    const OF_DOMAINS: Self = Self(u32::MAX - 2);

    /// The domain of this number.
    pub(super) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Its number, for a handle.
    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// A range's name as the application gives it.
#[derive(Clone, Copy, Debug)]
pub enum RangeName<'a> {
    /// UTF-8, as far as anybody knows.
    Text(&'a [u8]),
    /// Characters of 32 bits.
    Wide(&'a [u32]),
    /// One that was named before.
    Known(RangeId),
}

/// What a name is known by: not its address, at which another may stand the next time.
pub(super) fn hash_bytes(domain: RangeDomain, text: &[u8]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    let start = Hash::ROOT.then(u64::from(domain.0)).then(text.len() as u64);
    text.chunks(8).fold(start, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    })
}

/// What a thread finds a name of wide characters again by.
pub(super) fn hash_wide(domain: RangeDomain, text: &[u32]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    // Above all lengths in bytes.
    let start = Hash::ROOT.then(u64::from(domain.0)).then(1 << 32 | text.len() as u64);
    text.iter().fold(start, |hash, letter| hash.then(u64::from(*letter)))
}

/// All names there are, mapped when the first is given: a megabyte, of which names make use as they come.
struct RangeNames {
    /// Numbers of names, each at the place that its hash says, or behind; 0 = empty.
    places: [AtomicU32; PLACES],
    /// By number; null: not written yet.
    entries: [AtomicPtr<Entry>; MOST_NAMES + MOST_DOMAINS + 1],
    /// Numbers that are given, and how many of them are written.
    given: AtomicU32,
    written: AtomicU32,
    /// Where the next name goes.
    piece: AtomicPtr<Piece>,
    /// The collector's: how many names it was told of, and up to which number all.
    told: AtomicU32,
    all_told: AtomicU32,
}

/// Half of them stay empty.
const PLACES: usize = 1 << 17;
const _: () = assert!(PLACES.is_power_of_two() && PLACES * 10 > (MOST_NAMES + MOST_DOMAINS) * 19);

/// A name. Nothing of it changes once it is written, but whether it was told.
struct Entry {
    hash: Hash,
    domain: RangeDomain,
    /// It lies behind the entry.
    text: NonNull<u8>,
    bytes: u32,
    is_told: AtomicBool,
}

/// Memory for names.
#[repr(C)]
struct Piece {
    used: AtomicUsize,
}

const PIECE_BYTES: usize = 64 << 10;

static NAMES: AtomicPtr<RangeNames> = AtomicPtr::new(null_mut());
/// The domains of NVTX that are to be left out; null: none. A list is never freed.
static IGNORED: AtomicPtr<Vec<String>> = AtomicPtr::new(null_mut());

/// What the name of a range that begins a step looks like; null: no range does. Never freed.
static WATCHED: AtomicPtr<String> = AtomicPtr::new(null_mut());

/// Has ranges of this name, in any domain, begin a step when they open; with a `*` at its end, ranges whose names begin
/// so. Each is a [`Notice::Step`](super::notices::Notice::Step).
pub fn watch_range(name: &str) {
    WATCHED.store(Box::into_raw(Box::new(name.to_owned())), Ordering::Release);
}

/// Whether a range that opens begins a step. `id` is the name's, where it has one.
pub(super) fn begins_step(name: RangeName<'_>, id: Option<RangeId>) -> bool {
    // SAFETY: null, or what `watch_range` has leaked.
    let Some(watched) = (unsafe { WATCHED.load(Ordering::Acquire).as_ref() }) else { return false };
    let is_it = |text: &[u8]| match watched.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning.as_bytes()),
        None => text == watched.as_bytes(),
    };
    match (name, id) {
        (RangeName::Known(_), Some(id)) => RangeNames::if_any()
            .and_then(|names| names.entry(id.0))
            .is_some_and(|entry| is_it(entry.text().as_bytes())),
        (RangeName::Known(_), None) => false,
        _ => with_text(name, is_it),
    }
}

/// Says which domains of NVTX are to be left out.
pub fn ignore_domains(domains: &[String]) {
    IGNORED.store(Box::into_raw(Box::new(domains.to_vec())), Ordering::Release);
}

fn is_ignored(name: &[u8]) -> bool {
    // SAFETY: null, or what `ignore_domains` has leaked.
    let ignored = unsafe { IGNORED.load(Ordering::Acquire).as_ref() };
    ignored.is_some_and(|ignored| ignored.iter().any(|ignored| ignored.as_bytes() == name))
}

/// The domain of this name: the same for all who ask for it.
pub(super) fn domain(name: RangeName<'_>) -> RangeDomain {
    with_text(name, |name| {
        if is_ignored(name) {
            return RangeDomain::IGNORED;
        }
        match number_of(RangeDomain::OF_DOMAINS, name, MOST_NAMES + MOST_DOMAINS) {
            // Ranges that cannot be told from others' would be closed by those.
            None => RangeDomain::IGNORED,
            Some(number) => RangeDomain(number),
        }
    })
}

/// The id of a name, which need not be new; [`RangeId::OTHER`] where there are too many.
#[cold]
pub(super) fn intern(domain: RangeDomain, name: RangeName<'_>) -> RangeId {
    match name {
        RangeName::Known(id) => id,
        _ => with_text(name, |text| number_of(domain, text, MOST_NAMES).map_or(RangeId::OTHER, RangeId)),
    }
}

fn number_of(domain: RangeDomain, text: &[u8], most: usize) -> Option<u32> {
    let names = RangeNames::ready()?;
    let hash = hash_bytes(domain, text);
    names
        .find(hash)
        .or_else(|place| {
            let number = names.write(hash, domain, text, most).ok_or(())?;
            Ok::<_, ()>(names.publish(place, hash, number))
        })
        .ok()
}

/// What is looked at of a name.
fn with_text<T>(name: RangeName<'_>, body: impl FnOnce(&[u8]) -> T) -> T {
    match name {
        RangeName::Text(text) => body(&text[..text.len().min(LONGEST_NAME)]),
        RangeName::Wide(text) => {
            let (mut bytes, mut count) = ([0; LONGEST_NAME], 0);
            for letter in text {
                let letter = char::from_u32(*letter).unwrap_or(char::REPLACEMENT_CHARACTER);
                if count + letter.len_utf8() > LONGEST_NAME {
                    break;
                }
                count += letter.encode_utf8(&mut bytes[count..]).len();
            }
            body(&bytes[..count])
        }
        RangeName::Known(_) => body(b""),
    }
}

impl RangeNames {
    fn if_any() -> Option<&'static Self> {
        // SAFETY: null, or what `ready` has mapped for good.
        unsafe { NAMES.load(Ordering::Acquire).as_ref() }
    }

    fn ready() -> Option<&'static Self> {
        Self::if_any().or_else(|| {
            let memory = memory::map(size_of::<Self>())?;
            let new = memory.as_ptr().cast::<Self>();
            if NAMES.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: mapped above, and nobody has seen it.
                unsafe { memory::unmap(memory, size_of::<Self>()) };
            }
            Self::if_any()
        })
    }

    /// The number under which a name is known, or the empty place at which the search ended.
    fn find(&self, hash: Hash) -> Result<u32, usize> {
        self.find_from(hash.bits() % PLACES, hash)
    }

    fn find_from(&self, mut place: usize, hash: Hash) -> Result<u32, usize> {
        loop {
            let number = self.places[place].load(Ordering::Acquire);
            if number == 0 {
                return Err(place);
            }
            if self.entry(number).is_some_and(|entry| entry.hash == hash) {
                return Ok(number);
            }
            place = (place + 1) % PLACES;
        }
    }

    fn entry(&self, number: u32) -> Option<&'static Entry> {
        // SAFETY: null, or an entry that was written before its address was, and is never unmapped.
        unsafe { self.entries.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Writes a name down, under a new number. `None`: there are too many, or there is no memory.
    fn write(&self, hash: Hash, domain: RangeDomain, text: &[u8], most: usize) -> Option<u32> {
        if self.given.load(Ordering::Relaxed) >= most as u32 {
            return None;
        }
        let place = self.room(size_of::<Entry>() + text.len())?.cast::<Entry>();
        // SAFETY: the room is this thread's: for an entry, aligned for it, and its text.
        unsafe {
            let copy = place.add(1).cast::<u8>();
            copy.copy_from_nonoverlapping(NonNull::from(text).cast(), text.len());
            place.write(Entry {
                hash,
                domain,
                text: copy,
                bytes: text.len() as u32,
                is_told: AtomicBool::new(false),
            });
        }
        let next = |given: u32| (given < most as u32).then_some(given + 1);
        let number = self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()? + 1;
        self.entries[number as usize].store(place.as_ptr(), Ordering::Release);
        self.written.fetch_add(1, Ordering::Release);
        Some(number)
    }

    /// Has a name found by all from now on: by this number, unless another thread was first.
    fn publish(&self, mut place: usize, hash: Hash, number: u32) -> u32 {
        while self.places[place].compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).is_err() {
            match self.find_from(place, hash) {
                Ok(theirs) => return theirs,
                Err(empty) => place = empty,
            }
        }
        number
    }

    /// Memory that is the caller's for good.
    fn room(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(align_of::<Entry>());
        loop {
            let current = self.piece.load(Ordering::Acquire);
            // SAFETY: null, or a piece, which is never unmapped once it is here.
            if let Some(piece) = unsafe { current.as_ref() } {
                let at = piece.used.fetch_add(bytes, Ordering::Relaxed);
                if at + bytes <= PIECE_BYTES {
                    // SAFETY: within the piece.
                    return NonNull::new(unsafe { current.cast::<u8>().add(at) });
                }
            }
            let memory = memory::map(PIECE_BYTES)?;
            let new = memory.cast::<Piece>();
            // SAFETY: mapped above, and nobody else knows of it.
            unsafe { new.write(Piece { used: AtomicUsize::new(size_of::<Piece>()) }) };
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.piece.compare_exchange(current, new.as_ptr(), order, otherwise).is_err() {
                // SAFETY: nobody has seen it.
                unsafe { memory::unmap(memory, PIECE_BYTES) };
            }
        }
    }

    fn tell(&self, each: &mut impl FnMut(&Row<'_>)) {
        let (written, told) = (self.written.load(Ordering::Acquire), self.told.load(Ordering::Relaxed));
        if written == told {
            return;
        }
        if told == 0 {
            each(&Row::Range { id: RangeId::OTHER, domain: "", text: "(one of too many names)" });
        }
        let given = self.given.load(Ordering::Relaxed);
        let all_told = self.all_told.load(Ordering::Relaxed);
        let (mut count, mut first_missing) = (told, None);
        for number in all_told + 1..=given {
            let Some(entry) = self.entry(number) else {
                first_missing = first_missing.or(Some(number));
                continue;
            };
            if !entry.is_told.swap(true, Ordering::Relaxed) {
                count += 1;
                self.tell_one(RangeId(number), entry, each);
            }
        }
        self.told.store(count, Ordering::Relaxed);
        self.all_told.store(first_missing.map_or(given, |number| number - 1), Ordering::Relaxed);
    }

    fn tell_one(&self, id: RangeId, entry: &Entry, each: &mut impl FnMut(&Row<'_>)) {
        if entry.domain == RangeDomain::OF_DOMAINS {
            return;
        }
        let domain = self.entry(entry.domain.0).map_or(Default::default(), Entry::text);
        let text = entry.text();
        let text = if text.is_empty() { "(no name)" } else { &text };
        each(&Row::Range { id, domain: &domain, text });
    }
}

impl Entry {
    fn text(&self) -> Cow<'_, str> {
        // SAFETY: so many bytes were written there before the entry's address was known.
        let bytes = unsafe { std::slice::from_raw_parts(self.text.as_ptr(), self.bytes as usize) };
        String::from_utf8_lossy(bytes)
    }
}

/// Hands over the names that are new. To be called after the contexts that hold them were marked, and before
/// they are handed over; by one thread at a time.
pub(super) fn drain_names(each: &mut impl FnMut(&Row<'_>)) {
    if let Some(names) = RangeNames::if_any() {
        names.tell(each);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::thread;

    use super::*;

    /// All of it in one test, as the names are the process's.
    #[test]
    fn a_name_has_one_number_whoever_gives_it_and_is_told_once_even_behind_one_that_was_never_written() {
        let names = RangeNames::ready().unwrap();
        let mut told = HashMap::new();
        let tell = |told: &mut HashMap<u32, (String, String)>| {
            drain_names(&mut |row| {
                let Row::Range { id, domain, text } = row else { panic!("{row:?}") };
                let before = told.insert(id.0, ((*domain).to_owned(), (*text).to_owned()));
                assert_eq!(before, None, "told twice");
            });
        };
        for round in 0..20 {
            // A number whose thread was stopped, or did not follow into this process.
            names.given.fetch_add(1, Ordering::Relaxed);
            let give = move || {
                let net = domain(RangeName::Text(b"net"));
                let number =
                    |at: u32| intern(net, RangeName::Text(format!("name {round} {at}").as_bytes())).0;
                (0..500).map(number).collect::<Vec<_>>()
            };
            let givers: Vec<_> = (0..4).map(|_| thread::spawn(give)).collect();
            while !givers.iter().all(thread::JoinHandle::is_finished) {
                tell(&mut told);
            }
            tell(&mut told);
            let numbers: Vec<_> = givers.into_iter().map(|giver| giver.join().unwrap()).collect();
            assert!(numbers.iter().all(|of_one| *of_one == numbers[0]));
            for (at, number) in numbers[0].iter().enumerate() {
                assert_eq!(told[number], ("net".to_owned(), format!("name {round} {at}")));
            }
        }
        let wide: Vec<u32> = "name 0 0".chars().map(u32::from).collect();
        let net = domain(RangeName::Wide(&"net".chars().map(u32::from).collect::<Vec<_>>()));
        assert_eq!(intern(net, RangeName::Wide(&wide)), intern(net, RangeName::Text(b"name 0 0")));
        assert_ne!(intern(RangeDomain::USER, RangeName::Wide(&wide)), intern(net, RangeName::Wide(&wide)));
    }
}
