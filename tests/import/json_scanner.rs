//! Compares the JSON scanner with `serde_json`, on unusual input and with read buffers of every size.

use std::fs;
use std::path::{Path, PathBuf};

use gpuflame_traces::import::json::{JsonOptions, read};
use gpuflame_traces::import::{
    self, CpuKind, Event, Fork, Id, Kind, Opened, Options, ReadCounts, Sink, Wants,
};
use serde_json::{Value, json};

const READING: JsonOptions = JsonOptions { buffer: 1 << 16, accept_cut: false };

/// A sink for the scanner that stores every trace event as a line of text.
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

fn scanned(text: &[u8]) -> Result<(ReadCounts, Vec<String>), String> {
    let mut lines = Lines::default();
    let seen = read(text, READING, &mut lines).map_err(|error| error.to_string())?;
    Ok((seen, lines.0))
}

/// Scans a trace with one event. Returns the line that the sink stores for this event.
fn one(event: &str) -> String {
    let (seen, mut lines) = scanned(format!("{{\"traceEvents\": [{event}]}}").as_bytes()).unwrap();
    assert_eq!((seen.events, lines.len()), (1, 1), "{event}: {lines:?}");
    lines.remove(0)
}

/// Returns `{"key": value, …}` with the fields in random order.
fn object(fields: &[(&str, &str)], random: &mut Random) -> String {
    let mut fields = fields.to_vec();
    for from in (1..fields.len()).rev() {
        fields.swap(from, random.below(from + 1));
    }
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

#[test]
fn all_dialects_give_the_same_operations_in_any_order_of_keys() {
    /// A dialect of trace events: its name, its fields, its arguments, and the line that the sink must store.
    type Dialect<'a> =
        (&'static str, Vec<(&'static str, &'static str)>, &'a [(&'static str, &'static str)], &'static str);
    const X: (&str, &str) = ("ph", "\"X\"");
    const NAME: (&str, &str) = ("name", "\"gemm\"");
    const PLACE: [(&str, &str); 2] = [("device", "0"), ("stream", "7")];
    let paddle = [
        ("start_time", "\"5000.250 us\""),
        ("end_time", "\"5012.250 us\""),
        ("correlation id", "9"),
        PLACE[0],
        PLACE[1],
    ];
    let kineto = [("correlation", "9"), ("External id", "4"), PLACE[0], PLACE[1], ("grid", "[1, 2, 3]")];
    let old = [("correlation", "9"), ("external id", "4"), PLACE[0], PLACE[1]];
    let hip =
        [("correlation", "9"), ("External id", "4"), ("cid", "1"), ("kind", "\"x\""), PLACE[0], PLACE[1]];
    let eunomia = [("correlationId", "9"), ("deviceId", "0"), ("streamId", "7"), ("grid", "[1, 1, 1]")];
    let cut = "op Kernel \"gemm\" 5000250..5012250 pNone dSome(0) sSome(7) cSome(9)";
    let whole = "op Kernel \"gemm\" 5000000..5012000 pNone dSome(0) sSome(7) cSome(9)";
    let dialects: [Dialect<'_>; 8] = [
        (
            "Paddle",
            vec![
                ("cat", "\"Kernel\""),
                ("pid", "0"),
                ("tid", "\"7(C++)\""),
                ("ts", "5000"),
                ("dur", "12.000"),
            ],
            &paddle,
            cut,
        ),
        (
            "Kineto 2021",
            vec![("cat", "\"Kernel\""), ("pid", "0"), ("tid", "\"stream 7\""), ("ts", "5000"), ("dur", "12")],
            &old,
            whole,
        ),
        (
            "Kineto 2022",
            vec![("cat", "\"kernel\""), ("pid", "0"), ("tid", "7"), ("ts", "5000"), ("dur", "12")],
            &kineto,
            whole,
        ),
        (
            "Kineto 2024",
            vec![("cat", "\"kernel\""), ("pid", "0"), ("tid", "7"), ("ts", "5000.250"), ("dur", "12.000")],
            &kineto,
            cut,
        ),
        (
            "Kineto ROCm",
            vec![("cat", "\"kernel\""), ("pid", "0"), ("tid", "7"), ("ts", "5000.25"), ("dur", "12.0")],
            &hip,
            cut,
        ),
        (
            "eunomia",
            vec![
                ("cat", "\"GPU_Kernel\""),
                ("pid", "\"Device_0\""),
                ("tid", "\"GPU0_Stream7\""),
                ("ts", "5000.0"),
                ("dur", "12.0"),
            ],
            &eunomia,
            whole,
        ),
        (
            "Ascend",
            vec![
                ("cat", "\"kernel\""),
                ("pid", "0"),
                ("tid", "7"),
                ("ts", "\"5000.250\\t\""),
                ("dur", "\"12\""),
            ],
            &kineto,
            cut,
        ),
        (
            "MTIA",
            vec![("cat", "\"mtia_ccp_events\""), ("pid", "0"), ("tid", "-7"), ("ts", "5000"), ("dur", "12")],
            &old,
            "Other",
        ),
    ];
    let mut random = Random(1);
    for (dialect, fields, args, expected) in &dialects {
        for round in 0..200 {
            let name = if *dialect == "eunomia" { ("name", "\"Kernel: gemm\"") } else { NAME };
            let args = object(args, &mut random);
            let mut fields = fields.clone();
            fields.extend([X, name, ("args", &*args)]);
            let event = object(&fields, &mut random);
            assert!(one(&event).starts_with(expected), "{dialect}, {round}: {event}: {}", one(&event));
        }
    }
}

#[test]
fn times_in_paddles_arguments_replace_its_truncated_ts() {
    let event = r#"{"name": "gemm[0.012 ms]", "pid": 0, "tid": "stream 7(C++)", "ts": 12, "dur": 12.345, "ph": "X", "cat": "Kernel", "args": {"start_time": "12.999 us", "end_time": "25.344 us", "device": 0, "stream": 7, "correlation id": 3}}"#;
    assert!(one(event).starts_with("op Kernel \"gemm[0.012 ms]\" 12999..25344 "));
}

#[test]
fn of_two_equal_keys_the_last_value_counts() {
    let event = r#"{"args": {"correlation": 1, "correlation": 2, "device": 0}, "dur": 2, "ts": 1, "ts": 3, "name": "a", "cat": "kernel", "ph": "B", "ph": "X"}"#;
    assert!(one(event).contains("3000..5000") && one(event).contains("cSome(2)"));
    let escaped = r#"{"\u0070h": "X", "c\u0061t": "kern\u0065l", "name": "a\"b\\", "ts": 1, "dur": 1}"#;
    assert!(one(escaped).starts_with("op Kernel \"a\\\"b\\\\\" 1000..2000"), "{}", one(escaped));
}

/// Returns a kernel event in which the text `from` has been replaced by the text `to`.
fn kernel(from: &str, to: &str) -> String {
    let event = r#"{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1, "args": {"correlation": 1}}"#;
    assert!(event.contains(from), "{from}");
    event.replace(from, to)
}

/// Returns the number of trace events and the number of GPU operations in `text`.
fn counted(text: &str) -> (u64, usize) {
    let (seen, lines) = scanned(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text:.200}"));
    (seen.events, lines.iter().filter(|line| line.starts_with("op ")).count())
}

#[test]
fn a_bare_array_may_lack_its_closing_bracket() {
    let op = kernel("", "");
    for (text, events) in
        [(format!("[{op}]"), 1), (format!("[{op},{op}"), 2), (format!("[{op},\n"), 1), ("[]".to_owned(), 0)]
    {
        assert_eq!(counted(&text), (events, events as usize), "{text}");
    }
}

#[test]
fn trace_events_may_come_anywhere_among_other_keys() {
    let op = kernel("", "");
    let text =
        format!("\u{feff} {{\"a\": [{op}, {{}}], \"traceEvents\": [{op}], \"z\": {{\"traceEvents\": 1}}}}\n");
    assert_eq!(counted(&text), (1, 1));
    let metadata = format!("\"long\": [{}]", ["{\"id\": 0, \"name\": \"V100\"}"; 9000].join(","));
    assert_eq!(counted(&format!("{{{metadata}, \"traceEvents\": [{op}], {metadata}}}")), (1, 1));
    assert_eq!(counted("{\"traceEvents\": []}"), (0, 0));
}

#[test]
fn empty_objects_and_nulls_are_counted_as_non_events() {
    let op = kernel("", "");
    assert_eq!(counted(&format!("{{\"traceEvents\": [{op}, {{}}]}}")), (2, 1));
    assert_eq!(counted(&format!("{{\"traceEvents\": [{{}}, null, {op},]}}")), (3, 1));
}

#[test]
fn control_bytes_in_a_name_are_kept() {
    assert!(one(&kernel("\"a\"", "\"a\n\u{1}\tb\"")).starts_with("op Kernel \"a\\n\\u{1}\\tb\" "));
}

#[test]
fn invalid_utf8_is_shown_as_escaped_bytes() {
    let text = b"[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"a\xff\", \"ts\": 1, \"dur\": 1}]";
    assert!(scanned(text).unwrap().1[0].starts_with("op Kernel \"a\\\\xff\""));
}

#[test]
fn times_may_be_text_or_zero_or_negative() {
    for (ts, start) in [("\"7.5\"", 7500), ("\" 7.5 us\"", 7500), ("0", 0), ("-3", -3000), ("1e3", 1_000_000)]
    {
        let line = one(&kernel("\"ts\": 1", &format!("\"ts\": {ts}")));
        assert!(line.starts_with(&format!("op Kernel \"a\" {start}..{} ", start + 1000)), "{ts}: {line}");
    }
}

#[test]
fn an_event_whose_time_is_not_a_number_is_skipped_and_counted() {
    let op = kernel("", "");
    for odd in [
        "\"ts\": NaN",
        "\"ts\": -Infinity",
        "\"ts\": null",
        "\"ts\": 1e99",
        "\"ts\": {\"a\": 1}",
        "\"ts\": \"\"",
    ] {
        let text = format!("[{}, {op}]", kernel("\"ts\": 1", odd));
        assert_eq!(counted(&text), (2, 1), "{odd}");
        assert_eq!(scanned(text.as_bytes()).unwrap().0.untimed, 1, "{odd}");
    }
    assert_eq!(counted(&format!("[{}, {op}]", kernel("\"dur\": 1", "\"dur\": inf"))), (2, 1));
}

#[test]
fn a_name_may_be_larger_than_the_buffer() {
    let huge = "x\\\"y".repeat(1 << 20);
    let (_, lines) = scanned(format!("[{}]", kernel("\"a\"", &format!("\"{huge}\""))).as_bytes()).unwrap();
    assert_eq!(lines[0].matches("x\\\"y").count(), 1 << 20);
}

#[test]
fn values_may_be_nested_100000_levels_deep() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let op = kernel("\"correlation\"", &format!("\"deep\": {deep}, \"correlation\""));
    assert!(one(&op).contains("cSome(1)"));
}

#[test]
fn an_invalid_correlation_id_is_ignored() {
    for id in ["-1", "0", "null", "1.5", "99999999999999999999", "\"x\"", "[7]"] {
        assert!(
            one(&kernel("\"correlation\": 1", &format!("\"correlation\": {id}"))).contains("cNone"),
            "{id}"
        );
    }
    assert!(one(&kernel("\"correlation\": 1", "\"correlation\": 18446744071562067968")).contains("cNone"));
}

#[test]
fn a_syntax_error_gives_its_position_and_the_expected_syntax() {
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
        ("{\"name\": \"say \"hi\"\"}]}", at + 15, "a `,` or a `}`"),
    ] {
        let message = scanned(format!("{sound}{rest}").as_bytes()).unwrap_err();
        assert!(
            message.contains(&format!("at byte {place}, expected")) && message.contains(what),
            "{rest}: {message}"
        );
        let advice = format!("remove what follows the first {place} bytes");
        assert_eq!(message.contains(&advice), what == "the end of the file", "{message}");
    }
    for length in 1..at {
        let message = scanned(&sound.as_bytes()[..length]).unwrap_err();
        assert!(message.contains(&format!("truncated at byte {length}")), "{length}: {message}");
    }
    assert!(scanned(b"{\"nodes\": []}").unwrap_err().contains("without `traceEvents`"));
}

#[test]
fn a_truncated_file_is_read_up_to_its_last_complete_event_on_request() {
    let op = r#"{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1}"#;
    let text = format!("{{\"traceEvents\": [{op}, {op}, {}", &op[..20]);
    let mut lines = Lines::default();
    let seen = read(text.as_bytes(), JsonOptions { accept_cut: true, ..READING }, &mut lines).unwrap();
    assert_eq!((seen.events, lines.0.len()), (2, 2));
    assert_eq!(seen.truncated_at, Some((text.len() - 20) as u64));
}

/// Returns a GPU operation as `serde_json` reads it, in the format of [`Lines`].
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

/// A generator of pseudo-random numbers, each below a given bound.
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
fn mutated_events_are_read_as_serde_json_reads_them() {
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
        // Only whole numbers can be compared, because `serde_json` reads fractions as `f64`.
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

/// Writes a trace file with a size of 12 MB. Strings in the file contain misleading brackets, and text that looks like
/// events.
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
fn the_result_does_not_depend_on_buffer_size_or_threads() {
    let (path, expected) = large("threads");
    for buffer in [1 << 10, 64 << 10, (64 << 10) + 1, 1 << 20, 8 << 20] {
        for threads in [1, 2, 3, 5] {
            let options = Options { buffer, threads, ..Options::default() };
            let (mut lines, mut in_order) = (Lines::default(), Lines::default());
            let seen = opened(&path).read_parallel(&options, &mut lines).unwrap();
            assert_eq!(
                (seen.events, seen.bytes),
                (40_000, path.metadata().unwrap().len()),
                "{buffer} {threads}"
            );
            assert!(lines.0 == expected, "{buffer} bytes, {threads} threads: another result");
            assert_eq!(opened(&path).read(&options, &mut in_order).unwrap(), seen, "{buffer} {threads}");
            assert!(in_order.0 == expected, "{buffer} bytes, {threads} threads, in order: another result");
        }
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn the_error_for_a_damaged_file_does_not_depend_on_threads() {
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
        assert!(one.1 == two.1 || one.0.is_err(), "another result before the damage at {at}");
        let mut lines = Lines::default();
        let in_order = opened(&path).read(&Options::default(), &mut lines);
        assert_eq!(in_order.map_err(|error| error.to_string()), one.0);
        assert!(one.1 == lines, "another result before the damage at {at}, in order");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn gzip_is_detected_by_its_magic_number_and_gives_the_same_events() {
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
    for buffer in [64 << 10, (64 << 10) + 1, 8 << 20] {
        let mut lines = Lines::default();
        opened(&packed).read_parallel(&Options { buffer, ..Options::default() }, &mut lines).unwrap();
        assert!(lines.0 == expected, "{buffer} bytes: another result");
    }
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let message = opened(&packed).read(&Options::default(), &mut Lines::default()).unwrap_err().to_string();
    let place = format!("the gzip data is truncated at byte {} of the file", bytes.len() / 2);
    assert!(message.contains(&place), "{message}");
    fs::remove_file(path).unwrap();
    fs::remove_file(packed).unwrap();
}

#[test]
fn events_larger_than_an_inflated_block_are_read() {
    let mut text = String::from("[");
    for size in [0, 100, 33_000, 70_000, 40, 300_000, 1_000_000, 5, 31 << 10] {
        let fat = "x]".repeat(size / 2);
        text.push_str(&format!(
            "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{fat}\", \"ts\": {size}, \"dur\": 1, \"args\": {{}}}},"
        ));
    }
    text.push_str("{}]");
    let (_, expected) = scanned(text.as_bytes()).unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fat-{}.json.gz", std::process::id()));
    let mut out =
        flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
    out.finish().unwrap();
    for buffer in [4 << 10, 64 << 10, (64 << 10) + 1, 1 << 20, 8 << 20] {
        let mut lines = Lines::default();
        let seen = opened(&path).read(&Options { buffer, ..Options::default() }, &mut lines).unwrap();
        assert_eq!((seen.events, seen.bytes), (10, text.len() as u64), "{buffer}");
        assert!(lines.0 == expected, "{buffer} bytes: another result");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn steps_are_recognised_by_name_and_category() {
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
