//! Tests `extract`, `stats` and `decode-steps` on traces in Paddle's layout, for which the expected output is worked
//! out by hand.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::support::command::gpuflame;
use crate::support::scratch;

/// Returns a trace event as Paddle's logger writes it. In such an event, `ts` is truncated to whole microseconds, and
/// the exact times are in the arguments.
fn event(category: &str, name: &str, start: &str, end: &str, stream: u32) -> String {
    let ts = start.split('.').next().unwrap();
    format!(
        "  {{\n    \"name\": \"{name}\", \"pid\": 0, \"tid\": \"7(C++)\",\n    \"ts\": {ts}, \"dur\": 1.000,\n    \
         \"ph\": \"X\", \"cat\": \"{category}\",\n    \"args\": {{\"start_time\": \"{start} us\", \
         \"end_time\": \"{end} us\", \"device\": 0, \"stream\": {stream}}}\n  }}"
    )
}

fn trace(folder: &Path, events: &[String]) {
    let text = format!(
        "\n{{\n  \"schemaVersion\": \"1.0.2\",\n  \"traceEvents\": [\n{}\n  ]\n}}",
        events.join(",\n")
    );
    fs::write(folder.join("trace.json"), text).unwrap();
}

fn kernel(name: &str, start: &str, end: &str) -> String {
    event("Kernel", name, start, end, 7)
}

fn step(number: u32, start: &str, end: &str) -> String {
    event("ProfileStep", &format!("ProfileStep#{number}[15.000 ms]"), start, end, 0)
}

#[test]
fn extract_keeps_operations_entirely_inside_the_window_in_order_of_start() {
    let folder = scratch("extract");
    trace(
        &folder,
        &[
            kernel("late[0.002 ms]", "20.500", "22.500"),
            kernel("gemm<a, \\\"b\\\">", "10.100", "22.445"),
            event("Memcpy", "copy", "10.000", "11.000", 7),
            event("Memset", "set", "9.999", "12.000", 7),
            kernel("edge", "22.445", "30.000"),
            kernel("beyond", "29.000", "30.001"),
            event("Operator", "matmul", "12.000", "13.000", 7),
        ],
    );
    let ran = gpuflame(&folder, ["extract", "trace.json", "out.csv", "10,30.000"]).ok();
    let expected = "kernel_name,start_time_us,end_time_us,duration_us\n\
                    copy,10.0,11.0,1.0\n\
                    \"gemm<a, \"\"b\"\">\",10.1,22.445,12.345\n\
                    late[0.002 ms],20.5,22.5,2.0\n\
                    edge,22.445,30.0,7.555\n";
    assert_eq!(fs::read_to_string(folder.join("out.csv")).unwrap(), expected);
    assert!(ran.stderr.contains("4 of 6 GPU operations"), "{}", ran.stderr);
    trace(&folder, &[kernel("a", "2684054.000", "2684066.345")]);
    let duration = |compat: &[&str]| {
        let args = ["extract", "trace.json", "-", "0,1e9"].iter().chain(compat).copied().collect::<Vec<_>>();
        gpuflame(&folder, args).ok().stdout.lines().nth(1).unwrap().rsplit_once(',').unwrap().1.to_owned()
    };
    assert_eq!(duration(&[]), "12.345");
    assert_eq!(duration(&["--compat"]), "12.345000000204891");
}

#[test]
fn stats_average_steps_with_the_same_number_of_operations() {
    let folder = scratch("stats");
    let events = [
        step(1, "0.000", "1000.000"),
        kernel("before", "1.000", "2.000"),
        kernel("recover_decode_task[0.010 ms]", "10.000", "20.000"),
        kernel("gemm[0.030 ms]", "25.000", "55.000"),
        kernel("copy", "50.000", "60.000"),
        kernel("last", "70.000", "80.000"),
        step(2, "2000.000", "3000.000"),
        kernel("recover_decode_task[0.012 ms]", "2010.000", "2022.000"),
        kernel("gemm[0.030 ms]", "2025.000", "2057.000"),
        kernel("copy", "2050.000", "2060.000"),
        kernel("last", "2074.000", "2086.000"),
        step(3, "4000.000", "5000.000"),
        kernel("recover_decode_task", "4010.000", "4020.000"),
        step(4, "6000.000", "7000.000"),
        kernel("other", "6010.000", "6020.000"),
        step(5, "10000.000", "41000.000"),
        kernel("recover_decode_task", "10010.000", "10020.000"),
        kernel("crosses", "4990.000", "5001.000"),
    ];
    trace(&folder, &events);
    let ran = gpuflame(&folder, ["stats", "trace.json", "out.csv"]).ok();
    let expected = "operation_name,avg_start_time_us,avg_end_time_us,avg_duration_us,bubble_time_us\n\
                    recover_decode_task,0.0,11.0,11.0,0.0\n\
                    gemm,15.0,46.0,31.0,4.0\n\
                    copy,40.0,50.0,10.0,0.0\n\
                    last,62.0,73.0,11.0,12.0\n";
    assert_eq!(fs::read_to_string(folder.join("out.csv")).unwrap(), expected);
    assert!(ran.stderr.contains("averaged 2 of 5 steps (4 of the right length"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("skipped 1 steps without a `recover_decode_task` operation"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("1 operations begin in a step and end after it"), "{}", ran.stderr);
    let none = gpuflame(&folder, ["stats", "trace.json", "-", "NONE"]).ok();
    // If steps are not trimmed, most steps have one operation. Step 3 is the first step with one operation.
    assert!(none.stdout.ends_with("recover_decode_task,10.0,20.0,10.0,10.0\n"), "{}", none.stdout);
}

#[test]
fn names_in_csv_are_escaped_for_spreadsheets_and_terminals() {
    let folder = scratch("harmless");
    let events = [
        step(1, "0.000", "1000.000"),
        kernel("=1+1", "10.000", "20.000"),
        kernel("'@x", "30.000", "40.000"),
        kernel("\\u001b[31mred", "50.000", "60.000"),
        kernel("a-b", "70.000", "80.000"),
    ];
    trace(&folder, &events);
    let names = |args: &[&str]| {
        let ran = gpuflame(&folder, args).ok();
        let names = ran.stdout.lines().skip(1).map(|line| line.split(',').next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let harmless = ["'=1+1", "''@x", " [31mred", "a-b"];
    assert_eq!(names(&["extract", "trace.json", "-", "0,1e9"]), harmless);
    assert_eq!(names(&["stats", "trace.json", "-", "none"]), harmless);
    // With `--compat`, the output of gpuflame is exactly that of `kernel_extractor`.
    assert_eq!(names(&["extract", "trace.json", "-", "0,1e9", "--compat"])[0], "=1+1");
}

#[test]
fn the_bubbles_option_selects_idle_time_by_device_stream_or_order() {
    let folder = scratch("bubbles");
    let events = [
        step(1, "0.000", "1000.000"),
        event("Kernel", "long", "10.000", "100.000", 7),
        event("Kernel", "short", "20.000", "30.000", 8),
        event("Kernel", "next", "105.000", "110.000", 8),
    ];
    trace(&folder, &events);
    let bubbles = |kind: &str| {
        let ran = gpuflame(&folder, ["stats", "trace.json", "-", "none", "--bubbles", kind]).ok();
        let column = ran.stdout.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().1.to_owned());
        column.collect::<Vec<_>>()
    };
    assert_eq!(bubbles("union"), ["10.0", "0.0", "5.0"]);
    assert_eq!(bubbles("stream"), ["10.0", "20.0", "75.0"]);
    assert_eq!(bubbles("order"), ["10.0", "0.0", "75.0"]);
}

#[test]
fn unreadable_or_unaverageable_traces_are_explained_and_leave_no_file() {
    let folder = scratch("refused");
    let refused = |args: &[&str], code: i32, what: &[&str]| {
        let ran = gpuflame(&folder, args);
        match code {
            1 => ran.fails(1, what),
            _ => {
                assert!(ran.code == 2 && what.iter().all(|what| ran.stderr.contains(what)), "{}", ran.stderr)
            }
        }
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "trace.json"), "{args:?} left {left:?}");
    };
    let both = |code, what: &[&str]| {
        refused(&["extract", "trace.json", "out.csv", "0,1e9"], code, what);
        refused(&["stats", "trace.json", "out.csv"], code, what);
        refused(&["decode-steps", "fd", "trace.json", "--output-csv", "out.csv"], code, what);
    };
    both(1, &["trace.json", "no such file", "name a recording"]);
    fs::create_dir(folder.join("trace.json")).unwrap();
    both(1, &["trace.json", "is a folder", "name a file in it"]);
    fs::remove_dir(folder.join("trace.json")).unwrap();
    fs::write(folder.join("trace.json"), "").unwrap();
    both(1, &["trace.json", "is empty", "was the program that wrote it stopped"]);
    fs::write(folder.join("trace.json"), "{\"traceEvents\": [{\"ph\": \"X\"").unwrap();
    both(1, &["trace.json", "truncated at byte 27, in event 0", "no event before it is complete"]);
    fs::write(folder.join("trace.json"), "{\"schema\": \"1.0.1\", \"nodes\": []}").unwrap();
    both(1, &["trace.json", "execution trace", "give the Kineto trace of the same run"]);
    fs::write(folder.join("trace.json"), "{\"name\": \"package\", \"version\": 1}").unwrap();
    both(1, &["trace.json", "JSON without `traceEvents`"]);
    fs::write(folder.join("trace.json"), "hello, world\n").unwrap();
    both(1, &["trace.json", "not a trace in a known format"]);
    trace(&folder, &[kernel("a", "1.000", "2.000"), kernel("b", "3.000", "4.000")]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&fs::read(folder.join("trace.json")).unwrap()).unwrap();
    let gzip = gzip.finish().unwrap();
    for length in [12, gzip.len() / 2, gzip.len() - 1] {
        fs::write(folder.join("trace.json"), &gzip[..length]).unwrap();
        both(1, &["trace.json", "gzip data is truncated"]);
    }
    trace(&folder, &[kernel("a", "1.000", "2.000")]);
    refused(&["stats", "trace.json", "out.csv"], 1, &["No ProfileStep events found", "once per step"]);
    refused(
        &["extract", "trace.json", "out.csv", "1"],
        2,
        &["Invalid time range format. Expected: start,end"],
    );
    refused(&["extract", "trace.json", "out.csv", "3,2"], 2, &["ends before it starts"]);
    refused(&["stats", "trace.json", "out.csv", "none", "1", "--min-ms", "2"], 2, &["swap them"]);
    trace(&folder, &[step(1, "0.000", "50000.000"), kernel("a", "1.000", "2.000")]);
    let what =
        ["No decode ProfileStep events found after filtering", "shortest takes 50.0 ms", "give other limits"];
    refused(&["stats", "trace.json", "out.csv"], 1, &what);
    trace(&folder, &[step(1, "0.000", "500.000"), kernel("a", "1000.000", "2000.000")]);
    refused(&["stats", "trace.json", "out.csv"], 1, &["All ProfileSteps are empty", "1 GPU operations"]);
}

#[test]
fn decode_steps_of_servers_are_recognised_by_their_frames() {
    let folder = scratch("decode");
    let frame = |name: &str, ms: u32| {
        format!(
            "{{\"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"{name}\", \"ts\": {}.000, \"dur\": 5.000}}",
            ms * 1000
        )
    };
    let sglang = "python/sglang/srt/managers/scheduler.py(2174): get_next_batch_to_run";
    // In the first half of the trace, the distances between step starts are 12, 14, 40 (too long) and 16 us. The
    // remaining distances are in the second half of the trace.
    let starts = [100, 112, 126, 166, 182, 270];
    let events: Vec<String> = starts
        .iter()
        .map(|&ms| frame(sglang, ms))
        .chain([frame("scheduler.py(1): get_next_batch_to_run", 105)])
        .collect();
    fs::write(folder.join("trace.json"), format!("[{}]", events.join(","))).unwrap();
    let ran = gpuflame(&folder, ["decode-steps", "sglang", "trace.json", "--output-csv", "ms.csv"]).ok();
    assert_eq!(
        fs::read_to_string(folder.join("ms.csv")).unwrap(),
        "latency_ms\n12.000000\n14.000000\n16.000000\n"
    );
    for row in [
        "Count:    3",
        "Mean:     14.000 ms",
        "Std Dev:  1.633 ms",
        "Median:   14.000 ms",
        "P90:      15.600 ms",
        "P99:      15.960 ms",
    ] {
        assert!(ran.stdout.contains(row), "{row}: {}", ran.stdout);
    }
    trace(
        &folder,
        &[
            step(1, "0.000", "15200.000"),
            step(2, "20000.000", "32200.000"),
            step(3, "40000.000", "90000.000"),
        ],
    );
    let ran = gpuflame(&folder, ["decode-steps", "fd", "trace.json"]).ok();
    assert!(
        ran.stdout.contains("Count:    2") && ran.stdout.contains("Mean:     13.700 ms"),
        "{}",
        ran.stdout
    );
    let ran = gpuflame(&folder, ["decode-steps", "vllm", "trace.json"]);
    assert!(ran.code == 1 && ran.stderr.contains("no steps found"), "{}", ran.stderr);
}

#[test]
fn compat_skips_events_without_times_in_their_arguments() {
    let folder = scratch("compat");
    let bare = r#"{"ph":"X","cat":"Kernel","name":"bare","pid":0,"tid":7,"ts":12,"dur":3}"#.to_owned();
    let events = [
        step(1, "0.000", "1000.000"),
        kernel("recover_decode_task", "1.000", "5.000"),
        bare,
        kernel("b", "20.000", "25.000"),
    ];
    trace(&folder, &events);
    let rows = |args: &[&str]| gpuflame(&folder, args).ok().stdout.lines().skip(1).count();
    // Numbers on the command line may be written with exponents.
    assert_eq!(rows(&["extract", "trace.json", "-", "1e0,2.5E1"]), 3);
    assert_eq!(rows(&["extract", "trace.json", "-", "1e0,2.5E1", "--compat"]), 2);
    assert_eq!(
        (rows(&["stats", "trace.json", "-"]), rows(&["stats", "trace.json", "-", "--compat"])),
        (3, 2)
    );
}

#[test]
fn gap_before_trim_adds_the_gap_before_the_first_kept_operation() {
    let folder = scratch("gap");
    let events = [
        step(1, "0.000", "1000.000"),
        kernel("before", "1.000", "4.000"),
        kernel("recover_decode_task", "10.000", "20.000"),
        kernel("next", "25.000", "30.000"),
        step(2, "2000.000", "3000.000"),
        kernel("recover_decode_task", "2008.000", "2018.000"),
        kernel("next", "2023.000", "2028.000"),
    ];
    trace(&folder, &events);
    let bubbles = |more: &[&str]| -> Vec<String> {
        let out = gpuflame(&folder, ["stats", "trace.json", "-"].iter().chain(more)).ok().stdout;
        out.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().1.to_owned()).collect()
    };
    assert_eq!(bubbles(&[]), ["0.0", "5.0"]);
    // In step 1, an operation was left out, and the gap after this operation takes 6 us. In step 2, no operation was
    // left out, and the gap after the step's start takes 8 us. The mean of the two gaps is 7 us.
    for kind in ["union", "order", "stream"] {
        assert_eq!(bubbles(&["--gap-before-trim", "--bubbles", kind]), ["7.0", "5.0"], "{kind}");
    }
}
