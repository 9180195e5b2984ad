//! Unified memory: the location of each page of a managed allocation, and the page migrations that a prefetch causes.
//! Each migration becomes an activity record of kind 25 and, on request, a line of the truth file. Simulated kernels
//! and the host do not access the pages, so there are no page faults, and only prefetches move pages.

use crate::clock;
use crate::deps;
use crate::gpu;
use crate::stream::Stream;
use crate::sync::lock;
use crate::table::{SWITCHES, with_hooks};
use crate::version::kind;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex};

/// Size of a page, and maximum size of a single migration, in bytes.
const PAGE: u64 = 4096;
const MOST: u64 = 2 << 20;

/// Direction of a page migration, with CUPTI's value for the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // these are CUPTI's names
pub enum Direction {
    HtoD = 1,
    DtoH = 2,
    DtoD = 8,
}

/// A migration of pages.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // the fields have the names of the activity record's fields
pub struct Move {
    pub direction: Direction,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub address: u64,
    pub source: u32,
    pub target: u32,
    pub stream: u32,
}

/// For each page that is not on the host, the device on which it is.
static PAGES: LazyLock<Mutex<HashMap<u64, u32>>> = LazyLock::new(Mutex::default);

/// Removes the pages of freed memory from the table, so that they are no longer counted as pages on a device.
pub fn forget(start: u64, bytes: u64) {
    let mut pages = lock(&PAGES);
    for page in start / PAGE..(start + bytes).div_ceil(PAGE) {
        pages.remove(&page);
    }
}

/// Moves all pages of an address range to the device `target`, or to the host if `target` is `None`. Pages that are
/// already at the target do not move. The migration is ordered like other work on the stream.
pub fn prefetch(stream: &'static Stream, start: u64, bytes: u64, target: Option<u32>) {
    let mut pages = lock(&PAGES);
    let (mut at, end) = (start / PAGE, (start + bytes).div_ceil(PAGE));
    while at < end {
        let from = pages.get(&at).copied();
        let alike = |page: &u64| pages.get(page).copied() == from;
        let many = (at..end.min(at + MOST / PAGE)).take_while(alike).count() as u64;
        if from != target {
            note(stream, (from, target), at * PAGE, many * PAGE);
            for page in at..at + many {
                match target {
                    Some(device) => pages.insert(page, device),
                    None => pages.remove(&page),
                };
            }
        }
        at += many;
    }
}

fn note(stream: &'static Stream, (from, to): (Option<u32>, Option<u32>), address: u64, bytes: u64) {
    let direction = match (from, to) {
        (None, _) => Direction::HtoD,
        (_, None) => Direction::DtoH,
        _ => Direction::DtoD,
    };
    let (start, end) = gpu::move_pages(stream, clock::memcpy_duration(bytes));
    let number = |device: Option<u32>| device.unwrap_or(deps::NONE);
    let (source, target) = (number(from), number(to));
    let one = Move { direction, bytes, start, end, address, source, target, stream: stream.id };
    let is_counted = SWITCHES.counted.load(Relaxed) & (1 << direction as u32) != 0;
    if is_counted && SWITCHES.kinds.load(Relaxed) & (1 << kind::UNIFIED_MEMORY_COUNTER) != 0 {
        with_hooks(|hooks| (hooks.unified)(&one));
    }
    deps::tell(&format!(
        "{{\"what\":\"unified\",\"direction\":\"{direction:?}\",\"bytes\":{bytes},\"start\":{start},\"end\":{end},\
         \"address\":{address},\"source\":{source},\"target\":{target}}}\n"
    ));
}
