//! Defines the table of environment variables. Each variable has a name, a default, a help text and a parser.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::output::{Output, TraceFile};
use super::parsers::{
    InvalidValue, SWITCH_VALUES, parse_bytes, parse_list, parse_mode, parse_number, parse_range,
    parse_seconds, parse_seconds_or_zero, parse_signal, parse_switch, parse_word,
};
use super::user_settings::{Nvtx, Settings};
use gpuflame_model::options::{Backward, GraphStacks, PythonFrames, Root, Unit, Yield};

/// Maximum number of CPU samples per second. At a higher rate, most samples would show the code that takes the samples.
const MAX_SAMPLE_HZ: u64 = 10_000;

/// An environment variable that controls the recorder.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name of the variable, including the prefix `GPUFLAME_`.
    pub name: &'static str,
    /// Kind of the value (`path prefix`) or the possible values (`0, 1`), as in the table of `docs/settings.md`.
    pub values: &'static str,
    /// Value that applies if the variable is not set. [`Settings::default`] returns the default values of all
    /// variables.
    pub default: &'static str,
    /// Effect of the setting, in one sentence.
    pub help: &'static str,
    pub(super) apply: fn(&mut Settings, &str) -> Result<(), InvalidValue>,
}

impl Default for Settings {
    /// Returns the settings with the default values from [`SETTINGS`].
    fn default() -> Self {
        let mut settings = Self::empty();
        for setting in SETTINGS {
            let applied = (setting.apply)(&mut settings, setting.default);
            debug_assert_eq!(applied, Ok(()), "the default of {}", setting.name);
        }
        settings
    }
}

/// All settings of the library.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "GPUFLAME_OUTPUT",
        values: "path prefix",
        default: DEFAULT_OUTPUT,
        help: "Path prefix of the output files; each file adds its suffix. A prefix that ends in / is a \
               folder and gets the default name. %p process id, %h host, %e program (of Python: script or module), %t \
               start time, %n first free number, %r rank, %w window number (each window gets its own files), %q{NAME} environment \
               variable, %% percent sign.",
        apply: |settings, value| {
            if value.is_empty() {
                return Err(InvalidValue::All("the value is empty".to_owned()));
            }
            settings.output = prefix(value.as_ref());
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_FORMATS",
        values: "comma-separated: folded, svg, csv, idle, wait, alloc, cpu, off-cpu, together, activities, chrome, cupti-text, gfr, sums",
        default: "folded,svg,csv,idle,sums",
        help: "Files to write. At exit: folded stacks, flame graph (svg), table by kernel (csv); flame graphs and \
               folded stacks of GPU idle time, of the host's waits for a GPU, of memory allocated and freed, of CPU \
               time, of off-CPU time, and of GPU, CPU and waiting time together; the sums of the run (sums). While \
               the program runs: tables of all activities and, at exit, of their stacks; Chrome trace events, text \
               of the CUPTI tracer of eunomia's tutorial, recording of every call and activity (gfr). wait and \
               alloc add a callback to every call that they record.",
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
        help: "Unit of a stack's weight in folded stacks and flame graphs: nanoseconds, microseconds or a \
               count.",
        apply: |settings, value| parse_word(value).map(|unit| settings.unit = unit),
    },
    Setting {
        name: "GPUFLAME_ENABLED",
        values: SWITCH_VALUES,
        default: "1",
        help: "0: only the program opens windows, for example with gpuflame_start(). 1: a window is open \
               from CUDA's start, unless another setting determines when.",
        apply: |settings, value| parse_switch(value).map(|on| settings.enabled = on),
    },
    Setting {
        name: "GPUFLAME_DELAY",
        values: "seconds",
        default: "0",
        help: "Time before each window opens, from CUDA's start or from the end of the previous window \
               (GPUFLAME_REPEAT).",
        apply: |settings, value| parse_seconds_or_zero(value).map(|delay| settings.delay = delay),
    },
    Setting {
        name: "GPUFLAME_DURATION",
        values: "seconds",
        default: "",
        help: "Length of a window; unset: until the program ends.",
        apply: |settings, value| {
            settings.duration = if value.is_empty() { None } else { Some(parse_seconds(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_REPEAT",
        values: "number; 0: unlimited",
        default: "1",
        help: "Number of windows of length GPUFLAME_DURATION, each after GPUFLAME_DELAY.",
        apply: |settings, value| parse_number(value, 0).map(|repeat| settings.repeat = repeat),
    },
    Setting {
        name: "GPUFLAME_STEPS",
        values: "FROM..TO, such as 10..12",
        default: "",
        help: "Steps to record, counted from 1, without the last: 10..12 records steps 10 and 11. \
               gpuflame_step() or a range named by GPUFLAME_STEP_RANGE begins a step.",
        apply: |settings, value| {
            settings.steps = if value.is_empty() { None } else { Some(parse_range(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_STEP_RANGE",
        values: "name, or PREFIX*",
        default: "",
        help: "Name of the ranges that begin a step, on any thread, opened by NVTX or gpuflame_range_push().",
        apply: |settings, value| {
            settings.step_range = (!value.is_empty()).then(|| value.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_LAUNCHES",
        values: "number",
        default: "",
        help: "Close a window once this many launches were recorded in it; checked every 2 ms.",
        apply: |settings, value| {
            settings.max_launches = if value.is_empty() { None } else { Some(parse_number(value, 1)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_BYTES",
        values: "bytes, optionally with K, M or G",
        default: "",
        help: "Close a window once this many bytes were written to files since it opened: to the recording, \
               the table of activities and the checkpoint.",
        apply: |settings, value| {
            settings.max_bytes = if value.is_empty() { None } else { Some(parse_bytes(value)? as u64) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_FILE",
        values: "bytes, optionally with K, M or G",
        default: "",
        help: "Maximum size of the recording of every call and activity (gfr). Later rows are left out of it and \
               counted (rows_over_limit); the other files are complete.",
        apply: |settings, value| {
            settings.max_file = if value.is_empty() { None } else { Some(parse_bytes(value)? as u64) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_MAX_WINDOWS",
        values: "number",
        default: "1000",
        help: "Maximum number of windows with their own files, if GPUFLAME_OUTPUT contains %w. Later windows \
               are merged into the last set of files.",
        apply: |settings, value| parse_number(value, 1).map(|windows| settings.max_windows = windows),
    },
    Setting {
        name: "GPUFLAME_FILE_MODE",
        values: "600 to 666",
        default: "600",
        help: "Permissions of the output files, as for chmod: 640 also lets the group read them. The \
               process's umask applies. A replaced file keeps its permissions.",
        apply: |settings, value| parse_mode(value).map(|mode| settings.file_mode = mode),
    },
    Setting {
        name: "GPUFLAME_FLAG",
        values: "path of a file",
        default: "",
        help: "Record while this file exists; checked once per second. If the file is created again, delays, \
               steps and repetitions start from zero.",
        apply: |settings, value| {
            settings.flag = (!value.is_empty()).then(|| PathBuf::from(value));
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_SIGNAL",
        values: "USR1, USR2",
        default: "",
        help: "Signal that opens a window; the next one closes it. It interrupts calls in which the program \
               sleeps. If the program has a handler for the signal, gpuflame does not use it.",
        apply: |settings, value| {
            settings.signal = if value.is_empty() { None } else { Some(parse_signal(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_PROFILER_CALLS",
        values: SWITCH_VALUES,
        default: "1",
        help: "Whether cudaProfilerStart() and cudaProfilerStop() open and close windows.",
        apply: |settings, value| parse_switch(value).map(|on| settings.profiler_calls = on),
    },
    Setting {
        name: "GPUFLAME_QUIET",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: do not print the summary and warnings to stderr; a failure is still printed, in one line.",
        apply: |settings, value| parse_switch(value).map(|on| settings.quiet = on),
    },
    Setting {
        name: "GPUFLAME_VERBOSE",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: print the ledger to stderr before the summary: all counts, in lines for scripts. If the \
               ledger is not printed, it is in the recording (gfr).",
        apply: |settings, value| parse_switch(value).map(|on| settings.verbose = on),
    },
    Setting {
        name: "GPUFLAME_INTERNAL_FRAMES",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: show all frames, including those inside libcuda, libcudart and libcupti, below main, in \
               the Python interpreter, in PyTorch's dispatcher, autograd engine and operator internals, and \
               in the code that calls modules and decorated functions. Kernels in folded stacks have full \
               names.",
        apply: |settings, value| parse_switch(value).map(|on| settings.internal_frames = on),
    },
    Setting {
        name: "GPUFLAME_PYTHON",
        values: PythonFrames::WORDS,
        default: PythonFrames::Auto.word(),
        help: "Python functions (CPython 3.9 to 3.15) in stacks. auto: with the first line of each function; \
               lines: with the line being executed; only: without the native frames around them; off: none.",
        apply: |settings, value| parse_word(value).map(|python| settings.python = python),
    },
    Setting {
        name: "GPUFLAME_BACKWARD",
        values: Backward::WORDS,
        default: Backward::Autograd.word(),
        help: "Stacks of PyTorch's backward work. autograd: those of autograd's thread; forward: those of \
               the functions that called the forward operators, if the program runs under \
               torch.autograd.profiler.emit_nvtx().",
        apply: |settings, value| parse_word(value).map(|backward| settings.backward = backward),
    },
    Setting {
        name: "GPUFLAME_GRAPH",
        values: GraphStacks::WORDS,
        default: GraphStacks::Both.word(),
        help: "Stacks of a graph's kernels and copies. launch: where the graph was launched; capture: where \
               the node was captured or added; both: the launch, then the capture.",
        apply: |settings, value| parse_word(value).map(|graph| settings.graph = graph),
    },
    Setting {
        name: "GPUFLAME_GRAPH_TRACE",
        values: "node, graph",
        default: "node",
        help: "node: record each node of a graph; graph: record each graph launch as one activity, \
               `[GPU_Graph]`, which is cheaper, but loses its kernels, their times and where they were \
               captured.",
        apply: |settings, value| {
            settings.whole_graphs = match value.to_ascii_lowercase().as_str() {
                "node" => false,
                "graph" => true,
                _ => return Err(InvalidValue::All(format!("`{value}` is neither node nor graph"))),
            };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_DEPS",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: add dependencies to the recording (gfr): events recorded on streams, streams that wait for \
               events, and the host's waits, each as the call and as CUPTI's record; edges of graphs; and \
               which launches are programmatic. Adds a callback to each such call.",
        apply: |settings, value| parse_switch(value).map(|on| settings.deps = on),
    },
    Setting {
        name: "GPUFLAME_UNIFIED",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: record unified memory (cudaMallocManaged): bytes moved by direction, and page faults. The \
               table, the activities, the recording and the ledger show them, flame graphs do not.",
        apply: |settings, value| parse_switch(value).map(|on| settings.unified = on),
    },
    Setting {
        name: "GPUFLAME_NVTX",
        values: "0, 1, or domains to exclude, such as -NCCL,-CCCL",
        default: "1",
        help: "Whether open NVTX ranges become frames. NVTX_INJECTION64_PATH must name this library.",
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
        help: "Frames at the root of every stack in folded stacks and flame graphs, in this order.",
        apply: |settings, value| {
            let (chosen, refused) = parse_list(value, Root::WORDS, |text| text.parse().ok());
            settings.root = chosen;
            refused.map_or(Ok(()), Err)
        },
    },
    Setting {
        name: "GPUFLAME_MAX_MEM",
        values: "bytes, optionally with K, M or G; at least 24M",
        default: "",
        help: "Maximum memory of gpuflame; unset: 256M, or a tenth of the control group's memory limit if \
               that is less. Above the maximum, stacks with the least GPU time are merged into `[other \
               stacks]`, then kernels into `[other kernels]`, then thread names are dropped; sums stay \
               exact. Launches and GPU activities that arrive faster than they can be read are dropped and \
               counted.",
        apply: |settings, value| {
            settings.max_mem = if value.is_empty() { None } else { Some(parse_bytes(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_REPORT",
        values: "folder",
        default: "",
        help: "Folder for a short JSON report about the process, its launches and its files, written after \
               the files. `gpuflame run` reads it.",
        apply: |settings, value| {
            settings.report = (!value.is_empty()).then(|| PathBuf::from(value));
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_CPU_SAMPLES",
        values: "Hz, or Hz,perf",
        default: "0",
        help: "Samples per second of CPU time of each thread that launches GPU work, such as 99, at most \
               10000; 0: off. The samples are in NAME.cpu.svg and NAME.cpu.folded, and show which function \
               kept a GPU waiting. If the kernel denies access, a timer signals the thread instead, unless \
               `perf` is given.",
        apply: |settings, value| {
            let (value, by_timer) = match value.split_once(',') {
                Some((hertz, word)) if word.trim() == "perf" => (hertz.trim(), false),
                Some(_) => return Err(InvalidValue::All(format!("expected Hz or Hz,perf, not `{value}`"))),
                None => (value, true),
            };
            let hertz = parse_number(value, 0)?;
            if hertz > MAX_SAMPLE_HZ {
                return Err(InvalidValue::All(format!("expected at most {MAX_SAMPLE_HZ} Hz, not `{value}`")));
            }
            settings.cpu_samples = (hertz > 0).then_some(hertz as u32);
            settings.cpu_timer = by_timer && hertz > 0;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_OFF_CPU",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: record where threads that launch GPU work sleep or wait, and for how long. The waits are \
               in NAME.off-cpu.svg and NAME.off-cpu.folded, and show which function kept a GPU waiting. \
               Needs kernel.perf_event_paranoid of 1 or less, or CAP_PERFMON.",
        apply: |settings, value| parse_switch(value).map(|on| settings.off_cpu = on),
    },
    Setting {
        name: "GPUFLAME_VERIFY",
        values: "number",
        default: "0",
        help: "N: capture every Nth stack again, frame by frame and with libgcc, and count the differences \
               in the ledger; about 20 us per stack. 0: off.",
        apply: |settings, value| {
            let expected =
                |_| InvalidValue::All(format!("expected a whole number, 0 or more, not `{value}`"));
            settings.verify = value.parse().map_err(expected)?;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_LAUNCH_MARKER",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: each launch calls `gpuflame_launch_marker(correlation id)`, which does nothing, so that an \
               external probe can read the id. `gpuflame-bpf` sets this for the commands that it runs.",
        apply: |settings, value| parse_switch(value).map(|on| settings.launch_marker = on),
    },
    Setting {
        name: "GPUFLAME_CUPTI",
        values: "path",
        default: "",
        help: "Path of the libcupti to load; unset: search the process and the machine.",
        apply: |settings, value| {
            settings.cupti = (!value.is_empty()).then(|| PathBuf::from(value));
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_YIELD",
        values: Yield::WORDS,
        default: Yield::Records.word(),
        help: "What another profiler in the process gets. records: the activity records, once it takes them, \
               until it is done; 1: also the CUPTI subscription, once it asks for it, until it is done; 0: \
               the activity records, once it takes them, until a window opens.",
        apply: |settings, value| parse_word(value).map(|left| settings.yields = left),
    },
    Setting {
        name: "GPUFLAME_EXIT_LIMIT",
        values: "seconds",
        default: "5",
        help: "Maximum time for which the program's exit waits while the writing of the outputs makes no \
               progress. While it makes progress, the exit waits.",
        apply: |settings, value| parse_seconds(value).map(|limit| settings.exit_limit = limit),
    },
    Setting {
        name: "GPUFLAME_SIGNALS",
        values: SWITCH_VALUES,
        default: "1",
        help: "Whether to write the outputs when SIGINT, SIGTERM or SIGHUP ends the program, unless it has \
               set the signal's action itself. The program then dies of the signal. A second signal, at \
               least one second later, ends it at once.",
        apply: |settings, value| parse_switch(value).map(|on| settings.signals = on),
    },
    Setting {
        name: "GPUFLAME_CHECKPOINT",
        values: "seconds; 0: never",
        default: "1",
        help: "Interval at which the results so far are saved to NAME.gfr, in case the program is killed or \
               crashes. The first save is 0.1 s after the first launch; later ones are less frequent if they \
               would take more than 0.5 % of the time. A normal exit replaces the file by the sums of the run, or \
               removes it if GPUFLAME_FORMATS has no sums. With gfr in GPUFLAME_FORMATS, the recording takes the \
               place of this file.",
        apply: |settings, value| {
            settings.checkpoint = if value == "0" { None } else { Some(parse_seconds(value)?) };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_CHECKPOINT_MAX",
        values: "bytes, optionally with K, M or G",
        default: "16M",
        help: "Number of bytes by which the checkpoint may exceed twice the size of its contents before it \
               is rewritten.",
        apply: |settings, value| parse_bytes(value).map(|bytes| settings.checkpoint_max = bytes),
    },
    Setting {
        name: "GPUFLAME_COMMAND_LINE",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: store the program's arguments in recordings. Program, process, host, rank, start time, \
               GPUs and versions are always stored.",
        apply: |settings, value| parse_switch(value).map(|on| settings.command_line = on),
    },
    Setting {
        name: "GPUFLAME_DISABLE",
        values: SWITCH_VALUES,
        default: "0",
        help: "1: disable gpuflame, however it is loaded into the process.",
        apply: |settings, value| parse_switch(value).map(|on| settings.disable = on),
    },
    Setting {
        name: TRACE_FILE,
        values: "path, or `stdout`",
        default: "",
        help: "File for text in the format of the CUPTI tracer of eunomia's tutorial, in addition to \
               GPUFLAME_FORMATS, so that the tutorial's gpuperf.py works with gpuflame as its tracer. \
               `stdout`: records that do not fit are dropped and counted.",
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

/// Default path prefix of the output files.
const DEFAULT_OUTPUT: &str = "%e.%p";

/// Name of the only variable that does not begin with `GPUFLAME_`.
pub(super) const TRACE_FILE: &str = "CUPTI_TRACE_OUTPUT_FILE";

type PathSetter = fn(&mut Settings, &OsStr);

/// Settings whose value is a path. Each setting is paired with a function that stores a path that is not UTF-8.
/// Non-UTF-8 paths are valid, because a path is a sequence of bytes.
pub(super) const PATH_SETTINGS: &[(&str, PathSetter)] = &[
    ("GPUFLAME_OUTPUT", |settings, path| settings.output = prefix(path)),
    ("GPUFLAME_FLAG", |settings, path| settings.flag = Some(PathBuf::from(path))),
    ("GPUFLAME_REPORT", |settings, path| settings.report = Some(PathBuf::from(path))),
    ("GPUFLAME_CUPTI", |settings, path| settings.cupti = Some(PathBuf::from(path))),
    (TRACE_FILE, |settings, path| settings.trace_file = Some(TraceFile::Path(PathBuf::from(path)))),
];

/// Returns the path prefix that `text` denotes. If `text` is a folder (ends in `/`), the default file name is added.
/// Without the default file name, the names of output files would begin with a dot (`.svg`), so these files would be
/// hidden.
pub fn prefix(text: &OsStr) -> OsString {
    let mut prefix = text.to_owned();
    if text.as_bytes().ends_with(b"/") {
        prefix.push(DEFAULT_OUTPUT);
    }
    prefix
}

fn nvtx(value: &str) -> (Option<Nvtx>, Option<InvalidValue>) {
    match parse_switch(value) {
        Ok(true) => (Some(Nvtx::default()), None),
        Ok(false) => (Some(Nvtx::None), None),
        Err(_) => {
            let wanted = "0, 1, -DOMAIN";
            let (domains, refused) =
                parse_list(value, wanted, |text| text.strip_prefix('-').map(str::to_owned));
            ((!domains.is_empty()).then_some(Nvtx::Without(domains)), refused)
        }
    }
}

/// Parses the list of output files. Returns the outputs in the order of [`Output::all`], without duplicates. A
/// recording of all rows replaces a recording of the sums, because the recording of all rows contains the sums and has
/// the same file name.
fn formats(value: &str) -> (Vec<Output>, Option<InvalidValue>) {
    let all = Output::all();
    let understand =
        |text: &str| all.iter().map(|one| one.word()).find(|word| word.eq_ignore_ascii_case(text));
    let (words, refused) = parse_list(value, &known_formats(), understand);
    if words.is_empty() && refused.is_none() {
        return (
            Vec::new(),
            Some(InvalidValue::All(format!("expected at least one of {}", known_formats()))),
        );
    }
    let mut chosen: Vec<_> = all.into_iter().filter(|output| words.contains(&output.word())).collect();
    if chosen.contains(&Output::Recording) {
        chosen.retain(|output| *output != Output::Sums);
    }
    (chosen, refused)
}

fn known_formats() -> String {
    let mut words: Vec<_> = Output::all().into_iter().map(Output::word).collect();
    words.dedup();
    words.join(", ")
}
