//! Kinds of records of one context. What is said of a context goes before what is said of all, and only the old interface
//! can say it.

use crate::lanes::lock;
use crate::subscriber::{GLOBAL, Subscriber};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bits of kinds.
#[derive(Clone, Copy, Default)]
struct Said {
    on: u64,
    off: u64,
}

/// By the contexts' numbers, none of which is used again.
static SAID: Mutex<BTreeMap<u32, Said>> = Mutex::new(BTreeMap::new());
/// Whether there is any: who makes a record asks for no lock otherwise.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Has records of a kind made of a context, or none.
pub(crate) fn say(context: u32, kind: u32, on: bool) {
    let mut all = lock(&SAID);
    let said = all.entry(context).or_default();
    let (more, less) = if on { (&mut said.on, &mut said.off) } else { (&mut said.off, &mut said.on) };
    *more |= 1 << kind;
    *less &= !(1 << kind);
    IS_ANY.store(true, Relaxed);
}

/// Nothing is said of any.
pub(crate) fn forget() {
    lock(&SAID).clear();
    IS_ANY.store(false, Relaxed);
}

/// The kinds that are on in any context.
pub(crate) fn on_in_any() -> u64 {
    lock(&SAID).values().fold(0, |all, said| all | said.on)
}

/// The kinds of which a client wants records of a context.
pub(crate) fn kinds(one: &Subscriber, context: u32) -> u64 {
    let of_all = one.kinds.load(Relaxed);
    if one.place != GLOBAL.place || !IS_ANY.load(Relaxed) {
        return of_all;
    }
    let said = lock(&SAID).get(&context).copied().unwrap_or_default();
    (of_all & !said.off) | said.on
}
