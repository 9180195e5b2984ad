//! The user's settings. The table of settings fills them in, and all other modules read them.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::output::{Output, TraceFile};
use gpuflame_model::options::{Backward, GraphStacks, PythonFrames, Root, Unit, Yield};

/// NVTX ranges that become frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nvtx {
    /// No ranges; NVTX is not intercepted.
    None,
    /// All ranges except the ranges of these domains.
    Without(Vec<String>),
}

impl Default for Nvtx {
    fn default() -> Self {
        Self::Without(Vec::new())
    }
}

/// The user's settings. The defaults are those of the table of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path prefix of the outputs, macros not yet expanded.
    pub output: OsString,
    /// Files to write.
    pub formats: Vec<Output>,
    /// Weights of stacks.
    pub unit: Unit,
    /// Whether a window is open from the start.
    pub enabled: bool,
    /// Delay before each window that the settings open.
    pub delay: Duration,
    /// Duration of a window that the settings open; `None`: the window stays open until the end.
    pub duration: Option<Duration>,
    /// Number of windows that the settings open, if the windows have a duration; 0: unlimited.
    pub repeat: u64,
    /// Steps to record; `None`: all steps.
    pub steps: Option<Range<u64>>,
    /// Name of the ranges that begin a step.
    pub step_range: Option<String>,
    /// Number of launches after which a window that the settings open closes.
    pub max_launches: Option<u64>,
    /// Number of bytes written to files after which a window that the settings open closes.
    pub max_bytes: Option<u64>,
    /// Maximum number of windows with separate files, if the prefix requests files per window.
    pub max_windows: u64,
    /// Permissions of the output files, as for `chmod`.
    pub file_mode: u32,
    /// File whose existence opens the window.
    pub flag: Option<PathBuf>,
    /// Signal that opens and closes the window.
    pub signal: Option<i32>,
    /// Whether `cudaProfilerStart` and `cudaProfilerStop` open and close windows.
    pub profiler_calls: bool,
    /// Whether to keep the ledger and warnings off stderr.
    pub quiet: bool,
    /// Whether frames inside the vendor's libraries are shown.
    pub internal_frames: bool,
    /// Treatment of Python frames.
    pub python: PythonFrames,
    /// Mode of attributing PyTorch's backward pass.
    pub backward: Backward,
    /// Stacks of a graph node to show.
    pub graph: GraphStacks,
    /// Whether a graph launch is recorded as one activity, without its nodes.
    pub whole_graphs: bool,
    /// Whether to record dependencies.
    pub deps: bool,
    /// Whether to record traffic and faults of unified memory.
    pub unified: bool,
    /// NVTX ranges that become frames.
    pub nvtx: Nvtx,
    /// Frames at the root of every stack.
    pub root: Vec<Root>,
    /// Maximum memory in bytes; `None`: the limit from `gpuflame_os::memory::limit_bytes`.
    pub max_mem: Option<usize>,
    /// CPU samples per second of launching threads; `None`: no sampling.
    pub cpu_samples: Option<u32>,
    /// Whether samples may use a timer's signals, if the kernel does not sample for us.
    pub cpu_timer: bool,
    /// Whether to record where launching threads wait off-CPU, and for how long.
    pub off_cpu: bool,
    /// Number of stacks after which one stack is captured again by other methods and compared.
    pub verify: u32,
    /// Whether each launch calls a marker function for an external probe. Default: false.
    pub launch_marker: bool,
    /// Folder that gets a short report about this process.
    pub report: Option<PathBuf>,
    /// Path of the `libcupti` to use.
    pub cupti: Option<PathBuf>,
    /// CUPTI features left to other clients.
    pub yields: Yield,
    /// Maximum time for which gpuflame may delay the exit without making progress.
    pub exit_limit: Duration,
    /// Whether to write the outputs when a signal ends the process.
    pub signals: bool,
    /// Interval of the checkpoint; `None`: no checkpoint.
    pub checkpoint: Option<Duration>,
    /// Maximum number of bytes by which the checkpoint may exceed twice the size of its contents.
    pub checkpoint_max: usize,
    /// Additional destination for text in the format of the tutorial's tracer.
    pub trace_file: Option<TraceFile>,
    /// Whether recording is disabled, regardless of any request.
    pub disable: bool,
    /// Whether recordings and exports include the program's arguments.
    pub command_line: bool,
}

impl Settings {
    /// Returns settings with empty values. [`Settings::default`] returns the defaults of the table.
    pub(super) fn empty() -> Self {
        Self {
            output: OsString::new(),
            formats: Vec::new(),
            unit: Unit::default(),
            enabled: false,
            delay: Duration::ZERO,
            duration: None,
            repeat: 0,
            steps: None,
            step_range: None,
            max_launches: None,
            max_bytes: None,
            max_windows: 0,
            file_mode: 0,
            flag: None,
            signal: None,
            profiler_calls: false,
            quiet: false,
            internal_frames: false,
            python: PythonFrames::default(),
            backward: Backward::default(),
            graph: GraphStacks::default(),
            whole_graphs: false,
            deps: false,
            unified: false,
            nvtx: Nvtx::default(),
            root: Vec::new(),
            max_mem: None,
            cpu_samples: None,
            cpu_timer: false,
            off_cpu: false,
            verify: 0,
            launch_marker: false,
            report: None,
            cupti: None,
            yields: Yield::default(),
            exit_limit: Duration::ZERO,
            signals: false,
            checkpoint: None,
            checkpoint_max: 0,
            trace_file: None,
            disable: false,
            command_line: false,
        }
    }

    /// Whether single calls, each with its thread, are written while the application runs.
    pub fn lists_calls(&self) -> bool {
        let tables = [Output::Activities, Output::Chrome, Output::CuptiText];
        self.trace_file.is_some() || tables.iter().any(|table| self.formats.contains(table))
    }

    /// Whether the settings restrict when a window is open. Without a restriction, a window lasts from start to end.
    pub fn has_window_limits(&self) -> bool {
        let by_time = !self.delay.is_zero() || self.duration.is_some();
        let by_limits = self.max_launches.is_some() || self.max_bytes.is_some();
        let by_others = self.flag.is_some() || self.signal.is_some();
        self.enabled && (by_time || by_limits || by_others || self.steps.is_some())
    }
}
