//! The scanner of JSON traces beside `serde_json`, on peculiar input, and with buffers of any size.

use std::fs;
use std::path::{Path, PathBuf};

use gpuflame::import::json::{Reading, read};
use gpuflame::import::{self, CpuKind, Event, Fork, Id, Kind, Opened, Options, Seen, Sink, Wants};
use serde_json::{Value, json};

const READING: Reading = Reading { buffer: 1 << 16, accept_cut: false };

/// Every event as a line.
#[derive(Clone, Debug, Default, PartialEq)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn wants(&self) -> Wants {
        Wants::ALL.and(Wants::OTHER)
    }

    fn event(&mut self, event: &Event<'_>) {
        self.0.push(match event {
            Event::Op(op) => format!(
                "op {:?} {:?} {}..{} p{:?} d{:?} s{:?} c{:?} e{:?} b{}",
                op.kind,
                op.name,
                op.start,
                op.end,
                op.process,
                op.device,
                op.stream,
                op.correlation,
                op.external,
                op.bytes
            ),
            other => format!("{other:?}"),
        });
    }
}

impl Fork for Lines {
    fn fork(&self) -> Self {
        Self::default()
    }

    fn join(&mut self, later: Self) {
        self.0.extend(later.0);
    }
}

fn scanned(text: &[u8]) -> Result<(Seen, Vec<String>), String> {
    let mut lines = Lines::default();
    let seen = read(text, READING, &mut lines).map_err(|error| error.to_string())?;
    Ok((seen, lines.0))
}

/// The operations of one event.
fn one(event: &str) -> String {
    let (seen, mut lines) = scanned(format!("{{\"traceEvents\": [{event}]}}").as_bytes()).unwrap();
    assert_eq!((seen.events, lines.len()), (1, 1), "{event}: {lines:?}");
    lines.remove(0)
}

#[test]
fn seven_dialects_say_the_same() {
    let kineto = |category: &str, args: &str, ts: &str, dur: &str| {
        one(&format!(
            r#"{{"ph": "X", "cat": "{category}", "name": "gemm", "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur}, "args": {{"device": 0, "stream": 7, {args}}}}}"#
        ))
    };
    let expected = "op Kernel \"gemm\" 5000000..5012000 pNone dSome(0) sSome(7) cSome(9) eNone b0";
    assert_eq!(
        kineto(
            "Kernel",
            "\"correlation id\": 9, \"start_time\": \"5000.000 us\", \"end_time\": \"5012.000 us\"",
            "5000",
            "12.0"
        ),
        expected
    );
    assert_eq!(kineto("Kernel", "\"correlation\": 9", "5000", "12"), expected);
    assert_eq!(kineto("kernel", "\"correlation\": 9", "5000", "12"), expected);
    assert_eq!(kineto("kernel", "\"correlation\": 9", "5000.000", "12.000"), expected);
    assert_eq!(kineto("kernel", "\"correlation\": 9", "\"5000.000\t\"", "\"12\""), expected);
    let eunomia = r#"{"name": "Kernel: gemm", "ph": "X", "ts": 5000.0, "dur": 12.0, "tid": "GPU0_Stream7", "pid": "Device_0", "cat": "GPU_Kernel", "args": {"deviceId": 0, "streamId": 7, "correlationId": 9}}"#;
    assert_eq!(one(eunomia), expected);
    let mtia = one(r#"{"ph": "X", "cat": "mtia_ccp_events", "name": "x", "ts": 1, "dur": 1}"#);
    assert_eq!(mtia, "Other");
}

#[test]
fn paddles_arguments_are_exact_where_its_ts_is_cut() {
    let event = r#"{"name": "gemm[0.012 ms]", "pid": 0, "tid": "stream 7(C++)", "ts": 12, "dur": 12.345, "ph": "X", "cat": "Kernel", "args": {"start_time": "12.999 us", "end_time": "25.344 us", "device": 0, "stream": 7, "correlation id": 3}}"#;
    assert!(one(event).starts_with("op Kernel \"gemm[0.012 ms]\" 12999..25344 "));
}

#[test]
fn keys_come_in_any_order_and_the_last_of_two_counts() {
    let event = r#"{"args": {"correlation": 1, "correlation": 2, "device": 0}, "dur": 2, "ts": 1, "ts": 3, "name": "a", "cat": "kernel", "ph": "B", "ph": "X"}"#;
    assert!(one(event).contains("3000..5000") && one(event).contains("cSome(2)"));
    let escaped = r#"{"\u0070h": "X", "c\u0061t": "kern\u0065l", "name": "a\"b\\", "ts": 1, "dur": 1}"#;
    assert!(one(escaped).starts_with("op Kernel \"a\\\"b\\\\\" 1000..2000"), "{}", one(escaped));
}

#[test]
fn peculiar_input_that_somebody_writes_is_read() {
    let op = r#"{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1, "args": {"correlation": 1}}"#;
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let huge = "x".repeat(3 << 20);
    for (text, events, ops) in [
        (format!("[{op}]"), 1, 1),
        (format!("[{op},{op}"), 2, 2),
        (format!("[{op},\n"), 1, 1),
        (
            format!(
                "\u{feff} {{\"a\": [{op}, {{}}], \"traceEvents\": [{op}, {{}}], \"z\": {{\"traceEvents\": 1}}}}\n"
            ),
            2,
            1,
        ),
        (format!("{{\"traceEvents\": [{op}, null, {op},]}}"), 3, 2),
        (r#"{"traceEvents": []}"#.to_owned(), 0, 0),
        (format!("{{\"traceEvents\": [{}]}}", op.replace("\"a\"", "\"a\nb\u{1}\"")), 1, 1),
        (format!("{{\"traceEvents\": [{}]}}", op.replace("\"a\"", &format!("\"{huge}\""))), 1, 1),
        (
            format!(
                "{{\"traceEvents\": [{}]}}",
                op.replace("\"correlation\"", &format!("\"deep\": {deep}, \"correlation\""))
            ),
            1,
            1,
        ),
        (format!("{{\"traceEvents\": [{}, {op}]}}", op.replace("\"ts\": 1", "\"ts\": NaN")), 2, 1),
        (format!("{{\"traceEvents\": [{}, {op}]}}", op.replace("\"dur\": 1", "\"dur\": inf")), 2, 1),
        (format!("{{\"traceEvents\": [{}]}}", op.replace("\"correlation\": 1", "\"correlation\": -1")), 1, 1),
    ] {
        let (seen, lines) = scanned(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {:.200}", text));
        let found = lines.iter().filter(|line| line.starts_with("op ")).count();
        assert_eq!((seen.events, found), (events, ops), "{text:.200}");
    }
    let invalid = b"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"a\xff\", \"ts\": 1, \"dur\": 1}]";
    assert!(scanned(invalid).unwrap().1[0].starts_with("op Kernel \"a\u{fffd}\""));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place_and_reason() {
    let op = r#"{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1}"#;
    let sound = format!("{{\"traceEvents\": [{op}, ");
    let at = sound.len();
    for (rest, place, what) in [
        ("7]}", at, "an event"),
        ("{\"ph\" \"X\"}]}", at + 6, "a `:`"),
        ("{\"ph\": }]}", at + 7, "a value"),
        ("{\"ph\": \"X\" \"ts\": 1}]}", at + 11, "a `,` or a `}`"),
        ("{ph: 1}]}", at + 1, "a key"),
        ("{} {}]}", at + 3, "a `,` or the end of the events"),
        ("{}] []}", at + 4, "a `,` or the trace's `}`"),
        ("{}]}} ", at + 4, "the end of the file"),
    ] {
        let message = scanned(format!("{sound}{rest}").as_bytes()).unwrap_err();
        assert!(
            message.contains(&format!("at byte {place} ")) && message.contains(what),
            "{rest}: {message}"
        );
    }
    for length in 1..at {
        let message = scanned(&sound.as_bytes()[..length]).unwrap_err();
        assert!(message.contains(&format!("cut short at byte {length}")), "{length}: {message}");
    }
    assert!(scanned(b"{\"nodes\": []}").unwrap_err().contains("without `traceEvents`"));
}

#[test]
fn a_cut_file_can_be_taken_as_far_as_it_goes() {
    let op = r#"{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1}"#;
    let text = format!("{{\"traceEvents\": [{op}, {op}, {}", &op[..20]);
    let mut lines = Lines::default();
    let seen = read(text.as_bytes(), Reading { accept_cut: true, ..READING }, &mut lines).unwrap();
    assert_eq!((seen.events, lines.0.len()), (2, 2));
    assert_eq!(seen.cut, Some((text.len() - 20) as u64));
}

/// What `serde_json` makes of an operation, in the words of [`Lines`].
fn expected(event: &Value) -> Option<String> {
    let kind = match event["cat"].as_str()? {
        "kernel" => "Kernel",
        "gpu_memcpy" => "Copy",
        "gpu_memset" => "Set",
        _ => return None,
    };
    if event["ph"] != "X" {
        return None;
    }
    let nanos = |value: &Value| Some(value.as_u64()? * 1000);
    let (start, duration) = (nanos(&event["ts"])?, nanos(&event["dur"])?);
    let id = |key: &str| event["args"][key].as_u64().filter(|&id| id != 0);
    let small = |key: &str| event["args"][key].as_u64().filter(|&id| u32::try_from(id).is_ok());
    let (device, process) = (small("device"), event["pid"].as_i64());
    let process = match process.filter(|&process| device.map(|id| id as i64) != Some(process)) {
        Some(process) => format!("{:?}", Id::Number(process)),
        None => format!("{:?}", Id::None),
    };
    Some(format!(
        "op {kind} {:?} {start}..{} p{process} d{device:?} s{:?} c{:?} e{:?} b{}",
        event["name"].as_str().unwrap_or(""),
        start + duration,
        small("stream"),
        id("correlation"),
        id("External id").or(id("external id")),
        event["args"]["bytes"].as_u64().unwrap_or(0)
    ))
}

/// A generator of numbers below a bound.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

fn any_event(random: &mut Random) -> Value {
    let categories = ["kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "ac2g", "cuda_runtime"];
    let names = ["gemm<float>", "a \"quoted\" \\ name", "{[}]", "\u{e9}\n\t\u{1}", "", "\\", "x\u{1f600}y"];
    json!({
        "ph": "X", "cat": categories[random.below(6)], "name": names[random.below(7)].repeat(1 + random.below(20)),
        "pid": random.below(3), "tid": random.below(9), "ts": random.below(1 << 30), "dur": random.below(1000),
        "args": {
            "External id": random.below(5), "device": random.below(2), "stream": random.below(30),
            "correlation": random.below(1 << 20), "bytes": random.below(4096), "grid": [1, [2, {}], "]}"],
            names[random.below(7)]: names[random.below(7)],
        }
    })
}

#[test]
fn whatever_serde_json_reads_of_mutated_events_is_read_alike() {
    let mut random = Random(7);
    let (mut alike, mut refused) = (0, 0);
    for round in 0..6000 {
        let events: Vec<Value> = (0..1 + random.below(4)).map(|_| any_event(&mut random)).collect();
        let trace = json!({"schemaVersion": 1, "traceEvents": events, "z": {"a": []}});
        let mut text =
            if round % 2 == 0 { trace.to_string() } else { serde_json::to_string_pretty(&trace).unwrap() }
                .into_bytes();
        for _ in 0..round % 4 {
            let at = random.below(text.len());
            match random.below(4) {
                0 => drop(text.remove(at)),
                1 => text.insert(at, b" \"{}[],:\\01e.-\n"[random.below(14)]),
                2 => text[at] = b" \"{}[],:\\01e.-\n"[random.below(14)],
                _ => {
                    let other = random.below(text.len());
                    text.swap(at, other);
                }
            }
        }
        let ours = scanned(&text);
        let Ok(theirs) = serde_json::from_slice::<Value>(&text) else {
            refused += 1;
            continue;
        };
        let Some(events) = theirs["traceEvents"].as_array() else { continue };
        // Only numbers that are whole in both worlds can be compared by serde's.
        let is_plain = |event: &Value| {
            ["ts", "dur"].iter().all(|key| event[*key].as_f64().is_none() || event[*key].is_u64())
        };
        if !events.iter().all(|event| event.is_object() && is_plain(event)) {
            continue;
        }
        let shown = String::from_utf8_lossy(&text);
        let (seen, lines) = ours.unwrap_or_else(|error| panic!("{error}: {shown}"));
        assert_eq!(seen.events, events.len() as u64, "{shown}");
        let ops: Vec<&String> = lines.iter().filter(|line| line.starts_with("op ")).collect();
        let wanted: Vec<String> = events.iter().filter_map(expected).collect();
        if theirs["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .all(|event| event["args"].is_object() && event["pid"].is_u64())
        {
            assert_eq!(ops, wanted.iter().collect::<Vec<_>>(), "{shown}");
            alike += 1;
        }
    }
    assert!(alike > 1000 && refused > 1000, "{alike} compared, {refused} refused: too few to say anything");
}

/// A trace of 12 MB in a file, with brackets and event-like text where they mislead.
fn large(name: &str) -> (PathBuf, Vec<String>) {
    let mut random = Random(3);
    let mut text = String::from("{\"schemaVersion\": 1, \"traceEvents\": [\n");
    for at in 0..40_000 {
        let mut event = any_event(&mut random);
        if at % 7 == 0 {
            event["args"]["trap"] =
                json!("}, {\"ph\": \"X\", \"cat\": \"kernel\", \"ts\": 1, \"dur\": 1}, {");
            event["args"]["events"] = json!([{"ph": "X"}, {"ph": "X", "cat": "kernel"}, {"ph": "X"}]);
        }
        let written =
            if at % 2 == 0 { event.to_string() } else { serde_json::to_string_pretty(&event).unwrap() };
        text.push_str(&written);
        text.push_str(if at == 39_999 { "\n" } else { ",\n" });
    }
    text.push_str("], \"traceName\": \"large\"}");
    let (_, lines) = scanned(text.as_bytes()).unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.json", std::process::id()));
    fs::write(&path, text).unwrap();
    (path, lines)
}

fn opened(path: &Path) -> Opened {
    let opened = import::open(path).unwrap();
    assert_eq!(opened.kind(), Kind::Chrome);
    opened
}

#[test]
fn any_buffer_and_any_number_of_threads_give_the_same() {
    let (path, expected) = large("threads");
    for buffer in [1 << 10, 64 << 10, (64 << 10) + 1, 1 << 20, 8 << 20] {
        for threads in [1, 2, 3, 5] {
            let options = Options { buffer, threads, ..Options::default() };
            let mut lines = Lines::default();
            let seen = opened(&path).read_parallel(&options, &mut lines).unwrap();
            assert_eq!(
                (seen.events, seen.bytes),
                (40_000, path.metadata().unwrap().len()),
                "{buffer} {threads}"
            );
            assert!(lines.0 == expected, "{buffer} bytes, {threads} threads: another result");
        }
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_damaged_anywhere_is_refused_alike_by_any_number_of_threads() {
    let (path, _) = large("damaged");
    let text = fs::read(&path).unwrap();
    let mut random = Random(11);
    for _ in 0..12 {
        let mut broken = text.clone();
        let at = random.below(broken.len());
        broken.truncate(at);
        fs::write(&path, &broken).unwrap();
        let read = |threads| {
            let mut lines = Lines::default();
            let options = Options { threads, ..Options::default() };
            let ended = opened(&path).read_parallel(&options, &mut lines);
            (ended.map_err(|error| error.to_string()), lines)
        };
        let (one, two) = (read(1), read(2));
        assert_eq!(one.0, two.0);
        assert!(one.1 == two.1 || one.0.is_err(), "another result before the cut at {at}");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn gzip_is_told_by_its_magic_and_read_alike() {
    let (path, expected) = large("gzip");
    let packed = path.with_extension("dat");
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut out, &fs::read(&path).unwrap()).unwrap();
    let bytes = out.finish().unwrap();
    fs::write(&packed, &bytes).unwrap();
    let mut lines = Lines::default();
    let gzip = opened(&packed);
    assert!(gzip.is_compressed());
    gzip.read_parallel(&Options::default(), &mut lines).unwrap();
    assert!(lines.0 == expected);
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let message = opened(&packed).read(&Options::default(), &mut Lines::default()).unwrap_err().to_string();
    assert!(message.contains("gzip data is cut short or damaged"), "{message}");
    fs::remove_file(path).unwrap();
    fs::remove_file(packed).unwrap();
}

#[test]
fn steps_are_told_by_name_and_category() {
    for (category, name, kind) in [
        ("ProfileStep", "ProfileStep#3[15.2 ms]", CpuKind::Step),
        ("Operator", "ProfilerStep#3", CpuKind::Step),
        ("user_annotation", "ProfilerStep#3", CpuKind::Step),
        ("user_annotation", "forward", CpuKind::Range),
        ("cpu_op", "aten::mm", CpuKind::Operator),
    ] {
        struct Kinds(Vec<CpuKind>);
        impl Sink for Kinds {
            fn event(&mut self, event: &Event<'_>) {
                if let Event::Cpu(op) = event {
                    self.0.push(op.kind);
                }
            }
        }
        let mut kinds = Kinds(Vec::new());
        let event = format!(r#"[{{"ph": "X", "cat": "{category}", "name": "{name}", "ts": 1, "dur": 2}}]"#);
        read(event.as_bytes(), READING, &mut kinds).unwrap();
        assert_eq!(kinds.0, [kind], "{category} {name}");
    }
}
