//! A library to preload into a PyTorch process, with which unwinders are measured. PyTorch calls `posix_memalign` once
//! per CPU tensor. At each such call, the library captures the stack with every unwinder in turn. At the end the
//! library prints the time that each unwinder takes. Stacks at tensor allocations have the same kinds of frames as
//! stacks at launches: ATen, its dispatcher, the bindings and CPython. See `run.sh`.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code)]

#[path = "../launch/framehop_here.rs"]
mod framehop_here;
#[path = "../launch/log.rs"]
mod log;
#[path = "../launch/methods.rs"]
#[allow(dead_code)]
mod methods;

use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuflame_recorder::control::window;
use methods::{Clock, METHODS, Method, Tools};

/// Number of measurements that all methods have made so far.
struct Measured {
    tools: Tools,
    methods: Vec<Method>,
    /// Measured times in nanoseconds, for each method.
    times: Vec<Vec<f64>>,
    depths: Vec<usize>,
    /// Number of stacks that differ from glibc's, for each method.
    wrong: Vec<usize>,
    turns: usize,
}

// SAFETY: only the main thread uses the value, and the main thread created it (see `posix_memalign`).
unsafe impl Send for Measured {}

static MEASURED: Mutex<Option<Measured>> = Mutex::new(None);
/// Whether the next allocation on the main thread is measured. False during a measurement.
static IS_ON: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: both system calls only return numbers and write no memory.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::syscall(libc::SYS_getpid) };
    if is_main && IS_ON.swap(false, Ordering::Relaxed) {
        if let Ok(mut measured) = MEASURED.lock()
            && let Some(measured) = &mut *measured
        {
            measured.take();
        }
        IS_ON.store(true, Ordering::Relaxed);
    }
    // SAFETY: the caller upholds the same contract.
    let memory = unsafe { __libc_memalign(align, size) };
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller passed a place to which the function may write.
    unsafe { place.write(memory) };
    0
}

/// Starts the measurement of the main thread, which must call this function. If `alone` is negative, every method
/// captures every stack in turn, and the stacks from different methods are compared. If `alone` is not negative, only
/// the method with index `alone` in the table of methods is measured. Returns false if no method has this index.
#[unsafe(no_mangle)]
extern "C" fn hook_begin(alone: c_int) -> bool {
    gpuflame_unwind::prepare();
    gpuflame_recorder::capture::refill_chunks();
    window::open();
    let mut methods: Vec<_> =
        METHODS.iter().copied().filter(|method| (method.is_here)() && !method.needs_frame_pointers).collect();
    if alone >= 0 {
        let Some(method) = methods.get(alone as usize) else { return false };
        methods = vec![*method];
    }
    let count = methods.len();
    let measured = Measured {
        tools: Tools::with_top(top_of_this_stack()),
        methods,
        times: vec![Vec::new(); count],
        depths: Vec::new(),
        wrong: vec![0; count],
        turns: 0,
    };
    *MEASURED.lock().expect("nothing panics here") = Some(measured);
    IS_ON.store(true, Ordering::Relaxed);
    true
}

fn top_of_this_stack() -> usize {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call fills the attributes, and the second call may write to the results.
    unsafe {
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()), 0);
        libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    lowest as usize + size
}

/// Ends the measurement and prints the table.
#[unsafe(no_mangle)]
extern "C" fn hook_end() {
    IS_ON.store(false, Ordering::Relaxed);
    if let Some(measured) = MEASURED.lock().expect("nothing panics here").take() {
        let _ = std::io::stdout().write_all(measured.table().as_bytes());
    }
}

impl Measured {
    #[inline(never)]
    fn take(&mut self) {
        let clock = Clock::calibrated();
        let turn = self.turns;
        self.turns += 1;
        for place in 0..self.methods.len() {
            // The order in which the methods run rotates. When the first method runs, the stack is not yet in the CPU
            // caches, so each method must be equally often the first.
            let at = (place + turn) % self.methods.len();
            let method = self.methods[at];
            self.times[at].push(clock.time(1, || _ = (method.capture)(&mut self.tools)));
        }
        if self.methods.len() > 1 {
            self.compare();
        }
        if turn.is_multiple_of(256) {
            log::drain();
        }
    }

    fn compare(&mut self) {
        let reference =
            self.methods.iter().position(|method| method.short == "glibc").expect("it is in the table");
        let mut stacks = vec![Vec::new(); self.methods.len()];
        for (method, stack) in self.methods.iter().zip(&mut stacks) {
            let count = (method.capture)(&mut self.tools);
            *stack = match method.stack {
                Some(stack) => stack(&mut self.tools),
                None => self.tools.room[..count].iter().map(|address| *address as u64).collect(),
            };
            stack.pop_if(|address| *address == 0);
        }
        let expected = &stacks[reference];
        for (found, wrong) in stacks.iter().zip(&mut self.wrong) {
            let same =
                found.iter().rev().zip(expected.iter().rev()).take_while(|(one, other)| one == other).count();
            *wrong += usize::from(same + 5 < found.len().max(expected.len()));
        }
        self.depths.push(expected.len());
    }

    fn table(mut self) -> String {
        self.depths.sort_unstable();
        let mut text = String::new();
        if !self.depths.is_empty() {
            let depth = |part: usize| self.depths[self.depths.len() * part / 100];
            let (count, [low, median, high]) = (self.depths.len(), [10, 50, 90].map(depth));
            let _ =
                writeln!(text, "{count} stacks, {low} / {median} / {high} frames deep (p10 / median / p90)");
            let _ = writeln!(text, "| method | median ns | mean below p99 | p90 | p99 | wrong stacks |");
            let _ = writeln!(text, "|---|---:|---:|---:|---:|---:|");
        }
        for ((method, times), wrong) in self.methods.iter().zip(&mut self.times).zip(&self.wrong) {
            times.sort_by(f64::total_cmp);
            let at = |part: usize| times[times.len() * part / 100];
            let below = &times[..times.len() * 99 / 100];
            let mean = below.iter().sum::<f64>() / below.len() as f64;
            let _ = writeln!(
                text,
                "| {} | {:.0} | {mean:.0} | {:.0} | {:.0} | {wrong} |",
                method.name,
                at(50),
                at(90),
                at(99)
            );
        }
        text
    }
}
