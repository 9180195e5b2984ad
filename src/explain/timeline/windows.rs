//! Stores the times at which windows were open. Idle time is charged to a cause only if a window was open.

use std::collections::VecDeque;

/// Maximum number of windows that are stored individually. The limit is needed, because a program that opens a window
/// per step opens a window every few milliseconds. When the limit is reached, the oldest windows are forgotten after
/// their time was accounted for.
const MAX_WINDOWS: usize = 4096;

/// The windows of the run so far. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowSpans {
    /// Stored windows, in order of time. Windows do not overlap. The last window may still be open.
    spans: VecDeque<WindowSpan>,
    /// Total duration in ns of the windows that were forgotten.
    forgotten_ns: u64,
    /// Whether a window has been opened so far.
    any: bool,
}

#[derive(Clone, Copy, Debug)]
struct WindowSpan {
    from: u64,
    /// Time at which the window closed, or `u64::MAX` while the window is open.
    to: u64,
}

impl WindowSpans {
    /// Whether any window has been opened so far. A trace of another tool may have no windows; in such a trace, the
    /// whole time from the first activity to the last counts as one window.
    pub(super) fn has_any(&self) -> bool {
        self.any
    }

    pub(super) fn open(&mut self, time: u64) {
        self.any = true;
        if self.spans.back().is_none_or(|last| last.to <= time) {
            self.spans.push_back(WindowSpan { from: time, to: u64::MAX });
        }
    }

    pub(super) fn close(&mut self, time: u64) {
        if let Some(last) = self.spans.back_mut()
            && last.to == u64::MAX
        {
            last.to = time.max(last.from);
        }
    }

    /// If too many windows are stored, returns the time at which the newer half of them begins. Otherwise returns
    /// `None`.
    pub(super) fn overflow_start(&self) -> Option<u64> {
        (self.spans.len() > MAX_WINDOWS).then(|| self.spans[MAX_WINDOWS / 2].from)
    }

    /// Forgets the windows that closed at or before `time`.
    pub(super) fn forget(&mut self, time: u64) {
        while let Some(first) = self.spans.front().filter(|first| first.to <= time) {
            self.forgotten_ns += first.to - first.from;
            self.spans.pop_front();
        }
    }

    /// Returns the parts of `from..to` in which a window was open.
    pub(super) fn parts(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let whole = (!self.any && from < to).then_some((from, to));
        let first = self.spans.partition_point(|window| window.to <= from);
        let inside = self.spans.range(first..).take_while(move |window| window.from < to);
        whole.into_iter().chain(
            inside.map(move |window| (from.max(window.from), to.min(window.to))).filter(|(a, b)| a < b),
        )
    }

    /// Returns the time at which the window that was open at `time` was opened. Returns 0 if the run has no windows.
    pub(super) fn opened(&self, time: u64) -> u64 {
        let at = self.spans.partition_point(|window| window.to <= time);
        self.spans.get(at).map_or(0, |window| window.from)
    }

    /// Returns the total duration in ns of the windows that were forgotten.
    pub(super) fn forgotten_ns(&self) -> u64 {
        self.forgotten_ns
    }

    /// Returns the time at which the last window closed, or `None` while the last window is open.
    pub(super) fn last_close(&self) -> Option<u64> {
        self.spans.back().map(|last| last.to).filter(|&to| to != u64::MAX)
    }

    /// Returns the total time in ns during which a window was open. For a window that is still open, the time up to
    /// `now` counts.
    pub(super) fn total(&self, now: u64) -> u64 {
        let lengths = self.spans.iter().map(|window| match window.to {
            u64::MAX => now.saturating_sub(window.from),
            to => to - window.from,
        });
        self.forgotten_ns + lengths.sum::<u64>()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<WindowSpan>()
    }
}
