//! How long a capture takes, beside the unwinders that others use, all in one run.
//!
//! Three situations, each at four depths: *hot*, the same stack again and again; *half*, 256 stacks that
//! share the outer half; *fresh*, 256 stacks that share nothing but the thread's bottom. The last two
//! capture once per stack, with real calls in between, and report medians. Ends with one line a figure:
//! `name value unit`.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../unwind/build.rs"]
#[allow(dead_code)]
mod build;
#[path = "../unwind/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "unwind/methods.rs"]
mod methods;

use std::hint::black_box;
use std::io::Write as _;
use std::sync::{Arc, Barrier};
use std::thread;

use generate::{Function, Program, Random};
use methods::{Clock, METHODS, Method, Tools};

const DEPTHS: [usize; 4] = [16, 32, 64, 128];
const STACKS: usize = 256;
/// How often everything is measured; the best counts.
const TURNS: usize = 3;
/// Every stack of the shared situations is captured so often.
const ROUNDS: usize = 24;

/// Which stacks are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    Hot,
    Half,
    Fresh,
}

const SITUATIONS: [Situation; 3] = [Situation::Hot, Situation::Half, Situation::Fresh];

impl Situation {
    fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Half => "half",
            Self::Fresh => "fresh",
        }
    }
}

/// A stack to build: what to call at each depth, and what happens at the end.
struct Path<'a> {
    calls: &'a [Function],
    at: usize,
    leaf: &'a mut dyn FnMut(),
}

extern "C-unwind" fn next(program: &mut Program) -> Option<Function> {
    // SAFETY: `build` put its own state there, and waits for the calls to return.
    let path = unsafe { &mut *program.state.cast::<Path<'_>>() };
    let call = path.calls.get(path.at).copied();
    match call {
        Some(_) => path.at += 1,
        None if path.at == path.calls.len() => {
            methods::FRAME.set(program.frame);
            (path.leaf)();
            path.at = usize::MAX;
        }
        None => {}
    }
    call
}

/// Calls `calls` one inside the other, and `leaf` inside the last.
#[inline(never)]
fn build(calls: &[Function], leaf: &mut dyn FnMut()) {
    let mut path = Path { calls, at: 1, leaf };
    let state = (&raw mut path).cast();
    calls[0](&mut Program { next, growth: 1, frame: std::ptr::null(), state }, 1, 2);
}

fn paths(situation: Situation, depth: usize, functions: &[Function]) -> Vec<Vec<Function>> {
    let mut random = Random::new(depth as u64);
    let mut pick = || functions[random.below(functions.len())];
    let trunk: Vec<_> = (0..depth).map(|_| pick()).collect();
    let shared = match situation {
        Situation::Hot => depth,
        Situation::Half => depth / 2,
        Situation::Fresh => 0,
    };
    let stacks = if situation == Situation::Hot { 1 } else { STACKS };
    (0..stacks).map(|_| (0..depth).map(|at| if at < shared { trunk[at] } else { pick() }).collect()).collect()
}

/// What one method took in one situation.
#[derive(Clone, Copy, Debug, Default)]
struct Figure {
    nanoseconds: f64,
    frames: f64,
}

impl Figure {
    const WORST: Self = Self { nanoseconds: f64::INFINITY, frames: 1.0 };
}

/// The median over many captures.
fn measure(method: &Method, tools: &mut Tools, situation: Situation, stacks: &[Vec<Function>]) -> Figure {
    let clock = Clock::calibrated();
    let mut times = Vec::new();
    let mut frames = 0;
    if situation == Situation::Hot {
        build(&stacks[0], &mut || {
            for _ in 0..40 {
                times.push(clock.time(100, || frames = black_box((method.capture)(tools))));
            }
        });
    } else {
        let mut random = Random::new(7);
        for round in 0..STACKS * ROUNDS {
            let stack = &stacks[random.below(STACKS)];
            build(stack, &mut || {
                let time = clock.time(1, || frames = black_box((method.capture)(tools)));
                if round >= STACKS * ROUNDS / 4 {
                    times.push(time);
                }
            });
        }
    }
    times.sort_by(f64::total_cmp);
    Figure { nanoseconds: times[times.len() / 2], frames: frames as f64 }
}

/// Runs `method` in `threads` threads at once, and gives the slowest thread's figure.
fn run(method: Method, situation: Situation, depth: usize, functions: &[Function], threads: usize) -> Figure {
    let stacks = Arc::new(paths(situation, depth, functions));
    let start = Arc::new(Barrier::new(threads));
    let handles: Vec<_> = (0..threads)
        .map(|_| {
            let (stacks, start) = (Arc::clone(&stacks), Arc::clone(&start));
            thread::spawn(move || {
                let mut tools = Tools::new();
                start.wait();
                measure(&method, &mut tools, situation, &stacks)
            })
        })
        .collect();
    let figures = handles.into_iter().map(|handle| handle.join().expect("a benchmark does not panic"));
    figures.max_by(|one, other| one.nanoseconds.total_cmp(&other.nanoseconds)).unwrap_or_default()
}

/// Which depths and situations to run: all, or those named on the command line (`-- half 64`).
fn wanted() -> (Vec<usize>, Vec<Situation>) {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let names = |name: &str| arguments.iter().any(|argument| argument == name);
    let depths: Vec<_> = DEPTHS.into_iter().filter(|depth| names(&depth.to_string())).collect();
    let situations: Vec<_> = SITUATIONS.into_iter().filter(|one| names(one.name())).collect();
    (
        if depths.is_empty() { DEPTHS.to_vec() } else { depths },
        if situations.is_empty() { SITUATIONS.to_vec() } else { situations },
    )
}

/// The figures of one situation, for one thread and for two: the best of a few turns, in each of which
/// every method has its go, so that a busy moment of the machine does not fall on one of them alone.
fn compare(
    situation: Situation,
    depth: usize,
    methods: &[Method],
    libraries: &[Vec<Function>; 2],
) -> Vec<[Figure; 2]> {
    let mut best = vec![[Figure::WORST; 2]; methods.len()];
    for _ in 0..TURNS {
        for (method, best) in methods.iter().zip(&mut best) {
            let functions = &libraries[usize::from(method.needs_frame_pointers)];
            for (threads, best) in [1, 2].into_iter().zip(best) {
                let figure = run(*method, situation, depth, functions, threads);
                if figure.nanoseconds < best.nanoseconds {
                    *best = figure;
                }
            }
        }
    }
    best
}

fn main() {
    gpuflame::unwind::prepare();
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).expect("stdout is open");
    let load = |options| (1..=8).flat_map(|seed| generate::library(seed, options)).collect();
    let libraries = [load(generate::OMIT), load(generate::KEEP)];
    let methods: Vec<_> = METHODS.iter().copied().filter(|method| (method.is_here)()).collect();
    let (depths, situations) = wanted();
    let mut lines = Vec::new();
    let mut worst_of_two: f64 = 0.0;
    for situation in situations {
        for depth in &depths {
            let name = situation.name();
            say(format!(
                "\n{name} stack, {depth} calls deep: ns a capture, ns a frame; ns with two threads at once"
            ));
            let figures = compare(situation, *depth, &methods, &libraries);
            let [ours, ours_of_two] = figures[0];
            lines.push(format!("capture_{name}_{depth} {:.1} ns", ours.nanoseconds));
            worst_of_two = worst_of_two.max(ours_of_two.nanoseconds / ours.nanoseconds);
            for (method, [one, two]) in methods.iter().zip(&figures) {
                let a_frame = one.nanoseconds / one.frames;
                say(format!(
                    "  {:<18} {:>9.1} {a_frame:>7.2} {:>9.1}   {} frames",
                    method.name, one.nanoseconds, two.nanoseconds, one.frames,
                ));
                if method.short != "gpuflame" {
                    let times = one.nanoseconds / ours.nanoseconds;
                    lines.push(format!("capture_{name}_{depth}_vs_{} {times:.2} x", method.short));
                }
            }
        }
    }
    say(String::new());
    lines.push(format!("capture_two_threads_worst {worst_of_two:.2} x"));
    lines.into_iter().for_each(say);
}
