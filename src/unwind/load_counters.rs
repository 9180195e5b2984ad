//! Detects whether objects were loaded or unloaded since the loader was last queried. The check reads two words of
//! memory and takes no lock.
//!
//! `dl_iterate_phdr` would also report loads and unloads, but it takes the loader's lock, for which all launching
//! threads would contend. In `_rtld_global`, glibc has two counters: the number of objects ever loaded, and the number
//! of objects of the program's own namespace that are loaded now. No public interface defines the offsets of these
//! counters in `_rtld_global`. Therefore [`find`] searches for the counters once, by the pattern of the data around the
//! counters. Every later [`read_under_lock`] compares the counters with the numbers that `dl_iterate_phdr` reports. If
//! the counters are not found, [`is_unchanged`] always returns false, and every capture queries the loader. Once the
//! counters differ from the numbers that `dl_iterate_phdr` reports, every capture queries the loader, too.
//!
//! ```text
//! _rtld_global: { map of the program | loaded now: u32 | … } namespace 0, … namespace 15
//!               | namespaces in use | lock | lock that dl_iterate_phdr holds | [lock] | ever loaded: u64 | …
//! ```
//!
//! If a thread runs code of a newly loaded object, it has synchronized with the thread that loaded the object.
//! Therefore this thread sees the new values of the counters. For namespaces other than the program's (`dlmopen`), the
//! counters count loads, but not unloads. Therefore, while a namespace other than the program's contains objects, every
//! capture queries the loader.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::loader_state::LoaderCounters;

/// Address of the number of objects ever loaded; null if the counters were not found.
static EVER_LOADED: AtomicPtr<u64> = AtomicPtr::new(null_mut());
/// Address of the number of objects loaded in the program's namespace. This address is valid if `EVER_LOADED` is not
/// null.
static LOADED_NOW: AtomicPtr<u32> = AtomicPtr::new(null_mut());
/// Values of both counters at the last query of the loader, packed into one word.
static LAST_NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Whether both counters have the same values as at the last call of [`note`].
#[inline(always)]
pub(super) fn is_unchanged() -> bool {
    // Load `LAST_NUMBERS` before loading the counters. The loader state that belongs to `LAST_NUMBERS` was published
    // before `LAST_NUMBERS` was stored, so if the counters match the stored values, the published state is current.
    let noted = LAST_NUMBERS.load(Ordering::Acquire);
    numbers().is_some_and(|numbers| numbers == noted)
}

/// Returns both counters packed into one word, or `None` if the counters were not found.
#[inline(always)]
fn numbers() -> Option<u64> {
    let ever = EVER_LOADED.load(Ordering::Acquire);
    if ever.is_null() {
        return None;
    }
    // SAFETY: `find` saw an aligned u64 at this address in the loader's own data, which is never unmapped.
    let ever = unsafe { AtomicU64::from_ptr(ever) }.load(Ordering::Relaxed);
    // SAFETY: `find` saw an aligned u32 at this address. The address was stored before `EVER_LOADED` was set.
    let now = unsafe { AtomicU32::from_ptr(LOADED_NOW.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
    Some(ever << 32 | u64::from(now))
}

/// Reads both counters while the loader's lock is held. Returns `None` if the counters differ from `counters` (the
/// numbers that the loader reports), or if a namespace other than the program's contains objects.
pub(super) fn read_under_lock(counters: LoaderCounters) -> Option<u64> {
    let numbers = numbers()?;
    if (numbers >> 32) as u32 != counters.loads() {
        EVER_LOADED.store(null_mut(), Ordering::Release);
        return None;
    }
    (numbers as u32 == counters.loaded()).then_some(numbers)
}

/// Stores the counters that [`read_under_lock`] returned, for later calls of [`is_unchanged`]. Call this
/// function after publishing the loader state that belongs to these counters.
pub(super) fn note(numbers: Option<u64>) {
    if let Some(numbers) = numbers {
        LAST_NUMBERS.store(numbers, Ordering::Release);
    }
}

/// Searches for the two counters in `_rtld_global`, which starts at `global` and is `bytes` bytes long. Call this
/// function from a visitor of `dl_iterate_phdr`, which runs under the loader's lock. `counters` are the numbers that
/// the loader passed to the visitor.
///
/// The counter of loads is recognized by its value and by the data before it: a plausible number of namespaces, then
/// two or three recursive mutexes. This thread must hold the second mutex. The search succeeds only if exactly one
/// word of `_rtld_global` matches.
///
/// # Safety
/// The `bytes` bytes that start at `global` must be readable, and `global` must be aligned to 8
/// bytes.
pub(super) unsafe fn find(global: *mut c_void, bytes: usize, counters: LoaderCounters) {
    // SAFETY: the caller guarantees that these words are readable. The loader's lock is held, so the
    // counters do not change.
    let words = unsafe { std::slice::from_raw_parts(global.cast::<AtomicU64>(), bytes / 8) };
    // Read each word only once, into a copy. During the search, other threads may start to wait for the lock, which
    // changes words of the lock.
    let mut copy = [0; MAX_WORDS];
    copy.iter_mut().zip(words).for_each(|(copied, word)| *copied = word.load(Ordering::Relaxed));
    let words = &copy[..words.len().min(MAX_WORDS)];
    // SAFETY: gettid only returns a number.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let mut found = (0..words.len()).filter(|&at| is_load_counter(words, at, counters, thread));
    let (Some(at), None) = (found.next(), found.next()) else { return };
    let loaded = words[1] as u32;
    if loaded != counters.loaded() {
        return;
    }
    LOADED_NOW.store(global.cast::<u32>().wrapping_add(2), Ordering::Relaxed);
    EVER_LOADED.store(global.cast::<u64>().wrapping_add(at), Ordering::Release);
}

/// Maximum number of words of `_rtld_global` that are searched. `_rtld_global` has about 540 words.
const MAX_WORDS: usize = 1024;

/// Size of a `pthread_mutex_t` in words.
const MUTEX_WORDS: usize = size_of::<libc::pthread_mutex_t>() / 8;

fn is_load_counter(words: &[u64], at: usize, counters: LoaderCounters, thread: u32) -> bool {
    const NAMESPACES: std::ops::RangeInclusive<u64> = 1..=16;
    let is_recursive = |mutex: &[u64]| mutex[2] as u32 == libc::PTHREAD_MUTEX_RECURSIVE as u32;
    let is_ours = |mutex: &[u64]| mutex[0] >> 32 != 0 && mutex[1] as u32 == thread;
    // Since glibc 2.35, three locks precede the counter. Before glibc 2.35, two locks precede the counter.
    let locks = |count: usize| {
        let before = at.checked_sub(count * MUTEX_WORDS + 1).map(|from| &words[from..at]);
        before.is_some_and(|before| {
            let mut mutexes = before[1..].chunks_exact(MUTEX_WORDS);
            NAMESPACES.contains(&before[0])
                && mutexes.clone().all(is_recursive)
                && mutexes.nth(1).is_some_and(is_ours)
        })
    };
    words[at] == u64::from(counters.loads()) && (locks(2) || locks(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutex(owner: u32) -> [u64; MUTEX_WORDS] {
        let mut mutex = [0; MUTEX_WORDS];
        mutex[..3].copy_from_slice(&[u64::from(owner != 0) << 32, u64::from(owner), 1]);
        mutex
    }

    #[test]
    fn the_load_counter_is_identified_by_the_locks_before_it() {
        let counters = LoaderCounters::new(57, 4);
        let layout = |locks: &[u32]| {
            let locks = locks.iter().flat_map(|owner| mutex(*owner));
            [57, 0, 1].into_iter().chain(locks).chain([57, 57]).collect::<Vec<_>>()
        };
        let found = |words: &[u64]| {
            (0..words.len()).filter(|at| is_load_counter(words, *at, counters, 7)).collect::<Vec<_>>()
        };
        assert_eq!(found(&layout(&[0, 7, 0])), [3 + 3 * MUTEX_WORDS]);
        assert_eq!(found(&layout(&[0, 7])), [3 + 2 * MUTEX_WORDS]);
        assert_eq!(found(&layout(&[0, 8, 0])), Vec::<usize>::new(), "another thread's lock");
        assert_eq!(found(&layout(&[7])), Vec::<usize>::new(), "too few locks");
    }
}
