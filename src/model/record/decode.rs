//! Reads the rows of a recording one after another. Memory use depends only on the largest row. Module `encode`
//! documents the format.

use std::io::{BufRead, Read};
use std::path::PathBuf;

use super::activity_fields::decode_activity;
use super::encode::{FORMAT, MAGIC, tag};
use super::fields::Fields;
use super::packed::{Packed, Unpacker};
use super::stacks::StacksReader;
use super::sums::SumsReader;
use super::*;
use crate::error::{Error, ErrorKind, Result};

/// Maximum length of a row in bytes. A recording with a longer row is damaged.
const MAX_ROW_BYTES: u32 = 64 << 20;
const HEADER_BYTES: u64 = 16;

/// Reads the rows of a recording.
///
/// If a row is complete but invalid, [`Reader::next_row`] returns an error, and the next call returns the row after the
/// invalid row. A truncated row ends the recording: `next_row` returns one error for this row, and then `None`. Invalid
/// and truncated chunks are handled in the same way.
#[derive(Debug)]
pub struct Reader<R: BufRead> {
    input: R,
    payload: Vec<u8>,
    frames: Vec<Frame>,
    /// Rows of the chunk that is being read, as bytes. `chunk_at` is the offset of the next row in the chunk.
    chunk: Vec<u8>,
    chunk_at: usize,
    unpacker: Unpacker,
    /// Error to return after the complete rows of a truncated pack (a row that contains several launches and
    /// activities) were returned.
    cut: Option<Error>,
    /// File offset of the next row that is not in a chunk.
    position: u64,
    records: u64,
    skipped: u64,
    ended: bool,
    is_complete: bool,
    is_memory_exhausted: bool,
    state: RecordingState,
    sums: SumsReader,
    stacks: StacksReader,
    /// Paths of source files, in the order of their ids.
    paths: Vec<Box<str>>,
    mark: Option<CheckpointMark>,
    writer: Option<WriterId>,
}

impl<R: BufRead> Reader<R> {
    /// Opens a recording and reads its header.
    ///
    /// # Errors
    /// Returns a `Format` error if the input is not a recording or has a newer format, and any error from reading
    /// `input`.
    pub fn new(mut input: R) -> Result<Self> {
        let mut header = Vec::new();
        input.by_ref().take(HEADER_BYTES).read_to_end(&mut header)?;
        if header.get(..8) != Some(MAGIC) {
            return Err(format_error("not a gpuflame recording: it does not begin with `gpuflame`"));
        }
        let mut words = Fields(header.get(8..).unwrap_or_default());
        let (Some(format), Some(state)) = (words.u32(), words.u32()) else {
            return Err(format_error("the recording is truncated within its first 16 bytes"));
        };
        if format > FORMAT {
            let message = format!(
                "the recording has format {format}, but this version of gpuflame reads only formats up to \
                 {FORMAT}"
            );
            return Err(format_error(message));
        }
        Ok(Self {
            input,
            payload: Vec::new(),
            frames: Vec::new(),
            chunk: Vec::new(),
            chunk_at: 0,
            unpacker: Unpacker::default(),
            cut: None,
            position: HEADER_BYTES,
            records: 0,
            skipped: 0,
            ended: false,
            is_complete: false,
            is_memory_exhausted: false,
            state: RecordingState::from_bits(state),
            sums: SumsReader::default(),
            stacks: StacksReader::default(),
            paths: Vec::new(),
            mark: None,
            writer: None,
        })
    }

    /// Returns the next row, or `None` at the end of the recording. Skips rows whose kind this version does not know.
    ///
    /// # Errors
    /// Returns a `Format` error if the row is truncated or invalid. (The message contains the row's index and offset.)
    /// Also returns any error from reading the input.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>> {
        loop {
            if self.unpacker.has_next() {
                return self.next_packed().map(Some);
            }
            if let Some(error) = self.cut.take() {
                return Err(error);
            }
            if self.stacks.has_next() {
                let Some(TreeStack { id, thread, flags, .. }) = self.stacks.next(&mut self.frames) else {
                    return Err(self.invalid("has an impossible stack"));
                };
                return Ok(Some(Row::Context { id, thread, flags, frames: &self.frames }));
            }
            let Some(tag) = self.read()? else {
                return Ok(self.sums.next().map(|(key, values)| Row::Sum { key, values }));
            };
            self.is_complete = tag == tag::END;
            match tag {
                tag::END => {}
                tag::MEMORY_EXHAUSTED => self.is_memory_exhausted = true,
                tag::CHUNK if self.chunk_at == self.chunk.len() => self.open_chunk()?,
                tag::PACKED => self.open_pack()?,
                tag::SUMS | tag::FINAL_SUMS => {
                    self.sums.buffer_entries(&self.payload, tag == tag::FINAL_SUMS)
                }
                tag::MARK | tag::WRITER => self.apply_metadata(tag)?,
                tag::FRAMES..=tag::STACKS => {
                    if self.stacks.add(tag, &self.payload).is_none() {
                        return Err(self.invalid("has impossible stacks"));
                    }
                }
                tag::FUNCTION => return self.function().map(Some),
                _ if !is_known_tag(tag, &self.payload) => self.skipped += 1,
                _ => {
                    let (record, at) = (self.records, self.row_offset());
                    let row = decode_row(tag, &self.payload, &mut self.frames);
                    return row.map(Some).map_err(|what| invalid_row(record, at, what));
                }
            }
        }
    }

    /// Returns the number of bytes read so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether the last row that was read is the end row. The writer appends the end row when the recording is
    /// complete.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether recording stopped because memory was exhausted, although the process continued to run.
    pub fn is_memory_exhausted(&self) -> bool {
        self.is_memory_exhausted
    }

    /// Returns the state that is stored in the file header. The flags about a process that died are meaningful only if
    /// the recording has no end row.
    pub fn state(&self) -> RecordingState {
        self.state
    }

    /// Returns the number of rows that were skipped because this version does not know their kind.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the last checkpoint mark that was read. Returns `None` if no mark was read so far.
    pub fn mark(&self) -> Option<&CheckpointMark> {
        self.mark.as_ref()
    }

    /// Returns the identity of the writer. Returns `None` if no writer row was read so far.
    pub fn writer(&self) -> Option<&WriterId> {
        self.writer.as_ref()
    }

    /// Whether the recording contains sums instead of single rows.
    pub fn has_sums(&self) -> bool {
        self.sums.has_sums()
    }

    /// Returns the file offset of the last row that was read. For a row in a chunk, returns the offset of the chunk.
    fn row_offset(&self) -> u64 {
        match self.chunk.len() {
            0 => self.position - 5 - self.payload.len() as u64,
            length => self.position - 5 - length as u64,
        }
    }

    /// Verifies the checksum of the chunk that is in the payload. After this call, `read` returns the rows in the
    /// chunk.
    fn open_chunk(&mut self) -> Result<()> {
        let (record, at) = (self.records, self.position - 5 - self.payload.len() as u64);
        let sum = Fields(&self.payload).u32();
        if sum.is_none_or(|sum| sum != crc32fast::hash(&self.payload[4..])) {
            return Err(invalid_row(record, at, "is a chunk with a wrong checksum: its rows are lost"));
        }
        std::mem::swap(&mut self.chunk, &mut self.payload);
        self.chunk_at = 4;
        Ok(())
    }

    /// Opens the pack that is in the payload. The next calls return the rows of the pack.
    fn open_pack(&mut self) -> Result<()> {
        match self.unpacker.open(&mut self.payload) {
            true => Ok(()),
            false => {
                Err(self.cut.take().unwrap_or_else(|| invalid_row(self.records, self.position, "is invalid")))
            }
        }
    }

    fn next_packed(&mut self) -> Result<Row<'_>> {
        let (record, at) = (self.records, self.position - 5 - self.unpacker.len() as u64);
        match self.unpacker.next() {
            Ok(Packed::Launch(launch)) => Ok(Row::Launch(launch)),
            Ok(Packed::Activity(activity)) => Ok(Row::Activity(activity)),
            // In a truncated pack, only the last row is incomplete.
            Err(what) => {
                let cut = self.cut.take_if(|_| !self.unpacker.has_next());
                Err(cut.unwrap_or_else(|| invalid_row(record, at, what)))
            }
        }
    }

    /// Processes a row that describes the recording itself, such as a checkpoint mark or the identity of the writer.
    fn apply_metadata(&mut self, tag: u8) -> Result<()> {
        let makes_sense = match tag {
            tag::MARK => {
                let (mark, sums) = (decode_mark(&mut Fields(&self.payload)), self.sums.apply_buffered());
                self.mark = mark.or(self.mark);
                mark.is_some() && sums
            }
            _ => {
                self.writer = decode_writer(&mut Fields(&self.payload));
                self.writer.is_some()
            }
        };
        match makes_sense {
            true => Ok(()),
            false => Err(self.invalid("is invalid, or the sums before it are")),
        }
    }

    /// Returns the function in the payload. The path of the source file is taken from an earlier row if the payload
    /// contains only the id of the path.
    fn function(&mut self) -> Result<Row<'_>> {
        let (record, at) = (self.records, self.row_offset());
        let invalid = |what| invalid_row(record, at, what);
        let decoded = decode_function(&mut Fields(&self.payload)).map_err(invalid)?;
        let (frame, mut function, path) = decoded.ok_or_else(|| invalid("is shorter than its fields"))?;
        if let Some(number) = (path as usize).checked_sub(1) {
            if number == self.paths.len() {
                self.paths.push(function.file.into());
            }
            function.file = self.paths.get(number).map_or("", |path| path);
        }
        Ok(Row::Function { frame, function })
    }

    fn invalid(&self, what: &str) -> Error {
        invalid_row(self.records, self.row_offset(), what)
    }

    /// Reads the payload of the next row, which may be in the current chunk or in the file. Returns the row's tag.
    fn read(&mut self) -> Result<Option<u8>> {
        if self.chunk_at < self.chunk.len() {
            return self.read_inner().map(Some);
        }
        self.chunk.clear();
        self.chunk_at = 0;
        if self.ended {
            return Ok(None);
        }
        // If one of the following reads fails, the position of the next row is unknown, so no more rows can be read.
        self.ended = true;
        self.records += 1;
        let head = self.fill(5)?;
        if head == 0 {
            return Ok(None);
        }
        let mut fields = Fields(&self.payload);
        let (Some(tag), Some(length)) = (fields.u8(), fields.u32()) else {
            return Err(self.truncated(5, head));
        };
        if length > MAX_ROW_BYTES {
            let (record, at) = (self.records, self.position);
            let message = format!(
                "record {record} at byte {at:#x} claims to have {length} bytes, more than any record has; \
                 the rest of the recording is lost"
            );
            return Err(format_error(message));
        }
        let available = self.fill(u64::from(length))?;
        if available < u64::from(length) {
            let error = self.truncated(u64::from(length) + 5, available + 5);
            if tag != tag::PACKED {
                return Err(error);
            }
            // Return the complete rows of the pack first, and the error after them.
            self.cut = Some(error);
        }
        self.position += 5 + available;
        self.ended = self.cut.is_some();
        Ok(Some(tag))
    }

    /// Reads the payload of the next row in the current chunk, and returns the row's tag.
    fn read_inner(&mut self) -> Result<u8> {
        self.records += 1;
        let mut fields = Fields(&self.chunk[self.chunk_at..]);
        let row = fields.u8().and_then(|tag| Some((tag, fields.bytes()?)));
        let Some((tag, payload)) = row else {
            let (record, at) = (self.records, self.row_offset());
            self.chunk_at = self.chunk.len();
            return Err(invalid_row(record, at, "is longer than its chunk"));
        };
        self.payload.clear();
        self.payload.extend_from_slice(payload);
        self.chunk_at += 5 + payload.len();
        Ok(tag)
    }

    /// Reads up to `length` bytes into the payload, and returns the number of bytes read. A damaged file may contain
    /// any `length`, so the buffer grows only as bytes are read.
    fn fill(&mut self, length: u64) -> Result<u64> {
        self.payload.clear();
        let read = self.input.by_ref().take(length).read_to_end(&mut self.payload);
        let read = read.map_err(|error| {
            Error::from(error).within(format!("record {} at byte {:#x}", self.records, self.position))
        })?;
        Ok(read as u64)
    }

    fn truncated(&self, expected: u64, available: u64) -> Error {
        format_error(format!(
            "record {} at byte {:#x} is cut short: {available} of its {expected}{} bytes are there; \
             the records before it are good, the rest is lost",
            self.records,
            self.position,
            if expected == 5 { " or more" } else { "" },
        ))
    }
}

fn invalid_row(record: u64, at: u64, what: &str) -> Error {
    format_error(format!("record {record} at byte {at:#x} {what}"))
}

fn format_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, message)
}

/// Whether this version can interpret a row with this tag. A row about an unknown kind of loss counts as a row with an
/// unknown tag.
fn is_known_tag(tag: u8, payload: &[u8]) -> bool {
    match tag {
        tag::LOSS => payload.first().is_none_or(|&loss| loss_of(loss).is_some()),
        tag::LAUNCH..=tag::WINDOW
        | tag::GRAPH_NODE..=tag::OUTSIDE
        | tag::HOST_STATE
        | tag::INSTANT
        | tag::CODE
        | tag::CALLBACKS_SWITCHED
        | tag::HOST_CALL_SPAN
        | tag::PROVENANCE
        | tag::GENERATED
        | tag::SAMPLED
        | tag::BLOCKED
        | tag::STEP
        | tag::FUNCTION..=tag::STACKS
        | tag::GRAPH_EDGE
        | tag::HOST_NODE
        | tag::LAUNCH_ATTRIBUTES => true,
        _ => false,
    }
}

fn loss_of(number: u8) -> Option<Loss> {
    Loss::ALL.into_iter().find(|&loss| loss as u8 == number)
}

/// Decodes the row in `payload`. Returns an error with the reason if the row is invalid. Additional bytes at the end of
/// the row are ignored, because a later version of gpuflame may have added fields.
fn decode_row<'a>(
    tag: u8,
    payload: &'a [u8],
    frames: &'a mut Vec<Frame>,
) -> std::result::Result<Row<'a>, &'static str> {
    let mut fields = Fields(payload);
    let row = match tag {
        tag::LAUNCH => decode_launch(&mut fields).map(Row::Launch),
        tag::OUTSIDE => decode_outside(&mut fields).map(Row::Outside),
        tag::ACTIVITY => decode_activity(&mut fields)?.map(Row::Activity),
        tag::CONTEXT => decode_context(&mut fields, frames),
        tag::NAME => decode_text(&mut fields)?.map(|(id, text)| Row::Name { id: NameId(id), text }),
        tag::LABEL => decode_text(&mut fields)?.map(|(id, text)| Row::Label { id: LabelId(id), text }),
        tag::PROCESS => decode_text(&mut fields)?.map(|(id, name)| Row::Process { id, name }),
        tag::PROVENANCE => {
            decode_text(&mut fields)?.map(|(what, text)| Row::Provenance { what: Provenance(what), text })
        }
        tag::RANGE => decode_range(&mut fields)?,
        tag::CODE => decode_code(&mut fields)?.map(Row::Code),
        tag::GENERATED => decode_generated(&mut fields)?,
        tag::HOST_STATE => decode_host_state(&mut fields).map(Row::HostState),
        tag::HOST_CALL_SPAN => decode_host_call_span(&mut fields).map(Row::HostCallSpan),
        tag::SAMPLED => decode_sampled(&mut fields).map(Row::Sampled),
        tag::BLOCKED => decode_blocked(&mut fields).map(Row::Blocked),
        tag::INSTANT => decode_instant(&mut fields)?,
        tag::STEP => decode_step(&mut fields)?,
        tag::WAIT => decode_wait(&mut fields),
        tag::MEMORY => decode_memory(&mut fields),
        tag::EVENT_RECORD => decode_event_record(&mut fields).map(Row::EventRecord),
        tag::SYNC => decode_sync(&mut fields).map(Row::Sync),
        tag::EVENT_CALL => decode_event_call(&mut fields)?.map(Row::EventCall),
        tag::UNIFIED => decode_unified(&mut fields).map(Row::Unified),
        tag::HOST_NODE => decode_host_node(&mut fields),
        tag::LAUNCH_ATTRIBUTES => decode_launch_attributes(&mut fields),
        tag::MODULE => decode_module(&mut fields).map(Row::Module),
        tag::THREAD => decode_text(&mut fields)?.map(|(id, name)| Row::Thread { id: ThreadId(id), name }),
        tag::WINDOW => decode_window(&mut fields)?,
        tag::CALLBACKS_SWITCHED => decode_callbacks_switched(&mut fields),
        tag::LOSS => decode_loss(&mut fields),
        _ => decode_graph(tag, &mut fields),
    };
    row.ok_or("is shorter than its fields")
}

fn decode_launch(fields: &mut Fields<'_>) -> Option<Launch> {
    Some(Launch {
        time: Nanos(fields.u64()?),
        duration: fields.u32()?,
        correlation: CorrelationId(fields.u32()?),
        within: CorrelationId(fields.u32()?),
        context: ContextId(fields.u32()?),
    })
}

fn decode_outside(fields: &mut Fields<'_>) -> Option<OutsideLaunches> {
    Some(OutsideLaunches {
        first: CorrelationId(fields.u32()?),
        last: CorrelationId(fields.u32()?),
        count: fields.u32()?,
        over: Nanos(fields.u64()?),
    })
}

fn decode_host_call_span(fields: &mut Fields<'_>) -> Option<HostCallSpan> {
    Some(HostCallSpan {
        ended: Nanos(fields.u64()?),
        duration: fields.u32()?,
        context: ContextId(fields.u32()?),
    })
}

fn decode_sampled(fields: &mut Fields<'_>) -> Option<CpuSample> {
    Some(CpuSample {
        time: Nanos(fields.u64()?),
        period: fields.u32()?,
        thread: ThreadId(fields.u32()?),
        context: ContextId(fields.u32()?),
    })
}

fn decode_blocked(fields: &mut Fields<'_>) -> Option<OffCpuWait> {
    Some(OffCpuWait {
        time: Nanos(fields.u64()?),
        duration: fields.u64()?,
        thread: ThreadId(fields.u32()?),
        context: ContextId(fields.u32()?),
    })
}

fn decode_host_state(fields: &mut Fields<'_>) -> Option<HostState> {
    Some(HostState {
        thread: ThreadId(fields.u32()?),
        since: Nanos(fields.u64()?),
        context: ContextId(fields.u32()?),
    })
}

/// Result of parsing a payload. `Ok(None)` means that the payload is too short.
type Parsed<T> = std::result::Result<Option<T>, &'static str>;

fn decode_context<'a>(fields: &mut Fields<'a>, frames: &'a mut Vec<Frame>) -> Option<Row<'a>> {
    let (id, thread) = (ContextId(fields.u32()?), ThreadId(fields.u32()?));
    let (flags, count) = (ContextFlags(fields.u32()?), fields.u32()?);
    let words = fields.take((count as usize).checked_mul(8)?)?;
    let (words, _) = words.as_chunks::<8>();
    frames.clear();
    frames.extend(words.iter().map(|word| Frame(u64::from_le_bytes(*word))));
    Some(Row::Context { id, thread, flags, frames })
}

fn decode_text<'a>(fields: &mut Fields<'a>) -> Parsed<(u32, &'a str)> {
    let (Some(id), Some(bytes)) = (fields.u32(), fields.bytes()) else { return Ok(None) };
    let text = std::str::from_utf8(bytes).map_err(|_| "holds text that is not UTF-8")?;
    Ok(Some((id, text)))
}

fn decode_range<'a>(fields: &mut Fields<'a>) -> Parsed<Row<'a>> {
    let Some((id, domain)) = decode_text(fields)? else { return Ok(None) };
    let Some(name) = fields.bytes() else { return Ok(None) };
    let text = std::str::from_utf8(name).map_err(|_| "holds text that is not UTF-8")?;
    Ok(Some(Row::Range { id: RangeId(id), domain, text }))
}

fn decode_code<'a>(fields: &mut Fields<'a>) -> Parsed<CodeObject<'a>> {
    let (Some(id), Some(version), Some(first_line)) = (fields.u32(), fields.u16(), fields.u32()) else {
        return Ok(None);
    };
    let (Some(file), Some(name), Some(lines)) = (fields.bytes(), fields.bytes(), fields.bytes()) else {
        return Ok(None);
    };
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| "holds text that is not UTF-8");
    let (file, name) = (text(file)?, text(name)?);
    Ok(Some(CodeObject { id: CodeId(id), version, first_line, file, name, lines }))
}

fn decode_generated<'a>(fields: &mut Fields<'a>) -> Parsed<Row<'a>> {
    let (Some(address), Some(name)) = (fields.u64(), fields.bytes()) else { return Ok(None) };
    let name = std::str::from_utf8(name).map_err(|_| "holds text that is not UTF-8")?;
    Ok(Some(Row::Generated { address, name }))
}

/// Decodes the payload of a function row: the frame, the function, and the id of the source file's path.
fn decode_function<'a>(fields: &mut Fields<'a>) -> Parsed<(Frame, FrameFunction<'a>, u32)> {
    let (Some(frame), Some(start), Some(line)) = (fields.u64(), fields.u64(), fields.u32()) else {
        return Ok(None);
    };
    let (Some(name), Some(path), Some(file)) = (fields.bytes(), fields.u32(), fields.bytes()) else {
        return Ok(None);
    };
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| "holds text that is not UTF-8");
    let start = (start != u64::MAX).then_some(start);
    let function = FrameFunction { name: text(name)?, start, file: text(file)?, line };
    Ok(Some((Frame(frame), function, path)))
}

fn decode_instant<'a>(fields: &mut Fields<'a>) -> Parsed<Row<'a>> {
    let (Some(thread), Some(time)) = (fields.u32(), fields.u64()) else { return Ok(None) };
    let Some(text) = fields.bytes() else { return Ok(None) };
    let text = std::str::from_utf8(text).map_err(|_| "holds text that is not UTF-8")?;
    Ok(Some(Row::Instant(Instant { time: Nanos(time), thread: ThreadId(thread), text })))
}

fn decode_step<'a>(fields: &mut Fields<'a>) -> Parsed<Row<'a>> {
    let (Some(time), Some(end)) = (fields.u64(), fields.u64()) else { return Ok(None) };
    let (Some(thread), Some(number), Some(name)) = (fields.u32(), fields.u64(), fields.bytes()) else {
        return Ok(None);
    };
    let name = std::str::from_utf8(name).map_err(|_| "holds text that is not UTF-8")?;
    let (time, end) = (Nanos(time), (end != 0).then_some(Nanos(end)));
    Ok(Some(Row::Step(Step { time, end, thread: ThreadId(thread), number, name })))
}

fn decode_wait<'a>(fields: &mut Fields<'_>) -> Option<Row<'a>> {
    let (time, duration) = (Nanos(fields.u64()?), fields.u64()?);
    let (correlation, context) = (CorrelationId(fields.u32()?), ContextId(fields.u32()?));
    Some(Row::Wait(Wait { time, duration, correlation, context }))
}

fn decode_memory<'a>(fields: &mut Fields<'_>) -> Option<Row<'a>> {
    let (time, correlation) = (Nanos(fields.u64()?), CorrelationId(fields.u32()?));
    let (context, address) = (ContextId(fields.u32()?), fields.u64()?);
    let (allocates, memory, bytes) = (fields.u8()? != 0, MemoryKind(fields.u16()?), fields.u64()?);
    let allocated = allocates.then_some(Allocation { memory, bytes });
    Some(Row::Memory(MemoryCall { time, correlation, context, address, allocated }))
}

fn decode_event_record(fields: &mut Fields<'_>) -> Option<EventRecord> {
    Some(EventRecord {
        correlation: CorrelationId(fields.u32()?),
        context: GpuContextId(fields.u32()?),
        stream: StreamId(fields.u32()?),
        event: EventId(fields.u32()?),
        sync: fields.long_option()?.map(SyncId),
    })
}

fn decode_sync(fields: &mut Fields<'_>) -> Option<SyncRecord> {
    Some(SyncRecord {
        kind: SyncKind(fields.u32()?),
        start: Nanos(fields.u64()?),
        end: Nanos(fields.u64()?),
        correlation: CorrelationId(fields.u32()?),
        context: GpuContextId(fields.u32()?),
        stream: fields.option()?.map(StreamId),
        event: fields.option()?.map(EventId),
        sync: fields.long_option()?.map(SyncId),
        result: fields.u32()?,
    })
}

fn decode_event_call(fields: &mut Fields<'_>) -> Parsed<EventCall> {
    let Some((mut call, event_use)) = decode_event_call_fields(fields) else { return Ok(None) };
    call.event_use = match event_use {
        0 => EventUse::Record,
        1 => EventUse::Wait,
        _ => return Err("is an event call of an unknown kind"),
    };
    Ok(Some(call))
}

fn decode_event_call_fields(fields: &mut Fields<'_>) -> Option<(EventCall, u8)> {
    let (time, duration, correlation) = (Nanos(fields.u64()?), fields.u32()?, CorrelationId(fields.u32()?));
    let (context, event_use) = (ContextId(fields.u32()?), fields.u8()?);
    let (event, stream) = (fields.u64()?, fields.u64()?);
    Some((
        EventCall { time, duration, correlation, context, event_use: EventUse::Record, event, stream },
        event_use,
    ))
}

fn decode_unified(fields: &mut Fields<'_>) -> Option<Unified> {
    Some(Unified {
        kind: UnifiedKind(fields.u32()?),
        value: fields.u64()?,
        start: Nanos(fields.u64()?),
        end: Nanos(fields.u64()?),
        address: fields.u64()?,
        source: DeviceId(fields.u32()?),
        target: DeviceId(fields.u32()?),
        flags: fields.u32()?,
    })
}

/// Converts bytes from a recording, which was made on Linux, to a path. On systems other than Unix, bytes that are not
/// UTF-8 are replaced.
fn path_of_bytes(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    return <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes).into();
    #[cfg(not(unix))]
    return String::from_utf8_lossy(bytes).into_owned().into();
}

fn decode_module(fields: &mut Fields<'_>) -> Option<Module> {
    let epoch = ModuleEpoch(fields.u16()?);
    let (start, end, bias) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (path, build_id) = (path_of_bytes(fields.bytes()?), fields.bytes()?.to_vec());
    Some(Module { epoch, start, end, bias, path, build_id })
}

fn decode_window<'a>(fields: &mut Fields<'_>) -> Parsed<Row<'a>> {
    let (Some(edge), Some(time)) = (fields.u8(), fields.u64()) else { return Ok(None) };
    let edge = match edge {
        0 => WindowEdge::Open,
        1 => WindowEdge::Close,
        _ => return Err("is a window edge of an unknown kind"),
    };
    Ok(Some(Row::Window { edge, time: Nanos(time) }))
}

fn decode_callbacks_switched<'a>(fields: &mut Fields<'_>) -> Option<Row<'a>> {
    Some(Row::CallbacksSwitched { on: fields.u8()? != 0, time: Nanos(fields.u64()?) })
}

fn decode_mark(fields: &mut Fields<'_>) -> Option<CheckpointMark> {
    let (began, time) = (Nanos(fields.u64()?), Nanos(fields.u64()?));
    Some(CheckpointMark { began, time, interval_ms: fields.u32()?, open: fields.u64()? })
}

fn decode_writer(fields: &mut Fields<'_>) -> Option<WriterId> {
    let (process, thread) = (fields.u32()?, fields.u32()?);
    let (started, namespace) = (fields.u64()?, fields.u64()?);
    let boot = std::str::from_utf8(fields.bytes()?).ok()?.to_owned();
    Some(WriterId { process, thread, started, namespace, boot })
}

fn decode_loss<'a>(fields: &mut Fields<'_>) -> Option<Row<'a>> {
    Some(Row::Loss { loss: loss_of(fields.u8()?)?, count: fields.u64()? })
}

/// Decodes a row about a graph or one of its nodes.
fn decode_graph<'a>(tag: u8, fields: &mut Fields<'_>) -> Option<Row<'a>> {
    let graph = GraphId(fields.u32()?);
    Some(match tag {
        tag::GRAPH_NODE => {
            Row::GraphNode { graph, node: GraphNodeId(fields.u64()?), context: ContextId(fields.u32()?) }
        }
        tag::GRAPH_CLONE => {
            Row::GraphClone { graph, node: GraphNodeId(fields.u64()?), original: GraphNodeId(fields.u64()?) }
        }
        tag::GRAPH_UPDATE => {
            let (source, correlation) = (GraphId(fields.u32()?), CorrelationId(fields.u32()?));
            Row::GraphUpdate { graph, source, correlation }
        }
        tag::GRAPH_EDGE => {
            let (from, to) = (fields.u64()?, GraphNodeId(fields.u64()?));
            let from = (from != 0).then_some(GraphNodeId(from));
            Row::GraphEdge(GraphEdge { graph, from, to })
        }
        _ => Row::GraphEnd { graph },
    })
}

fn decode_launch_attributes<'a>(fields: &mut Fields<'_>) -> Option<Row<'a>> {
    let (correlation, is_programmatic) = (CorrelationId(fields.u32()?), fields.u8()? != 0);
    Some(Row::LaunchAttributes(LaunchAttributes { correlation, is_programmatic }))
}

fn decode_host_node<'a>(fields: &mut Fields<'_>) -> Option<Row<'a>> {
    Some(Row::HostNode(HostNode {
        correlation: CorrelationId(fields.u32()?),
        device: DeviceId(fields.u32()?),
        context: GpuContextId(fields.u32()?),
        stream: StreamId(fields.u32()?),
        start: Nanos(fields.u64()?),
        end: Nanos(fields.u64()?),
        graph: GraphId(fields.u32()?),
        node: GraphNodeId(fields.u64()?),
    }))
}

/// Whether the recording at `path` is complete, which means that it ends with the end row. If a process was killed, its
/// recording has no end row.
///
/// # Errors
/// Returns any error from opening or reading the file.
pub fn has_end_row(path: &std::path::Path) -> std::io::Result<bool> {
    use std::io::Seek;
    let mut file = std::fs::File::open(path)?;
    let length = file.seek(std::io::SeekFrom::End(0))?;
    let mut tail = [0; 5];
    if length < HEADER_BYTES + tail.len() as u64 {
        return Ok(false);
    }
    file.seek(std::io::SeekFrom::End(-(tail.len() as i64)))?;
    file.read_exact(&mut tail)?;
    Ok(tail == [tag::END, 0, 0, 0, 0])
}
