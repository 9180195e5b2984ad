//! Stores the GPU operations of a trace in 16 bytes each. Operations must stay in memory until the whole trace has been
//! read, and a trace may have a million operations.
//!
//! Most operations are repetitions: the same kernel runs with the same grid on the same stream in each step. So all
//! properties except times and ids are stored as a *shape*, once for all operations that share them.

use gpuflame_model::record::{Detail, IdMap, hash_one};

use super::chunks::Chunks;
use super::near_times::NearTimes;

/// The operations of a trace, in the order in which the file contains them. In this module, the "number" of an
/// operation is its index in this order.
#[derive(Debug, Default)]
pub(super) struct OpRecords {
    starts: NearTimes,
    ops: Chunks<StoredOp>,
    shapes: Vec<OpShape>,
    /// Index of a shape (properties that many operations share) for each hash of a shape. If several shapes have the
    /// same hash, only the first of these shapes is found.
    known: IdMap<u64, u32>,
    /// Ends and correlation ids that do not fit into a stored operation, keyed by the operation's index. If an
    /// operation is linked to a call with a different correlation id, `long_ids` contains the id of the operation.
    long_ends: IdMap<u32, i64>,
    long_ids: IdMap<u32, u64>,
}

/// Properties of an operation, except its times and ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpShape {
    /// Index of the operation's process; 0 if the trace does not contain the process.
    pub(super) process: u32,
    /// Whether only the process field and the thread field of the trace event contain the device and the stream.
    pub(super) place_in_lane: bool,
    /// Index of the operation's lane, which is the pair of process field and thread field in its trace event.
    pub(super) lane: u32,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) graph: u32,
    pub(super) graph_node: u64,
    pub(super) detail: Detail,
}

/// An operation, decoded from its stored form and its shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpRecord<'a> {
    pub(super) start: i64,
    pub(super) end: i64,
    /// Correlation id; 0 if the operation has no such id, or if the operation is linked to a call with the same id.
    pub(super) correlation: u64,
    pub(super) launch: OpLaunch,
    pub(super) shape: &'a OpShape,
}

/// The call that launched an operation, if this call is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OpLaunch {
    /// The call that launched the operation is unknown.
    Unknown,
    /// Several calls may have launched the operation.
    Ambiguous,
    /// The call with this index launched the operation.
    Call(u32),
}

/// An operation in the packed form of this module. The start time of the operation is in [`OpRecords::starts`].
#[derive(Clone, Copy, Debug)]
struct StoredOp {
    /// Duration in ns, or [`LONG`] if the end is in [`OpRecords::long_ends`].
    nanos: u32,
    /// Index of the call if the operation is [`LINKED`], and otherwise the operation's correlation id.
    link: u32,
    /// Index of the operation's shape, and the flags [`LINKED`], [`AMBIGUOUS`] and [`LONG_ID`].
    shape_and_flags: u32,
}

/// Marks a value that does not fit into its field and is stored in a map instead. Nearly all durations and ids fit into
/// their fields.
const LONG: u32 = u32::MAX;

const _: () =
    assert!(size_of::<StoredOp>() == 12, "an operation grew: a large trace has a million operations");

/// Bit that is set if the operation was linked to a call.
const LINKED: u32 = 1 << 31;
/// Bit that is set if several calls may have launched the operation.
const AMBIGUOUS: u32 = 1 << 30;
/// Bit that is set if the correlation id is stored in [`OpRecords::long_ids`].
const LONG_ID: u32 = 1 << 29;
const SHAPE: u32 = LONG_ID - 1;

impl StoredOp {
    fn shape(self) -> u32 {
        self.shape_and_flags & SHAPE
    }

    fn has(self, flag: u32) -> bool {
        self.shape_and_flags & flag != 0
    }
}

impl OpRecord<'_> {
    /// Returns the index of the call that launched the operation, if the call is known.
    pub(super) fn call(&self) -> Option<u32> {
        if let OpLaunch::Call(call) = self.launch { Some(call) } else { None }
    }

    /// Returns the duration in ns.
    pub(super) fn nanos(&self) -> u64 {
        self.end.saturating_sub(self.start).max(0) as u64
    }
}

impl OpRecords {
    /// Stores an operation whose call is not known yet. Returns the index of the operation.
    pub(super) fn push(&mut self, (start, end): (i64, i64), correlation: u64, shape: OpShape) -> u32 {
        let (shape, number) = (self.intern(shape), self.ops.len() as u32);
        self.starts.push(start);
        self.ops.push(StoredOp { nanos: 0, link: 0, shape_and_flags: shape & SHAPE });
        self.set_end(number, end);
        self.set_correlation(number, correlation);
        number
    }

    /// Sets the correlation id of an operation that is not linked to any call.
    fn set_correlation(&mut self, number: u32, correlation: u64) {
        match u32::try_from(correlation) {
            Ok(stored) => self.ops.get_mut(number).link = stored,
            Err(_) => self.set_long_id(number, correlation),
        }
    }

    fn set_long_id(&mut self, number: u32, correlation: u64) {
        self.long_ids.insert(number, correlation);
        self.ops.get_mut(number).shape_and_flags |= LONG_ID;
    }

    fn intern(&mut self, shape: OpShape) -> u32 {
        let next = self.shapes.len() as u32;
        let number = *self.known.entry(hash_one(&shape)).or_insert(next);
        if self.shapes.get(number as usize) == Some(&shape) {
            return number;
        }
        self.shapes.push(shape);
        next
    }

    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns the operation with this index. This function is always inlined, so that a caller decodes only the fields
    /// that it uses.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> OpRecord<'_> {
        self.view(number, *self.ops.get(number))
    }

    /// Returns the operation that was added last.
    pub(super) fn last(&self) -> Option<OpRecord<'_>> {
        self.len().checked_sub(1).map(|last| self.get(last as u32))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = OpRecord<'_>> {
        (0..self.len() as u32).map(|number| self.get(number))
    }

    pub(super) fn starts(&self) -> impl Iterator<Item = i64> {
        self.starts.iter()
    }

    #[inline(always)]
    fn view(&self, number: u32, op: StoredOp) -> OpRecord<'_> {
        let start = self.starts.get(number);
        let end = match op.nanos {
            LONG => self.long_end(number, start),
            nanos => start + i64::from(nanos),
        };
        let launch = match () {
            () if op.has(LINKED) => OpLaunch::Call(op.link),
            () if op.has(AMBIGUOUS) => OpLaunch::Ambiguous,
            () => OpLaunch::Unknown,
        };
        let correlation = match () {
            () if op.has(LONG_ID) => self.long_id(number),
            () if op.has(LINKED) => 0,
            () => op.link.into(),
        };
        OpRecord { start, end, correlation, launch, shape: &self.shapes[op.shape() as usize] }
    }

    #[cold]
    fn long_end(&self, number: u32, start: i64) -> i64 {
        self.long_ends.get(&number).copied().unwrap_or(start)
    }

    #[cold]
    fn long_id(&self, number: u32) -> u64 {
        self.long_ids.get(&number).copied().unwrap_or(0)
    }

    /// Links an operation to the call `call`. `correlation` is the correlation id of this call. An operation must be
    /// linked at most once.
    pub(super) fn link(&mut self, number: u32, call: u32, correlation: u64) {
        let own = self.get(number).correlation;
        let is_same = own == correlation;
        if !is_same {
            self.set_long_id(number, own);
        }
        let op = self.ops.get_mut(number);
        debug_assert!(!op.has(LINKED), "an operation is linked once");
        let removed = AMBIGUOUS | if is_same { LONG_ID } else { 0 };
        (op.link, op.shape_and_flags) = (call, op.shape_and_flags & !removed | LINKED);
    }

    /// Marks an operation as ambiguous, because several calls may have launched the operation.
    pub(super) fn set_ambiguous(&mut self, number: u32) {
        self.ops.get_mut(number).shape_and_flags |= AMBIGUOUS;
    }

    pub(super) fn set_end(&mut self, number: u32, end: i64) {
        let start = self.starts.get(number);
        let op = self.ops.get_mut(number);
        op.nanos = end.checked_sub(start).and_then(|nanos| u32::try_from(nanos).ok()).unwrap_or(LONG);
        if op.nanos == LONG {
            self.long_ends.insert(number, end);
        }
    }

    /// Sets the correlation id of an operation without a correlation id.
    pub(super) fn add_correlation(&mut self, number: u32, correlation: u64) {
        if self.get(number).correlation == 0 {
            self.set_correlation(number, correlation);
        }
    }

    /// Sets the end time of all operations that start at `start`.
    pub(super) fn set_ends_of(&mut self, start: i64, end: i64) {
        for number in 0..self.ops.len() as u32 {
            if self.starts.get(number) == start {
                self.set_end(number, end);
            }
        }
    }

    /// Returns the index in [`OpRecords::shapes`] of the operation's shape.
    pub(super) fn shape_of(&self, number: u32) -> u32 {
        self.ops.get(number).shape()
    }

    /// Returns the shapes (properties that operations share), in the order in which they first occurred. Some shapes in
    /// the list may be equal.
    pub(super) fn shapes(&self) -> &[OpShape] {
        &self.shapes
    }

    /// Returns the shapes, so that the caller can modify them. A change of a shape affects all operations that have
    /// this shape.
    pub(super) fn shapes_mut(&mut self) -> &mut [OpShape] {
        &mut self.shapes
    }

    /// Returns the number of operations with a shape for which `is_counted` contains true.
    pub(super) fn count_with(&self, is_counted: &[bool]) -> u64 {
        (0..self.len() as u32).filter(|number| is_counted[self.shape_of(*number) as usize]).count() as u64
    }

    /// Frees the operations before the index `number`, in the same way as [`Chunks::free_before`].
    pub(super) fn free_before(&mut self, number: u32) {
        self.starts.free_before(number);
        self.ops.free_before(number);
    }

    /// Frees memory that is only needed while operations are added.
    pub(super) fn finish(&mut self) {
        self.known = IdMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_differ_only_in_times_and_ids_share_a_shape() {
        let shape = |stream| OpShape {
            process: 1,
            place_in_lane: false,
            lane: 2,
            device: 0,
            context: 1,
            stream,
            graph: 0,
            graph_node: 0,
            detail: Detail::Graph,
        };
        let mut ops = OpRecords::default();
        for (start, stream) in [(10, 7), (20, 7), (30, 8), (40, 7)] {
            ops.push((start, start + 5), start as u64, shape(stream));
        }
        assert_eq!(ops.shapes(), [shape(7), shape(8)]);
        let found: Vec<_> = ops.iter().map(|op| (op.start, op.nanos(), op.correlation, *op.shape)).collect();
        let expected = [(10, 7), (20, 7), (30, 8), (40, 7)];
        assert_eq!(found, expected.map(|(start, stream)| (start, 5, start as u64, shape(stream))));
        ops.link(1, 0, 20);
        ops.set_ambiguous(2);
        let launches: Vec<_> = ops.iter().map(|op| op.launch).collect();
        assert_eq!(launches, [OpLaunch::Unknown, OpLaunch::Call(0), OpLaunch::Ambiguous, OpLaunch::Unknown]);
        ops.shapes_mut()[0].device = 3;
        assert_eq!(ops.iter().map(|op| op.shape.device).collect::<Vec<_>>(), [3, 3, 0, 3]);
    }

    #[test]
    fn ends_and_ids_of_any_size_are_kept() {
        let (process, lane, device, context, stream, graph, graph_node) = (1, 2, 0, 1, 7, 0, 0);
        let (place_in_lane, detail) = (false, Detail::Graph);
        let shape =
            OpShape { process, place_in_lane, lane, device, context, stream, graph, graph_node, detail };
        let top = i64::from(u32::MAX);
        let times = [(5, 5), (5, 4), (7, 6 + top), (7, 7 + top), (i64::MIN, i64::MAX), (i64::MAX, i64::MIN)];
        let ids = [0, 1, u64::from(u32::MAX) - 1, u32::MAX.into(), 1 << 32, u64::MAX];
        let mut ops = OpRecords::default();
        for (times, id) in times.into_iter().zip(ids) {
            ops.push(times, id, shape);
        }
        let found: Vec<_> = ops.iter().map(|op| ((op.start, op.end), op.correlation)).collect();
        assert_eq!(found, times.into_iter().zip(ids).collect::<Vec<_>>());
        ops.set_end(3, 8);
        ops.set_end(0, i64::MAX);
        ops.set_ends_of(i64::MIN, 0);
        ops.add_correlation(0, 1 << 40);
        ops.add_correlation(5, 3);
        let ends = [0, 3, 4].map(|number| ops.get(number).end);
        assert_eq!(ends, [i64::MAX, 8, 0]);
        assert_eq!([0, 5].map(|number| ops.get(number).correlation), [1 << 40, u64::MAX]);
        // If an operation is linked to a call with a different correlation id, the operation's id is stored.
        ops.set_ambiguous(2);
        for (number, call, id) in [(0, 7, 1 << 40), (1, 8, 9), (2, 9, 5), (5, 10, u64::MAX)] {
            ops.link(number, call, id);
        }
        let linked = [0, 1, 2, 5].map(|number| (ops.get(number).call(), ops.get(number).correlation));
        let expected = [(Some(7), 0), (Some(8), 1), (Some(9), u64::from(u32::MAX) - 1), (Some(10), 0)];
        assert_eq!(linked, expected);
        assert_eq!(ops.get(4).launch, OpLaunch::Unknown);
    }
}
