//! Hand-made traces in torch.profiler's format. All times are in microseconds.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// A trace: its events, in the order in which the test added them. All events have the process id 1; the caller chooses
/// the thread ids.
#[derive(Debug, Default)]
pub struct Trace(pub Vec<Value>);

impl Trace {
    /// Adds a slice (a named time range) on a thread.
    pub fn slice(&mut self, category: &str, name: &str, thread: u32, start: u64, end: u64) -> &mut Self {
        self.0.push(json!({
            "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": end - start
        }));
        self
    }

    /// Adds a call of a Python function.
    pub fn python(&mut self, name: &str, thread: u32, start: u64, end: u64) -> &mut Self {
        self.slice("python_function", name, thread, start, end)
    }

    /// Adds an API call of 2 us and the kernel that this call launches on stream 7 of GPU 0.
    pub fn launch(
        &mut self,
        id: u32,
        kernel: &str,
        thread: u32,
        call: u64,
        start: u64,
        end: u64,
    ) -> &mut Self {
        self.slice("cuda_runtime", "cudaLaunchKernel", thread, call, call + 2);
        self.0.last_mut().unwrap()["args"] = json!({ "correlation": id });
        self.work("kernel", id, kernel, 7, start, end)
    }

    /// Adds a kernel, copy or fill on GPU 0 that the API call with this correlation id launched.
    pub fn work(
        &mut self,
        category: &str,
        id: u32,
        name: &str,
        stream: u32,
        start: u64,
        end: u64,
    ) -> &mut Self {
        self.0.push(json!({
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start,
            "args": { "correlation": id, "device": 0, "stream": stream }
        }));
        self
    }

    /// Writes the trace to the file `path`.
    pub fn write(&self, path: &Path) {
        fs::write(path, json!({ "traceEvents": self.0 }).to_string()).unwrap();
    }
}
