//! How a trace is read, whatever its kind.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::json;

/// How to read another tool's trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of the buffer in bytes; it grows where a single event is larger. Default: 1 MiB.
    pub buffer: usize,
    /// How many threads may read a plain JSON file. The result does not depend on it. Default: 2.
    pub threads: usize,
    /// Whether a file that ends in mid-event counts as one that ends before it. Default: false, an error.
    pub accept_cut: bool,
    /// Whether what operators of a backward pass launch hangs under the operator of the forward pass whose gradient it is, and
    /// `[backward]`, where the trace tells which that is. Default: false, under autograd's own thread, which launched it and
    /// knows no code of the model.
    pub backward_under_forward: bool,
    /// Traces of the captures of graphs that this one launches. Default: none.
    pub graph_captures: Vec<PathBuf>,
    /// Where to count the bytes read, of [`Opened::size`](super::Opened::size). Default: nowhere.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            buffer: 1 << 20,
            threads: 2,
            accept_cut: false,
            backward_under_forward: false,
            graph_captures: Vec::new(),
            progress: None,
        }
    }
}

impl Options {
    pub(super) fn reading(&self) -> json::Reading {
        json::Reading { buffer: self.buffer, accept_cut: self.accept_cut }
    }

    /// So many bytes more were read.
    pub(super) fn tell(&self, count: u64) {
        if let Some(progress) = &self.progress {
            progress.fetch_add(count, Ordering::Relaxed);
        }
    }
}
