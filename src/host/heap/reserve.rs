//! The last memory there is: a part of the library's own image.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pages::in_pages;
use crate::host::{shortage, threads};

/// What there is when nobody gives any memory. No page of it takes any before it is written to.
const RESERVE: usize = 6 << 20;
/// What of that is left to the application's threads: they are not to be stopped, as ours are.
const FOR_OTHERS: usize = 1 << 20;

#[repr(C, align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: each part of it is given away once.
unsafe impl Sync for Reserve {}

static LAST: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// So many bytes of the reserve, which are zero, from the start of a page. Whoever should know learns that it came to this.
pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
    shortage::fall_short();
    let most = if threads::is_ours() { RESERVE - FOR_OTHERS } else { RESERVE };
    let add = |given: usize| given.checked_add(in_pages(bytes)).filter(|given| *given <= most);
    let given = GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
    let block = LAST.0.get().cast::<u8>();
    block.expose_provenance();
    NonNull::new(block.wrapping_add(given))
}

/// Whether this block lies in it.
pub(super) fn has(block: *mut u8) -> bool {
    let start = LAST.0.get().addr();
    (start..start + RESERVE).contains(&block.addr())
}
