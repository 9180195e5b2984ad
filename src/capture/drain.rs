//! How the collector gets at what the application's threads have written.
//!
//! Only one thread may be in here at a time: the caller holds the collector's lock.

use crate::record::Row;

use super::python;
use super::range_names;
use super::records::{read_contexts, read_launches};
use super::thread::{Readers, all, under_way};

/// Hands over some of what all threads have written since the last call: every new context, and then
/// launches, at most one chunk of a log from each thread. False: there was nothing.
pub fn drain(each: impl FnMut(&Row<'_>)) -> bool {
    drain_threads(|_| true, each)
}

/// Notes how much lies unread, for [`drain_noted`].
pub fn note_unread() {
    for thread in all() {
        // SAFETY: as in `drain_threads`.
        let readers = unsafe { thread.readers() };
        readers.noted = readers.launches.unread(&thread.launches);
        readers.is_noted = true;
    }
}

/// Marks what lies unread, for [`marked_is_read`].
pub fn mark_unread() {
    for thread in all() {
        // SAFETY: as in `drain_threads`.
        let readers = unsafe { thread.readers() };
        readers.marked = readers.launches.unread(&thread.launches);
    }
}

/// Whether all launches were handed over that [`mark_unread`] found.
pub fn marked_is_read() -> bool {
    // SAFETY: as in `drain_threads`.
    all().all(|thread| unsafe { thread.readers() }.marked == 0)
}

/// The most windows that may have been opened without one of them having a launch under way that began in it.
pub fn windows_left() -> u32 {
    let open = under_way().filter(|state| state.is_open());
    open.map(|state| state.openings().saturating_sub(1)).min().unwrap_or(u32::MAX)
}

/// Whether a thread that lives is in a launch that was not passed over.
pub fn any_under_way() -> bool {
    under_way().next().is_some()
}

/// The same as [`drain`], of threads of which not all has been handed over that [`note_unread`] found: comes to an
/// end however fast threads launch on.
pub fn drain_noted(each: impl FnMut(&Row<'_>)) -> bool {
    // A thread may have launched outside of windows alone, and nothing be in its log.
    drain_threads(|readers| std::mem::take(&mut readers.is_noted) || readers.noted > 0, each)
}

fn drain_threads(wanted: impl Fn(&mut Readers) -> bool, mut each: impl FnMut(&Row<'_>)) -> bool {
    let mut any = false;
    for thread in all() {
        // SAFETY: only the collector calls this, one thread at a time.
        let readers = unsafe { thread.readers() };
        if !wanted(readers) {
            continue;
        }
        // A launch refers to contexts that were written before it: mark launches first, read them last.
        let launches = readers.launches.mark_next(&thread.launches);
        let contexts = readers.contexts.mark(&thread.contexts);
        range_names::drain_names(&mut each);
        python::drain_codes(&mut each);
        let Readers { launches: reader, told, noted, marked, .. } = readers;
        let grown = told.grown(&thread.outside);
        if let Some(new) = grown {
            each(&Row::Outside(new));
        }
        let some = grown.is_some()
            | readers.contexts.drain(&thread.contexts, contexts, |words| read_contexts(words, &mut each))
            | reader.drain(&thread.launches, launches, |words| {
                *noted = noted.saturating_sub(words.len());
                *marked = marked.saturating_sub(words.len());
                read_launches(words, told, &mut each);
            });
        any |= some;
    }
    any
}

/// Hands over every new context of all threads.
pub(super) fn drain_contexts(mut each: impl FnMut(&Row<'_>)) {
    for thread in all() {
        // SAFETY: as in `drain`.
        let readers = unsafe { thread.readers() };
        let contexts = readers.contexts.mark(&thread.contexts);
        range_names::drain_names(&mut each);
        python::drain_codes(&mut each);
        readers.contexts.drain(&thread.contexts, contexts, |words| read_contexts(words, &mut each));
    }
}
