//! Where the stacks lie that a thread runs on.
//!
//! Every read of the unwinder is held against these bounds. A thread's own stack is asked for once;
//! signal stacks, coroutines and the like are found in `/proc/self/maps`, which is slow, and kept in a
//! small cache. A range from that cache may be out of date: whoever reads by it must not reach further
//! than unwind information leads.

use std::sync::atomic::{AtomicPtr, Ordering};

/// Addresses `lo..hi` that are one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Stack {
    pub(crate) lo: u64,
    pub(crate) hi: u64,
}

impl Stack {
    #[inline(always)]
    pub(crate) fn contains(self, address: u64) -> bool {
        address.wrapping_sub(self.lo) < self.hi.wrapping_sub(self.lo)
    }
}

/// How many stacks beside its own a thread remembers: a launch from one more costs a look into `/proc/self/maps`.
const REMEMBERED: usize = 128;

/// The most of the main thread's stack that is taken for its own when the limit is larger or absent.
const MAIN_AT_MOST: u64 = 64 << 20;

/// The stacks that one thread has been seen on.
#[derive(Debug)]
pub(crate) struct Stacks {
    own: Stack,
    others: [Stack; REMEMBERED],
    next: usize,
}

impl Stacks {
    /// The stacks of the calling thread. Calls `pthread_getattr_np`, which allocates: once per thread.
    pub(crate) fn of_this_thread() -> Self {
        Self { own: own_stack().unwrap_or_default(), others: [Stack::default(); REMEMBERED], next: 0 }
    }

    /// The stack that the thread was started on. It stays mapped as long as the thread runs.
    #[inline(always)]
    pub(crate) fn own(&self) -> Stack {
        self.own
    }

    /// The stack that `address` lies on, or `None` where nothing readable is mapped.
    #[inline(always)]
    pub(crate) fn holding(&mut self, address: u64) -> Option<Stack> {
        if self.own.contains(address) { Some(self.own) } else { self.other(address) }
    }

    #[cold]
    fn other(&mut self, address: u64) -> Option<Stack> {
        if let Some(known) = self.others.iter().find(|stack| stack.contains(address)) {
            return Some(*known);
        }
        let found = mapping_of(address)?;
        self.others[self.next] = found;
        self.next = (self.next + 1) % REMEMBERED;
        Some(found)
    }
}

/// `__libc_stack_end`: the top of the main thread's stack. Null until [`prepare`] or where libc has none.
static STACK_END: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up what may not be looked up later, inside a callback.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string; dlsym has no other requirement.
    let end = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_stack_end".as_ptr()) };
    STACK_END.store(end.cast(), Ordering::Relaxed);
}

fn own_stack() -> Option<Stack> {
    // SAFETY: both calls only return a number.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::syscall(libc::SYS_getpid) };
    if is_main && let Some(stack) = main_stack() {
        return Some(stack);
    }
    thread_stack()
}

/// The main thread's stack without the parse of `/proc/self/maps` that `pthread_getattr_np` makes there.
fn main_stack() -> Option<Stack> {
    let end = STACK_END.load(Ordering::Relaxed);
    if end.is_null() {
        return None;
    }
    // SAFETY: a non-null value is the address of the loader's variable, which lives as long as the process.
    let hi = unsafe { end.read() };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place to write to.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    let size = if known { limit.rlim_cur.min(MAIN_AT_MOST) } else { MAIN_AT_MOST };
    let here = (&raw const limit) as u64;
    let stack = Stack { lo: hi.saturating_sub(size), hi };
    // After a fork from another thread the one thread left has the process's id, but not the main stack.
    stack.contains(here).then_some(stack)
}

fn thread_stack() -> Option<Stack> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the attributes are initialised by this call when it returns 0.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let mut lowest = std::ptr::null_mut();
    let mut size = 0;
    // SAFETY: `attributes` was initialised above, and both results are valid places to write to.
    let known = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size) } == 0;
    // SAFETY: `attributes` was initialised above and is not used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let lo = lowest as u64;
    known.then(|| Stack { lo, hi: lo + size as u64 })
}

/// The readable mapping around `address`, from `/proc/self/maps`, without allocating.
fn mapping_of(address: u64) -> Option<Stack> {
    // SAFETY: errno's location is valid for as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let found = search_maps(address);
    // SAFETY: as above. The host must find errno as it left it.
    unsafe { errno.write(before) };
    found
}

fn search_maps(address: u64) -> Option<Stack> {
    let path = c"/proc/self/maps".as_ptr();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string. Through `syscall`, because libc's `open` is a cancellation point.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) };
    if file < 0 {
        return None;
    }
    let mut line = MapsLine::default();
    let mut buffer = [0u8; 2048];
    let found = 'file: loop {
        // SAFETY: `buffer` is writable for its whole length.
        let read = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
        if read <= 0 {
            break None;
        }
        for byte in &buffer[..read as usize] {
            if let Some((range, readable)) = line.push(*byte)
                && range.contains(address)
            {
                break 'file readable.then_some(range);
            }
        }
    };
    // SAFETY: `file` is a descriptor that we opened.
    unsafe { libc::syscall(libc::SYS_close, file) };
    found
}

/// Reads `start-end rwxp ...` a byte at a time.
#[derive(Default)]
struct MapsLine {
    field: u8,
    range: Stack,
}

impl MapsLine {
    /// Takes the next byte; gives the range when it is known, and whether it may be read.
    fn push(&mut self, byte: u8) -> Option<(Stack, bool)> {
        match (self.field, byte) {
            (_, b'\n') => *self = Self::default(),
            (0, b'-') | (1, b' ') => self.field += 1,
            (0, digit) => self.range.lo = self.range.lo << 4 | hex(digit),
            (1, digit) => self.range.hi = self.range.hi << 4 | hex(digit),
            (2, permission) => {
                self.field = 3;
                return Some((self.range, permission == b'r'));
            }
            _ => {}
        }
        None
    }
}

fn hex(digit: u8) -> u64 {
    u64::from(match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_the_stack_that_it_calls_its_own() {
        // A thread of the harness. The main thread: tests/unwind_main.rs.
        prepare();
        let local = 0u64;
        let own = Stacks::of_this_thread().own();
        assert!(own.contains((&raw const local) as u64));
    }

    #[test]
    fn a_mapping_is_found_by_any_address_in_it() {
        let heap = Box::new(7u64);
        let found = mapping_of((&raw const *heap) as u64).expect("the heap is mapped");
        assert!(found.contains((&raw const *heap) as u64));
        assert_eq!(mapping_of(0x10), None);
    }

    #[test]
    fn a_second_look_at_a_foreign_stack_is_answered_from_memory() {
        let mut stacks = Stacks::of_this_thread();
        let heap = Box::new(7u64);
        let first = stacks.holding((&raw const *heap) as u64);
        assert!(first.is_some());
        assert_eq!(stacks.holding((&raw const *heap) as u64), first);
        assert_eq!(stacks.next, 1);
    }
}
