//! Stacks of samples: native frames from the copies that the kernel made, with the Python frames read soon afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{ContextFlags, Frame, ThreadId};
use gpuflame_model::stats::Histogram;
use gpuflame_os::perf::ThreadSample;
use gpuflame_os::scheduling;
use gpuflame_unwind::CopyUnwinder;
use gpuflame_unwind::python::{self, OtherThreads, SampledPython};

/// Makes stacks of samples. Only one thread may use it at a time.
#[derive(Debug)]
pub(super) struct StackReader {
    unwinder: CopyUnwinder,
    /// Reader of Python frames, once the process has an interpreter.
    python: Option<OtherThreads>,
    /// Processor that the sampler's thread stays on, if the process has an interpreter.
    processor: Option<u32>,
}

/// A stack, and what its context says about it.
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

/// Counters of samples in Python code.
#[derive(Debug, Default)]
pub(super) struct PythonCounts {
    read: AtomicU64,
    not_read: AtomicU64,
    /// Time from the sample to the end of the read in ns, of frames that were read.
    delays: Mutex<Histogram>,
}

impl StackReader {
    pub(super) fn new() -> Option<Self> {
        Some(Self { unwinder: CopyUnwinder::new()?, python: None, processor: None })
    }

    /// Whether Python frames can be read. Looks for an interpreter, unless one was found.
    pub(super) fn reads_python(&mut self) -> bool {
        if self.python.is_none() {
            self.python = OtherThreads::new();
        }
        self.python.is_some()
    }

    /// Lists all Python threads by the kernel's numbers.
    pub(super) fn python_threads(&mut self) -> Vec<i32> {
        self.python.as_mut().map(OtherThreads::all).unwrap_or_default()
    }

    /// Call before each round of samples.
    pub(super) fn check_loaded_objects(&mut self) {
        self.unwinder.check_loaded_objects();
    }

    /// Returns the stack of a sample. Its Python frames are read only if `is_new`. If the thread has run since
    /// the sample, its frames are gone.
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
        // The frames are read before the walk, which takes longer.
        match is_new {
            true => python.read(thread.0 as i32, sampled, capture::number_of_code),
            false => python.forget(),
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

    /// Keeps this thread on the processor on which a thread was just sampled. The kernel then lets this thread, which has
    /// slept, run before the sampled thread executes another instruction, so the frames are those of the sample. On another
    /// processor both threads would run at the same time.
    pub(super) fn follow(&mut self, processor: u32) {
        if self.python.is_some() && self.processor != Some(processor) {
            if self.processor.is_none() {
                scheduling::run_first();
            }
            scheduling::stay_on(processor);
            self.processor = Some(processor);
        }
    }
}

/// Whether a thread that waits with these registers waits for Python's GIL.
pub(super) fn waits_for_gil(sample: &ThreadSample<'_>) -> bool {
    python::waits_for_gil(&sample.registers)
}

impl PythonCounts {
    /// Returns the ledger's line about samples in Python code; `None` if there were none.
    pub(super) fn line(&self) -> Option<String> {
        let [read, not_read] = [&self.read, &self.not_read].map(|count| count.load(Ordering::Relaxed));
        let delays = self.delays.lock();
        let [middle, high] = [50, 99].map(|percent| delays.percentile(percent) as f64 / 1e6);
        (read + not_read > 0).then(|| {
            format!(
                "python frames in samples {read}, not read {not_read}; delay p50 {middle:.3} ms, p99 {high:.3} ms"
            )
        })
    }
}
