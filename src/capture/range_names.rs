//! The names of ranges, and the domains that separate them. Each has a process-wide number, which any thread can look
//! up at any time (`texts`).

use std::borrow::Cow;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::record::{RangeId, Row};

use super::intern::Hash;
use super::texts::{MOST_TEXTS, Texts};

/// Maximum number of domains that can be added once names are exhausted.
const MOST_DOMAINS: usize = 1 << 10;
/// Maximum number of names.
const MOST_NAMES: usize = MOST_TEXTS - MOST_DOMAINS;
/// Maximum length of a name in bytes; the rest is ignored.
const LONGEST_NAME: usize = 512;

/// All names, each with the number of its domain.
static NAMES: Texts = Texts::new();

/// A namespace of ranges: a pop closes only ranges of its own domain. Its number is the number of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDomain(u32);

impl RangeDomain {
    /// NVTX ranges outside of all domains.
    pub const DEFAULT: Self = Self(0);
    /// Ranges of `gpuflame_range_push`.
    pub const USER: Self = Self(u32::MAX);
    /// Domains that the user excluded.
    pub const IGNORED: Self = Self(u32::MAX - 1);
    /// Domain of the names of domains.
    const OF_DOMAINS: Self = Self(u32::MAX - 2);

    /// Returns the domain of this number.
    pub(super) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns its number, for a handle.
    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// Name of a range as the application passes it.
#[derive(Clone, Copy, Debug)]
pub enum RangeName<'a> {
    /// UTF-8, supposedly.
    Text(&'a [u8]),
    /// Characters of 32 bits.
    Wide(&'a [u32]),
    /// A registered name.
    Known(RangeId),
}

/// Returns the hash that identifies a name. Its address would not: another name may be there the next time.
pub(super) fn hash_bytes(domain: RangeDomain, text: &[u8]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    let start = Hash::ROOT.then(u64::from(domain.0)).then(text.len() as u64);
    text.chunks(8).fold(start, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    })
}

/// Returns the hash under which a thread caches a name of wide characters.
pub(super) fn hash_wide(domain: RangeDomain, text: &[u32]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    // Above all lengths in bytes.
    let start = Hash::ROOT.then(u64::from(domain.0)).then(1 << 32 | text.len() as u64);
    text.iter().fold(start, |hash, letter| hash.then(u64::from(*letter)))
}

/// Excluded NVTX domains; null if there are none. A list is never freed.
static IGNORED: AtomicPtr<Vec<String>> = AtomicPtr::new(null_mut());

/// Pattern of the names of ranges that begin a step; null if there is none. Never freed.
static WATCHED: AtomicPtr<String> = AtomicPtr::new(null_mut());

/// Makes ranges of this name, in any domain, begin a step when they open. With a `*` at its end, `name` is a prefix.
/// Each step is a [`Notice::Step`](super::notices::Notice::Step).
pub fn watch_range(name: &str) {
    WATCHED.store(Box::into_raw(Box::new(name.to_owned())), Ordering::Release);
}

/// Whether a range that opens begins a step. `id` is the id of the name, if it has one.
pub(super) fn begins_step(name: RangeName<'_>, id: Option<RangeId>) -> bool {
    // SAFETY: null, or a string that `watch_range` has leaked.
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

/// Sets the NVTX domains to exclude.
pub fn ignore_domains(domains: &[String]) {
    IGNORED.store(Box::into_raw(Box::new(domains.to_vec())), Ordering::Release);
}

fn is_ignored(name: &[u8]) -> bool {
    // SAFETY: null, or a list that `ignore_domains` has leaked.
    let ignored = unsafe { IGNORED.load(Ordering::Acquire).as_ref() };
    ignored.is_some_and(|ignored| ignored.iter().any(|ignored| ignored.as_bytes() == name))
}

/// Returns the domain of this name, the same for all callers.
pub(super) fn domain(name: RangeName<'_>) -> RangeDomain {
    with_text(name, |name| {
        if is_ignored(name) {
            return RangeDomain::IGNORED;
        }
        match number_of(RangeDomain::OF_DOMAINS, name, MOST_NAMES + MOST_DOMAINS) {
            // Without a number of their own, its ranges could be closed by pops of other domains.
            None => RangeDomain::IGNORED,
            Some(number) => RangeDomain(number),
        }
    })
}

/// Returns the id of a name, new or not; [`RangeId::OTHER`] if there are too many.
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

/// Runs `body` with the part of a name that is used, as UTF-8.
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

/// Passes on the new names. Call after the contexts that contain them were marked, and before these are passed on; by
/// one thread at a time.
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

    /// A single test, as the names are process-wide.
    #[test]
    fn a_range_name_has_one_id_on_all_threads_and_is_emitted_once() {
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
