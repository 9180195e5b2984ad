//! Tests verbs that print GPU time; the operations on one stream of the traces overlap or have impossible durations.

use std::fs;
use std::path::Path;

use crate::report;
use crate::support::command::gpuflame;
use crate::support::scratch;
use serde_json::Value;

/// Returns a trace event with a duration. Start and duration are in microseconds.
fn slice(category: &str, name: &str, track: (u32, u32), times: (f64, f64), args: &str) -> String {
    let ((process, thread), (start, duration)) = (track, times);
    format!(
        r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{process},"tid":{thread},"ts":{start:.3},"dur":{duration:.3},"args":{{{args}}}}}"#
    )
}

fn call(name: &str, id: u32, start: f64) -> String {
    slice("cuda_runtime", name, (1, 1), (start, 1.0), &format!(r#""correlation":{id}"#))
}

fn kernel(name: &str, id: u32, start: f64, duration: f64) -> String {
    let args = format!(r#""correlation":{id},"device":0,"context":1,"stream":7"#);
    slice("kernel", name, (0, 7), (start, duration), &args)
}

fn write(folder: &Path, events: &[String]) {
    fs::write(folder.join("t.json"), format!(r#"{{"traceEvents":[{}]}}"#, events.join(","))).unwrap();
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let ran = gpuflame(folder, args.iter().chain(&["--format", "json"]));
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {}", ran.stderr))
}

/// Returns the result and the count of one check in the output of `gpuflame check`.
fn check(folder: &Path, what: &str) -> (String, u64) {
    let found = json(folder, &["check", "t.json"]);
    let rows = found["findings"].as_array().unwrap();
    let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no {what} in {found}"));
    (row["result"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap())
}

/// Returns the events of two overlapping kernels and of 20 kernels that run one after the other. In the overlapping
/// pair, the second kernel starts 1.5 us before the first kernel ends.
fn overlapping(launch: &str) -> Vec<String> {
    let mut events = vec![
        call(launch, 1, 0.0),
        call(launch, 2, 2.0),
        kernel("first", 1, 10.25, 20.0),
        kernel("second", 2, 28.75, 20.0),
    ];
    for at in 0..20 {
        events.push(call("cudaLaunchKernel", 10 + at, 4.0 + f64::from(at)));
        events.push(kernel("later", 10 + at, 100.0 + 10.0 * f64::from(at), 5.0));
    }
    events
}

#[test]
fn an_overlap_is_legal_after_a_programmatic_launch_only() {
    let folder = scratch("programmatic");
    for launch in ["cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaLaunchKernelExC_v11060"] {
        write(&folder, &overlapping(launch));
        assert_eq!(check(&folder, "overlaps on a stream"), ("none".to_owned(), 0), "{launch}");
        assert_eq!(check(&folder, "overlaps by programmatic launch"), ("ok".to_owned(), 1), "{launch}");
        assert_eq!(gpuflame(&folder, ["check", "--strict", "t.json"]).code, 0);
    }
    for launch in ["cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync"] {
        write(&folder, &overlapping(launch));
        assert_eq!(check(&folder, "overlaps on a stream"), ("BAD".to_owned(), 1), "{launch}");
        assert_eq!(check(&folder, "overlaps by programmatic launch"), ("none".to_owned(), 0), "{launch}");
        assert_eq!(gpuflame(&folder, ["check", "--strict", "t.json"]).code, 1);
    }
}

#[test]
fn ties_within_a_microsecond_and_traces_without_streams_have_no_overlaps() {
    let folder = scratch("ties");
    let row = |overlap: f64| {
        let calls = (0..6).map(|at| call("cudaLaunchKernel", 1 + at, f64::from(at)));
        let starts = [100.0, 110.0 - overlap, 120.0, 130.0, 130.0, 140.0];
        let lengths = [10.0, 5.0, 5.0, 1.0, 1.0, 5.0];
        let kernels = (0..6).map(|at| kernel("k", 1 + at as u32, starts[at], lengths[at]));
        calls.chain(kernels).collect::<Vec<_>>()
    };
    write(&folder, &row(1.0));
    assert_eq!(check(&folder, "overlaps on a stream"), ("none".to_owned(), 0));
    write(&folder, &row(3.0));
    assert_eq!(check(&folder, "overlaps on a stream"), ("BAD".to_owned(), 1));
    let without_streams: Vec<_> = row(3.0).iter().map(|event| event.replace(r#","stream":7"#, "")).collect();
    write(&folder, &without_streams);
    assert_eq!(check(&folder, "overlaps on a stream"), ("none".to_owned(), 0));
}

#[test]
fn overlapping_kernels_are_on_two_tracks_of_a_chrome_export_and_on_one_stream_again() {
    let folder = scratch("lanes");
    write(&folder, &overlapping("cudaLaunchKernelExC"));
    gpuflame(&folder, ["convert", "t.json", "--to", "chrome", "-o", "out.json"]).ok();
    let trace: Value = serde_json::from_slice(&fs::read(folder.join("out.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let track = |name: &str| {
        let event = events.iter().find(|event| event["name"] == name && event["cat"] == "kernel").unwrap();
        assert_eq!(event["args"]["stream"], 7);
        event["tid"].as_u64().unwrap()
    };
    assert_eq!((track("first"), track("later")), (7, 7));
    assert_ne!(track("second"), 7);
    let named = |event: &&Value| event["name"] == "thread_name" && event["tid"] == track("second");
    assert_eq!(events.iter().find(named).unwrap()["args"]["name"], "stream 7 (overlapping)");
    fs::rename(folder.join("out.json"), folder.join("t.json")).unwrap();
    assert_eq!(check(&folder, "overlaps by programmatic launch"), ("ok".to_owned(), 1));
}

#[test]
fn gaps_between_overlapping_kernels_are_not_negative() {
    let folder = scratch("gaps");
    let mut events = overlapping("cudaLaunchKernelExC");
    events.push(slice("user_annotation", "ProfilerStep#1", (1, 1), (0.0, 900.0), ""));
    write(&folder, &events);
    for kind in ["union", "stream", "order"] {
        let ran = gpuflame(&folder, ["stats", "t.json", "-", "none", "--bubbles", kind]).ok();
        let gap = |line: &str| line.rsplit(',').next().unwrap().parse::<f64>().unwrap();
        let gaps: Vec<f64> = ran.stdout.lines().skip(1).map(gap).collect();
        // The first kernel begins at 10.25 us, and the second kernel begins before the first kernel ends.
        assert_eq!((gaps.len(), gaps[0], gaps[1]), (22, 10.25, 0.0), "{kind}");
        assert!(gaps.iter().all(|gap| *gap >= 0.0), "{kind}: {gaps:?}");
    }
}

/// Returns the events of a kernel of 4,000 us and of the next two kernels on its stream. The next two kernels begin 25
/// and 60 us after the start of the first kernel, and take 10 us each.
fn impossible() -> Vec<String> {
    let mut events: Vec<_> = (1..=3).map(|id| call("cudaLaunchKernel", id, f64::from(3 * id))).collect();
    events.extend([
        kernel("liar", 1, 20.0, 4000.0),
        kernel("honest", 2, 45.0, 10.0),
        kernel("honest", 3, 80.0, 10.0),
    ]);
    events
}

#[test]
fn an_impossible_duration_is_named_with_recorded_and_clamped_figures_in_every_verb() {
    let folder = scratch("impossible");
    write(&folder, &impossible());
    assert_eq!(check(&folder, "impossible durations"), ("BAD".to_owned(), 1));
    fs::copy(folder.join("t.json"), folder.join("u.json")).unwrap();
    for (args, table) in [
        (&["check", "t.json"][..], "impossible_durations"),
        (&["info", "t.json"], "impossible_durations"),
        (&["top", "t.json"], "impossible_durations"),
        (&["diff", "t.json", "u.json"], "impossible_durations_after"),
    ] {
        let found = json(&folder, args);
        let figures = found[table].as_array().unwrap_or_else(|| panic!("{args:?}: {found}")).iter();
        let figures = figures
            .map(|row| {
                let nanos = |column: &str| row[column].as_u64().unwrap();
                (row["what"].as_str().unwrap().to_owned(), nanos("recorded_ns"), nanos("clamped_ns"))
            })
            .collect::<Vec<_>>();
        // The first kernel counts for 25 us, because the second one begins then. Each of the next two kernels counts
        // for 10 us.
        let expected = [
            ("all GPU work".to_owned(), 4_020_000, 45_000),
            ("busy time of all GPUs".to_owned(), 4_000_000, 45_000),
            ("liar".to_owned(), 4_000_000, 25_000),
        ];
        assert_eq!(figures, expected, "{args:?}");
        let ran = gpuflame(&folder, args);
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains("liar"), "{args:?}");
    }
}

#[test]
fn the_summary_withholds_shares_of_the_time_if_durations_are_impossible() {
    let folder = scratch("withheld");
    write(&folder, &impossible());
    let found = json(&folder, &["summary", "t.json"]);
    let answers: Vec<_> =
        found["answers"].as_array().unwrap().iter().map(|row| row["answer"].as_str().unwrap()).collect();
    assert!(answers[0].starts_with("busy and idle time are withheld: "), "{answers:?}");
    let of_time = ["GPU 0 busy", "kernels ran for", "bound", "critical path of"];
    assert!(!answers.iter().any(|answer| of_time.iter().any(|words| answer.contains(words))), "{answers:?}");
    assert!(answers.iter().any(|answer| answer.contains("critical path: some durations are impossible")));
    assert!(found.get("idle_causes").is_none() && found.get("critical_path").is_none(), "{found}");
    assert_eq!(
        (found["findings"][0]["id"].as_str(), bad(&found)),
        (Some("impossible_duration"), 2),
        "{found}"
    );
    for row in found["work"].as_array().unwrap() {
        assert!(row["share_percent"].is_null() && row["total_ns"].as_u64() > Some(0), "{found}");
    }
    let page = page(&folder, &["t.json"]);
    assert!(page["firstLine"].as_str().unwrap().starts_with("busy and idle time are withheld: "));
    assert_eq!((page["title"].as_str(), page["bars"].as_array().unwrap().len()), (Some("t.json"), 0));
    assert_eq!(
        (page["findings"][0]["id"].as_str(), page["wall"].as_u64()),
        (Some("impossible_duration"), Some(0))
    );
    let path = page.to_string();
    assert!(path.contains("Some durations are impossible"), "{path}");
}

/// Two of the ten kernels end 5 us before they begin. The durations of these two kernels are unusable, so the GPU seems
/// to be idle while they run.
#[test]
fn the_summary_withholds_shares_if_work_ends_before_it_begins() {
    let folder = scratch("backwards");
    let events = |odd: f64| {
        let mut events = Vec::new();
        for at in 0..10_u32 {
            let start = 100.0 * f64::from(at);
            events.push(call("cudaLaunchKernel", at + 1, start));
            events.push(kernel("gemm", at + 1, start + 10.0, if at % 5 == 2 { odd } else { 90.0 }));
        }
        events
    };
    write(&folder, &events(-5.0));
    let found = json(&folder, &["summary", "t.json"]);
    let first = found["answers"][0]["answer"].as_str().unwrap();
    assert!(first.contains("withheld: some GPU work ends before it begins"), "{first}");
    assert!(
        found["findings"].as_array().unwrap().iter().all(|row| row["share_percent"].is_null()),
        "{found}"
    );
    write(&folder, &events(90.0));
    let found = json(&folder, &["summary", "t.json"]);
    assert!(found["answers"][0]["answer"].as_str().unwrap().starts_with("GPU 0 busy"), "{found}");
}

/// Two GPUs take turns and work for 100 us each, and one call waits for both GPUs.
#[test]
fn a_gpu_that_waits_for_another_gpu_is_not_bound_by_the_host() {
    let folder = scratch("in-turn");
    let mut events = Vec::new();
    for at in 0..20_u32 {
        let start = 100.0 * f64::from(at);
        events.push(call("cudaLaunchKernel", at + 1, start));
        let args = format!(r#""correlation":{},"device":{},"context":1,"stream":7"#, at + 1, at % 2);
        events.push(slice("kernel", "stage", (at % 2, 7), (start + 2.0, 99.0), &args));
        events.push(slice(
            "cuda_runtime",
            "cudaDeviceSynchronize",
            (1, 1),
            (start + 3.0, 97.0),
            r#""correlation":0"#,
        ));
    }
    write(&folder, &events);
    let found = json(&folder, &["summary", "t.json"]);
    let answers = found["answers"].to_string();
    // At least one GPU works for 20 x 99 us of the 1,999 us between the start of the first kernel and the end of the
    // last kernel.
    assert!(
        answers.contains("not host-bound: for 99.0 % of the time at least one of the GPUs works"),
        "{answers}"
    );
}

/// Returns the number of findings that report wrong data.
fn bad(found: &Value) -> usize {
    found["findings"].as_array().unwrap().iter().filter(|row| row["result"] == "BAD").count()
}

/// Returns the data of the page that `report` writes for these files.
fn page(folder: &Path, files: &[&str]) -> Value {
    gpuflame(folder, [&["report"], files, &["-o", "page.html"]].concat()).ok();
    report::data(&fs::read_to_string(folder.join("page.html")).unwrap())
}

#[test]
fn a_rank_with_impossible_durations_is_withheld_and_other_ranks_are_compared() {
    let folder = scratch("withheld-rank");
    write(&folder, &impossible());
    fs::rename(folder.join("t.json"), folder.join("rank2.json")).unwrap();
    // Rank 0 works for 40 of 50 us, and rank 1 for 20 of 50 us.
    for (rank, duration) in [(0, 20.0), (1, 10.0)] {
        let events = [
            call("cudaLaunchKernel", 1, 1.0),
            call("cudaLaunchKernel", 2, 3.0),
            kernel("honest", 1, 10.0, duration),
            kernel("honest", 2, 60.0 - duration, duration),
        ];
        write(&folder, &events);
        fs::rename(folder.join("t.json"), folder.join(format!("rank{rank}.json"))).unwrap();
    }
    let files = ["rank0.json", "rank1.json", "rank2.json"];
    let found = json(&folder, &[&["summary"], &files[..]].concat());
    let answers: Vec<_> =
        found["answers"].as_array().unwrap().iter().map(|row| row["answer"].as_str().unwrap()).collect();
    assert!(answers[0].starts_with("rank 0: GPU 0 busy 80.0 %"), "{answers:?}");
    assert!(answers[1].starts_with("rank 1: GPU 0 busy 40.0 %"), "{answers:?}");
    assert!(answers[2].starts_with("rank 2: busy and idle time are withheld: "), "{answers:?}");
    let first = &found["findings"][0];
    assert_eq!(
        (first["id"].as_str(), first["culprit"].as_str()),
        (Some("impossible_duration"), Some("rank 2"))
    );
    let busy: Vec<_> = found["ranks"].as_array().unwrap().iter().map(|row| row["busy_ns"].as_u64()).collect();
    assert_eq!(busy, [Some(40_000), Some(20_000), None], "{found}");
    assert_eq!(found["next"][0]["command"], "gpuflame check rank2.json");
    let page = page(&folder, &files);
    let labels: Vec<_> =
        page["bars"].as_array().unwrap().iter().map(|bar| bar["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["rank 0, GPU 0", "rank 1, GPU 0"]);
    let finding = &page["findings"][0];
    assert_eq!(
        (finding["culprit"].as_str(), finding["command"].as_str()),
        (Some("rank 2"), Some("gpuflame check rank2.json"))
    );
    // The percentages in the output refer to these 50 us. If the kernels of 4 ms counted, the percentages would refer
    // to milliseconds.
    assert_eq!(page["wall"], 50_000);
}

#[test]
fn long_and_dense_kernels_are_not_impossible() {
    let folder = scratch("dense");
    // The trace has a long kernel that ends before the next kernel begins; it also has kernels with equal start times,
    // because the times are whole microseconds.
    let mut events: Vec<_> = (1..=9).map(|id| call("cudaLaunchKernel", id, f64::from(id))).collect();
    events.push(kernel("long", 1, 100.0, 2_000_000.0));
    events.extend((2..=9).map(|id| kernel("dense", id, f64::from(2_000_100 + id / 2), 1.0)));
    write(&folder, &events);
    assert_eq!(check(&folder, "impossible durations"), ("none".to_owned(), 0));
    assert_eq!(check(&folder, "overlaps on a stream"), ("none".to_owned(), 0));
    assert!(json(&folder, &["info", "t.json"]).get("impossible_durations").is_none());
}

#[test]
fn a_start_of_zero_with_an_end_is_a_time_that_was_not_collected() {
    let folder = scratch("zero");
    let now = 1_764_000_000_000_000.0;
    let events = [
        call("cudaLaunchKernel", 1, now),
        call("cudaLaunchKernel", 2, now + 5.0),
        kernel("sound", 1, now + 10.0, 8.0),
        kernel("unset", 2, 0.0, now + 30.0),
    ];
    write(&folder, &events);
    assert_eq!(check(&folder, "times not collected").1, 1);
    let devices = json(&folder, &["info", "t.json"]);
    assert_eq!(devices["devices"][0]["gpu_time_ns"], 8000);
    assert_eq!(devices["devices"][0]["window_ns"], 8000);
}

#[test]
fn launches_between_the_begin_and_end_of_a_capture_are_captured_and_not_lost() {
    let folder = scratch("captured");
    let mut events = vec![call("cudaStreamBeginCapture", 1, 0.0)];
    events.extend((0..5).map(|at| call("cudaLaunchKernel", 10 + at, 5.0 + f64::from(at))));
    events.push(call("cudaStreamEndCapture", 2, 20.0));
    events.push(call("cudaLaunchKernel", 30, 30.0));
    events.push(kernel("k", 30, 40.25, 5.0));
    write(&folder, &events);
    assert_eq!(check(&folder, "launches captured into graphs"), ("ok".to_owned(), 5));
    assert_eq!(check(&folder, "launches without an activity"), ("none".to_owned(), 0));
    let info = gpuflame(&folder, ["info", "t.json", "--format", "csv"]).ok().stdout;
    assert!(info.contains("launches captured into graphs,5"), "{info}");
    assert!(info.contains("\nlaunches,1"), "{info}");
    // If the trace does not contain the end of the graph capture, the captured launches may have been lost.
    write(&folder, &[&events[..6], &events[7..]].concat());
    assert_eq!(check(&folder, "launches captured into graphs"), ("none".to_owned(), 0));
    assert_eq!(check(&folder, "launches without an activity"), ("note".to_owned(), 5));
}

#[test]
fn rows_that_cannot_be_used_are_a_finding_and_explain_a_launch_without_work() {
    let folder = scratch("unusable");
    let events = [
        call("cudaLaunchKernel", 1, 0.0),
        call("cudaLaunchKernel", 2, 20.0),
        kernel("k", 1, 10.25, 10.0),
        kernel("k", 2, 30.25, 10.0).replace(r#""dur":10.000"#, r#""dur":NaN"#),
    ];
    write(&folder, &events);
    assert_eq!(check(&folder, "rows that could not be used"), ("BAD".to_owned(), 1));
    assert_eq!(gpuflame(&folder, ["check", "--strict", "t.json"]).code, 1);
    let text = gpuflame(&folder, ["check", "t.json"]).ok().stdout;
    assert!(!text.contains("recording ended before"), "{text}");
    write(&folder, &events[..3]);
    assert_eq!(check(&folder, "rows that could not be used"), ("none".to_owned(), 0));
}

#[test]
fn kernels_without_an_id_are_not_launched_before_recording() {
    let folder = scratch("without-id");
    let without_id = kernel("k", 5, 1.5, 1.0).replace(r#""correlation":5,"#, "");
    write(&folder, &[call("cudaLaunchKernel", 9, 3.0), kernel("k", 9, 5.25, 1.0), without_id]);
    assert_eq!(check(&folder, "activities without an id").1, 1);
    assert_eq!(check(&folder, "activities launched before recording").1, 0);
}

#[test]
fn recording_ended_before_the_gpu_only_if_the_times_show_it() {
    let folder = scratch("ended");
    let at_end = |events: &[String]| {
        write(&folder, events);
        let text = gpuflame(&folder, ["check", "t.json"]).ok().stdout;
        let line = text.lines().find(|line| line.contains("launches at the end without an activity"));
        line.unwrap().contains("recording ended before")
    };
    // The trace has ten launches, 100 us apart. Only the first launch has a kernel, which ended 60 us after the launch.
    let mut events: Vec<_> =
        (0..10).map(|at| call("cudaLaunchKernel", 1 + at, 100.0 * f64::from(at))).collect();
    events.push(kernel("k", 1, 10.25, 50.0));
    assert!(!at_end(&events));
    // The trace has ten launches within 20 us. Each of these launches launched a kernel of 100 us, and three of the
    // kernels ran before the recording ended.
    let mut events: Vec<_> =
        (0..10).map(|at| call("cudaLaunchKernel", 1 + at, 2.0 * f64::from(at))).collect();
    events.extend((0..3).map(|at| kernel("k", 1 + at, 10.25 + 100.0 * f64::from(at), 100.0)));
    assert!(at_end(&events));
}

#[test]
fn info_and_check_agree_on_the_precision_of_times() {
    let folder = scratch("precision");
    for (start, duration, word) in [(10.0, 5.0, "microseconds"), (10.5, 5.25, "nanoseconds")] {
        write(&folder, &[call("cudaLaunchKernel", 1, 0.0), kernel("k", 1, start, duration)]);
        for verb in ["info", "check"] {
            let text = gpuflame(&folder, [verb, "t.json"]).ok().stdout;
            let line = text.lines().find(|line| line.contains("seconds") && line.contains("times"));
            assert!(line.unwrap().contains(word), "{verb}: {line:?}");
        }
    }
}
