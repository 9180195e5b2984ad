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
    /// Maximum number of threads that read a plain JSON file. The result does not depend on this number. Default: 2.
    pub threads: usize,
    /// Whether to accept a file that ends in the middle of a trace event. If true, such a file is read up to the last
    /// complete event. Default: false (such a file is an error).
    pub accept_cut: bool,
    /// Whether launches of a backward operator are attributed to the stack of the forward operator whose gradient it
    /// computes, followed by `[backward]`. Applies if the trace links the two operators. Default: false. If false, the
    /// launches stay on autograd's thread, whose stack contains no code of the model.
    pub backward_under_forward: bool,
    /// Whether the states of threads are also emitted for time in which a GPU copied data but ran no kernel. Default:
    /// false.
    pub kernel_gaps: bool,
    /// Limit for emitting the states of threads for all other time between launches. They are emitted if the trace has
    /// at most this number of calls and GPU operations in total. Default: 0, because a trace may have millions of
    /// states.
    pub between_launches: usize,
    /// Whether the states of threads are left out. The states are needed only to find the culprits of idle time, and a
    /// trace may have millions of states. Default: false.
    pub without_thread_states: bool,
    /// Whether named ranges are returned with their times, in [`LinkReport::ranges`](super::LinkReport::ranges).
    /// Default: false, because a trace may have a million named ranges.
    pub ranges: bool,
    /// Capture traces: traces recorded while the CUDA graphs that this trace launches were captured. Default: none.
    pub graph_captures: Vec<PathBuf>,
    /// Counter of the bytes read so far. The total is [`Opened::size`](super::Opened::size). Default: none.
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
