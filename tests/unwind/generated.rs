//! Tests random stacks of functions that are generated at run time. These functions store any value in rbp, and the
//! test replaces them by new functions.
//!
//! The test knows each return address on these stacks. A captured stack is *right* if it reaches the thread's first
//! frame and contains these return addresses in order, with the same frames between neighbours.
//!
//! `GPUFLAME_FUZZ=N` makes the test run N times as many seeds.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/frames.rs"]
mod frames;
#[path = "support/random.rs"]
mod random;
#[path = "support/switch.rs"]
mod switch;

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;

use frames::{Area, Mix, SLOTS};
use gpuflame_model::record::{ContextFlags, Frame, FrameKind};
use gpuflame_unwind::{self as unwind, CachedCapture, CopyUnwinder, REGISTERS, Skip, Unwinder};
use random::Random;

const DEEPEST: usize = 9;
const CAPTURES: usize = 400;
const SEEDS: u64 = 20;

/// A random sequence of calls, returns and captures.
struct Walk<'a> {
    random: Random,
    area: Area,
    mix: Mix,
    /// If this is N, the test replaces an old function by a new function before one of N calls.
    replaces: Option<usize>,
    /// Slots of the functions that are on the stack, outermost first.
    active: Vec<usize>,
    captures_left: usize,
    capture: &'a mut dyn FnMut(&Truth<'_>),
}

/// The functions on the stack, outermost first, as the test has called them.
struct Truth<'a> {
    area: &'a Area,
    active: &'a [usize],
}

extern "C-unwind" fn next(walk: *mut c_void) {
    // SAFETY: SAFETY: `step` passed a pointer to its `Walk`, and waits until this function returns.
    unsafe { &mut *walk.cast::<Walk<'_>>() }.step();
}

impl Walk<'_> {
    fn run(
        seed: u64,
        mix: Mix,
        replaces: Option<usize>,
        captures: usize,
        capture: &mut dyn FnMut(&Truth<'_>),
    ) {
        let mut random = Random::new(seed);
        let mut area = Area::new();
        (0..SLOTS).for_each(|slot| area.write(slot, &mut random, mix));
        Walk { random, area, mix, replaces, active: Vec::new(), captures_left: captures, capture }.step();
    }

    /// Makes captures, calls and returns in a random order.
    #[inline(never)]
    fn step(&mut self) {
        while self.captures_left > 0 {
            match self.random.below(5) {
                0 if !self.active.is_empty() => return,
                0 | 1 => {
                    self.captures_left -= 1;
                    (self.capture)(&Truth { area: &self.area, active: &self.active });
                }
                _ if self.active.len() < DEEPEST => self.call(),
                _ => {}
            }
        }
    }

    #[inline(always)]
    fn call(&mut self) {
        let slot = self.random.below(SLOTS);
        if self.active.contains(&slot) {
            return;
        }
        if self.replaces.is_some_and(|one_in| self.random.below(one_in) == 0) {
            self.area.write(slot, &mut self.random, self.mix);
        }
        self.active.push(slot);
        self.area.function(slot)(next, std::ptr::from_mut(self).cast());
        self.active.pop();
    }
}

impl Truth<'_> {
    /// Whether these frames, leaf first, are the true stack including its root.
    fn is(&self, frames: &[Frame], flags: ContextFlags, root: &[Frame]) -> bool {
        let is_ours = |frame: &Frame| match frame.kind() {
            FrameKind::Native { address, .. } => self.area.contains(address),
            _ => false,
        };
        let place = |frame: &Frame| match frame.kind() {
            FrameKind::Native { address, .. } => address + 1,
            _ => 0,
        };
        let found = frames.iter().filter(|frame| is_ours(frame)).map(place);
        let expected = self.active.iter().rev().map(|slot| self.area.return_address(*slot));
        let others: Vec<&[Frame]> = frames.split(is_ours).collect();
        // The frames at the leaf and at the root are functions of the test.
        let between = others.get(1..others.len() - 1).unwrap_or_default();
        flags.0 & (ContextFlags::CUT | ContextFlags::TRUNCATED) == 0
            && found.eq(expected)
            && frames.ends_with(root)
            && between.iter().all(|others| !others.is_empty() && others == &between[0])
    }
}

/// Number of stacks that were captured in one way, and the number of right stacks among them.
#[derive(Debug, Default)]
struct Score {
    right: usize,
    all: usize,
}

impl Score {
    fn count(&mut self, is_right: bool) {
        self.right += usize::from(is_right);
        self.all += 1;
    }

    fn share(&self) -> f64 {
        self.right as f64 / self.all as f64
    }
}

/// The unwinders for the different ways to capture a stack, the results, and the data for the checks.
struct Ways {
    cached: Unwinder,
    numbered: Unwinder,
    plain: Unwinder,
    copies: CopyUnwinder,
    numbers: Vec<(Vec<Frame>, ContextFlags)>,
    /// The outermost frames, which all stacks have in common; the last of them is the end of the stack.
    root: Vec<Frame>,
    top: usize,
    scores: [Score; 4],
}

const CACHED: usize = 0;
const NUMBERED: usize = 1;
const PLAIN: usize = 2;
const COPIED: usize = 3;

impl Ways {
    #[inline(never)]
    fn new(top: usize) -> Self {
        unwind::prepare();
        let new = || Unwinder::new().expect("memory for an unwinder");
        let [mut cached, numbered, mut plain] = [new(), new(), new()];
        plain.use_caches(false);
        // Skip two frames, because the caller of this function will be at another instruction when the other stack is
        // captured.
        let root = cached.capture(Skip::Count(2)).frames.to_vec();
        let copies = CopyUnwinder::new().expect("memory for an unwinder");
        let numbers = vec![(Vec::new(), ContextFlags(0)); Unwinder::MAX_CACHED_STACKS];
        Self { cached, numbered, plain, copies, numbers, root, top, scores: Default::default() }
    }

    fn capture(&mut self, truth: &Truth<'_>) {
        let captured = self.cached.capture(Skip::None);
        self.scores[CACHED].count(truth.is(captured.frames, captured.flags, &self.root));
        match self.numbered.capture_with_cache(Skip::None, 0) {
            CachedCapture::Hit(number) => {
                let (frames, flags) = &self.numbers[number];
                self.scores[NUMBERED].count(truth.is(frames, *flags, &self.root));
            }
            CachedCapture::Miss(captured) => {
                self.scores[NUMBERED].count(truth.is(captured.frames, captured.flags, &self.root));
                let kept = (captured.frames.to_vec(), captured.flags);
                if let Some(number) = self.numbered.cache_last() {
                    self.numbers[number] = kept;
                }
            }
        }
        let captured = self.plain.capture(Skip::None);
        self.scores[PLAIN].count(truth.is(captured.frames, captured.flags, &self.root));
        let (registers, stack) = sample(self.top);
        let captured = self.copies.walk(&registers, stack);
        self.scores[COPIED].count(truth.is(captured.frames, captured.flags, &self.root));
    }

    fn report(&self, what: &str) {
        for (way, score) in ["cached", "numbered", "plain", "copied"].iter().zip(&self.scores) {
            eprintln!(
                "{what}, {way}: {} of {} right, {:.2} %",
                score.right,
                score.all,
                100.0 * score.share()
            );
        }
    }
}

/// Registers in DWARF's order, in which `rsp` has the index 7.
const ORDER: [libc::c_int; REGISTERS] = [
    libc::REG_RAX,
    libc::REG_RDX,
    libc::REG_RCX,
    libc::REG_RBX,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_RBP,
    libc::REG_RSP,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
    libc::REG_RIP,
];

/// Returns the sample that the Linux kernel would take at this point: the registers, and the stack up to `top`.
#[inline(always)]
fn sample<'a>(top: usize) -> ([u64; REGISTERS], &'a [u8]) {
    // SAFETY: zeroes are a valid context, and getcontext fills it in.
    let context = unsafe {
        let mut context: libc::ucontext_t = std::mem::zeroed();
        assert_eq!(libc::getcontext(&mut context), 0);
        context
    };
    let registers = ORDER.map(|register| context.uc_mcontext.gregs[register as usize] as u64);
    let sp = registers[7] as usize;
    // SAFETY: the stack is mapped up to its top, and the caller's frames do not change while it is walked.
    (registers, unsafe { std::slice::from_raw_parts(sp as *const u8, top - sp) })
}

/// Address at which this thread's stack ends.
fn top_of_stack() -> usize {
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are initialized before they are read, and destroyed once.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attributes), 0);
        assert_eq!(libc::pthread_attr_getstack(&attributes, &mut lowest, &mut size), 0);
        libc::pthread_attr_destroy(&mut attributes);
    }
    lowest as usize + size
}

/// Seeds for the test with index `which`. Each repetition with `GPUFLAME_FUZZ` has other seeds.
fn seeds(which: u64) -> impl Iterator<Item = u64> {
    let times = std::env::var("GPUFLAME_FUZZ").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let first = which << 32;
    first..first + SEEDS * times
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

/// Captures stacks of generated functions that run on the thread's own stack.
fn on_the_own_stack(seeds: impl Iterator<Item = u64>, mix: Mix, replaces: Option<usize>) -> Ways {
    let mut ways = Ways::new(top_of_stack());
    for seed in seeds {
        Walk::run(seed, mix, replaces, CAPTURES, &mut |truth| ways.capture(truth));
    }
    black_box(ways)
}

/// Makes captures on four other stacks in turn. Above the last of these stacks there are zeroes.
fn on_other_stacks(seeds: impl Iterator<Item = u64>, mix: Mix, replaces: Option<usize>) -> Ways {
    const STACK: usize = 128 << 10;
    let mut stacks = vec![0u128; 5 * STACK / 16];
    let top = stacks.as_mut_ptr_range().end.addr();
    let mut ways = Ways::new(top);
    // The four other stacks do not contain the thread's outermost frames.
    ways.root.clear();
    for seed in seeds {
        let first = stacks[(1 + seed as usize % 4) * STACK / 16..].as_mut_ptr().cast();
        on_another_stack(first, &mut || {
            Walk::run(seed, mix, replaces, CAPTURES, &mut |truth| ways.capture(truth));
        });
    }
    black_box(ways)
}

#[test]
fn generated_frames_are_walked_to_the_root_for_any_value_of_rbp() {
    let own = on_the_own_stack(seeds(1), Mix::Walkable, None);
    own.report("own stack");
    let others = on_other_stacks(seeds(2), Mix::Walkable, None);
    others.report("other stacks");
    for score in own.scores.iter().chain(&others.scores) {
        assert_eq!(score.right, score.all);
    }
}

/// If generated code was replaced, a cached unwind rule may be wrong until the unwinder checks it. If the unwinder did
/// not check its rules, 21 % of the stacks would be right on the thread's own stack and 18 % on other stacks; with
/// checks it is at least 98 %.
#[test]
fn most_stacks_are_right_while_generated_code_is_replaced_in_place() {
    let own = on_the_own_stack(seeds(3), Mix::Walkable, Some(20));
    own.report("own stack");
    let others = on_other_stacks(seeds(4), Mix::Walkable, Some(20));
    others.report("other stacks");
    for ways in [own, others] {
        assert!(ways.scores.iter().all(|score| score.share() > 0.8));
        assert_eq!(ways.scores[COPIED].right, ways.scores[COPIED].all, "copies are always checked");
    }
}

/// When generated code was replaced, each cache is correct again after at most `MAX_CAPTURES` captures. The back-off of
/// the stack caches guarantees this.
#[test]
fn a_stack_is_right_again_after_a_bounded_number_of_captures() {
    const MAX_CAPTURES: usize = 2 << 12;
    let mut ways = Ways::new(top_of_stack());
    let mut random = Random::new(1);
    let mut area = Area::new();
    area.write(0, &mut random, Mix::Walkable);
    for _ in 0..20 {
        area.write(0, &mut random, Mix::Walkable);
        let mut capture = |_: usize| {
            ways.scores = Default::default();
            let mut work = || ways.capture(&Truth { area: &area, active: &[0] });
            through(&area, &mut work);
            ways.scores.iter().all(|score| score.right == score.all)
        };
        assert!((0..MAX_CAPTURES).any(&mut capture));
        assert!((0..MAX_CAPTURES).all(&mut capture));
    }
}

/// Runs `work` inside a call from the generated function in the first slot.
#[inline(never)]
fn through(area: &Area, mut work: &mut dyn FnMut()) {
    extern "C-unwind" fn run(work: *mut c_void) {
        // SAFETY: `through` passed a pointer to its own variable, and waits until this function returns.
        unsafe { (*work.cast::<&mut dyn FnMut()>())() };
    }
    area.function(0)(run, (&raw mut work).cast());
    black_box(());
}

#[test]
fn unwalkable_generated_frames_do_not_crash_the_unwinder() {
    on_the_own_stack(seeds(5), Mix::Any, Some(20)).report("own stack");
    on_other_stacks(seeds(6), Mix::Any, Some(20)).report("other stacks");
}
