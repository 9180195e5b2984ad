//! Assigns ids to the names of ranges, and to the domains (namespaces) to which ranges belong. The id of each range
//! name or domain is unique in the process. Any thread can look up an id at any time (see `text_table`).

use std::borrow::Cow;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpuflame_model::record::{RangeId, Row};

use super::intern::Hash;
use super::text_table::{MAX_TEXTS, TextTable};

/// Number of domains that the table of names can still store once it contains `MAX_NAMES` range names.
const MAX_DOMAINS: usize = 1 << 10;
/// Maximum number of range names.
const MAX_NAMES: usize = MAX_TEXTS - MAX_DOMAINS;
/// Maximum length of a range name in bytes. A longer name is truncated.
const MAX_NAME_BYTES: usize = 512;

/// Table of the names of ranges and domains. With each range name, the table stores the id of the domain to which the
/// name belongs.
static NAMES: TextTable = TextTable::new();

/// A namespace of ranges. Each name needs its domain, because closing a range with a pop affects only ranges in the
/// same domain. The id of a domain is the id of the domain's name in `NAMES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDomain(u32);

impl RangeDomain {
    /// Domain of the NVTX ranges that the application opens without naming a domain.
    pub const DEFAULT: Self = Self(0);
    /// Domain of the ranges that `gpuflame_range_push` opens.
    pub const USER: Self = Self(u32::MAX);
    /// Marks every domain that the user has excluded.
    pub const IGNORED: Self = Self(u32::MAX - 1);
    /// Pseudo-domain that contains the names of the domains.
    const DOMAIN_NAMES: Self = Self(u32::MAX - 2);

    /// Returns the domain with this id.
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the id of the domain, which is also the domain's NVTX handle.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// A range name in the form in which the application passes it.
#[derive(Clone, Copy, Debug)]
pub enum RangeName<'a> {
    /// Name as bytes, usually UTF-8.
    Text(&'a [u8]),
    /// Name as 32-bit characters.
    Wide(&'a [u32]),
    /// Id of a name that the application has registered earlier.
    Registered(RangeId),
}

/// Returns the hash that identifies a range name. The address of the name cannot identify the name, because the
/// application may later store another name at that address.
pub(crate) fn hash_bytes(domain: RangeDomain, text: &[u8]) -> Hash {
    let text = &text[..text.len().min(MAX_NAME_BYTES)];
    let start = Hash::ROOT.then(u64::from(domain.0)).then(text.len() as u64);
    text.chunks(8).fold(start, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    })
}

/// Returns the hash under which a thread caches a range name that consists of wide characters.
pub(crate) fn hash_wide(domain: RangeDomain, text: &[u32]) -> Hash {
    let text = &text[..text.len().min(MAX_NAME_BYTES)];
    // For a wide string, the first hashed word is greater than the length of any byte string, so a wide string and a
    // byte string never have the same hash.
    let start = Hash::ROOT.then(u64::from(domain.0)).then(1 << 32 | text.len() as u64);
    text.iter().fold(start, |hash, letter| hash.then(u64::from(*letter)))
}

/// NVTX domains that the user has excluded; null if there are none. A list that was stored here is never freed.
static IGNORED: AtomicPtr<Vec<String>> = AtomicPtr::new(null_mut());

/// Pattern for the names of the ranges that begin a step; null if the user has set no pattern. A pattern that was
/// stored here is never freed.
static STEP_NAME: AtomicPtr<String> = AtomicPtr::new(null_mut());

/// Lets each range with this name begin a step when the range opens. The domain of the range does not matter. If `name`
/// ends in `*`, it matches all names that begin with the text before the `*`. The session is notified of each step by a
/// [`Notice::Step`](crate::capture::notices::Notice::Step).
pub fn watch_range(name: &str) {
    STEP_NAME.store(Box::into_raw(Box::new(name.to_owned())), Ordering::Release);
}

/// If a range with this name begins a step, calls `body` with the name. If the range's name has an id, `id` is this id.
pub(crate) fn with_step_name(name: RangeName<'_>, id: Option<RangeId>, body: impl FnOnce(&str)) {
    // SAFETY: the pointer is null, or points to a string that `watch_range` has leaked.
    let Some(watched) = (unsafe { STEP_NAME.load(Ordering::Acquire).as_ref() }) else { return };
    let check = |text: &[u8]| {
        let is_step = match watched.strip_suffix('*') {
            Some(beginning) => text.starts_with(beginning.as_bytes()),
            None => text == watched.as_bytes(),
        };
        if is_step {
            body(&String::from_utf8_lossy(text));
        }
    };
    match (name, id) {
        (RangeName::Registered(_), Some(id)) => {
            if let Some(text) = NAMES.text(id.0) {
                check(text);
            }
        }
        (RangeName::Registered(_), None) => {}
        _ => with_text(name, check),
    }
}

/// Sets the NVTX domains whose ranges are ignored.
pub fn ignore_domains(domains: &[String]) {
    IGNORED.store(Box::into_raw(Box::new(domains.to_vec())), Ordering::Release);
}

fn is_ignored(name: &[u8]) -> bool {
    // SAFETY: the pointer is null, or points to a list that `ignore_domains` has leaked.
    let ignored = unsafe { IGNORED.load(Ordering::Acquire).as_ref() };
    ignored.is_some_and(|ignored| ignored.iter().any(|ignored| ignored.as_bytes() == name))
}

/// Returns the domain with the name `name`. All callers get the same domain for the same name.
pub(crate) fn domain(name: RangeName<'_>) -> RangeDomain {
    with_text(name, |name| {
        if is_ignored(name) {
            return RangeDomain::IGNORED;
        }
        match number_in_domain(RangeDomain::DOMAIN_NAMES, name, MAX_NAMES + MAX_DOMAINS) {
            // No id is available for this domain, so the ranges of the domain are ignored. If the ranges were recorded
            // under another domain, a pop in one of these two domains could close a range of the other domain.
            None => RangeDomain::IGNORED,
            Some(number) => RangeDomain(number),
        }
    })
}

/// Returns the id of a name, and assigns an id if the name is new. Returns [`RangeId::OTHER`] if there are too many
/// names.
#[cold]
pub(crate) fn intern(domain: RangeDomain, name: RangeName<'_>) -> RangeId {
    match name {
        RangeName::Registered(id) => id,
        _ => {
            with_text(name, |text| number_in_domain(domain, text, MAX_NAMES).map_or(RangeId::OTHER, RangeId))
        }
    }
}

fn number_in_domain(domain: RangeDomain, text: &[u8], max: usize) -> Option<u32> {
    NAMES.number_of(hash_bytes(domain, text), domain.0, text, max)
}

/// Calls `body` with the bytes of the name, truncated to the maximum length. Wide characters are converted to UTF-8.
fn with_text<T>(name: RangeName<'_>, body: impl FnOnce(&[u8]) -> T) -> T {
    match name {
        RangeName::Text(text) => body(&text[..text.len().min(MAX_NAME_BYTES)]),
        RangeName::Wide(text) => {
            let (mut bytes, mut count) = ([0; MAX_NAME_BYTES], 0);
            for letter in text {
                let letter = char::from_u32(*letter).unwrap_or(char::REPLACEMENT_CHARACTER);
                if count + letter.len_utf8() > MAX_NAME_BYTES {
                    break;
                }
                count += letter.encode_utf8(&mut bytes[count..]).len();
            }
            body(&bytes[..count])
        }
        RangeName::Registered(_) => body(b""),
    }
}

/// Passes a row for each new name to `each`. Launch contexts refer to range names, so the following order is required.
/// First mark the ends of the context logs, then call this function, and then pass on the contexts up to these marks.
/// Only one thread may call this function at a time.
pub(crate) fn drain_names(each: &mut impl FnMut(&Row<'_>)) {
    NAMES.drain_new(|number, domain, text| {
        if number == RangeId::OTHER.0 {
            return each(&Row::Range { id: RangeId::OTHER, domain: "", text: "(one of too many names)" });
        }
        if domain == RangeDomain::DOMAIN_NAMES.0 {
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

    /// This module has only one test, because all tests share the table of names, which belongs to the process.
    #[test]
    fn a_range_name_has_one_id_on_all_threads_and_is_emitted_once() {
        let mut told = HashMap::new();
        let tell = |told: &mut HashMap<u32, (String, String)>| {
            drain_names(&mut |row| {
                let Row::Range { id, domain, text } = row else { panic!("{row:?}") };
                let before = told.insert(id.0, ((*domain).to_owned(), (*text).to_owned()));
                assert_eq!(before, None, "emitted twice");
            });
        };
        for round in 0..20 {
            NAMES.assign_number_without_text();
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
