//! External correlation ids. A client pushes an external id on a thread. After that, each activity record of an API
//! call on this thread is preceded by a record of kind 39 with this id.

use std::cell::RefCell;

thread_local! {
    /// External ids and their kinds, in the order in which the client pushed them.
    static IDS: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn push(kind: u32, id: u64) {
    IDS.with_borrow_mut(|ids| ids.push((kind, id)));
}

/// Removes and returns the id of this kind that was pushed last.
pub(crate) fn pop(kind: u32) -> Option<u64> {
    IDS.with_borrow_mut(|ids| ids.iter().rposition(|(k, _)| *k == kind).map(|at| ids.remove(at).1))
}

/// Calls `f` with the calling thread's last id of each kind.
pub(crate) fn each(mut f: impl FnMut(u32, u64)) {
    IDS.with_borrow(|ids| {
        for (at, (kind, id)) in ids.iter().enumerate() {
            if !ids[at + 1..].iter().any(|(later, _)| later == kind) {
                f(*kind, *id);
            }
        }
    });
}
