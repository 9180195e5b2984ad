//! When a device was busy: the union of the times of its activities, in one pass and bounded space.
//!
//! Activities arrive roughly in order, but the tracer's buffers are unordered among each other, so the
//! newest stretches of busy time wait here until there is no more room; then the older ones leave.
//! Unordered stretches wait in one vector that is sorted when it is full, which costs less for each
//! activity than any ordered map: the sort finds the ordered runs that the tracer's buffers are.

use crate::record::Caller;

/// Time in which a device was busy without a pause.
///
/// The order of fields is that of comparing: of pieces that begin together the one called first counts as
/// the one that ended the gap before, whatever the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stretch {
    pub(super) start: u64,
    /// What launched the work that began it.
    pub(super) call: Call,
    pub(super) end: u64,
}

const _: () =
    assert!(size_of::<Stretch>() == 32, "a stretch grew: 65,536 of them or more wait for each device");

/// The call that launched a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    /// When it began; 0 = not known.
    pub(super) time: u64,
    /// How long it took; 0 = not known, as it was noted when it began; `u32::MAX` = that long or longer.
    pub(super) duration: u32,
    /// Who launched the work.
    pub(super) caller: Caller,
}

/// The stretches that wait. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretches {
    waiting: Vec<Stretch>,
}

impl Stretches {
    /// Adds one that is not empty. False: there are `room` already, and some must leave first.
    pub(super) fn add(&mut self, new: Stretch, room: usize) -> bool {
        if let Some(newest) = self.waiting.last_mut()
            && newest.start < new.start
            && new.start <= newest.end
        {
            newest.end = newest.end.max(new.end);
            return true;
        }
        let has_room = self.waiting.len() < room;
        if has_room {
            self.waiting.push(new);
        }
        has_room
    }

    /// Sorts, and makes one of those that touch.
    pub(super) fn merge(&mut self) {
        merge(&mut self.waiting);
    }

    /// Whether one of those that are merged lasts from `since` to `until`.
    pub(super) fn covers(&self, since: u64, until: u64) -> bool {
        let at = self.waiting.partition_point(|stretch| stretch.start <= since);
        at > 0 && self.waiting[at - 1].end >= until
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many of those that are merged begin before `time`.
    pub(super) fn count_before(&self, time: u64) -> usize {
        self.waiting.partition_point(|stretch| stretch.start < time)
    }

    /// When the one at `position` begins.
    pub(super) fn start_of(&self, position: usize) -> u64 {
        self.waiting.get(position).map_or(u64::MAX, |stretch| stretch.start)
    }

    /// Takes out what lies before `time`, in order. What begins before and ends after is cut in two.
    pub(super) fn take_before(&mut self, time: u64) -> Vec<Stretch> {
        merge(&mut self.waiting);
        let leaving = self.count_before(time);
        let mut left: Vec<_> = self.waiting.drain(..leaving).collect();
        if let Some(last) = left.last_mut()
            && last.end > time
        {
            self.waiting.insert(0, Stretch { start: time, ..*last });
            last.end = time;
        }
        left
    }

    /// Has their time be charged to others.
    pub(super) fn rename(&mut self, caller: impl Fn(Caller) -> Caller) {
        for stretch in &mut self.waiting {
            stretch.call.caller = caller(stretch.call.caller);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<Stretch>()
    }
}

/// Sorts, and makes one stretch of those that touch.
pub(super) fn merge(stretches: &mut Vec<Stretch>) {
    stretches.sort();
    stretches.dedup_by(|next, kept| {
        let touch = next.start <= kept.end;
        if touch {
            kept.end = kept.end.max(next.end);
        }
        touch
    });
}
