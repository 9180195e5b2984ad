//! Starts and ends many threads, each with many fibers, while libraries are loaded and unloaded and the collector reads
//! continuously. The collector must read each launch exactly once, in the order in which its thread made it, with the
//! right thread and the right stack.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../support/api_call.rs"]
mod api_call;
#[path = "../unwind/support/build.rs"]
mod build;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use api_call::launch;
use build::{Library, compile};
use gpuflame_model::record::{ContextId, Launch, Row, ThreadId};
use gpuflame_recorder::capture;
use gpuflame_recorder::control::window;

/// Total number of threads, number of threads that run at the same time, number of fibers per thread, and number of
/// launches per fiber.
const THREADS: u32 = 1600;
const AT_ONCE: u32 = 4;
const FIBERS: u32 = 2;
const LAUNCHES: u32 = 40;

/// A fiber, and the context of its thread, to which the fiber switches back.
struct Fiber {
    own: libc::ucontext_t,
    back: libc::ucontext_t,
    first: u32,
    is_done: bool,
}

thread_local! {
    static CURRENT: Cell<*mut Fiber> = const { Cell::new(null_mut()) };
}

/// Body of a fiber. The function `body` never returns, because at the end the thread simply stops switching to the
/// fiber.
extern "C" fn fiber() {
    let current = CURRENT.get();
    for n in 0..=LAUNCHES {
        // SAFETY: the fiber outlives every switch to it, and its thread waits while the fiber runs.
        unsafe {
            (*current).is_done = n == LAUNCHES;
            if n % 10 == 0 {
                libc::swapcontext(&raw mut (*current).own, &raw const (*current).back);
            }
            launch((*current).first + n);
        }
    }
}

const STACK_BYTES: usize = 128 << 10;

/// Runs the fibers of a thread in turn. Each fiber has its own stack.
fn run_fibers(thread: u32) {
    // SAFETY: the all-zero value is a valid context, which getcontext then fills.
    let mut fibers: Vec<Fiber> = (0..FIBERS).map(|_| unsafe { zeroed() }).collect();
    for (number, fiber_of) in (0..).zip(&mut fibers) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        fiber_of.first = (thread * FIBERS + number) * LAUNCHES;
        // SAFETY: the stack is newly mapped memory, and the context is set up to run on it.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let stack = libc::mmap(null_mut(), STACK_BYTES, protection, flags, -1, 0);
            assert_ne!(stack, libc::MAP_FAILED);
            assert_eq!(libc::getcontext(&mut fiber_of.own), 0);
            fiber_of.own.uc_stack.ss_sp = stack;
            fiber_of.own.uc_stack.ss_size = STACK_BYTES;
            libc::makecontext(&mut fiber_of.own, fiber, 0);
        }
    }
    while let Some(next) = fibers.iter_mut().filter(|fiber| !fiber.is_done).min_by_key(|fiber| fiber.first) {
        let next: *mut Fiber = next;
        CURRENT.set(next);
        // SAFETY: makecontext made the context, or it was saved when its fiber switched back.
        unsafe { libc::swapcontext(&raw mut (*next).back, &raw const (*next).own) };
    }
    for fiber in &fibers {
        // SAFETY: the stack was mapped above, and no fiber runs on it any more.
        unsafe { libc::munmap(fiber.own.uc_stack.ss_sp, STACK_BYTES) };
    }
}

/// Rows that the collector has read.
#[derive(Default)]
struct Told {
    threads: BTreeMap<ThreadId, String>,
    /// Launch contexts (stack and API call), keyed by context id. Each launch context is stored with the name of the
    /// thread that sent it, and the addresses of its stack.
    contexts: BTreeMap<ContextId, (String, Vec<u64>)>,
    launches: BTreeMap<String, Vec<u32>>,
}

impl Told {
    fn collect(&mut self) {
        capture::refill_chunks();
        while capture::drain(|row| match *row {
            Row::Thread { id, name } => drop(self.threads.insert(id, name.to_owned())),
            Row::Context { id, thread, frames, .. } => {
                let frames = frames.iter().map(|frame| frame.0).collect();
                self.contexts.insert(id, (self.threads[&thread].clone(), frames));
            }
            Row::Launch(Launch { correlation, context, .. }) => {
                let (thread, _) = &self.contexts[&context];
                self.launches.entry(thread.clone()).or_default().push(correlation.0);
            }
            _ => {}
        }) {}
    }
}

#[test]
fn launches_of_short_lived_threads_and_fibers_appear_once_under_their_stacks() {
    gpuflame_unwind::prepare();
    capture::refill_chunks();
    window::open();
    let libraries = ["jump.c", "twin.c"].map(|source| compile(source, &["-O2"]));
    let (lines_left, mut told) = (AtomicU32::new(AT_ONCE), Told::default());
    thread::scope(|scope| {
        for library in &libraries {
            scope.spawn(|| {
                while lines_left.load(Ordering::Relaxed) > 0 {
                    Library::open(library).close();
                }
            });
        }
        for line in 0..AT_ONCE {
            let lines_left = &lines_left;
            scope.spawn(move || {
                for number in (line..THREADS).step_by(AT_ONCE as usize) {
                    let named = thread::Builder::new().name(format!("number {number}"));
                    named.spawn(move || run_fibers(number)).unwrap().join().unwrap();
                }
                lines_left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while lines_left.load(Ordering::Relaxed) > 0 {
            told.collect();
        }
    });
    told.collect();
    let lost: Vec<_> = capture::losses().filter(|(_, count)| *count > 0).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(told.launches.len(), THREADS as usize);
    for number in 0..THREADS {
        let ids = &told.launches[&format!("number {number}")];
        for fiber in number * FIBERS..(number + 1) * FIBERS {
            let own = fiber * LAUNCHES..(fiber + 1) * LAUNCHES;
            let of_fiber = ids.iter().copied().filter(|id| own.contains(id));
            assert!(of_fiber.eq(own.clone()), "fiber {fiber} of thread {number}");
        }
        assert_eq!(ids.len() as u32, FIBERS * LAUNCHES, "thread {number}");
    }
    let stacks: BTreeSet<_> = told.contexts.values().map(|(_, frames)| frames).collect();
    assert_eq!(stacks.len(), 1, "all were launched from one place: {stacks:x?}");
    assert_eq!(told.contexts.len(), THREADS as usize, "each thread has met it once");
}
