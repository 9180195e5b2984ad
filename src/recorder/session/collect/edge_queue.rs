//! Queue of window edges. An edge is the opening or closing of a window. Threads that open or close a window add edges,
//! and the pipeline removes them. Because of the queue, the threads that open or close windows do not have to wait for
//! the pipeline.

use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{Row, WindowEdge};

/// Maximum time for which a thread waits to lock the queue. Usually, a thread holds this lock for a much shorter time.
const QUEUE_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Window edges that the pipeline has not processed yet, ordered by time.
#[derive(Debug, Default)]
pub(crate) struct EdgeQueue(Mutex<Vec<Row<'static>>>);

impl EdgeQueue {
    /// Calls `turn`, which opens or closes the window. If `turn` returns true, it has changed the window, and the edge
    /// is added to the queue. A thread that sees the changed state of the window also finds the edge in the queue.
    pub(crate) fn note_edge(&self, edge: WindowEdge, turn: fn() -> bool) {
        let edges = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT);
        if turn()
            && let Some(mut edges) = edges
        {
            edges.push(Row::Window { edge, time: capture::now() });
        }
    }

    /// Adds a row to the queue, which states that the launch callbacks were turned on or off at the current time.
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
