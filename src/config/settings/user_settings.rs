//! Contains the values of the user's settings. The functions of the table set these values, and all other modules only
//! read them.

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
    /// All ranges, except ranges of these domains.
    Without(Vec<String>),
}

impl Default for Nvtx {
    fn default() -> Self {
        Self::Without(Vec::new())
    }
}

/// Values of the user's settings. The table of settings contains the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path prefix of the outputs, in which macros are not replaced yet.
    pub output: OsString,
    /// Files to write.
    pub formats: Vec<Output>,
    /// Meaning of the width of a frame.
    pub unit: Unit,
    /// Whether a window is open from the start.
    pub enabled: bool,
    /// Delay before each window that the settings open.
    pub delay: Duration,
    /// Duration of each window that the settings open; `None`: the window stays open until the end.
    pub duration: Option<Duration>,
    /// Number of windows that the settings open, if these windows have a duration; 0: no limit.
    pub repeat: u64,
    /// Steps during which windows are open; `None`: all steps.
    pub steps: Option<Range<u64>>,
    /// Name of the ranges that begin a step; `None`: no range begins a step.
    pub step_range: Option<String>,
    /// Maximum number of launches in a window that the settings open. The window closes when this number is reached.
    pub max_launches: Option<u64>,
    /// Maximum number of bytes that are written to files during a window that the settings open. The window closes when
    /// this number is reached.
    pub max_bytes: Option<u64>,
    /// Maximum number of bytes of the recording of every row; `None`: no limit. After the limit, rows are counted, not
    /// written.
    pub max_file: Option<u64>,
    /// Maximum number of windows that get their own files, if the prefix asks for files per window.
    pub max_windows: u64,
    /// Permission bits of the output files, as for `chmod`.
    pub file_mode: u32,
    /// File that opens the window: the window is open while the file exists.
    pub flag: Option<PathBuf>,
    /// Signal that opens the window if it is closed, and closes the window if it is open.
    pub signal: Option<i32>,
    /// Whether `cudaProfilerStart` and `cudaProfilerStop` open and close windows.
    pub profiler_calls: bool,
    /// Whether to print neither the summary nor warnings on stderr.
    pub quiet: bool,
    /// Whether the ledger is printed on stderr, before the summary.
    pub verbose: bool,
    /// Whether frames inside the vendor's libraries are shown.
    pub internal_frames: bool,
    /// Treatment of Python frames: whether and how they are shown.
    pub python: PythonFrames,
    /// Attribution of PyTorch's backward pass: to its own thread, or to the forward pass.
    pub backward: Backward,
    /// Stacks that are shown for a graph node.
    pub graph: GraphStacks,
    /// Whether a graph launch is recorded as one activity, without its nodes.
    pub whole_graphs: bool,
    /// Whether dependencies between launches, events and waits are recorded.
    pub deps: bool,
    /// Whether traffic and faults of unified memory are recorded.
    pub unified: bool,
    /// NVTX ranges that become frames.
    pub nvtx: Nvtx,
    /// Frames that are added at the root of every stack, such as the device or the thread.
    pub root: Vec<Root>,
    /// Maximum memory in bytes that gpuflame may use; `None`: the limit from `gpuflame_os::memory::limit_bytes`.
    pub max_mem: Option<usize>,
    /// Number of CPU samples per second of each launching thread; `None`: threads are not sampled.
    pub cpu_samples: Option<u32>,
    /// Whether a timer's signals may be used for sampling, if the kernel does not sample for us.
    pub cpu_timer: bool,
    /// Whether to record where launching threads wait off-CPU, and for how long.
    pub off_cpu: bool,
    /// One of every `verify` stacks is verified (captured again by other methods and compared); 0: no stack is
    /// verified.
    pub verify: u32,
    /// Whether each launch calls a marker function, which an external probe can observe. Default: false.
    pub launch_marker: bool,
    /// Folder into which a short report about this process is written; `None`: no report.
    pub report: Option<PathBuf>,
    /// Path of the `libcupti` to use; `None`: gpuflame searches for one.
    pub cupti: Option<PathBuf>,
    /// Features of CUPTI that are left to other clients.
    pub yields: Yield,
    /// Maximum time for which gpuflame may delay the exit if it makes no progress.
    pub exit_limit: Duration,
    /// Whether the outputs are written when a signal ends the process.
    pub signals: bool,
    /// Interval between writes of the checkpoint; `None`: there is no checkpoint.
    pub checkpoint: Option<Duration>,
    /// Number of bytes by which the checkpoint may be larger than twice its content.
    pub checkpoint_max: usize,
    /// Additional destination of the text in the format of the tutorial's tracer; `None`: there is none.
    pub trace_file: Option<TraceFile>,
    /// Whether recording is disabled, even if the program or the user asks for it.
    pub disable: bool,
    /// Whether recordings and exports contain the program's command line.
    pub command_line: bool,
}

impl Settings {
    /// Returns settings in which all values are empty. [`Settings::default`] then fills them in from the table.
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
            max_file: None,
            max_windows: 0,
            file_mode: 0,
            flag: None,
            signal: None,
            profiler_calls: false,
            quiet: false,
            verbose: false,
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

    /// Whether an output that is written while the application runs lists single calls with their threads.
    pub fn lists_calls(&self) -> bool {
        let tables = [Output::Activities, Output::Chrome, Output::CuptiText];
        self.trace_file.is_some() || tables.iter().any(|table| self.formats.contains(table))
    }

    /// Whether the sums count the same stack on several threads as one stack.
    pub fn merges_threads(&self) -> bool {
        !self.root.contains(&Root::Thread) && !self.lists_calls()
    }

    /// Whether the settings restrict when a window is open. Without such restrictions, one window is open from the
    /// start to the end.
    pub fn has_window_limits(&self) -> bool {
        let by_time = !self.delay.is_zero() || self.duration.is_some();
        let by_limits = self.max_launches.is_some() || self.max_bytes.is_some();
        let by_others = self.flag.is_some() || self.signal.is_some();
        self.enabled && (by_time || by_limits || by_others || self.steps.is_some())
    }
}
