//! Tests recordings of CUDA graphs. The time of every graph node is under two stacks, exact to the nanosecond: the
//! stack that launched the graph, and the stack that created the node. The reference is the truth file of the simulated
//! CUDA stack. If one of these stacks cannot be known, a label replaces it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::OnceLock;

use crate::support::{Done, Run, Way, compile, plain};
use gpuflame_model::record::{FrameKind, Module, Reader, Row};
use serde_json::Value;

const VERSIONS: [&str; 5] = ["11.8", "12.0", "12.9", "13.0", "13.4"];

/// GPU time, keyed by three texts: the launch site, the frames of the creation site that are not in the launch site,
/// and the leaf frame. GPU work that is not part of a graph has no creation site.
type Sums = BTreeMap<(String, Option<String>, String), u64>;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/graphs.c", &["-O2"]))
}

fn linked() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/graphs.c", &["-O2", "-DLINKED"]))
}

fn run(mode: &str) -> Run {
    Run::new(program(), Way::Injected).args([mode, "10"])
}

fn leaf(row: &Value) -> String {
    match row["kind"].as_str().unwrap() {
        "kernel" => {
            format!("[GPU_Kernel]{}", plain(row["name"].as_str().unwrap()))
        }
        "memset" => "[GPU_Memset]".to_owned(),
        "graph" => "[GPU_Graph]".to_owned(),
        _ => format!("[GPU_Memcpy {}]", row["copy"].as_str().unwrap()),
    }
}

/// Returns the frames of `created`, without those frames at the root that `site` has too.
fn rest(site: &str, created: &str) -> String {
    let frames = |path: &str| path.split(';').map(str::to_owned).collect::<Vec<_>>();
    let (site, created) = (frames(site), frames(created));
    let shared = site.iter().zip(&created).take_while(|(a, b)| a == b).count();
    created[shared..].join(";")
}

/// Returns the sums over those rows of the truth file for which `wanted` returns true.
fn truth(done: &Done, wanted: impl Fn(&Value) -> bool) -> Sums {
    let mut sums = Sums::new();
    for line in done.file("truth.json").lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        if row.get("totals").is_some() || !wanted(&row) {
            continue;
        }
        let site = row["site"].as_str().unwrap();
        let created = row["created"].as_str().map(|created| rest(site, created));
        *sums.entry((site.to_owned(), created, leaf(&row))).or_default() += row["total_ns"].as_u64().unwrap();
    }
    sums
}

/// Returns the sums in the folded file, without the frames of API calls, in the same form as `truth` returns its sums.
fn found(done: &Done) -> Sums {
    let mut sums = Sums::new();
    for (mut frames, weight) in done.folded() {
        let leaf = frames.pop().unwrap();
        let created = frames.iter().position(|frame| frame == "[graph]").map(|at| {
            let mut created = frames.split_off(at + 1);
            frames.pop();
            let api = created.pop().unwrap();
            assert!(api.starts_with("cu"), "{api}");
            created.join(";")
        });
        frames.pop();
        *sums.entry((frames.join(";"), created, leaf)).or_default() += weight;
    }
    sums
}

fn total(done: &Done, what: &str) -> u64 {
    let last = done.file("truth.json").lines().last().unwrap().to_owned();
    serde_json::from_str::<Value>(&last).unwrap()["totals"][what].as_u64().unwrap()
}

/// Returns two figures from the ledger: the number of graph nodes that ran, in total and for each outcome.
fn ledger(done: &Done) -> (u64, BTreeMap<String, u64>) {
    done.sum("graph activities")
}

/// Asserts that every kernel, copy and fill is under the stack that launched it and under the stack that created its
/// node, and that every count is right.
fn assert_exact(done: &Done) {
    assert_eq!(found(done), truth(done, |_| true), "{}", done.stderr);
    let work = total(done, "count");
    let (activities, parts) = done.sum("activities");
    assert_eq!((activities, parts["matched"]), (work, work), "{}", done.stderr);
    let nodes: u64 = {
        let lines = done.file("truth.json");
        let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.filter(|row| row.get("created").is_some()).map(|row| row["count"].as_u64().unwrap()).sum()
    };
    let (seen, parts) = ledger(done);
    assert_eq!((seen, parts["created"]), (nodes, nodes), "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    let expected = total(done, "graph_launches") + (work - nodes);
    assert_eq!((launches, parts["matched"]), (expected, expected), "{}", done.stderr);
}

#[test]
fn graphs_created_in_any_way_are_exact_with_every_cupti_version() {
    for mode in ["captured", "explicitly", "copies", "children", "updated", "update_that_fails", "forked"] {
        for version in VERSIONS {
            let done = run(mode).env("GPUSIM_CUPTI_VERSION", version).ok();
            assert_exact(&done);
            assert!(ledger(&done).0 >= 40, "{mode} {version}: {}", done.stderr);
        }
    }
}

#[test]
fn graph_results_do_not_depend_on_ids_delivery_order_or_clock() {
    for mode in ["copies", "children", "updated"] {
        for (name, value) in [
            ("GPUSIM_CORR", "distinct"),
            ("GPUSIM_EARLY", "1"),
            ("GPUSIM_SHUFFLE", "7"),
            ("GPUSIM_NESTED", "0"),
            ("GPUSIM_FRAMES", "fp"),
            ("GPUSIM_CLOCK", "real"),
        ] {
            assert_exact(&run(mode).env(name, value).ok());
        }
    }
}

#[test]
fn a_graph_stack_shows_the_launch_and_then_the_nodes_creation() {
    let done = run("captured").ok();
    let file = done.file("out.folded");
    let gemm = "main;captured;replay;cudaGraphLaunch;[graph];capture;attention;gemm;cudaLaunchKernel;\
                [GPU_Kernel]gemm_d3000 30000";
    assert!(file.lines().any(|line| line == gemm), "{file}");
    let fill = "[graph];capture;upload;cudaMemsetAsync;[GPU_Memset] 10080";
    assert!(file.lines().any(|line| line.ends_with(fill)), "{file}");
    let explicit = run("explicitly").ok().file("out.folded");
    let added = "[graph];build;add_kernel;cudaGraphAddKernelNode;[GPU_Kernel]embed_d1000 10000";
    assert!(explicit.lines().any(|line| line.ends_with(added)), "{explicit}");
}

/// For each stack that launches or creates a node, returns the file that contains each native frame, leaf first. The
/// stacks are unchanged, so the frames of CUDA and gpuflame are still present.
fn files_of_stacks(done: &Done) -> Vec<Vec<String>> {
    let mut reader = Reader::new(BufReader::new(File::open(done.folder.join("out.gfr")).unwrap())).unwrap();
    let (mut modules, mut stacks) = (Vec::<Module>::new(), BTreeMap::<_, Vec<u64>>::new());
    while let Some(row) = reader.next_row().unwrap() {
        match row {
            Row::Module(module) => modules.push(module.clone()),
            // Drops the stacks of memory allocations and of waits.
            Row::HostCallSpan(called) => drop(stacks.remove(&called.context)),
            Row::Context { id, frames, .. } => {
                let address = |frame: &gpuflame_model::record::Frame| match frame.kind() {
                    FrameKind::Native { address, .. } => Some(address),
                    _ => None,
                };
                stacks.insert(id, frames.iter().filter_map(address).collect());
            }
            _ => {}
        }
    }
    let file = |address: u64| {
        let module = modules.iter().find(|module| (module.start..module.end).contains(&address));
        module.unwrap().path.file_name().unwrap().to_string_lossy().into_owned()
    };
    stacks.into_values().map(|stack| stack.into_iter().map(file).collect()).collect()
}

#[test]
fn a_recorded_stack_begins_in_cupti_and_contains_no_gpuflame_frames() {
    for mode in ["captured", "explicitly", "children"] {
        let done = run(mode).env("GPUFLAME_FORMATS", "gfr").ok();
        let stacks = files_of_stacks(&done);
        assert!(stacks.len() >= 4, "{mode}: {stacks:#?}");
        for stack in stacks {
            assert!(stack[0].contains("cupti"), "{mode}: the first frame is not the tracer's: {stack:?}");
            assert!(!stack.iter().any(|file| file.contains("gpuflame")), "{mode}: one of ours: {stack:?}");
            // The program's own frames in a stack are `main`, the function for the mode, and at least one function that
            // it calls.
            let own = stack.iter().filter(|file| *file == "graphs").count();
            assert!(own >= 3, "{mode}: {stack:?}");
        }
    }
}

#[test]
fn gpuflame_graph_selects_the_launch_or_the_capture_stack() {
    let launch = run("captured").env("GPUFLAME_GRAPH", "launch").ok();
    let line = "main;captured;replay;cudaGraphLaunch;[GPU_Kernel]gemm_d3000 30000";
    assert!(launch.file("out.folded").lines().any(|l| l == line), "{}", launch.file("out.folded"));
    let capture = run("captured").env("GPUFLAME_GRAPH", "capture").ok();
    let line = "main;captured;capture;attention;gemm;cudaLaunchKernel;[graph];[GPU_Kernel]gemm_d3000 30000";
    assert!(capture.file("out.folded").lines().any(|l| l == line), "{}", capture.file("out.folded"));
}

/// Graph nodes that allocate or free memory do not run any work that CUPTI records. Nodes in conditional graphs, and
/// updated nodes, stay under the stack that created them.
#[test]
fn conditional_and_updated_graph_nodes_are_exact() {
    let program = compile("tests/gpusim/selftest/programs/nodes.c", &["-O2"]);
    for version in VERSIONS {
        let done = Run::new(&program, Way::Injected).env("GPUSIM_CUPTI_VERSION", version).ok();
        // Five graph launches have no activity: two of them only allocate memory, and in the other three the condition
        // selects no graph.
        let (_, launches) = done.sum("launches");
        assert_eq!((launches["launch_pending"], total(&done, "graph_launches")), (5, 15), "{}", done.stderr);
        let mut found = found(&done);
        found.retain(|_, nanos| *nanos > 0);
        assert_eq!(found, truth(&done, |_| true), "{}", done.stderr);
        let (nodes, parts) = ledger(&done);
        assert_eq!((nodes, parts["created"]), (13, 13), "{}", done.stderr);
    }
}

#[test]
fn launches_captured_into_a_graph_are_counted_as_captured() {
    let done = run("captured").ok();
    // The captured graph has two kernels, a copy and a fill.
    assert!(done.stderr.contains("launches_captured 4,"), "{}", done.stderr);
    let plain = Run::new(&compile("tests/programs/load.c", &["-O2"]), Way::Injected);
    let done = plain.args(["--launches", "1000"]).ok();
    assert!(done.stderr.contains("launches_captured 0,"), "{}", done.stderr);
    assert!(done.ledger("graph launches:").is_empty(), "{}", done.stderr);
}

#[test]
fn a_closed_window_excludes_launches_but_still_tracks_graph_creation() {
    let done = Run::new(linked(), Way::Injected).args(["windowed", "10"]).env("GPUFLAME_ENABLED", "0").ok();
    let inside = truth(&done, |row| row["site"] == "main;windowed;step");
    assert_eq!(inside.len(), 4);
    assert_eq!(found(&done), inside, "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"], parts["outside"]), (30, 10, 20), "{}", done.stderr);
}

#[test]
fn graphs_created_before_recording_have_a_label() {
    let done = Run::new(linked(), Way::None).args(["before", "10"]).ok();
    let weights: BTreeMap<_, _> =
        done.folded().into_iter().map(|(frames, weight)| (frames.join(";"), weight)).collect();
    for launch in ["replay", "step"] {
        let stack = format!("main;before;{launch};cudaGraphLaunch;[graph];[graph made before recording]");
        assert_eq!(weights[&format!("{stack};[GPU_Kernel]gemm_d3000")], 30_000, "{weights:#?}");
    }
    assert_eq!(weights.len(), 8, "{weights:#?}");
    let (nodes, parts) = ledger(&done);
    assert_eq!((nodes, parts["graph_made_before_recording"]), (80, 80), "{}", done.stderr);
}

#[test]
fn graphs_destroyed_while_running_keep_their_work() {
    for version in VERSIONS {
        for (name, value) in [("GPUSIM_CLOCK", "virtual"), ("GPUSIM_CLOCK", "real"), ("GPUSIM_SHUFFLE", "3")]
        {
            let done = run("in_flight").env(name, value).env("GPUSIM_CUPTI_VERSION", version).ok();
            assert_exact(&done);
            // The program creates ten CUDA contexts. In each context, a graph of four nodes is instantiated twice. One
            // instance of the graph is launched three times, and the other instance twice.
            assert_eq!(ledger(&done).0, 10 * 4 * (3 + 2));
        }
    }
}

#[test]
fn device_launched_graphs_and_unknown_nodes_have_their_own_labels() {
    // Each of ten graph launches runs two kernels, of 1,000 and 3,000 ns. For each of the two kernels, the fault makes
    // two records appear a second time, without a launch.
    let with = |fault: &str, version: &str| {
        run("explicitly").env("GPUSIM_FAULTS", fault).env("GPUSIM_CUPTI_VERSION", version).ok()
    };
    let weight = |done: &Done, stack: &str| {
        done.folded().into_iter().find(|(frames, _)| frames.join(";") == stack).map(|(_, weight)| weight)
    };
    let made = "[graph];main;explicitly;build;add_kernel;cudaGraphAddKernelNode";
    // Only the activity records of CUPTI 13.0 and later show whether the GPU itself launched the graph.
    for (version, label, word) in
        [("13.0", "[device graph]", "device_graph"), ("12.9", "[no launch stack]", "no_launch_stack")]
    {
        let done = with("device_graph:every=5", version);
        for (kernel, nanos) in [("embed_d1000", 2_000), ("gemm_d3000", 6_000)] {
            let stack = format!("{label};{made};[GPU_Kernel]{kernel}");
            assert_eq!(weight(&done, &stack), Some(nanos), "{stack}\n{}", done.file("out.folded"));
        }
        let (activities, parts) = done.sum("activities");
        assert_eq!((activities, parts["matched"], parts[word]), (44, 40, 4), "{}", done.stderr);
        assert_eq!(ledger(&done).1["created"], 44);
    }
    let done = with("unknown_node:every=5", "13.0");
    let launch = "main;explicitly;replay;cudaGraphLaunch";
    for (kernel, nanos) in [("embed_d1000", 2_000), ("gemm_d3000", 6_000)] {
        let stack = format!("{launch};[graph];[graph node unknown];[GPU_Kernel]{kernel}");
        assert_eq!(weight(&done, &stack), Some(nanos), "{stack}\n{}", done.file("out.folded"));
    }
    assert_eq!((ledger(&done).0, ledger(&done).1["graph_node_unknown"]), (44, 4), "{}", done.stderr);
}

#[test]
fn graph_trace_mode_records_one_activity_per_launch_and_reports_the_mode() {
    for version in VERSIONS {
        let run = run("captured").env("GPUFLAME_GRAPH_TRACE", "graph").env("GPUSIM_CUPTI_VERSION", version);
        let done = run.ok();
        let delivered = truth(&done, |row| row["delivered"] != 0);
        assert_eq!(found(&done), delivered, "{}", done.stderr);
        let graphs: u64 = delivered.iter().filter(|(key, _)| key.2 == "[GPU_Graph]").map(|(_, ns)| ns).sum();
        // The graph has two kernels, a copy and a fill, which run one after the other. The program launches the graph
        // ten times.
        let copy = 2_000 + 4096 / 25;
        assert_eq!(graphs, 10 * (3_000 + 500 + copy + 1_008));
        assert_eq!(ledger(&done).0, 0, "{}", done.stderr);
        let says = "GPUFLAME_GRAPH_TRACE=graph";
        assert!(done.stderr.contains(says), "{}", done.stderr);
        assert!(done.file("out.csv").contains("graph,graph,0,10,"), "{}", done.file("out.csv"));
    }
}

/// Compiles the example program with the headers of the simulated CUDA stack in place of CUDA's.
fn example() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("examples/graph_decode.c", &["-std=c99", "-O2"]))
}

#[test]
fn a_captured_decode_loop_is_exact_with_every_cupti_version() {
    for version in VERSIONS {
        let done = Run::new(example(), Way::Injected).env("GPUSIM_CUPTI_VERSION", version).ok();
        assert_exact(&done);
        // The example program has 40 layers of 8 kernels, and runs them for 1,000 tokens.
        assert_eq!(ledger(&done).0, 320_000);
        let sums = found(&done);
        let layers = sums.keys().filter(|(launch, created, _)| {
            let created = created.as_deref().unwrap();
            launch == "main;generate"
                && (created.contains(";layer;attention;") || created.contains(";layer;feed"))
        });
        // The example launches seven different kernels from eight call sites, and captures them in two functions.
        assert_eq!((layers.count(), sums.len()), (16, 16), "{sums:#?}");
    }
}

#[test]
fn callbacks_per_graph_launch_do_not_depend_on_the_node_count() {
    let calls = |layers: &str| {
        let done = Run::new(example(), Way::Injected).args(["--tokens", "500", "--layers", layers]).ok();
        let cost = done.ledger("own cost:")[0].to_owned();
        let calls = cost.split(", ").find_map(|part| part.strip_suffix(" calls")).unwrap().to_owned();
        let captured = done.ledger("lost:")[0].split("launches_captured ").nth(1).unwrap().to_owned();
        let captured = captured.split(',').next().unwrap().parse::<u64>().unwrap();
        // gpuflame times every 61st call. The number of timed launches among the 500 graph launches depends on the
        // number of captured launches before them.
        let told = done.ledger("graph launches:")[0].to_owned();
        assert!(told.ends_with(" timed), 500 of them"), "{told}");
        assert!([8, 9].iter().any(|timed| told.contains(&format!("median of {timed} timed"))), "{told}");
        calls.parse::<u64>().unwrap() - captured
    };
    // gpuflame's callback runs once for each of the 500 graph launches, however many nodes the graph has.
    assert_eq!([1, 100].map(|layers| calls(&layers.to_string())), [500, 500]);
}

#[test]
#[ignore = "a measurement; .ci/long runs it"]
fn nanoseconds_per_graph_launch_by_node_count() {
    for layers in ["1", "4", "40", "400"] {
        let done = Run::new(example(), Way::Injected).args(["--tokens", "6400", "--layers", layers]).ok();
        eprintln!("  {layers} x 8 nodes: {}", done.ledger("graph launches:")[0]);
    }
}

const MIB: f64 = 1024.0 * 1024.0;

/// Runs a program that creates, launches and destroys `graphs` graphs. Returns two amounts of memory at the end of the
/// program, in MiB: the memory that gpuflame itself counts as its own, and the memory of the whole process, including
/// the simulated stack.
fn held(graphs: &str) -> (f64, f64) {
    // The run makes no checkpoints, because a checkpoint copies the sums once per second. The allocator keeps the
    // memory of these copies, which grows with the run time and not with the number of graphs.
    let done = Run::new(linked(), Way::Injected).args(["churn", graphs]).env("GPUFLAME_CHECKPOINT", "0").ok();
    assert_exact(&done);
    let line = done.stdout.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect(&done.stdout);
    let process = line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / MIB;
    let (gpuflame, process) = (own_mib(&done), process);
    eprintln!("  {graphs} graphs: gpuflame holds {gpuflame:.1} MiB, the process {process:.1}");
    (gpuflame, process)
}

/// Returns the memory, in MiB, that gpuflame counts as its own.
fn own_mib(done: &Done) -> f64 {
    let cost = done.ledger("own cost:")[0].to_owned();
    let held = cost.split(", ").find_map(|part| part.strip_suffix(" MiB held")).expect(&cost);
    held.parse().unwrap()
}

/// Asserts that memory does not grow with the number of graphs. If gpuflame did not free a graph with its nodes, its
/// instance and its launch, it would need more than 300 bytes per graph, which is 9 MiB for 30,000 graphs.
fn assert_flat(few: (f64, f64), many: (f64, f64)) {
    assert!(many.0 < few.0 + 2.0, "gpuflame holds {} MiB, and later {}", few.0, many.0);
    assert!(many.1 < few.1 + 3.0, "the process holds {} MiB, and later {}", few.1, many.1);
}

#[test]
fn short_lived_graphs_leave_memory_unchanged() {
    // Each round uses ten correlation ids. Therefore the table of recent ids is full after 26,000 graphs.
    assert_flat(held("50000"), held("100000"));
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn a_million_short_lived_graphs_leave_memory_unchanged() {
    assert_flat(held("50000"), held("1050000"));
}
