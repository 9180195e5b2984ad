//! Samples one thread with the kernel's performance events (`perf_event_open`). The kernel copies the thread's
//! registers and a part of its stack at regular intervals of CPU time, or each time that the thread is descheduled.
//!
//! Sampling does not disturb the thread: the thread gets no signals, and none of its system calls is interrupted. The
//! perf event needs no open descriptor. (The host might close a descriptor.) The event's mapping keeps the event alive,
//! and removing this mapping ends the event. A forked child inherits neither the event nor the mapping.
//!
//! ```text
//! mapping := page: where the data begins and ends (byte 1024: head, byte 1032: tail)
//!            data: a ring of records, which the kernel writes at the head and we consume at the tail
//! record  := type:u32 misc:u16 size:u16 ...
//! sample  := process:u32 thread:u32 time:u64 cpu:u32 zero:u32 abi:u64 register:u64[17] room:u64 byte[room] copied:u64
//! lost    := id:u64 count:u64
//! switch  := process:u32 thread:u32 time:u64      misc: scheduled in or out, and whether it was preempted
//! ```
//!
//! This module does not unwind stacks, and does not know which modules are loaded.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::wake;
use crate::process::descriptor;

/// Number of registers in a sample.
pub const REGISTERS: usize = 17;

/// Perf event that samples a thread until this value is dropped.
#[derive(Debug)]
pub struct PerfEvent {
    ring: EventRing,
    /// Whether the event excludes the time that the thread spends in the kernel.
    is_user_only: bool,
    /// Maximum number of stack bytes in a sample.
    stack: u32,
    /// Copy of a record that wraps around the end of the ring.
    wrapped_record: Vec<u8>,
}

/// Condition under which the kernel samples a thread.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    /// The thread has used CPU time for this duration since the previous sample.
    CpuTime(Duration),
    /// The thread is descheduled, that is, leaves its processor. The kernel also writes a record when the thread
    /// returns to a processor.
    Deschedule,
}

/// A record that the kernel has written about a sampled thread.
#[derive(Debug)]
pub enum PerfRecord<'a> {
    /// The thread's registers and stack.
    Sample(ThreadSample<'a>),
    /// The thread was descheduled. The sample that was taken when the thread was descheduled precedes this record.
    Descheduled {
        /// Whether the thread was blocked. The flag is false if the thread was still runnable. (Before Linux 4.17, the
        /// flag is always true.)
        blocked: bool,
    },
    /// The thread has returned to a processor and runs again.
    Scheduled {
        /// Time in ns since 1970.
        time: u64,
    },
    /// Records are missing at this point, because the ring buffer was full.
    Lost,
}

/// Sample of a thread: its registers and stack at one moment.
#[derive(Debug)]
pub struct ThreadSample<'a> {
    /// Time in ns since 1970.
    pub time: u64,
    /// Index of the processor on which the thread was running.
    pub cpu: u32,
    /// The registers rax to r15 and the instruction pointer, in DWARF order.
    pub registers: [u64; REGISTERS],
    /// The copied part of the thread's stack, from the stack pointer upwards.
    pub stack: &'a [u8],
    /// Whether this sample was the newest record when the reader began to read the ring.
    pub is_newest: bool,
}

/// Sizes to try in bytes, largest first: the size of the ring, and the size of the stack in a sample. Several sizes are
/// tried because the kernel limits how much memory an unprivileged user may lock (`kernel.perf_event_mlock_kb`, by
/// default 516 KiB per processor, and `ulimit -l`).
const RING_SIZES: [(usize, u32); 4] =
    [(512 << 10, 32 << 10), (256 << 10, 32 << 10), (64 << 10, 8 << 10), (16 << 10, 2 << 10)];
/// Sizes to try for an event that samples a thread each time that the thread is descheduled. This may happen thousands
/// of times per second.
const SWITCH_RING_SIZES: [(usize, u32); 4] =
    [(1 << 20, 16 << 10), (512 << 10, 16 << 10), (256 << 10, 16 << 10), (64 << 10, 8 << 10)];
/// Sizes to try for a thread that launches no GPU work. These rings are small, to leave room for threads that launch
/// GPU work.
const SMALL_RING_SIZES: [(usize, u32); 2] = [RING_SIZES[2], RING_SIZES[3]];
/// Upper bound in bytes of the size of a sample without its stack.
const SAMPLE_OVERHEAD_BYTES: usize = 256;
const PAGE_BYTES: usize = 4096;

impl PerfEvent {
    /// Starts to sample a thread of this process each time that the thread has used another `period` of CPU time. If
    /// `wakes` is not 0, each sample wakes the thread with this id from [`wake::wait`](crate::wake::wait).
    ///
    /// # Errors
    /// Fails if the kernel refuses the event, for example because sampling is not permitted or the thread has ended.
    pub fn open(thread: i32, period: Duration, wakes: i32) -> io::Result<Self> {
        // Also try an event that excludes time in the kernel, because a user who may not observe the kernel may still
        // use such an event.
        Self::open_largest(&RING_SIZES, (thread, wakes), Trigger::CpuTime(period), &[false, true])
    }

    /// Does the same as [`PerfEvent::open`], but with room for only a few samples.
    ///
    /// # Errors
    /// Fails in the same cases as [`PerfEvent::open`].
    pub fn open_small(thread: i32, period: Duration, wakes: i32) -> io::Result<Self> {
        Self::open_largest(&SMALL_RING_SIZES, (thread, wakes), Trigger::CpuTime(period), &[false, true])
    }

    /// Samples a thread of this process each time that the thread is descheduled. The event includes time in the
    /// kernel, because a thread is always descheduled inside the kernel.
    ///
    /// # Errors
    /// Fails in the same cases as [`PerfEvent::open`].
    pub fn open_switches(thread: i32, wakes: i32) -> io::Result<Self> {
        Self::open_largest(&SWITCH_RING_SIZES, (thread, wakes), Trigger::Deschedule, &[false])
    }

    fn open_largest(
        rooms: &[(usize, u32)],
        (thread, wakes): (i32, i32),
        when: Trigger,
        user_only_modes: &[bool],
    ) -> io::Result<Self> {
        let mut result = Err(io::ErrorKind::PermissionDenied.into());
        for &(room, stack) in rooms {
            for &is_user_only in user_only_modes {
                let opened = open(thread, when, stack, is_user_only);
                if let Ok(event) = &opened
                    && is_event(event.as_raw_fd())
                {
                    wake::on_event(event.as_raw_fd(), wakes);
                }
                result = opened.and_then(|event| EventRing::map(event, room)).map(|ring| Self {
                    ring,
                    is_user_only,
                    stack,
                    wrapped_record: Vec::new(),
                });
                match &result {
                    Err(error) if is_refused(error) => {}
                    _ => break,
                }
            }
            match &result {
                Err(error) if is_refused(error) || error.kind() == io::ErrorKind::OutOfMemory => {}
                _ => break,
            }
        }
        result
    }

    /// Whether the event samples only the thread's time outside the kernel.
    pub fn is_user_only(&self) -> bool {
        self.is_user_only
    }

    /// Number of samples that fit into an empty ring.
    pub fn capacity(&self) -> usize {
        self.ring.size / (self.stack as usize + SAMPLE_OVERHEAD_BYTES)
    }

    /// Passes all new records to `each`. Returns the number of samples that were lost since the last call.
    pub fn drain(&mut self, mut each: impl FnMut(PerfRecord<'_>)) -> u64 {
        let mut lost = 0_u64;
        let head = self.ring.head().load(Ordering::Acquire);
        let mut tail = self.ring.tail().load(Ordering::Relaxed);
        while tail < head {
            let (kind, misc, size) = self.ring.header(tail);
            if size < 8 || size as u64 > head - tail {
                // A record of this size is invalid, so the rest of the data in the ring is skipped.
                tail = head;
                break;
            }
            let record = self.ring.record(tail, size, &mut self.wrapped_record);
            let is_newest = tail + size as u64 == head;
            match kind {
                RECORD_SAMPLE => {
                    let sample = parse_sample(record).map(|sample| ThreadSample { is_newest, ..sample });
                    sample.into_iter().map(PerfRecord::Sample).for_each(&mut each);
                }
                RECORD_SWITCH if misc & SWITCHED_OUT != 0 => {
                    each(PerfRecord::Descheduled { blocked: misc & PREEMPTED == 0 })
                }
                RECORD_SWITCH => {
                    word(record, 16).into_iter().for_each(|time| each(PerfRecord::Scheduled { time }))
                }
                RECORD_LOST => {
                    lost += word(record, 16).unwrap_or(0);
                    each(PerfRecord::Lost);
                }
                _ => {}
            }
            tail += size as u64;
            // The tail is updated after each record, because the kernel may then reuse the space of this record.
            self.ring.tail().store(tail, Ordering::Release);
        }
        self.ring.tail().store(tail, Ordering::Release);
        lost
    }
}

/// Returns the CPU time that a thread of this process has used so far; `None` if the thread has ended.
pub fn thread_cpu_time(thread: i32) -> Option<Duration> {
    // Id, in the kernel's encoding, of the clock that measures the CPU time of one thread since the thread's start.
    let clock = !thread << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time`, and fails for a thread that has ended.
    let known = unsafe { libc::clock_gettime(clock, &mut time) } == 0;
    known.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// Ring buffer that the kernel and the reader of a perf event share.
#[derive(Debug)]
struct EventRing {
    at: NonNull<u8>,
    /// Size of the data in bytes, a power of two.
    size: usize,
}

// SAFETY: only this value refers to the mapping.
unsafe impl Send for EventRing {}

impl EventRing {
    /// Maps the ring of `event`, and closes the descriptor of the event.
    fn map(event: File, size: usize) -> io::Result<Self> {
        let (length, access) = (PAGE_BYTES + size, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the call creates a new mapping of an open file, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(null_mut(), length, access, libc::MAP_SHARED, event.as_raw_fd(), 0) };
        let mapped = if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) };
        close_event(event);
        let at = NonNull::new(mapped?).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, size })
    }

    fn head(&self) -> &AtomicU64 {
        self.counter(1024)
    }

    fn tail(&self) -> &AtomicU64 {
        self.counter(1032)
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page stays mapped while `self` exists, and this word of the page is aligned.
        unsafe { self.at.add(offset).cast().as_ref() }
    }

    /// Returns the type, the flags and the size of the record at `position`. Records are aligned to 8 bytes, so the 8
    /// bytes of a header never wrap around.
    fn header(&self, position: u64) -> (u32, u16, usize) {
        // SAFETY: `bytes` returns eight readable bytes, which the kernel wrote before it moved the head.
        let header = unsafe { self.bytes(position).cast::<u64>().read_unaligned() };
        (header as u32, (header >> 32) as u16, (header >> 48) as usize)
    }

    /// Returns the record at `position`. If the record wraps around the end of the ring, it is copied to
    /// `wrapped_record`. The kernel can overwrite the record only after the tail moves past it.
    fn record<'a>(&'a self, position: u64, size: usize, wrapped_record: &'a mut Vec<u8>) -> &'a [u8] {
        let first = (self.size - position as usize % self.size).min(size);
        // SAFETY: at least `first` bytes are left up to the end of the data, and the kernel does not write to these
        // bytes until the tail moves.
        let one = unsafe { std::slice::from_raw_parts(self.bytes(position).as_ptr(), first) };
        if first == size {
            return one;
        }
        wrapped_record.clear();
        wrapped_record.extend_from_slice(one);
        // SAFETY: the rest of the record is at the start of the data, and the record is not longer than the data.
        let rest =
            unsafe { std::slice::from_raw_parts(self.bytes(0).as_ptr(), (size - first).min(self.size)) };
        wrapped_record.extend_from_slice(rest);
        wrapped_record
    }

    fn bytes(&self, position: u64) -> NonNull<u8> {
        // SAFETY: the data follows the first page, and this offset is inside the data.
        unsafe { self.at.add(PAGE_BYTES + position as usize % self.size) }
    }
}

impl Drop for EventRing {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this size, and no reference to the mapping is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), PAGE_BYTES + self.size) };
    }
}

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;
/// Flags of a switch record: the thread was scheduled out, and (since Linux 4.17) the thread was preempted.
const SWITCHED_OUT: u16 = 1 << 13;
const PREEMPTED: u16 = 1 << 14;

/// The kernel's numbers for the registers rax to r15 and the instruction pointer, in DWARF order. The registers in a
/// sample are sorted by these numbers.
const KERNEL_REGISTER_NUMBERS: [u32; REGISTERS] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8];
/// Value of a sample's field `abi` if the sampled registers have 64 bits.
const ABI_64_BIT: u64 = 2;

fn wanted_registers() -> u64 {
    KERNEL_REGISTER_NUMBERS.iter().fold(0, |mask, number| mask | 1 << number)
}

fn parse_sample(record: &[u8]) -> Option<ThreadSample<'_>> {
    const REGISTERS_OFFSET: usize = 40;
    const STACK_SIZE_OFFSET: usize = REGISTERS_OFFSET + 8 * REGISTERS;
    if word(record, 32)? != ABI_64_BIT {
        return None;
    }
    let mut registers = [0; REGISTERS];
    for (at, number) in KERNEL_REGISTER_NUMBERS.into_iter().enumerate() {
        let before = (wanted_registers() & ((1 << number) - 1)).count_ones() as usize;
        registers[at] = word(record, REGISTERS_OFFSET + 8 * before)?;
    }
    let room = word(record, STACK_SIZE_OFFSET)? as usize;
    let copied =
        if room == 0 { 0 } else { word(record, (STACK_SIZE_OFFSET + 8).checked_add(room)?)? as usize };
    let stack = record.get(STACK_SIZE_OFFSET + 8..)?.get(..copied.min(room))?;
    Some(ThreadSample {
        time: word(record, 16)?,
        cpu: word(record, 24)? as u32,
        registers,
        stack,
        is_newest: false,
    })
}

fn word(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(record.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The kernel's `perf_event_attr`, up to the last field that exists in Linux 4.1.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_fields: u64,
    read_fields: u64,
    switches: u64,
    wake_after: u32,
    breakpoint: [u32; 5],
    branches: u64,
    registers: u64,
    stack: u32,
    clock: i32,
}

const _: () = assert!(size_of::<PerfEventAttr>() == 96, "the kernel knows these fields by their places");

/// Two software events of the kernel: the CPU time of a thread, and the number of times that the thread was
/// descheduled.
const TYPE_SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
const CONTEXT_SWITCHES: u64 = 3;
/// Fields of a sample: thread, time, processor, registers and stack.
const SAMPLE_FIELDS: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 12 | 1 << 13;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// Flag: all records, not only samples, contain the thread and the time.
const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCK_ID: u64 = 1 << 25;
/// Flag: the kernel writes a record when the thread leaves a processor and when it returns to a processor.
const RECORD_SWITCHES: u64 = 1 << 26;
/// Flag: the kernel closes the descriptor on `exec`.
const CLOSE_ON_EXEC: u64 = 8;

fn open(thread: i32, when: Trigger, stack: u32, is_user_only: bool) -> io::Result<File> {
    let (config, period, records) = match when {
        Trigger::CpuTime(period) => (TASK_CLOCK, period.as_nanos() as u64, 0),
        Trigger::Deschedule => (CONTEXT_SWITCHES, 1, SAMPLE_ID_ALL | RECORD_SWITCHES),
    };
    let attributes = PerfEventAttr {
        kind: TYPE_SOFTWARE,
        size: size_of::<PerfEventAttr>() as u32,
        config,
        period,
        sample_fields: SAMPLE_FIELDS,
        switches: records | EXCLUDE_HYPERVISOR | USE_CLOCK_ID | if is_user_only { EXCLUDE_KERNEL } else { 0 },
        registers: wanted_registers(),
        stack,
        clock: libc::CLOCK_REALTIME,
        ..PerfEventAttr::default()
    };
    const ANY_PROCESSOR: i32 = -1;
    const NO_GROUP: i32 = -1;
    descriptor::enlarge_table();
    // SAFETY: the field `size` contains the size of the attributes, and the kernel keeps no pointer to the attributes.
    let event = unsafe {
        let attributes = &raw const attributes;
        libc::syscall(libc::SYS_perf_event_open, attributes, thread, ANY_PROCESSOR, NO_GROUP, CLOSE_ON_EXEC)
    };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, and this `File` is its only owner.
    Ok(descriptor::move_out_of_reach(unsafe { File::from_raw_fd(event as i32) }))
}

/// Closes the descriptor of a perf event, unless the host has closed this descriptor and its number now refers to one
/// of the host's files.
fn close_event(event: File) {
    if !is_event(event.as_raw_fd()) {
        let _ = event.into_raw_fd();
    }
}

/// Whether this descriptor number refers to a perf event. Returns true if this is unknown because `/proc` is not
/// mounted.
fn is_event(number: i32) -> bool {
    fs::read_link(format!("/proc/self/fd/{number}"))
        .map_or(true, |link| link.as_os_str().as_encoded_bytes() == b"anon_inode:[perf_event]")
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;
    use crate::process::threads;
    use crate::skip::skip;

    /// Opens a perf event on the calling thread. Returns `None` if the kernel does not permit sampling, so that the
    /// test is skipped.
    fn opened(period: Duration) -> Option<PerfEvent> {
        PerfEvent::open(threads::current_id(), period, 0)
            .inspect_err(|error| {
                skip(&format!(
                    "the kernel refuses CPU samples: {error}; sysctl kernel.perf_event_paranoid=2"
                ));
            })
            .ok()
    }

    fn spin(nanos: u128) {
        let began = Instant::now();
        while black_box(began.elapsed().as_nanos()) < nanos {}
    }

    #[test]
    fn perf_samples_match_the_threads_cpu_time_and_contain_its_stack() {
        let Some(mut event) = opened(Duration::from_millis(1)) else { return };
        let before = thread_cpu_time(threads::current_id()).unwrap();
        let (mut count, mut lost) = (0_u64, 0);
        let here = (&raw const before) as u64;
        for _ in 0..20 {
            spin(5_000_000);
            let mut was_newest = false;
            lost += event.drain(|told| {
                let PerfRecord::Sample(sample) = told else { panic!("{told:?}") };
                count += 1;
                assert!(!was_newest, "only the last sample is the newest");
                was_newest = sample.is_newest;
                let sp = sample.registers[7];
                assert!(sp < here && here < sp + (1 << 20), "{sp:x} is not below {here:x}");
                let word = (here - sp) as usize;
                if sample.stack.len() > word + 8 {
                    assert_eq!(&sample.stack[word..word + 8], &before.as_secs().to_ne_bytes());
                }
            });
        }
        let taken = (thread_cpu_time(threads::current_id()).unwrap() - before).as_millis() as u64;
        // At each end of the interval, there may be one sample more or less than expected.
        assert!((count + lost).abs_diff(taken) <= taken / 20 + 2, "{count} and {lost} lost in {taken} ms");
    }

    #[test]
    fn samples_that_do_not_fit_the_ring_are_counted_as_lost() {
        let Some(mut event) = opened(Duration::from_micros(100)) else { return };
        spin(100_000_000);
        let mut count = 0;
        event.drain(|_| count += 1);
        assert!(count <= event.capacity() + 1 && count > 0, "{count} of {}", event.capacity());
        // The kernel reports lost samples before the next sample.
        spin(5_000_000);
        let lost = event.drain(|_| ());
        assert!(lost > 100, "{lost}");
    }

    #[test]
    fn context_switches_of_a_sleeping_thread_are_recorded() {
        let mut event = match PerfEvent::open_switches(threads::current_id(), 0) {
            Ok(event) => event,
            // An unprivileged user may sample the kernel only if kernel.perf_event_paranoid is at most 1.
            Err(error) => return skip(&format!("the kernel refuses samples of waits: {error}")),
        };
        event.drain(|_| ());
        let here = (&raw const event) as u64;
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (mut left, mut slept, mut waits) = (0, 0, 0);
        let lost = event.drain(|told| match told {
            PerfRecord::Sample(sample) => {
                assert!(sample.registers[7] < here && here < sample.registers[7] + (1 << 20));
                left = sample.time;
            }
            PerfRecord::Descheduled { blocked: of_its_own } => waits += u32::from(of_its_own),
            PerfRecord::Lost => {}
            PerfRecord::Scheduled { time } if time - left >= 4_000_000 => slept += 1,
            PerfRecord::Scheduled { .. } => {}
        });
        assert!(lost == 0 && slept >= 10 && waits >= 10, "{lost} lost, {slept} slept, {waits} waited");
    }

    #[test]
    fn an_exited_thread_has_no_cpu_time_and_cannot_be_sampled() {
        let number = std::thread::spawn(threads::current_id).join().unwrap();
        let error = PerfEvent::open(number, Duration::from_millis(1), 0).unwrap_err();
        assert!(error.raw_os_error() == Some(libc::ESRCH) || is_refused(&error), "{error}");
        assert_eq!(thread_cpu_time(number), None);
    }
}
