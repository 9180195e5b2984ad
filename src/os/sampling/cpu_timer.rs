//! Samples one thread on systems where the kernel's perf events are not available. A timer on the thread's CPU time
//! sends a signal to the thread. The signal handler copies the registers and a part of the stack.
//!
//! These signals disturb the sampled thread. A blocking system call may end with `EINTR`, and such calls are counted.
//! The kernel's signal frame takes several kilobytes of the thread's stack. Therefore the timer is used only if the
//! user has requested samples. The timer's signal is a real-time signal whose action the program has left at the
//! default. As soon as the program sets an action for this signal, all timers stop.
//!
//! ```text
//! kernel -signal-> handler, on the thread: copies into its slot -> drain, on a thread of ours
//! ```
//!
//! The handler takes no lock, allocates nothing and preserves `errno`. The handler copies the stack by a system call,
//! so that the read cannot fault. This module does not unwind the stack.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::perf::{REGISTERS, ThreadSample};
use super::wake;
use crate::process::threads;

/// Maximum number of stack bytes in a sample.
const MAX_STACK_BYTES: usize = 32 << 10;
/// Number of samples that fit into a slot. A slot takes about half a megabyte.
const SLOT_SAMPLES: usize = 16;
/// Maximum number of threads sampled at the same time.
const MAX_THREADS: usize = 256;

/// Timer that samples one thread. Dropping a `CpuTimer` stops the timer and frees its slot.
#[derive(Debug)]
pub struct CpuTimer {
    slot: &'static SampleSlot,
    timer: i32,
}

/// Buffer that the signal handler fills with samples. A slot is mapped once and never unmapped, because a signal may
/// still be in flight.
#[repr(C)]
struct SampleSlot {
    /// Id of the thread that uses the slot; 0 if the slot is free.
    thread: AtomicI32,
    /// Number of samples written to the slot so far. `tail` is the number of samples removed from the slot so far.
    head: AtomicU64,
    tail: AtomicU64,
    /// Id of this process, and id of the gpuflame thread that each sample wakes (0 for no thread).
    wakes: [AtomicI32; 2],
    /// Number of sampling periods whose samples were dropped because the slot was full.
    dropped: AtomicU64,
    samples: [UnsafeCell<SlotSample>; SLOT_SAMPLES],
}

impl std::fmt::Debug for SampleSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleSlot").field("thread", &self.thread).finish_non_exhaustive()
    }
}

// SAFETY: a sample belongs to the thread's handler until `head` has passed the sample, and then to the draining thread
// until `tail` has passed the sample.
unsafe impl Sync for SampleSlot {}

#[repr(C)]
struct SlotSample {
    time: u64,
    cpu: u32,
    /// Number of sampling periods since the previous sample.
    periods: u64,
    registers: [u64; REGISTERS],
    copied: u64,
    stack: [u8; MAX_STACK_BYTES],
}

/// Slots that were mapped so far. Slots are never unmapped.
static SLOTS: [AtomicPtr<SampleSlot>; MAX_THREADS] = [const { AtomicPtr::new(null_mut()) }; MAX_THREADS];
/// The signal that timers send; 0 if no signal was chosen yet, -1 if no signal is free.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static INTERRUPTED_CALLS: AtomicU32 = AtomicU32::new(0);

impl CpuTimer {
    /// Samples a thread of this process each time that the thread has used another `period` of CPU time, but at most
    /// once per kernel clock tick. If `wakes` is not 0, each sample wakes the thread with this id from [`wake::wait`].
    /// Call this function from one thread only.
    ///
    /// # Errors
    /// Fails if no signal is free, if there are too many threads, or if the kernel refuses the timer.
    pub fn open(thread: i32, period: Duration, wakes: i32) -> io::Result<Self> {
        let signal = timer_signal()?;
        let slot = SampleSlot::reserve(thread)?;
        slot.wakes[0].store(std::process::id() as i32, Ordering::Relaxed);
        slot.wakes[1].store(wakes, Ordering::Release);
        let timer = start_timer(thread, signal, period, slot)
            .inspect_err(|_| slot.thread.store(0, Ordering::Release))?;
        Ok(Self { slot, timer })
    }

    /// Number of samples that fit into an empty slot.
    pub fn capacity(&self) -> usize {
        SLOT_SAMPLES
    }

    /// Passes each sample to `each`, with the number of sampling periods that the sample represents. Returns the number
    /// of periods whose samples were dropped since the last call because the slot was full.
    pub fn drain(&mut self, mut each: impl FnMut(&ThreadSample<'_>, u64)) -> u64 {
        let head = self.slot.head.load(Ordering::Acquire);
        let mut tail = self.slot.tail.load(Ordering::Relaxed);
        while tail < head {
            // SAFETY: the handler does not write to a sample below `head` until `tail` has passed the sample.
            let kept = unsafe { &*self.slot.samples[tail as usize % SLOT_SAMPLES].get() };
            let stack = &kept.stack[..(kept.copied as usize).min(MAX_STACK_BYTES)];
            let (time, cpu, registers) = (kept.time, kept.cpu, kept.registers);
            tail += 1;
            each(&ThreadSample { time, cpu, registers, stack, is_newest: tail == head }, kept.periods);
            self.slot.tail.store(tail, Ordering::Release);
        }
        self.slot.dropped.swap(0, Ordering::AcqRel)
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        // SAFETY: `start_timer` created the timer, and only this call deletes it.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.timer) };
        self.slot.thread.store(0, Ordering::Release);
    }
}

/// Number of the program's system calls that ended early (with `EINTR`) because of the timers' signal.
pub fn interrupted_calls() -> u32 {
    INTERRUPTED_CALLS.load(Ordering::Relaxed)
}

/// Whether the program has set its own action for the timers' signal. If the program has set an action, the caller must
/// drop every [`CpuTimer`] immediately.
pub fn is_signal_taken() -> bool {
    let signal = SIGNAL.load(Ordering::Relaxed);
    signal > 0 && current_action(signal) != Some(handler())
}

impl SampleSlot {
    /// Reserves a free slot for this thread.
    fn reserve(thread: i32) -> io::Result<&'static Self> {
        for place in &SLOTS {
            let mut at = place.load(Ordering::Acquire);
            if at.is_null() {
                at = map_slot()?.as_ptr();
                place.store(at, Ordering::Release);
            }
            // SAFETY: slots are never unmapped, and all-zero is a valid slot.
            let slot = unsafe { &*at };
            // A slot that a thread uses is not given to another thread. Therefore a signal that is still in flight to
            // that thread finds the thread's own slot.
            if slot.thread.load(Ordering::Acquire) == 0 {
                slot.tail.store(slot.head.load(Ordering::Acquire), Ordering::Release);
                slot.dropped.store(0, Ordering::Relaxed);
                slot.thread.store(thread, Ordering::Release);
                return Ok(slot);
            }
        }
        Err(io::Error::other("too many threads are sampled"))
    }
}

fn map_slot() -> io::Result<NonNull<SampleSlot>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the call creates a new mapping, at an address that the kernel chooses.
    let at = unsafe { libc::mmap(null_mut(), size_of::<SampleSlot>(), access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Returns the signal that timers send. The first call chooses the signal.
fn timer_signal() -> io::Result<i32> {
    let none = || Err(io::Error::other("the program has set an action for every real-time signal"));
    match SIGNAL.load(Ordering::Relaxed) {
        0 => {}
        -1 => return none(),
        signal => return Ok(signal),
    }
    check_memory_read()?;
    // The search starts at the last real-time signal, because programs usually choose the first real-time signals.
    let found = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|signal| install_handler(*signal));
    SIGNAL.store(found.unwrap_or(-1), Ordering::Relaxed);
    found.map_or_else(none, Ok)
}

/// Installs the handler for a signal. Returns false if the signal's action is not the default.
fn install_handler(signal: i32) -> bool {
    if current_action(signal) != Some(libc::SIG_DFL) {
        return false;
    }
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is never unloaded (see `pinning::pin_library`), and its type matches the flags.
    unsafe { libc::sigaction(signal, &action, null_mut()) == 0 }
}

fn handler() -> usize {
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_signal;
    handler as usize
}

fn current_action(signal: i32) -> Option<usize> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without an action to set, the call only writes to `action`.
    (unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0).then_some(action.sa_sigaction)
}

/// Checks that the kernel lets this process read its own memory with `process_vm_readv`.
fn check_memory_read() -> io::Result<()> {
    let (from, mut to) = ([7_u8; 8], [0_u8; 8]);
    match copy_memory(from.as_ptr() as u64, to.as_mut_ptr(), 8) {
        8 if from == to => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn start_timer(thread: i32, signal: i32, period: Duration, slot: &'static SampleSlot) -> io::Result<i32> {
    // SAFETY: all-zero is a valid `sigevent`.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = thread;
    event.sigev_signo = signal;
    event.sigev_value.sival_ptr = std::ptr::from_ref(slot).cast_mut().cast();
    // Id, in the kernel's encoding, of the clock that measures the CPU time of one thread since the thread's start.
    let clock = !thread << 3 | 6;
    let mut timer = 0_i32;
    // SAFETY: `event` has the kernel's layout of a `sigevent`, and the kernel writes the timer's number to `timer`.
    if unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut timer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let each = libc::timespec { tv_sec: period.as_secs() as i64, tv_nsec: i64::from(period.subsec_nanos()) };
    let times = libc::itimerspec { it_interval: each, it_value: each };
    let none = null_mut::<libc::itimerspec>();
    // SAFETY: the timer was just created, and `times` is valid.
    if unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const times, none) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: the timer was just created, and no other code uses it.
        unsafe { libc::syscall(libc::SYS_timer_delete, timer) };
        return Err(error);
    }
    Ok(timer)
}

/// The kernel's `siginfo_t` for the signal of a timer.
#[repr(C)]
struct TimerSignalInfo {
    signal: i32,
    error: i32,
    code: i32,
    unused: i32,
    timer: i32,
    /// Number of sampling periods that have passed in addition to the period that the signal represents.
    more: i32,
    slot: *mut SampleSlot,
}

const _: () =
    assert!(offset_of!(TimerSignalInfo, slot) == 24, "the kernel knows these fields by their places");

extern "C" fn on_signal(_: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the C library returns this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to an aligned integer that belongs to this thread.
    let before = unsafe { errno.read() };
    // SAFETY: with SA_SIGINFO the kernel passes both pointers, which are valid while the handler runs.
    let (info, context) = unsafe { (&*info.cast::<TimerSignalInfo>(), &*context.cast::<libc::ucontext_t>()) };
    let is_ours = |place: &AtomicPtr<SampleSlot>| place.load(Ordering::Acquire) == info.slot;
    // Another process or thread may send the same signal, so only signals from gpuflame's timers are counted.
    if info.code == libc::SI_TIMER && !info.slot.is_null() && SLOTS.iter().any(is_ours) {
        // SAFETY: the address is in the table of slots, and slots are never unmapped.
        unsafe { &*info.slot }.add_sample(1 + info.more.max(0) as u64, &registers(context));
    }
    // SAFETY: `errno` points to this thread's own integer.
    unsafe { errno.write(before) };
}

impl SampleSlot {
    /// Adds a sample of the code location at which this thread was interrupted.
    fn add_sample(&self, periods: u64, registers: &[u64; REGISTERS]) {
        count_interrupted(registers);
        // If this thread does not use the slot any more, the signal is from an earlier timer of this thread.
        if self.thread.load(Ordering::Acquire) != threads::current_id() {
            return;
        }
        let head = self.head.load(Ordering::Relaxed);
        if head - self.tail.load(Ordering::Acquire) >= SLOT_SAMPLES as u64 {
            self.dropped.fetch_add(periods, Ordering::AcqRel);
            return;
        }
        let kept = self.samples[head as usize % SLOT_SAMPLES].get();
        // SAFETY: no thread reads this sample until `head` has passed the sample, and only this thread writes the
        // sample.
        unsafe {
            (&raw mut (*kept).copied).write(copy_memory(
                registers[SP_INDEX],
                (&raw mut (*kept).stack).cast(),
                MAX_STACK_BYTES,
            ) as u64);
            (&raw mut (*kept).time).write(now());
            (&raw mut (*kept).cpu).write(libc::sched_getcpu() as u32);
            (&raw mut (*kept).periods).write(periods);
            (&raw mut (*kept).registers).write(*registers);
        }
        self.head.store(head + 1, Ordering::Release);
        let [process, thread] = self.wakes.each_ref().map(|number| number.load(Ordering::Acquire));
        if thread != 0 {
            wake::wake(process, thread);
        }
    }
}

// Indices of rax, the stack pointer and the instruction pointer in the array of registers.
const RAX_INDEX: usize = 0;
const SP_INDEX: usize = 7;
const PC_INDEX: usize = 16;

/// Returns the registers of the interrupted thread in DWARF order.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> [u64; REGISTERS] {
    const CONTEXT_REGISTERS: [i32; REGISTERS] = [
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
    CONTEXT_REGISTERS.map(|place| context.uc_mcontext.gregs[place as usize] as u64)
}

/// On other architectures, returns zeros, because copied stacks are unwound only on x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn registers(_: &libc::ucontext_t) -> [u64; REGISTERS] {
    [0; REGISTERS]
}

/// If the signal has ended a system call, counts the call. After a system call was ended, the instruction pointer is
/// directly after a `syscall` instruction, and rax contains `-EINTR`. If the kernel will restart the system call
/// instead, the instruction pointer is at the `syscall` instruction.
fn count_interrupted(registers: &[u64; REGISTERS]) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let mut before = [0; 2];
    if registers[RAX_INDEX] as i64 == -i64::from(libc::EINTR)
        && copy_memory(registers[PC_INDEX].wrapping_sub(2), before.as_mut_ptr(), 2) == 2
        && before == SYSCALL
    {
        INTERRUPTED_CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Copies memory of this process through the kernel, up to the first page that is not mapped. Returns the number of
/// bytes copied.
fn copy_memory(from: u64, to: *mut u8, bytes: usize) -> usize {
    const MAX_PIECES: usize = MAX_STACK_BYTES / 4096 + 1;
    let mut pieces = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; MAX_PIECES];
    // The memory is copied in pieces that end at page boundaries, because the kernel copies each piece either
    // completely or not at all.
    let (mut at, mut count) = (0, 0);
    while at < bytes {
        let address = from.wrapping_add(at as u64);
        let length = (4096 - address as usize % 4096).min(bytes - at);
        pieces[count] = libc::iovec { iov_base: address as *mut c_void, iov_len: length };
        (at, count) = (at + length, count + 1);
    }
    let local = libc::iovec { iov_base: to.cast(), iov_len: bytes };
    // SAFETY: the kernel writes at most `bytes` bytes to `to`, and checks the source addresses itself.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &local, 1, pieces.as_ptr(), count as libc::c_ulong, 0)
    };
    usize::try_from(read).unwrap_or(0)
}

/// Returns the current time in ns since 1970.
fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;
    use crate::sampling::perf;

    fn spin(nanos: u128) {
        let began = Instant::now();
        while black_box(began.elapsed().as_nanos()) < nanos {}
    }

    #[test]
    fn cpu_timer_samples_match_the_threads_cpu_time_and_preserve_errno() {
        let mut timer = CpuTimer::open(threads::current_id(), Duration::from_millis(1), 0).unwrap();
        let before = perf::thread_cpu_time(threads::current_id()).unwrap();
        let here = (&raw const before) as u64;
        let (mut periods, mut samples) = (0, 0_u64);
        for _ in 0..20 {
            // SAFETY: the pointer refers to this thread's own `errno`.
            unsafe { libc::__errno_location().write(77) };
            spin(10_000_000);
            // SAFETY: the pointer refers to this thread's own `errno`.
            assert_eq!(unsafe { libc::__errno_location().read() }, 77);
            let dropped = timer.drain(|sample, of| {
                (periods, samples) = (periods + of, samples + 1);
                let sp = sample.registers[SP_INDEX];
                assert!(sp < here && here < sp + (1 << 20), "{sp:x} is not below {here:x}");
                let word = (here - sp) as usize;
                if sample.stack.len() > word + 8 {
                    assert_eq!(&sample.stack[word..word + 8], &before.as_secs().to_ne_bytes());
                }
            });
            periods += dropped;
        }
        let taken = (perf::thread_cpu_time(threads::current_id()).unwrap() - before).as_millis() as u64;
        // The kernel's clock ticks may be 10 ms apart.
        assert!(samples * 11 >= taken && periods.abs_diff(taken) <= 20, "{samples}, {periods} in {taken} ms");
        assert!(!is_signal_taken());
        drop(timer);
        spin(30_000_000);
        let again = CpuTimer::open(threads::current_id(), Duration::from_secs(9), 0).unwrap();
        assert_eq!(again.slot.head.load(Ordering::Relaxed), again.slot.tail.load(Ordering::Relaxed));
    }

    #[test]
    fn memory_is_copied_up_to_the_first_unmapped_page() {
        let length = 3 * 4096;
        // SAFETY: the calls create a new mapping, and unmap its last page.
        let at = unsafe {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(null_mut(), length, access, kind, -1, 0);
            libc::munmap(at.byte_add(length - 4096), 4096);
            at.cast::<u8>()
        };
        // SAFETY: the first two pages are mapped.
        unsafe { at.add(5000).write(7) };
        let mut to = [1; 9000];
        assert_eq!(copy_memory(at as u64 + 96, to.as_mut_ptr(), 9000), 8096);
        assert_eq!((to[5000 - 96], to[0], to[8096]), (7, 0, 1));
        assert_eq!(copy_memory(16, to.as_mut_ptr(), 8), 0);
    }
}
