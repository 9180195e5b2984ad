//! Stores the API calls of a trace in 20 bytes each. Calls must stay in memory until the whole trace is read, and a
//! large trace has a million calls.

use gpuflame_model::record::IdMap;

use super::near_times::NearTimes;
use super::work::{CallRecord, CallUse};

/// The calls of a trace, in the order in which the file contains them. In this module, the "number" of a call is its
/// index in this order.
#[derive(Debug, Default)]
pub(super) struct CallRecords {
    starts: NearTimes,
    calls: Vec<StoredCall>,
    /// Values that do not fit into a stored call, keyed by the call's index.
    long_ends: IdMap<u32, i64>,
    long_ids: IdMap<u32, u64>,
    long_threads: IdMap<u32, u32>,
    long_ops: IdMap<u32, u32>,
}

/// A call in the packed form of this module. The start time of the call is in [`CallRecords::starts`].
#[derive(Clone, Copy, Debug)]
struct StoredCall {
    /// Duration in ns, or [`LONG`] if the end is in [`CallRecords::long_ends`].
    nanos: u32,
    /// Correlation id, or [`LONG`] if the id is in [`CallRecords::long_ids`].
    correlation: u32,
    stack: u32,
    /// Packed fields: index of the thread, [`CallUse`], flags, and number of operations that the call launched.
    packed: u32,
}

/// Marks a value that does not fit into its field and is stored in a map instead. Nearly all durations and ids fit into
/// their fields.
const LONG: u32 = u32::MAX;

/// Masks for the bits of [`StoredCall::packed`]. If all bits of the thread index or of the operation count are set, the
/// value does not fit into the field.
const THREAD: u32 = 0xffff;
const USE_SHIFT: u32 = 16;
const LAUNCHES: u32 = 1 << 19;
const AMBIGUOUS: u32 = 1 << 20;
const ENCLOSES: u32 = 1 << 21;
const OPS_SHIFT: u32 = 22;
const MAX_OPS: u32 = u32::MAX >> OPS_SHIFT;

const _: () = assert!(size_of::<StoredCall>() == 16, "a call grew: a large trace has a million calls");

impl CallRecords {
    pub(super) fn push(&mut self, call: CallRecord) {
        let CallRecord { start, end, correlation, thread, stack, ops, launches, starts, ambiguous, encloses } =
            call;
        let number = self.calls.len() as u32;
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let packed = (starts as u32) << USE_SHIFT
            | flag(launches, LAUNCHES)
            | flag(ambiguous, AMBIGUOUS)
            | flag(encloses, ENCLOSES)
            | thread.min(THREAD);
        self.starts.push(start);
        self.calls.push(StoredCall { nanos: 0, correlation: 0, stack, packed });
        if thread >= THREAD {
            self.long_threads.insert(number, thread);
        }
        self.set_end(number, end);
        self.set_correlation(number, correlation);
        self.set_ops(number, ops);
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns the call with this index. This function is always inlined, so that a caller decodes only the fields that
    /// it uses.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> CallRecord {
        let StoredCall { stack, packed, .. } = self.calls[number as usize];
        CallRecord {
            start: self.starts.get(number),
            end: self.end_of(number),
            correlation: self.correlation_of(number),
            thread: self.thread_of(number),
            stack,
            ops: self.ops_of(number),
            launches: packed & LAUNCHES != 0,
            starts: CallUse::ALL[(packed >> USE_SHIFT & 7) as usize],
            ambiguous: packed & AMBIGUOUS != 0,
            encloses: packed & ENCLOSES != 0,
        }
    }

    /// Returns the call that was added last.
    pub(super) fn last(&self) -> Option<CallRecord> {
        self.calls.len().checked_sub(1).map(|last| self.get(last as u32))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = CallRecord> {
        self.numbers().map(|number| self.get(number))
    }

    pub(super) fn starts(&self) -> impl Iterator<Item = i64> {
        self.starts.iter()
    }

    /// Returns the indexes of all calls.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.calls.len() as u32
    }

    #[inline]
    pub(super) fn start_of(&self, number: u32) -> i64 {
        self.starts.get(number)
    }

    #[inline]
    fn end_of(&self, number: u32) -> i64 {
        match self.calls[number as usize].nanos {
            LONG => long_value(&self.long_ends, number),
            nanos => self.starts.get(number) + i64::from(nanos),
        }
    }

    #[inline]
    pub(super) fn correlation_of(&self, number: u32) -> u64 {
        match self.calls[number as usize].correlation {
            LONG => long_value(&self.long_ids, number),
            correlation => correlation.into(),
        }
    }

    #[inline]
    pub(super) fn thread_of(&self, number: u32) -> u32 {
        match self.calls[number as usize].packed & THREAD {
            THREAD => long_value(&self.long_threads, number),
            thread => thread,
        }
    }

    #[inline]
    fn ops_of(&self, number: u32) -> u32 {
        match self.calls[number as usize].packed >> OPS_SHIFT {
            MAX_OPS => long_value(&self.long_ops, number),
            ops => ops,
        }
    }

    pub(super) fn set_end(&mut self, number: u32, end: i64) {
        let nanos = end.checked_sub(self.starts.get(number)).and_then(|nanos| u32::try_from(nanos).ok());
        self.calls[number as usize].nanos = nanos.unwrap_or(LONG);
        if nanos.is_none_or(|nanos| nanos == LONG) {
            self.long_ends.insert(number, end);
        }
    }

    pub(super) fn set_correlation(&mut self, number: u32, correlation: u64) {
        let stored = u32::try_from(correlation).unwrap_or(LONG);
        self.calls[number as usize].correlation = stored;
        if stored == LONG {
            self.long_ids.insert(number, correlation);
        }
    }

    pub(super) fn set_stack(&mut self, number: u32, stack: u32) {
        self.calls[number as usize].stack = stack;
    }

    /// Increments the number of operations that the call has launched.
    pub(super) fn add_op(&mut self, number: u32) {
        self.set_ops(number, self.ops_of(number) + 1);
    }

    fn set_ops(&mut self, number: u32, ops: u32) {
        let packed = &mut self.calls[number as usize].packed;
        *packed = *packed & !(MAX_OPS << OPS_SHIFT) | ops.min(MAX_OPS) << OPS_SHIFT;
        if ops >= MAX_OPS {
            self.long_ops.insert(number, ops);
        }
    }

    pub(super) fn set_launches(&mut self, number: u32, launches: bool) {
        self.set_flag(number, LAUNCHES, launches);
    }

    pub(super) fn set_ambiguous(&mut self, number: u32, ambiguous: bool) {
        self.set_flag(number, AMBIGUOUS, ambiguous);
    }

    pub(super) fn set_encloses(&mut self, number: u32) {
        self.set_flag(number, ENCLOSES, true);
    }

    fn set_flag(&mut self, number: u32, bit: u32, is_set: bool) {
        let packed = &mut self.calls[number as usize].packed;
        *packed = if is_set { *packed | bit } else { *packed & !bit };
    }
}

#[cold]
fn long_value<T: Copy + Default>(values: &IdMap<u32, T>, number: u32) -> T {
    values.get(&number).copied().unwrap_or_default()
}

impl FromIterator<CallRecord> for CallRecords {
    fn from_iter<T: IntoIterator<Item = CallRecord>>(calls: T) -> Self {
        let mut all = Self::default();
        calls.into_iter().for_each(|call| all.push(call));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_with_values_of_any_size_come_back() {
        let top = i64::from(u32::MAX);
        let times = [(5, 5), (5, 4), (7, 6 + top), (7, 7 + top), (i64::MIN, i64::MAX), (i64::MAX, i64::MIN)];
        let ids = [0, 1, u64::from(u32::MAX) - 1, u32::MAX.into(), 1 << 32, u64::MAX, 9];
        let threads = [0, 1, THREAD - 1, THREAD, u32::MAX];
        let counts = [0, 1, MAX_OPS - 1, MAX_OPS, u32::MAX];
        let call = |at: usize| CallRecord {
            start: times[at % times.len()].0,
            end: times[at % times.len()].1,
            correlation: ids[at % ids.len()],
            thread: threads[at % threads.len()],
            stack: threads[(at + 2) % threads.len()],
            ops: counts[at / 5 % counts.len()],
            launches: at.is_multiple_of(2),
            starts: CallUse::ALL[at % CallUse::ALL.len()],
            ambiguous: at.is_multiple_of(3),
            encloses: at.is_multiple_of(7),
        };
        let mut expected: Vec<CallRecord> = (0..420).map(call).collect();
        let mut calls: CallRecords = expected.iter().copied().collect();
        assert!(calls.iter().eq(expected.iter().copied()));
        for (number, call) in (0..).zip(&mut expected) {
            call.ops = call.ops.saturating_add(1);
            if call.ops < u32::MAX {
                calls.add_op(number);
            }
            (call.end, call.correlation, call.stack) = (call.start, 8, number);
            calls.set_end(number, call.end);
            calls.set_correlation(number, 8);
            calls.set_stack(number, number);
            (call.launches, call.ambiguous, call.encloses) = (!call.launches, !call.ambiguous, true);
            calls.set_launches(number, call.launches);
            calls.set_ambiguous(number, call.ambiguous);
            calls.set_encloses(number);
        }
        let is_full = |call: &CallRecord| call.ops == u32::MAX;
        assert!(
            calls.iter().filter(|call| !is_full(call)).eq(expected.into_iter().filter(|call| !is_full(call)))
        );
        assert_eq!((calls.len(), calls.last().map(|last| last.stack)), (420, Some(419)));
    }
}
