//! Encodes launches and activities in packs. Rows in a pack take only a few bytes each. `encode` documents the format.
//!
//! As separate rows, a launch and its activity take 129 bytes. In a pack, a launch and its activity take about 16
//! bytes. Times and ids in a pack are stored as differences from the previous row. All other fields of an activity are
//! its *shape*. A program usually repeats the same kernels with the same sizes. So each shape is stored once, and later
//! rows refer to it by an index. Packing takes less time than LZ4 compression and results in smaller files: LZ4 made
//! recordings of PyTorch only 2.5 to 2.9 times smaller, and Zstandard 4.7 times.

use super::activity_fields::{decode_activity, put_activity};
use super::fields::Fields;
use super::hash::IdMap;
use super::payload::Payload;
use super::{Activity, ContextId, CorrelationId, Launch, Nanos};

/// Maximum number of shapes (fields of an activity without id and times) that later rows can refer to. When the pack
/// writer has stored this number of shapes, it forgets all shapes. A forgotten shape that occurs again is stored again.
/// So the memory for shapes is bounded even if a program never repeats a shape.
const MAX_SHAPES: u64 = 1024;
/// Size in bytes at which a pack is written to the recording. If the process is killed, the rows in an unwritten pack
/// are lost, in the same way as rows in the file's buffer.
const PACK_BYTES: usize = 16 << 10;

/// Reason why the rest of a pack is skipped.
const INVALID: &str = "is invalid, and the rows packed after it are lost";

/// Mask of the bits that determine the kind of an entry, in the entry's first byte.
const KIND: u8 = 3;

mod kind {
    pub(super) const LAUNCH: u8 = 0;
    pub(super) const ACTIVITY: u8 = 1;
    pub(super) const NEW_SHAPE: u8 = 2;
}

/// Flags in an entry's first byte. If a flag is set, the entry omits a field, because the flag implies the field's
/// value.
mod flag {
    /// The correlation id is one more than the correlation id of the previous launch or activity.
    pub(super) const NEXT_ID: u8 = 4;
    /// The launch was not made within another call.
    pub(super) const NOT_WITHIN: u8 = 8;
    /// The launch has the same context as the previous launch.
    pub(super) const SAME_CONTEXT: u8 = 16;
}

/// Fields of the previous launch and of the previous activity. The next row is stored as differences from these values.
#[derive(Clone, Copy, Debug, Default)]
struct Previous {
    launch_time: u64,
    launch_id: u32,
    context: u32,
    activity_end: u64,
    activity_id: u32,
}

/// Encodes rows into a pack.
#[derive(Debug, Default)]
pub(super) struct Packer {
    entries: Vec<u8>,
    previous: Previous,
    /// Index of each shape that is not forgotten. The key is the shape's encoded payload.
    shapes: IdMap<Box<[u8]>, u64>,
    /// Number of shapes stored so far, including forgotten shapes.
    stored: u64,
}

impl Packer {
    pub(super) fn launch(&mut self, launch: &Launch) {
        self.begin();
        let before = std::mem::replace(&mut self.previous.launch_id, launch.correlation.0);
        let is_next = launch.correlation.0 == before.wrapping_add(1);
        let is_same = launch.context.0 == self.previous.context;
        let mut out = Payload(&mut self.entries);
        out.u8(kind::LAUNCH
            | if is_next { flag::NEXT_ID } else { 0 }
            | if launch.is_alias() { 0 } else { flag::NOT_WITHIN }
            | if is_same { flag::SAME_CONTEXT } else { 0 });
        out.difference(launch.time.0, self.previous.launch_time).varint(launch.duration.into());
        if !is_next {
            out.difference(launch.correlation.0.into(), before.into());
        }
        if launch.is_alias() {
            out.difference(launch.within.0.into(), launch.correlation.0.into());
        }
        if !is_same {
            out.varint(launch.context.0.into());
        }
        self.previous.launch_time = launch.time.0;
        self.previous.context = launch.context.0;
    }

    pub(super) fn activity(&mut self, activity: &Activity) {
        self.begin();
        let before = std::mem::replace(&mut self.previous.activity_id, activity.correlation.0);
        let is_next = activity.correlation.0 == before.wrapping_add(1);
        let next = if is_next { flag::NEXT_ID } else { 0 };
        let entry = self.entries.len();
        self.entries.push(kind::NEW_SHAPE | next);
        let (correlation, start, end) = (CorrelationId(0), Nanos(0), Nanos(0));
        put_activity(&mut Payload(&mut self.entries), &Activity { correlation, start, end, ..*activity });
        let shape = &self.entries[entry + 1..];
        let known = self.shapes.get(shape).copied();
        match known {
            Some(number) => {
                self.entries.truncate(entry);
                Payload(&mut self.entries).u8(kind::ACTIVITY | next).varint(self.stored - number);
            }
            None => {
                if self.stored.is_multiple_of(MAX_SHAPES) {
                    self.shapes.clear();
                }
                self.shapes.insert(shape.into(), self.stored);
                self.stored += 1;
            }
        }
        let mut out = Payload(&mut self.entries);
        if !is_next {
            out.difference(activity.correlation.0.into(), before.into());
        }
        out.difference(activity.start.0, self.previous.activity_end);
        out.difference(activity.end.0, activity.start.0);
        self.previous.activity_end = activity.end.0;
    }

    /// Begins a pack if no pack is pending. A pack can be decoded without the rows in earlier packs, but it may refer
    /// to shapes that earlier packs define.
    fn begin(&mut self) {
        if self.entries.is_empty() {
            self.previous = Previous::default();
            Payload(&mut self.entries).varint(self.stored);
        }
    }

    /// Whether the pack is large enough to be written.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= PACK_BYTES
    }

    /// Moves the bytes of the pack to `out`.
    pub(super) fn take(&mut self, out: &mut Payload<'_>) {
        out.0.append(&mut self.entries);
    }

    /// Returns the size in bytes of the pending pack.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Decodes the rows in packs.
#[derive(Debug, Default)]
pub(super) struct Unpacker {
    pack: Vec<u8>,
    at: usize,
    previous: Previous,
    shapes: Vec<Activity>,
    stored: u64,
}

/// A decoded row of a pack.
pub(super) enum Packed {
    Launch(Launch),
    Activity(Activity),
}

impl Unpacker {
    /// Opens the pack in `payload` for reading, and gives the buffer of the previous pack to the caller. Returns false
    /// if the pack is invalid.
    pub(super) fn open(&mut self, payload: &mut Vec<u8>) -> bool {
        std::mem::swap(&mut self.pack, payload);
        self.previous = Previous::default();
        let mut fields = Fields(&self.pack);
        let stored = fields.varint();
        self.at = self.pack.len() - fields.0.len();
        // If earlier packs were damaged or skipped, the indices of the shapes in those packs are unknown.
        if stored.is_some_and(|stored| stored != self.stored) {
            self.shapes.clear();
        }
        self.stored = stored.unwrap_or(self.stored);
        if stored.is_none() {
            self.at = self.pack.len();
        }
        stored.is_some()
    }

    /// Whether the pack contains rows that `next` has not returned yet.
    pub(super) fn has_next(&self) -> bool {
        self.at < self.pack.len()
    }

    /// Returns the size of the pack in bytes.
    pub(super) fn len(&self) -> usize {
        self.pack.len()
    }

    /// Returns the next row of the pack.
    ///
    /// # Errors
    /// Returns an error with the reason if the row cannot be read.
    pub(super) fn next(&mut self) -> Result<Packed, &'static str> {
        let Self { pack, at, previous, shapes, stored } = self;
        let mut fields = Fields(&pack[*at..]);
        let head = fields.u8().unwrap_or(u8::MAX);
        let row = match head & KIND {
            kind::LAUNCH => read_launch(head, &mut fields, previous).map(Packed::Launch).ok_or(INVALID),
            kind::ACTIVITY => fields.varint().ok_or(INVALID).and_then(|back| {
                let index = usize::try_from(back).ok().and_then(|back| shapes.len().checked_sub(back));
                let shape = index.and_then(|index| shapes.get(index)).copied();
                let activity = read_times(head, &mut fields, previous, shape.as_ref()).ok_or(INVALID)?;
                activity.map(Packed::Activity).ok_or("has fields that are in a damaged part of the recording")
            }),
            kind::NEW_SHAPE => match decode_activity(&mut fields) {
                Ok(Some(shape)) => {
                    if stored.is_multiple_of(MAX_SHAPES) {
                        shapes.clear();
                    }
                    *stored += 1;
                    shapes.push(shape);
                    let activity = read_times(head, &mut fields, previous, Some(&shape)).flatten();
                    activity.map(Packed::Activity).ok_or(INVALID)
                }
                _ => Err(INVALID),
            },
            _ => Err(INVALID),
        };
        // The position at which an invalid row ends is unknown, so the rest of the pack is skipped.
        *at = if row.as_ref().err() == Some(&INVALID) { pack.len() } else { pack.len() - fields.0.len() };
        row
    }
}

fn read_launch(head: u8, fields: &mut Fields<'_>, previous: &mut Previous) -> Option<Launch> {
    let time = Nanos(fields.difference(previous.launch_time)?);
    let duration = u32::try_from(fields.varint()?).ok()?;
    let correlation = read_id(head, fields, previous.launch_id)?;
    let within = match head & flag::NOT_WITHIN {
        0 => u32::try_from(fields.difference(correlation.into())?).ok()?,
        _ => correlation,
    };
    let context = match head & flag::SAME_CONTEXT {
        0 => u32::try_from(fields.varint()?).ok()?,
        _ => previous.context,
    };
    (previous.launch_time, previous.launch_id, previous.context) = (time.0, correlation, context);
    let (correlation, within) = (CorrelationId(correlation), CorrelationId(within));
    Some(Launch { time, duration, correlation, within, context: ContextId(context) })
}

/// Reads the id and the times of an activity. Returns `Some(None)` if the shape of the activity (its other fields) is
/// unknown.
fn read_times(
    head: u8,
    fields: &mut Fields<'_>,
    previous: &mut Previous,
    shape: Option<&Activity>,
) -> Option<Option<Activity>> {
    let correlation = read_id(head, fields, previous.activity_id)?;
    let start = fields.difference(previous.activity_end)?;
    let end = fields.difference(start)?;
    (previous.activity_id, previous.activity_end) = (correlation, end);
    let (correlation, start, end) = (CorrelationId(correlation), Nanos(start), Nanos(end));
    Some(shape.map(|shape| Activity { correlation, start, end, ..*shape }))
}

fn read_id(head: u8, fields: &mut Fields<'_>, before: u32) -> Option<u32> {
    match head & flag::NEXT_ID {
        0 => u32::try_from(fields.difference(before.into())?).ok(),
        _ => Some(before.wrapping_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{kernel, launch};
    use super::*;

    fn pack(packer: &mut Packer) -> Vec<u8> {
        let mut bytes = Vec::new();
        packer.take(&mut Payload(&mut bytes));
        bytes
    }

    fn unpack(unpacker: &mut Unpacker, mut bytes: Vec<u8>) -> Vec<Result<String, &'static str>> {
        assert!(unpacker.open(&mut bytes));
        let mut rows = Vec::new();
        while unpacker.has_next() {
            rows.push(unpacker.next().map(|row| match row {
                Packed::Launch(launch) => format!("{launch:?}"),
                Packed::Activity(activity) => format!("{activity:?}"),
            }));
        }
        rows
    }

    /// Returns a launch and an activity for each id from 1 to `count`. The shapes of the activities repeat after
    /// `period` ids.
    fn rows(count: u32, period: u32) -> Vec<(Launch, Activity)> {
        let row = |id: u32| {
            let mut launch = launch(id, 7 + id % 3);
            launch.time = Nanos(1_700_000_000_000_000_000 + u64::from(id) * 4_000);
            let mut activity = kernel(id, 0, 0);
            (activity.start, activity.end) = (launch.time, Nanos(launch.time.0 + 2_500));
            activity.stream = super::super::StreamId(id % period);
            (launch, activity)
        };
        (1..=count).map(row).collect()
    }

    #[test]
    fn packs_are_read_as_written_even_if_more_shapes_occur_than_are_remembered() {
        let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
        for (launch, activity) in rows(5_000, 1_500) {
            packer.launch(&launch);
            packer.activity(&activity);
            let expected = [format!("{launch:?}"), format!("{activity:?}")].map(Ok);
            if activity.correlation.0 % 3 == 0 {
                let found = unpack(&mut unpacker, pack(&mut packer));
                assert_eq!(found[found.len() - 2..], expected);
            }
        }
        assert!(packer.shapes.len() <= MAX_SHAPES as usize);
    }

    #[test]
    fn a_repeated_kernel_takes_sixteen_bytes_with_its_launch() {
        let mut packer = Packer::default();
        for (launch, activity) in rows(1_000, 8) {
            packer.launch(&launch);
            packer.activity(&activity);
        }
        // A launch takes 1 byte for the first byte with the flags, 2 bytes for the time, at most 2 for the duration,
        // and 1 for the context. An activity takes 1 byte for the first byte with the flags, 1 byte for the shape, and
        // 2 for each of the two times. The first rows of a pack and each new shape take more bytes, because they
        // contain all fields.
        let bytes = pack(&mut packer).len();
        assert!(bytes < 1_000 * 13 + 8 * 110 + 40, "{bytes}");
    }

    #[test]
    fn extreme_values_are_read_as_written() {
        let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
        let mut expected = Vec::new();
        for value in [0, u64::MAX, 1, 1 << 63, (1 << 63) - 1, u64::MAX - 1] {
            let id = value as u32;
            let launch = Launch {
                time: Nanos(value),
                duration: id,
                correlation: CorrelationId(id),
                within: CorrelationId(!id),
                context: ContextId(id),
            };
            let mut one = kernel(id, 0, 0);
            (one.start, one.end) = (Nanos(value), Nanos(value.wrapping_mul(3)));
            packer.launch(&launch);
            packer.activity(&one);
            expected.extend([Ok(format!("{launch:?}")), Ok(format!("{one:?}"))]);
        }
        assert_eq!(unpack(&mut unpacker, pack(&mut packer)), expected);
    }

    #[test]
    fn without_the_pack_of_its_shape_an_activity_is_an_error_and_never_has_the_fields_of_another() {
        let mut packer = Packer::default();
        let rows = rows(6, 3);
        let packs = rows.chunks(2).map(|rows| {
            rows.iter().for_each(|(_, activity)| packer.activity(activity));
            pack(&mut packer)
        });
        // The first pack contains shapes with streams 1 and 2. The second pack contains a new shape with stream 0, and
        // refers to the shape with stream 1.
        let [_, second, third] = <[_; 3]>::try_from(packs.collect::<Vec<_>>()).unwrap();
        let mut unpacker = Unpacker::default();
        let found = unpack(&mut unpacker, second);
        assert_eq!(found[0], Ok(format!("{:?}", rows[2].1)));
        assert!(found[1].is_err(), "{found:?}");
        let found = unpack(&mut unpacker, third);
        assert!(found[0].is_err(), "{found:?}");
        assert_eq!(found[1], Ok(format!("{:?}", rows[5].1)));
    }

    #[test]
    fn a_pack_cut_anywhere_yields_the_rows_before_the_cut_and_one_error() {
        let mut packer = Packer::default();
        rows(4, 2).iter().for_each(|(launch, activity)| {
            packer.launch(launch);
            packer.activity(activity);
        });
        let whole = pack(&mut packer);
        let expected = unpack(&mut Unpacker::default(), whole.clone());
        for cut in 1..whole.len() {
            let found = unpack(&mut Unpacker::default(), whole[..cut].to_vec());
            let good = found.iter().take_while(|row| row.is_ok()).count();
            assert_eq!(found[..good], expected[..good], "cut at {cut}");
            assert!(found.len() - good <= 1, "cut at {cut}");
        }
    }
}
