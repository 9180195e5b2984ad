//! Records the ranges that the application opens and names through NVTX or `gpuflame_range_push`. Each range that is
//! open on a thread becomes a frame in the stack of every launch on that thread.
//!
//! Each thread has its own list of open ranges (`open_ranges`). In the whole process, each range name has one id
//! (`range_names`). Each thread caches the names that it has used most recently.

use std::ptr::from_ref;
use std::sync::atomic::Ordering;

use gpuflame_model::record::{Loss, RangeId};

use crate::capture::ids::range_names::{RangeDomain, RangeName, domain, intern, with_step_name};
use crate::capture::notices::{self, Notice};
use crate::capture::threads::forked_child;
use crate::capture::threads::open_ranges::{MAX_SERIAL, SERIAL_BITS};
use crate::capture::threads::thread::{EntryGuard, EntryRefusal, ThreadState, all};

const PAGE_BITS: u32 = 12;

/// Opens a range on this thread. The function [`pop_range`] closes the range. Returns the number of ranges in the same
/// domain that enclose the new range. Returns `None` if the range could not be stored.
pub fn push_range(domain: RangeDomain, name: RangeName<'_>) -> Option<usize> {
    if domain == RangeDomain::IGNORED || forked_child::is_over() {
        return None;
    }
    let Some(mut entered) = EntryGuard::new(from_ref(&domain).addr()) else {
        let refused = EntryRefusal::determine();
        refused.lose(Loss::RangesDropped);
        if let EntryRefusal::Inside(thread) = refused {
            thread.refused.pushed.fetch_add(1, Ordering::Relaxed);
        }
        return None;
    };
    let (own, thread) = entered.parts();
    let ranges = &mut own.ranges;
    ranges.apply_pending_ends(&thread.pending_ends);
    let around = ranges.count(domain);
    let id = ranges.intern_name(domain, name);
    let opened = id.and_then(|id| {
        if id == RangeId::OTHER {
            thread.counters.lose(Loss::RangesDropped);
        }
        ranges.open(domain, id, 0)
    });
    if opened.is_none() {
        ranges.overflowed += 1;
        thread.counters.lose(Loss::RangesDropped);
    }
    drop(entered);
    announce_step(name, id);
    opened.map(|()| around)
}

/// Notifies the session if the range begins a step. Call this function only after the thread's state was released,
/// because the receiver of the notice may take time and may need the state.
fn announce_step(name: RangeName<'_>, id: Option<RangeId>) {
    with_step_name(name, id, |name| notices::announce(Notice::Step(name)));
}

/// Result of closing a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopResult {
    /// The range is closed. The value is the number of ranges in the same domain that are still open on the thread.
    Closed(usize),
    /// The domain has no open range.
    NoneOpen,
    /// The caller is a signal handler that interrupted the thread inside gpuflame. If the signal handler itself has
    /// opened the range, the range is now closed, but no launch inside the range has a frame for it. If the signal
    /// handler has not opened the range, the range stays open, and the loss is counted.
    InHandler,
}

/// Closes the range in this domain that was pushed last on this thread.
pub fn pop_range(domain: RangeDomain) -> PopResult {
    if domain == RangeDomain::IGNORED || forked_child::is_over() {
        return PopResult::NoneOpen;
    }
    let Some(mut entered) = EntryGuard::new(from_ref(&domain).addr()) else {
        let refused = EntryRefusal::determine();
        let is_even = matches!(refused, EntryRefusal::Inside(thread) if thread.refused.consume_pop());
        if !is_even {
            refused.lose(Loss::RangesDropped);
        }
        return PopResult::InHandler;
    };
    let (own, thread) = entered.parts();
    let ranges = &mut own.ranges;
    ranges.apply_pending_ends(&thread.pending_ends);
    if ranges.overflowed > 0 {
        ranges.overflowed -= 1;
    } else if !thread.refused.consume_pop() && !ranges.close(|open| open.domain == domain && open.serial == 0)
    {
        return PopResult::NoneOpen;
    }
    PopResult::Closed(ranges.count(domain))
}

/// Opens a range on this thread. Any thread may close the range with [`end_range`]. Returns the id of the range, or 0
/// if the range could not be stored.
pub fn start_range(domain: RangeDomain, name: RangeName<'_>) -> u64 {
    if domain == RangeDomain::IGNORED || forked_child::is_over() {
        return 0;
    }
    let Some(mut entered) = EntryGuard::new(from_ref(&domain).addr()) else {
        let refused = EntryRefusal::determine();
        refused.lose(Loss::RangesDropped);
        return 0;
    };
    let (own, thread) = entered.parts();
    own.ranges.apply_pending_ends(&thread.pending_ends);
    let serial = thread.pending_ends.next_serial();
    let id = own.ranges.intern_name(domain, name);
    let opened = id.and_then(|id| own.ranges.open(domain, id, serial));
    if opened.is_none() {
        thread.counters.lose(Loss::RangesDropped);
    }
    let page = page_of(thread);
    drop(entered);
    announce_step(name, id);
    if opened.is_some() { page << SERIAL_BITS | u64::from(serial) } else { 0 }
}

/// Closes the range with this id. Any thread may call this function. An invalid id is ignored.
pub fn end_range(id: u64) {
    if id == 0 || forked_child::is_over() {
        return;
    }
    let (page, serial) = (id >> SERIAL_BITS, id as u32 & MAX_SERIAL);
    let entered = EntryGuard::new(from_ref(&id).addr());
    if let Some(mut entered) = entered {
        let (own, thread) = entered.parts();
        if page == page_of(thread) {
            own.ranges.apply_pending_ends(&thread.pending_ends);
            own.ranges.close(|open| open.serial == serial);
            return;
        }
    }
    // This thread cannot close the range itself, either because the range belongs to another thread, or because a
    // signal handler calls this function and could not enter gpuflame. Therefore this thread leaves a note for the
    // thread that owns the range, and does not wait for that thread.
    if let Some(owner) = all().find(|owner| page_of(owner) == page)
        && !owner.pending_ends.note_end(serial)
    {
        owner.counters.lose(Loss::RangesDropped);
    }
}

/// Returns the id of a range name. Returns `None` if the user has excluded the domain or if recording is over.
pub(super) fn register(domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
    (domain != RangeDomain::IGNORED && !forked_child::is_over()).then(|| intern(domain, name))
}

/// Returns the domain with the name `name`, or [`RangeDomain::IGNORED`] if recording is over.
pub(super) fn create_domain(name: RangeName<'_>) -> RangeDomain {
    if forked_child::is_over() { RangeDomain::IGNORED } else { domain(name) }
}

/// Returns the page number of the memory page in which a thread's state begins. A range's id contains this page number,
/// which identifies the thread that owns the range.
fn page_of(thread: &ThreadState) -> u64 {
    std::ptr::from_ref(thread).addr() as u64 >> PAGE_BITS
}
