//! Tests values in a JSON trace that must be unchanged in outputs: correlation ids, kinds of copies and memory, and
//! names.

use std::fs;

use parquet::file::reader::SerializedFileReader;
use parquet::record::Row;
use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;

fn copy(name: &str, id: u64, ts: u64, more: Value) -> [Value; 2] {
    let mut args = json!({"correlation": id, "device": 0, "stream": 7, "context": 1, "bytes": 4096});
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    [
        json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 9, "tid": 9, "ts": ts, "dur": 5,
            "args": {"correlation": id}}),
        json!({"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, "ts": ts + 10, "dur": 50,
            "args": args}),
    ]
}

/// Returns the cells of a column of a CSV file.
fn column(csv: &str, name: &str) -> Vec<String> {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let at = reader.headers().unwrap().iter().position(|column| column == name).unwrap();
    reader.records().map(|row| row.unwrap()[at].to_owned()).collect()
}

#[test]
fn correlation_ids_and_memory_kinds_are_shown_as_the_file_has_them() {
    let folder = scratch("ids");
    let ids = [1_766_912_u64, 5_000_000_000, 1_766_913];
    let names = [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoD (Device -> Device)",
    ];
    let mut events: Vec<Value> = Vec::new();
    for (at, (id, name)) in ids.into_iter().zip(names).enumerate() {
        events.extend(copy(name, id, 1000 + 100 * at as u64, json!({})));
    }
    // If the launch of GPU work is not in the trace, the GPU work nevertheless keeps its correlation id. If GPU work
    // has no correlation id, it is shown without one.
    events.push(
        json!({"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7, "ts": 2000,
        "dur": 5, "args": {"correlation": 77, "device": 0, "stream": 7}}),
    );
    events.push(json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 3000, "dur": 5,
        "args": {"device": 0, "stream": 7}}));
    fs::write(folder.join("trace.json"), json!({ "traceEvents": events }).to_string()).unwrap();
    let shown = ["1766912", "5000000000", "1766913", "77", ""];
    let csv = gpuflame(&folder, ["convert", "trace.json", "--to", "csv"]).ok().stdout;
    assert_eq!(column(&csv, "correlation"), shown);
    assert_eq!(column(&csv, "from"), ["pageable", "pinned", "device", "", ""]);
    assert_eq!(column(&csv, "to"), ["device", "device", "device", "device", ""]);
    let view = gpuflame(&folder, ["view", "trace.json", "--format", "csv"]).ok().stdout;
    assert_eq!(column(&view, "correlation"), shown);
    assert_eq!(column(&view, "from"), ["pageable", "pinned", "device", "", ""]);
    assert_eq!(column(&view, "to"), ["device", "device", "device", "device", ""]);
    let chrome = gpuflame(&folder, ["convert", "trace.json", "--to", "chrome"]).ok().stdout;
    let chrome: Value = serde_json::from_str(&chrome).unwrap();
    let id_of = |category: &str| -> Vec<u64> {
        let events = chrome["traceEvents"].as_array().unwrap().iter();
        let of_category = events.filter(|event| event["cat"] == category);
        of_category.filter_map(|event| event["args"]["correlation"].as_u64()).collect()
    };
    assert_eq!(
        (id_of("cuda_runtime"), id_of("gpu_memcpy"), id_of("gpu_memset")),
        (ids.to_vec(), ids.to_vec(), vec![77])
    );
    gpuflame(&folder, ["convert", "trace.json", "-o", "trace.parquet"]).ok();
    let reader = SerializedFileReader::new(fs::File::open(folder.join("trace.parquet")).unwrap()).unwrap();
    let of_row =
        |row: Row| row.get_column_iter().find(|(name, _)| *name == "correlation").unwrap().1.to_string();
    let in_parquet: Vec<String> = reader.into_iter().map(|row| of_row(row.unwrap())).collect();
    assert_eq!(in_parquet, ["1766912", "5000000000", "1766913", "77", "null"]);
    let lines = gpuflame(&folder, ["convert", "trace.json", "--to", "extended-folded"]).ok().stdout;
    let lines: Vec<&str> = lines.lines().filter_map(|line| line.split("[correlation ").nth(1)).collect();
    assert_eq!(lines, ["1766912]", "5000000000]", "1766913]"]);
}

#[test]
fn a_chrome_file_of_two_processes_with_equal_ids_can_be_read_again() {
    let folder = scratch("ids");
    let mut events = Vec::new();
    for (process, ts) in [(11, 0), (22, 100)] {
        events.push(json!({"ph": "X", "cat": "cpu_op", "name": format!("of {process}"), "pid": format!("[{process}] 1"),
            "tid": 1, "ts": ts, "dur": 9}));
        events.push(json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": format!("[{process}] 1"),
            "tid": 1, "ts": ts, "dur": 5, "args": {"correlation": 3}}));
        events
            .push(json!({"ph": "X", "cat": "kernel", "name": "k", "pid": format!("[{process}] 0"), "tid": 7,
            "ts": ts + 200, "dur": 5, "args": {"correlation": 3, "device": 0, "stream": 7}}));
    }
    fs::write(folder.join("trace.json"), json!({ "traceEvents": events }).to_string()).unwrap();
    let folded = gpuflame(&folder, ["flamegraph", "trace.json"]).ok().stdout;
    assert_eq!(folded.lines().count(), 2, "{folded}");
    gpuflame(&folder, ["convert", "trace.json", "-o", "again.json", "--to", "chrome"]).ok();
    assert_eq!(gpuflame(&folder, ["flamegraph", "again.json"]).ok().stdout, folded);
}

#[test]
fn the_direction_of_a_copy_may_be_an_argument() {
    let folder = scratch("direction");
    for (name, more, frame) in [
        ("Memcpy", json!({"copy kind": "DtoH"}), "DtoH"),
        ("Memcpy", json!({"copy_kind": "Host -> Device"}), "HtoD"),
        ("CopyDeviceToHost", json!({}), "DtoH"),
        ("Memcpy HtoD (Pinned -> Device)", json!({"copy kind": "DtoH"}), "HtoD"),
    ] {
        let trace = json!({ "traceEvents": copy(name, 1, 0, more) });
        fs::write(folder.join("trace.json"), trace.to_string()).unwrap();
        let stdout = gpuflame(&folder, ["flamegraph", "trace.json"]).ok().stdout;
        assert_eq!(stdout, format!("cudaMemcpyAsync;[GPU_Memcpy {frame}] 50000\n"), "{name}");
    }
}

#[test]
fn names_that_differ_in_an_invalid_byte_or_a_separator_stay_apart() {
    let folder = scratch("names");
    for (names, frames) in [
        ([&b"k_\xff"[..], b"k_\xfe"], ["k_\\xfe", "k_\\xff"]),
        ([br"k_\ud83d", br"k_\ud83e"], ["k_\\ud83d", "k_\\ud83e"]),
        ([b"f<A;B>", b"f<A:B>"], ["f<A:B>", "f<A\u{ff1b}B>"]),
    ] {
        let mut trace = b"{\"traceEvents\":[".to_vec();
        for (at, name) in names.iter().enumerate() {
            let (id, ts) = (at + 1, at * 40);
            let call = format!(
                r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{ts},"dur":2,"args":{{"correlation":{id}}}}},{{"ph":"X","cat":"kernel","name":""#
            );
            trace.extend_from_slice(call.as_bytes());
            trace.extend_from_slice(name);
            let rest = format!(
                r#"","pid":0,"tid":7,"ts":{},"dur":10,"args":{{"correlation":{id},"device":0,"stream":7}}}},"#,
                ts + 20
            );
            trace.extend_from_slice(rest.as_bytes());
        }
        trace.pop();
        trace.extend_from_slice(b"]}");
        fs::write(folder.join("trace.json"), trace).unwrap();
        let stdout = gpuflame(&folder, ["flamegraph", "trace.json"]).ok().stdout;
        let expected = frames.map(|frame| format!("cudaLaunchKernel;[GPU_Kernel]{frame} 10000\n"));
        assert_eq!(stdout, expected.concat());
        let top = gpuflame(&folder, ["top", "trace.json", "--format", "csv"]).ok().stdout;
        let shown = frames.map(|frame| frame.replace('\u{ff1b}', ";"));
        assert!(shown.iter().all(|frame| top.contains(frame.as_str())), "{top}");
    }
}

#[test]
fn an_event_without_a_usable_duration_is_a_finding() {
    let folder = scratch("nan");
    let call = |ts: u64, id: u32| {
        format!(
            r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{ts},"dur":2,"args":{{"correlation":{id}}}}}"#
        )
    };
    let kernel = |ts: u64, id: u32, dur: &str| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ts},"dur":{dur},"args":{{"correlation":{id},"device":0,"stream":7}}}}"#
        )
    };
    let events = [call(0, 1), call(20, 2), kernel(10, 1, "10"), kernel(30, 2, "NaN")];
    fs::write(folder.join("trace.json"), format!(r#"{{"traceEvents":[{}]}}"#, events.join(","))).unwrap();
    let check = gpuflame(&folder, ["check", "trace.json", "--strict", "--format", "csv"]);
    assert_eq!(check.code, 1, "{}", check.stdout);
    let line = |what: &str| check.stdout.lines().find(|line| line.contains(what)).unwrap().to_owned();
    let unusable = "rows that could not be used";
    assert!(line(unusable).starts_with(&format!("BAD,{unusable},1,")), "{}", check.stdout);
    let at_end = line("launches at the end");
    assert!(at_end.contains("missing or unusable") && !at_end.contains("recording ended"), "{at_end}");
}
