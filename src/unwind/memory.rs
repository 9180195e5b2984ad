//! Memory that comes straight from the kernel.
//!
//! The callback runs inside somebody's program, as often as not inside somebody's allocator (a malloc that
//! launches a kernel is a real thing), so nothing on its path may call `malloc`; only a thread's first launch does, to
//! learn where its stack lies. What `unwind` and `capture` need for a thread or for the process is mapped here,
//! zeroed. Every byte is counted, and the ledger prints the sum.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes mapped now.
pub fn bytes_held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Maps `bytes` of zeroed memory, or `None` where the kernel refuses. It lies on a page boundary.
pub(crate) fn map(bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    HELD.fetch_add(bytes, Ordering::Relaxed);
    NonNull::new(address.cast())
}

/// Gives memory back that [`map`] handed out.
///
/// # Safety
/// `memory` came from [`map`] with the same size, and nothing refers to it any more.
pub(crate) unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller vouches that this is a whole mapping of ours that nobody uses.
    unsafe { libc::munmap(memory.as_ptr().cast(), bytes) };
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

/// The word at `address`, whatever its alignment.
///
/// # Safety
/// The eight bytes from `address` on are mapped and readable.
#[inline(always)]
pub(crate) unsafe fn word(address: u64) -> u64 {
    // SAFETY: the caller vouches for the eight bytes; no alignment is asked for.
    unsafe { (address as *const u64).read_unaligned() }
}

/// The word at `address`, or `None` where there is none: a system call, for addresses that are a guess.
#[cold]
pub(crate) fn word_if_mapped(address: u64) -> Option<u64> {
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: size_of::<u64>() };
    // SAFETY: errno's location is valid for as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    // SAFETY: the kernel writes at most eight bytes to `word`, and checks the other address itself.
    let read = unsafe {
        let this = libc::syscall(libc::SYS_getpid);
        // Whole registers: the upper half of a narrower argument may hold anything, and the kernel looks at it.
        let (one, none) = (1 as libc::c_ulong, 0 as libc::c_ulong);
        libc::syscall(libc::SYS_process_vm_readv, this, &raw const local, one, &raw const remote, one, none)
    };
    // SAFETY: as above. The host must find errno as it left it.
    unsafe { errno.write(before) };
    (read == size_of::<u64>() as i64).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_zero_and_writable() {
        let memory = map(8192).expect("two pages are to be had");
        // SAFETY: the mapping is 8192 bytes long and ours.
        unsafe {
            assert_eq!(word(memory.as_ptr() as u64 + 8184), 0);
            memory.as_ptr().write(1);
            assert_eq!(word(memory.as_ptr() as u64), 1);
            unmap(memory, 8192);
        }
    }

    #[test]
    fn a_guess_at_an_address_fails_without_harm() {
        let there = 42u64;
        assert_eq!(word_if_mapped((&raw const there) as u64), Some(42));
        assert_eq!(word_if_mapped(8), None);
    }
}
