//! Writes and reads a table of sums. The table is written repeatedly, and each time only the changed entries are
//! written. Module `encode` documents the layout.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::chunk::Chunk;
use super::encode::tag;
use super::fields::Fields;
use super::hash::IdMap;
use super::payload::Payload;

/// Maximum length of a key in bytes, and maximum number of values per key.
const MAX_KEY_BYTES: usize = 255;
const MAX_VALUES_PER_KEY: usize = 255;
/// Maximum length in bytes of a key in a table that is written only once. In such a table, an entry may take fewer
/// bytes than its key. The limit is needed because a small damaged file could otherwise contain long keys that fill the
/// memory.
const MAX_FINAL_KEY_BYTES: usize = 64;
/// Approximate number of bytes that an entry takes in addition to its key and values: for the slot number, the lengths
/// and the count.
const ENTRY_HEADER_BYTES: usize = 4;

/// Writes the table of sums. To find out which sums have changed, the writer stores 16 bytes of hashes for each sum.
/// Two keys, or two states of a sum, count as equal if their 64-bit hashes are equal. With 100,000 sums, the
/// probability of a wrong match is 1 in 10^9.
#[derive(Debug, Default)]
pub struct SumsWriter {
    slots: IdMap<u64, SumSlot>,
    generation: u32,
    /// Size in bytes that the complete table would have if it were written to a new file.
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct SumSlot {
    number: u32,
    generation: u32,
    values: u64,
}

impl SumsWriter {
    /// Appends the entries that changed since the last call. `sums` must pass every entry to the function that it
    /// receives, including the entries that did not change.
    pub fn write(&mut self, chunk: &mut Chunk, sums: impl FnOnce(&mut dyn FnMut(&[u8], &[u64]))) {
        self.generation = self.generation.wrapping_add(1);
        self.bytes = 0;
        chunk.payload(tag::SUMS, |out| {
            sums(&mut |key, values| self.sum(out.0, key, values));
            self.write_removals(out.0);
        });
    }

    /// Returns the size in bytes that the complete table would have if it were written to a new file.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn sum(&mut self, out: &mut Vec<u8>, key: &[u8], values: &[u64]) {
        debug_assert!(
            (1..=MAX_KEY_BYTES).contains(&key.len()) && (1..=MAX_VALUES_PER_KEY).contains(&values.len())
        );
        let (generation, next, now) = (self.generation, self.slots.len() as u32, hash_of(values));
        self.bytes +=
            ENTRY_HEADER_BYTES + key.len() + values.iter().map(|value| varint_len(*value)).sum::<usize>();
        let mut out = Payload(out);
        let slot = self.slots.entry(hash_of(key)).or_insert_with(|| SumSlot {
            number: next,
            generation,
            values: !now,
        });
        slot.generation = generation;
        if slot.values == now {
            return;
        }
        slot.values = now;
        out.varint(slot.number.into());
        match slot.number == next {
            true => out.u8(key.len() as u8).0.extend(key),
            false => drop(out.u8(0)),
        }
        put_values(&mut out, values);
    }

    /// Appends a removal entry for each sum that was written earlier, but that `sums` did not pass in this call of
    /// `write`.
    fn write_removals(&mut self, out: &mut Vec<u8>) {
        let hash_of_removed = hash_of::<[u64]>(&[]);
        for slot in self
            .slots
            .values_mut()
            .filter(|slot| slot.generation != self.generation && slot.values != hash_of_removed)
        {
            slot.values = hash_of_removed;
            Payload(out).varint(slot.number.into()).u8(0).u8(0);
        }
    }
}

/// Appends a table that is written only once. The keys that `sums` passes to the function that it receives must all be
/// different. Consecutive keys usually differ in a few bytes, and only these bytes are written for a key.
pub fn write_final_sums(chunk: &mut Chunk, sums: impl FnOnce(&mut dyn FnMut(&[u8], &[u64]))) {
    chunk.payload(tag::FINAL_SUMS, |out| {
        let mut known: Vec<u8> = Vec::new();
        sums(&mut |key, values| {
            debug_assert!((1..=MAX_FINAL_KEY_BYTES).contains(&key.len()));
            let before = key.iter().zip(&known).take_while(|(one, other)| one == other).count();
            let (rest, known_rest) = (&key[before..], &known[before..]);
            let after =
                rest.iter().rev().zip(known_rest.iter().rev()).take_while(|(one, other)| one == other);
            let after = after.count();
            let middle = &rest[..rest.len() - after];
            out.u8(before as u8).u8(after as u8).u8(middle.len() as u8).0.extend(middle);
            put_values(out, values);
            known.clear();
            known.extend(key);
        });
    });
}

fn put_values(out: &mut Payload<'_>, values: &[u64]) {
    out.u8(values.len() as u8);
    values.iter().for_each(|value| _ = out.varint(*value));
}

/// Returns the number of bytes that `value` takes as a varint (7 bits per byte).
fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Returns the hash of a key, or of the values of a sum. Keys and values are similar to each other, so the strong hash
/// function of the standard library is used.
fn hash_of<T: Hash + ?Sized>(thing: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    thing.hash(&mut hasher);
    hasher.finish()
}

/// Reads the table of sums from rows.
#[derive(Debug, Default)]
pub(super) struct SumsReader {
    /// Payloads of the rows with sums since the last mark. The first item contains the rows of tables that are written
    /// repeatedly, and the second item the rows of tables that are written once.
    buffered: [Vec<u8>; 2],
    sums: Vec<(Box<[u8]>, Vec<u64>)>,
    /// Index of the sum that is returned next.
    next: usize,
}

impl SumsReader {
    /// Stores the payload of a row with sums until the next mark makes it valid.
    pub(super) fn buffer_entries(&mut self, payload: &[u8], is_final: bool) {
        self.buffered[usize::from(is_final)].extend(payload);
    }

    /// Adds the buffered entries to the table. Stops at the first invalid entry and returns false.
    pub(super) fn apply_buffered(&mut self) -> bool {
        let [buffered, finals] = std::mem::take(&mut self.buffered);
        let (mut fields, mut finals) = (Fields(&buffered), Fields(&finals));
        while !fields.0.is_empty() {
            if self.entry(&mut fields).is_none() {
                return false;
            }
        }
        while !finals.0.is_empty() {
            if self.final_entry(&mut finals).is_none() {
                return false;
            }
        }
        true
    }

    fn final_entry(&mut self, fields: &mut Fields<'_>) -> Option<()> {
        let known = self.sums.last().map_or(&[][..], |(key, _)| key);
        let (before, after) = (usize::from(fields.u8()?), usize::from(fields.u8()?));
        let middle = fields.u8()?;
        let middle = fields.take(middle.into())?;
        let end = known.len().checked_sub(after).filter(|end| before <= *end)?;
        let key = [&known[..before], middle, &known[end..]].concat();
        if !(1..=MAX_FINAL_KEY_BYTES).contains(&key.len()) {
            return None;
        }
        let count = fields.u8()?;
        let values = (0..count).map(|_| fields.varint()).collect::<Option<Vec<_>>>()?;
        self.sums.push((key.into(), values));
        Some(())
    }

    fn entry(&mut self, fields: &mut Fields<'_>) -> Option<()> {
        let (slot, length) = (usize::try_from(fields.varint()?).ok()?, fields.u8()?);
        let key = fields.take(length.into())?;
        let count = fields.u8()?;
        let values = (0..count).map(|_| fields.varint()).collect::<Option<Vec<_>>>()?;
        match (slot.cmp(&self.sums.len()), key.is_empty()) {
            (std::cmp::Ordering::Less, true) => self.sums[slot].1 = values,
            (std::cmp::Ordering::Equal, false) => self.sums.push((key.into(), values)),
            _ => return None,
        }
        Some(())
    }

    /// Returns the next sum that was not removed. Duplicate keys are not detected, because a valid file contains none.
    pub(super) fn next(&mut self) -> Option<(&[u8], &[u64])> {
        while self.sums.get(self.next).is_some_and(|(_, values)| values.is_empty()) {
            self.next += 1;
        }
        let (key, values) = self.sums.get(self.next)?;
        self.next += 1;
        Some((key, values))
    }

    /// Whether the table contains sums.
    pub(super) fn has_sums(&self) -> bool {
        !self.sums.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::record::{CheckpointMark, Nanos, Reader, Row};

    type SumTable = Vec<(&'static [u8], Vec<u64>)>;

    fn add(file: &mut Vec<u8>, writer: &mut SumsWriter, table: &SumTable, marks: bool) {
        let mut chunk = Chunk::default();
        writer.write(&mut chunk, |each| table.iter().for_each(|(key, values)| each(key, values)));
        if marks {
            chunk.mark(&CheckpointMark { time: Nanos(7), ..CheckpointMark::default() });
        }
        file.extend(chunk.take());
    }

    fn read(file: &[u8]) -> HashMap<Vec<u8>, Vec<u64>> {
        let mut reader = Reader::new(file).unwrap();
        let mut table = HashMap::new();
        loop {
            match reader.next_row() {
                Ok(Some(Row::Sum { key, values })) => drop(table.insert(key.to_vec(), values.to_vec())),
                Ok(Some(row)) => panic!("{row:?}"),
                Ok(None) => return table,
                Err(_) => {}
            }
        }
    }

    fn expected(table: &SumTable) -> HashMap<Vec<u8>, Vec<u64>> {
        table.iter().map(|(key, values)| (key.to_vec(), values.clone())).collect()
    }

    #[test]
    fn truncated_sums_read_back_as_of_the_last_complete_mark() {
        let mut file = Chunk::file_header().to_vec();
        let mut writer = SumsWriter::default();
        let tables: [SumTable; 4] = [
            vec![(b"a", vec![1, u64::MAX]), (b"bb", vec![0])],
            vec![(b"a", vec![1, u64::MAX]), (b"c", vec![300]), (b"bb", vec![128])],
            vec![(b"c", vec![300])],
            vec![(b"a", vec![5, 5]), (b"c", vec![300]), (b"d", vec![1 << 40])],
        ];
        let mut ends = vec![(file.len(), SumTable::new())];
        for table in &tables {
            add(&mut file, &mut writer, table, true);
            ends.push((file.len(), table.clone()));
        }
        // The reader must ignore the entry with the value 99, because no mark follows this entry.
        add(&mut file, &mut writer, &vec![(b"a", vec![99, 99])], false);
        for cut in 16..=file.len() {
            let (_, table) = ends.iter().rev().find(|(end, _)| *end <= cut).unwrap();
            assert_eq!(read(&file[..cut]), expected(table), "cut at {cut}");
        }
    }

    #[test]
    fn unchanged_sums_are_not_written_again() {
        let (mut file, mut writer) = (Vec::new(), SumsWriter::default());
        let mut table: SumTable = vec![(b"first", vec![1, 2, 3]), (b"second", vec![4, 5, 6])];
        add(&mut file, &mut writer, &table, true);
        let mut more = Vec::new();
        table[1].1[0] = 1000;
        add(&mut more, &mut writer, &table, true);
        let mut none = Vec::new();
        add(&mut none, &mut writer, &table, true);
        assert_eq!(more.len() - none.len(), "slot".len() - 1 + 4);
    }

    #[test]
    fn a_final_table_reads_back_and_repeats_no_part_of_a_key() {
        let table: SumTable = vec![
            (b"\x01same site of stack 1, same end", vec![1, u64::MAX]),
            (b"\x01same site of stack 2, same end", vec![0]),
            (b"\x01same site of stack 2, same end", vec![300]),
            (b"\x01same", vec![5]),
            (b"aa", vec![6]),
            (b"aaa", vec![7]),
            (b"a", vec![8]),
        ];
        let mut chunk = Chunk::default();
        write_final_sums(&mut chunk, |each| table.iter().for_each(|(key, values)| each(key, values)));
        // In the encoded table, the first key is stored in full. For each further key, only the bytes that differ from
        // the previous key are stored.
        assert_eq!(
            chunk.len(),
            5 + (3 + 31 + 1 + 11) + (3 + 1 + 1 + 1) + (3 + 1 + 2) + 3 * (3 + 1 + 1) + 2 + 1 + 5
        );
        chunk.mark(&CheckpointMark { time: Nanos(7), ..CheckpointMark::default() });
        let file = [&Chunk::file_header()[..], &chunk.take()].concat();
        assert_eq!(read(&file), expected(&table));
    }

    #[test]
    fn impossible_entries_of_a_final_table_are_rejected() {
        for garbage in [
            &b"\0\0\0\x01\0"[..],
            b"\x01\0\x01a\x01\0",
            b"\0\x01\x01a\x01\0",
            b"\0\0\x05a",
            b"\0\0\x02ab\x01\0\x02\x01\0\x01\0",
            &[&[0, 0, 60][..], &[7; 60], &[1, 0], &[60, 0, 5], &[7; 5], &[1, 0]].concat(),
        ] {
            let mut reader = SumsReader::default();
            reader.buffer_entries(garbage, true);
            assert!(!reader.apply_buffered(), "{garbage:?}");
        }
    }

    #[test]
    fn garbage_between_marks_is_rejected_without_a_panic() {
        for garbage in
            [&b"\x05\x00\x00"[..], b"\x00\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x00\x00\x00"]
        {
            let mut reader = SumsReader::default();
            reader.buffer_entries(garbage, false);
            assert!(!reader.apply_buffered(), "{garbage:?}");
            assert_eq!(reader.next(), None);
        }
    }
}
