//! Tests that the idle view names the culprit of idle time: the function or call that keeps the GPU waiting. Each of
//! five traces has a planted culprit. The first line of the view must name the planted culprit, with the time that it
//! takes in the trace.

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// Returns all tables of `top --by idle`.
fn idle_tables(trace: &Trace) -> Value {
    let folder = scratch("idle");
    trace.write(&folder.join("a.json"));
    let ran = gpuflame(&folder, ["top", "a.json", "--by", "idle", "-n", "0", "-f", "json"]).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Returns the rows of `top --by idle` as (ns, cause, stack), largest first.
fn idle(trace: &Trace) -> Vec<(u64, String, String)> {
    let table = idle_tables(trace);
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = table["idle"].as_array().unwrap();
    rows.iter()
        .map(|row| (row["total_ns"].as_u64().unwrap(), text(row, "cause"), text(row, "stack")))
        .collect()
}

/// Returns a trace with two kernels that the function `compute` launches. The first kernel runs from 20 to 100 us. The
/// second kernel is launched at 1010 us and starts at 1020 us. Each test plants a culprit into the function `main`,
/// between the two kernels.
fn trace() -> Trace {
    let mut trace = Trace::default();
    trace
        .python("train.py(1): main", 9, 0, 2000)
        .python("train.py(50): compute", 9, 5, 15)
        .launch(1, "k", 9, 10, 20, 100)
        .python("train.py(50): compute", 9, 1000, 1015)
        .launch(2, "k", 9, 1010, 1020, 1100);
    trace
}

fn line(nanos: u64, cause: &str, stack: &str) -> (u64, String, String) {
    (nanos, cause.to_owned(), stack.to_owned())
}

#[test]
fn a_sleep_after_a_wait_is_blamed_and_not_the_launch_that_follows() {
    let mut trace = trace();
    trace
        .python("train.py(9): slow_checkpoint", 9, 50, 990)
        .slice("cuda_runtime", "cudaDeviceSynchronize", 9, 60, 110)
        .python("<built-in function sleep>", 9, 120, 980);
    let (checkpoint, main) = ("train.py(1): main;train.py(9): slow_checkpoint", "train.py(1): main");
    assert_eq!(
        idle(&trace),
        [
            line(860_000, "host_late", &format!("{checkpoint};<built-in function sleep>")),
            // `slow_checkpoint` itself also runs from 110 to 120 us and from 980 to 990 us.
            line(20_000, "host_late", checkpoint),
            line(10_000, "host_late", main),
            line(10_000, "host_late", &format!("{main};train.py(50): compute")),
            line(10_000, "host_late", &format!("{checkpoint};cudaDeviceSynchronize")),
            line(10_000, "launch_latency", &format!("{main};train.py(50): compute;cudaLaunchKernel")),
        ]
    );
}

#[test]
fn a_slow_function_is_blamed_without_the_time_of_its_callees() {
    let mut trace = trace();
    trace.python("data.py(3): preprocess", 9, 150, 950).python("data.py(8): tokenize", 9, 200, 300);
    let found = idle(&trace);
    assert_eq!(found[0], line(700_000, "host_late", "train.py(1): main;data.py(3): preprocess"));
    assert!(found.contains(&line(
        100_000,
        "host_late",
        "train.py(1): main;data.py(3): preprocess;data.py(8): tokenize"
    )));
    assert_eq!(found.iter().map(|(nanos, ..)| nanos).sum::<u64>(), 920_000, "the times add up to the gap");
}

#[test]
fn a_lock_held_by_another_thread_is_reported_as_a_wait() {
    let mut trace = trace();
    trace
        .python("queue.py(154): get", 9, 120, 980)
        .python("<method 'acquire' of '_thread.lock' objects>", 9, 130, 970)
        .python("worker.py(7): hold", 5, 0, 1000);
    let expected = "train.py(1): main;queue.py(154): get;<method 'acquire' of '_thread.lock' objects>;\
         [waits for another thread]";
    assert_eq!(idle(&trace)[0], line(840_000, "host_late", expected));
}

#[test]
fn reading_a_file_is_blamed() {
    let mut trace = trace();
    trace.python("load.py(2): load", 9, 105, 995).python(
        "<method 'read' of '_io.BufferedReader' objects>",
        9,
        110,
        990,
    );
    let expected = "train.py(1): main;load.py(2): load;<method 'read' of '_io.BufferedReader' objects>";
    assert_eq!(idle(&trace)[0], line(880_000, "host_late", expected));
}

#[test]
fn an_allocation_is_blamed() {
    let mut trace = trace();
    trace.slice("cpu_op", "aten::empty", 9, 110, 990).slice("cuda_runtime", "cudaMalloc", 9, 120, 980);
    let found = idle(&trace);
    assert_eq!(found[0], line(860_000, "host_late", "train.py(1): main;aten::empty;cudaMalloc"));
}

#[test]
fn without_an_open_function_the_gap_is_labelled_by_its_neighbours() {
    let mut trace = Trace::default();
    trace
        .slice("user_annotation", "ProfilerStep#7", 9, 0, 900)
        .slice("cpu_op", "aten::mm", 9, 5, 15)
        .launch(1, "k", 9, 10, 20, 100)
        .slice("cpu_op", "aten::add", 9, 300, 400)
        .slice("cpu_op", "aten::mm", 9, 1000, 1015)
        .launch(2, "k", 9, 1010, 1020, 1100);
    assert_eq!(
        idle(&trace),
        [
            line(500_000, "host_late", "ProfilerStep#N;[after aten::add]"),
            line(200_000, "host_late", "ProfilerStep#N;[between aten::mm and aten::add]"),
            line(100_000, "host_late", "ProfilerStep#N;aten::add"),
            line(100_000, "host_late", "[between ProfilerStep#N and aten::mm]"),
            line(10_000, "host_late", "aten::mm"),
            line(10_000, "launch_latency", "aten::mm;cudaLaunchKernel"),
        ]
    );
}

#[test]
fn one_call_under_many_stacks_is_one_row() {
    let folder = scratch("idle");
    let mut trace = Trace::default();
    trace.python("train.py(1): main", 9, 0, 3000).launch(1, "k", 9, 10, 20, 100);
    // While the GPU is idle, `cudaFree` takes 700 us under the function `a`, and 800 us under `b`.
    trace.python("train.py(5): a", 9, 200, 1000).slice("cuda_runtime", "cudaFree", 9, 250, 950);
    trace.launch(2, "k", 9, 1010, 1020, 1100);
    trace.python("train.py(9): b", 9, 1200, 2100).slice("cuda_runtime", "cudaFree", 9, 1250, 2050);
    trace.launch(3, "k", 9, 2110, 2120, 2200);
    trace.write(&folder.join("a.json"));
    let ran = gpuflame(&folder, ["top", "a.json", "--by", "idle", "-f", "json"]).ok();
    let tables: Value = serde_json::from_str(&ran.stdout).unwrap();
    let first = |table: &str, key: &str| {
        let row = &tables[table][0];
        (row[key].as_str().unwrap().to_owned(), row["total_ns"].as_u64().unwrap())
    };
    assert_eq!(first("idle_calls", "call"), ("cudaFree".to_owned(), 1_500_000));
    // The idle time under `b` is 50 us before `cudaFree`, 800 us in the call, and 50 us after it. The idle time under
    // the function `a` is 100 us less than that under `b`.
    assert_eq!(first("idle_functions", "function"), ("train.py(9): b".to_owned(), 900_000));
    assert_eq!(first("idle_lines", "line"), ("train.py:9".to_owned(), 900_000));
    assert_eq!(first("idle_modules", "module").0, "train.py");
    // The GPU is idle from 100 to 1020 us and from 1100 to 2120 us. In each gap, the last 10 us, between launch and
    // kernel start, have another cause.
    assert_eq!(first("idle_causes", "cause"), ("host_late".to_owned(), 1_920_000));
}

#[test]
fn start_up_and_shutdown_of_a_trace_with_steps_are_apart() {
    let mut trace = Trace::default();
    trace.slice("cpu_op", "aten::empty", 9, 5, 15).launch(1, "fill", 9, 10, 20, 50);
    for step in 0..3_u32 {
        let start = 1000 + 100 * u64::from(step);
        trace
            .slice("user_annotation", &format!("ProfilerStep#{step}"), 9, start, start + 100)
            .slice("cpu_op", "aten::mm", 9, start + 5, start + 15)
            .launch(2 + step, "mm", 9, start + 10, start + 20, start + 60);
    }
    trace.slice("cpu_op", "aten::add", 9, 1805, 1815).launch(9, "add", 9, 1810, 1820, 1830);
    // The window lasts from 20 to 1,830 us. The steps begin at 1,000 us and end with the last GPU work that was
    // launched in them, at 1,260 us. During the steps the GPU is busy for 120 us, and it is idle for 20 us once and for
    // 60 us twice.
    let sums =
        |cause: &str| idle(&trace).iter().filter(|line| line.1 == cause).map(|line| line.0).sum::<u64>();
    assert_eq!((sums("start_up"), sums("shutdown")), (950_000, 560_000));
    assert_eq!(sums("host_late") + sums("launch_latency"), 20_000 + 120_000);
    // gpuflame names the culprits inside the steps, although the pauses before and after the steps are longer.
    let tables = idle_tables(&trace);
    for name in ["idle_calls", "idle_functions", "idle_lines", "idle_modules"] {
        let rows = tables[name].as_array().unwrap();
        let total: u64 = rows.iter().map(|row| row["total_ns"].as_u64().unwrap()).sum();
        let share: f64 = rows.iter().map(|row| row["share_percent"].as_f64().unwrap()).sum();
        assert_eq!(total, 140_000, "{name}");
        assert!((share - 100.0).abs() < 0.1, "{name}: {share}");
    }
    let causes: Vec<String> = idle(&trace).into_iter().map(|line| line.1).collect();
    assert!(causes[0] != "start_up" && causes.last().unwrap() == "shutdown", "{causes:?}");
}
