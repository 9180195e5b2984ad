//! Reads the binary format of the tool TraceSmith, version 0.1. A file has a 72-byte header, a string table, and events
//! that consist of varints.
//!
//! ```text
//! "SBT\0" | u16 major | u16 minor | u32 flags | u32 header size | u64 x 6: metadata, strings, devices,
//! events, call stacks (offsets), number of events | u8 compression | 7 unused
//! strings (type 2): count, then length and bytes of each      events (type 4): base time, then of each:
//! u8 type, u8 flags, time delta, [duration], device, stream, correlation, name, ...
//! ```
//!
//! The header states how the file is compressed: 0 none, 1 LZ4 frames, 2 zstd frames. If the file is compressed, all
//! bytes after the header are compressed, and offsets refer to the decompressed file. TraceSmith defines these
//! compressions but never uses them, so the layout of compressed files is an assumption of gpuflame.
//!
//! The file has no checksum, so a damaged length may have any value. Every length is therefore compared with the size
//! of the file.

use std::io::Read;

use super::model::*;
use super::zstd::ZstdFrames;
use super::{Id, ReadCounts, Text, lz4};
use gpuflame_model::error::{Error, ErrorKind, Result};

const HEADER_BYTES: usize = 72;
/// Maximum size in bytes of a file that is read into memory.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Maximum size in bytes of a compressed file after decompression. The limit is needed because even a small file may
/// decompress to any size.
const MAX_UNPACKED_BYTES: usize = 1 << 30;

pub(super) fn read(input: impl Read, sink: &mut impl Sink) -> Result<ReadCounts> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    let file_bytes = bytes.len() as u64;
    unpack(&mut bytes)?;
    let header = &bytes[..HEADER_BYTES];
    let u64_at = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("it is in the header"));
    let strings = match u64_at(24) {
        0 => Vec::new(),
        at => read_strings(SbtCursor::starting_at(&bytes, at)?)?,
    };
    let mut counts = ReadCounts { bytes: file_bytes, ..ReadCounts::default() };
    let (at, count) = (u64_at(40), u64_at(56));
    if (at, u64_at(24)) == (0, 0) {
        return Err(format_error(
            16,
            "the header has no section offsets: the program that wrote it was stopped",
        ));
    }
    if count > 0 {
        read_events(SbtCursor::starting_at(&bytes, at)?, count, &strings, &mut counts, sink)?;
    }
    Ok(counts)
}

/// Checks the version of the format. Decompresses the bytes after the header, if they are compressed.
fn unpack(bytes: &mut Vec<u8>) -> Result<()> {
    let header = bytes
        .get(..HEADER_BYTES)
        .ok_or_else(|| format_error(0, "the file is shorter than its 72-byte header"))?;
    let (major, minor) = ([header[4], header[5]], [header[6], header[7]]);
    let (major, minor, compression) = (u16::from_le_bytes(major), u16::from_le_bytes(minor), header[64]);
    let packed = &bytes[HEADER_BYTES..];
    let unpacked = match (major, compression) {
        (0, 0) => return Ok(()),
        (0, 1) => lz4::decompress(packed, MAX_UNPACKED_BYTES)
            .map_err(|what| format_error(HEADER_BYTES, &format!("LZ4: {what}")))?,
        (0, 2) => {
            unpack_zstd(packed).map_err(|error| format_error(HEADER_BYTES, &format!("zstd: {error}")))?
        }
        _ => {
            let what = format!(
                "version {major}.{minor}, compression {compression}: only version 0.x without compression, with LZ4 (1) or \
                 zstd (2) is supported"
            );
            return Err(format_error(4, &what));
        }
    };
    bytes.truncate(HEADER_BYTES);
    bytes.extend(unpacked);
    Ok(())
}

fn unpack_zstd(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let (mut unpacked, limit) = (Vec::new(), MAX_UNPACKED_BYTES as u64);
    ZstdFrames::new(packed).take(limit + 1).read_to_end(&mut unpacked)?;
    match unpacked.len() > MAX_UNPACKED_BYTES {
        true => Err(std::io::Error::other("the data is larger than gpuflame reads")),
        false => Ok(unpacked),
    }
}

fn format_error(at: usize, what: &str) -> Error {
    Error::new(ErrorKind::Format, format!("SBT, byte {at}: {what}"))
}

fn read_strings<'a>(mut at: SbtCursor<'a>) -> Result<Vec<&'a [u8]>> {
    at.expect_section(2)?;
    let count = at.read_varint()?;
    let mut strings = Vec::new();
    for _ in 0..count {
        let length = at.read_varint()?;
        strings.push(at.read_bytes(length)?);
    }
    Ok(strings)
}

fn read_events(
    mut at: SbtCursor<'_>,
    count: u64,
    strings: &[&[u8]],
    counts: &mut ReadCounts,
    sink: &mut impl Sink,
) -> Result<()> {
    at.expect_section(4)?;
    let mut time = at.read_varint()?;
    for _ in 0..count {
        let record = SbtRecord::read(&mut at, time, strings)?;
        time = record.time;
        counts.events += 1;
        record.emit(sink);
    }
    Ok(())
}

/// A trace event as written in the file.
struct SbtRecord<'a> {
    kind: u8,
    time: u64,
    duration: u64,
    device: u32,
    stream: u32,
    /// Correlation id; 0 if the event has no such id.
    correlation: u64,
    name: Text<'a>,
    thread: u32,
    /// Frames of the stack, root first, separated by `;`, and the kinds of these frames. Frames and kinds are empty if
    /// the event has no stack.
    stack: (String, String),
    /// Grid, block, shared memory and registers, if the event is a kernel.
    kernel: [u32; 8],
    /// Source, destination and number of bytes, if the event is a copy. In gpuflame's own exports, a wait or a
    /// recording of a CUDA event has three different values here: the CUDA event's id plus 1, 0, and the id of the
    /// recording.
    memory: Option<[u64; 3]>,
}

impl<'a> SbtRecord<'a> {
    /// Reads a trace event. `before` is the time of the previous trace event.
    fn read(at: &mut SbtCursor<'_>, before: u64, strings: &[&'a [u8]]) -> Result<Self> {
        let (kind, flags) = (at.read_byte()?, at.read_byte()?);
        // Differences between times wrap around if the times in the file are not sorted.
        let time = before.wrapping_add(at.read_varint()?);
        let duration = if flags & 1 != 0 { at.read_varint()? } else { 0 };
        let [device, stream, correlation, name] =
            [at.read_varint()?, at.read_varint()?, at.read_varint()?, at.read_varint()?];
        let name = strings.get(name as usize).copied().map_or(Text::from("[name lost]"), Text::plain);
        let (device, stream) = (saturate_u32(device), saturate_u32(stream));
        let (mut kernel, mut memory) = ([0; 8], None);
        if flags & 2 != 0 {
            for value in &mut kernel {
                *value = saturate_u32(at.read_varint()?);
            }
        }
        if flags & 4 != 0 {
            memory = Some([at.read_varint()?, at.read_varint()?, at.read_varint()?]);
        }
        let (mut thread, mut stack) = (0, Default::default());
        if flags & 8 != 0 {
            (thread, stack) = read_stack(at, strings)?;
        }
        Ok(Self { kind, time, duration, device, stream, correlation, name, thread, stack, kernel, memory })
    }

    /// Passes the event to `sink`. For a wait or a recording of a CUDA event that has a stack, a call is passed as
    /// well.
    fn emit(&self, sink: &mut impl Sink) {
        if !matches!(self.kind, 7..=10) {
            sink.event(&self.to_event());
            return;
        }
        if !self.stack.0.is_empty() {
            sink.event(&self.call_event(false));
        }
        let (device, stream, correlation) = (Some(self.device), Some(self.stream), self.correlation_id());
        let [event, _, record] = self.memory.unwrap_or_default();
        let event = event.checked_sub(1).and_then(|event| u32::try_from(event).ok());
        let number = Some(record).filter(|number| *number != 0);
        let (start, end) = self.times();
        if self.kind != 9 {
            let sync = Sync { name: self.name, start, end, device, stream, correlation, ..Sync::default() };
            sink.event(&Event::Sync(Sync { context: device, event, record: number, ..sync }));
        } else if self.memory.is_some() {
            let context = device;
            let record =
                EventRecord { context, stream, event, correlation, number, ..EventRecord::default() };
            sink.event(&Event::EventRecord(record));
        }
    }

    fn call_event(&self, is_launch: bool) -> Event<'_> {
        let ((start, end), correlation) = (self.times(), self.correlation_id());
        Event::Call(Call {
            name: self.name,
            start,
            end,
            correlation,
            thread: if self.stack.0.is_empty() { Id::None } else { Id::Number(self.thread.into()) },
            stack: Text::from(&*self.stack.0),
            stack_kinds: Text::from(&*self.stack.1),
            // The type of the trace event states that the call is a launch. So the call counts as a launch even if no
            // kernel belongs to the call.
            pending: is_launch && correlation.is_some(),
            ..Call::default()
        })
    }

    /// Converts the record to an event. The direction of a copy is determined by the type of the record, because the
    /// name may be any text.
    fn to_event(&self) -> Event<'_> {
        match self.kind {
            1 => self.call_event(true),
            2 => self.op_event(OpKind::Kernel, self.name),
            3 => self.op_event(OpKind::Copy, Text::from("HtoD")),
            4 => self.op_event(OpKind::Copy, Text::from("DtoH")),
            5 => self.op_event(OpKind::Copy, Text::from("DtoD")),
            6 => self.op_event(OpKind::Set, self.name),
            _ => Event::Other(Text::default()),
        }
    }

    fn op_event<'b>(&'b self, kind: OpKind, name: Text<'b>) -> Event<'b> {
        let (start, end) = self.times();
        let [x, y, z, a, b, c, shared, registers] = self.kernel;
        Event::Op(Op {
            kind,
            name,
            start,
            end,
            device: Some(self.device),
            // TraceSmith's format contains no CUDA contexts. In rows, each CUDA context belongs to one device, so the
            // index of the device is used as the id of the CUDA context.
            context: Some(self.device),
            stream: Some(self.stream),
            correlation: self.correlation_id(),
            bytes: self.memory.map_or(0, |[_, _, bytes]| bytes),
            grid: [x, y, z],
            block: [a, b, c],
            registers,
            shared,
            created: Text::from(&*self.stack.0),
            created_kinds: Text::from(&*self.stack.1),
            ..Op::default()
        })
    }

    fn times(&self) -> (i64, i64) {
        let start = self.time as i64;
        (start, start.saturating_add(self.duration as i64))
    }

    fn correlation_id(&self) -> Option<u64> {
        Some(self.correlation).filter(|&id| id != 0)
    }
}

/// Reads a stack: the thread to which the stack belongs, and the frames. The file contains the frames leaf first, each
/// with address, function, file and line. For a frame that is not code, gpuflame's own exports contain the kind of the
/// frame in place of the file.
fn read_stack(at: &mut SbtCursor<'_>, strings: &[&[u8]]) -> Result<(u32, (String, String))> {
    let thread = saturate_u32(at.read_varint()?);
    let (mut frames, mut kinds) = (Vec::new(), Vec::new());
    for _ in 0..at.read_varint()? {
        let [address, function, file, _] =
            [at.read_varint()?, at.read_varint()?, at.read_varint()?, at.read_varint()?];
        kinds.push(strings.get(file as usize).map_or('c', |file| frame_kind(file)));
        frames.push(match strings.get(function as usize) {
            Some(name) if !name.is_empty() => String::from_utf8_lossy(name).replace(';', ":"),
            _ => format!("0x{address:x}"),
        });
    }
    frames.reverse();
    kinds.reverse();
    Ok((thread, (frames.join(";"), kinds.into_iter().collect())))
}

/// Determines the kind of a frame from the file in which its code is. The file of Python code may be a placeholder
/// (`<string>`).
fn frame_kind(file: &[u8]) -> char {
    match file {
        b"<range>" => 'r',
        _ if file.starts_with(b"<") || file.ends_with(b".py") => 'p',
        _ => 'c',
    }
}

fn saturate_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

struct SbtCursor<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> SbtCursor<'a> {
    fn starting_at(all: &'a [u8], at: u64) -> Result<Self> {
        match usize::try_from(at) {
            Ok(at) if at >= HEADER_BYTES && at < all.len() => Ok(Self { all, at }),
            _ => Err(format_error(
                0,
                &format!("a section offset is {at}, but the file has {} bytes", all.len()),
            )),
        }
    }

    fn expect_section(&mut self, expected: u8) -> Result<()> {
        let at = self.at;
        match self.read_byte()? {
            found if found == expected => Ok(()),
            found => Err(format_error(at, &format!("found section {found}, expected section {expected}"))),
        }
    }

    fn read_byte(&mut self) -> Result<u8> {
        let byte =
            *self.all.get(self.at).ok_or_else(|| format_error(self.at, "the file ends inside a record"))?;
        self.at += 1;
        Ok(byte)
    }

    fn read_bytes(&mut self, length: u64) -> Result<&'a [u8]> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let bytes = end.and_then(|end| self.all.get(self.at..end));
        let bytes = bytes.ok_or_else(|| {
            format_error(self.at, &format!("a string of {length} bytes exceeds the end of the file"))
        })?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn read_varint(&mut self) -> Result<u64> {
        let start = self.at;
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(format_error(start, "a number has more than ten bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct EventLines(Vec<String>);

    impl super::Sink for EventLines {
        fn event(&mut self, event: &Event<'_>) {
            self.0.push(match event {
                Event::Op(op) => format!(
                    "{:?} {:?} {}..{} s{:?} c{:?} {}",
                    op.kind, op.name, op.start, op.end, op.stream, op.correlation, op.bytes
                ),
                Event::Call(call) => format!("call {:?} {} c{:?}", call.name, call.start, call.correlation),
                other => format!("{other:?}"),
            });
        }
    }

    /// Returns a file that contains three trace events: a launch, the kernel that it launched, and a copy.
    fn sample_file() -> Vec<u8> {
        let mut file = vec![0; HEADER_BYTES];
        file[..4].copy_from_slice(b"SBT\0");
        file[6] = 1;
        let strings = file.len() as u64;
        file.extend_from_slice(b"\x02\x02\x04gemm\x06launch");
        let events = file.len() as u64;
        file.extend_from_slice(&[4, 0xe8, 0x07]);
        file.extend_from_slice(&[1, 0, 0, 0, 7, 5, 1]);
        file.extend_from_slice(&[2, 3, 10, 20, 0, 7, 5, 0, 8, 1, 1, 32, 1, 1, 0, 16]);
        file.extend_from_slice(&[3, 5, 30, 4, 0, 7, 6, 0, 0, 0, 64]);
        file[24..32].copy_from_slice(&strings.to_le_bytes());
        file[40..48].copy_from_slice(&events.to_le_bytes());
        file[56] = 3;
        file
    }

    #[test]
    fn launches_kernels_and_copies_are_read() {
        let mut lines = EventLines::default();
        let counts = read(&*sample_file(), &mut lines).unwrap();
        assert_eq!(counts.events, 3);
        let expected = [
            "call \"launch\" 1000 cSome(5)",
            "Kernel \"gemm\" 1010..1030 sSome(7) cSome(5) 0",
            "Copy \"HtoD\" 1040..1044 sSome(7) cSome(6) 64",
        ];
        assert_eq!(lines.0, expected);
    }

    /// The bytes after the header in [`sample_file`], as `lz4` and `zstd --check` compress them.
    const PACKED: [(u8, &str); 2] = [
        (
            1,
            "04224d186440a73300008002020467656d6d066c61756e636804e8070100000007050102030a1400070500080101200101001003051e0400070600000040000000007aea004b",
        ),
        (
            2,
            "28b52ffd046899010002020467656d6d066c61756e636804e8070100000007050102030a1400070500080101200101001003051e0400070600000040109540f6",
        ),
    ];

    #[test]
    fn compressed_files_are_read_and_damage_is_an_error() {
        let mut expected = EventLines::default();
        read(&*sample_file(), &mut expected).unwrap();
        for (compression, hex) in PACKED {
            let mut file = sample_file()[..HEADER_BYTES].to_vec();
            file[64] = compression;
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            file.extend((0..hex.len()).step_by(2).map(byte));
            let mut lines = EventLines::default();
            let counts = read(&*file, &mut lines).unwrap();
            assert_eq!((counts.events, counts.bytes), (3, file.len() as u64));
            assert_eq!(lines.0, expected.0, "compression {compression}");
            let end = file.len() - 1;
            file[end] ^= 1;
            let error = read(&*file, &mut EventLines::default()).unwrap_err().to_string();
            assert!(error.contains("SBT, byte 72: ") && error.contains("checksum"), "{error}");
        }
        let mut unknown = sample_file();
        unknown[64] = 3;
        let error = read(&*unknown, &mut EventLines::default()).unwrap_err();
        assert!(error.to_string().contains("compression 3"), "{error}");
    }

    #[test]
    fn a_file_truncated_anywhere_is_a_format_error() {
        let file = sample_file();
        for length in 0..file.len() {
            let error = read(&file[..length], &mut EventLines::default()).unwrap_err();
            assert!(error.to_string().starts_with("SBT, byte "), "{length}: {error}");
        }
    }
}
