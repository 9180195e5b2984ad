//! The table of environment variables, and its pure parser.
//!
//! A value that cannot be understood is never fatal: the default stands, or of a list what can be used, and a
//! warning says so, since the application must run on.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::values::{
    Refused, SWITCH, bytes, list, number, numbers, seconds, seconds_or_none, signal, switch, word,
};
use super::wanted::{Output, TraceFile};
use super::words::{GraphStacks, Python, Root, Unit};

/// More samples a second would be of the sampling.
const MOST_HERTZ: u64 = 10_000;

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, with prefix.
    pub name: &'static str,
    /// What a user writes for its value, in the table of `docs/settings.md`.
    pub values: &'static str,
    /// The value it has when unset; [`Settings::default`] is made from these.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), Refused>,
}

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

/// What the user asked for. The defaults are those of [`SETTINGS`].
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

impl Default for Settings {
    /// What the table says.
    fn default() -> Self {
        let mut settings = Self {
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
            flag: None,
            signal: None,
            profiler_calls: false,
            quiet: false,
            internal_frames: false,
            python: Python::default(),
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
            exit_limit: Duration::ZERO,
            signals: false,
            checkpoint: None,
            checkpoint_max: 0,
            trace_file: None,
            disable: false,
            command_line: false,
        };
        for setting in SETTINGS {
            let applied = (setting.apply)(&mut settings, setting.default);
            debug_assert_eq!(applied, Ok(()), "the default of {}", setting.name);
        }
        settings
    }
}

/// Every setting there is.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "GPUFLAME_OUTPUT",
        values: "path prefix",
        default: OUTPUT,
        help: "Where the outputs go; a suffix is appended, and to a folder (it ends in /) the default. %p process id, %h host, %e program, %t start \
               time, %n first free number, %r rank, %w the window's number: each has files of its own, %q{NAME} environment variable, %% a percent sign.",
        apply: |settings, value| {
            if value.is_empty() {
                return Err(Refused::All("it is empty".to_owned()));
            }
            settings.output = prefix(value.as_ref());
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_FORMATS",
        values: "comma-separated: folded, svg, csv, idle, wait, alloc, cpu, off-cpu, together, activities, chrome, cupti-text, gfr",
        default: "folded,svg,csv,idle",
        help: "What to write at exit: folded stacks, flame graph, table by kernel, flame graph (and folded \
               stacks) of GPU idle time, the same of the time in which the host waited for a GPU, and of bytes \
               allocated and freed (both cost a callback a call), table of every activity and one of their \
               stacks, Chrome's trace events, text of the CUPTI tracer of eunomia's tutorial, recording.",
        apply: |settings, value| {
            let (chosen, refused) = formats(value);
            if !chosen.is_empty() {
                settings.formats = chosen;
            }
            refused.map_or(Ok(()), Err)
        },
    },
    Setting {
        name: "GPUFLAME_UNIT",
        values: Unit::WORDS,
        default: Unit::Nanos.word(),
        help: "What a stack weighs in the folded file and the flame graph.",
        apply: |settings, value| word(value).map(|unit| settings.unit = unit),
    },
    Setting {
        name: "GPUFLAME_ENABLED",
        values: SWITCH,
        default: "1",
        help: "0 leaves windows to the program: gpuflame_start() opens one. Else one is open from CUDA's start, unless \
               another setting says when.",
        apply: |settings, value| switch(value).map(|on| settings.enabled = on),
    },
    Setting {
        name: "GPUFLAME_DELAY",
        values: "seconds",
        default: "0",
        help: "How long before the window opens, from CUDA's start, and after each that GPUFLAME_REPEAT follows with \
               another.",
        apply: |settings, value| seconds_or_none(value).map(|delay| settings.delay = delay),
    },
    Setting {
        name: "GPUFLAME_DURATION",
        values: "seconds",
        default: "",
        help: "How long the window is; unset, to the end of the program.",
        apply: |settings, value| {
            settings.duration = if value.is_empty() { None } else { Some(seconds(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_REPEAT",
        values: "number; 0: for ever",
        default: "1",
        help: "How many windows of GPUFLAME_DURATION, GPUFLAME_DELAY before each.",
        apply: |settings, value| number(value, 0).map(|repeat| settings.repeat = repeat),
    },
    Setting {
        name: "GPUFLAME_STEPS",
        values: "FROM..TO, as 10..12",
        default: "",
        help: "Record only from the beginning of one step to the beginning of another: 10..12 are steps 10 and 11, the \
               first is 1. Steps are what gpuflame_step() counts, or GPUFLAME_STEP_RANGE.",
        apply: |settings, value| {
            settings.steps = if value.is_empty() { None } else { Some(numbers(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_STEP_RANGE",
        values: "name; NAME* for names that begin so",
        default: "",
        help: "A range of this name, by NVTX or gpuflame_range_push(), begins a step wherever it opens.",
        apply: |settings, value| {
            settings.step_range = (!value.is_empty()).then(|| value.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_LAUNCHES",
        values: "number",
        default: "",
        help: "A window closes when so many launches were recorded in it; it is looked every 2 ms.",
        apply: |settings, value| {
            settings.max_launches = if value.is_empty() { None } else { Some(number(value, 1)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_BYTES",
        values: "bytes, or with K, M or G",
        default: "",
        help: "A window closes when so much was written to files since it opened: to the recording, the table of \
               activities, and the file of GPUFLAME_CHECKPOINT.",
        apply: |settings, value| {
            settings.max_bytes = if value.is_empty() { None } else { Some(bytes(value)? as u64) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_WINDOWS",
        values: "number",
        default: "1000",
        help: "So many windows have files of their own, where GPUFLAME_OUTPUT has %w; those of the last have all that \
               come after it as well.",
        apply: |settings, value| number(value, 1).map(|windows| settings.max_windows = windows),
    },
    Setting {
        name: "GPUFLAME_FLAG",
        values: "path of a file",
        default: "",
        help: "Record while this file is there; it is looked for once a second. Where it is made anew, delays, steps \
               and repetitions count anew.",
        apply: |settings, value| {
            settings.flag = (!value.is_empty()).then(|| PathBuf::from(value));
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_SIGNAL",
        values: "USR1, USR2",
        default: "",
        help: "This signal opens a window, and the next closes it. It interrupts sleeps of the program, and is left alone \
               where the program has a handler for it.",
        apply: |settings, value| {
            settings.signal = if value.is_empty() { None } else { Some(signal(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_PROFILER_CALLS",
        values: SWITCH,
        default: "1",
        help: "Whether cudaProfilerStart() and cudaProfilerStop() open and close windows.",
        apply: |settings, value| switch(value).map(|on| settings.profiler_calls = on),
    },
    Setting {
        name: "GPUFLAME_QUIET",
        values: SWITCH,
        default: "0",
        help: "1 keeps the ledger and warnings off stderr; a failure is still told, in one line.",
        apply: |settings, value| switch(value).map(|on| settings.quiet = on),
    },
    Setting {
        name: "GPUFLAME_INTERNAL_FRAMES",
        values: SWITCH,
        default: "0",
        help: "1 shows all frames: also those inside libcuda, libcudart and libcupti, those below main, of Python's \
               interpreter, and of PyTorch's dispatcher.",
        apply: |settings, value| switch(value).map(|on| settings.internal_frames = on),
    },
    Setting {
        name: "GPUFLAME_PYTHON",
        values: Python::WORDS,
        default: Python::Auto.word(),
        help: "Whether the functions of Python (CPython 3.9 to 3.15) stand in stacks: auto with the line that each begins \
               in, lines with the line that was executed, only without the native frames around them, off not at all.",
        apply: |settings, value| word(value).map(|python| settings.python = python),
    },
    Setting {
        name: "GPUFLAME_GRAPH",
        values: GraphStacks::WORDS,
        default: GraphStacks::Both.word(),
        help: "Which stacks a graph's kernels and copies hang under: the graph launch and then where the \
               node was captured or added, or one of the two.",
        apply: |settings, value| word(value).map(|graph| settings.graph = graph),
    },
    Setting {
        name: "GPUFLAME_GRAPH_TRACE",
        values: "node, graph",
        default: "node",
        help: "graph records each graph launch as one piece, `[GPU_Graph]`: cheaper, but which kernels ran \
               in it, how long, and where they were captured is lost.",
        apply: |settings, value| {
            settings.whole_graphs = match value.to_ascii_lowercase().as_str() {
                "node" => false,
                "graph" => true,
                _ => return Err(Refused::All(format!("`{value}` is neither node nor graph"))),
            };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_DEPS",
        values: SWITCH,
        default: "0",
        help: "1 has the recording (gfr) say what waited for what: events put on streams, streams that wait for \
               them, and the host's waits, each by call and as CUPTI numbers them. A callback for each such call.",
        apply: |settings, value| switch(value).map(|on| settings.deps = on),
    },
    Setting {
        name: "GPUFLAME_UNIFIED",
        values: SWITCH,
        default: "0",
        help: "1 counts what moves in memory that the host and GPUs share (cudaMallocManaged), in bytes by \
               direction, and faults: in the table, the activities, the recording and the ledger, not in flame graphs.",
        apply: |settings, value| switch(value).map(|on| settings.unified = on),
    },
    Setting {
        name: "GPUFLAME_NVTX",
        values: "0, 1, or domains to leave out: -NCCL,-CCCL",
        default: "1",
        help: "Whether open NVTX ranges are frames, where NVTX_INJECTION64_PATH names this library.",
        apply: |settings, value| {
            let (nvtx, refused) = nvtx(value);
            settings.nvtx = nvtx.unwrap_or_else(|| settings.nvtx.clone());
            refused.map_or(Ok(()), Err)
        },
    },
    Setting {
        name: "GPUFLAME_ROOT",
        values: "comma-separated: process, thread, device, stream",
        default: "",
        help: "Frames at the root of every stack of the folded files and the flame graphs, in this order.",
        apply: |settings, value| {
            let (chosen, refused) = list(value, Root::WORDS, |text| text.parse().ok());
            settings.root = chosen;
            refused.map_or(Ok(()), Err)
        },
    },
    Setting {
        name: "GPUFLAME_MAX_MEM",
        values: "bytes, or with K, M or G; 24M at least",
        default: "",
        help: "How much memory gpuflame may take; unset 256M, or a tenth of the memory limit of the control group \
               where that is less. When it is short of it, stacks with the least GPU time are added up under \
               `[other stacks]`, then kernels under `[other kernels]`, then threads lose their names; sums stay exact.",
        apply: |settings, value| {
            settings.max_mem = if value.is_empty() { None } else { Some(bytes(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_REPORT",
        values: "folder",
        default: "",
        help: "Where a process puts a few lines of JSON about itself, what it launched and its files, once those are \
               written: for whoever started it, as `gpuflame run` does.",
        apply: |settings, value| {
            settings.report = (!value.is_empty()).then(|| PathBuf::from(value));
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_CPU_SAMPLES",
        values: "Hz, or Hz,perf",
        default: "0",
        help: "So often a second of processor time it is looked where the threads are that launch, 99 for instance and \
               10000 at most: drawn as NAME.cpu.svg and NAME.cpu.folded, and named where a GPU waited for them. 0: never. Where \
               the kernel takes no samples for us it is done by a signal to the thread; not with `perf`.",
        apply: |settings, value| {
            let (value, by_timer) = match value.split_once(',') {
                Some((hertz, word)) if word.trim() == "perf" => (hertz.trim(), false),
                Some(_) => return Err(Refused::All(format!("expected Hz or Hz,perf, not `{value}`"))),
                None => (value, true),
            };
            let hertz = number(value, 0)?;
            if hertz > MOST_HERTZ {
                return Err(Refused::All(format!("expected {MOST_HERTZ} Hz at most, not `{value}`")));
            }
            settings.cpu_samples = (hertz > 0).then_some(hertz as u32);
            settings.cpu_timer = by_timer && hertz > 0;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_OFF_CPU",
        values: SWITCH,
        default: "0",
        help: "Whether it is noted where the threads that launch sleep or wait, and for how long: drawn as \
               NAME.off-cpu.svg and NAME.off-cpu.folded, and named where a GPU waited for them. Needs \
               kernel.perf_event_paranoid of 1 or CAP_PERFMON.",
        apply: |settings, value| switch(value).map(|on| settings.off_cpu = on),
    },
    Setting {
        name: "GPUFLAME_VERIFY",
        values: "number",
        default: "0",
        help: "N takes every Nth stack again, frame by frame and by libgcc, and the ledger says how many \
               differed; some 20 us each. 0: none.",
        apply: |settings, value| {
            let expected = |_| Refused::All(format!("expected a whole number, 0 or more, not `{value}`"));
            settings.verify = value.parse().map_err(expected)?;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_LAUNCH_MARKER",
        values: SWITCH,
        default: "0",
        help: "Whether each launch calls `gpuflame_launch_marker(correlation id)`, which does nothing: for probes from \
               outside, which learn the id there. `gpuflame-bpf` sets it for the commands that it runs.",
        apply: |settings, value| switch(value).map(|on| settings.launch_marker = on),
    },
    Setting {
        name: "GPUFLAME_CUPTI",
        values: "path",
        default: "",
        help: "The libcupti to load; unset, it is looked for in the process and on the machine.",
        apply: |settings, value| {
            settings.cupti = (!value.is_empty()).then(|| PathBuf::from(value));
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_EXIT_LIMIT",
        values: "seconds",
        default: "5",
        help: "How long the program's exit waits for outputs whose writing does not get on: as long as it gets on, \
               it is waited for.",
        apply: |settings, value| seconds(value).map(|limit| settings.exit_limit = limit),
    },
    Setting {
        name: "GPUFLAME_SIGNALS",
        values: SWITCH,
        default: "1",
        help: "Whether the outputs are also written when SIGINT, SIGTERM or SIGHUP ends the program, where it has \
               left them at their default; it then dies of the signal. A second one, a second later, ends it at once.",
        apply: |settings, value| switch(value).map(|on| settings.signals = on),
    },
    Setting {
        name: "GPUFLAME_CHECKPOINT",
        values: "seconds; 0: never",
        default: "1",
        help: "How often what was recorded so far is written to a file (NAME.gfr), for the case that the program is \
               killed or crashes; the first time after 2 s, and less often where it would take more than half a percent \
               of the time. An ordinary end takes the file away.",
        apply: |settings, value| {
            settings.checkpoint = if value == "0" { None } else { Some(seconds(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_CHECKPOINT_MAX",
        values: "bytes, or with K, M or G",
        default: "16M",
        help: "By how much that file may exceed twice what is in it before it is written anew.",
        apply: |settings, value| bytes(value).map(|bytes| settings.checkpoint_max = bytes),
    },
    Setting {
        name: "GPUFLAME_COMMAND_LINE",
        values: SWITCH,
        default: "0",
        help: "1 has recordings say with which arguments the program was started. They say program, process, host, rank, start, \
               GPUs and versions in any case.",
        apply: |settings, value| switch(value).map(|on| settings.command_line = on),
    },
    Setting {
        name: "GPUFLAME_DISABLE",
        values: SWITCH,
        default: "0",
        help: "1 switches gpuflame off, whichever way it comes into a process.",
        apply: |settings, value| switch(value).map(|on| settings.disable = on),
    },
    Setting {
        name: TRACE_FILE,
        values: "path, or `stdout`",
        default: "",
        help: "Gets what the CUPTI tracer of eunomia's tutorial prints, besides GPUFLAME_FORMATS: so the tutorial's gpuperf.py runs \
               with gpuflame as its tracer. `stdout` takes what it has room for, and the rest is counted.",
        apply: |settings, value| {
            settings.trace_file = match value {
                "" => None,
                "stdout" => Some(TraceFile::Stdout),
                path => Some(TraceFile::Path(PathBuf::from(path))),
            };
            Ok(())
        },
    },
];

/// How files are called where nobody says so.
const OUTPUT: &str = "gpuflame-%e.%p";

/// The one variable that has another's name.
const TRACE_FILE: &str = "CUPTI_TRACE_OUTPUT_FILE";

/// A path prefix that names files, also where `text` is a folder: without a name they would be hidden ones (`.svg`).
pub fn prefix(text: &OsStr) -> OsString {
    let mut prefix = text.to_owned();
    if text.as_bytes().ends_with(b"/") {
        prefix.push(OUTPUT);
    }
    prefix
}

/// Reads the settings of this process. See [`parse`].
pub fn from_environment() -> (Settings, Vec<String>) {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let name =
            name.into_string().ok().filter(|name| name.starts_with("GPUFLAME_") || name == TRACE_FILE)?;
        Some((name, value.to_string_lossy().into_owned()))
    });
    let (mut settings, warnings) = parse(all);
    // Paths are bytes.
    if let Some(output) = std::env::var_os("GPUFLAME_OUTPUT").filter(|output| output.to_str().is_none()) {
        settings.output = prefix(&output);
    }
    (settings, warnings)
}

/// Settings from `(name, value)` pairs, and one warning for each pair that cannot be used.
pub fn parse(pairs: impl IntoIterator<Item = (String, String)>) -> (Settings, Vec<String>) {
    let mut settings = Settings::default();
    let mut warnings = Vec::new();
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort();
    for (name, value) in pairs {
        match SETTINGS.iter().find(|setting| setting.name == name) {
            Some(setting) => {
                if let Err(refused) = (setting.apply)(&mut settings, value.trim()) {
                    warnings.push(warning(setting, &value, &refused));
                }
            }
            None => warnings.push(unknown(&name)),
        }
    }
    (settings, warnings)
}

fn warning(setting: &Setting, value: &str, refused: &Refused) -> String {
    let (why, instead) = match refused {
        Refused::All(why) if setting.default.is_empty() => (why, "the default (unset)".to_owned()),
        Refused::All(why) => (why, format!("the default ({})", setting.default)),
        Refused::Some(why) => (why, "the rest of it".to_owned()),
    };
    format!("{}={value}: {why}; going on with {instead}", setting.name)
}

fn unknown(name: &str) -> String {
    format!("{name}: no such setting; did you mean {}?", nearest(name))
}

/// The setting whose name is most like this one.
pub fn nearest(name: &str) -> &'static str {
    let nearest = SETTINGS.iter().min_by_key(|setting| strsim::damerau_levenshtein(setting.name, name));
    nearest.map_or("", |setting| setting.name)
}

fn nvtx(value: &str) -> (Option<Nvtx>, Option<Refused>) {
    match switch(value) {
        Ok(true) => (Some(Nvtx::default()), None),
        Ok(false) => (Some(Nvtx::None), None),
        Err(_) => {
            let wanted = "0, 1, and domains with a - before each";
            let (domains, refused) = list(value, wanted, |text| text.strip_prefix('-').map(str::to_owned));
            ((!domains.is_empty()).then_some(Nvtx::Without(domains)), refused)
        }
    }
}

/// Files to write, in the order of [`Output::all`], each once.
fn formats(value: &str) -> (Vec<Output>, Option<Refused>) {
    let all = Output::all();
    let understand =
        |text: &str| all.iter().map(|one| one.word()).find(|word| word.eq_ignore_ascii_case(text));
    let (words, refused) = list(value, &known_formats(), understand);
    if words.is_empty() && refused.is_none() {
        return (Vec::new(), Some(Refused::All(format!("it names none of {}", known_formats()))));
    }
    (all.into_iter().filter(|output| words.contains(&output.word())).collect(), refused)
}

fn known_formats() -> String {
    let mut words: Vec<_> = Output::all().into_iter().map(Output::word).collect();
    words.dedup();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::views::{GPU, IDLE};

    fn parse_pairs(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        parse(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn nothing_set_gives_the_defaults_of_the_table() {
        let (settings, warnings) = parse_pairs(&[]);
        assert_eq!((settings, warnings), (Settings::default(), vec![]));
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            let (settings, warnings) = parse_pairs(&[(setting.name, setting.default)]);
            assert_eq!((settings, warnings), (Settings::default(), vec![]), "{}", setting.name);
        }
    }

    /// `GPUFLAME_MUTATIONS` says how many turns.
    #[test]
    fn whatever_settings_are_set_to_each_is_taken_or_said_in_one_warning() {
        const PIECES: [&str; 30] = [
            "",
            "0",
            "1",
            "-1",
            "99",
            "1e400",
            "nan",
            "18446744073709551616",
            ",",
            ";",
            ":",
            "-",
            "=",
            " ",
            "\n",
            "\0",
            "%",
            "%p",
            "%w%",
            "../",
            "/",
            "ns",
            "all",
            "K",
            "G",
            "\u{202e}",
            "é",
            "folded",
            "timer",
            "10..20",
        ];
        let turns = std::env::var("GPUFLAME_MUTATIONS").map_or(500, |text| text.parse().unwrap());
        for turn in 0..turns {
            let mut chance: u64 = turn + 1;
            let mut below = |limit: usize| {
                chance =
                    chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (chance >> 33) as usize % limit
            };
            let mut value = || -> String {
                let count = below(6);
                (0..count).map(|_| PIECES[below(PIECES.len())]).collect()
            };
            let pairs: Vec<_> = SETTINGS.iter().map(|setting| (setting.name.to_owned(), value())).collect();
            let (settings, warnings) = parse(pairs.clone());
            assert!(warnings.len() <= pairs.len(), "turn {turn}: {warnings:?}");
            let of = |name: &str| {
                warnings.iter().filter(|warning| warning.starts_with(&format!("{name}="))).count()
            };
            assert!(pairs.iter().all(|(name, _)| of(name) <= 1), "turn {turn}: {warnings:?}");
            let backwards = pairs.into_iter().rev();
            assert_eq!(parse(backwards), (settings, warnings), "turn {turn}");
        }
    }

    #[test]
    fn the_defaults_are_these() {
        let default = Settings::default();
        assert_eq!(default.output, "gpuflame-%e.%p");
        let [folded, svg] = ["folded", "svg"].map(|format| Output::Drawn(&GPU, format));
        let [idle_folded, idle_svg] = ["folded", "svg"].map(|format| Output::Drawn(&IDLE, format));
        let formats = [folded, svg, Output::Table, idle_folded, idle_svg];
        assert_eq!(default.formats, formats);
        assert_eq!((default.unit, default.graph), (Unit::Nanos, GraphStacks::Both));
        assert_eq!((default.enabled, default.nvtx), (true, Nvtx::Without(Vec::new())));
        assert!(!(default.quiet || default.internal_frames || default.whole_graphs || default.deps));
        assert!(
            !default.unified
                && default.root.is_empty()
                && default.verify == 0
                && default.cupti.is_none()
                && default.cpu_samples.is_none()
                && !default.off_cpu
        );
    }

    #[test]
    fn outputs_in_a_folder_have_the_default_name() {
        let output = |text| parse_pairs(&[("GPUFLAME_OUTPUT", text)]).0.output;
        let found = ["out/", "/", "out/x", "out", "."].map(output);
        assert_eq!(found, ["out/gpuflame-%e.%p", "/gpuflame-%e.%p", "out/x", "out", "."]);
    }

    #[test]
    fn every_setting_can_be_set() {
        let (settings, warnings) = parse_pairs(&[
            ("GPUFLAME_OUTPUT", "/tmp/x-%p"),
            ("GPUFLAME_FORMATS", "activities, idle, folded,folded"),
            ("GPUFLAME_UNIT", "count"),
            ("GPUFLAME_ENABLED", "0"),
            ("GPUFLAME_DELAY", "1.5"),
            ("GPUFLAME_DURATION", "2"),
            ("GPUFLAME_REPEAT", "3"),
            ("GPUFLAME_STEPS", "10..12"),
            ("GPUFLAME_STEP_RANGE", "step *"),
            ("GPUFLAME_MAX_LAUNCHES", "1000"),
            ("GPUFLAME_MAX_BYTES", "5M"),
            ("GPUFLAME_MAX_WINDOWS", "7"),
            ("GPUFLAME_FLAG", "/tmp/on"),
            ("GPUFLAME_SIGNAL", "SIGUSR2"),
            ("GPUFLAME_PROFILER_CALLS", "0"),
            ("GPUFLAME_QUIET", "1"),
            ("GPUFLAME_INTERNAL_FRAMES", "1"),
            ("GPUFLAME_PYTHON", "only"),
            ("GPUFLAME_GRAPH", "capture"),
            ("GPUFLAME_GRAPH_TRACE", "graph"),
            ("GPUFLAME_DEPS", "1"),
            ("GPUFLAME_UNIFIED", "1"),
            ("GPUFLAME_NVTX", "-NCCL, -CCCL"),
            ("GPUFLAME_ROOT", "stream, process,stream"),
            ("GPUFLAME_MAX_MEM", "64M"),
            ("GPUFLAME_REPORT", "/tmp/r"),
            ("GPUFLAME_CPU_SAMPLES", "99"),
            ("GPUFLAME_OFF_CPU", "1"),
            ("GPUFLAME_VERIFY", "100"),
            ("GPUFLAME_LAUNCH_MARKER", "1"),
            ("GPUFLAME_CUPTI", "/opt/libcupti.so.12"),
            ("GPUFLAME_EXIT_LIMIT", "0.25"),
            ("GPUFLAME_SIGNALS", "no"),
            ("GPUFLAME_CHECKPOINT", "0"),
            ("GPUFLAME_CHECKPOINT_MAX", "2M"),
            ("CUPTI_TRACE_OUTPUT_FILE", "/tmp/trace.txt"),
            ("GPUFLAME_DISABLE", "1"),
            ("GPUFLAME_COMMAND_LINE", "1"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let expected = Settings {
            output: "/tmp/x-%p".into(),
            formats: vec![
                Output::Drawn(&GPU, "folded"),
                Output::Drawn(&IDLE, "folded"),
                Output::Drawn(&IDLE, "svg"),
                Output::Activities,
                Output::Stacks,
            ],
            unit: Unit::Count,
            enabled: false,
            delay: Duration::from_millis(1500),
            duration: Some(Duration::from_secs(2)),
            repeat: 3,
            steps: Some(10..12),
            step_range: Some("step *".to_owned()),
            max_launches: Some(1000),
            max_bytes: Some(5 << 20),
            max_windows: 7,
            flag: Some(PathBuf::from("/tmp/on")),
            signal: Some(libc::SIGUSR2),
            profiler_calls: false,
            quiet: true,
            internal_frames: true,
            python: Python::Only,
            graph: GraphStacks::Capture,
            whole_graphs: true,
            deps: true,
            unified: true,
            nvtx: Nvtx::Without(vec!["NCCL".to_owned(), "CCCL".to_owned()]),
            root: vec![Root::Stream, Root::Process],
            max_mem: Some(64 << 20),
            cpu_samples: Some(99),
            cpu_timer: true,
            off_cpu: true,
            verify: 100,
            launch_marker: true,
            report: Some(PathBuf::from("/tmp/r")),
            cupti: Some(PathBuf::from("/opt/libcupti.so.12")),
            exit_limit: Duration::from_millis(250),
            signals: false,
            checkpoint: None,
            checkpoint_max: 2 << 20,
            trace_file: Some(TraceFile::Path(PathBuf::from("/tmp/trace.txt"))),
            disable: true,
            command_line: true,
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn a_malformed_value_is_named_and_the_default_stands() {
        let (settings, warnings) = parse_pairs(&[
            ("GPUFLAME_FORMATS", "png"),
            ("GPUFLAME_NVTX", "NCCL"),
            ("GPUFLAME_DURATION", "0"),
            ("GPUFLAME_MAX_LAUNCHES", "many"),
            ("GPUFLAME_SIGNAL", "KILL"),
            ("GPUFLAME_STEPS", "5..5"),
            ("GPUFLAME_QUIET", "2"),
            ("GPUFLAME_ROOT", "host"),
            ("GPUFLAME_UNIT", "hours"),
        ]);
        assert_eq!(settings, Settings::default());
        assert_eq!(
            warnings,
            [
                "GPUFLAME_DURATION=0: expected a number of seconds above 0, a year at most, not `0`; going on with the default (unset)",
                "GPUFLAME_FORMATS=png: `png` is none of folded, svg, csv, idle, wait, alloc, cpu, off-cpu, together, activities, chrome, cupti-text, gfr; \
                 going on with the default (folded,svg,csv,idle)",
                "GPUFLAME_MAX_LAUNCHES=many: expected a whole number, 1 or more, not `many`; going on with the default \
                 (unset)",
                "GPUFLAME_NVTX=NCCL: `NCCL` is none of 0, 1, and domains with a - before each; going on with the \
                 default (1)",
                "GPUFLAME_QUIET=2: expected 0 or 1, not `2`; going on with the default (0)",
                "GPUFLAME_ROOT=host: `host` is none of process, thread, device, stream; going on with the default \
                 (unset)",
                "GPUFLAME_SIGNAL=KILL: `KILL` is neither USR1 nor USR2; going on with the default (unset)",
                "GPUFLAME_STEPS=5..5: expected two numbers such as 10..12, the first the smaller, not `5..5`; going on \
                 with the default (unset)",
                "GPUFLAME_UNIT=hours: `hours` is none of ns, us, count; going on with the default (ns)",
            ]
        );
    }

    #[test]
    fn of_a_list_the_good_part_is_used_and_the_rest_is_named() {
        let (settings, warnings) = parse_pairs(&[
            ("GPUFLAME_FORMATS", "svg,png,gfr,pdf"),
            ("GPUFLAME_NVTX", "-NCCL,CCCL"),
            ("GPUFLAME_ROOT", "thread,host"),
        ]);
        let expected = Settings {
            formats: vec![Output::Drawn(&GPU, "svg"), Output::Recording],
            nvtx: Nvtx::Without(vec!["NCCL".to_owned()]),
            root: vec![Root::Thread],
            ..Settings::default()
        };
        assert_eq!(settings, expected);
        assert_eq!(
            warnings,
            [
                "GPUFLAME_FORMATS=svg,png,gfr,pdf: `png` and `pdf` are none of folded, svg, csv, idle, wait, alloc, \
                 cpu, off-cpu, together, activities, chrome, cupti-text, gfr; going on with the rest of it",
                "GPUFLAME_NVTX=-NCCL,CCCL: `CCCL` is none of 0, 1, and domains with a - before each; going on with \
                 the rest of it",
                "GPUFLAME_ROOT=thread,host: `host` is none of process, thread, device, stream; going on with the \
                 rest of it",
            ]
        );
    }

    #[test]
    fn a_switch_and_a_word_are_understood_in_any_spelling_and_case() {
        for (on, off) in [("1", "0"), ("true", "false"), ("YES", "No"), ("On", "OFF")] {
            let (settings, warnings) =
                parse_pairs(&[("GPUFLAME_QUIET", on), ("GPUFLAME_ENABLED", off), ("GPUFLAME_NVTX", off)]);
            assert_eq!(warnings, Vec::<String>::new(), "{on}, {off}");
            assert_eq!((settings.quiet, settings.enabled, settings.nvtx), (true, false, Nvtx::None));
        }
        let (settings, warnings) = parse_pairs(&[
            ("GPUFLAME_FORMATS", "SVG"),
            ("GPUFLAME_GRAPH", "Launch"),
            ("GPUFLAME_GRAPH_TRACE", "Graph"),
            ("GPUFLAME_ROOT", "Device"),
            ("GPUFLAME_UNIT", "US"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let expected = Settings {
            formats: vec![Output::Drawn(&GPU, "svg")],
            graph: GraphStacks::Launch,
            whole_graphs: true,
            root: vec![Root::Device],
            unit: Unit::Micros,
            ..Settings::default()
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_known_one() {
        let (_, warnings) = parse_pairs(&[("GPUFLAME_OUPUT", "x")]);
        assert_eq!(warnings, ["GPUFLAME_OUPUT: no such setting; did you mean GPUFLAME_OUTPUT?"]);
    }
}
