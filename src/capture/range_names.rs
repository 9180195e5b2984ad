//! The names of ranges, and the domains that keep them apart: each has a number, the same in all of the process, for
//! any thread that asks at any time (`texts`).

use std::borrow::Cow;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::record::{RangeId, Row};

use super::intern::Hash;
use super::texts::{MOST_TEXTS, Texts};

/// Domains there may be when there are no more names.
const MOST_DOMAINS: usize = 1 << 10;
/// Names there may be in all.
const MOST_NAMES: usize = MOST_TEXTS - MOST_DOMAINS;
/// Bytes of a name that are looked at.
const LONGEST_NAME: usize = 512;

/// Each with the number of its domain.
static NAMES: Texts = Texts::new();

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
        (RangeName::Known(_), Some(id)) => NAMES.text(id.0).is_some_and(is_it),
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
    NAMES.number_of(hash_bytes(domain, text), domain.0, text, most)
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

/// Hands over the names that are new. To be called after the contexts that hold them were marked, and before
/// they are handed over; by one thread at a time.
pub(super) fn drain_names(each: &mut impl FnMut(&Row<'_>)) {
    NAMES.tell(|number, domain, text| {
        if number == RangeId::OTHER.0 {
            return each(&Row::Range { id: RangeId::OTHER, domain: "", text: "(one of too many names)" });
        }
        if domain == RangeDomain::OF_DOMAINS.0 {
            return;
        }
        let domain = NAMES.text(domain).map_or(Cow::default(), String::from_utf8_lossy);
        let text = String::from_utf8_lossy(text);
        let text = if text.is_empty() { "(no name)" } else { &text };
        each(&Row::Range { id: RangeId(number), domain: &domain, text });
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::thread;

    use super::*;

    /// All of it in one test, as the names are the process's.
    #[test]
    fn a_name_has_one_number_whoever_gives_it_and_is_told_once_even_behind_one_that_was_never_written() {
        let mut told = HashMap::new();
        let tell = |told: &mut HashMap<u32, (String, String)>| {
            drain_names(&mut |row| {
                let Row::Range { id, domain, text } = row else { panic!("{row:?}") };
                let before = told.insert(id.0, ((*domain).to_owned(), (*text).to_owned()));
                assert_eq!(before, None, "told twice");
            });
        };
        for round in 0..20 {
            NAMES.give_one_that_is_never_written();
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
