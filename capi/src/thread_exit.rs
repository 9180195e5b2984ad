//! Registers destructors of thread-local variables without the C library's `__cxa_thread_atexit_impl`.
//!
//! The standard library registers destructors with `__cxa_thread_atexit_impl`. Glibc's version of this function aborts
//! the process if there is no memory for an entry. Glibc's version also waits for the loader's lock, which the first
//! CUDA call may hold. Therefore this file defines another version of `__cxa_thread_atexit_impl`, which the linker
//! prefers for the code of this library. No other library uses this file's version of `__cxa_thread_atexit_impl`. The
//! threads that gpuflame creates do not register destructors. The threads of gpuflame either live until the process
//! ends, or have nothing to drop that another thread needs. Each thread of the application has a list of destructors.
//! The thread's list of destructors is stored under a key from `pthread_key_create`. If there is no memory for an entry
//! of this list, the entry's destructor is not called.

use std::alloc::{Layout, alloc, dealloc};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuflame_os::{pinning, threads};

global_asm!(
    ".pushsection .text.gpuflame_thread_exit,\"ax\",@progbits",
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl, @function",
    "__cxa_thread_atexit_impl:",
    "jmp {register_destructor}",
    ".popsection",
    register_destructor = sym register_destructor,
);

type Destructor = unsafe extern "C" fn(*mut c_void);

/// A registered destructor, and a pointer to the entry that was registered before it.
struct Entry {
    destructor: Destructor,
    value: *mut c_void,
    before: *mut Entry,
}

const ENTRY_LAYOUT: Layout = Layout::new::<Entry>();

/// The `pthread` key under which a thread's most recently registered entry is stored, plus 1; 0 if there is no key yet.
static KEY: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn register_destructor(
    destructor: Destructor,
    value: *mut c_void,
    _library: *mut c_void,
) -> c_int {
    if threads::is_ours() {
        return 0;
    }
    let Some(key) = key() else { return 0 };
    // SAFETY: the layout's size is not 0.
    let entry = unsafe { alloc(ENTRY_LAYOUT) }.cast::<Entry>();
    if entry.is_null() {
        return 0;
    }
    // SAFETY: the key exists, and the block has the layout of an `Entry` and was allocated just now.
    unsafe {
        let before = libc::pthread_getspecific(key).cast();
        entry.write(Entry { destructor, value, before });
        if libc::pthread_setspecific(key, entry.cast()) != 0 {
            dealloc(entry.cast(), ENTRY_LAYOUT);
        }
    }
    0
}

fn key() -> Option<libc::pthread_key_t> {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return Some(key as libc::pthread_key_t);
    }
    pinning::pin_library();
    let mut key = 0;
    // SAFETY: `key` may be written, and `pin_library` keeps the function loaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(run_destructors)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, key as usize + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(other) => {
            // SAFETY: the key was created above, and no thread has used the key.
            unsafe { libc::pthread_key_delete(key) };
            Some((other - 1) as libc::pthread_key_t)
        }
    }
}

/// Calls the destructors of a thread that ends, in reverse order of their registration. If a destructor registers
/// further destructors, the C library calls this function again.
unsafe extern "C" fn run_destructors(last: *mut c_void) {
    let mut at = last.cast::<Entry>();
    while !at.is_null() {
        // SAFETY: `register_destructor` wrote this entry.
        let Entry { destructor, value, before } = unsafe { at.read() };
        // SAFETY: `register_destructor` allocated the entry with this layout, and the entry's destructor has not been
        // called yet.
        unsafe {
            dealloc(at.cast(), ENTRY_LAYOUT);
            destructor(value);
        }
        at = before;
    }
}
