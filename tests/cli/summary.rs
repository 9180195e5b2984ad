//! Tests `gpuflame summary`, which prints an overview that fits on one screen. The figures of the summary must equal
//! those of the detailed verbs.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::{handmade, scratch};
use crate::tables::{at_terminal, training};

/// Writes a trace of ten steps of 1 ms. Each step launches a kernel of 200 us, which starts 10 us after its launch.
/// After that, the step launches a copy of 50 us from pageable memory. Only for the first `recorded` steps does the
/// trace contain the kernel and the copy.
fn steps(folder: &Path, kernel: &str, recorded: u64) {
    let mut events = Vec::new();
    let mut event = |cat: &str, name: &str, (tid, ts, dur): (u64, u64, u64), args: &str| {
        let pid = if cat == "kernel" || cat == "gpu_memcpy" { 0 } else { 1 };
        events.push(format!(
            "{{\"ph\":\"X\",\"cat\":\"{cat}\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\"args\":{{{args}}}}}"
        ));
    };
    for step in 0..10 {
        let (begin, id) = (1000 + 1000 * step, 2 * step + 1);
        event("user_annotation", &format!("ProfilerStep#{step}"), (1, begin, 1000), "");
        let launch = |id: u64| format!("\"correlation\":{id}");
        event("cuda_runtime", "cudaLaunchKernel", (1, begin + 100, 5), &launch(id));
        event("cuda_runtime", "cudaMemcpyAsync", (1, begin + 330, 5), &launch(id + 1));
        if step < recorded {
            let gpu = |id: u64| format!("\"correlation\":{id},\"device\":0,\"stream\":7");
            event("kernel", kernel, (7, begin + 110, 200), &gpu(id));
            let copy = format!("{},\"bytes\":1000000", gpu(id + 1));
            event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", (7, begin + 360, 50), &copy);
        }
    }
    fs::write(folder.join("steps.json"), format!("{{\"traceEvents\":[{}]}}", events.join(","))).unwrap();
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&gpuflame(folder, [args, &["--format", "json"]].concat()).ok().stdout).unwrap()
}

#[test]
fn the_screen_answers_with_the_figures_of_the_trace() {
    let folder = scratch("summary");
    steps(&folder, "gemm", 10);
    let summary = json(&folder, &["summary", "steps.json"]);
    let answers: Vec<&str> =
        summary["answers"].as_array().unwrap().iter().map(|row| row["answer"].as_str().unwrap()).collect();
    // The GPU works from 1.110 ms to 10.410 ms, which is 9.3 ms. The GPU is busy for 2.5 ms (10 x 250 us) and idle for
    // 6.8 ms.
    assert!(answers[0].starts_with("GPU 0 busy 26.9 % of 9.300 ms of steps"), "{answers:?}");
    assert!(answers[1].starts_with("idle 6.800 ms: "), "{answers:?}");
    // Each copy starts 15 us later than the time of its launch explains. In total, the copies are late by 150 us of the
    // 6.8 ms of idle time. Between the GPU work, there are 19 idle gaps. Ten kernels of 200 us take 2 ms.
    assert_eq!(answers[2], "kernels ran for 21.5 % of the time on GPU 0; copies count as busy, too");
    assert!(
        answers[3].starts_with("host-bound: in 97.8 % of the idle time no work was queued; a gap lasts 357."),
        "{answers:?}"
    );
    assert!(answers[1].ends_with("(78.1 % after cudaMemcpyAsync)"), "{answers:?}");
    // The critical path is from the first call at 1.100 ms to the end of the last copy at 10.410 ms. Between calls, the
    // host takes 10 x 225 us and 9 x 765 us. The last copy starts 25 us after its call, but a launch takes at most 20
    // us.
    assert_eq!(
        answers[4],
        "critical path of 9.310 ms: host between calls 98.1 %, CUDA calls 1.1 %, copies 0.5 %, not explained by the records \
         0.3 %"
    );
    assert!(
        answers[5].starts_with("20 launches, 20 activities: 100.0 % of the GPU time is linked"),
        "{answers:?}"
    );
    let work = &summary["work"];
    assert_eq!(
        (&work[0]["name"], &work[0]["total_ns"], &work[0]["count"]),
        (&"gemm".into(), &2_000_000.into(), &10.into())
    );
    assert_eq!(work[1]["share_percent"], 20.0);
    let copies = &summary["copies"][0];
    assert_eq!(
        (&copies["from"], &copies["to"], &copies["bytes"]),
        (&"pageable".into(), &"device".into(), &10_000_000.into())
    );
    let step = &summary["steps"][0];
    assert_eq!(
        (&step["step"], &step["count"], &step["p50_ns"]),
        (&"ProfilerStep".into(), &10.into(), &1_000_000.into())
    );
    assert_eq!(summary["next"][0]["command"], "gpuflame flamegraph steps.json --idle -o idle.svg");
}

#[test]
fn figures_equal_those_of_the_detailed_verbs() {
    let folder = scratch("summary");
    training(&folder, "train.json", 0);
    let summary = json(&folder, &["summary", "train.json"]);
    let kernels = json(&folder, &["top", "train.json", "--by", "kernels"]);
    for (row, kernel) in
        summary["work"].as_array().unwrap().iter().zip(kernels["kernels"].as_array().unwrap())
    {
        for key in ["total_ns", "share_percent", "count", "avg_ns"] {
            assert_eq!(row[key], kernel[key], "{key}");
        }
    }
    let path = json(&folder, &["critical-path", "train.json", "-n", "5"]);
    let parts = summary["critical_path"].as_array().unwrap();
    assert_eq!(parts.len(), 5);
    for (row, part) in parts.iter().zip(path["path_names"].as_array().unwrap()) {
        for key in ["time_ns", "share_percent", "parts", "class"] {
            assert_eq!(row[key], part[key], "{key}");
        }
    }
    let info = json(&folder, &["info", "train.json"]);
    assert_eq!(summary["steps"], info["steps"]);
    let steady = info["parts"].as_array().unwrap().iter().find(|part| part["part"] == "steps").unwrap();
    let idle: u64 =
        summary["idle_causes"].as_array().unwrap().iter().map(|row| row["total_ns"].as_u64().unwrap()).sum();
    assert_eq!(steady["idle_ns"], idle);
    let places: u64 =
        summary["idle_places"].as_array().unwrap().iter().map(|row| row["total_ns"].as_u64().unwrap()).sum();
    assert!(places <= idle);
}

#[test]
fn an_idle_verdict_is_withheld_if_launches_have_no_activity() {
    let folder = scratch("summary");
    steps(&folder, "gemm", 1);
    let text = gpuflame(&folder, ["summary", "steps.json"]).ok().stdout;
    assert!(text.contains("idle time is unknown: "), "{text}");
    for word in ["host late", "bound by", "bound:", "--idle", "busy 2"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    let summary = json(&folder, &["summary", "steps.json"]);
    assert!(summary["idle_causes"].is_null() && summary["idle_places"].is_null(), "{summary:#}");
}

#[test]
fn the_screen_has_forty_lines_of_eighty_columns_and_the_json_8000_bytes() {
    let folder = scratch("summary");
    steps(&folder, &"very_long_kernel<with, many, parameters>".repeat(400), 10);
    handmade::recording(&folder);
    training(&folder, "train.json", 0);
    for input in ["steps.json", "hand.gfr", "train.json"] {
        let screen = gpuflame(&folder, ["summary", input]).ok().stdout;
        assert!(screen.lines().count() <= 40, "{screen}");
        let narrow = |line: &&str| line.chars().count() <= 80 || line.starts_with("next: ");
        assert!(screen.lines().all(|line| narrow(&line)), "{screen}");
        let terminal = at_terminal(&folder, &["summary", input, "--color", "never"], &[("COLUMNS", "60")]);
        assert!(
            terminal.lines().all(|line| line.chars().count() <= 60 || line.starts_with("next: ")),
            "{terminal}"
        );
        assert!(gpuflame(&folder, ["summary", input, "--format", "json"]).ok().stdout.len() <= 8000);
    }
}

#[test]
fn the_next_command_can_be_pasted() {
    let folder = scratch("summary");
    steps(&folder, "gemm", 10);
    fs::rename(folder.join("steps.json"), folder.join("it's a trace.json")).unwrap();
    let text = gpuflame(&folder, ["summary", "it's a trace.json"]).ok().stdout;
    let command = text.lines().last().unwrap().strip_prefix("next: gpuflame ").unwrap();
    let program = env!("CARGO_BIN_EXE_gpuflame");
    let shell = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("{program} {command}"))
        .current_dir(&folder)
        .status();
    assert!(shell.unwrap().success() && folder.join("idle.svg").exists(), "{text}");
}

/// Writes the trace of a rank with ten steps of 1 ms. Each step launches a kernel that takes `kernel_us`, and then an
/// all-reduce. On all ranks, the all-reduce ends 960 us after the step has begun.
fn rank(folder: &Path, rank: u64, kernel_us: u64) {
    let mut events =
        vec![format!(r#"{{"ph":"i","name":"x","pid":1,"tid":1,"ts":1,"s":"g","args":{{"rank":{rank}}}}}"#)];
    let mut event = |cat: &str, name: &str, (pid, ts, dur): (u64, u64, u64), args: &str| {
        events.push(format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":7,"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
        ));
    };
    for step in 0..10 {
        let (begin, id) = (1000 + 1000 * step, 2 * step + 1);
        event("user_annotation", &format!("ProfilerStep#{step}"), (1, begin, 1000), "");
        let works = [
            ("gemm", begin + 10, kernel_us),
            ("ncclDevKernel_AllReduce_Sum_f32", begin + 12 + kernel_us, 948 - kernel_us),
        ];
        for (at, (name, start, length)) in (0..).zip(works) {
            event(
                "cuda_runtime",
                "cudaLaunchKernel",
                (1, begin + 2 + 4 * at, 3),
                &format!(r#""correlation":{}"#, id + at),
            );
            let gpu = format!(r#""correlation":{},"device":0,"stream":7"#, id + at);
            event("kernel", name, (0, start, length), &gpu);
        }
    }
    let text = format!(r#"{{"distributedInfo":{{"rank":{rank}}},"traceEvents":[{}]}}"#, events.join(","));
    fs::write(folder.join(format!("rank{rank}.json")), text).unwrap();
}

#[test]
fn the_summary_of_a_job_has_a_row_per_rank_and_names_the_verb_for_its_finding() {
    let folder = scratch("summary");
    for (number, kernel_us) in [(0, 300), (1, 900), (2, 300)] {
        rank(&folder, number, kernel_us);
    }
    let files = ["rank0.json", "rank1.json", "rank2.json"];
    let job = json(&folder, &[&["summary"], &files[..]].concat());
    // The GPU works from 10 us after the start of the first step to 960 us after the start of the last step, which is
    // 9.95 ms. During this time it is idle for 10 x 2 us within steps and 9 x 50 us between steps, which is 470 us.
    let ranks = job["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3, "{job:#}");
    for (number, row) in (0..).zip(ranks) {
        assert_eq!((&row["rank"], &row["idle_ns"]), (&number.into(), &470_000.into()), "{row}");
        assert_eq!((&row["busy_ns"], &row["step_p50_ns"]), (&9_480_000.into(), &1_000_000.into()), "{row}");
        assert!((row["busy_percent"].as_f64().unwrap() - 100.0 * 9480.0 / 9950.0).abs() < 1e-3, "{row}");
        // If the GPU waits in the collective for the slowest rank, this time counts as communication.
        let work = if number == 1 { 9_000_000_u64 } else { 3_000_000 };
        assert_eq!(
            (&row["work_ns"], &row["communication_ns"]),
            (&work.into(), &(9_480_000 - work).into()),
            "{row}"
        );
        assert!(row["idle_cause"].is_string() && row["idle_place"].is_string(), "{row}");
    }
    assert_eq!(job["findings"][0]["id"], "straggler");
    let next = job["next"][0]["command"].as_str().unwrap();
    assert_eq!(next, "gpuflame stragglers rank0.json rank1.json rank2.json");
    let stragglers = gpuflame(&folder, [&["stragglers"], &files[..]].concat()).ok().stdout;
    assert!(stragglers.contains("worst") && stragglers.contains("rank"), "{stragglers}");
}

/// Writes a trace in which kernels keep the GPU busy nearly all of the time. The step in the trace lasts from 1 us to
/// `step_end`.
fn busy_trace(folder: &Path, kernel: &str, step_end: u64) -> String {
    let event = |cat: &str, name: &str, (pid, ts, dur): (u64, u64, u64), args: &str| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"{cat}\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":7,\"ts\":{ts},\"dur\":{dur},\"args\":{{{args}}}}}"
        )
    };
    let mut events = vec![event("user_annotation", "ProfilerStep#1011", (1, 1, step_end - 1), "")];
    for id in 0..20 {
        events.push(event(
            "cuda_runtime",
            "cudaLaunchKernel",
            (1, 10 + 5 * id, 4),
            &format!("\"correlation\":{id}1"),
        ));
        let gpu = format!("\"correlation\":{id}1,\"device\":0,\"stream\":7");
        events.push(event("kernel", kernel, (0, 1000 + 1000 * id, 999), &gpu));
    }
    fs::write(folder.join("busy.json"), format!("{{\"traceEvents\":[{}]}}", events.join(","))).unwrap();
    gpuflame(folder, ["summary", "busy.json"]).ok().stdout
}

#[test]
fn a_busy_gpu_is_bound_by_what_it_does() {
    let folder = scratch("summary");
    let work = busy_trace(&folder, "gemm", 21_000);
    assert!(work.contains("bound by GPU work: the GPUs are busy 99.9 % of the time"), "{work}");
    assert!(work.contains("ProfilerStep      1") && work.contains("1011"), "{work}");
    let waiting = busy_trace(&folder, "ncclDevKernel_AllReduce", 21_000);
    assert!(waiting.contains("bound by communication: 100.0 % of the GPU work, which"), "{waiting}");
    // GPU time is counted from the GPU's first kernel, and the step is twice as long as the time from that kernel to
    // the end of the last kernel.
    let partial = busy_trace(&folder, "gemm", 41_000);
    assert!(!partial.contains("bound"), "{partial}");
}

/// The tenth of 40 launches takes 300 ms, because CUDA loads the code of its kernel. Each of the other launches takes 5
/// us.
#[test]
fn a_pause_in_a_launch_does_not_count_as_work_of_the_program() {
    let folder = scratch("summary");
    let (mut events, mut time) = (Vec::new(), 1000_u64);
    for id in 1..=40_u64 {
        let (name, took) = if id == 10 { ("rare", 300_000) } else { ("gemm", 5) };
        events.push(format!(
            r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{time},"dur":{took},"args":{{"correlation":{id}}}}}"#
        ));
        events.push(format!(
            r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{},"dur":90,"args":{{"correlation":{id},"device":0,"stream":7}}}}"#,
            time + took + 5
        ));
        time += took + 100;
    }
    fs::write(folder.join("load.json"), format!(r#"{{"traceEvents":[{}]}}"#, events.join(","))).unwrap();
    let finding = &json(&folder, &["summary", "load.json"])["findings"][0];
    assert_eq!(finding["id"], "pauses", "{finding}");
    let why = finding["why"].as_str().unwrap();
    assert!(why.starts_with("a pause of 300") && why.ends_with("code may be loaded on first use"), "{why}");
}
