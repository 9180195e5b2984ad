//! Edges of windows, from whoever opens and closes them to who explains: whoever does must not wait for the pipeline.

use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use crate::record::{Row, WindowEdge};

/// How long somebody may be held up who notes an edge or hears of it, which takes no time.
const LONGEST_EDGE: Duration = Duration::from_millis(100);

/// Edges that were not taken in yet, in the order of time.
#[derive(Debug, Default)]
pub(super) struct Edges(Mutex<Vec<Row<'static>>>);

impl Edges {
    /// Notes the edge if `turn` really turned the window. Whoever sees the window turned finds the edge here.
    pub(super) fn turn(&self, edge: WindowEdge, turn: fn() -> bool) {
        let edges = self.0.try_lock_for(LONGEST_EDGE);
        if turn()
            && let Some(mut edges) = edges
        {
            edges.push(Row::Window { edge, time: capture::now() });
        }
    }

    /// Notes that launches are told of from now on, or are not.
    pub(super) fn told(&self, on: bool) {
        if let Some(mut edges) = self.0.try_lock_for(LONGEST_EDGE) {
            edges.push(Row::Told { on, time: capture::now() });
        }
    }

    /// Those that are new.
    pub(super) fn take(&self) -> Vec<Row<'static>> {
        let edges = self.0.try_lock_for(LONGEST_EDGE);
        edges.map(|mut edges| std::mem::take(&mut *edges)).unwrap_or_default()
    }
}
