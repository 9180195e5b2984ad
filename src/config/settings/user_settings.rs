//! Contains the values of the user's settings. Functions in the table of settings set the values. Modules other than
//! the table of settings only read the values.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::output::{Output, TraceFile};
use gpuflame_model::options::{Backward, GraphStacks, PythonFrames, Root, Unit, Yield};

/// Selects the NVTX ranges that become stack frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nvtx {
    /// No NVTX ranges become frames, so gpuflame does not intercept calls to NVTX.
    None,
    /// All NVTX ranges become frames, except ranges of these NVTX domains.
    Without(Vec<String>),
}

impl Default for Nvtx {
    fn default() -> Self {
        Self::Without(Vec::new())
    }
}

/// Values of the user's settings. The table `SETTINGS` contains the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path prefix of the outputs. The macros in the prefix are not replaced yet.
    pub output: OsString,
    /// Files to write when the process exits.
    pub formats: Vec<Output>,
    /// Unit of the weight that the width of a frame shows.
    pub unit: Unit,
    /// Whether the settings cause windows to open. If false, only the program itself opens windows.
    pub enabled: bool,
    /// Time before each window that the settings open.
    pub delay: Duration,
    /// Duration of each window that the settings open. `None`: the window stays open until the program ends.
    pub duration: Option<Duration>,
    /// Maximum number of windows that the settings open, if windows have a duration; 0: no limit.
    pub repeat: u64,
    /// Steps during which windows are open; `None`: windows do not depend on steps.
    pub steps: Option<Range<u64>>,
    /// Name of the NVTX or API ranges that begin a step; `None`: no range begins a step.
    pub step_range: Option<String>,
    /// Maximum number of launches in a window that the settings open. A window closes when it reaches this number of
    /// launches.
    pub max_launches: Option<u64>,
    /// Maximum number of bytes that are written to files during a window that the settings open. A window closes when
    /// it reaches this number of bytes.
    pub max_bytes: Option<u64>,
    /// Maximum size in bytes of the recording that contains every row; `None`: no limit. Rows beyond this limit are
    /// only counted, not written.
    pub max_file: Option<u64>,
    /// Maximum number of windows that get their own files, if the prefix contains `%w`.
    pub max_windows: u64,
    /// Permission bits of the output files, as for `chmod`.
    pub file_mode: u32,
    /// File that controls the window. The recording window is open while this file exists.
    pub flag: Option<PathBuf>,
    /// Signal that opens the window if it is closed, and closes the window if it is open.
    pub signal: Option<i32>,
    /// Whether `cudaProfilerStart` and `cudaProfilerStop` open and close windows.
    pub profiler_calls: bool,
    /// Whether to print neither the summary nor warnings on stderr.
    pub quiet: bool,
    /// Whether to print the ledger on stderr before the summary.
    pub verbose: bool,
    /// Whether to show frames that are usually hidden, such as those inside NVIDIA's libraries and the Python
    /// interpreter.
    pub internal_frames: bool,
    /// Whether and how Python frames are shown.
    pub python: PythonFrames,
    /// Stacks to which the work of PyTorch's backward pass is attributed: those of autograd's thread, or those of the
    /// forward pass.
    pub backward: Backward,
    /// Stacks that are shown for a node of a CUDA graph: the stack that launched the graph, the stack that created the
    /// node, or both.
    pub graph: GraphStacks,
    /// Whether each launch of a CUDA graph is recorded as one activity, without the graph's nodes.
    pub whole_graphs: bool,
    /// Whether dependencies between launches, CUDA events and waits are recorded.
    pub deps: bool,
    /// Whether traffic and page faults of unified memory are recorded.
    pub unified: bool,
    /// NVTX ranges that become stack frames.
    pub nvtx: Nvtx,
    /// Frames that are added at the root of every stack, such as the device or the thread.
    pub root: Vec<Root>,
    /// Maximum memory in bytes that gpuflame may use; `None`: the limit from `gpuflame_os::memory::limit_bytes`.
    pub max_mem: Option<usize>,
    /// Number of samples per second of CPU time, for each thread that launches GPU work. `None`: threads are not
    /// sampled while they run.
    pub cpu_samples: Option<u32>,
    /// Whether a timer's signals may be used for CPU samples if the Linux kernel denies access to perf events.
    pub cpu_timer: bool,
    /// Whether to record where threads that launch GPU work wait off-CPU, and for how long.
    pub off_cpu: bool,
    /// Every `verify`-th stack is captured again by different methods, and the stacks are compared; 0: no stack is
    /// captured again.
    pub verify: u32,
    /// Whether gpuflame calls an empty marker function for each launch, so that an external probe can read the launch's
    /// correlation id.
    pub launch_marker: bool,
    /// Folder into which a short report about this process is written; `None`: no report is written.
    pub report: Option<PathBuf>,
    /// Path of the `libcupti` to use; `None`: gpuflame searches for one.
    pub cupti: Option<PathBuf>,
    /// Features of CUPTI that gpuflame leaves to other CUPTI clients in the process.
    pub yields: Yield,
    /// Maximum time for which gpuflame delays the program's exit while the writing of the outputs makes no progress.
    pub exit_limit: Duration,
    /// Whether to write the outputs when a signal (SIGINT, SIGTERM or SIGHUP) ends the process.
    pub signals: bool,
    /// Interval at which the checkpoint is written; `None`: no checkpoint is written.
    pub checkpoint: Option<Duration>,
    /// Number of bytes by which the checkpoint file may exceed twice the size of its content. If the checkpoint file
    /// becomes larger than this, it is rewritten.
    pub checkpoint_max: usize,
    /// Additional destination for text in the format of the CUPTI tracer in eunomia's tutorial; `None`: no such text is
    /// written.
    pub trace_file: Option<TraceFile>,
    /// Whether recording is disabled. This setting applies regardless of how gpuflame was loaded into the process.
    pub disable: bool,
    /// Whether recordings and exports contain the program's command line.
    pub command_line: bool,
}

impl Settings {
    /// Returns settings whose values are all empty. [`Settings::default`] replaces the empty values with the defaults
    /// from the table.
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

    /// Whether any streamed output lists single calls with their threads. A streamed output is written while the
    /// application runs.
    pub fn lists_calls(&self) -> bool {
        let tables = [Output::Activities, Output::Chrome, Output::CuptiText];
        self.trace_file.is_some() || tables.iter().any(|table| self.formats.contains(table))
    }

    /// Whether equal stacks on different threads are summed as one stack.
    pub fn merges_threads(&self) -> bool {
        !self.root.contains(&Root::Thread) && !self.lists_calls()
    }

    /// Whether the settings restrict the time during which a window is open. If the settings do not restrict the time
    /// of windows, one window is open from the start to the end of the program.
    pub fn has_window_limits(&self) -> bool {
        let by_time = !self.delay.is_zero() || self.duration.is_some();
        let by_limits = self.max_launches.is_some() || self.max_bytes.is_some();
        let by_others = self.flag.is_some() || self.signal.is_some();
        self.enabled && (by_time || by_limits || by_others || self.steps.is_some())
    }
}
