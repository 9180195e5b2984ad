//! Ranges that the application names, by NVTX or by `gpuflame_range_push`: those that are open on a thread are
//! frames of whatever the thread launches.
//!
//! A thread's open ranges are its own (`open_ranges`). Names are interned once for the process, under a lock
//! (`range_names`); each thread remembers those that it used last.

use crate::control::life;
use crate::record::{Loss, RangeId};

use super::open_ranges::{SERIAL, SERIAL_BITS};
use super::range_names::{RangeDomain, RangeName, intern};
use super::thread::{Entered, Thread, all};

const PAGE_BITS: u32 = 12;

/// Opens a range on this thread, to be closed by [`pop_range`]. Returns how many of its domain are open
/// around it; `None` where it could not be kept.
pub fn push_range(domain: RangeDomain, name: RangeName<'_>) -> Option<usize> {
    if domain == RangeDomain::IGNORED || life::is_over() {
        return None;
    }
    let mut entered = Entered::new()?;
    let (own, thread) = entered.parts();
    let ranges = &mut own.ranges;
    ranges.notice_ends(&thread.ended);
    let around = ranges.count(domain);
    let opened = ranges.named(domain, name).and_then(|id| {
        if id == RangeId::OTHER {
            thread.tally.lose(Loss::RangesDropped);
        }
        ranges.open(domain, id, 0)
    });
    if opened.is_none() {
        ranges.beyond += 1;
        thread.tally.lose(Loss::RangesDropped);
    }
    opened.map(|()| around)
}

/// Closes the range of this domain that was pushed last on this thread. Returns how many of it remain; `None`
/// where none is open.
pub fn pop_range(domain: RangeDomain) -> Option<usize> {
    if domain == RangeDomain::IGNORED || life::is_over() {
        return None;
    }
    let mut entered = Entered::new()?;
    let (own, thread) = entered.parts();
    let ranges = &mut own.ranges;
    ranges.notice_ends(&thread.ended);
    if ranges.beyond > 0 {
        ranges.beyond -= 1;
    } else if !ranges.close(|open| open.domain == domain && open.serial == 0) {
        return None;
    }
    Some(ranges.count(domain))
}

/// Opens a range on this thread, to be closed by [`end_range`] on any. Returns its id; 0 = it could not be
/// kept.
pub fn start_range(domain: RangeDomain, name: RangeName<'_>) -> u64 {
    if domain == RangeDomain::IGNORED || life::is_over() {
        return 0;
    }
    let Some(mut entered) = Entered::new() else { return 0 };
    let (own, thread) = entered.parts();
    own.ranges.notice_ends(&thread.ended);
    let serial = thread.ended.next_serial();
    let opened = own.ranges.named(domain, name).and_then(|id| own.ranges.open(domain, id, serial));
    if opened.is_none() {
        thread.tally.lose(Loss::RangesDropped);
        return 0;
    }
    page_of(thread) << SERIAL_BITS | u64::from(serial)
}

/// Closes a range by its id, whichever thread opened it. What is no id is passed over.
pub fn end_range(id: u64) {
    if id == 0 || life::is_over() {
        return;
    }
    let Some(mut entered) = Entered::new() else { return };
    let (own, thread) = entered.parts();
    let (page, serial) = (id >> SERIAL_BITS, id as u32 & SERIAL);
    if page == page_of(thread) {
        own.ranges.notice_ends(&thread.ended);
        own.ranges.close(|open| open.serial == serial);
    } else if let Some(owner) = all().find(|owner| page_of(owner) == page)
        && !owner.ended.leave(serial)
    {
        thread.tally.lose(Loss::RangesDropped);
    }
}

/// The id of a name. `None` only in a domain that is left out.
pub(super) fn register(domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
    if domain == RangeDomain::IGNORED || life::is_over() {
        return None;
    }
    // A name that is registered while this thread is inside gpuflame could wait for itself.
    let _entered = Entered::new()?;
    intern(domain, name)
}

/// Where a thread's state lies: the part of a range's id that says whose it is.
fn page_of(thread: &Thread) -> u64 {
    std::ptr::from_ref(thread).addr() as u64 >> PAGE_BITS
}
