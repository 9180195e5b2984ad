//! Host functions, which programs pass to cuLaunchHostFunc. A driver thread runs the host functions in the order of the
//! times at which they are due.

use crate::clock;
use crate::gpu;
use crate::settings;
use crate::stream::Stream;
use crate::turn;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// Type of a host function, the same as CUhostFn.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    time: u64,
    number: u64,
    function: usize,
    argument: usize,
    /// Address of the stream to which the function was submitted, or 0 for a function without a stream.
    stream: usize,
}

struct Queue {
    waiting: BinaryHeap<Reverse<Due>>,
    number: u64,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { waiting: BinaryHeap::new(), number: 0 });
static UNFINISHED: AtomicU64 = AtomicU64::new(0);
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Queue> {
    crate::sync::lock(&QUEUE)
}

/// Runs `function(argument)` when the GPU work that was submitted to the stream earlier is done.
pub fn launch(stream: &'static Stream, function: HostFn, argument: *mut c_void) {
    if settings::get().stepped {
        return gpu::submit_host(stream, call(function, argument));
    }
    stream.host_functions.fetch_add(1, Relaxed);
    let time = if settings::get().real_clock { stream.ready_at() } else { 0 };
    enqueue(time, function, argument, std::ptr::from_ref(stream) as usize);
}

/// Runs `function(argument)` now, on the calling thread, as the stepped clock does. Returns the time that the host
/// function took.
pub(crate) fn call(function: HostFn, argument: *mut c_void) -> u64 {
    // SAFETY: the program passed a function and the argument that belongs to it.
    turn::host_function(|| unsafe { function(argument) })
}

/// Runs `function(argument)` on the driver's thread, independent of any stream.
pub fn run_soon(function: HostFn, argument: *mut c_void) {
    enqueue(0, function, argument, 0);
}

fn enqueue(time: u64, function: HostFn, argument: *mut c_void, stream: usize) {
    static START: Once = Once::new();
    START.call_once(|| {
        let thread = std::thread::Builder::new().name("cuda-host-fn".into());
        if let Err(e) = thread.spawn(serve) {
            crate::abort!("no thread for host functions: {e}");
        }
    });
    UNFINISHED.fetch_add(1, Relaxed);
    let mut queue = lock();
    queue.number += 1;
    let due =
        Due { time, number: queue.number, function: function as usize, argument: argument as usize, stream };
    queue.waiting.push(Reverse(due));
    CHANGED.notify_all();
}

/// Waits until `done` returns true. Calls `done` again each time a host function has run.
pub fn wait(done: impl Fn() -> bool) {
    if done() {
        return;
    }
    let mut queue = lock();
    while !done() {
        let woken = CHANGED.wait_timeout(queue, Duration::from_millis(50));
        queue = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Whether all submitted host functions have run.
pub fn none_left() -> bool {
    UNFINISHED.load(Relaxed) == 0
}

fn serve() {
    let mut queue = lock();
    loop {
        let next = queue.waiting.peek().map(|Reverse(due)| due.time.saturating_sub(clock::now()));
        queue = match next {
            None => CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(left @ 1..) => {
                let woken = CHANGED.wait_timeout(queue, Duration::from_nanos(left));
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            Some(0) => {
                let due = queue.waiting.pop();
                drop(queue);
                if let Some(Reverse(due)) = due {
                    run(&due);
                }
                CHANGED.notify_all();
                lock()
            }
        };
    }
}

fn run(due: &Due) {
    // SAFETY: `launch` stored a HostFn and the argument that belongs to it.
    unsafe {
        let function = std::mem::transmute::<usize, HostFn>(due.function);
        function(due.argument as *mut c_void);
    }
    // SAFETY: `launch` stored a `&'static Stream`, `run_soon` 0.
    if let Some(stream) = unsafe { (due.stream as *const Stream).as_ref() } {
        stream.host_functions.fetch_sub(1, Relaxed);
    }
    UNFINISHED.fetch_sub(1, Relaxed);
}
