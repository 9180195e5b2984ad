//! Reads the callback's launch records as the collector does. The records are read only when the benchmark calls
//! [`drain`].

use std::collections::HashMap;
use std::sync::Mutex;

use gpuflame_model::record::{ContextId, Frame, Row};
use gpuflame_recorder::capture;

#[derive(Default)]
struct Seen {
    stacks: HashMap<ContextId, Vec<Frame>>,
    last: Option<ContextId>,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

/// Reads all launch records, and releases the memory that they use.
pub(crate) fn drain() {
    let mut seen = SEEN.lock().expect("a benchmark does not panic");
    let seen = seen.get_or_insert_default();
    while capture::drain(|row| match row {
        Row::Context { id, frames, .. } => drop(seen.stacks.insert(*id, frames.to_vec())),
        Row::Launch(launch) => seen.last = Some(launch.context),
        _ => {}
    }) {}
    while let Some(filled) = capture::next_filled() {
        capture::recycle(filled);
    }
    capture::refill_chunks();
    capture::recalibrate_clock();
}

/// Returns the stack of the last launch: the API call, then the frames, leaf first.
pub(crate) fn last_stack() -> Option<Vec<Frame>> {
    drain();
    let seen = SEEN.lock().expect("a benchmark does not panic");
    seen.as_ref().and_then(|seen| seen.stacks.get(&seen.last?).cloned())
}
