//! Reads the settings from environment variables. All functions except [`from_environment`] are pure.
//!
//! An invalid value never stops the application. If a value is invalid, a warning is printed and the default applies.
//! If only some items of a list are invalid, a warning is printed and the valid items apply.

use super::parsers::InvalidValue;
use super::table::{PATH_SETTINGS, SETTINGS, Setting, TRACE_FILE};
use super::user_settings::Settings;
use gpuflame_model::sorting;

/// Returns the settings from the environment of this process, and the warnings that [`parse`] returns.
pub fn from_environment() -> (Settings, Vec<String>) {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let name =
            name.into_string().ok().filter(|name| name.starts_with("GPUFLAME_") || name == TRACE_FILE)?;
        Some((name, value.to_string_lossy().into_owned()))
    });
    let (mut settings, warnings) = parse(all);
    for (name, set) in PATH_SETTINGS {
        if let Some(path) = std::env::var_os(name).filter(|path| path.to_str().is_none()) {
            set(&mut settings, &path);
        }
    }
    (settings, warnings)
}

/// Returns the settings from pairs of a name and a value, and one warning for each pair that is invalid.
pub fn parse(pairs: impl IntoIterator<Item = (String, String)>) -> (Settings, Vec<String>) {
    let mut settings = Settings::default();
    let mut warnings = Vec::new();
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    sorting::sort(&mut pairs);
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

fn warning(setting: &Setting, value: &str, refused: &InvalidValue) -> String {
    let (why, instead) = match refused {
        InvalidValue::All(why) if setting.default.is_empty() => (why, "the default (unset)".to_owned()),
        InvalidValue::All(why) => (why, format!("the default ({})", setting.default)),
        InvalidValue::Some(why) => (why, "the other items".to_owned()),
    };
    format!("{}={value}: {why}; using {instead}", setting.name)
}

fn unknown(name: &str) -> String {
    format!("{name}: no such setting; did you mean {}?", nearest(name))
}

/// Returns the name of the setting that is most similar to `name`.
pub fn nearest(name: &str) -> &'static str {
    let nearest = SETTINGS.iter().min_by_key(|setting| strsim::damerau_levenshtein(setting.name, name));
    nearest.map_or("", |setting| setting.name)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::output::{Output, TraceFile};
    use super::super::user_settings::Nvtx;
    use super::*;
    use gpuflame_model::options::{Backward, GraphStacks, PythonFrames, Root, Unit, Yield};
    use gpuflame_model::profile::views::{GPU, IDLE};

    fn parse_pairs(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        parse(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn unset_settings_equal_the_documented_defaults() {
        let (settings, warnings) = parse_pairs(&[]);
        assert_eq!((settings, warnings), (Settings::default(), vec![]));
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            let (settings, warnings) = parse_pairs(&[(setting.name, setting.default)]);
            assert_eq!((settings, warnings), (Settings::default(), vec![]), "{}", setting.name);
        }
    }

    /// The environment variable `GPUFLAME_MUTATIONS` sets the number of iterations of this test.
    #[test]
    fn random_setting_values_cause_at_most_one_warning_per_setting() {
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
    fn the_defaults_are_unchanged() {
        let default = Settings::default();
        assert_eq!(default.output, "%e.%p");
        let [folded, svg] = ["folded", "svg"].map(|format| Output::View(&GPU, format));
        let [idle_folded, idle_svg] = ["folded", "svg"].map(|format| Output::View(&IDLE, format));
        let formats = [folded, svg, Output::Table, idle_folded, idle_svg, Output::Sums];
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
    fn an_output_folder_gets_the_default_file_name() {
        let output = |text| parse_pairs(&[("GPUFLAME_OUTPUT", text)]).0.output;
        let found = ["out/", "/", "out/x", "out", "."].map(output);
        assert_eq!(found, ["out/%e.%p", "/%e.%p", "out/x", "out", "."]);
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
            ("GPUFLAME_MAX_FILE", "1G"),
            ("GPUFLAME_MAX_WINDOWS", "7"),
            ("GPUFLAME_FILE_MODE", "640"),
            ("GPUFLAME_FLAG", "/tmp/on"),
            ("GPUFLAME_SIGNAL", "SIGUSR2"),
            ("GPUFLAME_PROFILER_CALLS", "0"),
            ("GPUFLAME_QUIET", "1"),
            ("GPUFLAME_VERBOSE", "1"),
            ("GPUFLAME_INTERNAL_FRAMES", "1"),
            ("GPUFLAME_PYTHON", "only"),
            ("GPUFLAME_BACKWARD", "forward"),
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
            ("GPUFLAME_YIELD", "1"),
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
                Output::View(&GPU, "folded"),
                Output::View(&IDLE, "folded"),
                Output::View(&IDLE, "svg"),
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
            max_file: Some(1 << 30),
            max_windows: 7,
            file_mode: 0o640,
            flag: Some(PathBuf::from("/tmp/on")),
            signal: Some(libc::SIGUSR2),
            profiler_calls: false,
            quiet: true,
            verbose: true,
            internal_frames: true,
            python: PythonFrames::Only,
            backward: Backward::Forward,
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
            yields: Yield::Subscription,
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
    fn a_malformed_value_is_reported_and_the_default_applies() {
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
                "GPUFLAME_DURATION=0: expected a number of seconds above 0, a year at most, not `0`; using the default (unset)",
                "GPUFLAME_FORMATS=png: `png` is not one of folded, svg, csv, idle, wait, alloc, cpu, \
                 off-cpu, together, activities, chrome, cupti-text, gfr, sums; using the default \
                 (folded,svg,csv,idle,sums)",
                "GPUFLAME_MAX_LAUNCHES=many: expected a whole number, 1 or more, not `many`; using the \
                 default (unset)",
                "GPUFLAME_NVTX=NCCL: `NCCL` is not one of 0, 1, -DOMAIN; using the default (1)",
                "GPUFLAME_QUIET=2: expected 0 or 1, not `2`; using the default (0)",
                "GPUFLAME_ROOT=host: `host` is not one of process, thread, device, stream; using the default \
                 (unset)",
                "GPUFLAME_SIGNAL=KILL: `KILL` is neither USR1 nor USR2; using the default (unset)",
                "GPUFLAME_STEPS=5..5: expected FROM..TO with FROM below TO, such as 10..12, not `5..5`; \
                 using the default (unset)",
                "GPUFLAME_UNIT=hours: `hours` is not one of ns, us, count; using the default (ns)",
            ]
        );
    }

    #[test]
    fn a_recording_of_every_row_takes_the_place_of_the_sums() {
        let formats = |value| parse_pairs(&[("GPUFLAME_FORMATS", value)]).0.formats;
        assert_eq!(formats("sums,gfr"), [Output::Recording]);
        assert_eq!(formats("sums"), [Output::Sums]);
        assert_eq!(Output::Sums.suffix(), ".gfr");
    }

    #[test]
    fn valid_list_items_are_used_and_invalid_items_are_reported() {
        let (settings, warnings) = parse_pairs(&[
            ("GPUFLAME_FORMATS", "svg,png,gfr,pdf"),
            ("GPUFLAME_NVTX", "-NCCL,CCCL"),
            ("GPUFLAME_ROOT", "thread,host"),
        ]);
        let expected = Settings {
            formats: vec![Output::View(&GPU, "svg"), Output::Recording],
            nvtx: Nvtx::Without(vec!["NCCL".to_owned()]),
            root: vec![Root::Thread],
            ..Settings::default()
        };
        assert_eq!(settings, expected);
        assert_eq!(
            warnings,
            [
                "GPUFLAME_FORMATS=svg,png,gfr,pdf: `png` and `pdf` are not among folded, svg, csv, idle, \
                 wait, alloc, cpu, off-cpu, together, activities, chrome, cupti-text, gfr, sums; using the \
                 other items",
                "GPUFLAME_NVTX=-NCCL,CCCL: `CCCL` is not one of 0, 1, -DOMAIN; using the other items",
                "GPUFLAME_ROOT=thread,host: `host` is not one of process, thread, device, stream; using the \
                 other items",
            ]
        );
    }

    #[test]
    fn switches_and_keywords_are_accepted_in_any_spelling_and_case() {
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
            formats: vec![Output::View(&GPU, "svg")],
            graph: GraphStacks::Launch,
            whole_graphs: true,
            root: vec![Root::Device],
            unit: Unit::Micros,
            ..Settings::default()
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn an_unknown_setting_suggests_the_nearest_known_one() {
        let (_, warnings) = parse_pairs(&[("GPUFLAME_OUPUT", "x")]);
        assert_eq!(warnings, ["GPUFLAME_OUPUT: no such setting; did you mean GPUFLAME_OUTPUT?"]);
    }
}
