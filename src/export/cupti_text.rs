//! Writes the text format of the CUPTI tracer from eunomia's tutorial. The tutorial's parser and merger can read
//! recordings of gpuflame that were written in this format.
//!
//! In a file made from stored rows, API calls come first, then activities, then waits and recordings of CUDA events.
//! Each group of lines is sorted by time. In a file written while the application runs, each record is written as soon
//! as it is known. The only exception is a launch, which is written directly before its first activity. Kernels have
//! the names that CUPTI reported. Fields of the format that were not recorded are 0.

use std::io::Write;

use super::clean;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::error::{Error, Result};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, EventRecord, FrameKind, IdMap, LabelId, Loss, MemoryKind,
    NameId, Nanos, Row, SyncKind, SyncRecord, ThreadId, Work,
};

/// Maximum number of stacks whose thread and API call are stored while the application runs (8 MiB). Calls from stacks
/// beyond this number are written without a name.
pub(super) const MAX_CALLERS: usize = 1 << 18;

/// A [`Sink`] that writes the text while the application runs. A row to which other rows refer must be passed to
/// [`CuptiText::row`] before those rows.
#[derive(Debug)]
pub struct CuptiText<W> {
    out: W,
    process: u32,
    labels: IdMap<LabelId, String>,
    callers: IdMap<ContextId, (ThreadId, LabelId)>,
    names: IdMap<NameId, String>,
    /// Launch that belongs to the next activity that is passed to this sink.
    matched: Option<Launched>,
    /// Buffer for the text of one row. The buffer is emptied after the row was written.
    text: Vec<u8>,
    failed: Option<Error>,
}

impl<W: Write> CuptiText<W> {
    /// Starts the text.
    pub fn new(out: W) -> Self {
        let (labels, callers, names) = (IdMap::default(), IdMap::default(), IdMap::default());
        Self { out, process: 0, labels, callers, names, matched: None, text: Vec::new(), failed: None }
    }

    /// Stores rows to which later rows may refer. Writes calls that launched nothing, CUPTI's records of waits and CUDA
    /// events, and losses. Ignores all other rows.
    pub fn row(&mut self, row: &Row<'_>) {
        match row {
            Row::Process { id, .. } => self.process = *id,
            Row::Label { id, text } => drop(self.labels.insert(*id, (*text).to_owned())),
            Row::Name { id, text } => drop(self.names.insert(*id, (*text).to_owned())),
            Row::Context { id, thread, frames, .. } if self.callers.len() < MAX_CALLERS => {
                let mut kinds = frames.iter().map(|frame| frame.kind());
                if let Some(FrameKind::Label(label)) = kinds.find(|kind| !matches!(kind, FrameKind::Range(_)))
                {
                    self.callers.insert(*id, (*thread, label));
                }
            }
            Row::Wait(wait) => self.host_call(wait.correlation, wait.time, wait.duration, wait.context),
            Row::EventCall(call) => {
                self.host_call(call.correlation, call.time, call.duration.into(), call.context)
            }
            Row::EventRecord(one) => record(one, &mut self.text),
            Row::Sync(one) => sync(one, &mut self.text),
            Row::Loss { loss, count } => lost(*loss, *count, &mut self.text),
            _ => {}
        }
        self.put();
    }

    /// Drops the names of all kernels that `keep` does not select.
    pub fn keep_kernels(&mut self, keep: impl Fn(NameId) -> bool) {
        self.names.retain(|id, _| keep(*id));
        self.names.shrink_to_fit();
    }

    /// Returns the first error that occurred while writing. Later calls of this function return `None`. After an error,
    /// the text is unusable.
    pub fn failure(&mut self) -> Option<Error> {
        self.failed.take()
    }

    /// Finishes the text and returns the writer.
    ///
    /// # Errors
    /// Returns the first error that has occurred since the text was started. Nothing was written after the first error.
    pub fn finish(self) -> Result<W> {
        self.failed.map_or(Ok(self.out), Err)
    }

    /// Writes a call that waited, or that used a CUDA event.
    fn host_call(&mut self, id: CorrelationId, begun: Nanos, nanos: u64, context: ContextId) {
        let label = self.callers.get(&context).and_then(|(_, label)| self.labels.get(label));
        // A call that starts GPU work has already been written as a launch.
        if !label.is_some_and(|label| starts_work(label)) {
            self.call(id, begun, nanos, context);
        }
    }

    fn call(&mut self, id: CorrelationId, begun: Nanos, nanos: u64, context: ContextId) {
        let (thread, label) = self.callers.get(&context).copied().unzip();
        let name = label.and_then(|label| self.labels.get(&label));
        let (name, thread) = (name.map_or("[call unknown]", String::as_str), thread.unwrap_or(ThreadId(0)));
        CallLine { name, process: self.process, thread, begun, nanos, id }.line(&mut self.text);
    }

    fn put(&mut self) {
        if self.failed.is_none() && !self.text.is_empty() {
            self.failed = self.out.write_all(&self.text).err().map(Error::from);
        }
        self.text.clear();
    }
}

impl<W: Write> Sink for CuptiText<W> {
    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.matched = Some(launched);
    }

    fn activity(&mut self, one: &Activity, _: Origin) {
        if let Some(Launched { time, duration, context }) = self.matched.take() {
            self.call(one.correlation, time, duration.into(), context);
        }
        let symbol = match one.work() {
            Work::Kernel(name) => self.names.get(&name).map(String::as_str),
            Work::Copy(_) | Work::Set | Work::Graph => None,
        };
        activity(one, symbol, &mut self.text);
        self.put();
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.call(id, launched.time, launched.duration.into(), launched.context);
        self.put();
    }
}

/// Whether an API function with this name starts GPU work in addition to waiting for it. A call to a function that
/// starts GPU work counts as a launch.
pub(super) fn starts_work(name: &str) -> bool {
    name.contains("Memcpy") || name.contains("Memset")
}

fn push_line(text: &mut Vec<u8>, line: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = writeln!(text, "{line}");
}

/// Appends a comment line with the number of lost items of one kind.
pub fn lost(loss: Loss, count: u64, text: &mut Vec<u8>) {
    push_line(text, format_args!("# lost: {count} {}", loss.label()));
}

/// A call to a function of CUDA's API.
pub struct CallLine<'a> {
    /// Name of the API function.
    pub name: &'a str,
    /// Process id.
    pub process: u32,
    /// Thread that made the call.
    pub thread: ThreadId,
    /// Start of the call.
    pub begun: Nanos,
    /// Duration in nanoseconds.
    pub nanos: u64,
    /// Correlation id of the call.
    pub id: CorrelationId,
}

impl CallLine<'_> {
    /// Appends the line for this call.
    pub fn line(&self, text: &mut Vec<u8>) {
        let &CallLine { name, process, thread, begun, nanos, id } = self;
        let is_driver = name.starts_with("cu") && !name.starts_with("cuda");
        push_line(
            text,
            format_args!(
                "{} [ {}, {} ] duration {nanos}, \"{}\", cbid 0, processId {process}, threadId {}, correlationId {}",
                if is_driver { "DRIVER" } else { "RUNTIME" },
                begun.0,
                begun.0.saturating_add(nanos),
                clean::text(name),
                thread.0,
                id.0
            ),
        );
    }
}

/// Appends the line for a wait.
pub fn sync(sync: &SyncRecord, text: &mut Vec<u8>) {
    let kind = match sync.kind {
        SyncKind::EVENT => "EVENT_SYNCHRONIZE",
        SyncKind::STREAM_WAIT => "STREAM_WAIT_EVENT",
        SyncKind::STREAM => "STREAM_SYNCHRONIZE",
        SyncKind::CONTEXT => "CONTEXT_SYNCHRONIZE",
        _ => "UNKNOWN",
    };
    let (start, end) = (sync.start.0, sync.end.0);
    // CUPTI's sample programs print absent values as -1.
    let number = |id: Option<u32>| id.map_or_else(|| "-1".to_owned(), |id| id.to_string());
    let (stream, event) = (number(sync.stream.map(|id| id.0)), number(sync.event.map(|id| id.0)));
    push_line(
        text,
        format_args!(
            "SYNCHRONIZATION [ {start}, {end} ] duration {}, type {kind}, contextId {}, streamId {stream}, eventId {event}, \
         correlationId {}",
            end.saturating_sub(start),
            sync.context.0,
            sync.correlation.0
        ),
    );
}

/// Appends the line for a CUDA event that was recorded on a stream.
pub fn record(record: &EventRecord, text: &mut Vec<u8>) {
    push_line(
        text,
        format_args!(
            "CUDA_EVENT contextId {}, streamId {}, correlationId {}, eventId {}",
            record.context.0, record.stream.0, record.correlation.0, record.event.0
        ),
    );
}

/// Appends the line for an activity. `symbol` is the mangled name if the activity is a kernel.
pub fn activity(activity: &Activity, symbol: Option<&str>, text: &mut Vec<u8>) {
    let (start, end, id) = (activity.start.0, activity.end.0, activity.correlation.0);
    let time = format!("[ {start}, {end} ] duration {}", activity.duration().unwrap_or(0));
    match activity.detail {
        Detail::Kernel(kernel) => {
            let symbol = symbol.map_or_else(|| "?".to_owned(), clean::text);
            let ([gx, gy, gz], [bx, by, bz]) = (kernel.grid, kernel.block);
            push_line(
                text,
                format_args!(
                    "CONCURRENT_KERNEL {time}, \"{symbol}\", correlationId {id}, cacheConfigRequested 0, \
                 cacheConfigExecuted 0\n\tgrid [ {gx}, {gy}, {gz} ], block [ {bx}, {by}, {bz} ], \
                 cluster [ 0, 0, 0 ], sharedMemory (static {}, dynamic {})",
                    kernel.static_shared, kernel.dynamic_shared
                ),
            );
        }
        Detail::Copy(copy) => {
            push_line(
                text,
                format_args!(
                    "MEMCPY \"{}\" {time}, size {}, copyCount 1, srcKind {}, dstKind {}, correlationId {id}",
                    copy.kind.label(),
                    copy.bytes,
                    memory(copy.from),
                    memory(copy.to)
                ),
            );
        }
        Detail::Set(set) => {
            push_line(
                text,
                format_args!("MEMSET {time}, value {}, size {}, correlationId {id}", set.value, set.bytes),
            );
        }
        Detail::Graph => {
            push_line(text, format_args!("GRAPH_TRACE {time}, correlationId {id}"));
        }
    }
    let graph = match activity.detail {
        Detail::Kernel(_) | Detail::Graph => {
            format!(", graphId {}, graphNodeId {}", activity.graph.0, activity.graph_node.0)
        }
        Detail::Copy(_) | Detail::Set(_) => String::new(),
    };
    push_line(
        text,
        format_args!(
            "\tdeviceId {}, contextId {}, streamId {}{graph}, channelId {}, channelType COMPUTE",
            activity.device.0,
            activity.context.0,
            activity.stream.0,
            activity.channel.unwrap_or(0)
        ),
    );
}

fn memory(kind: MemoryKind) -> String {
    kind.label().to_uppercase()
}
