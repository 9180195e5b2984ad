//! All `GPUSIM_*` environment variables: a table of their meanings, and a struct with their values. A test checks that
//! the README's table contains the rows of this table.

use crate::faults::Faults;
use crate::version::CuptiVersion;
use std::path::PathBuf;
use std::sync::OnceLock;

/// One row of the README's table.
pub struct Variable {
    /// Name of the variable, such as `GPUSIM_NDEV`.
    pub name: &'static str,
    /// Default value of the variable.
    pub default: &'static str,
    /// Effect of the variable.
    pub meaning: &'static str,
}

const fn var(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default, meaning }
}

/// The table of variables, in the order of the README's table.
pub const VARIABLES: &[Variable] = &[
    var("GPUSIM_NDEV", "1", "Number of devices. 0: `cuInit` answers 100 after the injection."),
    var(
        "GPUSIM_DRIVER",
        "13000",
        "What `cuDriverGetVersion` answers. Below 13000 `libcudart.so.13` fails with 35 before `cuInit`, and CUPTI 13 does not initialise.",
    ),
    var(
        "GPUSIM_CUPTI_VERSION",
        "13.0",
        "`11.8`, `12.0`, `12.9`, `13.0`, `13.2` or `13.4`: record sizes, exported symbols, error style, soname, ids.",
    ),
    var(
        "GPUSIM_CLOCK",
        "virtual",
        "`virtual`: work is complete when submitted, times are computed, no thread waits. `real`: completion happens at its time, synchronising calls wait. `stepped`: see [the stepped clock](#the-stepped-clock).",
    ),
    var(
        "GPUSIM_COSTS",
        "",
        "With the stepped clock, how long each call takes on its thread: `cudaLaunchKernel=3us,*=500ns`; other calls take 1 us.",
    ),
    var(
        "GPUSIM_PACE",
        "0",
        "1: with the stepped clock, each call also waits until that much real time has passed, so that a client's own clock agrees.",
    ),
    var(
        "GPUSIM_CHANGE",
        "",
        "With the stepped clock, one piece of work takes longer or shorter: `17:-1000` shortens operation 17 of the schedule by 1,000 ns.",
    ),
    var(
        "GPUSIM_LEAVE_OUT",
        "",
        "With the stepped clock, what the program does not do: names of kernels, as in GPUSIM_KERNELS, and `waits` of the host. The calls take no time; left out nodes of graphs take none either.",
    ),
    var("GPUSIM_KINETO", "", "With the stepped clock: file for the run as a Kineto trace. `%p` is the pid."),
    var(
        "GPUSIM_KINETO_ROWS",
        "",
        "Further rows of the Kineto trace, with commas: `streams` (kinds of streams), `host_functions` (of streams), `threads` (locks and barriers), `events` (records of events).",
    ),
    var(
        "GPUSIM_KERNELS",
        "",
        "Durations: `gemm=120us,relu=8us,tiny=301ns`; the key is the unqualified demangled name. Else a name ending in `_d<ns>`, else 10 us; with `by_name` in the list, 1 to 20 us by the name.",
    ),
    var(
        "GPUSIM_LAUNCH_NS",
        "0",
        "How many ns a launch, copy or fill takes on the processor from ENTER on, at least. A driver that is traced takes 4,000; the simulation alone some 1,000.",
    ),
    var("GPUSIM_FLUSH_NS", "0", "Minimum duration of cuptiActivityFlushAll, in ns."),
    var("GPUSIM_SKEW_NS", "0", "Device n's clock is off by n times this many ns (may be negative)."),
    var(
        "GPUSIM_CORR",
        "shared",
        "`distinct`: the nested driver call gets a correlation id of its own, and the record carries that one.",
    ),
    var("GPUSIM_CORR_START", "1", "First correlation id; `4294967000` to see it wrap."),
    var("GPUSIM_NESTED", "1", "0: no driver callback inside a runtime call."),
    var(
        "GPUSIM_STRICT",
        "1",
        "0: a CUDA call from a callback is let through. 1: it aborts, except the synchronising calls.",
    ),
    var(
        "GPUSIM_FRAMES",
        "nofp",
        "`fp`: libcupti's frames around a callback keep frame pointers. `nofp`: they destroy rbp, only .eh_frame helps.",
    ),
    var("GPUSIM_EARLY", "0", "1: a record is delivered before its API call's EXIT."),
    var(
        "GPUSIM_SHUFFLE",
        "",
        "A seed: records within a buffer and buffers among each other arrive in random order.",
    ),
    var("GPUSIM_MAX_BUFFERS", "", "At most this many buffers are out at a time; what finds none is dropped."),
    var("GPUSIM_EMPTY_BUFFERS", "0", "1: every flush also hands back a buffer with validSize 0."),
    var("GPUSIM_ODD_SIZE", "0", "1: `bufferCompleted` gets a size 8 bytes below the one requested."),
    var(
        "GPUSIM_WATCHDOG_MS",
        "20000",
        "A thread that waits this long for CUPTI's lock, or for a buffer callback to return, aborts.",
    ),
    var(
        "GPUSIM_OTHER_SUBSCRIBER",
        "0",
        "1: another tool holds the only subscription, `cuptiSubscribe` answers 39.",
    ),
    var(
        "GPUSIM_FORK",
        "304",
        "After `cuInit`, in a forked child: `304`: `cuInit` answers 304. `inject`: `InitializeInjection` is called again, then 100.",
    ),
    var(
        "GPUSIM_FAULTS",
        "",
        "List of `enable:KIND=RESULT`, `launch_fail`, `fatal:after=N`, `flush_hangs:after=N`, `read_hangs:after=N`, `zero_ts`, `reversed`, `early_start`, `unknown_kind`, `unmatched_corr`, `dup_corr`, `device_graph`, `unknown_node`, `name_null`, `name_bad_utf8`, `name_4k`, `next_year`, `endless`, `epoch`, `null_data`, `buffer_twice`; most take `:every=N` (50).",
    ),
    var(
        "GPUSIM_LOG",
        "",
        "`missing`: a function that a program asks for or calls, and that is not simulated, is named once on stderr.",
    ),
    var(
        "GPUSIM_MATH",
        "0",
        "1: devices have memory, which is zero at first, and copies and fills move bytes when they are submitted; those of graphs, of three dimensions and of arrays do not. Kernels compute nothing; `../pytorch` computes products of 32-bit floats.",
    ),
    var(
        "GPUSIM_TRUTH",
        "",
        "`PATH`: one JSON line per piece of GPU work. `summary:PATH`: counts and sums per call site. `started:PATH`: its line when it starts, at once. `deps:PATH`: a line per event put on a stream, per wait, and per move of unified memory. `schedule:PATH`: with the stepped clock, a line per piece of work and per wait, with its reasons. Several with commas. `%p` is the pid.",
    ),
];

/// Values of all variables.
#[derive(Debug)]
#[allow(missing_docs)] // each field is a row of VARIABLES
pub struct Settings {
    pub devices: u32,
    pub driver: u32,
    pub cupti: CuptiVersion,
    pub real_clock: bool,
    pub stepped: bool,
    pub costs: Vec<(String, u64)>,
    pub pace: bool,
    pub change: Option<(u64, i64)>,
    pub leave_out: Vec<String>,
    pub kineto: Option<PathBuf>,
    pub kineto_rows: Vec<String>,
    pub kernels: Vec<(String, u64)>,
    pub durations_by_name: bool,
    pub launch_ns: u64,
    pub flush_ns: u64,
    pub skew_ns: i64,
    pub distinct_corr: bool,
    pub corr_start: u32,
    pub nested: bool,
    pub strict: bool,
    pub frame_pointers: bool,
    pub early: bool,
    pub shuffle: Option<u64>,
    pub max_buffers: Option<usize>,
    pub empty_buffers: bool,
    pub odd_size: bool,
    pub watchdog_ms: u64,
    pub other_subscriber: bool,
    pub inject_in_child: bool,
    pub faults: Faults,
    pub log_missing: bool,
    pub math: bool,
    pub truth: Option<PathBuf>,
    pub truth_summary: Option<PathBuf>,
    pub truth_deps: Option<PathBuf>,
    pub truth_started: Option<PathBuf>,
    pub truth_schedule: Option<PathBuf>,
}

/// Returns the settings of this process, which are read once from the environment. Aborts the process if a variable has
/// an invalid value.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        Settings::parse(|name| std::env::var(name).ok()).unwrap_or_else(|e| crate::abort!("{e}"))
    })
}

impl Settings {
    /// Reads all variables through `lookup`. An unset or empty variable means the default.
    pub fn parse(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let env = Env { lookup: &lookup };
        let kernels = env.text("GPUSIM_KERNELS").unwrap_or_default();
        let pid = std::process::id().to_string();
        let clock = env.text("GPUSIM_CLOCK");
        if clock.as_deref().is_some_and(|clock| !["virtual", "real", "stepped"].contains(&clock)) {
            return Err(format!("GPUSIM_CLOCK={}: want virtual, real or stepped", clock.unwrap_or_default()));
        }
        let mut settings = Settings {
            devices: env.number("GPUSIM_NDEV", 1)?,
            driver: env.number("GPUSIM_DRIVER", 13000)?,
            cupti: match env.text("GPUSIM_CUPTI_VERSION") {
                None => CuptiVersion::V13_0,
                Some(t) => {
                    CuptiVersion::parse(&t).ok_or(format!("GPUSIM_CUPTI_VERSION={t}: no such version"))?
                }
            },
            real_clock: clock.as_deref() == Some("real"),
            stepped: clock.as_deref() == Some("stepped"),
            costs: parse_durations("GPUSIM_COSTS", &env.text("GPUSIM_COSTS").unwrap_or_default())?,
            pace: env.choice("GPUSIM_PACE", "0", "1")?,
            change: parse_change(&env.text("GPUSIM_CHANGE").unwrap_or_default())?,
            leave_out: words(&env.text("GPUSIM_LEAVE_OUT").unwrap_or_default()).map(str::to_owned).collect(),
            kineto: env.text("GPUSIM_KINETO").map(|path| path.replace("%p", &pid).into()),
            kineto_rows: parse_rows(&env.text("GPUSIM_KINETO_ROWS").unwrap_or_default())?,
            kernels: parse_durations("GPUSIM_KERNELS", &kernels)?,
            durations_by_name: words(&kernels).any(|word| word == BY_NAME),
            launch_ns: env.number("GPUSIM_LAUNCH_NS", 0)?,
            flush_ns: env.number("GPUSIM_FLUSH_NS", 0)?,
            skew_ns: env.number("GPUSIM_SKEW_NS", 0)?,
            distinct_corr: env.choice("GPUSIM_CORR", "shared", "distinct")?,
            corr_start: env.number("GPUSIM_CORR_START", 1)?,
            nested: !env.choice("GPUSIM_NESTED", "1", "0")?,
            strict: !env.choice("GPUSIM_STRICT", "1", "0")?,
            frame_pointers: env.choice("GPUSIM_FRAMES", "nofp", "fp")?,
            early: env.choice("GPUSIM_EARLY", "0", "1")?,
            shuffle: env.optional("GPUSIM_SHUFFLE")?,
            max_buffers: env.optional("GPUSIM_MAX_BUFFERS")?,
            empty_buffers: env.choice("GPUSIM_EMPTY_BUFFERS", "0", "1")?,
            odd_size: env.choice("GPUSIM_ODD_SIZE", "0", "1")?,
            watchdog_ms: env.number("GPUSIM_WATCHDOG_MS", 20_000)?,
            other_subscriber: env.choice("GPUSIM_OTHER_SUBSCRIBER", "0", "1")?,
            inject_in_child: env.choice("GPUSIM_FORK", "304", "inject")?,
            faults: Faults::parse(&env.text("GPUSIM_FAULTS").unwrap_or_default())?,
            math: env.choice("GPUSIM_MATH", "0", "1")?,
            log_missing: env.choice("GPUSIM_LOG", "", "missing")?,
            truth: None,
            truth_summary: None,
            truth_deps: None,
            truth_started: None,
            truth_schedule: None,
        };
        let truth = env.text("GPUSIM_TRUTH").unwrap_or_default().replace("%p", &pid);
        for path in truth.split(',').filter(|p| !p.is_empty()) {
            match path.split_once(':') {
                Some(("summary", path)) => settings.truth_summary = Some(path.into()),
                Some(("deps", path)) => settings.truth_deps = Some(path.into()),
                Some(("started", path)) => settings.truth_started = Some(path.into()),
                Some(("schedule", path)) => settings.truth_schedule = Some(path.into()),
                _ => settings.truth = Some(path.into()),
            }
        }
        Ok(settings)
    }
}

struct Env<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Env<'_> {
    fn text(&self, name: &str) -> Option<String> {
        debug_assert!(VARIABLES.iter().any(|v| v.name == name), "{name} is no row of the table");
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn optional<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let parse = |text: String| text.parse().map_err(|_| format!("{name}={text}: want a number"));
        self.text(name).map(parse).transpose()
    }

    fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    /// Returns true if the variable's value is `other`, false if the value is the default.
    fn choice(&self, name: &str, default: &str, other: &str) -> Result<bool, String> {
        match self.text(name) {
            None => Ok(false),
            Some(t) if t == default => Ok(false),
            Some(t) if t == other => Ok(true),
            Some(t) => Err(format!("{name}={t}: want {default} or {other}")),
        }
    }
}

/// Word in GPUSIM_KERNELS that gives a kernel without a specified duration a duration that depends on its name.
const BY_NAME: &str = "by_name";

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Parses a change such as `17:-1000`: the id of an operation, and the ns to add to its duration.
fn parse_change(text: &str) -> Result<Option<(u64, i64)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let parts = text.split_once(':').and_then(|(op, by)| Some((op.parse().ok()?, by.parse().ok()?)));
    parts.map(Some).ok_or(format!("GPUSIM_CHANGE={text}: want NUMBER:NS, such as 17:-1000"))
}

/// Kinds of rows that a Kineto trace can contain in addition to the rows that torch.profiler writes.
const KINETO_ROWS: [&str; 4] = ["streams", "host_functions", "threads", "events"];

fn parse_rows(list: &str) -> Result<Vec<String>, String> {
    match words(list).find(|word| !KINETO_ROWS.contains(word)) {
        None => Ok(words(list).map(str::to_owned).collect()),
        Some(word) => Err(format!("GPUSIM_KINETO_ROWS: `{word}`: want {}", KINETO_ROWS.join(", "))),
    }
}

/// Parses a list of durations such as `gemm=120us,tiny=301ns`.
fn parse_durations(variable: &str, text: &str) -> Result<Vec<(String, u64)>, String> {
    let wrong = |item: &str| format!("{variable}: `{item}`: want NAME=NUMBER and ns, us or ms");
    let parse = |item: &str| {
        let (name, duration) = item.split_once('=')?;
        let digits = duration.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match &duration[digits.len()..] {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            _ => return None,
        };
        Some((name.to_owned(), digits.parse::<u64>().ok()?.checked_mul(unit)?))
    };
    words(text).filter(|item| *item != BY_NAME).map(|item| parse(item).ok_or_else(|| wrong(item))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::parse(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn durations_are_parsed_in_three_units() {
        let s = with(&[("GPUSIM_KERNELS", "gemm=120us, relu=8ms,tiny=301ns")]).unwrap();
        let expected = [("gemm", 120_000), ("relu", 8_000_000), ("tiny", 301)];
        assert_eq!(s.kernels, expected.map(|(n, d)| (n.to_owned(), d)));
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_the_variable() {
        assert!(with(&[("GPUSIM_CLOCK", "fast")]).unwrap_err().contains("GPUSIM_CLOCK"));
        assert!(with(&[("GPUSIM_NDEV", "two")]).unwrap_err().contains("GPUSIM_NDEV"));
        assert!(with(&[("GPUSIM_KERNELS", "gemm=12")]).unwrap_err().contains("gemm=12"));
    }

    #[test]
    fn the_truth_variable_accepts_records_and_a_summary() {
        let s = with(&[("GPUSIM_TRUTH", "a.%p.jsonl,summary:b.json")]).unwrap();
        assert_eq!(s.truth, Some(format!("a.{}.jsonl", std::process::id()).into()));
        assert_eq!(s.truth_summary, Some("b.json".into()));
    }

    #[test]
    fn the_watchdogs_default_equals_the_tables() {
        let row = VARIABLES.iter().find(|v| v.name == "GPUSIM_WATCHDOG_MS").unwrap();
        assert_eq!(with(&[]).unwrap().watchdog_ms.to_string(), row.default);
    }

    #[test]
    fn the_readme_holds_every_row_of_the_table() {
        let readme = include_str!("../../README.md");
        for Variable { name, default, meaning } in VARIABLES {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            let row = format!("| `{name}` | {default} | {meaning} |");
            assert!(readme.contains(&row), "README.md lacks the row\n{row}");
        }
    }
}
