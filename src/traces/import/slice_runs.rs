//! Stores the slices of one thread in about 8 bytes each. Slices must stay in memory until the whole trace has been
//! read, and a trace may have millions of slices.
//!
//! In most traces, the slices of a thread are sorted, or they consist of a few sorted lists. For example, there may be
//! one list each for Python functions, operators and calls. Each such list is stored as a *run*, which contains the
//! differences between one slice and the next. A new slice is appended to the first run whose last slice comes before
//! the new slice. A slice that fits no run is stored uncompressed.

use gpuflame_model::record::{Fields, Payload};

use super::slices::{FrameClass, Slice};

/// Maximum number of runs per thread. The number is limited, because each new slice is compared with the last slice of
/// every run.
const MAX_RUNS: usize = 16;

/// The slices of one thread, which may be added in any order. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SliceRuns {
    runs: Vec<Run>,
    /// Slices that do not fit into any run.
    others: Vec<Slice>,
    /// Latest end time of all Python functions.
    last_python_end: i64,
}

/// A sorted list of slices, stored as differences.
#[derive(Debug)]
struct Run {
    bytes: Vec<u8>,
    last: Slice,
    before: Before,
}

/// Fields of the most recent slices of a run. The next slice is stored as the differences from these fields.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    start: i64,
    /// Indexes of the most recent slice that is not a call, and of the most recent slice that is a call.
    numbers: [u32; 2],
}

impl SliceRuns {
    pub(super) fn push(&mut self, slice: Slice) {
        if slice.class() == FrameClass::Python {
            self.last_python_end = self.last_python_end.max(slice.end);
        }
        let key = slice.order_key();
        match self.runs.iter().position(|run| run.last.order_key() <= key) {
            Some(at) => self.runs[at].push(slice),
            None if self.runs.len() < MAX_RUNS => {
                let mut run = Run { bytes: Vec::new(), last: slice, before: Before::default() };
                run.push(slice);
                self.runs.push(run);
            }
            None => self.others.push(slice),
        }
    }

    /// Returns the latest end time of all Python functions.
    pub(super) fn last_python_end(&self) -> i64 {
        self.last_python_end
    }

    /// Returns the slices, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slice> {
        self.runs.iter().flat_map(Run::read).chain(self.others.iter().copied())
    }

    /// Passes all slices to `each`, sorted by [`Slice::order_key`].
    pub(super) fn for_each_in_order(mut self, mut each: impl FnMut(Slice)) {
        // The sort is unstable, because a stable sort would need 50 % more memory.
        self.others.sort_unstable_by_key(Slice::order_key);
        let mut others = self.others.iter().copied().peekable();
        let mut heads: Vec<Head<_>> = self.runs.iter().filter_map(|run| Head::new(run.read())).collect();
        while !heads.is_empty() {
            heads.sort_unstable_by_key(|head| head.next.order_key());
            let limit = heads.get(1).map(|head| head.next);
            let head = &mut heads[0];
            // Consecutive slices are often in the same run. So the runs are compared again only when the next slice is
            // in a different run.
            let has_ended = loop {
                while let Some(other) = others.next_if(|other| other.order_key() < head.next.order_key()) {
                    each(other);
                }
                each(head.next);
                match head.rest.next() {
                    Some(next) => head.next = next,
                    None => break true,
                }
                if limit.is_some_and(|limit| limit.order_key() < head.next.order_key()) {
                    break false;
                }
            };
            if has_ended {
                heads.swap_remove(0);
            }
        }
        others.for_each(each);
    }
}

impl Extend<Slice> for SliceRuns {
    fn extend<T: IntoIterator<Item = Slice>>(&mut self, slices: T) {
        slices.into_iter().for_each(|slice| self.push(slice));
    }
}

/// The first remaining slice of a run, and the run's slices after the first one.
struct Head<R> {
    next: Slice,
    rest: R,
}

impl<R: Iterator<Item = Slice>> Head<R> {
    fn new(mut rest: R) -> Option<Self> {
        Some(Self { next: rest.next()?, rest })
    }
}

impl Run {
    fn push(&mut self, slice: Slice) {
        let is_call = usize::from(slice.call().is_some());
        let (start, before) = (slice.start as u64, &mut self.before);
        Payload(&mut self.bytes)
            .varint(start.wrapping_sub(before.start as u64))
            .difference(slice.end as u64, start)
            .varint(slice.label_and_class().into())
            .difference(slice.number.into(), before.numbers[is_call].into());
        before.start = slice.start;
        before.numbers[is_call] = slice.number;
        self.last = slice;
    }

    fn read(&self) -> impl Iterator<Item = Slice> {
        let (mut fields, mut before) = (Fields(&self.bytes), Before::default());
        std::iter::from_fn(move || {
            let start = before.start.wrapping_add(fields.varint()? as i64);
            let end = fields.difference(start as u64)? as i64;
            let label_and_class = fields.varint()? as u32;
            let slice = |number| Slice::from_parts((start, end), label_and_class, number);
            let is_call = usize::from(slice(0).call().is_some());
            let number = fields.difference(before.numbers[is_call].into())? as u32;
            before.start = start;
            before.numbers[is_call] = number;
            Some(slice(number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::slices::FrameClass;
    use super::*;

    type Parts = (i64, i64, u32, FrameClass, u32);

    fn parts(slice: &Slice) -> Parts {
        (slice.start, slice.end, slice.label(), slice.class(), slice.number)
    }

    /// Creates slices with artificial times. `jump` returns the time from the start of the previous slice to the start
    /// of the next slice.
    fn slices(count: u32, mut jump: impl FnMut(u32) -> i64) -> Vec<Slice> {
        let classes = [FrameClass::Python, FrameClass::Range, FrameClass::Operator, FrameClass::Call];
        let mut start = 1_700_000_000_000_000_000_i64;
        let mut all = Vec::new();
        for number in 0..count {
            start = start.wrapping_add(jump(number));
            let end = start.wrapping_add(i64::from(number % 7) * 1_000 - 1_000);
            all.push(Slice::new((start, end), number % 300, classes[number as usize % 4], number / 2));
        }
        all
    }

    /// Checks that `SliceRuns` returns all slices in the order in which a sort returns them.
    #[track_caller]
    fn check(slices: &[Slice]) -> SliceRuns {
        let mut runs = SliceRuns::default();
        runs.extend(slices.iter().copied());
        let mut expected: Vec<Parts> = slices.iter().map(parts).collect();
        let mut found: Vec<Parts> = runs.iter().map(|slice| parts(&slice)).collect();
        let by_key =
            |(start, end, _, class, number): &Parts| (*start, std::cmp::Reverse(*end), *class, *number);
        expected.sort_by_key(by_key);
        found.sort_by_key(by_key);
        assert_eq!(found, expected);
        let mut again = SliceRuns::default();
        again.extend(slices.iter().copied());
        let mut in_order = Vec::new();
        again.for_each_in_order(|slice| in_order.push(parts(&slice)));
        assert_eq!(in_order, expected);
        runs
    }

    #[test]
    fn slices_in_order_take_one_run_and_few_bytes() {
        let runs = check(&slices(10_000, |number| 100 + i64::from(number % 90) * 100));
        assert_eq!((runs.runs.len(), runs.others.len()), (1, 0));
        let bytes = runs.runs[0].bytes.len();
        assert!(bytes < 80_000, "{bytes} bytes");
    }

    #[test]
    fn lists_that_follow_each_other_are_merged() {
        let jump = |number| if number % 1_000 == 0 { -150_000 } else { 170 };
        let runs = check(&slices(5_000, jump));
        assert_eq!((runs.runs.len(), runs.others.len()), (5, 0));
        // There are calls between the operators. Some calls have the same times as operators.
        check(&slices(1_000, |number| i64::from(number % 3) - 1));
    }

    #[test]
    fn slices_in_any_order_and_with_extreme_times_are_kept() {
        let mut seed = 1_u64;
        let mut random = move |_: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as i64 - (1 << 23)
        };
        let runs = check(&slices(5_000, &mut random));
        assert_eq!(runs.runs.len(), MAX_RUNS);
        assert!(!runs.others.is_empty());
        let class = FrameClass::Operator;
        let extreme = [i64::MIN, -1, 0, 1, i64::MAX];
        let extreme = extreme.into_iter().zip([u32::MAX, 0, 7, 1 << 31, 3]);
        let extreme = extreme.flat_map(|(time, number)| {
            [i64::MIN, -5, i64::MAX].map(|end| Slice::new((time, end), (1 << 30) - 1, class, number))
        });
        check(&extreme.collect::<Vec<_>>());
        check(&[]);
    }
}
