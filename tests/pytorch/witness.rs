//! Compares gpuflame with PyTorch's own profiler, Kineto. Kineto traces one run of a program on the simulated CUDA
//! stack, and gpuflame records another run. Kineto and gpuflame are both clients of CUPTI, and neither reads the truth
//! file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use crate::installed::{devices, folder, packages, run};
use crate::operators::assert_operators;
use crate::support::{Done, Way, command, scratch};
use serde_json::Value;

/// A kernel, copy or fill as both profilers report it.
#[derive(Debug)]
struct Work {
    kind: &'static str,
    name: String,
    /// Sizes of the grid and the block of a kernel.
    extents: Vec<u64>,
    /// Size of a copy or a fill in bytes.
    bytes: u64,
    start: f64,
    nanos: f64,
}

/// GPU work for each device and stream, sorted by time.
type Streams = BTreeMap<(u64, u64), Vec<Work>>;

fn in_order(mut streams: Streams) -> Streams {
    streams.values_mut().for_each(|works| works.sort_by(|a, b| a.start.total_cmp(&b.start)));
    streams
}

pub(crate) fn events(trace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

fn of_kineto(events: &[Value]) -> Streams {
    let mut streams = Streams::new();
    for event in events {
        let kind = match event["cat"].as_str() {
            Some("kernel") => "kernel",
            Some("gpu_memcpy") => "copy",
            Some("gpu_memset") => "set",
            _ => continue,
        };
        let (name, args) = (event["name"].as_str().unwrap(), &event["args"]);
        let extent = |what: &str| args[what].as_array().into_iter().flatten().map(|v| v.as_u64().unwrap());
        let work = Work {
            kind,
            name: name.to_owned(),
            extents: extent("grid").chain(extent("block")).collect(),
            bytes: args["bytes"].as_u64().unwrap_or(0),
            start: event["ts"].as_f64().unwrap() * 1e3,
            nanos: event["dur"].as_f64().unwrap() * 1e3,
        };
        let stream = (args["device"].as_u64().unwrap(), args["stream"].as_u64().unwrap());
        streams.entry(stream).or_default().push(work);
    }
    in_order(streams)
}

fn of_gpuflame(done: &Done, table: &str) -> Streams {
    let table = done.file(table);
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let mut streams = Streams::new();
    for row in reader.records().map(Result::unwrap) {
        let text = |name: &str| &row[headers.iter().position(|header| header == name).unwrap()];
        let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
        let kind = ["kernel", "copy", "set"].into_iter().find(|kind| *kind == text("kind")).unwrap();
        let extents = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"];
        let work = Work {
            kind,
            name: text("name").to_owned(),
            extents: if kind == "kernel" { extents.map(number).to_vec() } else { Vec::new() },
            bytes: number("bytes"),
            start: number("start_ns") as f64,
            nanos: number("duration_ns") as f64,
        };
        streams.entry((number("device"), number("stream"))).or_default().push(work);
    }
    in_order(streams)
}

fn assert_alike(kineto: &Streams, gpuflame: &Streams) {
    assert!(kineto.keys().eq(gpuflame.keys()), "{:?} {:?}", kineto.keys(), gpuflame.keys());
    // For each kernel name that Kineto reports, there must be exactly one kernel name that gpuflame reports. Kineto's
    // names include types and parameters.
    let mut names = HashMap::new();
    for (stream, theirs) in kineto {
        let ours = &gpuflame[stream];
        assert_eq!(theirs.len(), ours.len(), "{stream:?}");
        for (place, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
            let alike =
                theirs.kind == ours.kind && theirs.extents == ours.extents && theirs.bytes == ours.bytes;
            // CUPTI converts nanoseconds to ticks of the processor. Kineto converts the ticks back, with a rate that it
            // measures itself. Therefore a duration is wrong by two roundings and by the errors of two rates. The
            // largest observed difference is one nanosecond.
            let rounding = 2.0 + theirs.nanos / 1e4;
            // The time that a rank waits for another rank in a collective differs from run to run.
            let waits = theirs.name.contains("ncclDevKernel");
            let alike = alike && (waits || (theirs.nanos - ours.nanos).abs() <= rounding);
            assert!(alike, "{stream:?}, {place}:\n{theirs:?}\n{ours:?}");
            let known = names.entry(theirs.name.as_str()).or_insert(ours.name.as_str());
            assert_eq!(*known, ours.name, "{}", theirs.name);
        }
    }
}

/// An operator or a CUDA call on a thread, with its external id.
struct Span<'a> {
    start: f64,
    end: f64,
    external: Option<&'a Value>,
}

/// Returns the operators and CUDA calls on each thread, sorted by start.
fn spans<'a>(events: &'a [Value], cat: &str) -> HashMap<u64, Vec<Span<'a>>> {
    let mut threads: HashMap<u64, Vec<Span<'_>>> = HashMap::new();
    for event in events.iter().filter(|event| event["cat"] == cat) {
        let start = event["ts"].as_f64().unwrap();
        let end = start + event["dur"].as_f64().unwrap();
        let span = Span { start, end, external: event["args"].get("External id") };
        threads.entry(event["tid"].as_u64().unwrap()).or_default().push(span);
    }
    threads.values_mut().for_each(|spans| spans.sort_by(|a, b| a.start.total_cmp(&b.start)));
    threads
}

/// Returns all calls of the CUDA runtime, and the calls of the CUDA driver that the program makes directly.
pub(crate) fn calls(events: &[Value]) -> impl Iterator<Item = &Value> {
    events.iter().filter(|event| event["cat"] == "cuda_runtime" || event["cat"] == "cuda_driver")
}

/// Copies from one GPU to another have their own kind of activity record (22). Kineto does not request this record
/// kind.
const UNASKED: &str = "PtoP";

/// Calls that wait for the GPU. Both profilers report these calls.
const WAITS: [&str; 3] = ["cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamSynchronize"];

/// For each thread, returns how often it called each function that starts GPU work or waits for the GPU. Thread ids
/// differ from run to run. Programs that nvcc 13 compiled call `__cudaLaunchKernel`, for which gpuflame shows the usual
/// name.
fn calls_by_thread(events: &[Value]) -> Vec<BTreeMap<&str, usize>> {
    let correlation = |event: &Value| event["args"]["correlation"].as_u64().unwrap();
    let is_work = |event: &&Value| {
        let is_asked_for = !event["name"].as_str().unwrap().ends_with(UNASKED);
        is_asked_for && matches!(event["cat"].as_str(), Some("kernel" | "gpu_memcpy" | "gpu_memset"))
    };
    let works: HashSet<u64> = events.iter().filter(is_work).map(correlation).collect();
    let mut threads: HashMap<u64, BTreeMap<&str, usize>> = HashMap::new();
    let is_wait = |call: &Value| WAITS.contains(&call["name"].as_str().unwrap());
    for call in calls(events).filter(|call| is_wait(call) || works.contains(&correlation(call))) {
        let calls = threads.entry(call["tid"].as_u64().unwrap()).or_default();
        *calls.entry(call["name"].as_str().unwrap().trim_start_matches("__")).or_default() += 1;
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    threads.sort();
    threads
}

/// Returns Kineto's trace without one wait for the GPU, which Kineto itself makes at the end of the profile.
fn without_own_wait(events: &[Value]) -> Vec<Value> {
    let is_wait = |event: &&Value| event["name"] == "cudaDeviceSynchronize" && event["cat"] == "cuda_runtime";
    let start = |event: &Value| event["ts"].as_f64().unwrap();
    let own = events.iter().filter(is_wait).map(start).fold(0.0, f64::max);
    events.iter().filter(|event| !is_wait(event) || start(event) < own).cloned().collect()
}

/// Asserts that Kineto's trace has as many allocations and frees as the text above gpuflame's flame graph of
/// allocations states. Allocations and frees are counted over all threads, because gpuflame does not report the thread
/// of such a call.
fn assert_memory_calls(kineto: &[Value], done: &Done, picture: &str) {
    let count =
        |names: &[&str]| calls(kineto).filter(|call| names.contains(&call["name"].as_str().unwrap())).count();
    let given = count(&["cudaMalloc", "cudaHostAlloc", "cudaMallocHost", "cudaMallocManaged"]);
    let taken = count(&["cudaFree", "cudaFreeHost"]);
    let picture = done.file(picture);
    let numbers = |text: &str| {
        let (_, calls) = text.split_once(" allocated in ")?;
        let (given, taken) = calls.split_once(" calls, ")?;
        let (_, taken) = taken.split_once(" freed in ")?;
        let taken: String = taken.chars().take_while(char::is_ascii_digit).collect();
        Some((given.parse().ok()?, taken.parse().ok()?))
    };
    let told: Option<(usize, usize)> = picture.lines().find_map(numbers);
    assert_eq!(told, Some((given, taken)));
}

/// Asserts for Kineto's trace that the external id of each kernel, copy and fill is that of the innermost operator
/// around its launch. Returns the number of kernels, copies and fills that have such an operator.
fn assert_external_ids(events: &[Value]) -> usize {
    let operators = spans(events, "cpu_op");
    let of = |cat: &'static str| events.iter().filter(move |event| event["cat"] == cat);
    let correlation = |event: &Value| event["args"]["correlation"].as_u64().unwrap();
    let launches: HashMap<u64, &Value> = calls(events).map(|call| (correlation(call), call)).collect();
    let mut known = 0;
    for work in of("kernel").chain(of("gpu_memcpy")).chain(of("gpu_memset")) {
        let call = launches[&correlation(work)];
        let start = call["ts"].as_f64().unwrap();
        let end = start + call["dur"].as_f64().unwrap();
        let thread = operators.get(&call["tid"].as_u64().unwrap()).map_or(&[][..], Vec::as_slice);
        // Operators are nested. Therefore the innermost operator is the operator that began last before the launch and
        // has not ended.
        let before = &thread[..thread.partition_point(|operator| operator.start <= start)];
        let innermost = before.iter().rev().find(|operator| operator.end >= end).and_then(|it| it.external);
        assert_eq!(innermost, work["args"].get("External id"), "{call}");
        known += usize::from(innermost.is_some());
    }
    known
}

const TRANSFORMERS: &str = "transformers_models.py";

/// Runs a program, which may have arguments, once under Kineto and once under gpuflame, which writes the output formats
/// `formats`.
fn both(program: &str, how: &[&str], formats: &str) -> Option<(Vec<Value>, Done)> {
    let (program, args) = program.split_once(' ').unwrap_or((program, ""));
    let args = || args.split_whitespace();
    let (folder, packages) = (folder()?, packages(program)?);
    let cache = scratch("witness");
    let run = |program, way| {
        let run = run(folder, program, way)
            .env("PYTHONPATH", packages)
            .env("TRITON_CACHE_DIR", cache.join("triton"));
        let run = run.env("TORCHINDUCTOR_CACHE_DIR", &cache).env("TORCHINDUCTOR_COMPILE_THREADS", "1");
        run.env("GPUSIM_NDEV", devices(program)).env("GPUSIM_CUPTI_VERSION", "13.2")
    };
    if program == "compiled.py" {
        // The first run of the program fills the caches of the compiler. Therefore later runs compile nothing.
        drop(run(program, Way::None).args(args()).ok());
    }
    let traced =
        run("witness.py", Way::None).args(how.iter().copied()).args(["trace.json", program]).args(args());
    // Kineto leaves out GPU work that ends after the profile has ended. With a real clock, all GPU work has ended when
    // the program has waited for the GPU.
    let traced = traced.env("GPUSIM_NDEV", devices(program)).env("GPUSIM_CLOCK", "real").ok();
    let done = run(program, Way::Injected).args(args()).env("GPUFLAME_FORMATS", formats);
    let done = done.env("GPUSIM_TRUTH", "summary:truth.json,works.jsonl").ok();
    Some((events(&traced.folder.join("trace.json")), done))
}

/// A kernel, copy or fill: correlation id of its call, device, stream, start and end in ns.
type Exactly = [u64; 5];

/// Returns the GPU work of a run under gpuflame, from gpuflame's table of activities.
fn told(done: &Done) -> Vec<Exactly> {
    let table = done.file("out.activities.csv");
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let columns = ["correlation", "device", "stream", "start_ns", "end_ns"]
        .map(|name| headers.iter().position(|header| header == name).unwrap());
    let row = |row: csv::StringRecord| columns.map(|column| row[column].parse().unwrap());
    let mut all: Vec<Exactly> = reader.records().map(|record| row(record.unwrap())).collect();
    all.sort_unstable();
    all
}

/// Returns the GPU work of any run, from the truth file, which lists each piece.
pub(crate) fn ran(done: &Done) -> Vec<Exactly> {
    let row =
        |row: Value| ["corr", "device", "stream", "start", "end"].map(|name| row[name].as_u64().unwrap());
    let text = done.file("works.jsonl");
    let mut all: Vec<Exactly> = text.lines().map(|line| row(serde_json::from_str(line).unwrap())).collect();
    all.sort_unstable();
    all
}

fn compare(program: &str) -> Option<usize> {
    let (kineto, done) = both(program, &[], "activities,chrome,svg,wait,alloc")?;
    let mut gpuflame = of_gpuflame(&done, "out.activities.csv");
    assert_eq!(gpuflame.values().map(Vec::len).sum::<usize>() as u64, done.truth().count("count"));
    gpuflame.values_mut().for_each(|works| works.retain(|work| work.name != UNASKED));
    assert_alike(&of_kineto(&kineto), &gpuflame);
    assert_eq!(told(&done), ran(&done));
    let kineto = without_own_wait(&kineto);
    assert_eq!(calls_by_thread(&kineto), calls_by_thread(&events(&done.folder.join("out.json"))));
    assert_memory_calls(&kineto, &done, "out.alloc.svg");
    Some(assert_external_ids(&kineto))
}

#[test]
fn kineto_records_the_same_work_of_a_training_step() {
    let Some(launched_by_operators) = compare("train.py") else { return };
    assert!(launched_by_operators > 2000, "{launched_by_operators}");
}

#[test]
fn kineto_records_the_same_work_of_a_decode_loop() {
    let Some(launched_by_operators) = compare("decode.py") else { return };
    assert!(launched_by_operators > 700, "{launched_by_operators}");
}

/// Runs the remaining programs except `ranges.py`, because `emit_nvtx` and torch.profiler cannot be used together.
#[test]
#[ignore = "takes two minutes; .ci/long runs it"]
fn kineto_records_the_same_work_of_the_other_programs() {
    for (program, at_least) in [("devices.py", 400), ("loader.py", 60), ("pressure.py", 500)] {
        let Some(launched_by_operators) = compare(program) else { return };
        assert!(launched_by_operators > at_least, "{program}: {launched_by_operators}");
    }
}

/// Kernels that Triton launches itself belong to no operator. `.ci/long` installs Triton.
#[test]
fn kineto_records_the_same_triton_kernels() {
    let Some(launched_by_operators) = compare("triton_kernels.py") else { return };
    assert_eq!(launched_by_operators, 0);
}

/// Compares how Kineto and gpuflame show Inductor's code, which launches Triton's kernels, and the graphs that Inductor
/// captures.
#[test]
#[ignore = "takes two minutes; .ci/long runs it"]
fn kineto_records_the_same_work_of_a_compiled_model() {
    for mode in ["default", "reduce-overhead"] {
        let Some(launched_by_operators) = compare(&format!("compiled.py {mode}")) else { return };
        assert!(launched_by_operators > 50, "{mode}: {launched_by_operators}");
    }
}

/// Both ranks write a trace. Between the runs, only the times for which the ranks wait for each other differ.
#[test]
#[ignore = "takes a minute; .ci/long runs it"]
fn kineto_records_the_same_work_of_two_ranks() {
    let Some(folder) = folder() else { return };
    let run = |way| {
        let run = run(folder, "ddp.py", way).env("GPUSIM_NDEV", "2").env("GPUSIM_TRUTH", "");
        run.env("GPUSIM_CUPTI_VERSION", "13.2")
    };
    let traced = run(Way::None).env("TRACE", "rank").env("GPUSIM_CLOCK", "real").ok();
    let done = run(Way::Injected)
        .env("GPUFLAME_OUTPUT", "rank%r")
        .env("GPUFLAME_FORMATS", "activities,chrome,svg,wait,alloc")
        .ok();
    for rank in 0..2 {
        let kineto = events(&traced.folder.join(format!("rank{rank}.json")));
        assert_alike(&of_kineto(&kineto), &of_gpuflame(&done, &format!("rank{rank}.activities.csv")));
        let gpuflame = events(&done.folder.join(format!("rank{rank}.json")));
        let kineto = without_own_wait(&kineto);
        assert_eq!(calls_by_thread(&kineto), calls_by_thread(&gpuflame), "rank {rank}");
        let launched_by_operators = assert_external_ids(&kineto);
        assert!(launched_by_operators > 500, "{launched_by_operators}");
    }
}

/// A Python function: the name of its file, and the name of the function.
type PythonFrame = (String, String);

/// Python functions around each launch, root first, for each device and stream, sorted by time.
type Launches = BTreeMap<(u64, u64), Vec<Vec<PythonFrame>>>;

/// Time and Python functions of each launch, for each device and stream, not sorted.
type Timed<T> = BTreeMap<(u64, u64), Vec<(T, Vec<PythonFrame>)>>;

fn without_times<T: PartialOrd>(streams: Timed<T>) -> Launches {
    let in_order = |mut works: Vec<(T, Vec<PythonFrame>)>| {
        works.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap());
        works.into_iter().map(|(_, frames)| frames).collect()
    };
    streams.into_iter().map(|(stream, works)| (stream, in_order(works))).collect()
}

/// Returns the Python functions around launches according to Kineto. `program` is the outermost function of the program
/// itself. The functions around this outermost function belong to Kineto.
fn frames_of_kineto(events: &[Value], program: &str) -> Launches {
    let mut names: HashMap<u64, Vec<(f64, f64, PythonFrame)>> = HashMap::new();
    for event in events.iter().filter(|event| event["cat"] == "python_function") {
        let (start, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        let name = event["name"].as_str().unwrap();
        let frame = match name.split_once("): ") {
            // Kineto gives this name to the Python function that calls a module.
            None if name.starts_with("nn.Module: ") => {
                ("module.py".to_owned(), "_wrapped_call_impl".to_owned())
            }
            // Frames of C functions are skipped.
            None => continue,
            Some((place, function)) => {
                let file = place.rsplit_once('(').unwrap().0.rsplit('/').next().unwrap();
                (file.to_owned(), function.to_owned())
            }
        };
        names.entry(event["tid"].as_u64().unwrap()).or_default().push((start, start + dur, frame));
    }
    // If two functions begin at the same time, the longer function contains the shorter one.
    names.values_mut().for_each(|all| all.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1))));
    let correlation = |event: &Value| event["args"]["correlation"].as_u64().unwrap();
    let calls: HashMap<u64, &Value> = calls(events).map(|call| (correlation(call), call)).collect();
    let mut streams = Timed::<f64>::new();
    for work in events.iter().filter(|event| event["cat"] == "kernel") {
        let call = calls[&correlation(work)];
        let at = call["ts"].as_f64().unwrap();
        let all = names.get(&call["tid"].as_u64().unwrap()).map_or(&[][..], Vec::as_slice);
        let before = &all[..all.partition_point(|(start, ..)| *start <= at)];
        let open = before.iter().filter(|(_, end, _)| *end >= at).map(|(.., frame)| frame.clone());
        let open: Vec<_> = open.skip_while(|(file, _)| file != program).collect();
        let args = &work["args"];
        let stream = (args["device"].as_u64().unwrap(), args["stream"].as_u64().unwrap());
        streams.entry(stream).or_default().push((work["ts"].as_f64().unwrap(), open));
    }
    without_times(streams)
}

/// Returns the Python functions around launches according to gpuflame's recording.
fn frames_of_gpuflame(done: &Done) -> Launches {
    command::gpuflame(&done.folder, ["convert", "out.gfr", "--to", "csv", "-o", "all.csv", "--all-frames"])
        .ok();
    let stacks = done.file("all.stacks.csv");
    let stacks = csv::Reader::from_reader(stacks.as_bytes()).into_deserialize::<BTreeMap<String, String>>();
    let stacks: BTreeMap<String, String> = stacks
        .map(Result::unwrap)
        .map(|mut row| (row.remove("stack").unwrap(), row.remove("frames").unwrap()))
        .collect();
    let table = done.file("all.csv");
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let mut streams = Timed::<u64>::new();
    for row in reader.records().map(Result::unwrap) {
        let text = |name: &str| &row[headers.iter().position(|header| header == name).unwrap()];
        let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
        if text("kind") != "kernel" {
            continue;
        }
        // A frame has the form `Block.forward (model.py:12)`.
        let frame = |frame: &str| {
            let (name, place) = frame.strip_suffix(')')?.rsplit_once(" (")?;
            let (file, line) = place.rsplit_once(':')?;
            line.parse::<u32>().ok()?;
            Some((file.to_owned(), name.rsplit('.').next().unwrap().to_owned()))
        };
        let frames =
            stacks.get(text("stack")).map_or("", String::as_str).split(';').filter_map(frame).collect();
        let stream = (number("device"), number("stream"));
        streams.entry(stream).or_default().push((number("start_ns"), frames));
    }
    without_times(streams)
}

/// Asserts that for each kernel of a program, both profilers have the same Python functions. Returns the number of
/// kernels that are under a Python function, and the depth of the deepest stack.
fn compare_frames(program: &str) -> Option<(usize, usize)> {
    let (kineto, done) = both(program, &["--stacks"], "gfr")?;
    let gpuflame = frames_of_gpuflame(&done);
    let of_operators = assert_operators(folder()?, &kineto, &done);
    assert!(of_operators > 500, "{of_operators}");
    let kineto = frames_of_kineto(&kineto, program);
    assert!(kineto.keys().eq(gpuflame.keys()), "{:?} {:?}", kineto.keys(), gpuflame.keys());
    let (mut in_python, mut deepest) = (0, 0);
    for (stream, theirs) in kineto {
        let ours = &gpuflame[&stream];
        assert_eq!(theirs.len(), ours.len(), "{stream:?}");
        for (at, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
            assert_eq!(theirs, ours, "kernel {at} of {stream:?}");
            in_python += usize::from(!ours.is_empty());
            deepest = deepest.max(ours.len());
        }
    }
    Some((in_python, deepest))
}

#[test]
fn training_step_kernels_have_the_python_frames_that_kineto_records() {
    let Some((in_python, deepest)) = compare_frames("train.py") else { return };
    assert!(in_python > 500 && deepest > 8, "{in_python} kernels, {deepest} frames at most");
}

/// A kernel in a CUDA graph must be under the Python functions that launched the graph.
#[test]
fn decode_loop_kernels_have_the_python_frames_that_kineto_records() {
    let Some((in_python, deepest)) = compare_frames("decode.py") else { return };
    assert!(in_python > 500 && deepest > 8, "{in_python} kernels, {deepest} frames at most");
}

/// The program loads models in the same way as users load them. `.ci/long` installs the packages.
#[test]
fn transformers_kernels_have_the_python_frames_that_kineto_records() {
    let Some(launched_by_operators) = compare(TRANSFORMERS) else { return };
    let (in_python, deepest) = compare_frames(TRANSFORMERS).unwrap();
    assert!(launched_by_operators > 500, "{launched_by_operators}");
    assert!(in_python > 500 && deepest > 12, "{in_python} kernels, {deepest} frames at most");
}
