//! Tests that write recordings, and then read them back unchanged, truncated and corrupted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::testing::{Rng, alias, copy, kernel, launch, named, set};
use super::*;
use crate::error::ErrorKind;

/// Returns at least one row of every kind. Each field of a row has a different value.
fn all_kinds(frames: &[Frame]) -> Vec<Row<'_>> {
    let mut rows = vec![
        Row::Launch(Launch { duration: u32::MAX, ..launch(u32::MAX, 7) }),
        Row::Launch(alias(8, 7)),
        Row::Outside(OutsideLaunches {
            first: CorrelationId(u32::MAX),
            last: CorrelationId(9),
            count: 1 << 30,
            over: Nanos(1 << 50),
        }),
        Row::Activity(Activity {
            channel: Some(u32::MAX),
            graph: GraphId(3),
            graph_node: GraphNodeId(1 << 40),
            source_node: GraphNodeId(1 << 41),
            device_launched: true,
            device: DeviceId(2),
            ..named(9, kernel(1, 1, u64::MAX))
        }),
        Row::Activity(kernel(2, 0, 0)),
        Row::Activity(copy(3, CopyKind::PTOP, 1 << 40, 5, 6)),
        Row::Activity(set(4, 77, 8, 9)),
        Row::Activity(Activity { detail: Detail::Graph, ..kernel(5, 1, 2) }),
        Row::Context { id: ContextId(2), thread: ThreadId(99), flags: ContextFlags(5), frames },
        Row::Context { id: ContextId(3), thread: ThreadId(0), flags: ContextFlags(0), frames: &[] },
        Row::Name { id: NameId(1), text: "_Z4gemmIfLi128EEvPT_" },
        Row::Name { id: NameId(2), text: "" },
        Row::Label { id: LabelId(3), text: "cudaLaunchKernel" },
        Row::Module(Module {
            epoch: ModuleEpoch(4095),
            start: 0x7f00_0000_0000,
            end: 0x7f00_0010_0000,
            bias: 0x7eff_ffff_0000,
            path: OsStr::from_bytes(b"/lib/d\xc3\xa9j\xe0 vu.so").into(),
            build_id: vec![0, 255, 10, 13],
        }),
        Row::Thread { id: ThreadId(99), name: "worker" },
        Row::GraphNode { graph: GraphId(3), node: GraphNodeId(1 << 33), context: ContextId(2) },
        Row::GraphClone { graph: GraphId(4), node: GraphNodeId(1 << 34), original: GraphNodeId(1 << 33) },
        Row::GraphUpdate { graph: GraphId(4), source: GraphId(3), correlation: CorrelationId(7) },
        Row::GraphEnd { graph: GraphId(3) },
        Row::Range { id: RangeId(1), domain: "", text: "step" },
        Row::Range { id: RangeId(2), domain: "nccl", text: "" },
        Row::Code(CodeObject {
            id: CodeId(1),
            version: 0x030b,
            first_line: 12,
            file: "/srv/modèle.py",
            name: "Block.forward",
            lines: &[0x80, 0, 0xff],
        }),
        Row::Generated { address: 0x7f00_0000_1234, name: "py::größe:/srv/modèle.py" },
        Row::Function {
            frame: Frame::native_exact(0x7f00_0000_1234, ModuleEpoch(7)),
            function: FrameFunction {
                name: "_ZN3größe",
                start: Some(1 << 40),
                file: "/srv/modèle.cc",
                line: 12,
            },
        },
        Row::Function { frame: Frame::native(9, ModuleEpoch(0)), function: FrameFunction::default() },
        Row::Process { id: 4711, name: "app" },
        Row::Provenance { what: Provenance::HOST, text: "knöten7" },
        Row::Provenance { what: Provenance(u32::MAX), text: "" },
        Row::HostState(HostState { thread: ThreadId(4), since: Nanos(1 << 60), context: ContextId::NONE }),
        Row::HostCallSpan(HostCallSpan { ended: Nanos(1 << 61), duration: u32::MAX, context: ContextId(77) }),
        Row::Sampled(CpuSample {
            time: Nanos(1 << 62),
            period: 1_001_001,
            thread: ThreadId(5),
            context: ContextId(77),
        }),
        Row::Blocked(OffCpuWait {
            time: Nanos(1 << 62),
            duration: 5_000_000_000,
            thread: ThreadId(5),
            context: ContextId(77),
        }),
        Row::Wait(Wait {
            time: Nanos(7),
            duration: u64::MAX,
            correlation: CorrelationId(8),
            context: ContextId(9),
        }),
        Row::Memory(MemoryCall {
            time: Nanos(1),
            correlation: CorrelationId(2),
            context: ContextId(3),
            address: 0x7f00_0000_0000,
            allocated: Some(Allocation { memory: MemoryKind::DEVICE, bytes: 1 << 40 }),
        }),
        Row::Memory(MemoryCall {
            time: Nanos(4),
            correlation: CorrelationId(5),
            context: ContextId(6),
            address: 0x7f00_0000_0000,
            allocated: None,
        }),
        Row::EventRecord(EventRecord {
            correlation: CorrelationId(1),
            context: GpuContextId(2),
            stream: StreamId(3),
            event: EventId(4),
            sync: Some(SyncId(u64::MAX)),
        }),
        Row::EventRecord(EventRecord {
            correlation: CorrelationId(u32::MAX),
            context: GpuContextId(5),
            stream: StreamId(6),
            event: EventId(7),
            sync: None,
        }),
        Row::GraphEdge(GraphEdge {
            graph: GraphId(1),
            from: Some(GraphNodeId(u64::MAX)),
            to: GraphNodeId(2 << 32),
        }),
        Row::GraphEdge(GraphEdge { graph: GraphId(3), from: None, to: GraphNodeId(4) }),
        Row::LaunchAttributes(LaunchAttributes { correlation: CorrelationId(9), is_programmatic: true }),
        Row::HostNode(HostNode {
            correlation: CorrelationId(1),
            device: DeviceId(2),
            context: GpuContextId(3),
            stream: StreamId(4),
            start: Nanos(5),
            end: Nanos(u64::MAX),
            graph: GraphId(6),
            node: GraphNodeId(7 << 32),
        }),
        Row::Sync(SyncRecord {
            kind: SyncKind::STREAM_WAIT,
            start: Nanos(1),
            end: Nanos(u64::MAX),
            correlation: CorrelationId(2),
            context: GpuContextId(3),
            stream: Some(StreamId(4)),
            event: Some(EventId(5)),
            sync: Some(SyncId(6)),
            result: 600,
        }),
        Row::Sync(SyncRecord {
            kind: SyncKind(77),
            start: Nanos(7),
            end: Nanos(8),
            correlation: CorrelationId(9),
            context: GpuContextId(10),
            stream: None,
            event: None,
            sync: None,
            result: 0,
        }),
        Row::EventCall(EventCall {
            time: Nanos(1),
            duration: u32::MAX,
            correlation: CorrelationId(2),
            context: ContextId(3),
            event_use: EventUse::Record,
            event: 0x7f00_0000_0000,
            stream: 2,
        }),
        Row::EventCall(EventCall {
            time: Nanos(4),
            duration: 5,
            correlation: CorrelationId(6),
            context: ContextId(7),
            event_use: EventUse::Wait,
            event: 8,
            stream: u64::MAX,
        }),
        Row::Unified(Unified {
            kind: UnifiedKind::DTOH,
            value: 1 << 40,
            start: Nanos(1),
            end: Nanos(u64::MAX),
            address: 0x7f00_0000_0000,
            source: DeviceId(2),
            target: DeviceId(u32::MAX),
            flags: 3,
        }),
        Row::Step(Step { time: Nanos(5), end: None, thread: ThreadId(6), number: 1 << 40, name: "" }),
        Row::Step(Step {
            time: Nanos(5),
            end: Some(Nanos(9)),
            thread: ThreadId(6),
            number: 2,
            name: "pas 2",
        }),
        Row::Instant(Instant { time: Nanos(5), thread: ThreadId(6), text: "épée" }),
        Row::CallbacksSwitched { on: true, time: Nanos(3) },
        Row::CallbacksSwitched { on: false, time: Nanos(u64::MAX) },
        Row::Window { edge: WindowEdge::Open, time: Nanos(1) },
        Row::Window { edge: WindowEdge::Close, time: Nanos(u64::MAX) },
    ];
    if let Row::Activity(Activity { detail: Detail::Copy(copy), .. }) = &mut rows[5] {
        copy.peers = Some((DeviceId(1), DeviceId(0)));
    }
    rows.extend(Loss::ALL.map(|loss| Row::Loss { loss, count: 10 + loss as u64 }));
    rows
}

const FRAMES: [Frame; 3] = [Frame(0), Frame(u64::MAX), Frame(0x3000_0000_0000_0001)];

fn recording(rows: &[Row<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    rows.iter().for_each(|row| writer.row(row).unwrap());
    writer.finish().unwrap()
}

/// Length in bytes of the end row.
const WHOLE: usize = 5;

#[test]
fn a_recording_is_complete_only_with_its_end_row() {
    let bytes = recording(&all_kinds(&FRAMES));
    for (cut, is_whole) in [(0, true), (1, false), (WHOLE, false), (WHOLE + 1, false)] {
        let mut reader = Reader::new(&bytes[..bytes.len() - cut]).unwrap();
        while !matches!(reader.next_row(), Ok(None)) {}
        assert_eq!(reader.is_complete(), is_whole, "{cut} bytes are missing");
    }
}

/// Reads the recording `bytes`. Returns the rows and the errors as text, because rows are borrowed from the reader.
fn read(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (rows, vec![error.to_string()]),
    };
    loop {
        match reader.next_row() {
            Ok(Some(row)) => rows.push(format!("{row:?}")),
            Ok(None) => return (rows, errors),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Format);
                errors.push(error.to_string());
            }
        }
    }
}

fn debug(rows: &[Row<'_>]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}

#[test]
fn every_kind_of_row_is_read_as_it_was_written() {
    let rows = all_kinds(&FRAMES);
    assert_eq!(read(&recording(&rows)), (debug(&rows), vec![]));
}

#[test]
fn the_format_matches_its_documented_bytes() {
    let bytes = recording(&[Row::Loss { loss: Loss::StacksCut, count: 0x0102 }]);
    let expected = b"gpuflame\x02\0\0\0\0\0\0\0\x09\x09\0\0\0\x08\x02\x01\0\0\0\0\0\0\x17\0\0\0\0";
    assert_eq!(bytes, expected);
    // In this test, the recording has one launch at 10 ns that takes 5 ns, with id 1 and context 2. The payload of the
    // launch's pack consists of the number of earlier shapes (0), the head, twice the difference in time, the duration,
    // and the context. The bits in the head mean that the id is the previous id (0) plus 1, and that the launch is not
    // within another call.
    let bytes = recording(&[Row::Launch(launch(1, 2))]);
    assert_eq!(bytes[16..], *b"\x2c\x05\0\0\0\x00\x0c\x14\x05\x02\x17\0\0\0\0");
}

#[test]
fn a_recording_truncated_anywhere_yields_its_complete_rows_and_one_error() {
    let rows = all_kinds(&FRAMES);
    let (whole, expected) = (recording(&rows), debug(&rows));
    let ends: Vec<usize> = (0..=rows.len()).map(|count| recording(&rows[..count]).len() - WHOLE).collect();
    // Consecutive launches and activities are in one pack, so a file that ends between two rows of the pack is
    // truncated.
    let is_packed = |row: Option<&Row<'_>>| matches!(row, Some(Row::Launch(_) | Row::Activity(_)));
    let splits_pack = |at: usize| at > 0 && is_packed(rows.get(at - 1)) && is_packed(rows.get(at));
    for cut in 16..whole.len() {
        let (read, errors) = read(&whole[..cut]);
        let complete = ends.iter().rposition(|&end| end <= cut).unwrap();
        assert_eq!(read, expected[..complete], "cut at {cut}");
        let is_end = ends[complete] == cut && !splits_pack(complete);
        assert_eq!(errors.len(), usize::from(!is_end), "cut at {cut}: {errors:?}");
    }
}

#[test]
fn errors_name_the_record_and_its_offset() {
    let mut bytes = recording(&[1, 2].map(|count| Row::Loss { loss: Loss::StacksCut, count }));
    let (_, errors) = read(&bytes[..40]);
    let expected = "record 2 at byte 0x1e is cut short: 10 of its 14 bytes are there; \
                    the records before it are good, the rest is lost";
    assert_eq!(errors, [expected]);
    let (_, errors) = read(&bytes[..32]);
    assert!(
        errors[0].starts_with("record 2 at byte 0x1e is cut short: 2 of its 5 or more bytes"),
        "{errors:?}"
    );
    bytes[17..21].copy_from_slice(&u32::MAX.to_le_bytes());
    let (_, errors) = read(&bytes);
    assert!(errors[0].starts_with("record 1 at byte 0x10 claims to have 4294967295 bytes"), "{errors:?}");
}

/// Recordings in old formats must stay readable.
#[test]
fn a_recording_of_format_0_is_read() {
    let rows = all_kinds(&FRAMES);
    let mut bytes = recording(&rows);
    bytes[8] = 0;
    assert_eq!(read(&bytes), (debug(&rows), vec![]));
}

#[test]
fn rows_in_chunks_are_read_unless_the_chunks_checksum_is_wrong() {
    let rows = all_kinds(&FRAMES);
    let mut bytes = Chunk::file_header().to_vec();
    let mut chunk = Chunk::default();
    let (mark, id) = (
        CheckpointMark { began: Nanos(1), time: Nanos(2), interval_ms: 3, open: 4 },
        WriterId { process: 5, thread: 6, started: 7, namespace: 8, boot: "x-y".to_owned() },
    );
    chunk.writer(&id);
    rows.iter().for_each(|row| chunk.row(row));
    chunk.mark(&mark);
    bytes.extend(chunk.take());
    let end = bytes.len();
    rows[..2].iter().for_each(|row| chunk.row(row));
    chunk.end();
    bytes.extend(chunk.take());
    let all = [&debug(&rows)[..], &debug(&rows[..2])].concat();
    assert_eq!(read(&bytes), (all, vec![]));
    let mut reader = Reader::new(&bytes[..]).unwrap();
    while reader.next_row().unwrap().is_some() {}
    assert_eq!((reader.mark(), reader.writer(), reader.is_complete()), (Some(&mark), Some(&id), true));
    assert_eq!((reader.position(), reader.skipped()), (bytes.len() as u64, 0));
    bytes[end - 1] ^= 1;
    let (read, errors) = read(&bytes);
    assert_eq!(read, debug(&rows[..2]));
    assert_eq!(errors, ["record 1 at byte 0x10 is a chunk with a wrong checksum: its rows are lost"]);
}

#[test]
fn a_file_of_another_kind_is_refused_with_a_reason() {
    for (bytes, reason) in [
        (&b""[..], "not a gpuflame recording"),
        (b"{\"traceEvents\": []}", "not a gpuflame recording"),
        (b"gpuflame\0\0", "truncated within its first 16 bytes"),
        (b"gpuflame\x07\0\0\0\0\0\0\0", "format 7, but this version of gpuflame reads only formats up to 2"),
    ] {
        let errors = read(bytes).1;
        assert!(errors[0].contains(reason), "{errors:?}");
    }
}

#[test]
fn rows_of_a_later_version_are_skipped() {
    let mut bytes = recording(&[Row::Window { edge: WindowEdge::Open, time: Nanos(1) }]);
    bytes.extend(b"\xc8\x03\0\0\0abc"); // an unknown row
    bytes.extend(b"\x09\x09\0\0\0\xfa\x01\0\0\0\0\0\0\0"); // a loss of an unknown kind
    bytes.extend(b"\x08\x0b\0\0\0\x01\x05\0\0\0\0\0\0\0zz"); // a window edge with additional bytes at its end
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert_eq!(reader.next_row(), Ok(Some(Row::Window { edge: WindowEdge::Open, time: Nanos(1) })));
    assert_eq!(reader.next_row(), Ok(Some(Row::Window { edge: WindowEdge::Close, time: Nanos(5) })));
    assert_eq!(reader.next_row(), Ok(None));
    assert_eq!((reader.skipped(), reader.position()), (2, bytes.len() as u64));
}

#[test]
fn a_malformed_row_does_not_hide_the_next() {
    let mut bytes = recording(&[]);
    bytes.extend(b"\x04\x0a\0\0\0\x01\0\0\0\x02\0\0\0\xff\xfe"); // a name that is not UTF-8
    bytes.extend(b"\x08\x09\0\0\0\x02\0\0\0\0\0\0\0\0"); // a window edge with an invalid kind
    bytes.extend(b"\x03\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff"); // a count of 2^32 frames without room for them
    bytes.extend(b"\x01\0\0\0\0"); // a launch without fields
    bytes.extend(&recording(&[Row::Window { edge: WindowEdge::Open, time: Nanos(1) }])[16..]);
    let (rows, errors) = read(&bytes);
    assert_eq!((rows.len(), errors.len()), (1, 4), "{rows:?} {errors:?}");
    assert_eq!(errors[0], "record 2 at byte 0x15 holds text that is not UTF-8");
}

/// Returns the number of mutations to test for each kind of mutation: the value of `GPUFLAME_MUTATIONS`, or 3,000 if it
/// is not set.
fn mutations() -> u64 {
    std::env::var("GPUFLAME_MUTATIONS").map_or(3000, |text| text.parse().unwrap())
}

/// Returns a copy of `whole` in which up to nine bytes at or after `from` are overwritten.
fn mutated(whole: &[u8], from: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=rng.below(8) {
        let at = from + rng.below((whole.len() - from) as u64) as usize;
        bytes[at] = rng.next_u64() as u8;
    }
    bytes
}

#[test]
fn garbage_is_rejected_without_a_panic() {
    let whole = recording(&all_kinds(&FRAMES));
    for seed in 1..mutations() {
        let bytes = mutated(&whole, 16, &mut Rng::new(seed));
        let (rows, errors) = read(&bytes);
        assert!(rows.len() + errors.len() <= whole.len());
    }
}

/// Returns a checkpoint file with chunks that contain sums, and the offset and length of each chunk.
fn of_sums() -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut bytes = Chunk::file_header().to_vec();
    let (mut sums, mut chunks) = (SumsWriter::default(), Vec::new());
    for turn in 0..4 {
        let mut chunk = Chunk::default();
        all_kinds(&FRAMES).iter().for_each(|row| chunk.row(row));
        sums.write(&mut chunk, |each| {
            for key in 0..20 + turn {
                each(&[1, 0, 0, 2, 1, 0, key as u8], &[turn * 1000 + key, turn]);
            }
        });
        if turn == 3 {
            chunk.frames(&FRAMES);
            chunk.nodes(&mut [(2, &[0, 1][..]), (0, &[1, 0]), (1, &[0])].into_iter(), usize::MAX);
            let (thread, flags) = (ThreadId(7), ContextFlags(0));
            let stacks = (0..4).map(|node| TreeStack { id: ContextId(900 + node), thread, flags, node });
            chunk.stacks(&mut { stacks }, usize::MAX);
            write_final_sums(&mut chunk, |each| (0..20).for_each(|key| each(&[18, 0, 0, key, 1], &[7, 8])));
        }
        chunk.mark(&CheckpointMark { began: Nanos(1), time: Nanos(2 + turn), interval_ms: 1000, open: turn });
        let chunk = chunk.take();
        chunks.push((bytes.len(), chunk.len()));
        bytes.extend(chunk);
    }
    (bytes, chunks)
}

/// Mutates rows, and then recomputes the checksums of the chunks. With a wrong checksum, the reader would reject the
/// chunk before it reads the rows.
#[test]
fn garbage_in_sums_with_correct_checksums_is_rejected_without_a_panic() {
    let (whole, chunks) = of_sums();
    assert_eq!(read(&whole).1, [""; 0]);
    for seed in 1..mutations() {
        let mut rng = Rng::new(seed);
        let mut bytes = whole.clone();
        let (at, length) = chunks[rng.below(chunks.len() as u64) as usize];
        // In a chunk, the rows come after the chunk's tag, length and checksum.
        let rows = at + 9..at + length;
        bytes[rows.clone()].copy_from_slice(&mutated(&whole[rows.clone()], 0, &mut rng));
        let crc = crc32fast::hash(&bytes[rows]);
        bytes[at + 5..at + 9].copy_from_slice(&crc.to_le_bytes());
        let (rows, errors) = read(&bytes);
        assert!(rows.len() + errors.len() <= whole.len());
    }
}

#[test]
#[ignore = "a measurement; .ci/long runs it"]
fn the_rate_of_writing_and_reading_rows_is_printed() {
    let rows: Vec<_> =
        (0..1_000_000).flat_map(|id| [Row::Launch(launch(id, 2)), Row::Activity(kernel(id, 1, 2))]).collect();
    let began = std::time::Instant::now();
    let bytes = recording(&rows);
    let written = began.elapsed();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut count = 0;
    while reader.next_row().unwrap().is_some() {
        count += 1;
    }
    let rate = |time: std::time::Duration| f64::from(count) / time.as_secs_f64() / 1e6;
    let read = began.elapsed() - written;
    eprintln!("{:.1} M rows/s written, {:.1} read, {} bytes", rate(written), rate(read), bytes.len());
}
