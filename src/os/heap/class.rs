//! The size classes of the heap. All blocks of a size class have the same size.

use std::alloc::Layout;

use super::pages::PAGE_BYTES;

/// Index of a size class. Up to 128 bytes, the block sizes are multiples of 16. Above 128 bytes, there are four block
/// sizes per doubling, up to 64 KiB.
///
/// If a requested size is a multiple of the requested alignment, the block size of its class is a multiple of that
/// alignment too. Slabs start at page boundaries. Therefore each block is aligned to every power of two that divides
/// the block size, up to the size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeClass(pub(super) usize);

impl SizeClass {
    pub(super) const COUNT: usize = 8 + 4 * 9;
    pub(super) const MAX_BYTES: usize = 64 << 10;

    /// Returns the size class for `layout`, or `None` if a block of this layout gets its own mapping.
    pub(super) fn for_layout(layout: Layout) -> Option<Self> {
        // Rounding up cannot overflow, because Rust limits a layout's size, rounded up to its alignment, to half of the
        // address space.
        let last = layout.size().max(1).next_multiple_of(layout.align()) - 1;
        match last {
            _ if last >= Self::MAX_BYTES || layout.align() > PAGE_BYTES => None,
            0..128 => Some(Self(last / 16)),
            _ => {
                let power = last.ilog2() as usize;
                Some(Self(8 + 4 * (power - 7) + (last >> (power - 2) & 3)))
            }
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self.0.checked_sub(8) {
            None => 16 * (self.0 + 1),
            Some(above) => (5 + above % 4) << (5 + above / 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_gets_the_smallest_class_that_fits_its_size_and_alignment() {
        let mut before = 0;
        for bytes in (0..SizeClass::COUNT).map(|class| SizeClass(class).bytes()) {
            for (size, align) in (before + 1..=bytes).flat_map(|size| [(size, 1), (size, 16)]) {
                let class = SizeClass::for_layout(Layout::from_size_align(size, align).unwrap()).unwrap();
                assert_eq!(class.bytes(), bytes, "{size} bytes");
            }
            // Above 128 bytes, rounding up to the size of a class wastes at most a quarter of the block, and an eighth
            // on average.
            assert!(before < 128 || bytes - before <= before / 4);
            before = bytes;
        }
        assert_eq!(before, SizeClass::MAX_BYTES);
        assert_eq!(
            SizeClass::for_layout(Layout::from_size_align(SizeClass::MAX_BYTES + 1, 1).unwrap()),
            None
        );
        for (align, size) in (0..13).flat_map(|power| (1..3000).map(move |size| (1 << power, 23 * size))) {
            let class = SizeClass::for_layout(Layout::from_size_align(size, align).unwrap());
            assert!(class.is_none_or(|class| class.bytes().is_multiple_of(align) && class.bytes() >= size));
        }
    }
}
