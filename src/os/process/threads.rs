//! Starts gpuflame's own threads. Also reads the kernel's data about all threads of this process: their CPU time, and
//! whether they are still running.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::futex::EventFlags;
use super::{host_signals, scheduling};
use crate::listing;

/// Default stack size of a thread in bytes, the same as in the standard library.
pub const DEFAULT_STACK_BYTES: usize = 2 << 20;

/// Returns the thread id of the calling thread. The system call is made directly, because glibc before 2.30 has no
/// `gettid`.
pub fn current_id() -> i32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Returns the milliseconds since the machine started. This function may be called in a signal handler.
pub fn uptime_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Measures the CPU time of one thread. If the CPU time does not increase, the thread may be waiting for an event that
/// never happens.
#[derive(Debug)]
pub struct CpuClock(AtomicI32);

impl CpuClock {
    /// Creates a clock that does not measure a thread yet.
    pub const fn new() -> Self {
        Self(AtomicI32::new(0))
    }

    /// Makes this clock measure the calling thread.
    pub fn follow_this_thread(&self) {
        let mut clock = 0;
        // SAFETY: the call writes to `clock`.
        if unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } == 0 {
            self.0.store(clock, Ordering::Release);
        }
    }

    /// Returns the CPU time that the measured thread has used so far; zero if no thread is measured yet. This function
    /// may be called in a signal handler.
    pub fn elapsed(&self) -> Duration {
        let clock = self.0.load(Ordering::Acquire);
        // The clock id 0 means that no thread is measured. No thread's clock has the id 0, because 0 is the id of the
        // wall clock.
        if clock == 0 {
            return Duration::ZERO;
        }
        let mut taken = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes to `taken`, and fails for a thread that has ended.
        unsafe { libc::clock_gettime(clock, &mut taken) };
        Duration::new(taken.tv_sec as u64, taken.tv_nsec as u32)
    }
}

impl Default for CpuClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Identity of a thread: thread id and start time. The id alone is not sufficient, because the kernel may give the id
/// of an ended thread to a new thread. The new thread has a later start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadKey {
    number: i32,
    /// Start time of the thread, in clock ticks since the machine started.
    started: u64,
}

impl ThreadKey {
    /// Returns the identity of the thread with id `number`; `None` if the thread has ended or `/proc` is not mounted.
    fn of_thread(number: i32) -> Option<Self> {
        let started = read_stat(std::process::id(), number)?.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { number, started })
    }
}

/// Threads that exist only because of gpuflame: gpuflame's own threads, and the threads that the tracer (CUPTI) created
/// after gpuflame was loaded. If the table of these threads is full, additional threads of gpuflame or the tracer count
/// as threads of the program.
static OUR_THREADS: [ThreadSlot; 256] =
    [const { ThreadSlot { number: AtomicI32::new(0), started: AtomicU64::new(0) } }; 256];

/// Entry of the table of gpuflame's threads. It stores a [`ThreadKey`].
struct ThreadSlot {
    /// Thread id; 0 if the entry is free; [`CLAIMED`] if the entry is about to be written.
    number: AtomicI32,
    started: AtomicU64,
}

const CLAIMED: i32 = -1;

impl ThreadSlot {
    /// If this entry is free, writes the identity to the entry and returns true. Takes no lock, because a signal
    /// handler that never returns may stop a thread of the tracer at any time.
    fn claim(&self, identity: ThreadKey) -> bool {
        let is_claimed =
            self.number.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_claimed {
            self.started.store(identity.started, Ordering::Relaxed);
            self.number.store(identity.number, Ordering::Release);
        }
        is_claimed
    }

    fn holds(&self, identity: ThreadKey) -> bool {
        self.number.load(Ordering::Acquire) == identity.number
            && self.started.load(Ordering::Relaxed) == identity.started
    }
}

/// Id of the process in which [`create_for_tracer`] notes threads. In a forked child, which has another process id,
/// `create_for_tracer` notes no threads.
static TRACER_PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread was started by [`spawn`].
pub fn is_ours() -> bool {
    IS_OURS.get()
}

/// Starts a detached thread that runs `body` with all signals blocked. A panic in `body` ends only this thread.
///
/// `std::thread` is not used, because its threads register destructors of thread-local variables with the C library. To
/// register a destructor, the C library waits for the loader's lock, and it aborts the process if there is no memory.
///
/// Waits until the new thread has its thread-local variables, because the program may use up its memory soon after this
/// call. If the thread does not start in time, for example on a busy machine, returns after 0.1 s.
///
/// # Errors
/// Fails if the system cannot create another thread.
pub fn spawn(name: &'static CStr, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let has_started = Arc::new(AtomicBool::new(false));
    let start = ThreadStart { name, body: Box::new(body), has_started: Arc::clone(&has_started) };
    let start = Box::into_raw(Box::new(start));
    // SAFETY: `run` receives the pointer to its data exactly once.
    let error = host_signals::with_all_blocked(|| unsafe { create_detached(stack, run, start.cast()) });
    if error == 0 {
        let begin = Instant::now();
        while !has_started.load(Ordering::Acquire) && begin.elapsed() < MAX_START {
            pause(START_PAUSE);
        }
        return Ok(());
    }
    // SAFETY: no thread was created, so the box still belongs to this thread.
    drop(unsafe { Box::from_raw(start) });
    Err(io::Error::from_raw_os_error(error))
}

/// Data that [`spawn`] passes to the new thread.
struct ThreadStart {
    name: &'static CStr,
    body: Box<dyn FnOnce() + Send>,
    has_started: Arc<AtomicBool>,
}

/// Maximum time for which [`spawn`] waits until a new thread has its thread-local variables. A thread starts within 0.1
/// ms on an idle processor.
const MAX_START: Duration = Duration::from_millis(100);
const START_PAUSE: Duration = Duration::from_micros(50);
const MEMORY_PAUSE: Duration = Duration::from_millis(10);

/// Sleeps for `duration`. `std::thread::sleep` is not used, because it uses thread-local variables.
fn pause(duration: Duration) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: duration.subsec_nanos().into() };
    // SAFETY: `pause` is a valid time, and the null pointer means that the remaining time is not requested.
    unsafe { libc::nanosleep(&raw const pause, null_mut()) };
}

extern "C-unwind" fn run(start: *mut c_void) -> *mut c_void {
    wait_for_memory();
    IS_OURS.set(true);
    // SAFETY: `spawn` made the box and handed it to this thread.
    let ThreadStart { name, body, has_started } = *unsafe { Box::from_raw(start.cast::<ThreadStart>()) };
    has_started.store(true, Ordering::Release);
    drop(has_started);
    // SAFETY: the name is a C string, and the C library refuses a name that is too long.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    // A panic must not reach the C library.
    let _ = catch_unwind(AssertUnwindSafe(body));
    null_mut()
}

/// Waits until enough memory is available for the calling thread's thread-local variables. The C library allocates
/// these variables when a thread first uses one of them, and aborts the process if there is no memory.
fn wait_for_memory() {
    // The thread-local variables of gpuflame's library take 0.4 KiB, and the thread's list of all libraries takes 16
    // bytes per library.
    const SIZES: [usize; 2] = [1 << 10, 8 << 10];
    loop {
        // SAFETY: each block is freed once. The C library can use the freed blocks for its next allocations.
        let has_memory = unsafe {
            let blocks = SIZES.map(|bytes| libc::malloc(bytes));
            blocks.iter().for_each(|block| libc::free(*block));
            blocks.iter().all(|block| !block.is_null())
        };
        if has_memory {
            return;
        }
        pause(MEMORY_PAUSE);
    }
}

/// Creates a detached thread that calls `start` with `argument`. `stack` is the thread's stack size in bytes. Returns
/// 0, or an error number.
///
/// # Safety
/// Calling `start` with `argument` on another thread must be safe.
unsafe fn create_detached(stack: usize, start: ThreadFunction, argument: *mut c_void) -> i32 {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the call initialises `attributes`, and does not fail.
    unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) };
    // SAFETY: `pthread_attr_init` has just initialised the attributes.
    let attributes = unsafe { attributes.assume_init_mut() };
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the attributes are valid, because an attribute keeps its default if the C library refuses the new value.
    // The caller guarantees that `start` may be called with `argument`.
    unsafe {
        libc::pthread_attr_setstacksize(attributes, stack);
        libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        let error = pthread_create(thread.as_mut_ptr(), attributes, start, argument);
        libc::pthread_attr_destroy(attributes);
        error
    }
}

/// Records that the calling thread is one of gpuflame's own threads. Replaces the affinity and the scheduling settings,
/// which the thread inherited from its creator, by those of the process. Call this function on a thread that [`spawn`]
/// started and that keeps running.
pub fn note_ours() {
    IS_OURS.set(true);
    note_calling_thread();
    scheduling::apply_process_scheduling(&thread_ids());
}

fn note_calling_thread() {
    if let Some(identity) = ThreadKey::of_thread(current_id()) {
        let _ = OUR_THREADS.iter().any(|place| place.claim(identity));
    }
}

/// Makes [`create_for_tracer`] note the threads that it creates in this process.
pub fn note_threads_of_tracer() {
    TRACER_PROCESS.store(std::process::id(), Ordering::Release);
}

/// Replacement for `pthread_create` in the tracer (CUPTI). Records that each new thread exists only because of
/// gpuflame. The tracer's threads cannot be recognized in any other way. For example, the tracer's threads block all
/// signals, but at the same moment the program may also start a thread that blocks all signals.
///
/// # Safety
/// The conditions of `pthread_create` apply.
pub unsafe extern "C" fn create_for_tracer(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: ThreadFunction,
    argument: *mut c_void,
) -> i32 {
    let mut block = null_mut::<TracerStart>();
    if TRACER_PROCESS.load(Ordering::Acquire) == std::process::id() {
        // SAFETY: the layout is not empty.
        block = unsafe { alloc(TracerStart::LAYOUT) }.cast();
    }
    if block.is_null() {
        // SAFETY: this code passes the caller's arguments unchanged.
        return unsafe { pthread_create(thread, attributes, start, argument) };
    }
    // SAFETY: the block was allocated with this layout.
    unsafe { block.write(TracerStart { start, argument }) };
    // SAFETY: this code passes the caller's arguments. Only the start function differs, and it calls the caller's start
    // function.
    let error = unsafe { pthread_create(thread, attributes, run_for_tracer, block.cast()) };
    if error != 0 {
        // SAFETY: no thread was created, so the block still belongs to this thread.
        unsafe { dealloc(block.cast(), TracerStart::LAYOUT) };
    }
    error
}

/// Type of a thread's start function. `pthread_exit` may unwind a start function.
type ThreadFunction = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

unsafe extern "C" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: ThreadFunction,
        argument: *mut c_void,
    ) -> i32;
}

/// Data that [`create_for_tracer`] passes to the new thread.
struct TracerStart {
    start: ThreadFunction,
    argument: *mut c_void,
}

impl TracerStart {
    const LAYOUT: Layout = Layout::new::<Self>();
}

/// Start function of a thread that the tracer creates. While `start` runs, this function must own no value that needs
/// to be dropped, because its frame is unwound if `start` calls `pthread_exit`.
extern "C-unwind" fn run_for_tracer(block: *mut c_void) -> *mut c_void {
    let block = block.cast::<TracerStart>();
    // SAFETY: `create_for_tracer` wrote the block and handed it to this thread.
    let TracerStart { start, argument } = unsafe { block.read() };
    // SAFETY: `create_for_tracer` allocated the block with this layout.
    unsafe { dealloc(block.cast(), TracerStart::LAYOUT) };
    // Block signals, because otherwise a signal handler of the program could jump out of this code. Catch panics, which
    // must not reach the tracer.
    host_signals::with_all_blocked(|| drop(catch_unwind(note_calling_thread)));
    start(argument)
}

/// Stops the calling thread forever. Allocates nothing.
pub fn park_forever() -> ! {
    static NEVER: EventFlags = EventFlags::new();
    loop {
        NEVER.wait(0, None);
    }
}

/// Whether gpuflame or the tracer (CUPTI) has started this thread of this process.
pub fn is_thread_ours(thread: i32) -> bool {
    let is_ours = |identity: ThreadKey| OUR_THREADS.iter().any(|place| place.holds(identity));
    ThreadKey::of_thread(thread).is_some_and(is_ours)
}

/// Whether the main thread has ended, and all remaining threads were started by gpuflame or by the tracer (CUPTI).
pub fn are_only_ours_left() -> bool {
    let main = std::process::id() as i32;
    has_main_ended() && thread_ids().into_iter().all(|thread| thread == main || is_thread_ours(thread))
}

/// Returns the ids of all threads of this process.
pub fn thread_ids() -> Vec<i32> {
    listing::entry_names(Path::new("/proc/self/task"))
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// Whether the main thread has ended while other threads keep the process alive.
fn has_main_ended() -> bool {
    let main = std::process::id();
    read_stat(main, main as i32).is_some_and(|stat| stat.starts_with('Z'))
}

/// Returns the fields of a thread's `stat` file in `/proc`, starting with field 3, which is the thread's state. Returns
/// `None` if the thread has ended.
pub fn read_stat(process: u32, thread: i32) -> Option<String> {
    let stat = fs::read(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    // The state follows the thread's name, which is in parentheses. The name may contain any characters, including
    // parentheses, so search for the last parenthesis.
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    Some(String::from_utf8_lossy(&stat[name_ends + 1..]).trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns a bit mask of the signals that the calling thread blocks.
    fn blocked() -> u64 {
        let status = fs::read_to_string(format!("/proc/self/task/{}/status", current_id())).unwrap();
        let set = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap()
    }

    #[test]
    fn a_spawned_thread_is_noted_blocks_signals_and_has_a_name_and_clock() {
        static CLOCK: CpuClock = CpuClock::new();
        let before = thread_ids();
        assert!(before.contains(&current_id()) && !is_ours() && !has_main_ended());
        let (done, waits) = mpsc::channel::<()>();
        let (tells, hears) = mpsc::channel();
        spawn(c"gpuflame-test", DEFAULT_STACK_BYTES, move || {
            CLOCK.follow_this_thread();
            note_ours();
            let name = fs::read_to_string(format!("/proc/self/task/{}/comm", current_id())).unwrap();
            tells.send((current_id(), is_ours(), name, blocked())).unwrap();
            waits.recv().unwrap_err();
        })
        .unwrap();
        let (thread, is_its_own, name, blocked) = hears.recv().unwrap();
        assert!(!before.contains(&thread) && is_its_own);
        assert_eq!(name, "gpuflame-test\n");
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGSEGV, libc::SIGRTMAX()] {
            assert_ne!(blocked & 1 << (signal - 1), 0, "{signal}");
        }
        let identity = ThreadKey::of_thread(thread).unwrap();
        let is_noted = |identity| OUR_THREADS.iter().any(|place| place.holds(identity));
        assert!(is_noted(identity));
        let reused = ThreadKey { started: identity.started + 1, ..identity };
        assert!(!is_noted(reused), "a later thread of the same number is not ours");
        let nobody = CpuClock::new();
        assert_eq!(
            (nobody.elapsed(), nobody.elapsed()),
            (Duration::ZERO, Duration::ZERO),
            "it measures no thread"
        );
        std::thread::sleep(Duration::from_millis(20));
        let taken = CLOCK.elapsed();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(CLOCK.elapsed(), taken, "the thread waits");
        drop(done);
    }

    #[test]
    fn threads_created_by_the_tracer_are_noted_but_not_the_programs() {
        extern "C-unwind" fn tell(at: *mut c_void) -> *mut c_void {
            // SAFETY: the test waits for this thread, and `at` points to the thread's own integer.
            let number = unsafe { &*at.cast::<AtomicI32>() };
            number.store(super::current_id(), Ordering::Release);
            while number.load(Ordering::Acquire) > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            null_mut()
        }
        note_threads_of_tracer();
        for (create, is_noted) in
            [(create_for_tracer as unsafe extern "C" fn(_, _, _, _) -> _, true), (pthread_create, false)]
        {
            let at = AtomicI32::new(0);
            let mut thread = MaybeUninit::uninit();
            let place = std::ptr::from_ref(&at).cast_mut().cast::<c_void>();
            // SAFETY: `place` lives longer than the thread, which is joined below.
            let error = host_signals::with_all_blocked(|| unsafe {
                create(thread.as_mut_ptr(), std::ptr::null(), tell, place)
            });
            assert_eq!(error, 0);
            while at.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let identity = ThreadKey::of_thread(at.load(Ordering::Acquire)).unwrap();
            assert_eq!(OUR_THREADS.iter().any(|place| place.holds(identity)), is_noted);
            at.store(-1, Ordering::Release);
            // SAFETY: the thread was created above, and is joined only once.
            unsafe { libc::pthread_join(thread.assume_init(), null_mut()) };
        }
    }
}
