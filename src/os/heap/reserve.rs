//! The reserve is the last memory available: a part of the library's own image.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pages::in_pages;
use crate::{shortage, threads};

/// Size of the reserve, which is used when no more memory can be mapped. The reserve's pages take no memory until they
/// are written to.
const RESERVE: usize = 6 << 20;
/// Part of the reserve that only the application's threads may use, because our threads stop when memory runs out, but the
/// application's threads must not stop.
const FOR_OTHERS: usize = 1 << 20;

#[repr(C, align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: each part of the reserve is handed out only once.
unsafe impl Sync for Reserve {}

static LAST: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Takes zeroed bytes from the reserve, starting at a page boundary, and records that memory has run out.
pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
    shortage::fall_short();
    let most = if threads::is_ours() { RESERVE - FOR_OTHERS } else { RESERVE };
    let add = |given: usize| given.checked_add(in_pages(bytes)).filter(|given| *given <= most);
    let given = GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
    let block = LAST.0.get().cast::<u8>();
    block.expose_provenance();
    NonNull::new(block.wrapping_add(given))
}

/// Whether the block is part of the reserve.
pub(super) fn has(block: *mut u8) -> bool {
    let start = LAST.0.get().addr();
    (start..start + RESERVE).contains(&block.addr())
}
