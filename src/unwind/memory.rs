//! Maps memory directly from the kernel.
//!
//! Our callback runs inside the host program, possibly inside the program's allocator (some programs launch a kernel in
//! `malloc`). Therefore the code of the callback must not call `malloc`. The only exception is a thread's first launch,
//! which calls `malloc` to query the bounds of the thread's stack. All memory that `unwind` and `capture` need per
//! thread or per process is mapped by this module, zeroed. Every mapped byte is counted, and the ledger (gpuflame's
//! report of its own losses and overhead) prints the sum.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Number of bytes that this process has mapped through this module and not yet released.
pub fn bytes_held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Maps `bytes` bytes of zeroed, page-aligned memory. Returns `None` if the kernel refuses the mapping.
pub fn map(bytes: usize) -> Option<NonNull<u8>> {
    let memory = reserve(bytes)?;
    count_used(bytes);
    Some(memory)
}

/// Adds `bytes` bytes of memory from [`reserve`] to [`bytes_held`], because the caller now uses this
/// memory.
pub fn count_used(bytes: usize) {
    HELD.fetch_add(bytes, Ordering::Relaxed);
}

/// Maps memory like [`map`], but does not add its size to [`bytes_held`] yet, because most of the memory may never be
/// touched.
pub fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(address.cast())
}

/// Releases memory from [`map`].
///
/// # Safety
/// `memory` must come from [`map`] with the same size, and must not be referenced any more.
pub unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller fulfils the safety conditions of this function.
    unsafe { release(memory, bytes, bytes) };
}

/// Releases memory from [`reserve`]. `counted` is the number of bytes of this memory that were passed to
/// [`count_used`].
///
/// # Safety
/// The conditions of [`unmap`] apply.
pub unsafe fn release(memory: NonNull<u8>, bytes: usize, counted: usize) {
    // SAFETY: the caller guarantees that `memory` is a whole mapping of ours, and that it is not in use.
    unsafe { libc::munmap(memory.as_ptr().cast(), bytes) };
    HELD.fetch_sub(counted, Ordering::Relaxed);
}

/// Reads the word at `address`, which may have any alignment.
///
/// # Safety
/// The eight bytes that start at `address` must be mapped and readable.
#[inline(always)]
pub unsafe fn word(address: u64) -> u64 {
    // SAFETY: the caller guarantees that the eight bytes are readable, and this kind of read needs no alignment.
    unsafe { (address as *const u64).read_unaligned() }
}

/// Copies up to `bytes` bytes from `address` to `to` and returns the number of copied bytes. The copy ends at the first
/// byte that is unreadable at the time of the call. The kernel checks the pages, so any address may be passed. A copy
/// takes one system call (`process_vm_readv`). If a sandbox refuses `process_vm_readv`, a copy takes three other system
/// calls. The host's errno is preserved.
///
/// # Safety
/// `bytes` bytes at `to` must be writable.
#[cold]
pub unsafe fn copy_mapped(address: u64, to: *mut u8, bytes: usize) -> usize {
    // SAFETY: errno's location is valid for as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno's location is valid for as long as the thread runs.
    let before = unsafe { errno.read() };
    let mut copied = -1;
    if !IS_SYSCALL_REFUSED.load(Ordering::Relaxed) {
        // SAFETY: the caller guarantees that `to` is writable.
        copied = unsafe { copy_by_syscall(address, to, bytes) };
        // SAFETY: errno's location is valid for as long as the thread runs.
        if copied < 0 && matches!(unsafe { errno.read() }, libc::ENOSYS | libc::EPERM | libc::EACCES) {
            IS_SYSCALL_REFUSED.store(true, Ordering::Relaxed);
        }
    }
    if IS_SYSCALL_REFUSED.load(Ordering::Relaxed) {
        // SAFETY: the caller guarantees that `to` is writable.
        copied = unsafe { copy_by_file(address, to, bytes) };
    }
    // SAFETY: errno's location is valid for as long as the thread runs.
    unsafe { errno.write(before) };
    usize::try_from(copied).unwrap_or(0)
}

/// Whether `process_vm_readv` was refused, by an old container's system call filter or by an old kernel.
static IS_SYSCALL_REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether a copy has to open a file, because `process_vm_readv` was refused. If a copy opens a file, threads should
/// copy rarely, because files that the host opens while our file is open get other descriptor numbers than usual.
pub(super) fn needs_descriptor() -> bool {
    IS_SYSCALL_REFUSED.load(Ordering::Relaxed)
}

/// # Safety
/// `bytes` bytes at `to` must be writable.
unsafe fn copy_by_syscall(address: u64, to: *mut u8, bytes: usize) -> i64 {
    let local = libc::iovec { iov_base: to.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
    // Pass 64-bit arguments, because the kernel reads the whole register, and the upper half would be garbage for a
    // narrower argument.
    let (one, none) = (1 as libc::c_ulong, 0 as libc::c_ulong);
    let this = this_process();
    // SAFETY: the caller guarantees that `to` is writable; the kernel checks the source address itself.
    unsafe {
        libc::syscall(libc::SYS_process_vm_readv, this, &raw const local, one, &raw const remote, one, none)
    }
}

/// A page that contains the process's id. The kernel fills the page with zeroes in a forked child. The pointer to this
/// page is null if the kernel does not support such pages.
static PROCESS: AtomicPtr<AtomicI64> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the page that contains the process's id, so that a copy needs no `getpid` system call. Call this function
/// when the library is loaded.
pub(super) fn prepare() {
    const PAGE: usize = 4096;
    if !PROCESS.load(Ordering::Relaxed).is_null() {
        return;
    }
    let Some(page) = map(PAGE) else { return };
    // SAFETY: `page` is a whole mapping of ours, and no other thread knows this mapping yet.
    if unsafe { libc::madvise(page.as_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) } == 0 {
        let process = page.as_ptr().cast();
        let (new, old) = (Ordering::AcqRel, Ordering::Relaxed);
        if PROCESS.compare_exchange(std::ptr::null_mut(), process, new, old).is_ok() {
            return;
        }
    }
    // SAFETY: this mapping has that size and belongs to us. No code uses the mapping, because the kernel is too old for
    // such a page, or because another thread has published its own page first.
    unsafe { unmap(page, PAGE) };
}

/// Returns the id of this process. Only the first call in each process makes a system call.
fn this_process() -> i64 {
    // SAFETY: the pointer is null, or points to a word in a mapping that is never unmapped.
    let kept = unsafe { PROCESS.load(Ordering::Acquire).as_ref() };
    if let Some(id) = kept.map(|id| id.load(Ordering::Relaxed)).filter(|id| *id != 0) {
        return id;
    }
    // SAFETY: getpid has no preconditions.
    let id = unsafe { libc::syscall(libc::SYS_getpid) };
    if let Some(kept) = kept {
        kept.store(id, Ordering::Relaxed);
    }
    id
}

/// Copies like [`copy_by_syscall`], but reads `/proc/self/mem`, the file that contains this process's memory. The file
/// is opened for each copy, because the host could close a long-lived descriptor of ours and reuse its number for
/// another file. Like a debugger, this function also reads pages without read permission. Therefore the guard page at a
/// stack's end may look like a part of the stack that is filled with zeroes.
///
/// # Safety
/// `bytes` bytes at `to` must be writable.
unsafe fn copy_by_file(address: u64, to: *mut u8, bytes: usize) -> i64 {
    let (path, flags) = (c"/proc/self/mem".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: the path is a C string. The call goes through `syscall`, because libc's functions are cancellation
    // points.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) };
    if file < 0 {
        return -1;
    }
    // SAFETY: the caller guarantees that `to` is writable; the kernel checks the source address itself.
    let copied = unsafe { libc::syscall(libc::SYS_pread64, file, to, bytes, address) };
    // SAFETY: `file` is a descriptor that we opened.
    unsafe { libc::syscall(libc::SYS_close, file) };
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_zero_and_writable() {
        let memory = map(8192).expect("memory for two pages");
        // SAFETY: the mapping is 8192 bytes long and belongs to this test.
        unsafe {
            assert_eq!(word(memory.as_ptr() as u64 + 8184), 0);
            memory.as_ptr().write(1);
            assert_eq!(word(memory.as_ptr() as u64), 1);
            unmap(memory, 8192);
        }
    }

    #[test]
    fn a_forked_child_copies_its_own_memory() {
        prepare();
        static WORD: AtomicI64 = AtomicI64::new(1);
        let copied = || {
            let mut word = 0i64;
            // SAFETY: eight bytes at `word` are writable.
            let copied = unsafe { copy_by_syscall((&raw const WORD) as u64, (&raw mut word).cast(), 8) };
            (copied, word)
        };
        assert_eq!(copied(), (8, 1));
        // SAFETY: the child only makes system calls, and exits without running the harness's exit handlers.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                WORD.store(2, Ordering::Relaxed);
                libc::_exit(i32::from(copied() != (8, 2)));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0, "the child copied its own word");
        }
        assert_eq!(copied(), (8, 1));
    }

    type Way = unsafe fn(u64, *mut u8, usize) -> i64;

    #[test]
    fn both_copy_methods_stop_at_unmapped_memory() {
        let memory = map(3 * 4096).expect("memory for three pages");
        let first = memory.as_ptr() as u64;
        // SAFETY: the mapping is ours, and no code uses its last page after this call.
        unsafe {
            memory.as_ptr().add(8000).write_bytes(7, 192);
            libc::munmap(memory.as_ptr().add(8192).cast(), 4096);
        }
        for way in [copy_by_syscall as Way, copy_by_file as Way] {
            let mut copied = [0u8; 400];
            // SAFETY: 400 bytes at `copied` are writable.
            let mut copy = |from, bytes| unsafe { way(from, copied.as_mut_ptr(), bytes) };
            assert_eq!(copy(first + 8000, 400), 192);
            assert_eq!(copy(first + 8000, 100), 100);
            assert!(copy(first + 8192, 8) < 0 && copy(8, 8) < 0 && copy(u64::MAX - 3, 8) < 0);
            assert!(copied[..192].iter().all(|byte| *byte == 7) && copied[192] == 0);
        }
        // SAFETY: the rest of the mapping is ours and no longer in use.
        unsafe { libc::munmap(memory.as_ptr().cast(), 8192) };
        HELD.fetch_sub(3 * 4096, Ordering::Relaxed);
    }

    #[test]
    fn a_copy_from_an_unmapped_address_is_empty_and_preserves_errno() {
        // SAFETY: errno's location is valid for as long as the thread runs.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 77;
        let mut word = 0u64;
        // SAFETY: eight bytes at `word` are writable.
        let copied = unsafe { copy_mapped(8, (&raw mut word).cast(), 8) };
        assert_eq!((copied, *errno), (0, 77));
        assert!(!IS_SYSCALL_REFUSED.load(Ordering::Relaxed), "an unmapped address does not count as refused");
    }
}
