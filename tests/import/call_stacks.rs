//! Compares the stacks of imported traces with a slow reference. For each launch, the reference checks every slice of
//! the thread to find out whether the slice is open when the launch begins.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use gpuflame_model::record::{ContextId, CorrelationId, Frame, FrameKind, LabelId, Row};
use gpuflame_traces::import::{self, Options};
use serde_json::{Value, json};

use crate::real_traces::{document, traces};
use crate::support::command::gpuflame;
use crate::support::{scratch, skip};

/// GPU time in ns for each stack (root first), over all GPU operations whose launch is known.
type Stacks = BTreeMap<Vec<String>, i64>;

/// A slice on a thread: start and end in ns, rank in the sort order, name, and the Python functions in its arguments
/// (outermost first).
type Slice = (i64, i64, u8, String, Vec<String>);

/// Returns the stacks that the importer's rows contain.
fn found(path: &Path) -> Stacks {
    let mut labels: BTreeMap<LabelId, String> = BTreeMap::new();
    let mut contexts: BTreeMap<ContextId, Vec<LabelId>> = BTreeMap::new();
    let mut launches: HashMap<CorrelationId, ContextId> = HashMap::new();
    let mut stacks = Stacks::new();
    let opened = import::open(path).unwrap();
    import::rows(opened, &Options::default(), &mut |row| match row {
        Row::Label { id, text } => drop(labels.insert(*id, (*text).to_owned())),
        Row::Context { id, frames, .. } => {
            let label = |frame: &Frame| match frame.kind() {
                FrameKind::Label(label) => label,
                other => panic!("{other:?}"),
            };
            contexts.insert(*id, frames.iter().rev().map(label).collect());
        }
        Row::Launch(launch) => drop(launches.insert(launch.correlation, launch.context)),
        Row::Activity(activity) => {
            if let Some(context) = launches.get(&activity.correlation) {
                let stack = contexts[context].iter().map(|label| labels[label].clone()).collect();
                *stacks.entry(stack).or_default() += activity.duration().unwrap_or(0) as i64;
            }
        }
        _ => {}
    })
    .unwrap();
    stacks
}

/// Converts a number of microseconds, as it is written in the file, to nanoseconds.
fn nanos(value: &Value) -> i64 {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    whole.parse::<i64>().unwrap() * 1000 + part.parse::<i64>().unwrap()
}

fn rank(event: &Value) -> Option<u8> {
    Some(match event["cat"].as_str()? {
        "python_function" => 0,
        "user_annotation" => 1,
        "cpu_op" | "Operator" => {
            let name = event["name"].as_str()?;
            if name.starts_with("ProfilerStep#") { 1 } else { 2 }
        }
        "cuda_runtime" | "cuda_driver" | "Runtime" => 3,
        _ => return None,
    })
}

/// Computes the stacks by their definition: a stack consists of all slices that are open when the launch begins.
fn expected(trace: &Value) -> Stacks {
    let events: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
    let thread = |event: &Value| (event["pid"].to_string(), event["tid"].to_string());
    let has_python = events.iter().any(|event| rank(event) == Some(0));
    let mut threads: BTreeMap<_, Vec<Slice>> = BTreeMap::new();
    for event in &events {
        if let Some(rank) = rank(event) {
            let start = nanos(&event["ts"]);
            let name = event["name"].as_str().unwrap().to_owned();
            let functions = event["args"]["Call stack"].as_str().filter(|_| !has_python).unwrap_or("");
            let functions = functions.split(';').rev().filter(|function| !function.is_empty());
            let slice =
                (start, start + nanos(&event["dur"]), rank, name, functions.map(str::to_owned).collect());
            threads.entry(thread(event)).or_default().push(slice);
        }
    }
    // Sorts slices so that outer slices come first: by earlier start, later end, and rank. The sort is stable, so equal
    // slices keep the order of the file.
    threads.values_mut().for_each(|slices| slices.sort_by_key(|slice| (slice.0, -slice.1, slice.2)));
    let mut launches = BTreeMap::new();
    for event in events.iter().filter(|event| rank(event) == Some(3)) {
        let (start, end) = (nanos(&event["ts"]), nanos(&event["ts"]) + nanos(&event["dur"]));
        let own: Slice = (start, end, 3, event["name"].as_str().unwrap().to_owned(), Vec::new());
        let slices = &threads[&thread(event)];
        let first = slices.partition_point(|slice| slice.0 < start);
        let at = first + slices[first..].iter().position(|slice| *slice == own).unwrap();
        let is_open = |slice: &&Slice| (slice.0 <= start && start < slice.1) || slice.0 == start;
        let open: Vec<&Slice> = slices[..at].iter().filter(is_open).collect();
        // Functions in the arguments of the innermost operator are still running at the launch. Functions in the
        // arguments of a range are those that opened the range, and they have already returned. Therefore the functions
        // in the arguments of ranges are left out.
        let is_range = |slice: &Slice| {
            slice.2 == 1 || slice.4.last().is_some_and(|function| function.ends_with(": __enter__"))
        };
        let innermost = open.iter().rposition(|slice| !slice.4.is_empty() && !is_range(slice));
        let running = innermost.map_or(&[][..], |at| &open[at].4);
        let (mut stack, mut drawn) = (Vec::new(), 0);
        for (at, slice) in open.iter().enumerate() {
            let shared = match innermost {
                Some(innermost) if at <= innermost => {
                    slice.4.iter().zip(running).take_while(|(a, b)| a == b).count()
                }
                _ => 0,
            };
            stack.extend_from_slice(running.get(drawn..shared).unwrap_or_default());
            drawn = drawn.max(shared);
            stack.push(slice.3.clone());
        }
        stack.push(own.3);
        if let Some(id) = event["args"]["correlation"].as_u64() {
            launches.insert(id, stack);
        }
    }
    let mut stacks = Stacks::new();
    for event in events {
        let is_work = ["kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"];
        if is_work.contains(&event["cat"].as_str().unwrap_or(""))
            && let Some(stack) = event["args"]["correlation"].as_u64().and_then(|id| launches.get(&id))
        {
            *stacks.entry(stack.clone()).or_default() += nanos(&event["dur"]).max(0);
        }
    }
    stacks
}

/// Asserts that the found stacks equal the expected ones, and prints the differences if they do not.
fn assert_same(found: &Stacks, expected: &Stacks, what: &str) {
    let differ: Vec<_> = expected.iter().filter(|(stack, time)| found.get(*stack) != Some(time)).collect();
    let ghosts: Vec<_> = found.keys().filter(|stack| !expected.contains_key(*stack)).collect();
    let shown = (differ.iter().take(2).collect::<Vec<_>>(), ghosts.iter().take(2).collect::<Vec<_>>());
    assert!(
        differ.is_empty() && ghosts.is_empty(),
        "{what}: {} and {}: {shown:#?}",
        differ.len(),
        ghosts.len()
    );
    assert!(!expected.is_empty(), "{what}");
}

/// A generator of pseudo-random numbers that are the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Returns a trace of slices that overlap arbitrarily, except that no Python function outlives its caller. Few distinct
/// times occur in the trace, so many slices begin or end at the same time.
fn random_trace(seed: u64) -> Value {
    let mut rng = Rng(seed);
    let (mut events, mut functions) = (Vec::new(), Vec::new());
    for at in 0..120 {
        let (start, length) = (rng.below(60), rng.below(25));
        let thread = 1 + rng.below(2);
        let end = start + length;
        let crosses = |&(of, from, to): &(u64, u64, u64)| {
            let is_crossed =
                (from < start && start < to && to < end) || (start < from && from < end && end < to);
            of == thread && is_crossed
        };
        let (category, name) = match rng.below(4) {
            0 if !functions.iter().any(crosses) => {
                functions.push((thread, start, end));
                ("python_function", "function")
            }
            0 => ("cpu_op", "operator"),
            1 => ("user_annotation", "range"),
            2 => ("cpu_op", "operator"),
            _ => ("cuda_runtime", "cudaLaunchKernel"),
        };
        let name = format!("{name} {at}");
        events.push(json!({"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": start,
            "dur": length, "args": {"correlation": at + 1}}));
        if category == "cuda_runtime" {
            events.push(json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1000 + at,
                "dur": 1, "args": {"correlation": at + 1, "device": 0, "stream": 7}}));
        }
    }
    json!({ "traceEvents": events })
}

#[test]
fn stacks_consist_of_the_open_slices_however_they_overlap() {
    let folder = scratch("stacks");
    for seed in 0..200 {
        let (trace, path) = (random_trace(seed), folder.join("trace.json"));
        fs::write(&path, trace.to_string()).unwrap();
        assert_same(&found(&path), &expected(&trace), &format!("seed {seed}"));
    }
}

#[test]
fn stacks_of_real_traces_consist_of_the_open_slices() {
    let Some(folder) = traces() else { return };
    for name in [
        "b200/eager_trace.json.gz",
        "graphs/graph_execution.json.gz",
        "h100/Falconsai_nsfw_image_detection__1016002.json.gz",
        "h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
        "kineto-2021/worker0.1623143566756.pt.trace.json.gz",
        "kineto-2024/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "kineto-rocm/resnet_act_checkpoint.json.gz",
    ] {
        let path = folder.join(name);
        assert_same(&found(&path), &expected(&document(&path)), name);
    }
}

/// Checks all traces in the folder `GPUFLAME_MORE_TRACES` and its subfolders, and prints how much GPU time was compared
/// in each trace. The check takes minutes.
#[test]
fn stacks_of_further_traces_consist_of_the_open_slices() {
    let Some(folder) = std::env::var_os("GPUFLAME_MORE_TRACES") else {
        return skip("GPUFLAME_MORE_TRACES names no folder of further traces");
    };
    let mut folders = vec![PathBuf::from(folder)];
    let mut compared = 0;
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let is_json = name.ends_with(".json") || name.ends_with(".json.gz");
            if !is_json || import::open(&path).map(|opened| opened.kind()).ok() != Some(import::Kind::Chrome)
            {
                continue;
            }
            let trace = document(&path);
            if !trace["traceEvents"].is_array() {
                continue;
            }
            let expected = expected(&trace);
            if !expected.is_empty() {
                assert_same(&found(&path), &expected, &name);
            }
            eprintln!("{} ns in {} stacks: {name}", expected.values().sum::<i64>(), expected.len());
            compared += expected.len();
        }
    }
    assert!(compared > 0);
}

/// PyTorch's profiler itself names the operator around a launch by its `External id`. Therefore the test can compare
/// this operator with the innermost operator of the stack.
#[test]
fn the_innermost_operator_of_a_launch_is_the_one_the_profiler_names() {
    let Some(folder) = traces() else { return };
    for name in ["b200/eager_trace.json.gz", "kineto-2024/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"] {
        let trace = document(&folder.join(name));
        let events = trace["traceEvents"].as_array().unwrap();
        let of =
            |category: &str| events.iter().filter(move |event| event["cat"] == category).collect::<Vec<_>>();
        let id = |event: &Value| event["args"]["External id"].as_u64();
        let operators: BTreeMap<_, _> = of("cpu_op")
            .into_iter()
            .filter_map(|event| Some((id(event)?, event["name"].as_str()?)))
            .collect();
        let is_operator: std::collections::BTreeSet<_> = operators.values().copied().collect();
        let mut named: BTreeMap<(&str, i64), i64> = BTreeMap::new();
        for work in ["kernel", "gpu_memcpy", "gpu_memset"].into_iter().flat_map(of) {
            if let Some(operator) = id(work).and_then(|id| operators.get(&id)) {
                *named.entry((operator, 0)).or_default() += nanos(&work["dur"]);
            }
        }
        let mut ours: BTreeMap<(&str, i64), i64> = BTreeMap::new();
        let stacks = found(&folder.join(name));
        for (stack, time) in &stacks {
            if let Some(operator) = stack.iter().rev().find(|frame| is_operator.contains(frame.as_str())) {
                *ours.entry((operator, 0)).or_default() += time;
            }
        }
        assert_eq!(ours, named, "{name}");
    }
}

#[test]
fn slices_may_consist_of_separate_begin_and_end_events() {
    let folder = scratch("edges");
    let edge = |phase: &str, category: &str, name: &str, time: u64| json!({"ph": phase, "cat": category, "name": name, "pid": 1, "tid": 1, "ts": time});
    let mut call = edge("B", "cuda_runtime", "cudaLaunchKernel", 25);
    call["args"] = json!({"correlation": 7});
    let events = vec![
        edge("B", "user_annotation", "outer", 10),
        edge("B", "cpu_op", "over", 12),
        // An end event needs no category, and the events may be in any order.
        json!({"ph": "E", "pid": 1, "tid": 1, "ts": 15}),
        edge("b", "user_annotation", "another task's", 11),
        edge("E", "cuda_runtime", "cudaLaunchKernel", 27),
        call,
        edge("B", "cpu_op", "inner", 20),
        json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 40, "dur": 5,
            "args": {"correlation": 7, "device": 0, "stream": 7}}),
    ];
    let path = folder.join("trace.json");
    fs::write(&path, json!({ "traceEvents": events }).to_string()).unwrap();
    let stack = ["outer", "inner", "cudaLaunchKernel"].map(str::to_owned).to_vec();
    assert_eq!(found(&path), Stacks::from([(stack, 5000)]));
}

/// Returns a trace event that marks the begin or the end of a slice. `name` and `category` may be empty.
fn edge(phase: &str, category: &str, name: &str, time: u64) -> Value {
    let mut event = json!({"ph": phase, "pid": 1, "tid": 1, "ts": time});
    for (key, text) in [("cat", category), ("name", name)] {
        if !text.is_empty() {
            event[key] = text.into();
        }
    }
    event
}

/// Returns the stack of the only launch, which is at 30 us, and the stderr of the command.
fn stack_at_launch(mut events: Vec<Value>) -> (String, String) {
    events.push(
        json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 30,
        "dur": 2, "args": {"correlation": 1}}),
    );
    events.push(json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 90, "dur": 5,
        "args": {"correlation": 1, "device": 0, "stream": 7}}));
    let folder = scratch("ends");
    fs::write(folder.join("trace.json"), json!({ "traceEvents": events }).to_string()).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "trace.json"]).ok();
    let stack = ran.stdout.strip_suffix("cudaLaunchKernel;[GPU_Kernel]k 5000\n").expect(&ran.stdout);
    (stack.trim_end_matches(';').to_owned(), ran.stderr)
}

#[test]
fn an_end_event_closes_the_innermost_slice_of_its_category_and_name() {
    let outer = |phase: &str, time| edge(phase, "cpu_op", "outer", time);
    let inner = |phase: &str, category: &str, name: &str, time| edge(phase, category, name, time);
    // The end event of the inner slice ends only that slice, even if the event's category or name is unknown or
    // missing.
    for (category, name) in [("mylib", "inner"), ("", "inner"), ("mylib", ""), ("", "")] {
        let events = vec![
            outer("B", 0),
            inner("B", category, name, 10),
            inner("E", category, name, 20),
            outer("E", 60),
        ];
        assert_eq!(stack_at_launch(events), ("outer".to_owned(), String::new()), "{category:?} {name:?}");
    }
    // An end event without a matching begin event is counted and reported.
    for (category, name) in
        [("mylib", "inner"), ("", "inner"), ("cpu_op", "gamma"), ("user_annotation", "outer")]
    {
        let (stack, stderr) =
            stack_at_launch(vec![outer("B", 0), inner("E", category, name, 20), outer("E", 60)]);
        assert_eq!(stack, "outer", "{category:?} {name:?}");
        assert!(stderr.contains("ignored 1 end without a begin"), "{stderr}");
    }
    // Two slices are open. The name in the first end event decides which of the two open slices ends. If the event has
    // no name, the innermost slice ends.
    let crosswise = |name: &str| {
        vec![
            outer("B", 0),
            edge("B", "cpu_op", "beta", 1),
            edge("E", "cpu_op", name, 5),
            edge("E", "cpu_op", "", 50),
        ]
    };
    assert_eq!(stack_at_launch(crosswise("outer")).0, "beta");
    assert_eq!(stack_at_launch(crosswise("beta")).0, "outer");
    assert_eq!(stack_at_launch(crosswise("")).0, "outer");
    // The begin event writes the name with an escape sequence, and the end event writes the same name without it.
    let escaped = r#"{"traceEvents":[{"ph":"B","cat":"cpu_op","name":"a\/b","pid":1,"tid":1,"ts":0},
        {"ph":"E","cat":"cpu_op","name":"a/b","pid":1,"tid":1,"ts":5},
        {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":30,"dur":2,"args":{"correlation":1}},
        {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":90,"dur":5,"args":{"correlation":1,"device":0}}]}"#;
    let folder = scratch("ends");
    fs::write(folder.join("trace.json"), escaped).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "trace.json"]).ok();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("cudaLaunchKernel;[GPU_Kernel]k 5000\n", ""));
}

#[test]
fn a_slice_that_never_ends_lasts_to_the_end_of_the_trace_and_is_counted() {
    let (stack, stderr) = stack_at_launch(vec![edge("B", "cpu_op", "outer", 0)]);
    assert_eq!(stack, "outer");
    assert!(stderr.contains("1 begin without an end"), "{stderr}");
}

#[test]
fn gpu_work_may_consist_of_separate_begin_and_end_events() {
    let folder = scratch("work-edges");
    let call = |time: u64, id: u32| {
        json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": time,
            "dur": 2, "args": {"correlation": id}})
    };
    let kernel = |phase: &str, name: &str, time: u64, args: Value| json!({"ph": phase, "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": time, "args": args});
    let events = [
        call(0, 1),
        call(3, 2),
        call(6, 3),
        kernel("B", "a", 10, json!({"correlation": 1, "device": 0, "stream": 7})),
        kernel("E", "a", 30, json!({})),
        // The correlation id of a kernel may be in its end event.
        kernel("B", "b", 40, json!({"device": 0, "stream": 7})),
        kernel("E", "b", 45, json!({"correlation": 2})),
        kernel("B", "endless", 50, json!({"correlation": 3, "device": 0, "stream": 7})),
    ];
    fs::write(folder.join("trace.json"), json!({ "traceEvents": events }).to_string()).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "trace.json"]).ok();
    for line in ["cudaLaunchKernel;[GPU_Kernel]a 20000", "cudaLaunchKernel;[GPU_Kernel]b 5000"] {
        assert!(ran.stdout.lines().any(|found| found == line), "{line}: {}", ran.stdout);
    }
    assert!(ran.stderr.contains("1 begin without an end"), "{}", ran.stderr);
    let info = gpuflame(&folder, ["info", "trace.json"]).ok().stdout;
    assert!(
        info.lines().any(|line| line.starts_with("timestamp_not_collected") && line.ends_with(" 1")),
        "{info}"
    );
}

#[test]
fn gpu_work_without_a_usable_duration_is_counted_and_reported() {
    let folder = scratch("untimed");
    let kernel =
        |rest: &str| format!(r#"{{"cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1{rest}}}"#);
    let events = [
        kernel(r#", "ph": "X", "dur": 5"#),
        kernel(r#", "ph": "X""#),
        kernel(r#", "ph": "X", "dur": NaN"#),
        kernel(r#", "ph": "B""#),
        kernel(r#", "ph": "E""#),
    ];
    fs::write(folder.join("trace.json"), format!(r#"{{"traceEvents": [{}]}}"#, events.join(","))).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "trace.json"]).ok();
    assert!(ran.stderr.contains("skipped 2 events without usable times"), "{}", ran.stderr);
    assert_eq!(ran.stdout.lines().filter(|line| line.ends_with(" 5000")).count(), 1, "{}", ran.stdout);
}

#[test]
fn a_trace_without_gpu_work_is_rejected_with_the_categories_it_has() {
    let folder = scratch("categories");
    let trace = r#"{"traceEvents": [{"ph": "X", "cat": "mtia_ccp_events", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}"#;
    fs::write(folder.join("trace.json"), trace).unwrap();
    for verb in [["flamegraph", "trace.json"], ["top", "trace.json"], ["view", "trace.json"]] {
        gpuflame(&folder, verb).fails(1, &["mtia_ccp_events", "kernel"]);
    }
    gpuflame(&folder, ["info", "trace.json"]).ok();
}

#[test]
fn an_unknown_output_extension_is_rejected() {
    let folder = scratch("endings");
    fs::write(folder.join("trace.json"), random_trace(1).to_string()).unwrap();
    for name in ["x.png", "x.html"] {
        gpuflame(&folder, ["flamegraph", "trace.json", "-o", name]).fails(2, &[".svg"]);
        assert!(!folder.join(name).exists());
    }
    gpuflame(&folder, ["-q", "flamegraph", "trace.json", "--alloc"])
        .fails(1, &["GPUFLAME_FORMATS=sums,alloc"]);
}
