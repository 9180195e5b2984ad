//! What a launch costs under gpuflame, beside the unwinders that others use, all in one run.
//!
//! Three situations (see `paths`), each at four depths, with one thread and with two; then the whole callback
//! on the simulated CUDA stack, and a whole process. First it tests that all unwinders give the same stacks.
//! Writes the tables of `tests/bench/performance.md` and the README, and ends with one line a figure:
//! `name value unit`. With arguments (`-- half 64`) it measures only that, and writes nothing.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "launch/allocations.rs"]
mod allocations;
#[path = "../unwind/build.rs"]
#[allow(dead_code)]
mod build;
#[path = "launch/framehop_here.rs"]
mod framehop_here;
#[path = "../unwind/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "launch/log.rs"]
mod log;
#[path = "launch/methods.rs"]
mod methods;
#[path = "launch/page.rs"]
mod page;
#[path = "launch/paths.rs"]
mod paths;
#[path = "launch/process.rs"]
mod process;
#[path = "launch/simulated.rs"]
mod simulated;

use std::hint::black_box;
use std::io::Write as _;
use std::sync::Barrier;
use std::{fs, thread};

use generate::{Function, Random};
use gpuflame::control::window;
use methods::{CAPTURE, Clock, FULL, METHODS, Method, Tools};
use page::Table;
use paths::{STACKS, Situation, build};

const DEPTHS: [usize; 4] = [16, 32, 64, 128];
/// How often everything is measured; the best counts.
const TURNS: usize = 5;
/// Every stack of the situations where they differ is captured so often.
const ROUNDS: usize = 24;

/// What one method took in one situation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figure {
    nanoseconds: f64,
    frames: f64,
}

impl Figure {
    const WORST: Self = Self { nanoseconds: f64::INFINITY, frames: 1.0 };

    fn better(self, other: Self) -> Self {
        if other.nanoseconds < self.nanoseconds { other } else { self }
    }
}

/// Runs `measure` in so many threads at once, and gives the slowest thread's figure.
pub(crate) fn in_threads(threads: usize, measure: impl Fn() -> Figure + Sync) -> Figure {
    let start = Barrier::new(threads);
    let measured = thread::scope(|scope| {
        let work = || {
            start.wait();
            measure()
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("a benchmark does not panic"))
            .collect::<Vec<_>>()
    });
    measured
        .into_iter()
        .max_by(|one, other| one.nanoseconds.total_cmp(&other.nanoseconds))
        .unwrap_or_default()
}

/// The median over many captures.
fn measure(method: &Method, situation: Situation, stacks: &[Vec<Function>]) -> Figure {
    let mut tools = Tools::new();
    let clock = Clock::calibrated();
    let mut times = Vec::new();
    let mut frames = 0;
    if situation == Situation::Hot {
        build(&stacks[0], &mut || {
            for _ in 0..40 {
                times.push(clock.time(100, || frames = black_box((method.capture)(&mut tools))));
                log::drain();
            }
        });
    } else {
        let mut random = Random::new(7);
        for round in 0..STACKS * ROUNDS {
            let stack = &stacks[random.below(STACKS)];
            build(stack, &mut || {
                let time = clock.time(1, || frames = black_box((method.capture)(&mut tools)));
                if round >= STACKS * ROUNDS / 4 {
                    times.push(time);
                }
            });
            if round % STACKS == 0 {
                log::drain();
            }
        }
    }
    times.sort_by(f64::total_cmp);
    Figure { nanoseconds: times[times.len() / 2], frames: frames as f64 }
}

/// Everything of one situation at one depth: figures by method, for one thread and for two.
struct Measured {
    situation: Situation,
    depth: usize,
    figures: Vec<[Figure; 2]>,
    /// How many of the stacks each method got wrong.
    wrong: Vec<usize>,
}

impl Measured {
    /// The best of a few turns, in each of which every method has its go, so that a busy moment of the machine
    /// does not fall on one of them alone.
    fn of(situation: Situation, depth: usize, methods: &[Method], libraries: &[Vec<Function>; 2]) -> Self {
        let wrong = assert_same_stacks(situation, depth, methods, libraries);
        let mut figures = vec![[Figure::WORST; 2]; methods.len()];
        for _ in 0..TURNS {
            for (method, best) in methods.iter().zip(&mut figures) {
                let stacks = paths::stacks(situation, depth, functions_for(method, libraries));
                for (threads, best) in [1, 2].into_iter().zip(best) {
                    *best = best.better(in_threads(threads, || measure(method, situation, &stacks)));
                }
            }
        }
        // What writes records does not say how many frames they have: as many as the capture alone.
        let frames = figures[CAPTURE][0].frames;
        for figure in figures.iter_mut().flatten().filter(|figure| figure.frames == 0.0) {
            figure.frames = frames;
        }
        Self { situation, depth, figures, wrong }
    }

    fn nanoseconds(&self, method: usize) -> f64 {
        self.figures[method][0].nanoseconds
    }
}

fn functions_for<'a>(method: &Method, libraries: &'a [Vec<Function>; 2]) -> &'a [Function] {
    &libraries[usize::from(method.needs_frame_pointers)]
}

/// Tests that all methods see the same frames: each its own first few, and then those of glibc. Gives how many
/// stacks each method got wrong, of those that may err.
fn assert_same_stacks(
    situation: Situation,
    depth: usize,
    methods: &[Method],
    libraries: &[Vec<Function>; 2],
) -> Vec<usize> {
    let mut tools = Tools::new();
    let reference = methods.iter().find(|method| method.short == "glibc").expect("glibc is always here");
    let mut wrong = vec![0; methods.len()];
    for (method, wrong) in methods.iter().zip(&mut wrong) {
        for stack in paths::stacks(situation, depth, functions_for(method, libraries)) {
            build(&stack, &mut || {
                // One place of call, so that all frames above it are the same.
                let [expected, found] = [reference, method].map(|method| stack_by(method, &mut tools));
                let same = agree(&found, &expected, method.needs_frame_pointers, depth);
                assert!(
                    same || method.errs,
                    "{}, {} stack, {depth} calls deep:\n{found:x?}\nbut {}:\n{expected:x?}",
                    method.name,
                    situation.name(),
                    reference.name
                );
                *wrong += usize::from(!same);
            });
        }
    }
    wrong
}

#[inline(never)]
fn stack_by(method: &Method, tools: &mut Tools) -> Vec<u64> {
    let count = (method.capture)(tools);
    let mut stack = match method.stack {
        Some(stack) => stack(tools),
        None => tools.room[..count].iter().map(|address| *address as u64).collect(),
    };
    // libgcc shows the outermost return address, 0, as a frame.
    stack.pop_if(|address| *address == 0);
    stack
}

/// Whether two stacks, leaf first, are the same but for the frames of the methods themselves and of the closure
/// that called them. A walk by frame pointers sees the part in between that keeps them.
fn agree(found: &[u64], expected: &[u64], only_part: bool, depth: usize) -> bool {
    if only_part {
        // Its last steps lie in code that keeps no frame pointers.
        let part = &found[..found.len().min(depth - 1)];
        return part.len() == depth - 1 && expected.windows(part.len()).any(|frames| frames == part);
    }
    let own = 5;
    let same = found.iter().rev().zip(expected.iter().rev()).take_while(|(one, other)| one == other).count();
    same > depth && same + own >= found.len() && same + own >= expected.len()
}

/// How often `depth`-deep launches of all situations allocate, once they are known.
fn allocations(depth: usize, functions: &[Function]) -> u64 {
    let method = METHODS.iter().find(|method| method.short == "callback").expect("it is in the table");
    let mut tools = Tools::new();
    let mut count = 0;
    for situation in Situation::ALL {
        let stacks = paths::stacks(situation, depth, functions);
        for round in 0..4 {
            for stack in &stacks {
                build(stack, &mut || {
                    let before = allocations::so_far();
                    (method.capture)(&mut tools);
                    count += if round == 0 { 0 } else { allocations::so_far() - before };
                });
            }
            log::drain();
        }
    }
    count
}

/// Which depths and situations to run: all, or those named on the command line (`-- half 64`).
fn wanted() -> (Vec<usize>, Vec<Situation>, bool) {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let names = |name: &str| arguments.iter().any(|argument| argument == name);
    let depths: Vec<_> = DEPTHS.into_iter().filter(|depth| names(&depth.to_string())).collect();
    let situations: Vec<_> = Situation::ALL.into_iter().filter(|one| names(one.name())).collect();
    let is_all = depths.is_empty() && situations.is_empty();
    (
        if depths.is_empty() { DEPTHS.to_vec() } else { depths },
        if situations.is_empty() { Situation::ALL.to_vec() } else { situations },
        is_all,
    )
}

/// What was measured on the simulated CUDA stack.
struct OnSimulated {
    /// By situation and depth: with one thread, and with two.
    callbacks: Vec<(Situation, usize, [Figure; 2])>,
    beyond_capture: f64,
    process: process::Took,
}

impl OnSimulated {
    fn measure(depths: &[usize], situations: &[Situation], functions: &[Function]) -> Self {
        let folder = simulated::stage();
        let runtime = simulated::Runtime::subscribed(&folder);
        let mut callbacks = Vec::new();
        for situation in situations {
            for depth in depths {
                let mut best = [Figure::WORST; 2];
                for _ in 0..TURNS {
                    for (threads, best) in [1, 2].into_iter().zip(&mut best) {
                        *best = best.better(runtime.measure(*situation, *depth, functions, threads));
                    }
                }
                callbacks.push((*situation, *depth, best));
            }
        }
        let beyond = (0..TURNS).map(|_| runtime.measure_beyond_capture(64, functions));
        let beyond_capture = beyond.fold(Figure::WORST, Figure::better).nanoseconds;
        let process = process::added_per_launch(&folder);
        let _ = fs::remove_dir_all(folder);
        Self { callbacks, beyond_capture, process }
    }
}

fn main() {
    gpuflame::unwind::prepare();
    gpuflame::capture::refill();
    window::open();
    let mut out = std::io::stdout().lock();
    let mut say = |text: &str| writeln!(out, "{text}").and_then(|()| out.flush()).expect("stdout is open");
    let load = |options| (1..=8).flat_map(|seed| generate::library(seed, options)).collect();
    let libraries = [load(generate::OMIT), load(generate::KEEP)];
    let methods: Vec<_> = METHODS.iter().copied().filter(|method| (method.is_here)()).collect();
    let (depths, situations, is_all) = wanted();
    let mut all = Vec::new();
    for &situation in &situations {
        for &depth in &depths {
            all.push(Measured::of(situation, depth, &methods, &libraries));
        }
        let table = table(situation, &depths, &methods, &all);
        say(&format!(
            "{}:\n\n{}{}",
            situation.description(),
            table.text(),
            errors(situation, &methods, &all)
        ));
    }
    let allocations = allocations(64, &libraries[0]);
    let simulated = OnSimulated::measure(&depths, &situations, &libraries[0]);
    say(&format!(
        "Whole callbacks on the simulated CUDA stack:\n\n{}",
        callbacks(&depths, &simulated).text()
    ));
    if is_all {
        write_pages(&depths, &methods, &all, &simulated, allocations);
    }
    figures(&methods, &all, &simulated, allocations).iter().for_each(|line| say(line));
}

/// Nanoseconds, with as many digits as mean something.
fn nanoseconds(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A row a method, a column a depth: `ns (ns a frame)`.
fn table(situation: Situation, depths: &[usize], methods: &[Method], all: &[Measured]) -> Table {
    let columns = depths.iter().map(|depth| format!("{depth} calls: ns (a frame)"));
    let last = *depths.last().expect("at least one depth");
    let two = format!("{last} calls, two threads at once");
    let mut table =
        Table::new(&std::iter::once("method".to_owned()).chain(columns).chain([two]).collect::<Vec<_>>());
    for (at, method) in methods.iter().enumerate() {
        let of_situation = || all.iter().filter(|measured| measured.situation == situation);
        let cell = |measured: &Measured| {
            let Figure { nanoseconds: time, frames } = measured.figures[at][0];
            format!("{} ({:.2})", nanoseconds(time), time / frames)
        };
        let two = of_situation().next_back().map(|measured| nanoseconds(measured.figures[at][1].nanoseconds));
        let cells = std::iter::once(method.name.to_owned()).chain(of_situation().map(cell)).chain(two);
        table.row(&cells.collect::<Vec<_>>());
    }
    table
}

/// A sentence for each method that got stacks wrong.
fn errors(situation: Situation, methods: &[Method], all: &[Measured]) -> String {
    let mut text = String::new();
    for (at, method) in methods.iter().enumerate() {
        let of = |measured: &&Measured| measured.situation == situation && measured.wrong[at] > 0;
        let part = |measured: &Measured| format!("{} at {} calls", measured.wrong[at], measured.depth);
        let parts: Vec<_> = all.iter().filter(of).map(part).collect();
        if !parts.is_empty() {
            let stacks = if situation == Situation::Hot { 1 } else { STACKS };
            text += &format!("\nWrong stacks of {}, out of {stacks}: {}.\n", method.name, parts.join(", "));
        }
    }
    text
}

/// A row a situation, a column a depth: one thread / two threads at once.
fn callbacks(depths: &[usize], simulated: &OnSimulated) -> Table {
    let columns = depths.iter().map(|depth| format!("{depth} calls: ns (two threads at once)"));
    let mut table = Table::new(&std::iter::once("stacks".to_owned()).chain(columns).collect::<Vec<_>>());
    for situation in Situation::ALL {
        let of_situation: Vec<_> =
            simulated.callbacks.iter().filter(|callback| callback.0 == situation).collect();
        if of_situation.is_empty() {
            continue;
        }
        let cell = |(_, _, [one, two]): &&(Situation, usize, [Figure; 2])| {
            format!("{} ({})", nanoseconds(one.nanoseconds), nanoseconds(two.nanoseconds))
        };
        let cells = std::iter::once(situation.name().to_owned()).chain(of_situation.iter().map(cell));
        table.row(&cells.collect::<Vec<_>>());
    }
    table
}

/// The lines at the end, as far as what they need was measured.
fn figures(methods: &[Method], all: &[Measured], simulated: &OnSimulated, allocations: u64) -> Vec<String> {
    let at = |situation, depth| all.iter().find(|one| one.situation == situation && one.depth == depth);
    let of = |short: &str| methods.iter().position(|method| method.short == short);
    let mut lines = Vec::new();
    for measured in all {
        let (name, depth) = (measured.situation.name(), measured.depth);
        for (at, method) in methods.iter().enumerate() {
            lines.push(format!("{}_{name}_{depth} {:.1} ns", method.short, measured.nanoseconds(at)));
        }
    }
    let mut ratio = |name: &str, situation, ours: usize, theirs: &str| {
        if let (Some(measured), Some(theirs)) = (at(situation, 64), of(theirs)) {
            let times = measured.nanoseconds(theirs) / measured.nanoseconds(ours);
            lines.push(format!("{name} {times:.2} x"));
        }
    };
    ratio("capture_hot_64_vs_glibc", Situation::Hot, CAPTURE, "glibc");
    ratio("capture_hot_64_vs_libunwind", Situation::Hot, CAPTURE, "libunwind");
    ratio("full_half_64_vs_libunwind", Situation::Half, FULL, "libunwind");
    ratio("full_fresh_64_vs_libunwind", Situation::Fresh, FULL, "libunwind");
    if let Some(hot) = at(Situation::Hot, 64) {
        let [Figure { nanoseconds, frames }, _] = hot.figures[FULL];
        lines.push(format!("full_hot_64 {:.2} ns/frame", nanoseconds / frames));
    }
    // Only what is ours and runs on a launch.
    let ours = all.iter().flat_map(|measured| measured.figures[..=FULL + 1].iter().copied());
    let on_simulated = simulated.callbacks.iter().map(|(_, _, figures)| *figures);
    let worst =
        ours.chain(on_simulated).map(|[one, two]| two.nanoseconds / one.nanoseconds).fold(0.0, f64::max);
    lines.push(format!("two_threads_worst {worst:.2} x"));
    lines.push(format!("callback_beyond_capture {:.1} ns", simulated.beyond_capture));
    lines.push(format!("callback_allocations {allocations} n"));
    lines.push(format!("process_added {:.0} ns/launch", simulated.process.wall));
    lines.push(format!("process_added_on_all_processors {:.0} ns/launch", simulated.process.processors));
    lines
}

fn write_pages(
    depths: &[usize],
    methods: &[Method],
    all: &[Measured],
    simulated: &OnSimulated,
    allocations: u64,
) {
    let machine = page::machine();
    let mut text = format!("\nMeasured on: {machine}.\n");
    for situation in Situation::ALL {
        text += &format!(
            "\n### {}\n\n{}",
            situation.description(),
            table(situation, depths, methods, all).text()
        );
    }
    text += &format!(
        "\n### Whole callbacks on the simulated CUDA stack\n\n{}",
        callbacks(depths, simulated).text()
    );
    let lines = figures(methods, all, simulated, allocations);
    let named = lines.iter().filter(|line| {
        !line.contains("_ns") && !line.ends_with(" ns") || line.starts_with("callback_beyond")
    });
    let named: Vec<_> = named.map(String::as_str).collect();
    text += &format!("\n### Figures\n\n```\n{}\n```\n", named.join("\n"));
    page::write("tests/bench/performance.md", &text);

    let mut short = Table::new(
        &["64 calls deep, ns a stack", "same stack", "half shared", "nothing shared"].map(str::to_owned),
    );
    for (at, method) in methods.iter().enumerate() {
        let cells = all.iter().filter(|one| one.depth == 64).map(|one| nanoseconds(one.nanoseconds(at)));
        short.row(&std::iter::once(method.name.to_owned()).chain(cells).collect::<Vec<_>>());
    }
    page::write("README.md", &format!("\n{}\n({machine}.)\n", short.text()));
}
