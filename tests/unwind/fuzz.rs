//! Tests random stacks: compares the unwinder with libgcc's unwinder, and compares captures that use stack caches with
//! captures that do not.
//!
//! `GPUFLAME_FUZZ=N` makes both tests N times longer and gives them further seeds.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/generate.rs"]
mod generate;
#[path = "support/oracle.rs"]
mod oracle;
#[path = "support/random.rs"]
mod random;
#[path = "support/switch.rs"]
mod switch;

use std::cell::Cell;
use std::ffi::c_void;

use generate::{Function, KEEP, OMIT, Program, REALIGN, Random, UNOPTIMISED};
use gpuflame_model::record::Frame;
use gpuflame_unwind::{CachedCapture, Skip, Unwinder};
use oracle::{Addresses, capture_both};

/// Calls (dives) and returns (climbs) at random in a call tree, with a capture at the end of every dive.
///
/// At each depth the test calls only a few different functions, and the frames have only a few different sizes.
/// Therefore many dives put the same return addresses in the same places on the stack as earlier dives, but with
/// different frames between them. A stack cache that checks too little then returns a wrong stack.
struct Fuzz<'a> {
    random: Random,
    functions: &'a [Function],
    depth: usize,
    deepest: usize,
    /// Depth at which the current dive ends or, after a capture, the depth at which the current climb ends.
    target: usize,
    climbs: bool,
    /// Number from which the functions for each depth are chosen.
    scene: usize,
    captures_left: usize,
    capture: &'a mut dyn FnMut(),
}

const DEEPEST: usize = 120;
/// Maximum depth of a coroutine's stack. The depth is small, so that the coroutine often reaches the same stack
/// position through the same calls.
const NOT_DEEP: usize = 5;
const SHALLOWEST: usize = 3;

impl Fuzz<'_> {
    /// Returns the next function to call, or `None` to return from the current function.
    fn choose(&mut self) -> Option<Function> {
        if !self.climbs && self.depth >= self.target {
            self.captures_left -= 1;
            (self.capture)();
            self.climbs = true;
            let up = if self.random.below(4) == 0 { self.depth } else { self.random.below(12) };
            self.target = self.depth.saturating_sub(up).max(SHALLOWEST);
        }
        if self.climbs && self.depth <= self.target {
            self.climbs = false;
            let down = if self.random.below(8) == 0 { self.deepest } else { self.random.below(14) };
            self.target = (self.depth + down).min(self.deepest);
            if self.random.below(100) == 0 {
                self.scene = self.random.below(1 << 20);
            }
            return self.choose_again();
        }
        let returns = self.climbs || self.captures_left == 0;
        (!returns).then(|| self.functions[self.place()])
    }

    fn choose_again(&mut self) -> Option<Function> {
        if self.captures_left == 0 { None } else { self.choose() }
    }

    fn place(&mut self) -> usize {
        ((self.scene + self.depth) * 31 + self.random.below(3)) % self.functions.len()
    }
}

/// Callback of the generated functions: returns the function that the caller must call next, or `None` if it must
/// return.
extern "C-unwind" fn next(program: &mut Program) -> Option<Function> {
    // SAFETY: SAFETY: `run` stored a pointer to its own state in `program`, and waits until this function returns.
    let fuzz = unsafe { &mut *program.state.cast::<Fuzz<'_>>() };
    program.growth = 1 + fuzz.random.below(3) as i64;
    let chosen = if fuzz.captures_left == 0 { None } else { fuzz.choose() };
    match chosen {
        Some(_) => fuzz.depth += 1,
        None => fuzz.depth -= 1,
    }
    chosen
}

/// Calls `functions` at random, and runs `capture` on `captures` of these random stacks.
fn run(seed: u64, functions: &[Function], captures: usize, capture: &mut dyn FnMut()) {
    run_to(DEEPEST, seed, functions, captures, capture);
}

/// Runs `capture` on `captures` random stacks, each at most `deepest` calls deep.
fn run_to(deepest: usize, seed: u64, functions: &[Function], captures: usize, capture: &mut dyn FnMut()) {
    let mut fuzz = Fuzz {
        random: Random::new(seed),
        functions,
        depth: 1,
        deepest,
        target: deepest / 2,
        climbs: false,
        scene: 0,
        captures_left: captures,
        capture,
    };
    let state = (&raw mut fuzz).cast();
    functions[seed as usize % functions.len()](
        &mut Program { next, growth: 1, frame: std::ptr::null(), state },
        1,
        2,
    );
    assert_eq!(fuzz.captures_left, 0);
}

/// Generates eight libraries, each with other compiler options, and returns their functions.
fn functions() -> Vec<Function> {
    let kinds = [OMIT, KEEP, REALIGN, OMIT, UNOPTIMISED, REALIGN, OMIT, KEEP];
    (1u64..).zip(kinds).flat_map(|(seed, options)| generate::library(seed, options)).collect()
}

fn times() -> usize {
    std::env::var("GPUFLAME_FUZZ").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Returns the seeds of a test. Each repetition with `GPUFLAME_FUZZ` has other seeds.
fn seeds(base: u64) -> impl Iterator<Item = u64> {
    base..base + times() as u64
}

#[test]
fn random_stacks_agree_with_libgcc() {
    let functions = functions();
    let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
    let (mut frames, mut different) = (0, 0);
    for seed in seeds(100) {
        run(seed, &functions, 300_000, &mut || {
            let flags = capture_both(&mut ours, &mut theirs);
            frames += ours.count;
            let is_same = flags.0 == 0 && ours.as_slice()[1..] == theirs.as_slice()[1..];
            different += usize::from(!is_same);
        });
    }
    eprintln!("{frames} frames, {different} captures differ");
    assert_eq!(different, 0);
}

#[test]
fn cached_and_uncached_walks_give_equal_stacks() {
    gpuflame_unwind::prepare();
    let functions = functions();
    let mut with = Unwinder::new().expect("memory for an unwinder");
    let mut without = Unwinder::new().expect("memory for an unwinder");
    without.use_caches(false);
    let (mut frames, mut kept, mut different) = (0, 0, 0);
    let mut before: Vec<Frame> = Vec::new();
    for seed in seeds(200) {
        run(seed, &functions, 1_000_000, &mut || {
            let plain = without.capture(Skip::Count(1));
            let captured = with.capture(Skip::Count(1));
            let stays = &captured.frames[captured.frames.len() - captured.unchanged..];
            let is_same =
                captured.frames == plain.frames && captured.flags == plain.flags && before.ends_with(stays);
            different += usize::from(!is_same);
            frames += captured.frames.len();
            kept += captured.unchanged;
            before.clear();
            before.extend(captured.frames);
        });
    }
    eprintln!("{frames} frames, {kept} of them kept, {different} captures differ");
    assert_eq!(different, 0);
    assert!(kept * 4 > frames, "the walk hardly ever joins the last stack");
}

#[test]
fn a_repeated_stacks_number_refers_to_an_equal_stack() {
    gpuflame_unwind::prepare();
    let functions = functions();
    let mut with = Unwinder::new().expect("memory for an unwinder");
    let mut without = Unwinder::new().expect("memory for an unwinder");
    without.use_caches(false);
    let mut kept: Vec<Vec<Frame>> = vec![Vec::new(); Unwinder::MAX_CACHED_STACKS];
    let (mut told, mut new, mut different) = (0, 0, 0);
    // With few functions and small depths, the same stacks occur often; with many functions or large depths, the same
    // stack hardly ever occurs twice.
    for (seed, functions, deepest) in seeds(400).flat_map(|seed| {
        [(seed, &functions[..2], 3), (seed, &functions[..4], NOT_DEEP), (seed, &functions[..], DEEPEST)]
    }) {
        run_to(deepest, seed, functions, 400_000, &mut || {
            let plain = without.capture(Skip::Count(1));
            match with.capture_with_cache(Skip::Count(1), plain.frames.len() as u64 % 3) {
                CachedCapture::Hit(number) => {
                    told += 1;
                    different += usize::from(kept[number] != plain.frames);
                }
                CachedCapture::Miss(captured) => {
                    new += 1;
                    different += usize::from(captured.frames != plain.frames);
                    if let Some(number) = with.cache_last() {
                        kept[number].clear();
                        kept[number].extend(plain.frames);
                    }
                }
            }
        });
    }
    eprintln!("{told} told, {new} new, {different} captures differ");
    assert_eq!(different, 0);
    assert!(told > 100_000 && new > 100_000, "there should be enough of both");
}

thread_local! {
    /// Closure that the next coroutine runs.
    static WORK: Cell<Option<*mut (dyn FnMut() + 'static)>> = const { Cell::new(None) };
}

/// Runs `work` on another stack, which ends at `top`.
fn on_another_stack(top: *mut c_void, work: &mut dyn FnMut()) {
    extern "C-unwind" fn begin() {
        let work = WORK.take().expect("it was put there just now");
        // SAFETY: `on_another_stack` borrows the work for as long as this function runs.
        unsafe { (*work)() };
    }
    // SAFETY: only the lifetime changes; `begin` takes the closure and returns before this function returns.
    WORK.set(Some(unsafe { std::mem::transmute::<&mut dyn FnMut(), *mut (dyn FnMut() + 'static)>(work) }));
    switch::on_stack(begin, top);
}

#[test]
fn cached_paths_on_foreign_stacks_equal_uncached_walks() {
    gpuflame_unwind::prepare();
    let functions = functions();
    let mut with = Unwinder::new().expect("memory for an unwinder");
    let mut without = Unwinder::new().expect("memory for an unwinder");
    without.use_caches(false);
    const STACK: usize = 64 << 10;
    // The stacks are next to each other in memory, and above the last stack there are zeroes.
    let mut stacks = vec![0u128; 5 * STACK / 16];
    let (mut frames, mut different, mut whole) = (0, 0, 0);
    for seed in seeds(300) {
        for turn in 0..400 {
            let top = stacks[(1 + turn % 4) * STACK / 16 - turn % 3..].as_mut_ptr().cast();
            on_another_stack(top, &mut || {
                run_to(NOT_DEEP, seed + turn as u64 % 8, &functions, 250, &mut || {
                    let plain = without.capture(Skip::Count(1));
                    let captured = with.capture(Skip::Count(1));
                    let is_same = captured.frames == plain.frames && captured.flags == plain.flags;
                    different += usize::from(!is_same);
                    frames += captured.frames.len();
                    whole += usize::from(captured.flags.0 == 0);
                })
            });
        }
    }
    eprintln!("{frames} frames, {whole} stacks to their end, {different} captures differ");
    assert_eq!(different, 0);
    assert!(whole > 10_000, "hardly any stack came to its end: {whole}");
}
