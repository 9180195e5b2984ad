//! Options for reading a trace, regardless of its format.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::json;

/// Options for reading another tool's trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the read buffer in bytes. The buffer grows if a single event is larger. Default: 1 MiB.
    pub buffer: usize,
    /// Maximum number of threads that read a plain JSON file. The result does not depend on the number. Default: 2.
    pub threads: usize,
    /// Whether to accept a file that ends in the middle of an event. The file is then read up to the previous event.
    /// Default: false, so that such a file is an error.
    pub accept_cut: bool,
    /// Whether launches of backward operators are attributed to the stack of the forward operator whose gradient they
    /// compute, followed by `[backward]`, if the trace links the two operators. Default: false. The launches then stay
    /// on autograd's thread, which made them and whose stack contains no code of the model.
    pub backward_under_forward: bool,
    /// Whether the states of threads are also emitted for the time in which a GPU ran no kernel but copied data.
    /// Default: false.
    pub kernel_gaps: bool,
    /// Maximum number of calls and pieces of GPU work up to which the states of threads are also emitted for all other time between
    /// launches. Default: 0, because a trace may have millions of states.
    pub between_launches: usize,
    /// Whether the states of threads are left out. They are needed only to find the culprits of idle time, and a trace may
    /// have millions of them. Default: false.
    pub without_thread_states: bool,
    /// Whether the named ranges are returned with their times, as [`LinkReport::ranges`](super::LinkReport::ranges). Default:
    /// false, because a trace may have a million of them.
    pub ranges: bool,
    /// Traces taken while the graphs that this trace launches were captured. Default: none.
    pub graph_captures: Vec<PathBuf>,
    /// Counter of bytes read so far, of the total [`Opened::size`](super::Opened::size). Default: none.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            buffer: 1 << 20,
            threads: 2,
            accept_cut: false,
            backward_under_forward: false,
            kernel_gaps: false,
            between_launches: 0,
            without_thread_states: false,
            ranges: false,
            graph_captures: Vec::new(),
            progress: None,
        }
    }
}

impl Options {
    pub(super) fn json_options(&self) -> json::JsonOptions {
        json::JsonOptions { buffer: self.buffer, accept_cut: self.accept_cut }
    }

    /// Adds `count` to the counter of bytes read so far.
    pub(super) fn add_bytes_read(&self, count: u64) {
        if let Some(progress) = &self.progress {
            progress.fetch_add(count, Ordering::Relaxed);
        }
    }
}
