//! Determines the bounds of the stack that a thread was started on.
//!
//! Each thread's bounds are queried once, because the stack that a thread was started on stays mapped as long as the
//! thread runs. Any other stack (a coroutine's stack or a signal stack) may be unmapped or resized at any moment.
//! Therefore the bounds of other stacks are neither queried nor cached: see `copy`.

use std::sync::atomic::{AtomicPtr, Ordering};

/// The bounds of one stack, as the address range `lo..hi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct StackBounds {
    pub lo: u64,
    pub hi: u64,
}

impl StackBounds {
    /// Returns the bounds of the stack that the calling thread was started on, or an empty range if the bounds cannot
    /// be determined. Call this function once per thread, because it calls `pthread_getattr_np`, which allocates.
    pub(crate) fn of_this_thread() -> Self {
        query_stack().unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn contains(self, address: u64) -> bool {
        address.wrapping_sub(self.lo) < self.hi.wrapping_sub(self.lo)
    }
}

/// Size in bytes that is assumed for the main thread's stack if the stack's limit (`RLIMIT_STACK`) is larger than this
/// size, or unknown.
const MAX_MAIN_STACK_BYTES: u64 = 64 << 20;

/// Address of `__libc_stack_end`, the loader's variable that contains the top of the main thread's stack. The pointer
/// is null until [`prepare`] has run, and stays null if libc does not export the symbol.
static STACK_END: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up `__libc_stack_end` in advance, because `dlsym` cannot be called inside a callback.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string; dlsym has no other requirement.
    let end = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_stack_end".as_ptr()) };
    STACK_END.store(end.cast(), Ordering::Relaxed);
}

fn query_stack() -> Option<StackBounds> {
    // SAFETY: both calls only return a number.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::syscall(libc::SYS_getpid) };
    if is_main && let Some(stack) = main_stack() {
        return Some(stack);
    }
    thread_stack()
}

/// Computes the bounds of the main thread's stack from the stack's top and its size limit. This function avoids
/// `pthread_getattr_np`, which would parse `/proc/self/maps` for the main thread.
fn main_stack() -> Option<StackBounds> {
    let end = STACK_END.load(Ordering::Relaxed);
    if end.is_null() {
        return None;
    }
    // SAFETY: a non-null value is the address of the loader's variable, which exists as long as the process.
    let hi = unsafe { end.read() };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    let size = if known { limit.rlim_cur.min(MAX_MAIN_STACK_BYTES) } else { MAX_MAIN_STACK_BYTES };
    let here = (&raw const limit) as u64;
    let stack = StackBounds { lo: hi.saturating_sub(size), hi };
    // If a thread other than the main thread has forked, the id of the child's only thread equals the process id.
    // Therefore the child's thread looks like a main thread, but does not run on the main stack.
    stack.contains(here).then_some(stack)
}

fn thread_stack() -> Option<StackBounds> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: if the call returns 0, it has initialized the attributes.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let mut lowest = std::ptr::null_mut();
    let mut size = 0;
    // SAFETY: `attributes` was initialized above, and both results are writable.
    let known = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size) } == 0;
    // SAFETY: `attributes` was initialized above, and is not used after this call.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let lo = lowest as u64;
    known.then(|| StackBounds { lo, hi: lo + size as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_locals_are_within_its_stack_bounds() {
        // This test runs on a thread of the harness. The main thread is tested in tests/unwind/main_thread.rs.
        prepare();
        let local = 0u64;
        assert!(StackBounds::of_this_thread().contains((&raw const local) as u64));
    }
}
