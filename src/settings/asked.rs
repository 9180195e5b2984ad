//! What the user asked for: what the table of settings fills in, and everything else reads.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::wanted::{Output, TraceFile};
use super::words::{Backward, GraphStacks, Python, Root, Unit, Yield};

/// Which ranges of NVTX are frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nvtx {
    /// None, and NVTX is left alone.
    None,
    /// All but those of these domains.
    Without(Vec<String>),
}

impl Default for Nvtx {
    fn default() -> Self {
        Self::Without(Vec::new())
    }
}

/// What the user asked for. The defaults are those of the table of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path prefix of the outputs, macros not yet expanded.
    pub output: OsString,
    /// What to write.
    pub formats: Vec<Output>,
    /// Weights of stacks.
    pub unit: Unit,
    /// Whether a window is open from the start.
    pub enabled: bool,
    /// How long before each window that the settings open.
    pub delay: Duration,
    /// How long such a window is; none: to the end.
    pub duration: Option<Duration>,
    /// How many such windows, where they have a length; 0: for ever.
    pub repeat: u64,
    /// Steps that are recorded; none: all.
    pub steps: Option<Range<u64>>,
    /// What a range is called that begins a step.
    pub step_range: Option<String>,
    /// After how many launches such a window closes.
    pub max_launches: Option<u64>,
    /// After how many bytes in files.
    pub max_bytes: Option<u64>,
    /// The most windows that have files of their own, where the prefix says that they do.
    pub max_windows: u64,
    /// Who may read the files, as `chmod` has it.
    pub file_mode: u32,
    /// The file that says whether a window is open.
    pub flag: Option<PathBuf>,
    /// The signal that opens a window, and closes it.
    pub signal: Option<i32>,
    /// Whether `cudaProfilerStart` and `cudaProfilerStop` open and close windows.
    pub profiler_calls: bool,
    /// Whether the ledger and warnings are kept off stderr.
    pub quiet: bool,
    /// Whether frames inside the vendor's libraries are shown.
    pub internal_frames: bool,
    /// What becomes of the frames of Python.
    pub python: Python,
    /// Where the work of PyTorch's backward pass hangs.
    pub backward: Backward,
    /// Which stacks of a graph node to show.
    pub graph: GraphStacks,
    /// Whether a graph launch is one activity, and its nodes none.
    pub whole_graphs: bool,
    /// Whether the recording says what waited for what.
    pub deps: bool,
    /// Whether traffic and faults of unified memory are recorded.
    pub unified: bool,
    /// Which ranges of NVTX are frames.
    pub nvtx: Nvtx,
    /// What stands at the root of every stack.
    pub root: Vec<Root>,
    /// How many bytes of memory to take at most; none: as much as `host::memory::ceiling` says.
    pub max_mem: Option<usize>,
    /// How often a second launching threads are sampled on processors; none: never.
    pub cpu_samples: Option<u32>,
    /// Whether that may be by a timer's signals, where the kernel takes no samples for us.
    pub cpu_timer: bool,
    /// Whether it is noted where they wait, and how long.
    pub off_cpu: bool,
    /// One stack in so many is taken again by other ways and compared.
    pub verify: u32,
    /// Whether each launch is told to a probe from outside. Default: no.
    pub launch_marker: bool,
    /// Where a few lines about this process go.
    pub report: Option<PathBuf>,
    /// The `libcupti` to use.
    pub cupti: Option<PathBuf>,
    /// What other clients of CUPTI are left.
    pub yields: Yield,
    /// How long the exit may be held up without getting on.
    pub exit_limit: Duration,
    /// Whether the outputs are written when a signal ends the process.
    pub signals: bool,
    /// After how long what was recorded is written down for the case that nothing else is; none: never.
    pub checkpoint: Option<Duration>,
    /// By how many bytes that file may exceed twice what it says.
    pub checkpoint_max: usize,
    /// Where the text of the tutorial's tracer goes besides.
    pub trace_file: Option<TraceFile>,
    /// Whether nothing is to be recorded, whoever asks for it.
    pub disable: bool,
    /// Whether recordings and exports say the program's arguments.
    pub command_line: bool,
}

impl Settings {
    /// With nothing in it. [`Settings::default`] has what the table says.
    pub(super) fn unset() -> Self {
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
            python: Python::default(),
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

    /// Whether single calls are written while the application runs, each with its thread.
    pub fn lists_calls(&self) -> bool {
        let tables = [Output::Activities, Output::Chrome, Output::CuptiText];
        self.trace_file.is_some() || tables.iter().any(|table| self.formats.contains(table))
    }

    /// Whether they say when a window is open, other than from the start to the end.
    pub fn say_when(&self) -> bool {
        let by_time = !self.delay.is_zero() || self.duration.is_some();
        let by_limits = self.max_launches.is_some() || self.max_bytes.is_some();
        let by_others = self.flag.is_some() || self.signal.is_some();
        self.enabled && (by_time || by_limits || by_others || self.steps.is_some())
    }
}
