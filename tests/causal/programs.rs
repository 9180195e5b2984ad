//! Runs `planted.c` on the stepped clock, and writes traces of the runs, in which the functions are Python frames.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::{Done, Run, Way, compile};

/// A program shape of `planted.c`: a pattern of host functions, CUDA calls and kernels.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// Planted host functions. Each has the CUDA function that only it calls, and the cost of such a call in ns.
    pub(crate) functions: &'static [(&'static str, &'static str, u64)],
    /// Planted kernels, each with its duration in ns.
    pub(crate) kernels: &'static [(&'static str, u64)],
}

const LOAD: (&str, &str, u64) = ("load", "cudaMemcpyAsync", 6_000);
const FORWARD: (&str, &str, u64) = ("forward", "cudaLaunchKernel", 10_000);
const BACKWARD: (&str, &str, u64) = ("backward", "cudaLaunchKernelExC", 8_000);
const UPDATE: (&str, &str, u64) = ("update", "cudaMemsetAsync", 5_000);
const CHECK: (&str, &str, u64) = ("check", "cudaDeviceSynchronize", 7_000);
const REPLAY: (&str, &str, u64) = ("replay", "cudaGraphLaunch", 9_000);

pub(crate) const SHAPES: [Shape; 6] = [
    Shape {
        name: "launch_bound",
        functions: &[CHECK, LOAD, FORWARD, BACKWARD, UPDATE],
        kernels: &[("tiny", 4_000), ("grad", 5_000)],
    },
    Shape {
        name: "gpu_bound",
        functions: &[FORWARD, BACKWARD],
        kernels: &[("gemm", 100_000), ("relu", 20_000), ("softmax", 60_000)],
    },
    Shape {
        name: "two_streams",
        functions: &[FORWARD, BACKWARD],
        kernels: &[("gemm", 50_000), ("reduce", 60_000), ("norm", 40_000)],
    },
    Shape {
        name: "waits",
        functions: &[LOAD, FORWARD, BACKWARD, UPDATE],
        kernels: &[("gemm", 70_000), ("softmax", 55_000)],
    },
    Shape { name: "pipeline", functions: &[LOAD, FORWARD], kernels: &[("gemm", 80_000)] },
    Shape {
        name: "graphs",
        functions: &[UPDATE, REPLAY],
        kernels: &[("gemm", 30_000), ("relu", 10_000), ("softmax", 20_000)],
    },
];

/// A function or kernel that is made faster in a run, with its new duration in percent of its normal duration.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    None,
    Function(&'static str, u64),
    Kernel(&'static str, u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) shape: &'static Shape,
    pub(crate) steps: u32,
    /// Factor by which all times of the program are multiplied.
    pub(crate) scale: u64,
}

/// A finished run of a planted program.
pub(crate) struct Finished {
    done: Done,
    schedule: Vec<Value>,
}

impl Program {
    /// Runs the planted program without gpuflame.
    pub(crate) fn run(self, change: Change) -> Finished {
        Finished::new(self.prepare(Way::None, change).ok())
    }

    /// Prepares the run of the program, which can then be started.
    pub(crate) fn prepare(self, way: Way, change: Change) -> Run {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        let program = BUILT.get_or_init(|| compile("tests/causal/planted.c", &["-O1"]));
        let (steps, scale) = (self.steps.to_string(), self.scale.to_string());
        let run = Run::new(program, way).args([self.shape.name, &steps, &scale]);
        let run = match change {
            Change::Function(name, percent) => run.args([name, &percent.to_string()]),
            _ => run,
        };
        let part = |name: &str| match change {
            Change::Function(changed, percent) | Change::Kernel(changed, percent) if changed == name => {
                percent
            }
            _ => 100,
        };
        let times = |all: Vec<(&str, &str, u64)>| -> String {
            let one = |(name, word, ns)| format!("{word}={}ns", ns * self.scale * part(name) / 100);
            all.into_iter().map(one).collect::<Vec<_>>().join(",")
        };
        let kernels = self.shape.kernels.iter().map(|(name, ns)| (*name, *name, *ns)).collect();
        run.env("GPUSIM_CLOCK", "stepped")
            .env("GPUSIM_TRUTH", "schedule:schedule")
            .env("GPUSIM_KINETO", "kineto.json")
            .env("GPUSIM_KERNELS", times(kernels))
            .env("GPUSIM_COSTS", times(vec![CHECK, LOAD, FORWARD, BACKWARD, UPDATE, REPLAY]))
    }
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

impl Finished {
    pub(crate) fn new(done: Done) -> Self {
        let schedule =
            done.file("schedule").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Self { done, schedule }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.done.folder
    }

    /// Returns the CUDA calls that the program made in the run, sorted by time.
    fn calls(&self) -> Vec<&Value> {
        let mut calls: Vec<_> = self.schedule.iter().filter(|row| row["what"] == "call").collect();
        calls.sort_by_key(|call| number(call, "begin"));
        calls
    }

    /// Returns the time, in ns, from the first call that submits GPU work or waits for the GPU to the end of the last
    /// call or GPU work.
    pub(crate) fn length_ns(&self) -> u64 {
        let ops = || self.schedule.iter().filter(|row| row["what"] == "op");
        let is_wait = |call: &&Value| call["name"].as_str().unwrap().contains("Synchronize");
        let waits = self.calls().into_iter().filter(is_wait).map(|call| number(call, "begin"));
        let first = ops().map(|op| number(op, "enqueue")).chain(waits).min().unwrap();
        let ends = self.calls().into_iter().chain(ops()).map(|row| number(row, "end"));
        ends.max().unwrap() - first
    }

    /// Writes the trace, with a Python frame for each planted function. Returns the name of the trace file.
    pub(crate) fn trace(&self) -> &'static str {
        let mut trace: Value = serde_json::from_str(&self.done.file("kineto.json")).unwrap();
        let frame = |name: &str, begin: u64, end: u64, place: &Value| {
            json!({
                "ph": "X", "cat": "python_function", "name": name, "pid": place["pid"], "tid": place["tid"],
                "ts": begin as f64 / 1_000.0, "dur": (end - begin) as f64 / 1_000.0,
            })
        };
        let events = trace["traceEvents"].as_array_mut().unwrap();
        let is_call = |event: &&Value| event["cat"] == "cuda_runtime";
        let place = events.iter().find(is_call).unwrap().clone();
        let calls = self.calls();
        let functions: Vec<&str> = self.done.stdout.lines().collect();
        assert_eq!(calls.len(), functions.len(), "each call has a line");
        let begin = number(calls[0], "begin");
        // The frame of `main` begins 1 ns before the frame of the first function, so that it is clear which frame is
        // the outer one.
        events.push(frame("planted.py(1): main", begin - 1, number(calls[calls.len() - 1], "end"), &place));
        let all: Vec<_> = calls.into_iter().zip(functions).collect();
        let mut before = begin;
        for of_function in all.chunk_by(|a, b| a.1 == b.1) {
            let end = number(of_function[of_function.len() - 1].0, "end");
            events.push(frame(&format!("planted.py(2): {}", of_function[0].1), before, end, &place));
            before = end;
        }
        fs::write(self.done.folder.join("trace.json"), trace.to_string()).unwrap();
        "trace.json"
    }
}
