//! Small hand-made traces in torch.profiler's format, with times that a person can check.

use std::path::PathBuf;

use serde_json::{Value, json};

/// A trace as torch.profiler writes it, with times in us.
#[derive(Clone, Default)]
pub(crate) struct Trace(Vec<Value>);

impl Trace {
    pub(crate) fn call(mut self, name: &str, id: u32, thread: u32, (from, to): (u32, u32)) -> Self {
        self.0.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": thread, "ts": from, "dur": to - from,
            "args": { "correlation": id },
        }));
        self
    }

    pub(crate) fn kernel(mut self, name: &str, id: u32, stream: u32, (from, to): (u32, u32)) -> Self {
        self.0.push(json!({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": from, "dur": to - from,
            "args": { "correlation": id, "device": 0, "context": 1, "stream": stream },
        }));
        self
    }

    #[allow(dead_code)] // not every test has host waits
    pub(crate) fn sync(mut self, id: u32, stream: u32, (from, to): (u32, u32)) -> Self {
        self.0.push(json!({
            "ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": stream, "ts": from,
            "dur": to - from,
            "args": {
                "correlation": id, "device": 0, "context": 1, "stream": stream, "cuda_sync_kind": "Stream Sync",
                "wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": -1,
            },
        }));
        self
    }

    /// Adds a trace event of any kind.
    #[allow(dead_code)] // not every test has trace events of other kinds
    pub(crate) fn add(mut self, event: Value) -> Self {
        self.0.push(event);
        self
    }

    /// Writes the trace to the file `NAME.json`, and returns the file's path.
    pub(crate) fn write(self, name: &str) -> PathBuf {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
        std::fs::write(&file, json!({ "traceEvents": self.0 }).to_string()).unwrap();
        file
    }
}
