//! Stores the times of launches and of GPU work in a few bytes each, because a run may have millions of launches and
//! operations.
//!
//! Nearly all times are added in ascending order, so the differences between successive times are stored.

use gpuflame_explain::join::Launched;
use gpuflame_model::record::{ContextId, Fields, Payload};

/// Time and launch context of a launch, in decoded form.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchTime {
    pub(super) time: u64,
    pub(super) context: ContextId,
    /// Whether the GPU work of the launch was recorded.
    pub(super) is_covered: bool,
}

/// Encoded launches, in about 5 bytes each.
#[derive(Debug, Default)]
pub(super) struct LaunchTimes {
    bytes: Vec<u8>,
    last: (u64, u32),
    is_unsorted: bool,
}

impl LaunchTimes {
    pub(super) fn push(&mut self, launched: Launched, is_covered: bool) {
        let (time, context) = (launched.time.0, launched.context.0);
        self.is_unsorted |= time < self.last.0;
        Payload(&mut self.bytes)
            .difference(time, self.last.0)
            .varint(u64::from(context.wrapping_sub(self.last.1)) << 1 | u64::from(is_covered));
        self.last = (time, context);
    }

    /// Iterates over the launches in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = LaunchTime> {
        let (mut fields, mut time, mut context) = (Fields(&self.bytes), 0, 0_u32);
        std::iter::from_fn(move || {
            time = fields.difference(time)?;
            let packed = fields.varint()?;
            context = context.wrapping_add((packed >> 1) as u32);
            Some(LaunchTime { time, context: ContextId(context), is_covered: packed & 1 != 0 })
        })
    }

    /// Calls `each` with each launch, in order of time.
    pub(super) fn each_in_order(&self, each: impl FnMut(LaunchTime)) {
        if !self.is_unsorted {
            return self.iter().for_each(each);
        }
        let mut sorted: Vec<LaunchTime> = self.iter().collect();
        sorted.sort_unstable_by_key(|launch| launch.time);
        sorted.into_iter().for_each(each);
    }
}

/// Stretches of time, encoded in about 6 bytes each. If a stretch overlaps or touches the stretch that was added before
/// it, the two are merged.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    bytes: Vec<u8>,
    /// Start of the last stretch in `bytes`.
    last: u64,
    is_unsorted: bool,
    /// Stretch that was added last. The last stretch may still grow, so it is not encoded yet.
    open: Option<(u64, u64)>,
}

impl Stretches {
    pub(super) fn push(&mut self, (start, end): (u64, u64)) {
        match &mut self.open {
            Some(open) if start <= open.1 && open.0 <= end => *open = (start.min(open.0), end.max(open.1)),
            open => {
                if let Some(over) = open.replace((start, end)) {
                    self.store(over);
                }
            }
        }
    }

    fn store(&mut self, (start, end): (u64, u64)) {
        self.is_unsorted |= start < self.last;
        Payload(&mut self.bytes).difference(start, self.last).varint(end.wrapping_sub(start));
        self.last = start;
    }

    /// Calls `each` with the start and end of each stretch, in order of time. Stretches that overlap or touch are
    /// merged before `each` is called.
    pub(super) fn each_merged(&self, mut each: impl FnMut(u64, u64)) {
        let mut merged: Option<(u64, u64)> = None;
        let mut add = |(start, end): (u64, u64)| match &mut merged {
            Some(last) if start <= last.1 => last.1 = end.max(last.1),
            last => {
                if let Some((start, end)) = last.replace((start, end)) {
                    each(start, end);
                }
            }
        };
        let (mut fields, mut start) = (Fields(&self.bytes), 0);
        let stored = std::iter::from_fn(|| {
            start = fields.difference(start)?;
            Some((start, start.wrapping_add(fields.varint()?)))
        });
        let all = stored.chain(self.open);
        if self.is_unsorted || self.open.is_some_and(|open| open.0 < self.last) {
            let mut sorted: Vec<(u64, u64)> = all.collect();
            sorted.sort_unstable();
            sorted.into_iter().for_each(&mut add);
        } else {
            all.for_each(&mut add);
        }
        if let Some((start, end)) = merged {
            each(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::Nanos;

    fn merged(stretches: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let (mut all, mut found) = (Stretches::default(), Vec::new());
        stretches.iter().for_each(|stretch| all.push(*stretch));
        all.each_merged(|start, end| found.push((start, end)));
        found
    }

    #[test]
    fn stretches_that_overlap_are_merged() {
        assert_eq!(merged(&[(5, 7), (1, 3), (2, 4), (4, 5)]), [(1, 7)]);
        assert_eq!(
            merged(&[(1, 3), (5, 7), (6, 9), (u64::MAX - 1, u64::MAX)]),
            [(1, 3), (5, 9), (u64::MAX - 1, u64::MAX)]
        );
        assert_eq!(merged(&[(5, 7), (1, 3)]), [(1, 3), (5, 7)]);
        assert_eq!(merged(&[]), []);
    }

    #[test]
    fn launches_come_back_by_time_whatever_their_order() {
        for times in [[1, 1, 1 << 50, u64::MAX], [9, 0, u64::MAX, 4]] {
            let mut launches = LaunchTimes::default();
            for (time, context) in times.into_iter().zip([0, u32::MAX, 7, 6]) {
                let context = ContextId(context);
                launches.push(Launched { time: Nanos(time), duration: 1, context }, context.0 == 7);
            }
            let all = launches.iter().map(|one| (one.time, one.context.0, one.is_covered));
            let pushed = times.into_iter().zip([(0, false), (u32::MAX, false), (7, true), (6, false)]);
            assert!(all.eq(pushed.map(|(time, (context, is_covered))| (time, context, is_covered))));
            let mut found = Vec::new();
            launches.each_in_order(|launch| found.push(launch.time));
            let mut expected = times;
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
    }
}
