//! External correlation ids. A client pushes an id on a thread; the id is then written, in a record of kind 39, before
//! the record of every API call of that thread.

use std::cell::RefCell;

thread_local! {
    /// Kinds and ids, in the order in which they were pushed.
    static IDS: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn push(kind: u32, id: u64) {
    IDS.with_borrow_mut(|ids| ids.push((kind, id)));
}

/// Removes the last id of a kind.
pub(crate) fn pop(kind: u32) -> Option<u64> {
    IDS.with_borrow_mut(|ids| ids.iter().rposition(|(k, _)| *k == kind).map(|at| ids.remove(at).1))
}

/// Calls `f` with the last id of each kind, on the calling thread.
pub(crate) fn each(mut f: impl FnMut(u32, u64)) {
    IDS.with_borrow(|ids| {
        for (at, (kind, id)) in ids.iter().enumerate() {
            if !ids[at + 1..].iter().any(|(later, _)| later == kind) {
                f(*kind, *id);
            }
        }
    });
}
