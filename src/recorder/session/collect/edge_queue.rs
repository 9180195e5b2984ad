//! Queue of window edges. (An edge is the opening or closing of a window.) Threads that open and close windows add
//! edges, and the pipeline removes them. The queue lets these threads continue without waiting for the pipeline.

use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{Row, WindowEdge};

/// Maximum time for which a thread waits for the queue's lock. The lock is usually held for much less time.
const QUEUE_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Window edges that the pipeline has not processed yet, in order of time.
#[derive(Debug, Default)]
pub(crate) struct EdgeQueue(Mutex<Vec<Row<'static>>>);

impl EdgeQueue {
    /// Calls `turn`, which opens or closes the window. If `turn` returns true, the window has changed, and the edge is
    /// added to the queue. Any thread that sees the changed window can find the edge in the queue.
    pub(crate) fn note_edge(&self, edge: WindowEdge, turn: fn() -> bool) {
        let edges = self.0.try_lock_for(QUEUE_LOCK_TIMEOUT);
        if turn()
            && let Some(mut edges) = edges
        {
            edges.push(Row::Window { edge, time: capture::now() });
        }
    }

    /// Adds a row to the queue. The row states that launch callbacks were switched on or off at the current time.
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
