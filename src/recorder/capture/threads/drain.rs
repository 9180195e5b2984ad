//! Functions with which the collector reads the records that the application's threads have written.
//!
//! Only one thread at a time may run the functions in this file, so the caller must hold the collector's lock.

use gpuflame_model::record::{Nanos, Row};

use super::python;
use super::records::{read_contexts, read_launches};
use super::thread::{LogReaders, all, in_flight};
use crate::capture::ids::range_names;

/// Passes the records that the threads have written since the last call to `each`. For each thread, first passes all
/// new contexts (stacks with their API call). Then passes launches, but at most those in one chunk of the thread's log.
/// Returns false if there were no new records.
pub fn drain(each: impl FnMut(&Row<'_>)) -> bool {
    drain_threads(|_| true, each)
}

/// Like [`drain`], but skips every thread of which a launch that began at or after `time` was already read. When this
/// function returns false, all launches before `time` have been passed to `each`.
pub fn drain_before(time: Nanos, each: impl FnMut(&Row<'_>)) -> bool {
    drain_threads(|readers| readers.last_launch < time, each)
}

/// Notes how many words of each thread's launch log are currently unread. A later call of [`drain_noted`] reads these
/// words.
pub fn note_unread() {
    for thread in all() {
        // SAFETY: only the collector calls this function, and the function drains one thread at a time, as in
        // `drain_threads`.
        let readers = unsafe { thread.readers() };
        readers.noted = readers.launches.unread(&thread.launches);
        readers.is_noted = true;
    }
}

/// Marks the end of the currently unread words in each thread's launch log. [`marked_is_read`] returns whether these
/// words were read.
pub fn mark_unread() {
    for thread in all() {
        // SAFETY: as in `drain_threads`, only the collector calls this function, for one thread at a time.
        let readers = unsafe { thread.readers() };
        readers.marked = readers.launches.unread(&thread.launches);
    }
}

/// Whether all launches that were unread at the last call of [`mark_unread`] have been read.
pub fn marked_is_read() -> bool {
    // SAFETY: as in `drain_threads`, only the collector calls this function, for one thread at a time.
    all().all(|thread| unsafe { thread.readers() }.marked == 0)
}

/// Returns the number of windows, counted from the first window, whose launch calls have all returned. Returns
/// `u32::MAX` if no launch call that began inside a window is in flight.
pub fn windows_without_pending_launches() -> u32 {
    let open = in_flight().filter(|state| state.is_open());
    open.map(|state| state.openings().saturating_sub(1)).min().unwrap_or(u32::MAX)
}

/// Whether a launch call is in flight on any thread, apart from threads that have ended.
pub fn any_in_flight() -> bool {
    in_flight().next().is_some()
}

/// Like [`drain`], but stops reading the log of a thread once the launches that were unread at the last [`note_unread`]
/// are read. Because of this, repeated calls eventually return false, even if the threads quickly make further
/// launches.
pub fn drain_noted(each: impl FnMut(&Row<'_>)) -> bool {
    // `is_noted` is needed because a thread's log may be empty although the thread has launched. While a thread
    // launches only outside windows, its launches are counted in a range and are not in the log.
    drain_threads(|readers| std::mem::take(&mut readers.is_noted) || readers.noted > 0, each)
}

fn drain_threads(wanted: impl Fn(&mut LogReaders) -> bool, mut each: impl FnMut(&Row<'_>)) -> bool {
    let mut any = false;
    for thread in all() {
        // SAFETY: only the collector calls this function, for one thread at a time.
        let readers = unsafe { thread.readers() };
        if !wanted(readers) {
            continue;
        }
        // A launch refers to a context that the thread has written before the launch. Therefore this code marks the end
        // of the launch log before the end of the context log, and reads the contexts before the launches.
        let launches = readers.launches.mark_chunk_end(&thread.launches);
        let contexts = readers.contexts.mark_end(&thread.contexts);
        range_names::drain_names(&mut each);
        python::drain_codes(&mut each);
        let LogReaders { launches: reader, outside_reader, noted, marked, last_launch, .. } = readers;
        let grown = outside_reader.grown(&thread.outside);
        if let Some(new) = grown {
            each(&Row::Outside(new));
        }
        let some = grown.is_some()
            | readers.contexts.drain(&thread.contexts, contexts, |words| read_contexts(words, &mut each))
            | reader.drain(&thread.launches, launches, |words| {
                *noted = noted.saturating_sub(words.len());
                *marked = marked.saturating_sub(words.len());
                read_launches(words, outside_reader, &mut |row| {
                    if let Row::Launch(launch) = row {
                        *last_launch = launch.time;
                    }
                    each(row);
                });
            });
        any |= some;
    }
    any
}

/// Passes the new contexts (stacks with their API call) of all threads to `each`.
pub(crate) fn drain_contexts(mut each: impl FnMut(&Row<'_>)) {
    for thread in all() {
        // SAFETY: as in `drain_threads`, only the collector calls this function, for one thread at a time.
        let readers = unsafe { thread.readers() };
        let contexts = readers.contexts.mark_end(&thread.contexts);
        range_names::drain_names(&mut each);
        python::drain_codes(&mut each);
        readers.contexts.drain(&thread.contexts, contexts, |words| read_contexts(words, &mut each));
    }
}
