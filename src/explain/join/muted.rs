//! Stores the periods during which CUPTI's callbacks were off (muted). The id of an activity shows whether the activity
//! was launched in such a period, or whether its launch was lost. Ids of launches in a period are higher than all ids
//! in the window before the period, and lower than all ids in the window after the period. Work that began to run
//! before the later window opened was also launched before that window. Work that began to run later can be assigned to
//! a period only after the launches in the later window have arrived.

use gpuflame_model::record::Nanos;

/// Maximum number of stored periods. If there are more periods, the oldest ones are no longer searched.
const MAX_PERIODS: usize = 1 << 12;

/// A period during which CUPTI's callbacks were off. The ids in the fields are unrolled to 64 bits.
#[derive(Clone, Copy, Debug)]
struct MutedPeriod {
    since: Nanos,
    /// Time at which the period ended; `None` if it has not ended.
    until: Option<Nanos>,
    /// `after` is the highest id of a launch in any window before the period. `before` is the lowest id of a launch in
    /// any window after the period.
    after: u64,
    before: u64,
}

/// Whether a launch was made while CUPTI's callbacks were off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Muted {
    No,
    /// The launch was made while the callbacks were off, or it was made in the next window and its row has not arrived
    /// yet.
    Perhaps,
    Yes,
}

/// Periods in which CUPTI's callbacks were off. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct MutedPeriods {
    periods: Vec<MutedPeriod>,
    highest: u64,
}

impl MutedPeriods {
    /// Notes that CUPTI's callbacks were switched on or off at `time`. Returns the duration in ns of the period that
    /// ended, or 0 if no period ended.
    pub(super) fn callbacks_switched(&mut self, on: bool, time: Nanos) -> u64 {
        match (on, self.periods.last_mut()) {
            (false, last) => {
                if last.is_none_or(|last| last.until.is_some()) {
                    self.periods.push(MutedPeriod {
                        since: time,
                        until: None,
                        after: self.highest,
                        before: u64::MAX,
                    });
                }
                if self.periods.len() > MAX_PERIODS {
                    self.periods.remove(0);
                }
                0
            }
            (true, Some(last)) if last.until.is_none() => {
                last.until = Some(time);
                time.since(last.since)
            }
            (true, _) => 0,
        }
    }

    /// Processes a launch that was made in a window. `id` is its correlation id, unrolled to 64 bits.
    pub(super) fn launch(&mut self, id: u64, time: Nanos) {
        self.highest = self.highest.max(id);
        let Some(last) = self.periods.last_mut() else { return };
        if time <= last.since {
            last.after = last.after.max(id);
        } else {
            last.before = last.before.min(id);
        }
    }

    /// Whether work with this id was launched while callbacks were off. The work began to run at `start`.
    pub(super) fn find(&self, id: u64, start: Nanos) -> Muted {
        let Some(period) = self.periods.iter().rev().find(|period| period.after < id) else {
            return Muted::No;
        };
        if id >= period.before {
            return Muted::No;
        }
        match period.until {
            Some(until) if start >= until => Muted::Perhaps,
            _ => Muted::Yes,
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.periods.capacity() * size_of::<MutedPeriod>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_launched_between_windows_are_recognized_as_unseen() {
        let mut muted = MutedPeriods::default();
        muted.launch(10, Nanos(100));
        assert_eq!(muted.find(11, Nanos(500)), Muted::No);
        assert_eq!(muted.callbacks_switched(false, Nanos(1000)), 0);
        // Launch 12 was made in the window, but its row arrives after the window has closed.
        muted.launch(12, Nanos(110));
        let found = |muted: &MutedPeriods, id, start| muted.find(id, Nanos(start));
        assert_eq!(
            [10, 12, 13, 999].map(|id| found(&muted, id, 2000)),
            [Muted::No, Muted::No, Muted::Yes, Muted::Yes]
        );
        assert_eq!(muted.callbacks_switched(true, Nanos(5000)), 4000);
        assert_eq!(muted.callbacks_switched(true, Nanos(6000)), 0);
        // At this point, the launches of the next window have not arrived.
        assert_eq!([4999, 5000].map(|start| found(&muted, 50, start)), [Muted::Yes, Muted::Perhaps]);
        muted.launch(60, Nanos(5100));
        muted.launch(55, Nanos(5090));
        assert_eq!([54, 55, 60].map(|id| found(&muted, id, 7000)), [Muted::Perhaps, Muted::No, Muted::No]);
        assert_eq!(muted.callbacks_switched(false, Nanos(9000)), 0);
        assert_eq!([54, 58, 61].map(|id| found(&muted, id, 4000)), [Muted::Yes, Muted::No, Muted::Yes]);
    }
}
