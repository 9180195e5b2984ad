//! Kineto's timeline of a run, held in memory: the host's operators and API calls, and the GPUs' kernels, copies and
//! fills.

use crate::import::{CpuKind, Event, Id, NameTable, OpKind, Opened, Options, ReadCounts, Sink, Text, Wants};
use gpuflame_model::error::Result;

/// An operator, or a range that the program annotated, on a thread of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOp {
    /// Index of the operator's name; see [`Kineto::name`].
    pub name: u32,
    /// Start time of the operator in ns.
    pub start: i64,
    /// End time of the operator in ns.
    pub end: i64,
    /// Index of the thread, in order of first occurrence in the file.
    pub thread: u32,
    /// Id of this execution of the operator (`Record function id`).
    pub record_function: Option<u64>,
    /// External id of the operator. Calls and GPU work inside the operator refer to this id.
    pub external: Option<u64>,
}

/// A call to a function of the CUDA runtime or driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// Index of the function's name; see [`Kineto::name`].
    pub name: u32,
    /// Start time of the call in ns.
    pub start: i64,
    /// End time of the call in ns.
    pub end: i64,
    /// Index of the thread in [`Kineto::threads`].
    pub thread: u32,
    /// Correlation id of the call, which it shares with the work that it launched.
    pub correlation: Option<u64>,
    /// External id of the operator that encloses the call.
    pub external: Option<u64>,
}

/// A kernel, copy or fill that a GPU ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Kind of GPU work.
    pub kind: OpKind,
    /// Index of the work's name; see [`Kineto::name`].
    pub name: u32,
    /// Start time of the work in ns.
    pub start: i64,
    /// End time of the work in ns. The end is not before the start.
    pub end: i64,
    /// Index of the GPU that ran the work, if the trace contains it.
    pub device: Option<u32>,
    /// Id of the stream on which the work ran, if the trace contains it.
    pub stream: Option<u32>,
    /// Correlation id of the call that launched the work.
    pub correlation: Option<u64>,
    /// External id of the operator that launched the work.
    pub external: Option<u64>,
    /// Index of the name of the process group; see [`Kineto::name`]. The index is `None` unless the work is a
    /// collective and the trace contains its process group.
    pub process_group: Option<u32>,
}

impl Work {
    /// Returns the duration in ns.
    pub fn nanos(&self) -> u64 {
        self.end.abs_diff(self.start)
    }
}

/// A record which states that the host or a stream waited for GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWait {
    /// Id of the stream that waited, if the record contains it.
    pub stream: Option<u32>,
    /// Id of the stream for whose work the host or stream waited.
    pub on_stream: Option<u32>,
    /// Correlation id of the call that caused the wait.
    pub correlation: Option<u64>,
    /// Correlation id of the call that recorded the CUDA event for which the host or stream waited.
    pub record_correlation: Option<u64>,
}

/// Kineto's timeline of a run, held in memory.
#[derive(Debug, Default)]
pub struct Kineto {
    /// Operators and annotated ranges, in the order of the file.
    pub ops: Vec<HostOp>,
    /// API calls, in the order of the file.
    pub calls: Vec<HostCall>,
    /// Kernels, copies and fills, in the order of the file.
    pub work: Vec<Work>,
    /// Records about waits, in the order of the file.
    pub waits: Vec<StreamWait>,
    /// Process id and thread id of each thread, as written in the file. The index of an entry is the thread's index.
    pub threads: Vec<(String, String)>,
    /// Counts that the reader gathered, such as the number of skipped events.
    pub counts: ReadCounts,
    names: NameTable,
}

impl Kineto {
    /// Reads the trace that `opened` has opened.
    ///
    /// # Errors
    /// Returns the same errors as [`Opened::read`].
    pub fn read(opened: Opened, options: &Options) -> Result<Self> {
        let mut reader = KinetoReader::default();
        let counts = opened.read(options, &mut reader)?;
        Ok(Self { counts, ..reader.kineto })
    }

    /// Returns the name that has this index.
    pub fn name(&self, number: u32) -> &str {
        self.names.text(number)
    }

    /// Returns all names in the order of their indexes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.texts()
    }

    /// Whether all times in the trace are whole microseconds. In that case, a time in the trace may be up to 1 us
    /// before the real time.
    pub fn has_whole_micros(&self) -> bool {
        self.counts.fractional_times == 0
    }
}

/// Receives the trace events of a file and builds the timeline.
#[derive(Debug, Default)]
pub struct KinetoReader {
    kineto: Kineto,
}

impl KinetoReader {
    fn thread(&mut self, process: Id<'_>, thread: Id<'_>) -> u32 {
        let key = (id_text(process), id_text(thread));
        // A linear search from the end is fast, because traces have few threads, and most events come directly after an
        // event of the same thread.
        match self.kineto.threads.iter().rposition(|one| *one == key) {
            Some(at) => at as u32,
            None => {
                self.kineto.threads.push(key);
                self.kineto.threads.len() as u32 - 1
            }
        }
    }

    fn intern(&mut self, name: Text<'_>) -> u32 {
        self.kineto.names.intern(name)
    }
}

fn id_text(id: Id<'_>) -> String {
    match id {
        Id::None => String::new(),
        Id::Number(number) => number.to_string(),
        Id::Text(text) => text.decode().into_owned(),
    }
}

impl Sink for KinetoReader {
    fn wants(&self) -> Wants {
        Wants::OPS.and(Wants::CALLS).and(Wants::CPU).and(Wants::STEPS).and(Wants::SYNCS).and(Wants::DETAILS)
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Cpu(op) if op.kind != CpuKind::Overhead => {
                let op = HostOp {
                    name: self.intern(op.name),
                    start: op.start,
                    end: op.end.max(op.start),
                    thread: self.thread(op.process, op.thread),
                    record_function: op.record_function,
                    external: op.external,
                };
                self.kineto.ops.push(op);
            }
            Event::Call(call) => {
                let call = HostCall {
                    name: self.intern(call.name),
                    start: call.start,
                    end: call.end.max(call.start),
                    thread: self.thread(call.process, call.thread),
                    correlation: call.correlation,
                    external: call.external,
                };
                self.kineto.calls.push(call);
            }
            Event::Op(op) => {
                let work = Work {
                    kind: op.kind,
                    name: self.intern(op.name),
                    start: op.start,
                    end: op.end.max(op.start),
                    device: op.device,
                    stream: op.stream,
                    correlation: op.correlation,
                    external: op.external,
                    process_group: (!op.process_group.is_empty()).then(|| self.intern(op.process_group)),
                };
                self.kineto.work.push(work);
            }
            Event::Sync(sync) => self.kineto.waits.push(StreamWait {
                stream: sync.stream,
                on_stream: sync.on_stream,
                correlation: sync.correlation,
                record_correlation: sync.record_correlation,
            }),
            _ => {}
        }
    }
}
