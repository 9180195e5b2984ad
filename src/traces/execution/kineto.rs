//! Kineto's timeline of a run, held in memory: the operators and calls of the host, and the work of the GPUs.

use crate::import::{CpuKind, Event, Id, NameTable, OpKind, Opened, Options, ReadCounts, Sink, Text, Wants};
use gpuflame_model::error::Result;

/// An operator or a range on a thread of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOp {
    /// Number of the name, for [`Kineto::name`].
    pub name: u32,
    /// Start in ns.
    pub start: i64,
    /// End in ns.
    pub end: i64,
    /// Number of the thread, in order of first occurrence in the file.
    pub thread: u32,
    /// Number of the operator's execution (`Record function id`).
    pub record_function: Option<u64>,
    /// External id.
    pub external: Option<u64>,
}

/// A call of the runtime or the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// Number of the name, for [`Kineto::name`].
    pub name: u32,
    /// Start in ns.
    pub start: i64,
    /// End in ns.
    pub end: i64,
    /// Number of the thread.
    pub thread: u32,
    /// Correlation id.
    pub correlation: Option<u64>,
    /// External id of the operator that encloses the call.
    pub external: Option<u64>,
}

/// A kernel, copy or fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Kind of work.
    pub kind: OpKind,
    /// Number of the name, for [`Kineto::name`].
    pub name: u32,
    /// Start in ns.
    pub start: i64,
    /// End in ns, not before the start.
    pub end: i64,
    /// GPU, if the trace gives it.
    pub device: Option<u32>,
    /// Stream, if the trace gives it.
    pub stream: Option<u32>,
    /// Correlation id of the call that launched the work.
    pub correlation: Option<u64>,
    /// External id.
    pub external: Option<u64>,
    /// Number of the process group's name, for [`Kineto::name`], if the work is a collective and the trace gives the
    /// group.
    pub process_group: Option<u32>,
}

impl Work {
    /// Duration in ns.
    pub fn nanos(&self) -> u64 {
        self.end.abs_diff(self.start)
    }
}

/// A record about a wait of the host or of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWait {
    /// Stream that waited, if the record gives one.
    pub stream: Option<u32>,
    /// Stream whose work was waited for.
    pub on_stream: Option<u32>,
    /// Correlation id of the call that caused the wait.
    pub correlation: Option<u64>,
    /// Correlation id of the call that recorded the event.
    pub record_correlation: Option<u64>,
}

/// A timeline.
#[derive(Debug, Default)]
pub struct Kineto {
    /// Operators and ranges, in the order of the file.
    pub ops: Vec<HostOp>,
    /// Calls, in the order of the file.
    pub calls: Vec<HostCall>,
    /// Work of GPUs, in the order of the file.
    pub work: Vec<Work>,
    /// Waits, in the order of the file.
    pub waits: Vec<StreamWait>,
    /// Process and thread as named in the file. The index is the thread number.
    pub threads: Vec<(String, String)>,
    /// Counts of the reader.
    pub counts: ReadCounts,
    names: NameTable,
}

impl Kineto {
    /// Reads a trace.
    ///
    /// # Errors
    /// As [`Opened::read`].
    pub fn read(opened: Opened, options: &Options) -> Result<Self> {
        let mut reader = KinetoReader::default();
        let counts = opened.read(options, &mut reader)?;
        Ok(Self { counts, ..reader.kineto })
    }

    /// Returns the name with this number.
    pub fn name(&self, number: u32) -> &str {
        self.names.text(number)
    }

    /// Returns all names, by number.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.texts()
    }

    /// Whether all times are whole microseconds. Times may then be 1 us too early.
    pub fn has_whole_micros(&self) -> bool {
        self.counts.fractional_times == 0
    }
}

/// Receives the events of a trace.
#[derive(Debug, Default)]
pub struct KinetoReader {
    kineto: Kineto,
}

impl KinetoReader {
    fn thread(&mut self, process: Id<'_>, thread: Id<'_>) -> u32 {
        let key = (id_text(process), id_text(thread));
        // Traces have few threads, and most events follow an event of the same thread.
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
