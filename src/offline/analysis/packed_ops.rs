//! Stores GPU operations in about 10 bytes each, because a run may have millions of operations.
//!
//! Nearly all operations are added in order of time, which is also the order of their launches. So it suffices to store
//! the differences between each operation and the previous operation.

use gpuflame_explain::join::{Launched, Origin};
use gpuflame_model::record::{Activity, ContextId, CopyKind, Fields, NameId, Nanos, Payload, Work};

/// A GPU operation in decoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedOp {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Launch of the operation, if it is known.
    pub(super) launched: Option<Launched>,
    pub(super) work: Work,
    /// Correlation id, or 0 if the caller does not need it.
    pub(super) correlation: u32,
    /// Index of the stream, together with flags. The index and the flags are usually the same for many consecutive
    /// operations.
    pub(super) place: u32,
}

impl PackedOp {
    /// Creates the operation that represents an activity.
    pub(super) fn new(activity: &Activity, origin: Origin) -> Self {
        let launched = if let Origin::Launch(launched) = origin { Some(launched) } else { None };
        let (start, end) = (activity.start.0, activity.end.0);
        Self { start, end, launched, work: activity.work(), correlation: 0, place: 0 }
    }
}

/// Bits in the first byte of an encoded operation, which state the fields that follow this byte.
const HAS_LAUNCH: u8 = 1;
const HAS_CONTEXT: u8 = 2;
const HAS_CALL_NANOS: u8 = 4;
const HAS_WORK: u8 = 8;
const HAS_CORRELATION: u8 = 16;
const HAS_PLACE: u8 = 32;

/// Maximum number of bytes per encoded operation: the first byte, three numbers of up to 10 bytes and five numbers of
/// up to 5 bytes.
const MAX_OP_BYTES: usize = 1 + 3 * 10 + 5 * 5;
/// Maximum size of a chunk in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Encoded operations, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct PackedOps {
    /// Chunks of encoded operations. When a chunk is full, a new chunk is begun, and the full chunk is never copied. So
    /// adding operations never needs memory for a second copy of all operations.
    chunks: Vec<Vec<u8>>,
    last: Before,
    len: usize,
}

/// Fields of earlier operations, from which the fields of the next operation are encoded as differences. An operation
/// is encoded as the differences between its fields and the fields of earlier operations.
#[derive(Clone, Copy, Debug)]
struct Before {
    end: u64,
    call: Launched,
    work: Work,
    correlation: u32,
    /// Difference between the last two correlation ids.
    correlation_step: u32,
    place: u32,
}

impl Default for Before {
    fn default() -> Self {
        let call = Launched { time: Nanos(0), duration: 0, context: ContextId::NONE };
        Self { end: 0, call, work: Work::Graph, correlation: 0, correlation_step: 0, place: 0 }
    }
}

impl PackedOps {
    pub(super) fn push(&mut self, op: PackedOp) {
        let before = &mut self.last;
        let correlation_step = op.correlation.wrapping_sub(before.correlation);
        let mut fields = 0;
        let mut note = |field: u8, is_there: bool| fields |= if is_there { field } else { 0 };
        note(HAS_LAUNCH, op.launched.is_some());
        let call = op.launched.unwrap_or(before.call);
        note(HAS_CONTEXT, call.context != before.call.context);
        note(HAS_CALL_NANOS, call.duration != before.call.duration);
        note(HAS_WORK, op.work != before.work);
        note(HAS_CORRELATION, correlation_step != before.correlation_step);
        note(HAS_PLACE, op.place != before.place);
        let mut payload = next_payload(&mut self.chunks);
        payload.u8(fields).difference(op.start, before.end).varint(op.end.wrapping_sub(op.start));
        if fields & HAS_LAUNCH != 0 {
            payload.difference(call.time.0, before.call.time.0);
        }
        let mut short = |field: u8, value: u32| {
            if fields & field != 0 {
                payload.varint(value.into());
            }
        };
        short(HAS_CONTEXT, call.context.0);
        short(HAS_CALL_NANOS, call.duration);
        short(HAS_CORRELATION, correlation_step);
        short(HAS_PLACE, op.place);
        if fields & HAS_WORK != 0 {
            payload.varint(work_number(op.work));
        }
        let PackedOp { end, work, correlation, place, .. } = op;
        *before = Before { end, call, work, correlation, correlation_step, place };
        self.len += 1;
    }

    /// Returns the number of operations.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Iterates over the operations in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = PackedOp> + use<'_> {
        let (mut chunks, mut before) = (self.chunks.iter(), Before::default());
        let mut fields = Fields(&[]);
        std::iter::from_fn(move || {
            while fields.0.is_empty() {
                fields = Fields(chunks.next()?);
            }
            read_op(&mut fields, &mut before)
        })
    }

    /// Removes all operations and passes them to `each`. Each chunk is freed when all its operations have been passed.
    pub(super) fn take_all(&mut self, mut each: impl FnMut(PackedOp)) {
        let Self { chunks, .. } = std::mem::take(self);
        let mut before = Before::default();
        for chunk in chunks {
            let mut fields = Fields(&chunk);
            while let Some(op) = read_op(&mut fields, &mut before) {
                each(op);
            }
        }
    }
}

/// Returns the chunk to which the next operation must be appended.
fn next_payload(chunks: &mut Vec<Vec<u8>>) -> Payload<'_> {
    let is_full = |chunk: &Vec<u8>| chunk.len() + MAX_OP_BYTES > CHUNK_BYTES;
    if chunks.last().is_none_or(is_full) {
        // The first chunk starts without reserved memory, so that a list of few operations needs little memory.
        let room = if chunks.is_empty() { 0 } else { CHUNK_BYTES };
        chunks.push(Vec::with_capacity(room));
    }
    let last = chunks.len() - 1;
    Payload(&mut chunks[last])
}

/// Decodes the next operation of a chunk.
#[inline]
fn read_op(fields: &mut Fields<'_>, before: &mut Before) -> Option<PackedOp> {
    let present = fields.u8()?;
    let start = fields.difference(before.end)?;
    let end = start.wrapping_add(fields.varint()?);
    let is_launched = present & HAS_LAUNCH != 0;
    if is_launched {
        before.call.time = Nanos(fields.difference(before.call.time.0)?);
    }
    let mut short = |field: u8| {
        if present & field == 0 { Some(None) } else { fields.varint().map(|value| Some(value as u32)) }
    };
    if let Some(context) = short(HAS_CONTEXT)? {
        before.call.context = ContextId(context);
    }
    if let Some(duration) = short(HAS_CALL_NANOS)? {
        before.call.duration = duration;
    }
    if let Some(step) = short(HAS_CORRELATION)? {
        before.correlation_step = step;
    }
    if let Some(place) = short(HAS_PLACE)? {
        before.place = place;
    }
    if present & HAS_WORK != 0 {
        before.work = work_of(fields.varint()?);
    }
    before.end = end;
    before.correlation = before.correlation.wrapping_add(before.correlation_step);
    let &mut Before { call, work, correlation, place, .. } = before;
    Some(PackedOp { start, end, launched: is_launched.then_some(call), work, correlation, place })
}

/// Returns the code for a kind of GPU work, as it is stored in an encoded operation. The codes of kernels are multiples
/// of 4.
fn work_number(work: Work) -> u64 {
    match work {
        Work::Kernel(name) => u64::from(name.0) << 2,
        Work::Copy(kind) => u64::from(kind.0) << 2 | 1,
        Work::Set => 2,
        Work::Graph => 3,
    }
}

fn work_of(number: u64) -> Work {
    match (number & 3, number >> 2) {
        (0, name) => Work::Kernel(NameId(name as u32)),
        (1, kind) => Work::Copy(CopyKind(kind as u8)),
        (2, _) => Work::Set,
        _ => Work::Graph,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(start: u64, end: u64, launch: Option<(u64, u32, u32)>, work: Work) -> PackedOp {
        let launched =
            |(time, duration, context)| Launched { time: Nanos(time), duration, context: ContextId(context) };
        PackedOp { start, end, launched: launch.map(launched), work, correlation: 0, place: 0 }
    }

    #[track_caller]
    fn check(ops: &[PackedOp]) -> usize {
        let mut packed = PackedOps::default();
        ops.iter().for_each(|op| packed.push(*op));
        assert_eq!(packed.len(), ops.len());
        assert!(packed.iter().eq(ops.iter().copied()));
        let bytes = packed.chunks.iter().map(Vec::len).sum();
        let mut taken = Vec::new();
        packed.take_all(|op| taken.push(op));
        assert_eq!(taken, ops);
        assert_eq!((packed.len(), packed.iter().count()), (0, 0));
        bytes
    }

    #[test]
    fn operations_of_any_kind_and_order_come_back() {
        let works = [
            Work::Kernel(NameId(0)),
            Work::Kernel(NameId(u32::MAX)),
            Work::Copy(CopyKind::DTOH),
            Work::Set,
            Work::Graph,
            Work::Copy(CopyKind(0)),
        ];
        let launches = [None, Some((1, 0, 0)), Some((u64::MAX, u32::MAX, u32::MAX)), Some((5, 7, 8))];
        let times = [(1, 1), (u64::MAX - 1, u64::MAX), (3, 9), (1 << 62, 1 << 63), (2, u64::MAX)];
        let ids = [0, 0, u32::MAX, 7, 8, 9, 3];
        let all = (0..840).map(|at| {
            let (start, end) = times[at % times.len()];
            let one = op(start, end, launches[at % launches.len()], works[at % works.len()]);
            PackedOp { correlation: ids[at % ids.len()], place: ids[at % 5], ..one }
        });
        check(&all.collect::<Vec<_>>());
        check(&[]);
    }

    #[test]
    fn operations_in_order_take_few_bytes_in_many_chunks() {
        let in_order = |at: u64| {
            let start = 1_700_000_000_000_000_000 + at * 10_000;
            let launch = Some((start - 3_000_000 + at % 7 * 100, 2_500, 3 + at as u32 % 40));
            let one = op(start, start + 9_000 + at % 9 * 100, launch, Work::Kernel(NameId(at as u32 % 31)));
            PackedOp { correlation: at as u32 + 1, ..one }
        };
        let bytes = check(&(0..100_000).map(in_order).collect::<Vec<_>>());
        assert!(bytes < 1_100_000, "{bytes} bytes");
    }
}
