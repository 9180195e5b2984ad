//! The reserve is a part of the library's own image. When the kernel maps no more memory, the heap allocates from the
//! reserve.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pages::round_up_to_pages;
use crate::process::threads;
use crate::shortage;

/// Size of the reserve in bytes. The reserve's pages take no memory until they are written to.
const RESERVE_BYTES: usize = 6 << 20;
/// Number of bytes of the reserve that only the application's threads may use. When memory runs out, gpuflame's own
/// threads may stop, but the application's threads must continue.
const APPLICATION_BYTES: usize = 1 << 20;

#[repr(C, align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: each part of the reserve is handed out only once.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve(UnsafeCell::new([0; RESERVE_BYTES]));
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Allocates zeroed memory from the reserve, starting at a page boundary. Also sets the flag which shows that memory
/// has run out.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    shortage::set_short();
    let limit = if threads::is_ours() { RESERVE_BYTES - APPLICATION_BYTES } else { RESERVE_BYTES };
    let add = |given: usize| given.checked_add(round_up_to_pages(bytes)).filter(|given| *given <= limit);
    let given = USED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
    let block = RESERVE.0.get().cast::<u8>();
    block.expose_provenance();
    NonNull::new(block.wrapping_add(given))
}

/// Whether the block is part of the reserve.
pub(super) fn contains(block: *mut u8) -> bool {
    let start = RESERVE.0.get().addr();
    (start..start + RESERVE_BYTES).contains(&block.addr())
}
