//! Assembles the stacks of samples from native frames and Python frames. The native frames come from copies of the
//! stack that the kernel has made. The Python frames are read soon after the sample.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::sampler_budget::Budget;
use crate::capture;
use gpuflame_model::record::{ContextFlags, Frame, ThreadId};
use gpuflame_model::stats::Histogram;
use gpuflame_os::perf::{self, ThreadSample};
use gpuflame_os::scheduling;
use gpuflame_unwind::CopyUnwinder;
use gpuflame_unwind::python::{self, OtherThreads, SampledPython};

/// Assembles the stacks of samples from native frames and Python frames. Only one thread at a time may use this reader.
#[derive(Debug)]
pub(super) struct StackReader {
    unwinder: CopyUnwinder,
    /// Reader of Python frames; `None` until a Python interpreter was found in the process.
    python: Option<OtherThreads>,
    /// Limits how much CPU time is spent on reading Python frames.
    reading: Budget,
    /// Processor on which the sampler's thread should sleep: the processor on which the sampled thread runs. If the
    /// sampler's thread wakes up on the same processor, it runs before the sampled thread executes another instruction.
    /// Therefore the Python frames are still the same as at the time of the sample. If the two threads were on
    /// different processors, they would run at the same time.
    pub(super) processor: Option<u32>,
}

/// Limits on reading Python frames. After a read, ten times the duration of that read must pass before the next read.
/// Therefore the sampled threads lose at most a tenth of one processor. `MAX_READ_BURST_NS` is the maximum amount of
/// unused reading time that can be saved up for several reads in quick succession.
const READ_COST: u64 = 10;
const MAX_READ_BURST_NS: u64 = 100_000_000;

/// A stack, and the flags of its launch context (stack and API call).
#[derive(Debug)]
pub(super) struct ReadStack {
    pub(super) flags: ContextFlags,
    pub(super) frames: Box<[Frame]>,
}

impl ReadStack {
    pub(super) fn is_partial(&self) -> bool {
        self.flags.0 & (ContextFlags::TRUNCATED | ContextFlags::CUT) != 0
    }
}

/// Counts the sampled stacks that are in Python code, including the stacks of waits that are dropped later.
#[derive(Debug, Default)]
pub(super) struct PythonCounts {
    read: AtomicU64,
    not_read: AtomicU64,
    /// Delays in ns between a sample and the read of its Python frames.
    delays: Mutex<Histogram>,
}

impl StackReader {
    pub(super) fn new() -> Option<Self> {
        let reading = Budget::new(MAX_READ_BURST_NS);
        Some(Self { unwinder: CopyUnwinder::new()?, python: None, reading, processor: None })
    }

    pub(super) fn has_python(&self) -> bool {
        self.python.is_some()
    }

    /// Whether Python frames can be read in this process. Looks for a Python interpreter if none was found before. Call
    /// this function only on the sampler's thread.
    pub(super) fn reads_python(&mut self) -> bool {
        if self.python.is_none() && !OtherThreads::is_refused() {
            self.python = OtherThreads::new().filter(|_| !OtherThreads::is_refused());
            if self.python.is_some() {
                scheduling::run_first();
            }
        }
        self.python.is_some()
    }

    /// Returns the kernel's thread ids of the process's Python threads.
    pub(super) fn python_threads(&mut self) -> Vec<i32> {
        self.python.as_mut().map(OtherThreads::all).unwrap_or_default()
    }

    /// Checks whether shared objects were loaded or unloaded. Call this function before each round of samples.
    pub(super) fn check_loaded_objects(&mut self) {
        self.unwinder.check_loaded_objects();
    }

    /// Returns the complete stack of a sample. The Python frames are read only if `is_new` is true and the budget for
    /// reading is not exceeded. If the sampled thread has run since the sample was taken, its Python frames are no
    /// longer those of the sample.
    pub(super) fn read(
        &mut self,
        thread: ThreadId,
        sample: &ThreadSample<'_>,
        is_new: bool,
        counts: &PythonCounts,
    ) -> ReadStack {
        let Some(python) = &mut self.python else {
            let captured = self.unwinder.walk(&sample.registers, sample.stack);
            return ReadStack { flags: captured.flags, frames: captured.frames.into() };
        };
        let sampled = (&sample.registers, sample.stack);
        // The Python frames are read before the native stack is walked, because the walk of the native stack takes
        // longer.
        let began = capture::now().0;
        if is_new && !self.reading.is_overdrawn(began) {
            const THIS_THREAD: i32 = 0;
            let taken = || perf::thread_cpu_time(THIS_THREAD).unwrap_or_default().as_nanos() as u64;
            let before = taken();
            python.read(thread.0 as i32, sampled, capture::number_of_code);
            self.reading.pay(began, READ_COST * taken().saturating_sub(before));
        } else {
            python.forget();
        }
        let delay = capture::now().0.saturating_sub(sample.time);
        let (captured, positions) = self.unwinder.walk_with_positions(&sample.registers, sample.stack);
        let (frames, result) = python.merge(&captured, &positions, sampled);
        match result {
            SampledPython::NoFrames => {}
            SampledPython::Read => {
                counts.read.fetch_add(1, Ordering::Relaxed);
                counts.delays.lock().record(delay);
            }
            SampledPython::NotRead => {
                counts.not_read.fetch_add(1, Ordering::Relaxed);
            }
        }
        ReadStack { flags: captured.flags, frames: frames.into() }
    }

    /// Makes the sampler's thread sleep on the processor on which `thread` was just sampled. If the scheduling policy
    /// of `thread` keeps other threads off that processor, the sampler's thread may sleep on any processor instead.
    pub(super) fn follow(&mut self, thread: ThreadId, processor: u32) {
        let is_safe = self.python.is_some() && scheduling::shares_its_processor(thread.0 as i32);
        self.processor = is_safe.then_some(processor);
    }
}

/// Whether a waiting thread with these registers is waiting for Python's GIL.
pub(super) fn waits_for_gil(sample: &ThreadSample<'_>) -> bool {
    python::waits_for_gil(&sample.registers)
}

impl PythonCounts {
    /// Returns the ledger's line about samples in Python code, or `None` if there were no such samples.
    pub(super) fn line(&self) -> Option<String> {
        let [read, not_read] = [&self.read, &self.not_read].map(|count| count.load(Ordering::Relaxed));
        let delays = self.delays.lock();
        let [middle, high] = [50, 99].map(|percent| delays.percentile(percent) as f64 / 1e6);
        let is_refused = OtherThreads::is_refused();
        let refused = if is_refused { "; refused by a sandbox: process_vm_readv" } else { "" };
        (read + not_read > 0 || is_refused).then(|| {
            format!(
                "python frames in samples {read}, not read {not_read}; delay p50 {middle:.3} ms, p99 {high:.3} \
                 ms{refused}"
            )
        })
    }
}
