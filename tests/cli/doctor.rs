//! Tests `gpuflame doctor`. Together, these tests make doctor print every kind of line that it can print. The tests use
//! the simulated CUDA libraries, so they need no GPU.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{cuda, gpuflame, scratch, stage};

/// Output of doctor: its exit code, and four texts for each check: subject, result, finding and remedy.
struct Said {
    code: i32,
    lines: Vec<(String, String, String, String)>,
}

/// Runs doctor in an empty folder, with the simulated CUDA libraries and the given environment variables.
fn doctor(variables: &[(&str, &str)]) -> Said {
    doctor_in(&scratch("doctor"), cuda(), &gpuflame(), variables)
}

fn doctor_in(folder: &Path, libraries: &Path, library: &Path, variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["GPUFLAME_", "GPUSIM_", "CUDA_", "NVTX_", "VIRTUAL_ENV"].iter().any(|own| name.starts_with(own)) {
            command.env_remove(name);
        }
    }
    command.args(["doctor", "--format", "json", "--library"]).arg(library).current_dir(folder);
    command.env("LD_LIBRARY_PATH", libraries).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&output.stderr)));
    let text = |row: &Value, column: &str| row[column].as_str().unwrap_or_default().to_owned();
    let lines = answer["doctor"].as_array().unwrap().iter();
    let lines =
        lines.map(|row| (text(row, "what"), text(row, "result"), text(row, "found"), text(row, "remedy")));
    Said { code: output.status.code().unwrap(), lines: lines.collect() }
}

impl Said {
    /// Asserts that exactly one line of doctor's output is about `what` and has this result, and that the line's
    /// finding or remedy contains `words`. A line whose result is not ok must have a remedy.
    fn has(&self, what: &str, result: &str, words: &[&str]) -> &Self {
        let of_it = |line: &&(String, String, String, String)| line.0 == what && line.1 == result;
        let said: Vec<_> =
            self.lines.iter().filter(of_it).map(|line| format!("{} -> {}", line.2, line.3)).collect();
        let one = said.iter().any(|text| words.iter().all(|word| text.contains(word)));
        assert!(one, "no {result} of {what} with {words:?} in {:#?}", self.lines);
        for (what, result, found, remedy) in &self.lines {
            assert_eq!(result == "ok", remedy.is_empty(), "{what}: {found} -> {remedy}");
        }
        let fails = self.lines.iter().any(|line| line.1 == "fail");
        assert_eq!(self.code, i32::from(fails), "{:#?}", self.lines);
        self
    }

    fn results(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut results = BTreeMap::<_, Vec<_>>::new();
        for (what, result, ..) in &self.lines {
            results.entry(what.as_str()).or_default().push(result.as_str());
        }
        results
    }
}

#[test]
fn doctor_reports_ok_on_every_line_on_a_working_machine() {
    let said = doctor(&[("GPUSIM_CUPTI_VERSION", "13.4"), ("GPUSIM_NDEV", "2")]);
    said.has("driver", "ok", &["CUDA 13.0"])
        .has("GPU", "ok", &["2: "])
        .has("CUPTI", "ok", &["13.4 at ", "libcupti.so.13", "by the dynamic linker"])
        .has("other tools", "ok", &["no other tool"])
        .has("permission", "ok", &["may be recorded"])
        .has("library", "ok", &["libgpuflame.so", concat!("version ", env!("CARGO_PKG_VERSION"))])
        .has("glibc", "ok", &["."])
        .has("injection", "ok", &["not set"])
        .has("settings", "ok", &["from the start, and write folded, svg, csv, idle, sums -> "])
        .has("outputs", "ok", &["files would be written to "])
        .has("checkpoints", "ok", &["no process"])
        .has("disk", "ok", &["GB free in "])
        .has("offline", "ok", &["need no GPU"]);
    // The results of the checks "samples" and "python" depend on the machine.
    let of_machine = |what: &&&str| ["samples", "python"].contains(*what);
    let results = said.results();
    assert_eq!(results.keys().filter(|what| !of_machine(what)).count(), 13, "{results:?}");
    assert!(results.contains_key("samples"), "{results:?}");
}

#[test]
fn doctor_without_a_driver_lists_the_offline_features() {
    let said = doctor_in(&scratch("doctor"), Path::new("/nowhere"), &gpuflame(), &[]);
    said.has("driver", "fail", &["no NVIDIA driver", "--gpus all", "reading recordings needs no driver"])
        .has("library", "ok", &["libgpuflame.so"])
        .has("offline", "ok", &["flamegraph"]);
    assert!(!said.results().contains_key("CUPTI"), "{:?}", said.results());
}

#[test]
fn doctor_reports_cupti_obstacles_with_their_remedies() {
    let no_cupti = stage("no-cupti", &[]);
    for (libraries, variables, what, result, words) in [
        (cuda(), vec![("GPUSIM_NDEV", "0")], "GPU", "fail", vec!["100", "CUDA_VISIBLE_DEVICES"]),
        (no_cupti.as_path(), vec![], "CUPTI", "fail", vec!["libcupti.so.13", "CUDA toolkit"]),
        (
            cuda(),
            vec![("GPUFLAME_CUPTI", "/nowhere/libcupti.so.12")],
            "CUPTI",
            "fail",
            vec!["/nowhere/libcupti.so.12"],
        ),
        (
            cuda(),
            vec![("GPUSIM_OTHER_SUBSCRIBER", "1")],
            "other tools",
            "fail",
            vec!["another tool", "LD_PRELOAD"],
        ),
        (
            cuda(),
            vec![("GPUSIM_FAULTS", "enable:10=35,enable:1=35,enable:22=35,enable:2=35")],
            "permission",
            "fail",
            vec!["cuptiActivityEnable", "ERR_NVGPUCTRPERM"],
        ),
        (cuda(), vec![("GPUSIM_FAULTS", "enable:2=35")], "permission", "warn", vec!["fills"]),
        (cuda(), vec![("GPUSIM_CUPTI_VERSION", "13.2")], "CUPTI", "warn", vec!["slows down with every call"]),
        (cuda(), vec![("GPUSIM_CUPTI_VERSION", "12.9")], "CUPTI", "warn", vec!["wrong correlation ids"]),
    ] {
        doctor_in(&scratch("doctor"), libraries, &gpuflame(), &variables).has(what, result, &words);
    }
}

#[test]
fn doctor_reports_a_missing_broken_or_mismatched_library() {
    let folder = scratch("libraries");
    let of_source = |name: &str, source: &str| -> PathBuf {
        let library = folder.join(name);
        let (file, flags) = (folder.join("source.c"), ["-shared", "-fPIC", "-o"]);
        fs::write(&file, source).unwrap();
        assert!(Command::new("gcc").args(flags).arg(&library).arg(&file).status().unwrap().success());
        library
    };
    let injected = "int InitializeInjection(void) { return 1; }\n";
    let version = format!("{injected}const char *gpuflame_version(void) {{ return \"9.9.9\"; }}\n");
    let other = of_source("other.so", &version);
    let stranger = of_source("stranger.so", "int stranger(void) { return 1; }\n");
    let tool = of_source("tool.so", injected);
    let incomplete =
        of_source("incomplete.so", &format!("{injected}extern int nowhere;\nint *it = &nowhere;\n"));
    let broken = folder.join("broken.so");
    let bytes = fs::read(&stranger).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let crashes = of_source(
        "crashes.so",
        &format!(
            "{injected}#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) {{ abort(); }}\n"
        ),
    );
    for (library, what, result, words) in [
        (other, "library", "warn", ["9.9.9", "cargo build --release"]),
        (tool, "library", "fail", ["no gpuflame_version", "build it"]),
        (stranger, "library", "fail", ["another library, or a program", "needs this library"]),
        (broken, "library", "fail", ["truncated or damaged", "needs this library"]),
        (incomplete, "library", "fail", ["cannot be loaded", "glibc"]),
        (folder.join("missing.so"), "library", "fail", ["missing.so", "needs this library"]),
        (crashes, "driver", "fail", ["without an answer", "GPUFLAME_CUPTI"]),
    ] {
        doctor_in(&folder, cuda(), &library, &[]).has(what, result, &words);
    }
}

#[test]
fn doctor_checks_the_environment_variables_and_changes_nothing() {
    let folder = scratch("environment");
    let other = folder.join("libother.so");
    symlink(gpuflame(), &other).unwrap();
    let (ours, other) = (gpuflame().display().to_string(), other.display().to_string());
    for (name, value, what, result, words) in [
        ("CUDA_INJECTION64_PATH", ours.as_str(), "injection", "ok", "libgpuflame.so"),
        ("CUDA_INJECTION64_PATH", &other, "injection", "warn", "which replaces it"),
        ("CUDA_INJECTION64_PATH", "/nowhere/libgpuflame.so", "injection", "fail", "no such file"),
        ("GPUFLAME_FORMAT", "svg", "settings", "warn", "GPUFLAME_FORMATS"),
        ("GPUFLAME_EXIT_LIMIT", "soon", "settings", "warn", "soon"),
        ("GPUFLAME_DISABLE", "1", "settings", "fail", "GPUFLAME_DISABLE=1 switches gpuflame off"),
        ("GPUFLAME_ENABLED", "0", "settings", "ok", "gpuflame_start()"),
        ("GPUFLAME_DURATION", "5", "settings", "ok", "in windows"),
        ("GPUFLAME_FLAG", "/tmp", "settings", "warn", "GPUFLAME_FLAG=/tmp is a folder"),
        ("GPUFLAME_OUTPUT", "/proc/nowhere/x", "outputs", "fail", "GPUFLAME_OUTPUT"),
        ("GPUFLAME_OUTPUT", "/etc/passwd/x", "outputs", "fail", "Not a directory"),
        ("GPUFLAME_OUTPUT", "made/later/x", "outputs", "ok", "made/later/"),
    ] {
        doctor_in(&folder, cuda(), &gpuflame(), &[(name, value)]).has(what, result, &[words]);
    }
    assert!(!folder.join("made").exists(), "it changes nothing");
}

#[test]
fn doctor_reports_recordings_of_killed_processes() {
    let folder = scratch("left");
    // The folder gets one recording without an end row, and one with an end row.
    let head = b"gpuflame\x01\x00\x00\x00\x00\x00\x00\x00";
    fs::write(folder.join("killed.gfr"), [&head[..], &[15, 9, 0, 0, 0]].concat()).unwrap();
    fs::write(folder.join("whole.gfr"), [&head[..], &[23, 0, 0, 0, 0]].concat()).unwrap();
    let said = doctor_in(&folder, cuda(), &gpuflame(), &[]);
    said.has("checkpoints", "warn", &["1 from processes", "killed.gfr", "gpuflame recover "]);
}

#[test]
fn doctor_fails_on_an_output_folder_that_the_user_cannot_write() {
    let folder = scratch("locked");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write to any folder, so the expected result depends on the user.
    let may = fs::write(folder.join("x"), "").is_ok();
    let said = doctor_in(&folder, cuda(), &gpuflame(), &[]);
    said.has("outputs", if may { "ok" } else { "fail" }, &["files"]);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn doctor_prints_one_line_per_check_with_the_remedy_below() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    command.arg("doctor").env("LD_LIBRARY_PATH", "/nowhere").env("GPUFLAME_TYPO", "1");
    let output = command.current_dir(scratch("text")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("fail  driver       libcuda.so.1 cannot be loaded"), "{text}");
    assert!(lines[1].starts_with("                   -> to record, install the driver"), "{text}");
    assert!(
        lines.iter().any(|line| line.starts_with("warn  settings     ") && line.contains("GPUFLAME_TYPO")),
        "{text}"
    );
    assert!(lines.iter().any(|line| line.starts_with("ok    offline      ")), "{text}");
    assert!(lines.last().unwrap().starts_with("You cannot record here until "), "{text}");
}
