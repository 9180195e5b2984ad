//! Queue of window edges, from the threads that open and close windows to the pipeline. These threads must not wait for
//! the pipeline.

use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{Row, WindowEdge};

/// Maximum time for which a thread waits for the queue, which is locked only for moments.
const QUEUE_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Pending edges, in order of time.
#[derive(Debug, Default)]
pub(crate) struct EdgeQueue(Mutex<Vec<Row<'static>>>);

impl EdgeQueue {
    /// Notes the edge if `turn` really opened or closed the window. A thread that sees the changed window finds the
    /// edge in the queue.
    pub(crate) fn note_edge(&self, edge: WindowEdge, turn: fn() -> bool) {
        let edges = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT);
        if turn()
            && let Some(mut edges) = edges
        {
            edges.push(Row::Window { edge, time: capture::now() });
        }
    }

    /// Notes that launch callbacks are on or off from now on.
    pub(crate) fn note_callbacks(&self, on: bool) {
        if let Some(mut edges) = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT) {
            edges.push(Row::CallbacksSwitched { on, time: capture::now() });
        }
    }

    /// Removes and returns the new edges.
    pub(super) fn drain(&self) -> Vec<Row<'static>> {
        let edges = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT);
        edges.map(|mut edges| std::mem::take(&mut *edges)).unwrap_or_default()
    }
}
