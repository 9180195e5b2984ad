//! Samples of a thread where the kernel takes none for us (`perf`): a timer on the thread's processor time sends it a signal,
//! and the handler copies registers and a part of the stack.
//!
//! The thread notices it: a call that is under way may end with `EINTR`, which is counted, and what the kernel puts on its
//! stack for the handler takes some kilobytes. So it is for those who ask for samples. The signal is one of the real-time
//! signals that the program has left at their default; as soon as it sets an action for it, all timers stop.
//!
//! ```text
//! kernel -signal-> handler, on the thread: copies into its slot -> drain, on a thread of ours
//! ```
//!
//! The handler takes no lock and no memory, leaves `errno` as it was, and reads the stack through the kernel, so that it
//! cannot fault. What it does not do: follow stacks.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::perf::{REGISTERS, Sample};
use super::threads;

/// Of the stack that is copied, in bytes.
const STACK: usize = 32 << 10;
/// Samples that a slot has room for: half a megabyte.
const ROOM: usize = 16;
/// Threads that are followed at once.
const MOST: usize = 256;

/// A thread that is sampled by a timer. It is again nobody's when this is dropped.
#[derive(Debug)]
pub struct CpuTimer {
    slot: &'static Slot,
    timer: i32,
}

/// What the handler fills. Mapped once and never given back: a signal may still be on its way.
#[repr(C)]
struct Slot {
    /// Whose it is; 0: nobody's.
    thread: AtomicI32,
    /// Samples put in, and taken out, so far.
    head: AtomicU64,
    tail: AtomicU64,
    /// Periods for which there was no room.
    dropped: AtomicU64,
    samples: [UnsafeCell<Kept>; ROOM],
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("thread", &self.thread).finish_non_exhaustive()
    }
}

// SAFETY: a sample belongs to the thread's handler until `head` has passed it, and then to who drains until `tail` has.
unsafe impl Sync for Slot {}

#[repr(C)]
struct Kept {
    time: u64,
    /// How many periods had passed since the sample before.
    periods: u64,
    registers: [u64; REGISTERS],
    copied: u64,
    stack: [u8; STACK],
}

/// Slots that there are. They are never given back.
static SLOTS: [AtomicPtr<Slot>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];
/// The signal; 0: none was taken yet, -1: there is none that is free.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static INTERRUPTED: AtomicU32 = AtomicU32::new(0);

impl CpuTimer {
    /// Has a thread of this process be sampled whenever it has taken `period` more, or as often as the kernel's clock
    /// ticks. To be called by one thread only.
    ///
    /// # Errors
    /// No signal is free, there are too many threads, or the kernel's.
    pub fn open(thread: i32, period: Duration) -> io::Result<Self> {
        let signal = signal()?;
        let slot = Slot::take(thread)?;
        let timer =
            start(thread, signal, period, slot).inspect_err(|_| slot.thread.store(0, Ordering::Release))?;
        Ok(Self { slot, timer })
    }

    /// How many samples there is room for until they are drained.
    pub fn room(&self) -> usize {
        ROOM
    }

    /// Takes what there is: samples, each with the number of periods that it stands for. Returns for how many periods
    /// there was no room since before.
    pub fn drain(&mut self, mut each: impl FnMut(&Sample<'_>, u64)) -> u64 {
        let head = self.slot.head.load(Ordering::Acquire);
        let mut tail = self.slot.tail.load(Ordering::Relaxed);
        while tail < head {
            // SAFETY: below `head` the handler writes to nothing until `tail` has passed it.
            let kept = unsafe { &*self.slot.samples[tail as usize % ROOM].get() };
            let stack = &kept.stack[..(kept.copied as usize).min(STACK)];
            each(&Sample { time: kept.time, registers: kept.registers, stack }, kept.periods);
            tail += 1;
            self.slot.tail.store(tail, Ordering::Release);
        }
        self.slot.dropped.swap(0, Ordering::AcqRel)
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        // SAFETY: `start` made it, and nobody else ends it.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.timer) };
        self.slot.thread.store(0, Ordering::Release);
    }
}

/// How many calls of the program ended early, since the signal came in them.
pub fn interrupted() -> u32 {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Whether the program has set an action of its own for the signal: then every [`CpuTimer`] is to be dropped at once.
pub fn is_taken_away() -> bool {
    let signal = SIGNAL.load(Ordering::Relaxed);
    signal > 0 && action_of(signal) != Some(handler())
}

impl Slot {
    /// One that is nobody's, for this thread.
    fn take(thread: i32) -> io::Result<&'static Self> {
        for place in &SLOTS {
            let mut at = place.load(Ordering::Acquire);
            if at.is_null() {
                at = map()?.as_ptr();
                place.store(at, Ordering::Release);
            }
            // SAFETY: a slot is mapped for ever, and zeroes are a valid one.
            let slot = unsafe { &*at };
            // One of a thread that lives is not given to another: what is on its way there finds it its own.
            if slot.thread.load(Ordering::Acquire) == 0 {
                slot.tail.store(slot.head.load(Ordering::Acquire), Ordering::Release);
                slot.dropped.store(0, Ordering::Relaxed);
                slot.thread.store(thread, Ordering::Release);
                return Ok(slot);
            }
        }
        Err(io::Error::other("there are too many threads"))
    }
}

fn map() -> io::Result<NonNull<Slot>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(null_mut(), size_of::<Slot>(), access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// The signal that timers send, which is taken when it is first asked for.
fn signal() -> io::Result<i32> {
    let none = || Err(io::Error::other("the program has set an action for every real-time signal"));
    match SIGNAL.load(Ordering::Relaxed) {
        0 => {}
        -1 => return none(),
        signal => return Ok(signal),
    }
    can_read()?;
    // From the last one down: programs count from the first one up.
    let found = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|signal| take(*signal));
    SIGNAL.store(found.unwrap_or(-1), Ordering::Relaxed);
    found.map_or_else(none, Ok)
}

/// Puts the handler on a signal, if it is at its default.
fn take(signal: i32) -> bool {
    if action_of(signal) != Some(libc::SIG_DFL) {
        return false;
    }
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is a function for ever (see `loaded::stay`) and of the type that the flags say.
    unsafe { libc::sigaction(signal, &action, null_mut()) == 0 }
}

fn handler() -> usize {
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_signal;
    handler as usize
}

fn action_of(signal: i32) -> Option<usize> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without an action to set, the call only writes to `action`.
    (unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0).then_some(action.sa_sigaction)
}

/// Whether the kernel lets us read our own memory through it.
fn can_read() -> io::Result<()> {
    let (from, mut to) = ([7_u8; 8], [0_u8; 8]);
    match copy(from.as_ptr() as u64, to.as_mut_ptr(), 8) {
        8 if from == to => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn start(thread: i32, signal: i32, period: Duration, slot: &'static Slot) -> io::Result<i32> {
    // SAFETY: all-zero is a valid `sigevent`.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = thread;
    event.sigev_signo = signal;
    event.sigev_value.sival_ptr = std::ptr::from_ref(slot).cast_mut().cast();
    // The number of a thread's clock, as the kernel makes it: of one thread, of all its time.
    let clock = !thread << 3 | 6;
    let mut timer = 0_i32;
    // SAFETY: `event` is a `sigevent` as the kernel knows it, and `timer` a place for the kernel's number.
    if unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut timer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let each = libc::timespec { tv_sec: period.as_secs() as i64, tv_nsec: i64::from(period.subsec_nanos()) };
    let times = libc::itimerspec { it_interval: each, it_value: each };
    let none = null_mut::<libc::itimerspec>();
    // SAFETY: the timer was just made, and `times` is valid.
    if unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const times, none) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_timer_delete, timer) };
        return Err(error);
    }
    Ok(timer)
}

/// What a timer's signal says, as the kernel has it.
#[repr(C)]
struct Expired {
    signal: i32,
    error: i32,
    code: i32,
    unused: i32,
    timer: i32,
    /// Periods that passed beside the one that the signal is for.
    more: i32,
    slot: *mut Slot,
}

const _: () = assert!(offset_of!(Expired, slot) == 24, "the kernel knows these fields by their places");

extern "C" fn on_signal(_: i32, told: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the C library's own place for it, this thread's.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: a number of this thread's.
    let before = unsafe { errno.read() };
    // SAFETY: with SA_SIGINFO the kernel gives both, for as long as the handler runs.
    let (told, context) = unsafe { (&*told.cast::<Expired>(), &*context.cast::<libc::ucontext_t>()) };
    let is_ours = |place: &AtomicPtr<Slot>| place.load(Ordering::Acquire) == told.slot;
    // Somebody else may send it.
    if told.code == libc::SI_TIMER && !told.slot.is_null() && SLOTS.iter().any(is_ours) {
        // SAFETY: it is a slot of ours, and those are mapped for ever.
        unsafe { &*told.slot }.keep(1 + told.more.max(0) as u64, &registers(context));
    }
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

impl Slot {
    /// Puts in where this thread was interrupted.
    fn keep(&self, periods: u64, registers: &[u64; REGISTERS]) {
        count_interrupted(registers);
        // A timer of a thread that had the slot before.
        if self.thread.load(Ordering::Acquire) != threads::number() {
            return;
        }
        let head = self.head.load(Ordering::Relaxed);
        if head - self.tail.load(Ordering::Acquire) >= ROOM as u64 {
            self.dropped.fetch_add(periods, Ordering::AcqRel);
            return;
        }
        let kept = self.samples[head as usize % ROOM].get();
        // SAFETY: nobody reads from this place until `head` has passed it, and this thread alone writes there.
        unsafe {
            (&raw mut (*kept).copied)
                .write(copy(registers[SP], (&raw mut (*kept).stack).cast(), STACK) as u64);
            (&raw mut (*kept).time).write(now());
            (&raw mut (*kept).periods).write(periods);
            (&raw mut (*kept).registers).write(*registers);
        }
        self.head.store(head + 1, Ordering::Release);
    }
}

// The places of rax, the stack pointer and the instruction pointer among the registers.
const AX: usize = 0;
const SP: usize = 7;
const PC: usize = 16;

/// In the order of DWARF.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> [u64; REGISTERS] {
    const PLACES: [i32; REGISTERS] = [
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
    PLACES.map(|place| context.uc_mcontext.gregs[place as usize] as u64)
}

/// Copied stacks are walked on x86-64 alone.
#[cfg(not(target_arch = "x86_64"))]
fn registers(_: &libc::ucontext_t) -> [u64; REGISTERS] {
    [0; REGISTERS]
}

/// Whether the thread comes back from a call that the signal has ended: behind `syscall`, with the error in its hand. A
/// call that is begun anew stands in front of it.
fn count_interrupted(registers: &[u64; REGISTERS]) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let mut before = [0; 2];
    if registers[AX] as i64 == -i64::from(libc::EINTR)
        && copy(registers[PC].wrapping_sub(2), before.as_mut_ptr(), 2) == 2
        && before == SYSCALL
    {
        INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Copies memory of our own as far as there is any, through the kernel; says how much.
fn copy(from: u64, to: *mut u8, bytes: usize) -> usize {
    const PIECES: usize = STACK / 4096 + 1;
    let mut pieces = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; PIECES];
    // A piece is copied as a whole or not at all, so they end where pages do.
    let (mut at, mut count) = (0, 0);
    while at < bytes {
        let address = from.wrapping_add(at as u64);
        let length = (4096 - address as usize % 4096).min(bytes - at);
        pieces[count] = libc::iovec { iov_base: address as *mut c_void, iov_len: length };
        (at, count) = (at + length, count + 1);
    }
    let local = libc::iovec { iov_base: to.cast(), iov_len: bytes };
    // SAFETY: the kernel writes no more than `bytes` to `to`, and checks the other addresses itself.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &local, 1, pieces.as_ptr(), count as libc::c_ulong, 0)
    };
    usize::try_from(read).unwrap_or(0)
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a place to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;
    use crate::host::perf;

    fn spin(nanos: u128) {
        let began = Instant::now();
        while black_box(began.elapsed().as_nanos()) < nanos {}
    }

    #[test]
    fn a_thread_is_found_as_often_as_its_time_says_with_its_stack_and_its_errno() {
        let mut timer = CpuTimer::open(threads::number(), Duration::from_millis(1)).unwrap();
        let before = perf::taken(threads::number()).unwrap();
        let here = (&raw const before) as u64;
        let (mut periods, mut samples) = (0, 0_u64);
        for _ in 0..20 {
            // SAFETY: this thread's own place.
            unsafe { libc::__errno_location().write(77) };
            spin(10_000_000);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::__errno_location().read() }, 77);
            let dropped = timer.drain(|sample, of| {
                (periods, samples) = (periods + of, samples + 1);
                let sp = sample.registers[SP];
                assert!(sp < here && here < sp + (1 << 20), "{sp:x} is not below {here:x}");
                let word = (here - sp) as usize;
                if sample.stack.len() > word + 8 {
                    assert_eq!(&sample.stack[word..word + 8], &before.as_secs().to_ne_bytes());
                }
            });
            periods += dropped;
        }
        let taken = (perf::taken(threads::number()).unwrap() - before).as_millis() as u64;
        // Ticks of the kernel may be 10 ms.
        assert!(samples * 11 >= taken && periods.abs_diff(taken) <= 20, "{samples}, {periods} in {taken} ms");
        assert!(!is_taken_away());
        drop(timer);
        spin(30_000_000);
        let again = CpuTimer::open(threads::number(), Duration::from_secs(9)).unwrap();
        assert_eq!(again.slot.head.load(Ordering::Relaxed), again.slot.tail.load(Ordering::Relaxed));
    }

    #[test]
    fn memory_is_copied_as_far_as_there_is_any() {
        let length = 3 * 4096;
        // SAFETY: a new mapping, of which the last page is given back.
        let at = unsafe {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(null_mut(), length, access, kind, -1, 0);
            libc::munmap(at.byte_add(length - 4096), 4096);
            at.cast::<u8>()
        };
        // SAFETY: two pages are mapped.
        unsafe { at.add(5000).write(7) };
        let mut to = [1; 9000];
        assert_eq!(copy(at as u64 + 96, to.as_mut_ptr(), 9000), 8096);
        assert_eq!((to[5000 - 96], to[0], to[8096]), (7, 0, 1));
        assert_eq!(copy(16, to.as_mut_ptr(), 8), 0);
    }
}
