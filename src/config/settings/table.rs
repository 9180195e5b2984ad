//! The table of environment variables: name, default, help text and parser of each variable.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::asked::{Nvtx, Settings};
use super::values::{
    Refused, SWITCH, bytes, list, mode, number, numbers, seconds, seconds_or_none, signal, switch, word,
};
use super::wanted::{Output, TraceFile};
use gpuflame_model::options::{Backward, GraphStacks, Python, Root, Unit, Yield};

/// Maximum number of samples per second. Above this rate, the samples would mostly show the sampling itself.
const MOST_HERTZ: u64 = 10_000;

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name of the variable, with prefix.
    pub name: &'static str,
    /// Placeholder or choices for the value, as shown in the table of `docs/settings.md`.
    pub values: &'static str,
    /// Value if the variable is not set. [`Settings::default`] is built from these values.
    pub default: &'static str,
    /// Effect of the setting, in one sentence.
    pub help: &'static str,
    pub(super) apply: fn(&mut Settings, &str) -> Result<(), Refused>,
}

impl Default for Settings {
    /// Returns the defaults of the table.
    fn default() -> Self {
        let mut settings = Self::unset();
        for setting in SETTINGS {
            let applied = (setting.apply)(&mut settings, setting.default);
            debug_assert_eq!(applied, Ok(()), "the default of {}", setting.name);
        }
        settings
    }
}

/// All settings.
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
        name: "GPUFLAME_FILE_MODE",
        values: "600 to 666",
        default: "600",
        help: "Who may read the files, as chmod has it: 640 lets the group too, less what the process's umask forbids. A file that \
               is replaced keeps its own.",
        apply: |settings, value| mode(value).map(|mode| settings.file_mode = mode),
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
               interpreter, of PyTorch's dispatcher and autograd's engine, of how its operators compute, and of what calls \
               modules and decorated functions; \
               kernels in folded stacks have whole names.",
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
        name: "GPUFLAME_BACKWARD",
        values: Backward::WORDS,
        default: Backward::Autograd.word(),
        help: "Where the work of PyTorch's backward pass hangs: under autograd's thread, or, of a program under \
               torch.autograd.profiler.emit_nvtx(), under the functions that called the operators of the forward pass.",
        apply: |settings, value| word(value).map(|backward| settings.backward = backward),
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
        help: "Maximum memory that gpuflame takes; unset 256M, or a tenth of the memory limit of the control group where \
               that is less. Beyond it, stacks with the least GPU time are added up under `[other stacks]`, then kernels \
               under `[other kernels]`, then threads lose their names; all this keeps sums exact. GPU activities that \
               arrive faster than they can be read may take four times as much until they are read.",
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
        name: "GPUFLAME_YIELD",
        values: Yield::WORDS,
        default: Yield::Records.word(),
        help: "What another profiler in the process is left: records, when it takes them, until it is done; 1 the subscription to \
               CUPTI as well, when it asks for that, for as long; 0: records, when it takes them, until a window opens.",
        apply: |settings, value| word(value).map(|left| settings.yields = left),
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
               killed or crashes; the first time after 2 s (0.1 s where it was forked), and less often where it would take more than half a percent \
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

/// Default name of the output files.
const OUTPUT: &str = "gpuflame-%e.%p";

/// The only variable without our prefix.
pub(super) const TRACE_FILE: &str = "CUPTI_TRACE_OUTPUT_FILE";

type SetPath = fn(&mut Settings, &OsStr);

/// Settings that are paths, and their setters for non-UTF-8 values, because paths are bytes.
pub(super) const PATHS: &[(&str, SetPath)] = &[
    ("GPUFLAME_OUTPUT", |settings, path| settings.output = prefix(path)),
    ("GPUFLAME_FLAG", |settings, path| settings.flag = Some(PathBuf::from(path))),
    ("GPUFLAME_REPORT", |settings, path| settings.report = Some(PathBuf::from(path))),
    ("GPUFLAME_CUPTI", |settings, path| settings.cupti = Some(PathBuf::from(path))),
    (TRACE_FILE, |settings, path| settings.trace_file = Some(TraceFile::Path(PathBuf::from(path)))),
];

/// Returns a path prefix that names files even if `text` is a folder. If the prefix were only a folder, the files
/// would be hidden (`.svg`).
pub fn prefix(text: &OsStr) -> OsString {
    let mut prefix = text.to_owned();
    if text.as_bytes().ends_with(b"/") {
        prefix.push(OUTPUT);
    }
    prefix
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

/// Parses the files to write. Returns the outputs in the order of [`Output::all`], without duplicates.
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
