//! Activity kinds that a client has enabled or disabled for a single CUDA context. A setting for a single context
//! overrides the setting for all contexts. Only CUPTI's old interface has these calls.

use crate::subscriber::{GLOBAL, Subscriber};
use gpusim_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Activity kinds that a client has enabled and disabled for a context, one bit per kind.
#[derive(Clone, Copy, Default)]
struct Said {
    on: u64,
    off: u64,
}

/// Settings for single CUDA contexts, keyed by context id; ids are never reused.
static SAID: Mutex<BTreeMap<u32, Said>> = Mutex::new(BTreeMap::new());
/// Whether a client has enabled or disabled a kind for a single CUDA context. If no client has done so, a record can be
/// made without taking a lock.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Enables or disables an activity kind for a context.
pub(crate) fn say(context: u32, kind: u32, on: bool) {
    let mut all = lock(&SAID);
    let said = all.entry(context).or_default();
    let (more, less) = if on { (&mut said.on, &mut said.off) } else { (&mut said.off, &mut said.on) };
    *more |= 1 << kind;
    *less &= !(1 << kind);
    IS_ANY.store(true, Relaxed);
}

/// Removes all settings for single CUDA contexts.
pub(crate) fn forget() {
    lock(&SAID).clear();
    IS_ANY.store(false, Relaxed);
}

/// Returns the activity kinds that are enabled for at least one CUDA context.
pub(crate) fn on_in_any() -> u64 {
    lock(&SAID).values().fold(0, |all, said| all | said.on)
}

/// Returns the activity kinds that a client has enabled for a CUDA context.
pub(crate) fn kinds(one: &Subscriber, context: u32) -> u64 {
    let of_all = one.kinds.load(Relaxed);
    if one.place != GLOBAL.place || !IS_ANY.load(Relaxed) {
        return of_all;
    }
    let said = lock(&SAID).get(&context).copied().unwrap_or_default();
    (of_all & !said.off) | said.on
}
