//! The settings: one table of environment variables, and its pure parser.
//!
//! Help texts and the README's table come from [`SETTINGS`]. A value that cannot be understood is
//! never fatal: the default stands and a warning says so, since the application must run on.

use std::path::PathBuf;

use crate::profile::{VIEWS, View};

/// What is written unless somebody says otherwise.
const FORMATS: &str = "folded,svg,csv,idle";

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, with prefix.
    pub name: &'static str,
    /// What a user writes for its value, in the README's table.
    pub values: &'static str,
    /// The value it has when unset.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), String>,
}

/// A file to write at exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A view, drawn in the format of this word.
    Drawn(&'static View, &'static str),
    /// A row per kernel, copy or fill name and device.
    Table,
    /// A row per activity.
    Activities,
    /// The recording: every row, to be explained later.
    Recording,
}

impl Output {
    /// All there are, in the order in which they are written.
    pub fn all() -> Vec<Self> {
        let drawn = |view: &'static View| view.at_exit.iter().map(move |format| Self::Drawn(view, format));
        let (first, others) = VIEWS.split_first().expect("there is a view");
        let mut all: Vec<_> = drawn(first).chain([Self::Table]).collect();
        all.extend(others.iter().copied().flat_map(drawn));
        all.extend([Self::Activities, Self::Recording]);
        all
    }

    /// The word in `GPUFLAME_FORMATS`: the first view has one for each format, each other view one for all of
    /// its formats.
    pub fn word(self) -> &'static str {
        match self {
            Self::Drawn(view, format) if view == VIEWS[0] => format,
            Self::Drawn(view, _) => view.word,
            Self::Table => "csv",
            Self::Activities => "activities",
            Self::Recording => "gfr",
        }
    }

    /// The suffix that names its file.
    pub fn suffix(self) -> String {
        match self {
            Self::Drawn(view, format) if view == VIEWS[0] => format!(".{format}"),
            Self::Drawn(view, format) => format!(".{}.{format}", view.word),
            Self::Activities => ".activities.csv".to_owned(),
            Self::Table | Self::Recording => format!(".{}", self.word()),
        }
    }
}

/// The weight of a stack in the folded file and the flame graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of GPU time.
    Ns,
    /// Microseconds of GPU time.
    Us,
    /// How many activities.
    Count,
}

/// Which stacks of a graph node to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphStacks {
    /// The launch of the graph, and what the making of the node does not share with it.
    Both,
    /// Where the node was made.
    Capture,
    /// Where the graph was launched.
    Launch,
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

/// A frame at the root of every stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The process.
    Process,
    /// The thread that launched.
    Thread,
    /// The GPU.
    Device,
    /// The stream of that GPU.
    Stream,
}

impl Root {
    /// The word in `GPUFLAME_ROOT`.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Process, "process"),
        (Self::Thread, "thread"),
        (Self::Device, "device"),
        (Self::Stream, "stream"),
    ];
}

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path prefix of the outputs, macros not yet expanded. Default: `gpuflame-%e.%p`.
    pub output: String,
    /// What to write. Default: folded, svg, csv, and both of idle time.
    pub formats: Vec<Output>,
    /// Weights of stacks. Default: ns.
    pub unit: Unit,
    /// Whether a window is open from the start. Default: true.
    pub enabled: bool,
    /// Whether the ledger and warnings are kept off stderr. Default: false.
    pub quiet: bool,
    /// Whether frames inside the vendor's libraries are shown. Default: false.
    pub internal_frames: bool,
    /// Which stacks of a graph node to show. Default: both.
    pub graph: GraphStacks,
    /// Whether a graph launch is one activity, and its nodes none. Default: false.
    pub whole_graphs: bool,
    /// Whether the recording says what waited for what. Default: false.
    pub deps: bool,
    /// Whether traffic and faults of unified memory are recorded. Default: false.
    pub unified: bool,
    /// Which ranges of NVTX are frames. Default: all.
    pub nvtx: Nvtx,
    /// What stands at the root of every stack. Default: nothing.
    pub root: Vec<Root>,
    /// One stack in so many is taken again by other ways and compared. Default: 0, none.
    pub verify: u32,
    /// The `libcupti` to use. Default: none, it is looked for.
    pub cupti: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            output: "gpuflame-%e.%p".to_owned(),
            formats: formats(FORMATS).unwrap_or_default(),
            unit: Unit::Ns,
            enabled: true,
            quiet: false,
            internal_frames: false,
            graph: GraphStacks::Both,
            whole_graphs: false,
            deps: false,
            unified: false,
            nvtx: Nvtx::default(),
            root: Vec::new(),
            verify: 0,
            cupti: None,
        }
    }
}

/// Every setting there is.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "GPUFLAME_OUTPUT",
        values: "path prefix",
        default: "gpuflame-%e.%p",
        help: "Where the outputs go; a suffix is appended. %p process id, %h host, %e program, %t start \
               time, %n first free number, %r rank, %q{NAME} environment variable, %% a percent sign.",
        apply: |settings, value| {
            if value.is_empty() {
                return Err("it is empty".to_owned());
            }
            value.clone_into(&mut settings.output);
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_FORMATS",
        values: "comma-separated: folded, svg, csv, idle, wait, alloc, activities, gfr",
        default: FORMATS,
        help: "What to write at exit: folded stacks, flame graph, table by kernel, flame graph (and folded \
               stacks) of GPU idle time, the same of the time in which the host waited for a GPU, and of bytes \
               allocated and freed (both cost a callback a call), table of every activity, recording.",
        apply: |settings, value| {
            settings.formats = formats(value)?;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_UNIT",
        values: "ns, us, count",
        default: "ns",
        help: "What a stack weighs in the folded file and the flame graph.",
        apply: |settings, value| {
            settings.unit = match value {
                "ns" => Unit::Ns,
                "us" => Unit::Us,
                "count" => Unit::Count,
                _ => return Err("it is none of ns, us, count".to_owned()),
            };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_ENABLED",
        values: "0, 1",
        default: "1",
        help: "0 starts with the window closed; gpuflame_start() opens it.",
        apply: |settings, value| flag(value).map(|on| settings.enabled = on),
    },
    Setting {
        name: "GPUFLAME_QUIET",
        values: "0, 1",
        default: "0",
        help: "1 keeps the ledger and warnings off stderr; a failure is still told, in one line.",
        apply: |settings, value| flag(value).map(|on| settings.quiet = on),
    },
    Setting {
        name: "GPUFLAME_INTERNAL_FRAMES",
        values: "0, 1",
        default: "0",
        help: "1 shows the frames inside libcuda, libcudart and libcupti, and those below main.",
        apply: |settings, value| flag(value).map(|on| settings.internal_frames = on),
    },
    Setting {
        name: "GPUFLAME_GRAPH",
        values: "both, capture, launch",
        default: "both",
        help: "Which stacks a graph's kernels and copies hang under: the graph launch and then where the \
               node was captured or added, or one of the two.",
        apply: |settings, value| {
            settings.graph = match value {
                "both" => GraphStacks::Both,
                "capture" => GraphStacks::Capture,
                "launch" => GraphStacks::Launch,
                _ => return Err("it is none of both, capture, launch".to_owned()),
            };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_GRAPH_TRACE",
        values: "node, graph",
        default: "node",
        help: "graph records each graph launch as one piece, `[GPU_Graph]`: cheaper, but which kernels ran \
               in it, how long, and where they were captured is lost.",
        apply: |settings, value| {
            settings.whole_graphs = match value {
                "node" => false,
                "graph" => true,
                _ => return Err("it is neither node nor graph".to_owned()),
            };
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_DEPS",
        values: "0, 1",
        default: "0",
        help: "1 has the recording (gfr) say what waited for what: events put on streams, streams that wait for \
               them, and the host's waits, each by call and as CUPTI numbers them. A callback for each such call.",
        apply: |settings, value| flag(value).map(|on| settings.deps = on),
    },
    Setting {
        name: "GPUFLAME_UNIFIED",
        values: "0, 1",
        default: "0",
        help: "1 counts what moves in memory that the host and GPUs share (cudaMallocManaged), in bytes by \
               direction, and faults: in the table, the activities, the recording and the ledger, not in flame graphs.",
        apply: |settings, value| flag(value).map(|on| settings.unified = on),
    },
    Setting {
        name: "GPUFLAME_NVTX",
        values: "0, 1, or domains to leave out: -NCCL,-CCCL",
        default: "1",
        help: "Whether open NVTX ranges are frames, where NVTX_INJECTION64_PATH names this library.",
        apply: |settings, value| {
            settings.nvtx = nvtx(value)?;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_ROOT",
        values: "comma-separated: process, thread, device, stream",
        default: "",
        help: "Frames at the root of every stack of the folded files and the flame graphs, in this order.",
        apply: |settings, value| {
            settings.root = roots(value)?;
            Ok(())
        },
    },
    Setting {
        name: "GPUFLAME_VERIFY",
        values: "number",
        default: "0",
        help: "N takes every Nth stack again, frame by frame and by libgcc, and the ledger says how many \
               differed; some 20 us each. 0: none.",
        apply: |settings, value| {
            settings.verify = value.parse().map_err(|_| "it is no number from 0 on".to_owned())?;
            Ok(())
        },
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
];

/// Reads the settings of this process. See [`parse`].
pub fn from_environment() -> (Settings, Vec<String>) {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("GPUFLAME_"))?;
        Some((name, value.to_string_lossy().into_owned()))
    });
    parse(all)
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
                if let Err(why) = (setting.apply)(&mut settings, value.trim()) {
                    warnings.push(format!(
                        "{name}={value}: {why}; going on with the default ({})",
                        if setting.default.is_empty() { "unset" } else { setting.default }
                    ));
                }
            }
            None => warnings.push(unknown(&name)),
        }
    }
    (settings, warnings)
}

fn unknown(name: &str) -> String {
    let nearest = SETTINGS.iter().min_by_key(|setting| strsim::damerau_levenshtein(setting.name, name));
    match nearest {
        Some(setting) => format!("{name}: no such setting; did you mean {}?", setting.name),
        None => format!("{name}: no such setting"),
    }
}

fn flag(value: &str) -> Result<bool, String> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("it is neither 0 nor 1".to_owned()),
    }
}

fn nvtx(value: &str) -> Result<Nvtx, String> {
    match value {
        "0" => Ok(Nvtx::None),
        "1" => Ok(Nvtx::default()),
        _ => {
            let domains = value.split(',').map(|word| word.trim().strip_prefix('-').map(str::to_owned));
            let domains: Option<Vec<_>> = domains.collect();
            domains
                .map(Nvtx::Without)
                .ok_or("it is neither 0 nor 1, nor domains with a - before each".to_owned())
        }
    }
}

fn roots(value: &str) -> Result<Vec<Root>, String> {
    let mut chosen = Vec::new();
    for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match Root::ALL.iter().find(|(_, name)| *name == word) {
            Some((root, _)) if chosen.contains(root) => {}
            Some((root, _)) => chosen.push(*root),
            None => return Err(format!("`{word}` is none of process, thread, device, stream")),
        }
    }
    Ok(chosen)
}

fn formats(value: &str) -> Result<Vec<Output>, String> {
    let words: Vec<_> = value.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let all = Output::all();
    if let Some(word) = words.iter().find(|word| all.iter().all(|output| output.word() != **word)) {
        return Err(format!("`{word}` is none of {}", known_formats()));
    }
    if words.is_empty() {
        return Err(format!("it names none of {}", known_formats()));
    }
    Ok(all.into_iter().filter(|output| words.contains(&output.word())).collect())
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

    #[test]
    fn every_setting_can_be_set() {
        let (settings, warnings) = parse_pairs(&[
            ("GPUFLAME_OUTPUT", "/tmp/x-%p"),
            ("GPUFLAME_FORMATS", "activities, idle, folded,folded"),
            ("GPUFLAME_UNIT", "count"),
            ("GPUFLAME_ENABLED", "0"),
            ("GPUFLAME_QUIET", "1"),
            ("GPUFLAME_INTERNAL_FRAMES", "1"),
            ("GPUFLAME_GRAPH", "capture"),
            ("GPUFLAME_GRAPH_TRACE", "graph"),
            ("GPUFLAME_DEPS", "1"),
            ("GPUFLAME_UNIFIED", "1"),
            ("GPUFLAME_NVTX", "-NCCL, -CCCL"),
            ("GPUFLAME_ROOT", "stream, process,stream"),
            ("GPUFLAME_VERIFY", "100"),
            ("GPUFLAME_CUPTI", "/opt/libcupti.so.12"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let expected = Settings {
            output: "/tmp/x-%p".to_owned(),
            formats: vec![
                Output::Drawn(&GPU, "folded"),
                Output::Drawn(&IDLE, "folded"),
                Output::Drawn(&IDLE, "svg"),
                Output::Activities,
            ],
            unit: Unit::Count,
            enabled: false,
            quiet: true,
            internal_frames: true,
            graph: GraphStacks::Capture,
            whole_graphs: true,
            deps: true,
            unified: true,
            nvtx: Nvtx::Without(vec!["NCCL".to_owned(), "CCCL".to_owned()]),
            root: vec![Root::Stream, Root::Process],
            verify: 100,
            cupti: Some(PathBuf::from("/opt/libcupti.so.12")),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn a_malformed_value_is_named_and_the_default_stands() {
        let (settings, warnings) =
            parse_pairs(&[("GPUFLAME_UNIT", "hours"), ("GPUFLAME_FORMATS", "svg,png")]);
        assert_eq!(settings, Settings::default());
        assert_eq!(
            warnings,
            [
                "GPUFLAME_FORMATS=svg,png: `png` is none of folded, svg, csv, idle, wait, alloc, activities, gfr; \
                 going on with the default (folded,svg,csv,idle)",
                "GPUFLAME_UNIT=hours: it is none of ns, us, count; going on with the default (ns)",
            ]
        );
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_known_one() {
        let (_, warnings) = parse_pairs(&[("GPUFLAME_OUPUT", "x")]);
        assert_eq!(warnings, ["GPUFLAME_OUPUT: no such setting; did you mean GPUFLAME_OUTPUT?"]);
    }
}
