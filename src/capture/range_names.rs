//! The names of ranges, and the domains that keep them apart: interned once for the process, under a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::record::{RangeId, Row};

use super::intern::Hash;

/// Names there may be in all: a program that puts a number into each must not fill the memory.
const MOST_NAMES: usize = 1 << 16;
/// Bytes of a name that are looked at.
const LONGEST_NAME: usize = 512;

/// What keeps ranges apart: those of one domain are popped by that domain alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDomain(u32);

impl RangeDomain {
    /// Ranges of NVTX outside of all domains.
    pub const DEFAULT: Self = Self(0);
    /// `gpuflame_range_push`.
    pub const USER: Self = Self(u32::MAX);
    /// Domains that the user does not want to see.
    pub const IGNORED: Self = Self(u32::MAX - 1);

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

/// What a name is found by: not its address, at which another may stand the next time.
pub(super) fn hash_bytes(domain: RangeDomain, text: &[u8]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    let start = Hash::ROOT.then(u64::from(domain.0)).then(text.len() as u64);
    text.chunks(8).fold(start, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    })
}

/// The same for a name of wide characters.
pub(super) fn hash_wide(domain: RangeDomain, text: &[u32]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    // Above all lengths in bytes.
    let start = Hash::ROOT.then(u64::from(domain.0)).then(1 << 32 | text.len() as u64);
    text.iter().fold(start, |hash, letter| hash.then(u64::from(*letter)))
}

/// All names there are.
struct Names {
    /// By number, from 1 on; number 0 is [`RangeDomain::DEFAULT`].
    domains: Vec<String>,
    ignored: Vec<String>,
    ids: Option<HashMap<(u32, String), RangeId>>,
    /// Those that the collector has not seen.
    new: Vec<(RangeId, u32, String)>,
}

static NAMES: Mutex<Names> =
    Mutex::new(Names { domains: Vec::new(), ignored: Vec::new(), ids: None, new: Vec::new() });
/// How many names there are: so that the collector sees that there is none without the lock.
static NAMED: AtomicU32 = AtomicU32::new(0);

fn names() -> std::sync::MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says which domains of NVTX are to be left out.
pub fn ignore_domains(domains: &[String]) {
    names().ignored = domains.to_vec();
}

/// The domain of this name: the same for all who ask for it.
pub(super) fn domain(name: &str) -> RangeDomain {
    let mut names = names();
    if names.ignored.iter().any(|ignored| ignored == name) {
        return RangeDomain::IGNORED;
    }
    let known = names.domains.iter().position(|known| known == name);
    let at = known.unwrap_or_else(|| {
        names.domains.push(name.to_owned());
        names.domains.len() - 1
    });
    RangeDomain(at as u32 + 1)
}

/// The id of a name, which need not be new.
#[cold]
pub(super) fn intern(domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
    let text = match name {
        RangeName::Known(id) => return Some(id),
        RangeName::Text(text) => String::from_utf8_lossy(&text[..text.len().min(LONGEST_NAME)]).into_owned(),
        RangeName::Wide(text) => {
            let letters = text.iter().take(LONGEST_NAME);
            letters.map(|letter| char::from_u32(*letter).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
    };
    let mut names = names();
    let count = names.ids.as_ref().map_or(0, HashMap::len);
    let key = (domain.0, text);
    if let Some(id) = names.ids.get_or_insert_default().get(&key) {
        return Some(*id);
    }
    if count >= MOST_NAMES {
        return Some(RangeId::OTHER);
    }
    let id = RangeId(count as u32 + 1);
    names.new.push((id, key.0, key.1.clone()));
    names.ids.get_or_insert_default().insert(key, id);
    NAMED.store(id.0, Ordering::Release);
    Some(id)
}

/// Hands over the names that are new. To be called after the contexts that hold them were marked, and before
/// they are handed over.
pub(super) fn drain_names(each: &mut impl FnMut(&Row<'_>)) {
    static DRAINED: AtomicU32 = AtomicU32::new(0);
    let named = NAMED.load(Ordering::Acquire);
    if DRAINED.swap(named, Ordering::Relaxed) == named {
        return;
    }
    // Not handed over under the lock: whoever takes rows may be slow.
    let (new, domains) = {
        let mut names = names();
        (std::mem::take(&mut names.new), names.domains.clone())
    };
    if named > 0 && new.first().is_some_and(|(id, ..)| id.0 == 1) {
        each(&Row::Range { id: RangeId::OTHER, domain: "", text: "(one of too many names)" });
    }
    for (id, domain, text) in &new {
        let domain = domain.checked_sub(1).and_then(|at| domains.get(at as usize)).map_or("", String::as_str);
        let text = if text.is_empty() { "(no name)" } else { text };
        each(&Row::Range { id: *id, domain, text });
    }
}
