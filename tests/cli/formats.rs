//! Compares the content of each output format with the table in `docs/formats.md`. A recording with every kind of row
//! is converted to all formats, and each output is searched for the data that the table promises.
use std::fs;
use std::io::Read as _;
use std::path::Path;

use gpuflame_model::record::{
    Activity, ContextFlags, ContextId, CopyDetail, CopyKind, CorrelationId, Detail, DeviceId, EventCall,
    EventId, EventRecord, EventUse, Frame, GpuContextId, GraphId, GraphNodeId, KernelDetail, LabelId, Launch,
    Loss, MemoryKind, NameId, Nanos, Row, StreamId, SyncKind, SyncRecord, ThreadId, Wait, WindowEdge, Writer,
};

use crate::support::command::gpuflame;
use crate::support::scratch;

const BASE: u64 = 1_760_000_000_000_000_000;
/// Values that would not be in a file by chance: an id, a grid size, a number of bytes, and a duration.
const ID: u32 = 987_650_000;
const GRID: u32 = 791_919;
const BYTES: u64 = 40_960_123;
const NANOS: u64 = 123_457;

fn at(micros: u64) -> Nanos {
    Nanos(BASE + micros * 1000)
}

/// Returns a recording with launches of two threads, a graph, a wait, a CUDA event for which a stream waits, and a
/// launch without GPU work.
fn everything() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut row = |row: Row<'_>| writer.row(&row).unwrap();
    let labels = [
        "main",
        "decode_fn",
        "capture_fn",
        "wait_fn",
        "never_fn",
        "event_fn",
        "cudaLaunchKernel",
        "cudaGraphLaunch",
        "cudaStreamSynchronize",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaMemcpyAsync",
    ];
    for (id, text) in (0..).zip(labels) {
        row(Row::Label { id: LabelId(id), text });
    }
    row(Row::Name { id: NameId(1), text: "gemm" });
    row(Row::Window { edge: WindowEdge::Open, time: at(1) });
    row(Row::Thread { id: ThreadId(500), name: "loader" });
    for (id, call, function) in
        [(2, 6, 1), (3, 6, 2), (4, 7, 1), (5, 8, 3), (6, 6, 4), (7, 9, 5), (8, 10, 5), (9, 11, 1)]
    {
        let frames = [call, function, 0].map(|label| Frame::label(LabelId(label)));
        let (id, thread, flags) = (ContextId(id), ThreadId(500), ContextFlags(0));
        row(Row::Context { id, thread, flags, frames: &frames });
    }
    row(Row::GraphNode { graph: GraphId(3), node: GraphNodeId(77), context: ContextId(3) });
    for (id, context, time) in [(0, 2, 10), (1, 2, 20), (2, 4, 30), (3, 6, 40), (4, 9, 45)] {
        let correlation = CorrelationId(ID + id);
        let (time, within, context) = (at(time), correlation, ContextId(context));
        row(Row::Launch(Launch { time, duration: 2_000, correlation, within, context }));
    }
    let kernel = Detail::Kernel(KernelDetail {
        name: NameId(1),
        grid: [GRID, 1, 1],
        block: [32, 1, 1],
        registers: 8,
        static_shared: 0,
        dynamic_shared: 0,
    });
    let copy = Detail::Copy(CopyDetail {
        kind: CopyKind::HTOD,
        from: MemoryKind::PINNED,
        to: MemoryKind::DEVICE,
        peers: None,
        copies: 1,
        bytes: BYTES,
        is_async: true,
    });
    for (id, start, nanos, graph, detail) in [
        (0, 100, NANOS, 0, kernel),
        (1, 300, 1_000, 0, kernel),
        (2, 400, 5_000, 3, kernel),
        (4, 500, 7_000, 0, copy),
    ] {
        row(Row::Activity(Activity {
            correlation: CorrelationId(ID + id),
            device: DeviceId(0),
            context: GpuContextId(1),
            stream: StreamId(7),
            channel: None,
            start: at(start),
            end: Nanos(at(start).0 + nanos),
            graph: GraphId(graph),
            graph_node: GraphNodeId(if graph == 0 { 0 } else { 77 }),
            source_node: GraphNodeId(0),
            device_launched: false,
            created: None,
            detail,
        }));
    }
    let (stream, event) = (StreamId(7), EventId(5));
    for (id, context, time, event_use) in [(10, 7, 600, EventUse::Record), (11, 8, 610, EventUse::Wait)] {
        row(Row::EventCall(EventCall {
            time: at(time),
            duration: 1_000,
            correlation: CorrelationId(ID + id),
            context: ContextId(context),
            event_use,
            event: 0xe0,
            stream: 0x50,
        }));
    }
    let correlation = CorrelationId(ID + 10);
    row(Row::EventRecord(EventRecord { correlation, context: GpuContextId(1), stream, event, sync: None }));
    for (id, kind, time, event) in
        [(11, SyncKind::STREAM_WAIT, 610, Some(event)), (12, SyncKind::STREAM, 620, None)]
    {
        row(Row::Sync(SyncRecord {
            kind,
            start: at(time),
            end: at(time + 3),
            correlation: CorrelationId(ID + id),
            context: GpuContextId(1),
            stream: Some(stream),
            event,
            sync: None,
            result: 0,
        }));
    }
    let (correlation, context) = (CorrelationId(ID + 12), ContextId(5));
    row(Row::Wait(Wait { time: at(620), duration: 3_000, correlation, context }));
    row(Row::Loss { loss: Loss::ActivitiesDropped, count: 918_273 });
    row(Row::Window { edge: WindowEdge::Close, time: at(700) });
    writer.finish().unwrap()
}

/// Encodes a number as a varint, as in protobuf and SBT.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Content of an output file, and the name of its format, from which the test knows how the file encodes numbers.
struct Written {
    bytes: Vec<u8>,
    word: String,
}

impl Written {
    fn has(&self, bytes: &[u8]) -> bool {
        self.bytes.windows(bytes.len()).any(|window| window == bytes)
    }

    fn says(&self, text: &str) -> bool {
        self.has(text.as_bytes())
    }

    fn counts(&self, number: u64) -> bool {
        match self.word.as_str() {
            "sbt" | "perfetto" | "pprof" => self.has(&varint(number)),
            "parquet" | "arrow" | "gfr" => self.has(&(number as u32).to_le_bytes()),
            _ => self.says(&number.to_string()),
        }
    }

    fn carries(&self, what: &str) -> bool {
        match what {
            "stacks" => self.says("decode_fn"),
            "thread names" => self.says("loader"),
            "single activities" => self.counts(NANOS) || self.says("123.457") || self.word == "gfr",
            "correlation" => self.counts(ID.into()) || self.word == "gfr",
            "grid" => self.counts(GRID.into()) || self.says("[791919, 1, 1]"),
            "bytes" => self.counts(BYTES),
            "graph stacks" => self.says("capture_fn"),
            "waits and events" => {
                self.says("wait_fn") && self.says("event_fn") || self.says("SYNCHRONIZATION")
            }
            "pending launches" => match self.word.as_str() {
                "cupti-text" => self.counts((ID + 3).into()),
                _ => self.says("never_fn"),
            },
            "losses" => self.counts(918_273) || self.says("918273") || self.says("918,273"),
            _ => panic!("the table has a column that no test knows: {what}"),
        }
    }
}

/// Returns the joined contents of all files that `convert` writes for a format.
fn written(folder: &Path, word: &str) -> Written {
    let name = match word {
        "csv" => "out.csv",
        "parquet" => "out.parquet",
        "arrow" => "out.arrow",
        _ => "out.any",
    };
    if word != "gfr" {
        gpuflame(folder, ["-q", "convert", "all.gfr", "--to", word, "--output", name]).ok();
    }
    let mut bytes = fs::read(folder.join(if word == "gfr" { "all.gfr" } else { name })).unwrap();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut plain).unwrap();
        bytes = plain;
    }
    if word == "csv" {
        bytes.extend(fs::read(folder.join("out.stacks.csv")).unwrap());
    }
    Written { bytes, word: word.to_owned() }
}

#[test]
fn each_format_contains_the_data_that_the_formats_table_lists() {
    let folder = scratch("formats");
    fs::write(folder.join("all.gfr"), everything()).unwrap();
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats.md")).unwrap();
    let mut rows = document
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
    let columns = rows.next().unwrap();
    let mut formats = 0;
    for cells in rows.skip(1).take_while(|cells| cells[0].starts_with('`')) {
        let word = cells[0].split('`').nth(1).unwrap();
        let file = written(&folder, word);
        for (what, said) in columns.iter().zip(&cells).skip(1) {
            let found = match what.as_str() {
                "read again" => {
                    let name = match word {
                        "gfr" => "all.gfr",
                        "parquet" => "out.parquet",
                        "arrow" => "out.arrow",
                        _ => "out.any",
                    };
                    let read = if word == "extended-folded" { "merge" } else { "flamegraph" };
                    word != "csv" && (read == "merge" || gpuflame(&folder, ["-q", read, name]).code == 0)
                }
                what => file.carries(what),
            };
            assert_eq!(found, said == "yes", "{word}: {what}");
        }
        formats += 1;
    }
    assert_eq!(formats, 13, "a row for each format");
}

/// Lines of folded stacks that `gpuflame flamegraph` prints for a file.
fn drawn(folder: &Path, name: &str) -> Vec<String> {
    gpuflame(folder, ["-q", "flamegraph", name]).ok().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn graph_and_pending_launch_stacks_survive_conversion_to_readable_formats() {
    let folder = scratch("formats");
    fs::write(folder.join("all.gfr"), everything()).unwrap();
    let before = drawn(&folder, "all.gfr");
    assert!(before.iter().any(|line| line.contains("cudaGraphLaunch;[graph];capture_fn")), "{before:?}");
    assert!(before.iter().any(|line| line.contains("never_fn")), "{before:?}");
    // Losses are not part of the exported formats, so the lines about losses are missing when an exported file is read
    // again.
    let kept = |line: &&String| !line.contains("lost:") && !line.contains("dropped]");
    let kept: Vec<_> = before.iter().filter(kept).cloned().collect();
    for name in ["all.json", "all.sbt"] {
        gpuflame(&folder, ["-q", "convert", "all.gfr", "-o", name]).ok();
        assert_eq!(drawn(&folder, name), kept, "{name}");
        // The exported file is converted to the same format again.
        gpuflame(&folder, ["-q", "convert", name, "-o", "again.json"]).ok();
        assert_eq!(drawn(&folder, "again.json"), kept, "{name} again");
    }
    let info = gpuflame(&folder, ["info", "all.json"]).ok().stdout;
    let waits = info.lines().find(|line| line.starts_with("wait records stream wait ")).unwrap();
    assert!(waits.ends_with(" 1"), "{info}");
}

#[test]
fn python_frames_and_ranges_of_a_trace_survive_conversion() {
    let folder = scratch("formats");
    let trace = r#"{"traceEvents": [
        {"ph":"X","cat":"python_function","name":"<built-in method step of Adam object at 0x7f1234567890>","pid":1,"tid":2,"ts":0,"dur":90},
        {"ph":"X","cat":"user_annotation","name":"ProfilerStep, op_id = 12","pid":1,"tid":2,"ts":1,"dur":80},
        {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":5,"dur":2,"args":{"correlation":3}},
        {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":20,"dur":9,"args":{"correlation":3,"device":0,"stream":7}},
        {"ph":"X","cat":"cuda_sync","name":"Stream Sync","pid":0,"tid":7,"ts":21,"dur":4,"args":{"stream":7,"correlation":9,"device":0,"context":1}},
        {"ph":"X","cat":"kernel","name":"alone","pid":0,"tid":7,"ts":60,"dur":1,"args":{"correlation":44,"device":0,"stream":7}}
    ]}"#;
    fs::write(folder.join("trace.json"), trace).unwrap();
    for name in ["ours.json", "ours.sbt"] {
        gpuflame(&folder, ["-q", "convert", "trace.json", "-o", name]).ok();
    }
    let before = drawn(&folder, "trace.json");
    assert!(before.iter().any(|line| line.contains("at 0xN>;ProfilerStep, op_id = N;")), "{before:?}");
    assert_eq!(drawn(&folder, "ours.json"), before);
    assert_eq!(drawn(&folder, "ours.sbt"), before);
    let ours = fs::read_to_string(folder.join("ours.json")).unwrap();
    assert!(ours.contains("\"cuda_sync\"") && ours.contains("\"Stream Sync\""), "{ours}");
}

#[test]
fn waits_and_events_are_rows_in_the_cupti_text_format() {
    let folder = scratch("formats");
    fs::write(folder.join("all.gfr"), everything()).unwrap();
    let text = gpuflame(&folder, ["convert", "all.gfr", "--to", "cupti-text"]).ok().stdout;
    let (from, to) = (BASE + 610_000, BASE + 613_000);
    let wait = format!(
        "SYNCHRONIZATION [ {from}, {to} ] duration 3000, type STREAM_WAIT_EVENT, contextId 1, streamId 7, eventId 5, \
         correlationId {}\n",
        ID + 11
    );
    assert!(text.contains(&wait), "{text}");
    assert!(
        text.contains(&format!("CUDA_EVENT contextId 1, streamId 7, correlationId {}, eventId 5\n", ID + 10))
    );
    assert!(text.contains("\"cudaStreamSynchronize\""), "{text}");
}

#[test]
fn the_csv_stack_numbers_are_resolved_by_a_stacks_table() {
    let folder = scratch("formats");
    fs::write(folder.join("all.gfr"), everything()).unwrap();
    gpuflame(&folder, ["-q", "convert", "all.gfr", "-o", "all.csv"]).ok();
    let stacks = fs::read_to_string(folder.join("all.stacks.csv")).unwrap();
    let expected = "stack,thread,thread_name,call,frames,activities,created,pending,language,file,line\n\
                    2,500,loader,cudaLaunchKernel,main;decode_fn;cudaLaunchKernel,2,0,0,,,\n\
                    3,500,loader,cudaLaunchKernel,main;capture_fn;cudaLaunchKernel,0,1,0,,,\n\
                    4,500,loader,cudaGraphLaunch,main;decode_fn;cudaGraphLaunch,1,0,0,,,\n\
                    6,500,loader,cudaLaunchKernel,main;never_fn;cudaLaunchKernel,0,0,1,,,\n\
                    9,500,loader,cudaMemcpyAsync,main;decode_fn;cudaMemcpyAsync,1,0,0,,,\n";
    assert_eq!(stacks, expected);
    let rows = fs::read_to_string(folder.join("all.csv")).unwrap();
    assert_eq!(
        rows.lines().filter(|line| line.starts_with("kernel,") || line.starts_with("copy,")).count(),
        4
    );
    assert!(!rows.contains("\nlaunch,"), "{rows}");
}
