//! Busy time of a device: the union of the times of its activities, in one pass and bounded space.
//!
//! Activities arrive roughly in order, but the tracer's buffers are not ordered relative to each other. So
//! the newest stretches of busy time wait here until there is no more room; then the older ones are removed.
//! Unordered stretches wait in a vector that is sorted when it is full, which costs less per activity than
//! any ordered map: the sort detects the ordered runs that come from the tracer's buffers.

use crate::record::Caller;

/// Time in which a device was busy without a pause.
///
/// The order of fields determines comparisons: among pieces that begin at the same time, the one called first
/// counts as the one that ended the gap before, whatever their order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stretch {
    pub(super) start: u64,
    /// Call that launched the work at its start.
    pub(super) call: Call,
    pub(super) end: u64,
}

const _: () =
    assert!(size_of::<Stretch>() == 32, "a stretch grew: 65,536 of them or more wait for each device");

/// The call that launched a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    /// Start of the call; 0 = not known.
    pub(super) time: u64,
    /// Duration of the call; 0 = not known, as it was recorded at the call's start; `u32::MAX` = that long or
    /// longer.
    pub(super) duration: u32,
    /// Context that launched the work.
    pub(super) caller: Caller,
}

/// Stretches that wait. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretches {
    waiting: Vec<Stretch>,
}

impl Stretches {
    /// Adds a non-empty stretch. Returns false if there are `room` already, so that some must be removed
    /// first.
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

    /// Sorts the stretches and merges those that touch.
    pub(super) fn merge(&mut self) {
        merge(&mut self.waiting);
    }

    /// Whether a single stretch covers `since` to `until`. Requires merged stretches.
    pub(super) fn covers(&self, since: u64, until: u64) -> bool {
        let at = self.waiting.partition_point(|stretch| stretch.start <= since);
        at > 0 && self.waiting[at - 1].end >= until
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Number of stretches that begin before `time`. Requires merged stretches.
    pub(super) fn count_before(&self, time: u64) -> usize {
        self.waiting.partition_point(|stretch| stretch.start < time)
    }

    /// Start of the stretch at `position`.
    pub(super) fn start_of(&self, position: usize) -> u64 {
        self.waiting.get(position).map_or(u64::MAX, |stretch| stretch.start)
    }

    /// Removes and returns the part before `time`, in order. A stretch that begins before and ends after is
    /// cut in two.
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

    /// Replaces each caller by the one that `caller` returns for it.
    pub(super) fn rename(&mut self, caller: impl Fn(Caller) -> Caller) {
        for stretch in &mut self.waiting {
            stretch.call.caller = caller(stretch.call.caller);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<Stretch>()
    }
}

/// Sorts the stretches and merges those that touch.
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
