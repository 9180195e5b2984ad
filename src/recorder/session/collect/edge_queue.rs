//! Queue of window edges (a window opens or closes). Threads that open and close windows add edges, and need not wait
//! for the pipeline, which removes the edges.

use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{Row, WindowEdge};

/// Maximum time for which a thread waits for the queue's lock, which is held only for moments.
const QUEUE_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Window edges that the pipeline has not processed yet, in order of time.
#[derive(Debug, Default)]
pub(crate) struct EdgeQueue(Mutex<Vec<Row<'static>>>);

impl EdgeQueue {
    /// Calls `turn`, which opens or closes the window. If the window has changed, adds the edge to the queue. Any
    /// thread that sees the changed window can find the edge in the queue.
    pub(crate) fn note_edge(&self, edge: WindowEdge, turn: fn() -> bool) {
        let edges = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT);
        if turn()
            && let Some(mut edges) = edges
        {
            edges.push(Row::Window { edge, time: capture::now() });
        }
    }

    /// Adds a row to the queue that states whether launch callbacks are on from now on.
    pub(crate) fn note_callbacks(&self, on: bool) {
        if let Some(mut edges) = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT) {
            edges.push(Row::CallbacksSwitched { on, time: capture::now() });
        }
    }

    /// Removes and returns all edges in the queue.
    pub(super) fn drain(&self) -> Vec<Row<'static>> {
        let edges = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT);
        edges.map(|mut edges| std::mem::take(&mut *edges)).unwrap_or_default()
    }
}
