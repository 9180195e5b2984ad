//! Reads memory through pointers that may be corrupted.
//!
//! Memory on a page is read in place only after the kernel has reported the page as readable. Until the kernel has
//! reported a page as readable, memory on this page is read through a copy that the kernel makes
//! (`memory::copy_mapped`). The copy fails for unmapped memory. A page that was readable may be unmapped later. But an
//! intact chain of frames never leads to an unmapped page, because Python does not free memory that is part of the
//! chain. One risk remains: a corrupted chain may lead to an unmapped page on which frames once were.

use crate::memory;

/// Lower and upper bound of user space addresses. The first page of user space is excluded.
const MIN_ADDRESS: u64 = 4096;
const END_ADDRESS: u64 = 1 << 47;

/// The pages that the kernel has reported as readable. Each of these pages belongs to a stack or heap that contains a
/// thread's frames.
#[repr(C)]
pub(super) struct ReadablePages {
    /// Number of the page that was checked last. A page's number is its address divided by the page size.
    last: u64,
    /// Numbers of readable pages, indexed by the lowest bits of the number; 0 for a free slot.
    readable: [u64; PAGES],
}

const PAGES: usize = 1024;
const PAGE_BITS: u32 = 12;

impl ReadablePages {
    /// Whether the `bytes` bytes (less than a page) that start at `address` are readable. Returns false for an address
    /// that is not aligned to 8 bytes, because all Python objects are aligned.
    #[inline(always)]
    pub(super) fn are_readable(&mut self, address: u64, bytes: u32) -> bool {
        let end = address.wrapping_add(u64::from(bytes) - 1);
        let is_on_last = address >> PAGE_BITS == self.last && end >> PAGE_BITS == self.last;
        is_on_last && address.is_multiple_of(8) && self.last != 0 || self.are_others_readable(address, bytes)
    }

    #[inline]
    fn are_others_readable(&mut self, address: u64, bytes: u32) -> bool {
        if address.wrapping_sub(MIN_ADDRESS) >= END_ADDRESS - MIN_ADDRESS || !address.is_multiple_of(8) {
            return false;
        }
        let first = address >> PAGE_BITS;
        let last = (address + u64::from(bytes) - 1) >> PAGE_BITS;
        let is_readable = (self.readable[first as usize % PAGES] == first || self.ask_kernel(first))
            && (first == last || self.readable[last as usize % PAGES] == last || self.ask_kernel(last));
        self.last = if is_readable { first } else { 0 };
        is_readable
    }

    /// Asks the kernel whether a page is readable.
    #[cold]
    fn ask_kernel(&mut self, page: u64) -> bool {
        let is_readable = copy_into(page << PAGE_BITS, &mut [0; 8]);
        if is_readable {
            self.readable[page as usize % PAGES] = page;
        }
        is_readable
    }
}

/// Fills `to` with the memory that starts at `address`. Returns false if any of this memory is not readable.
pub(super) fn copy_into(address: u64, to: &mut [u8]) -> bool {
    // SAFETY: the slice is writable for its whole length.
    let copied = |to: &mut [u8]| unsafe { memory::copy_mapped(address, to.as_mut_ptr(), to.len()) };
    (MIN_ADDRESS..END_ADDRESS).contains(&address) && copied(to) == to.len()
}

/// Fills `to` with the memory that starts at `address`, up to the first byte that is not readable. Returns the number
/// of copied bytes.
pub(super) fn copy_readable(address: u64, to: &mut [u8]) -> usize {
    // SAFETY: the slice is writable for its whole length.
    unsafe { memory::copy_mapped(address, to.as_mut_ptr(), to.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Box<ReadablePages> {
        Box::new(ReadablePages { last: 0, readable: [0; PAGES] })
    }

    #[test]
    fn only_readable_pages_are_held() {
        let memory = memory::map(3 << PAGE_BITS).unwrap();
        let start = memory.as_ptr() as u64;
        // SAFETY: this is the last of our three pages, and it is not used any more.
        unsafe { libc::mprotect(memory.as_ptr().add(2 << PAGE_BITS).cast(), 4096, libc::PROT_NONE) };
        let mut pages = pages();
        for _ in 0..2 {
            assert!(pages.are_readable(start, 80) && pages.are_readable(start + 4096 - 8, 80));
            assert!(pages.are_readable(start + 8192 - 80, 80));
            assert!(!pages.are_readable(start + 8192 - 72, 80), "its last word cannot be read");
            assert!(!pages.are_readable(start + 8192, 8) && !pages.are_readable(start + 1, 8));
            for nowhere in [0, 8, 4088, 1 << 47, 0x8000_0000_0000_0000, u64::MAX - 7] {
                assert!(!pages.are_readable(nowhere, 8), "{nowhere:x}");
            }
        }
        // SAFETY: the mapping is ours, and is not referenced any more.
        unsafe { memory::unmap(memory, 3 << PAGE_BITS) };
    }

    #[test]
    fn a_copy_is_complete_or_fails() {
        let mut copied = [0; 16];
        assert!(copy_into((&raw const *b"sixteen letters!").addr() as u64, &mut copied));
        assert_eq!(&copied, b"sixteen letters!");
        assert!(
            !copy_into(0, &mut copied) && !copy_into(8, &mut copied) && !copy_into(u64::MAX - 8, &mut copied)
        );
    }
}
