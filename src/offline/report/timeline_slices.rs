//! Merges neighbouring short slices in each row of the timeline, and packs the rows into bytes.
//!
//! The bytes of a row are five columns, each with one number per slice. The columns are: time from the start of the
//! previous slice to the start of this slice; length; name; count minus 1; and length minus busy time. Numbers in the
//! last column can be negative: a difference `d` is stored as `2 * d` if it is at least 0, and as `2 * |d| - 1` if it
//! is negative. Every number is stored with seven bits per byte, lowest bits first. The highest bit of a byte is set if
//! more bytes of the number follow. The page's script reads the columns in this order.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gpuflame_model::error::Result;
use gpuflame_model::profile::add_to;

/// A slice of the timeline, or several slices that were merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Total duration of the merged slices, in ns.
    pub(super) nanos: u64,
    /// Duration of the longest merged slice, in ns.
    longest: u64,
    /// Number of merged slices.
    count: u32,
    /// Index of the name of the longest merged slice.
    name: u32,
}

const _: () =
    assert!(size_of::<Slice>() == 40, "a slice grew: a page may have four million before they are merged");

impl Slice {
    pub(super) fn new(start: u64, end: u64, name: u32) -> Self {
        let nanos = end.saturating_sub(start);
        Self { start, end: end.max(start), nanos, longest: nanos, count: 1, name }
    }

    pub(super) fn name(&self) -> u32 {
        self.name
    }

    /// Replaces the slice's name index `i` by `numbers[i]`.
    pub(super) fn rename(&mut self, numbers: &[u32]) {
        self.name = numbers[self.name as usize];
    }

    /// Returns the slice, moved back in time by `nanos`.
    pub(super) fn earlier(self, nanos: u64) -> Self {
        Self { start: self.start - nanos, end: self.end - nanos, ..self }
    }
}

/// Merges neighbouring slices if the merged slice, including gaps, lasts at most `resolution` ns. With a resolution of
/// 0, no slices are merged. Slices longer than the resolution are not merged, so they remain visible.
pub(super) fn merged(slices: &[Slice], resolution: u64) -> impl Iterator<Item = Slice> {
    let mut left = slices.iter().copied().peekable();
    std::iter::from_fn(move || {
        let mut slice = left.next()?;
        let last = slice.start + resolution;
        while let Some(next) = left.next_if(|next| resolution > 0 && slice.end.max(next.end) <= last) {
            slice.end = slice.end.max(next.end);
            slice.count = slice.count.saturating_add(next.count);
            add_to(&mut slice.nanos, next.nanos);
            if next.longest > slice.longest {
                (slice.name, slice.longest) = (next.name, next.longest);
            }
        }
        Some(slice)
    })
}

/// Rows in packed form, small enough for a page.
pub(super) struct PackedRows {
    /// Maximum total duration of slices that were merged, in ns; 0 if no slices were merged.
    pub(super) resolution: u64,
    /// Number of slices in each row.
    pub(super) counts: Vec<usize>,
    /// Columns, row by row, compressed as zlib.
    pub(super) bytes: Vec<u8>,
}

/// Packs rows into at most `max_slices` slices and `max_bytes` bytes.
pub(super) fn pack(rows: &[&[Slice]], mut max_slices: usize, max_bytes: usize) -> Result<PackedRows> {
    let mut resolution = 0;
    loop {
        let count = |at: u64| rows.iter().map(|row| merged(row, at).count()).sum::<usize>();
        while count(resolution) > max_slices {
            // The resolution grows by a quarter per step instead of doubling, so that more slices remain.
            resolution = (resolution + resolution / 4).max(100);
        }
        let (mut counts, mut columns) = (Vec::new(), Vec::new());
        for row in rows {
            let slices: Vec<Slice> = merged(row, resolution).collect();
            counts.push(slices.len());
            push_columns(&slices, &mut columns);
        }
        let mut compressed = ZlibEncoder::new(Vec::new(), Compression::default());
        compressed.write_all(&columns)?;
        let bytes = compressed.finish()?;
        // A page with one slice per row always fits.
        let slices = counts.iter().sum::<usize>();
        if bytes.len() <= max_bytes || slices <= rows.len() {
            return Ok(PackedRows { resolution, counts, bytes });
        }
        // The new limit on the number of slices is a tenth lower than the ratio of the bytes suggests, because with
        // fewer slices each slice takes more bytes.
        let fitting = (slices as u128 * max_bytes as u128 / bytes.len() as u128) as usize;
        max_slices = (fitting - fitting / 10).max(rows.len());
    }
}

fn push_columns(slices: &[Slice], columns: &mut Vec<u8>) {
    let mut before = 0;
    for slice in slices {
        push_number(slice.start - before, columns);
        before = slice.start;
    }
    slices.iter().for_each(|slice| push_number(slice.end - slice.start, columns));
    slices.iter().for_each(|slice| push_number(slice.name.into(), columns));
    slices.iter().for_each(|slice| push_number(u64::from(slice.count - 1), columns));
    for slice in slices {
        let length = slice.end - slice.start;
        // Slices on a stream may overlap, so their total duration may exceed the length of the merged slice.
        push_number(
            match length >= slice.nanos {
                true => (length - slice.nanos) * 2,
                false => (slice.nanos - length) * 2 - 1,
            },
            columns,
        );
    }
}

fn push_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn slices(all: &[(u64, u64, u32)]) -> Vec<Slice> {
        all.iter().map(|&(start, end, name)| Slice::new(start, end, name)).collect()
    }

    #[test]
    fn neighbours_are_merged_with_their_sums_if_they_last_no_longer_than_the_resolution() {
        let slices = slices(&[(0, 10, 1), (12, 15, 2), (20, 40, 3), (100, 101, 1)]);
        let shown = |resolution| -> Vec<_> {
            merged(&slices, resolution).map(|it| (it.start, it.end, it.count, it.nanos, it.name)).collect()
        };
        assert_eq!(shown(0).len(), 4);
        assert_eq!(shown(14).len(), 4);
        assert_eq!(shown(15), [(0, 15, 2, 13, 1), (20, 40, 1, 20, 3), (100, 101, 1, 1, 1)]);
        assert_eq!(shown(40), [(0, 40, 3, 33, 3), (100, 101, 1, 1, 1)]);
        assert_eq!(shown(1000), [(0, 101, 4, 34, 3)]);
    }

    #[test]
    fn columns_follow_each_other_and_numbers_have_seven_bits_per_byte() {
        let mut one = slices(&[(300, 310, 5), (301, 302, 0)]);
        one[0].nanos = 13;
        let mut bytes = Vec::new();
        push_columns(&one, &mut bytes);
        // The start is 300 = 0b10_0101100. A length of 10 ns with 13 busy ns gives -3, which is stored as 2 * 3 - 1.
        assert_eq!(bytes, [0xac, 2, 1, 10, 1, 5, 0, 0, 0, 5, 0]);
    }

    #[test]
    fn rows_are_merged_until_they_fit() {
        // In this test, the starts and lengths of the slices vary, so that the bytes do not compress well.
        let many: Vec<Slice> = (0..20_000_u64)
            .map(|at| Slice::new(at * 1_000 + at * at % 487, at * 1_000 + 500 + at * at % 311, at as u32 % 7))
            .collect();
        let whole = pack(&[&many], 1_000_000, usize::MAX).unwrap();
        assert_eq!((whole.resolution, &whole.counts[..]), (0, &[20_000][..]));
        let few = pack(&[&many], 5_000, usize::MAX).unwrap();
        assert!(few.resolution > 0 && (2_500..=5_000).contains(&few.counts[0]), "{:?}", few.counts);
        let small = pack(&[&many], 1_000_000, 10_000).unwrap();
        assert!(whole.bytes.len() > 20_000 && small.bytes.len() <= 10_000, "{}", small.bytes.len());
        let mut columns = Vec::new();
        flate2::read::ZlibDecoder::new(&small.bytes[..]).read_to_end(&mut columns).unwrap();
        assert!(columns.len() >= small.counts[0] * 5);
    }
}
