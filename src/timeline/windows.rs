//! When a window was open: idle time is charged for nothing else.

use std::collections::VecDeque;

/// Windows that are remembered one by one. A program that opens one for each step has a new one every few
/// milliseconds; what is older than all of these was accounted for long ago.
const MOST: usize = 4096;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    /// In order, without overlaps; the last one may be open still.
    known: VecDeque<Window>,
    /// Nanoseconds of those that were forgotten.
    forgotten: u64,
    /// Whether there ever was one.
    any: bool,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    from: u64,
    /// `u64::MAX` while it is open.
    to: u64,
}

impl Windows {
    /// Whether there ever was a window. Rows that come from another tool may have none: then all the time
    /// from the first activity to the last counts as one.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    pub(super) fn open(&mut self, time: u64) {
        self.any = true;
        if self.known.back().is_none_or(|last| last.to <= time) {
            self.known.push_back(Window { from: time, to: u64::MAX });
        }
    }

    pub(super) fn close(&mut self, time: u64) {
        if let Some(last) = self.known.back_mut()
            && last.to == u64::MAX
        {
            last.to = time.max(last.from);
        }
    }

    /// When the older half ended, where there are too many.
    pub(super) fn crowded(&self) -> Option<u64> {
        (self.known.len() > MOST).then(|| self.known[MOST / 2].from)
    }

    /// Forgets those that ended by `time`.
    pub(super) fn forget(&mut self, time: u64) {
        while let Some(first) = self.known.front().filter(|first| first.to <= time) {
            self.forgotten += first.to - first.from;
            self.known.pop_front();
        }
    }

    /// The parts of `from..to` in which a window was open.
    pub(super) fn parts(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let whole = (!self.any && from < to).then_some((from, to));
        let first = self.known.partition_point(|window| window.to <= from);
        let inside = self.known.range(first..).take_while(move |window| window.from < to);
        whole.into_iter().chain(
            inside.map(move |window| (from.max(window.from), to.min(window.to))).filter(|(a, b)| a < b),
        )
    }

    /// When the window was opened that was open at `time`; 0 where there are none at all.
    pub(super) fn opened(&self, time: u64) -> u64 {
        let at = self.known.partition_point(|window| window.to <= time);
        self.known.get(at).map_or(0, |window| window.from)
    }

    /// Nanoseconds of the windows that were forgotten.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// When the last window was closed; `None` while it is open.
    pub(super) fn last_close(&self) -> Option<u64> {
        self.known.back().map(|last| last.to).filter(|&to| to != u64::MAX)
    }

    /// Nanoseconds in which a window was open; one that is open still ends at `now`.
    pub(super) fn total(&self, now: u64) -> u64 {
        let lengths = self.known.iter().map(|window| match window.to {
            u64::MAX => now.saturating_sub(window.from),
            to => to - window.from,
        });
        self.forgotten + lengths.sum::<u64>()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.known.capacity() * size_of::<Window>()
    }
}
