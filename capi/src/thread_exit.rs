//! Destructors of thread-local variables, registered without the C library.
//!
//! The standard library registers a destructor by `__cxa_thread_atexit_impl`. That of glibc aborts the process when it has no
//! memory for an entry, and waits for the loader's lock, which the first CUDA call may hold. The linker prefers the
//! function here for the code of this library, and no other library sees it. Threads of gpuflame register nothing: they end
//! with the process, or have nothing to drop that another thread waits for. Those of the application get a list by a key of
//! `pthread_key_create`; a destructor for which there is no memory is not called.

use std::alloc::{Layout, alloc, dealloc};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuflame::host::{loaded, threads};

global_asm!(
    ".pushsection .text.gpuflame_thread_exit,\"ax\",@progbits",
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl, @function",
    "__cxa_thread_atexit_impl:",
    "jmp {register}",
    ".popsection",
    register = sym register,
);

type Destructor = unsafe extern "C" fn(*mut c_void);

/// A registered destructor, and the one registered before it.
struct Entry {
    destructor: Destructor,
    value: *mut c_void,
    before: *mut Entry,
}

const ENTRY: Layout = Layout::new::<Entry>();

/// The key whose value is a thread's last entry, plus 1. 0: there is none yet.
static KEY: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn register(destructor: Destructor, value: *mut c_void, _library: *mut c_void) -> c_int {
    if threads::is_ours() {
        return 0;
    }
    let Some(key) = key() else { return 0 };
    // SAFETY: the type has a size.
    let entry = unsafe { alloc(ENTRY) }.cast::<Entry>();
    if entry.is_null() {
        return 0;
    }
    // SAFETY: the key exists, and the block is of that layout and nobody else's.
    unsafe {
        let before = libc::pthread_getspecific(key).cast();
        entry.write(Entry { destructor, value, before });
        if libc::pthread_setspecific(key, entry.cast()) != 0 {
            dealloc(entry.cast(), ENTRY);
        }
    }
    0
}

fn key() -> Option<libc::pthread_key_t> {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return Some(key as libc::pthread_key_t);
    }
    loaded::stay();
    let mut key = 0;
    // SAFETY: `key` is a place to write to, and the function stays where it is.
    if unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, key as usize + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(other) => {
            // SAFETY: created above, and no thread has used it.
            unsafe { libc::pthread_key_delete(key) };
            Some((other - 1) as libc::pthread_key_t)
        }
    }
}

/// Calls the destructors of a thread that ends, the last one first. For those that they register it is called again.
unsafe extern "C" fn thread_ends(last: *mut c_void) {
    let mut at = last.cast::<Entry>();
    while !at.is_null() {
        // SAFETY: `register` wrote it.
        let Entry { destructor, value, before } = unsafe { at.read() };
        // SAFETY: allocated there, with this layout; the destructor has not been called.
        unsafe {
            dealloc(at.cast(), ENTRY);
            destructor(value);
        }
        at = before;
    }
}
