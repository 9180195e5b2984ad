//! Reads the text that CUPTI's sample program `activity_trace` prints, and the text of tools that were derived from it.
//! Each record is one line. A record may be continued on indented lines. Times in the text are in nanoseconds.
//!
//! ```text
//! RUNTIME [ 10, 20 ] duration 10, "cudaLaunchKernel", cbid 211, processId 7, threadId 8, correlationId 3
//! CONCURRENT_KERNEL [ 30, 90 ] duration 60, "gemm", correlationId 3, cacheConfigRequested 0, ...
//!     grid [ 8, 1, 1 ], block [ 256, 1, 1 ], cluster [ 0, 0, 0 ], sharedMemory (static 0, dynamic 16)
//!     deviceId 0, contextId 1, streamId 7, graphId 0, graphNodeId 0, channelId 8, channelType COMPUTE
//! CUDA_EVENT contextId 1, streamId 7, correlationId 4, eventId 5, cudaEventSyncId 6
//! SYNCHRONIZATION [ 95, 99 ] duration 4, type STREAM_WAIT_EVENT, contextId 1, streamId 8, correlationId 9, eventId 5, ...
//! ```

use std::io::BufRead;

use super::copies::memory_kind;
use super::json::number::{parse_integer, parse_unsigned};
use super::lines::{self, Line};
use super::model::*;
use super::{Id, ReadCounts, Text};
use gpuflame_model::error::Result;
use gpuflame_model::record::MemoryKind;

pub(super) fn read(input: impl BufRead, accept_cut: bool, sink: &mut impl Sink) -> Result<ReadCounts> {
    let mut record: Vec<u8> = Vec::new();
    let mut counts = lines::for_each_line(input, accept_cut, |line: Line<'_>, counts| {
        if line.bytes.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) && !record.is_empty() {
            record.push(b' ');
            record.extend_from_slice(line.bytes.trim_ascii());
        } else {
            emit(&record, counts, sink);
            record.clear();
            record.extend_from_slice(line.bytes);
        }
        Ok(())
    })?;
    emit(&record, &mut counts, sink);
    Ok(counts)
}

/// Passes a record to `sink`, if the kind of the record is known.
fn emit(record: &[u8], counts: &mut ReadCounts, sink: &mut impl Sink) {
    let text = String::from_utf8_lossy(record);
    let kind = text.split_ascii_whitespace().next().unwrap_or_default();
    let known = matches!(
        kind,
        "RUNTIME"
            | "DRIVER"
            | "CONCURRENT_KERNEL"
            | "KERNEL"
            | "MEMCPY"
            | "MEMCPY2"
            | "MEMSET"
            | "SYNCHRONIZATION"
            | "CUDA_EVENT"
    );
    if !known {
        return;
    }
    counts.events += 1;
    // The name is extracted first, because a name may contain any text, even text that looks like a field of the
    // record.
    let (name, fields) = split_quoted(&text);
    let fields = Fields(&fields);
    if kind == "CUDA_EVENT" {
        return sink.event(&Event::EventRecord(EventRecord {
            context: fields.id_number("contextId"),
            stream: fields.id_number("streamId"),
            event: fields.id_number("eventId"),
            correlation: fields.correlation(),
            number: fields.record_number(),
            ..EventRecord::default()
        }));
    }
    let Some((start, end)) = fields.times() else {
        counts.untimed += 1;
        return;
    };
    match kind {
        "RUNTIME" | "DRIVER" => sink.event(&Event::Call(Call {
            name: Text::from(name),
            start,
            end,
            process: fields.id("processId"),
            thread: fields.id("threadId"),
            correlation: fields.correlation(),
            driver: kind == "DRIVER",
            ..Call::default()
        })),
        "SYNCHRONIZATION" => sink.event(&Event::Sync(Sync {
            name: Text::from(fields.word("type").unwrap_or("Sync")),
            start,
            end,
            context: fields.id_number("contextId"),
            stream: fields.id_number("streamId"),
            event: fields.id_number("eventId"),
            correlation: fields.correlation(),
            record: fields.record_number(),
            ..Sync::default()
        })),
        _ => sink.event(&Event::Op(build_op(kind, name, &fields, start, end))),
    }
}

fn build_op<'a>(kind: &str, name: &'a str, fields: &Fields<'a>, start: i64, end: i64) -> Op<'a> {
    let kind = match kind {
        "MEMSET" => OpKind::Set,
        "MEMCPY" | "MEMCPY2" => OpKind::Copy,
        _ => OpKind::Kernel,
    };
    Op {
        kind,
        name: Text::from(if kind == OpKind::Set { "memset" } else { name }),
        start,
        end,
        process: Id::None,
        device: fields.u32("deviceId"),
        context: fields.u32("contextId"),
        stream: fields.u32("streamId"),
        correlation: fields.correlation(),
        graph: fields.u32("graphId").filter(|&id| id != 0),
        graph_node: fields.number("graphNodeId").filter(|&id| id != 0),
        bytes: fields.number("size").unwrap_or(0),
        grid: fields.xyz("grid"),
        block: fields.xyz("block"),
        memory: fields.memory(),
        shared: fields.u32("static").unwrap_or(0) + fields.u32("dynamic").unwrap_or(0),
        ..Op::default()
    }
}

/// Returns the text between the first and the last quote, and the record without that text.
fn split_quoted(text: &str) -> (&str, String) {
    match (text.find('"'), text.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            (&text[first + 1..last], format!("{}{}", &text[..first], &text[last + 1..]))
        }
        _ => ("", text.to_owned()),
    }
}

/// Parser for a record that consists of `key value` pairs, separated by commas and brackets.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn words(&self) -> impl Iterator<Item = &'a str> {
        let text: &'a str = self.0;
        text.split(|letter: char| letter.is_ascii_whitespace() || ",()[]".contains(letter))
            .filter(|word| !word.is_empty())
    }

    fn after(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.words().skip_while(move |word| *word != key).skip(1)
    }

    fn word(&self, key: &str) -> Option<&'a str> {
        self.after(key).next()
    }

    fn number(&self, key: &str) -> Option<u64> {
        parse_unsigned(self.word(key)?.as_bytes())
    }

    fn u32(&self, key: &str) -> Option<u32> {
        u32::try_from(self.number(key)?).ok()
    }

    /// Returns the id of a CUDA context, stream or event. Returns `None` if there is no id, or if the id is -1 (as a
    /// signed or unsigned number).
    fn id_number(&self, key: &str) -> Option<u32> {
        self.u32(key).filter(|number| *number != u32::MAX)
    }

    /// Returns the id that a recording of a CUDA event shares with the waits for this recording. The values 0 and -1
    /// mean that the record has no such id.
    fn record_number(&self) -> Option<u64> {
        let has_number = |number: &u64| ![0, u32::MAX.into(), u64::MAX].contains(number);
        self.number("cudaEventSyncId").filter(has_number)
    }

    fn correlation(&self) -> Option<u64> {
        self.number("correlationId").filter(|&id| id != 0)
    }

    fn id(&self, key: &str) -> Id<'static> {
        self.word(key).and_then(|word| parse_integer(word.as_bytes())).map_or(Id::None, Id::Number)
    }

    /// Returns the kinds of memory that a copy reads and writes; `None` if the record does not contain them.
    fn memory(&self) -> Option<(MemoryKind, MemoryKind)> {
        let kind = |key| self.word(key).map(memory_kind);
        let (from, to) = (kind("srcKind"), kind("dstKind"));
        let known = |kind: Option<MemoryKind>| kind.unwrap_or(MemoryKind::UNKNOWN);
        (from.is_some() || to.is_some()).then(|| (known(from), known(to)))
    }

    fn xyz(&self, key: &str) -> [u32; 3] {
        let mut words = self.after(key);
        [(); 3].map(|()| words.next().and_then(|word| word.parse().ok()).unwrap_or(0))
    }

    /// Returns the start and end times from `[ start, end ]`, which is the first pair of brackets in a record.
    fn times(&self) -> Option<(i64, i64)> {
        let (start, end) = self.0.split_once('[')?.1.split_once(']')?.0.split_once(',')?;
        Some((parse_integer(start.trim().as_bytes())?, parse_integer(end.trim().as_bytes())?))
    }
}
