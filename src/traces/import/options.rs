//! Defines the options for reading a trace. The options for reading do not depend on the format of the trace.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::json;

/// Options for reading another tool's trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the read buffer in bytes. The buffer grows if a single event is larger. Default: 1 MiB.
    pub buffer: usize,
    /// Maximum number of threads that read an uncompressed JSON file. The rows are the same for any number of threads.
    /// Default: 2.
    pub threads: usize,
    /// Whether a file is accepted that ends in the middle of a trace event. If truncated files are accepted, all
    /// complete events in such a file are read. By default, a truncated file is an error.
    pub accept_cut: bool,
    /// Whether launches in a backward operator are attributed to the stack of the forward operator. The backward
    /// operator computes the gradient of this forward operator. The stack of the forward operator is followed by
    /// `[backward]`. This attribution is possible only if the trace links the two operators. Default: false. Without
    /// this option, the launches stay on autograd's thread. The stack of this thread contains no code of the model.
    pub backward_under_forward: bool,
    /// Whether the states of threads are also emitted for times at which a GPU copied data but ran no kernel. Default:
    /// false.
    pub kernel_gaps: bool,
    /// Maximum total number of calls and GPU operations in a trace for which the states of threads are emitted for all
    /// times between launches. The default is 0, because a trace may contain millions of states.
    pub between_launches: usize,
    /// Whether no states of threads are emitted. States are needed only to find the culprits of idle time, and a trace
    /// may contain millions of states. Default: false.
    pub without_thread_states: bool,
    /// Whether named ranges and their times are returned in [`LinkReport::ranges`](super::LinkReport::ranges). By
    /// default, ranges are not returned, because a trace may contain a million named ranges.
    pub ranges: bool,
    /// Paths of capture traces. A capture trace was recorded while the program captured the CUDA graphs that are
    /// launched in this trace. Default: none.
    pub graph_captures: Vec<PathBuf>,
    /// Counter to which the reader adds the number of bytes that it has read. When the whole file has been read, the
    /// counter has the value of [`Opened::size`](super::Opened::size). Default: none.
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

    /// Adds `count` to the counter of the bytes that were read so far.
    pub(super) fn add_bytes_read(&self, count: u64) {
        if let Some(progress) = &self.progress {
            progress.fetch_add(count, Ordering::Relaxed);
        }
    }
}
