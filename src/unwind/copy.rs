//! Reads stacks other than the thread's own, such as coroutine stacks, through a copy.
//!
//! Since the previous capture, a coroutine's stack or a signal stack may have been unmapped, protected, or joined with
//! a neighbouring mapping. The frames on a foreign stack may also mislead the walk. If a host switches stacks with its
//! own code, the unwind information of the outermost frames may point beyond the stack's end. Therefore no word of a
//! foreign stack is read in place. Instead, the kernel copies the stack from the stack pointer upwards and checks every
//! page that it copies. The walk then reads the copy instead of the stack. Nothing about a stack is stored between
//! captures, so a capture costs the same with 2,000 fibers as with one fiber.
//!
//! A stack whose words equal those of an earlier stack needs no copy: `x86_64/foreign_path_cache.rs` explains
//! when a word of a foreign stack may be read in place.
//!
//! Only the part of the stack that the walk needs is copied. The first copy is as large as the part of the stack that
//! the last walk used. If the copy is too short, its size is doubled until the walk ends. Each copy extends to the end
//! of a page, because copying a whole page costs no more than copying a part of it. The end of a stack is assumed to be
//! at the first unreadable page, or after 8 MiB. Therefore a capture makes at most 14 system calls to copy a stack, and
//! nearly always only one.

use std::ptr::NonNull;

use super::memory;

/// Size of the ABI's red zone in bytes: a leaf function may store data this far below its stack pointer.
pub(crate) const RED_ZONE: u64 = 128;

/// Minimum and maximum size in bytes of the first copy. Between these limits, the first copy has as many bytes as the
/// last walk used.
const FIRST_COPY_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=64 << 10;
/// Initial size in bytes of the buffer that holds the copy.
const MIN_BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of bytes copied per stack.
const MAX_STACK_BYTES: usize = 8 << 20;
/// Maximum number of bytes copied per capture. The limit is needed because invalid signal frames may seem to lead to
/// many other stacks, all of which would be copied.
const MAX_CAPTURE_BYTES: usize = 2 * MAX_STACK_BYTES;

const PAGE: u64 = 4096;

/// A copy of the stack on which a capture runs. Zeroed memory is a valid empty copy.
#[derive(Debug, Default)]
pub(crate) struct StackCopy {
    buffer: Option<NonNull<u8>>,
    capacity: usize,
    /// Stack address of the first copied byte, and the number of copied bytes.
    base: u64,
    length: usize,
    /// Whether the copy reaches the end of the stack.
    is_complete: bool,
    /// Number of copied bytes that the present walk has used so far, and the number that the last
    /// walk used.
    used: usize,
    used_before: usize,
    /// Number of bytes that this capture may still copy.
    remaining: usize,
}

impl StackCopy {
    /// Empties the copy at the start of a capture.
    pub(crate) fn clear(&mut self) {
        (self.length, self.remaining) = (0, MAX_CAPTURE_BYTES);
    }

    /// Starts a copy of the stack that contains `sp`. Returns false if the stack is not readable at `sp`.
    pub(crate) fn enter(&mut self, sp: u64) -> bool {
        if sp >> 47 != 0 {
            return false;
        }
        let base = sp.wrapping_sub(RED_ZONE);
        // If `sp` is near the low end of the stack, the red zone may extend beyond the low end.
        self.enter_at(base, sp) || self.enter_at(base.max(sp & !(PAGE - 1)), sp)
    }

    fn enter_at(&mut self, base: u64, sp: u64) -> bool {
        if self.used > 0 {
            self.used_before = self.used;
        }
        (self.base, self.length, self.used, self.is_complete) = (base, 0, 0, false);
        self.reaches(sp)
    }

    /// Returns the word that the copied stack has at `address`.
    #[inline]
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let (true, Some(buffer)) = (self.reaches(address), self.buffer) else { return None };
        // SAFETY: `reaches` returned true, so the buffer contains the eight bytes of this address.
        Some(unsafe { memory::word(buffer.as_ptr() as u64 + (address - self.base)) })
    }

    /// Whether a word at `address` belongs to the copied stack, that is, whether all bytes from the stack pointer up
    /// to the word are readable.
    #[inline]
    pub(crate) fn reaches(&mut self, address: u64) -> bool {
        let Some(distance) = address.checked_sub(self.base) else { return false };
        if distance > (MAX_STACK_BYTES - 8) as u64 {
            return false;
        }
        let needed = distance as usize + 8;
        while needed > self.length {
            if self.is_complete || !self.extend() {
                return false;
            }
        }
        self.used = self.used.max(needed);
        true
    }

    /// Extends the copy by more bytes of the stack. Returns `false` if no byte could be copied.
    #[cold]
    fn extend(&mut self) -> bool {
        let from = self.base.wrapping_add(self.length as u64);
        let wanted =
            self.length.max(self.used_before.clamp(*FIRST_COPY_BYTES.start(), *FIRST_COPY_BYTES.end()))
                as u64;
        let end = from.wrapping_add(wanted).next_multiple_of(PAGE);
        let more = (end.wrapping_sub(from) as usize).min(MAX_STACK_BYTES - self.length).min(self.remaining);
        let Some(buffer) = self.buffer_for(self.length + more).filter(|_| more != 0) else { return false };
        // SAFETY: after the copied bytes, the buffer has space for `more` bytes.
        let copied = unsafe { memory::copy_mapped(from, buffer.as_ptr().add(self.length), more) };
        self.is_complete = copied < more;
        self.length += copied;
        self.remaining -= copied;
        copied != 0
    }

    fn buffer_for(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes <= self.capacity {
            return self.buffer;
        }
        let capacity = bytes.next_power_of_two().max(MIN_BUFFER_BYTES);
        let larger = memory::map(capacity)?;
        if let Some(buffer) = self.buffer {
            // SAFETY: `length` bytes of the old buffer are initialized, and the new buffer is larger.
            unsafe { larger.copy_from_nonoverlapping(buffer, self.length) };
        }
        self.release();
        (self.buffer, self.capacity) = (Some(larger), capacity);
        self.buffer
    }

    /// Releases the memory of the buffer.
    pub(crate) fn release(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // SAFETY: `buffer_for` mapped the buffer with this size, and the buffer is not used any more.
            unsafe { memory::unmap(buffer, self.capacity) };
        }
        self.capacity = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `look` with an empty copy and the bounds of a test stack. The test stack has `pages` pages between two
    /// unreadable pages, and each of its words contains the word's own address.
    fn with_stack(pages: usize, look: impl FnOnce(&mut StackCopy, u64, u64)) {
        let bytes = (pages + 2) * PAGE as usize;
        let memory = memory::map(bytes).expect("memory for the pages");
        let first = memory.as_ptr() as u64;
        let (lo, hi) = (first + PAGE, first + bytes as u64 - PAGE);
        // SAFETY: the words are inside our mapping, and aligned.
        unsafe {
            for address in (lo..hi).step_by(8) {
                (address as *mut u64).write(address);
            }
            for guard in [first, hi] {
                assert_eq!(libc::mprotect(guard as *mut _, PAGE as usize, libc::PROT_NONE), 0);
            }
        }
        let mut copy = StackCopy::default();
        copy.clear();
        look(&mut copy, lo, hi);
        copy.release();
        // SAFETY: the mapping is not used any more.
        unsafe { memory::unmap(memory, bytes) };
    }

    #[test]
    fn words_are_read_from_the_red_zone_to_the_first_unreadable_page() {
        with_stack(100, |copy, lo, hi| {
            assert!(copy.enter(lo + 1024));
            for address in [lo + 1024, lo + 1024 - RED_ZONE, lo + 1027, hi - 8, lo + 5000] {
                let aligned = address & !7;
                assert_eq!(copy.word(aligned), Some(aligned));
                assert!(copy.word(address).is_some());
            }
            for address in [lo + 1024 - RED_ZONE - 8, hi - 7, hi, hi + PAGE, u64::MAX, 0] {
                assert_eq!(copy.word(address), None, "{address:x}");
            }
        });
    }

    #[test]
    fn the_first_copy_covers_the_previous_walks_depth() {
        with_stack(100, |copy, lo, _| {
            assert!(copy.enter(lo + 1024) && copy.length < 8192);
            assert!(copy.reaches(lo + 40_000));
            copy.clear();
            assert!(copy.enter(lo + 1024));
            assert!((40_000..48_000).contains(&copy.length), "{}", copy.length);
            copy.clear();
            assert!(copy.enter(lo + 1024) && copy.length < 8192);
        });
    }

    #[test]
    fn a_stack_pointer_just_above_an_unreadable_page_is_accepted() {
        with_stack(2, |copy, lo, _| {
            assert!(copy.enter(lo + 8));
            assert_eq!(copy.word(lo), Some(lo));
            assert_eq!(copy.word(lo - 8), None);
        });
    }

    #[test]
    fn an_unreadable_stack_pointer_is_rejected() {
        with_stack(1, |copy, lo, hi| {
            for sp in [hi, lo - 8, 8, 0, u64::MAX - 64] {
                assert!(!copy.enter(sp), "{sp:x}");
            }
        });
    }

    #[test]
    fn a_page_made_unreadable_since_the_last_capture_is_not_read() {
        with_stack(4, |copy, lo, hi| {
            assert!(copy.enter(lo + 1024));
            assert_eq!(copy.word(hi - 8), Some(hi - 8));
            // SAFETY: the page is ours.
            unsafe { libc::mprotect((hi - PAGE) as *mut _, PAGE as usize, libc::PROT_NONE) };
            copy.clear();
            assert!(copy.enter(lo + 1024));
            assert_eq!(copy.word(hi - 8), None);
            assert_eq!(copy.word(hi - PAGE - 8), Some(hi - PAGE - 8));
        });
    }

    #[test]
    fn a_capture_copies_at_most_its_limit() {
        with_stack(3 * MAX_STACK_BYTES / PAGE as usize, |copy, lo, _| {
            assert!(copy.enter(lo + RED_ZONE) && copy.reaches(lo + MAX_STACK_BYTES as u64 - 8));
            assert!(!copy.reaches(lo + MAX_STACK_BYTES as u64));
            assert!(copy.enter(lo + RED_ZONE) && copy.reaches(lo + MAX_STACK_BYTES as u64 - 8));
            assert!(!copy.enter(lo + RED_ZONE), "the capture has reached its limit");
        });
    }
}
