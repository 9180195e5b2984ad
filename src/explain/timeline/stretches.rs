//! Computes the busy time of a device in one pass and in bounded space. The busy time is the union of the times of the
//! device's activities.
//!
//! Activities arrive roughly in order of time, but the times in different buffers of the tracer overlap. So the newest
//! *stretches* (periods in which the device was busy) wait in a reorder buffer. When the buffer is full, the older
//! stretches are accounted for and removed. The buffer is a vector, which is sorted only when it is full. The vector
//! takes less time per activity than an ordered map, because each of CUPTI's buffers is already sorted, and sorted
//! sequences are merged quickly.

use gpuflame_model::record::Caller;

/// A period in which a device was busy without a pause.
///
/// Busy stretches are compared field by field, in the order in which the fields are declared. So if several activities
/// begin at the same time, the activity that was launched first counts as the end of the gap before them. The order in
/// which activities arrive has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BusyStretch {
    pub(super) start: u64,
    /// API call that launched the first work in this busy stretch.
    pub(super) call: LaunchSpan,
    pub(super) end: u64,
}

const _: () =
    assert!(size_of::<BusyStretch>() == 32, "a stretch grew: 65,536 or more stretches wait per device");

/// The API call that launched a kernel, copy or fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaunchSpan {
    /// Time at which the call began, or 0 if this time is unknown.
    pub(super) time: u64,
    /// Duration of the call in ns, or 0 if the call was recorded when it began, so that its duration is unknown. The
    /// highest value, `u32::MAX`, means that the call took at least this long.
    pub(super) duration: u32,
    /// Launch context (stack and API call) that launched the work, or the reason why this context is unknown.
    pub(super) caller: Caller,
}

/// A buffer of busy stretches that wait to be accounted for. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct BusyStretches {
    waiting: Vec<BusyStretch>,
}

impl BusyStretches {
    /// Adds a busy stretch, which must not be empty. Returns false if the buffer already contains `room` stretches. If
    /// the buffer is full, the caller must first remove some stretches.
    pub(super) fn add(&mut self, new: BusyStretch, room: usize) -> bool {
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

    /// Sorts the busy stretches, and merges those that overlap or touch.
    pub(super) fn merge(&mut self) {
        merge(&mut self.waiting);
    }

    /// Whether a single busy stretch covers the time from `since` to `until` completely. Call this function after
    /// [`BusyStretches::merge`].
    pub(super) fn covers(&self, since: u64, until: u64) -> bool {
        let at = self.waiting.partition_point(|stretch| stretch.start <= since);
        at > 0 && self.waiting[at - 1].end >= until
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of busy stretches that begin before `time`. Call this function after
    /// [`BusyStretches::merge`].
    pub(super) fn count_before(&self, time: u64) -> usize {
        self.waiting.partition_point(|stretch| stretch.start < time)
    }

    /// Returns the start of the busy stretch at `position`. Returns `u64::MAX` if there is no stretch at this position.
    pub(super) fn start_of(&self, position: usize) -> u64 {
        self.waiting.get(position).map_or(u64::MAX, |stretch| stretch.start)
    }

    /// Removes and returns the busy stretches before `time`, in order of time. A stretch that begins before `time` and
    /// ends after `time` is split in two.
    pub(super) fn take_before(&mut self, time: u64) -> Vec<BusyStretch> {
        merge(&mut self.waiting);
        let leaving = self.count_before(time);
        let mut left: Vec<_> = self.waiting.drain(..leaving).collect();
        if let Some(last) = left.last_mut()
            && last.end > time
        {
            self.waiting.insert(0, BusyStretch { start: time, ..*last });
            last.end = time;
        }
        left
    }

    /// Replaces each caller (launch context) by the result of the function `caller` for it.
    pub(super) fn rename(&mut self, caller: impl Fn(Caller) -> Caller) {
        for stretch in &mut self.waiting {
            stretch.call.caller = caller(stretch.call.caller);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<BusyStretch>()
    }
}

/// Sorts the busy stretches, and merges those that overlap or touch.
pub(super) fn merge(stretches: &mut Vec<BusyStretch>) {
    stretches.sort();
    stretches.dedup_by(|next, kept| {
        let touch = next.start <= kept.end;
        if touch {
            kept.end = kept.end.max(next.end);
        }
        touch
    });
}
