//! Measures the cost that gpuflame adds to a launch, and compares gpuflame's unwinder with other unwinders in the same
//! run.
//!
//! The benchmark first checks that all unwinders return the same stacks. After this check, the benchmark measures the
//! unwinders in three situations (see `paths`), each at four stack depths, with one thread and with two threads. After
//! that, the benchmark measures the whole callback on the simulated CUDA stack, and a whole process. The benchmark
//! writes the tables of `tests/bench/performance.md` and `docs/cost.md`. At the end the benchmark prints a line `name
//! value unit` for each figure. With arguments (`-- half 64`) the benchmark measures only the named situations and
//! depths, and writes nothing. With `-- checkpoints` the benchmark compares two whole processes: one that writes
//! checkpoints fifty times as often as by default, and one that writes none.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "launch/allocations.rs"]
mod allocations;
#[path = "../unwind/support/build.rs"]
#[allow(dead_code)]
mod build;
#[path = "launch/closed.rs"]
mod closed;
#[path = "launch/framehop_here.rs"]
mod framehop_here;
#[path = "../unwind/support/generate.rs"]
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
#[path = "../unwind/support/random.rs"]
mod random;
#[path = "launch/simulated.rs"]
mod simulated;
#[path = "staged.rs"]
mod staged;
#[path = "launch/turns.rs"]
mod turns;

use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use generate::{Function, Random};
use gpuflame_recorder::control::window;
use methods::{CAPTURE, Clock, FULL, METHODS, Method, Tools};
use page::Table;
use paths::{STACKS, Situation, build};
use turns::{Figure, Slice};

const DEPTHS: [usize; 4] = [16, 32, 64, 128];
/// Number of captures of the same stack that are timed together.
const CAPTURES: u32 = 100;
/// Average number of captures per stack and turn before the measurement begins. This number applies to situations with
/// different stacks.
const WARM_UP: usize = 4;
/// Average number of captures per stack and turn during the measurement of situations with different stacks.
const ROUNDS: usize = 2;

/// A situation, a stack depth, and the stacks on which the unwinding methods are measured.
struct Place {
    situation: Situation,
    depth: usize,
    /// Two lists of stacks: through code without frame pointers, and through code with frame pointers.
    stacks: [Vec<Vec<Function>>; 2],
}

impl Place {
    fn new(situation: Situation, depth: usize, libraries: &[Vec<Function>; 2]) -> Self {
        let stacks = libraries.each_ref().map(|functions| paths::stacks(situation, depth, functions));
        Self { situation, depth, stacks }
    }

    fn stacks_for(&self, method: &Method) -> &[Vec<Function>] {
        &self.stacks[usize::from(method.needs_frame_pointers)]
    }

    /// Returns the median time of many captures in ns, and stores the number of frames in the last capture.
    fn measure(&self, method: &Method, tools: &mut Tools, slice: &Slice<'_>, frames: &AtomicUsize) -> f64 {
        let stacks = self.stacks_for(method);
        let clock = Clock::calibrated();
        let mut found = 0;
        let mut capture = || found = black_box((method.capture)(tools));
        let mut median = 0.0;
        if self.situation == Situation::Hot {
            build(&stacks[0], &mut || {
                let mut span = || clock.time(CAPTURES, &mut capture);
                // The measurement is repeated for about two milliseconds, but at least 12 and at most 400 times.
                let spans = (2e6 / (span() * f64::from(CAPTURES))).clamp(12.0, 400.0) as usize;
                median = slice.median(spans / 3, spans, span);
            });
        } else {
            let mut random = Random::new(7);
            median = slice.median(WARM_UP * STACKS, ROUNDS * STACKS, || {
                let mut time = 0.0;
                build(&stacks[random.below(STACKS)], &mut || time = clock.time(1, &mut capture));
                time
            });
        }
        frames.store(found, Ordering::Relaxed);
        median
    }
}

/// Results of all methods for one situation at one depth. Each list has one entry per method.
struct Measured {
    situation: Situation,
    depth: usize,
    figures: Vec<Figure>,
    /// Number of frames that each method finds on a stack.
    frames: Vec<usize>,
    /// Number of stacks for which each method returned wrong frames.
    wrong: Vec<usize>,
}

impl Measured {
    fn all(places: &[Place], methods: &[Method]) -> Vec<Self> {
        let wrong: Vec<_> = places.iter().map(|place| assert_same_stacks(place, methods)).collect();
        let count = methods.len();
        let frames: Vec<_> = (0..places.len() * count).map(|_| AtomicUsize::new(0)).collect();
        let figures = turns::measure(
            places.len() * count,
            || places.iter().map(|_| Tools::new()).collect::<Vec<_>>(),
            |tools, job, slice| {
                let place = job / count;
                places[place].measure(&methods[job % count], &mut tools[place], slice, &frames[job])
            },
        );
        let frames: Vec<_> = frames.into_iter().map(AtomicUsize::into_inner).collect();
        let results = figures.chunks(count).zip(frames.chunks(count));
        let measured = places.iter().zip(wrong).zip(results);
        measured.map(|((place, wrong), (figures, frames))| Self::new(place, wrong, figures, frames)).collect()
    }

    fn new(place: &Place, wrong: Vec<usize>, figures: &[Figure], frames: &[usize]) -> Self {
        // Methods that write launch records return nothing, so their number of frames is not known. For these methods,
        // the stored number is that of the plain capture.
        let frames = frames.iter().map(|&count| if count == 0 { frames[CAPTURE] } else { count }).collect();
        Self { situation: place.situation, depth: place.depth, figures: figures.to_vec(), frames, wrong }
    }

    fn nanoseconds(&self, method: usize) -> f64 {
        self.figures[method].alone()
    }

    fn a_frame(&self, method: usize) -> f64 {
        self.nanoseconds(method) / self.frames[method] as f64
    }
}

/// Asserts that all methods return the same frames. A correct stack consists of a few frames of the method itself
/// (innermost), followed by the frames that glibc finds. For each method that is known to err, returns the number of
/// wrong stacks.
fn assert_same_stacks(place: &Place, methods: &[Method]) -> Vec<usize> {
    let mut tools = Tools::new();
    let reference = methods.iter().find(|method| method.short == "glibc").expect("glibc is always here");
    let mut wrong = vec![0; methods.len()];
    for (method, wrong) in methods.iter().zip(&mut wrong) {
        for stack in place.stacks_for(method) {
            build(stack, &mut || {
                // Both methods are called from the same call site, so all frames outside the methods are the same.
                let [expected, found] = [reference, method].map(|method| stack_by(method, &mut tools));
                let same = agree(&found, &expected, method.needs_frame_pointers, place.depth);
                assert!(
                    same || method.errs,
                    "{}, {} stack, {} calls deep:\n{found:x?}\nbut {}:\n{expected:x?}",
                    method.name,
                    place.situation.name(),
                    place.depth,
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
    // libgcc returns the outermost return address, which is 0, as a frame.
    stack.pop_if(|address| *address == 0);
    stack
}

/// Returns whether two stacks (leaf first) are equal, apart from the frames of the two methods and of the closure that
/// called the methods. A walk by frame pointers finds only the middle part of the stack, whose code keeps frame
/// pointers.
fn agree(found: &[u64], expected: &[u64], only_part: bool, depth: usize) -> bool {
    if only_part {
        // The outermost frames that the walk returned are ignored, because their code does not keep frame pointers.
        let part = &found[..found.len().min(depth - 1)];
        return part.len() == depth - 1 && expected.windows(part.len()).any(|frames| frames == part);
    }
    let own = 5;
    let same = found.iter().rev().zip(expected.iter().rev()).take_while(|(one, other)| one == other).count();
    same > depth && same + own >= found.len() && same + own >= expected.len()
}

/// Returns the number of memory allocations during launches at this depth, over all situations, when their stacks are
/// cached.
fn allocations(depth: usize, functions: &[Function]) -> u64 {
    let method =
        METHODS.iter().find(|method| method.short == "callback").expect("the method is in the table");
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

/// Returns the depths and situations to run: all of them, or those that the command line names (`-- half 64`).
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

/// Results of the measurements on the simulated CUDA stack.
struct OnSimulated {
    callbacks: Vec<(Situation, usize, Figure)>,
    beyond_capture: f64,
    process: process::Took,
    closed: closed::Closed,
}

impl OnSimulated {
    fn measure(places: &[Place], libraries: &[Vec<Function>; 2]) -> Self {
        let folder = staged::stage("cuda");
        let runtime = simulated::Runtime::subscribed(&folder);
        // The last job measures a closed window. While the window is closed, the callback captures no stack and makes
        // no launch id.
        let beyond = Place::new(Situation::Hot, 64, libraries);
        let figures = turns::measure(
            places.len() + 1,
            || (),
            |(), job, slice| {
                let place = places.get(job).unwrap_or(&beyond);
                _ = if job == places.len() { window::close() } else { window::open() };
                runtime.measure(place.situation, &place.stacks[0], slice)
            },
        );
        window::open();
        let callbacks = places.iter().zip(&figures);
        let callbacks = callbacks.map(|(place, figure)| (place.situation, place.depth, *figure)).collect();
        let beyond_capture = figures[places.len()].alone();
        let [process] = process::added_per_launch(&folder, [&[]]);
        let closed = closed::measure(&folder);
        let _ = fs::remove_dir_all(folder);
        Self { callbacks, beyond_capture, process, closed }
    }
}

/// Prints what a checkpoint every 20 ms costs, compared with a run that writes no checkpoints.
#[allow(clippy::print_stdout)]
fn print_cost_of_checkpoints() {
    let folder = staged::stage("cuda");
    let settings: [&[(&str, &str)]; 2] =
        [&[("GPUFLAME_CHECKPOINT", "0")], &[("GPUFLAME_CHECKPOINT", "0.02")]];
    let added = process::added_per_launch(&folder, settings);
    for (name, process::Took { wall, processors }) in ["without", "with"].into_iter().zip(added) {
        println!("process_added_{name}_checkpoints {wall:.0} ns/launch, {processors:.0} on all processors");
    }
    let _ = fs::remove_dir_all(folder);
}

fn main() {
    if std::env::args().any(|argument| argument == "checkpoints") {
        return print_cost_of_checkpoints();
    }
    gpuflame_unwind::prepare();
    gpuflame_recorder::capture::refill_chunks();
    window::open();
    let mut out = std::io::stdout().lock();
    let mut say = |text: &str| writeln!(out, "{text}").and_then(|()| out.flush()).expect("stdout is open");
    let load = |options| (1..=8).flat_map(|seed| generate::library(seed, options)).collect();
    let libraries = [load(generate::OMIT), load(generate::KEEP)];
    let methods: Vec<_> = METHODS.iter().copied().filter(|method| (method.is_here)()).collect();
    let (depths, situations, is_all) = wanted();
    let place = |situation, depth| Place::new(situation, depth, &libraries);
    let places: Vec<_> =
        situations.iter().flat_map(|one| depths.iter().map(|depth| place(*one, *depth))).collect();
    let all = Measured::all(&places, &methods);
    for &situation in &situations {
        let table = table(situation, &depths, &methods, &all);
        say(&format!(
            "{}:\n\n{}{}",
            situation.description(),
            table.text(),
            errors(situation, &methods, &all)
        ));
    }
    let allocations = allocations(64, &libraries[0]);
    let simulated = OnSimulated::measure(&places, &libraries);
    say(&format!(
        "Whole callbacks on the simulated CUDA stack:\n\n{}",
        callbacks(&depths, &simulated).text()
    ));
    let (_, worst) = worst_of_two_threads(&methods, &all, &simulated);
    say(&format!("Two threads at once are worst, beside one alone: {worst}.\n"));
    if is_all {
        write_pages(&depths, &methods, &all, &simulated, allocations);
    }
    figures(&methods, &all, &simulated, allocations).iter().for_each(|line| say(line));
}

/// Formats nanoseconds with one decimal below 100, and without decimals otherwise.
fn nanoseconds(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Returns a table with a row per method and a column per depth: `ns (ns a frame)`.
fn table(situation: Situation, depths: &[usize], methods: &[Method], all: &[Measured]) -> Table {
    let columns = depths.iter().map(|depth| format!("{depth} calls: ns (a frame)"));
    let last = *depths.last().expect("at least one depth");
    let two = format!("{last} calls, two threads at once");
    let mut table =
        Table::new(&std::iter::once("method".to_owned()).chain(columns).chain([two]).collect::<Vec<_>>());
    for (at, method) in methods.iter().enumerate() {
        let of_situation = || all.iter().filter(|measured| measured.situation == situation);
        let cell = |measured: &Measured| {
            format!("{} ({:.2})", nanoseconds(measured.nanoseconds(at)), measured.a_frame(at))
        };
        let two = of_situation().next_back().map(|measured| nanoseconds(measured.figures[at].at_once()));
        let cells = std::iter::once(method.name.to_owned()).chain(of_situation().map(cell)).chain(two);
        table.row(&cells.collect::<Vec<_>>());
    }
    table
}

/// Returns a sentence for each method that returned wrong stacks.
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

/// Returns a table with a row per situation and a column per depth. A cell contains the callback's time twice: with one
/// thread, and with two threads at the same time.
fn callbacks(depths: &[usize], simulated: &OnSimulated) -> Table {
    let columns = depths.iter().map(|depth| format!("{depth} calls: ns (two threads at once)"));
    let mut table = Table::new(&std::iter::once("stacks".to_owned()).chain(columns).collect::<Vec<_>>());
    for situation in Situation::ALL {
        let of_situation: Vec<_> =
            simulated.callbacks.iter().filter(|callback| callback.0 == situation).collect();
        if of_situation.is_empty() {
            continue;
        }
        let cell = |(_, _, figure): &&(Situation, usize, Figure)| {
            format!("{} ({})", nanoseconds(figure.alone()), nanoseconds(figure.at_once()))
        };
        let cells = std::iter::once(situation.name().to_owned()).chain(of_situation.iter().map(cell));
        table.row(&cells.collect::<Vec<_>>());
    }
    table
}

/// Among all parts of gpuflame's work for a launch, returns the largest slowdown that a second thread causes, and the
/// name of that part.
fn worst_of_two_threads(methods: &[Method], all: &[Measured], simulated: &OnSimulated) -> (f64, String) {
    let ours = all.iter().flat_map(|place| {
        let figures = place.figures[..=FULL + 1].iter().zip(methods);
        figures.map(|(figure, method)| (figure.slowdown(), method.name, place.situation, place.depth))
    });
    let on_simulated = simulated.callbacks.iter().map(|(situation, depth, figure)| {
        (figure.slowdown(), "on the simulated CUDA stack", *situation, *depth)
    });
    let worst = ours.chain(on_simulated).max_by(|one, other| one.0.total_cmp(&other.0));
    let (times, what, situation, depth) = worst.expect("something was measured");
    (times, format!("{what}, {}, {depth} calls", situation.name()))
}

/// Returns the last lines of the output, one for each measured figure.
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
        lines.push(format!("full_hot_64 {:.2} ns/frame", hot.a_frame(FULL)));
    }
    let (worst, _) = worst_of_two_threads(methods, all, simulated);
    lines.push(format!("two_threads_worst {worst:.2} x"));
    lines.push(format!("callback_beyond_capture {:.1} ns", simulated.beyond_capture));
    let closed::Closed { without, with } = simulated.closed;
    lines.push(format!("closed_window {:.2} x", with / without));
    lines.push(format!("closed_window_added {:.1} ns", with - without));
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
    page::write("docs/cost.md", &format!("\n{}\n({machine}.)\n", short.text()));
}
