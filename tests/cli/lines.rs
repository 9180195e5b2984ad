//! Tests GPU time per source line, and source lines in exported files. The expected values for the recording and for
//! the trace are worked out by hand.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_ipc::reader::FileReader;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Value, json};

use gpuflame_model::record::{
    CodeId, CodeObject, ContextFlags, ContextId, CorrelationId, Frame, LabelId, Launch, NameId, Nanos, Row,
    ThreadId, WindowEdge, Writer,
};

use crate::support::command::gpuflame;
use crate::support::traces::Trace;
use crate::support::{handmade, scratch};

/// Kernels that ran one after the other, each with the id of its name, the id of the launching stack, and its duration
/// in microseconds.
const RAN: [(u32, u32, u64); 6] = [(1, 2, 40), (2, 2, 10), (1, 3, 25), (3, 4, 20), (3, 2, 3), (4, 2, 2)];

/// Returns a recording in which `main` calls `Block.forward`. Line 12 of `Block.forward` launches kernels itself (stack
/// 2), and its line 13 launches kernels through `native` (stack 3). `native` also launches kernels without a Python
/// caller.
fn recording() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut row = |row: &Row<'_>| writer.row(row).unwrap();
    for (id, text) in [(1, "native"), (2, "cudaLaunchKernel")] {
        row(&Row::Label { id: LabelId(id), text });
    }
    for (id, text) in [(1, "gemm"), (2, "relu"), (3, "add"), (4, "mul")] {
        row(&Row::Name { id: NameId(id), text });
    }
    // The line table in the format of CPython 3.11 maps two bytes of code to line 12, and two bytes to line 13. `main`
    // has no line table, so its lines are unknown.
    let code = |id, name, file, first_line, lines| CodeObject {
        id: CodeId(id),
        version: 0x030b,
        first_line,
        file,
        name,
        lines,
    };
    row(&Row::Code(code(1, "Block.forward", "/srv/model.py", 12, &[0x80, 0, 0xd8, 1, 2])));
    row(&Row::Code(code(2, "main", "/srv/train.py", 3, &[])));
    let (call, main) = (Frame::label(LabelId(2)), Frame::python(CodeId(2), 0));
    let stacks = [
        vec![call, Frame::python(CodeId(1), 0), main],
        vec![call, Frame::label(LabelId(1)), Frame::python(CodeId(1), 2), main],
        vec![call, Frame::label(LabelId(1))],
    ];
    for (id, frames) in (2..).zip(&stacks) {
        row(&Row::Context { id: ContextId(id), thread: ThreadId(1), flags: ContextFlags(0), frames });
    }
    row(&Row::Window { edge: WindowEdge::Open, time: Nanos(handmade::BASE) });
    let mut start = handmade::BASE + 1000;
    for (id, (kernel, context, micros)) in (10..).zip(RAN) {
        let (correlation, context) = (CorrelationId(id), ContextId(context));
        row(&Row::Launch(Launch {
            time: Nanos(start - 500),
            duration: 100,
            correlation,
            within: correlation,
            context,
        }));
        let end = start + micros * 1000;
        row(&Row::Activity(handmade::activity(
            id,
            (0, 7),
            Nanos(start),
            Nanos(end),
            handmade::kernel(kernel),
        )));
        start = end + 1000;
    }
    row(&Row::Window { edge: WindowEdge::Close, time: Nanos(start) });
    writer.finish().unwrap()
}

fn top(folder: &Path, file: &str) -> Vec<Value> {
    let ran = gpuflame(folder, ["top", file, "--by", "line", "--format", "json"]).ok();
    let top: Value = serde_json::from_str(&ran.stdout).unwrap();
    top["line"].as_array().unwrap().clone()
}

#[test]
fn gpu_time_is_summed_by_launching_source_line() {
    let folder = scratch("lines");
    fs::write(folder.join("lines.gfr"), recording()).unwrap();
    let function = "Block.forward (model.py:12)";
    let expected = [
        json!({ "total_ns": 55_000, "share_percent": 55.0, "count": 4, "line": "/srv/model.py:12", "function": function,
                "kernels": "gemm, relu, add, 1 more" }),
        json!({ "total_ns": 25_000, "share_percent": 25.0, "count": 1, "line": "/srv/model.py:13", "function": function,
                "kernels": "gemm" }),
        json!({ "total_ns": 20_000, "share_percent": 20.0, "count": 1, "line": "[no line]", "function": "",
                "kernels": "add" }),
    ];
    assert_eq!(top(&folder, "lines.gfr"), expected);
    let text = gpuflame(&folder, ["top", "lines.gfr", "--by", "line", "-n", "1"]).ok().stdout;
    assert!(text.contains("/srv/model.py:12") && !text.contains("model.py:13"), "{text}");
}

#[test]
fn python_functions_in_a_trace_provide_source_lines() {
    let folder = scratch("lines");
    let mut trace = Trace::default();
    trace.python("/srv/train.py(3): main", 1, 0, 100).python("/srv/model.py(12): forward", 1, 1, 50);
    trace.python("nn.Module: Linear_0", 1, 2, 40).launch(1, "gemm", 1, 4, 10, 40);
    trace.launch(2, "relu", 1, 60, 70, 90).launch(3, "alone", 2, 60, 100, 110);
    trace.write(&folder.join("trace.json"));
    let rows = top(&folder, "trace.json");
    let lines: Vec<_> =
        rows.iter().map(|row| (row["line"].as_str().unwrap(), row["total_ns"].as_u64().unwrap())).collect();
    assert_eq!(lines, [("/srv/model.py:12", 30_000), ("/srv/train.py:3", 20_000), ("[no line]", 10_000)]);
    assert_eq!(rows[0]["kernels"], "gemm");
}

/// Returns language, file and line of each row after `lines.gfr` is converted to an Arrow table.
fn arrow_places(folder: &Path) -> Vec<String> {
    gpuflame(folder, ["-q", "convert", "lines.gfr", "--to", "arrow", "-o", "lines.arrow"]).ok();
    let file = fs::File::open(folder.join("lines.arrow")).unwrap();
    let mut places = Vec::new();
    for batch in FileReader::try_new(file, None).unwrap() {
        let batch = batch.unwrap();
        let column = |name| batch.column_by_name(name).unwrap();
        let text = |name, row| {
            let column = column(name).as_dictionary::<Int32Type>();
            column.key(row).map_or("", |key| column.values().as_string::<i32>().value(key))
        };
        let lines = column("line").as_primitive::<Int32Type>();
        for (row, line) in lines.iter().enumerate() {
            let line = line.map_or_else(String::new, |line| line.to_string());
            places.push(format!("{},{},{line}", text("language", row), text("file", row)));
        }
    }
    places
}

/// Returns language, file and line of each row after `lines.gfr` is converted to a Parquet table.
fn parquet_places(folder: &Path) -> Vec<String> {
    gpuflame(folder, ["-q", "convert", "lines.gfr", "--to", "parquet", "-o", "lines.parquet"]).ok();
    let file = fs::File::open(folder.join("lines.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let text = |field: &Field| match field {
        Field::Null => String::new(),
        Field::Str(text) => text.clone(),
        Field::Int(number) => number.to_string(),
        other => panic!("{other}"),
    };
    let place = |row: parquet::record::Row| {
        let columns = ["language", "file", "line"]
            .map(|name| text(row.get_column_iter().find(|(column, _)| *column == name).unwrap().1));
        columns.join(",")
    };
    reader.get_row_iter(None).unwrap().map(|row| place(row.unwrap())).collect()
}

#[test]
fn source_files_and_lines_are_exported() {
    let folder = scratch("lines");
    fs::write(folder.join("lines.gfr"), recording()).unwrap();
    gpuflame(&folder, ["-q", "convert", "lines.gfr", "-o", "lines.csv"]).ok();
    let stacks = fs::read_to_string(folder.join("lines.stacks.csv")).unwrap();
    let places: Vec<_> =
        stacks.lines().map(|line| line.split(',').skip(8).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(places, ["language,file,line", "Python,/srv/model.py,12", "Python,/srv/model.py,13", ",,"]);
    // The printed table has a row for each kernel, sorted by time.
    let [twelve, thirteen] = ["Python,/srv/model.py,12", "Python,/srv/model.py,13"];
    let of_kernels = [twelve, twelve, thirteen, ",,", twelve, twelve];
    assert_eq!(arrow_places(&folder), of_kernels);
    assert_eq!(parquet_places(&folder), of_kernels);
    let ran = gpuflame(&folder, ["convert", "lines.gfr", "--to", "speedscope"]).ok();
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let frames = json["shared"]["frames"].as_array().unwrap();
    for frame in [
        json!({ "name": "Block.forward (model.py:12)", "file": "/srv/model.py", "line": 12 }),
        json!({ "name": "main (train.py:3)", "file": "/srv/train.py", "line": 3 }),
        json!({ "name": "native" }),
    ] {
        assert!(frames.contains(&frame), "{frame}: {frames:?}");
    }
}

/// When gpuflame reads its own export, Python functions must not count as native code, although they have file names
/// like native functions.
#[test]
fn python_functions_stay_python_after_export_and_reimport() {
    let folder = scratch("lines");
    fs::write(folder.join("lines.gfr"), recording()).unwrap();
    let python = |file: &str| gpuflame(&folder, ["flamegraph", file, "--python", "only"]).ok().stdout;
    let of = |file| python(file).lines().map(|line| line.replace(" (model.py:12)", "")).collect::<Vec<_>>();
    let before = of("lines.gfr");
    assert!(
        before.iter().any(|line| line.starts_with("main (train.py:3);Block.forward;cudaLaunchKernel;")),
        "{before:?}"
    );
    for file in ["again.sbt", "again.json"] {
        gpuflame(&folder, ["-q", "convert", "lines.gfr", "-o", file]).ok();
        assert_eq!(of(file), before, "{file}");
    }
}

/// Returns the fields of a protobuf message. Each field consists of its field number, its value if it is a number, and
/// its bytes if it is a text or a message. This reader follows the documentation of protobuf's encoding, and shares no
/// code with gpuflame's writer.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let (number, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        number.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let (number, text) = match tag & 7 {
            0 => (varint(&mut bytes), &b""[..]),
            1 => (0, bytes.split_off(..8).unwrap()),
            2 => {
                let length = varint(&mut bytes) as usize;
                (0, bytes.split_off(..length).unwrap())
            }
            5 => (0, bytes.split_off(..4).unwrap()),
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, number, text));
    }
    found
}

/// Returns the messages or texts in the field `number` of a message.
fn parts(message: &[u8], number: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|(field, ..)| *field == number).map(|(.., bytes)| bytes).collect()
}

/// Returns the number in the field `number` of a message; 0 if the field is missing.
fn number(message: &[u8], number: u64) -> u64 {
    fields(message).into_iter().find(|(field, ..)| *field == number).map_or(0, |(_, value, _)| value)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// In pprof's `profile.proto`, locations (field 4) have lines (field 4), and lines have functions (field 5). Names
/// (field 2) and files (field 4) of functions are indices into a string table (field 6).
#[test]
fn pprof_contains_the_files_and_lines_of_python_functions() {
    let folder = scratch("lines");
    fs::write(folder.join("lines.gfr"), recording()).unwrap();
    gpuflame(&folder, ["-q", "convert", "lines.gfr", "-o", "lines.pb.gz"]).ok();
    let mut profile = Vec::new();
    let file = fs::File::open(folder.join("lines.pb.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut profile).unwrap();
    let texts: Vec<String> = parts(&profile, 6).into_iter().map(text).collect();
    let functions = parts(&profile, 5);
    let mut places: Vec<_> = parts(&profile, 4)
        .into_iter()
        .map(|location| {
            let line = parts(location, 4)[0];
            let function = functions.iter().find(|function| number(function, 1) == number(line, 1)).unwrap();
            let [name, file] = [2, 4].map(|field| texts[number(function, field) as usize].as_str());
            (name, file, number(line, 2))
        })
        .filter(|(_, file, _)| !file.is_empty())
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            ("Block.forward (model.py:12)", "/srv/model.py", 12),
            ("Block.forward (model.py:12)", "/srv/model.py", 13),
            ("main (train.py:3)", "/srv/train.py", 3),
        ]
    );
}

/// In Perfetto's `trace.proto`, packets (field 1) have interned data (field 12) with source locations (field 4). A
/// source location has a file (field 2), a function (field 3) and a line (field 4).
#[test]
fn perfetto_contains_the_files_and_lines_of_python_functions() {
    let folder = scratch("lines");
    fs::write(folder.join("lines.gfr"), recording()).unwrap();
    gpuflame(&folder, ["-q", "convert", "lines.gfr", "-o", "lines.pftrace"]).ok();
    let trace = fs::read(folder.join("lines.pftrace")).unwrap();
    let interned = parts(&trace, 1).into_iter().flat_map(|packet| parts(packet, 12));
    let mut places: Vec<_> = interned
        .flat_map(|interned| parts(interned, 4))
        .map(|place| (text(parts(place, 2)[0]), text(parts(place, 3)[0]), number(place, 4)))
        .collect();
    places.sort_unstable();
    places.dedup();
    let expected =
        [12, 13].map(|line| ("/srv/model.py".to_owned(), "Block.forward (model.py:12)".to_owned(), line));
    assert_eq!(places, expected, "locations of the calling functions");
}

#[test]
fn lines_of_user_code_are_preferred_to_lines_of_wrappers() {
    let folder = scratch("lines");
    let mut trace = Trace::default();
    // In the stack of the first launch, a frame of user code is between frames of PyTorch. The stack of the second
    // launch has only frames of PyTorch.
    trace.python("torch/nn/modules/module.py(1501): _call_impl", 1, 0, 50);
    trace.python("/srv/model.py(12): forward", 1, 1, 49);
    trace.python("torch/nn/modules/linear.py(113): forward", 1, 2, 48).launch(1, "gemm", 1, 4, 10, 40);
    trace.python("/usr/lib/python3/dist-packages/torch/optim/adam.py(7): step", 1, 60, 80);
    trace.launch(2, "adam", 1, 62, 70, 90);
    trace.write(&folder.join("trace.json"));
    let rows = top(&folder, "trace.json");
    let lines: Vec<_> = rows.iter().map(|row| row["line"].as_str().unwrap()).collect();
    assert_eq!(lines, ["/srv/model.py:12", "/usr/lib/python3/dist-packages/torch/optim/adam.py:7"]);
}

#[test]
fn functions_can_be_summed_without_their_callers() {
    let folder = scratch("lines");
    let mut trace = Trace::default();
    trace.python("/srv/train.py(3): main", 1, 0, 100).python("/srv/model.py(12): forward", 1, 1, 50);
    trace.launch(1, "gemm", 1, 4, 10, 40).launch(2, "relu", 1, 60, 70, 90);
    trace.write(&folder.join("trace.json"));
    let sums = |options: &[&str]| -> Vec<(String, u64)> {
        let arguments = ["top", "trace.json", "--by", "function", "-n", "0", "-f", "json"];
        let ran = gpuflame(&folder, arguments.iter().chain(options)).ok();
        let tables: Value = serde_json::from_str(&ran.stdout).unwrap();
        let rows = tables["function"].as_array().unwrap();
        // The trace contains no CPU samples, so all CPU columns are empty.
        assert!(rows.iter().all(|row| row["cpu_ns"].is_null() && row["waiting_ns"].is_null()));
        rows.iter()
            .map(|row| (row["function"].as_str().unwrap().to_owned(), row["gpu_ns"].as_u64().unwrap()))
            .collect()
    };
    let expected = [("/srv/model.py(12): forward", 30_000), ("/srv/train.py(3): main", 20_000)];
    assert_eq!(sums(&["--self"]), expected.map(|(function, nanos)| (function.to_owned(), nanos)));
    assert!(sums(&[]).contains(&("/srv/train.py(3): main".to_owned(), 50_000)));
}
