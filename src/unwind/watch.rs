//! Whether objects were loaded or unloaded since somebody asked the loader: two loads, no lock.
//!
//! `dl_iterate_phdr` tells, but takes the loader's lock, for which all launching threads would queue. glibc
//! keeps what it tells in `_rtld_global`: how many objects were ever loaded, and how many of the program's own
//! namespace are. Their places are not part of any interface, so they are searched for, once, by what only
//! they look like (see [`find`]); every later [`note`] checks them against the loader's own answer; and where they
//! are not found, or ever contradict it, [`is_unchanged`] says no for good, and everybody asks the loader.
//!
//! ```text
//! _rtld_global: { map of the program | loaded now: u32 | … } namespace 0, … namespace 15
//!               | namespaces in use | lock | lock that dl_iterate_phdr holds | [lock] | ever loaded: u64 | …
//! ```
//!
//! Whoever runs code of a new object has learnt of it from the thread that loaded it, and so sees the new
//! numbers. Objects in other namespaces (`dlmopen`) count when they are loaded, not when they are unloaded: as long as
//! there are any, the loader is asked every time.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::counts::Told;

/// The number of objects ever loaded; null where it was not found.
static EVER_LOADED: AtomicPtr<u64> = AtomicPtr::new(null_mut());
/// The number of objects loaded in the program's namespace. Valid where the other is.
static LOADED_NOW: AtomicPtr<u32> = AtomicPtr::new(null_mut());
/// Both numbers when the loader was asked last.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// Whether both numbers are what they were when [`note`] was called last.
#[inline(always)]
pub(super) fn is_unchanged() -> bool {
    // What was noted is loaded first: what it belongs to was published before it was noted.
    let noted = NOTED.load(Ordering::Acquire);
    numbers().is_some_and(|numbers| numbers == noted)
}

/// Both numbers in one word.
#[inline(always)]
fn numbers() -> Option<u64> {
    let ever = EVER_LOADED.load(Ordering::Acquire);
    if ever.is_null() {
        return None;
    }
    // SAFETY: `find` saw an aligned u64 there, in the loader's own data, which is never unmapped.
    let ever = unsafe { AtomicU64::from_ptr(ever) }.load(Ordering::Relaxed);
    // SAFETY: likewise a u32; it was stored before the other pointer was.
    let now = unsafe { AtomicU32::from_ptr(LOADED_NOW.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
    Some(ever << 32 | u64::from(now))
}

/// The numbers as the loader's lock holds them still, if they are what it told with it, and all that there is: then
/// no other namespace holds an object.
pub(super) fn read_locked(told: Told) -> Option<u64> {
    let numbers = numbers()?;
    if (numbers >> 32) as u32 != told.loads() {
        EVER_LOADED.store(null_mut(), Ordering::Release);
        return None;
    }
    (numbers as u32 == told.loaded()).then_some(numbers)
}

/// Notes numbers that [`read_locked`] gave, once what the loader told with them is published.
pub(super) fn note(numbers: Option<u64>) {
    if let Some(numbers) = numbers {
        NOTED.store(numbers, Ordering::Release);
    }
}

/// Looks for the numbers. Called by a visitor of `dl_iterate_phdr`, which holds its lock, with what that told;
/// `global` is `_rtld_global`, and so many bytes long.
///
/// Searched for is a number equal to the one told, behind two or three recursive mutexes, of which the second
/// is this thread's now, behind a plausible number of namespaces; and there must be only one.
///
/// # Safety
/// The `bytes` from `global` on are readable, and `global` is aligned to 8 bytes.
pub(super) unsafe fn find(global: *mut c_void, bytes: usize, told: Told) {
    // SAFETY: the caller vouches for these words. The loader's lock is held, so none that matters changes.
    let words = unsafe { std::slice::from_raw_parts(global.cast::<AtomicU64>(), bytes / 8) };
    // But other threads may come and wait for it: so a copy, each word of which is read at once.
    let mut copy = [0; MOST_WORDS];
    copy.iter_mut().zip(words).for_each(|(copied, word)| *copied = word.load(Ordering::Relaxed));
    let words = &copy[..words.len().min(MOST_WORDS)];
    // SAFETY: gettid only returns a number.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let mut found = (0..words.len()).filter(|&at| is_count_of_loads(words, at, told, thread));
    let (Some(at), None) = (found.next(), found.next()) else { return };
    let loaded = words[1] as u32;
    if loaded != told.loaded() {
        return;
    }
    LOADED_NOW.store(global.cast::<u32>().wrapping_add(2), Ordering::Relaxed);
    EVER_LOADED.store(global.cast::<u64>().wrapping_add(at), Ordering::Release);
}

/// Words of `_rtld_global` that are looked at: it has some 540.
const MOST_WORDS: usize = 1024;

/// Words of a `pthread_mutex_t`.
const MUTEX: usize = size_of::<libc::pthread_mutex_t>() / 8;

fn is_count_of_loads(words: &[u64], at: usize, told: Told, thread: u32) -> bool {
    const NAMESPACES: std::ops::RangeInclusive<u64> = 1..=16;
    let is_recursive = |mutex: &[u64]| mutex[2] as u32 == libc::PTHREAD_MUTEX_RECURSIVE as u32;
    let is_ours = |mutex: &[u64]| mutex[0] >> 32 != 0 && mutex[1] as u32 == thread;
    // glibc has three locks there since 2.35, and had two before.
    let locks = |count: usize| {
        let before = at.checked_sub(count * MUTEX + 1).map(|from| &words[from..at]);
        before.is_some_and(|before| {
            let mut mutexes = before[1..].chunks_exact(MUTEX);
            NAMESPACES.contains(&before[0])
                && mutexes.clone().all(is_recursive)
                && mutexes.nth(1).is_some_and(is_ours)
        })
    };
    words[at] == u64::from(told.loads()) && (locks(2) || locks(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutex(owner: u32) -> [u64; MUTEX] {
        let mut mutex = [0; MUTEX];
        mutex[..3].copy_from_slice(&[u64::from(owner != 0) << 32, u64::from(owner), 1]);
        mutex
    }

    #[test]
    fn the_count_is_known_by_the_locks_before_it() {
        let told = Told::new(57, 4);
        let layout = |locks: &[u32]| {
            let locks = locks.iter().flat_map(|owner| mutex(*owner));
            [57, 0, 1].into_iter().chain(locks).chain([57, 57]).collect::<Vec<_>>()
        };
        let found = |words: &[u64]| {
            (0..words.len()).filter(|at| is_count_of_loads(words, *at, told, 7)).collect::<Vec<_>>()
        };
        assert_eq!(found(&layout(&[0, 7, 0])), [3 + 3 * MUTEX]);
        assert_eq!(found(&layout(&[0, 7])), [3 + 2 * MUTEX]);
        assert_eq!(found(&layout(&[0, 8, 0])), Vec::<usize>::new(), "another thread's lock");
        assert_eq!(found(&layout(&[7])), Vec::<usize>::new(), "too few");
    }
}
