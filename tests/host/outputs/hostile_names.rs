//! Names from any source must be harmless in all places that show them: on a terminal, in text files and in
//! spreadsheets.
//!
//! The program, `tests/programs/named.c`, gives harmful names to its kernels, ranges and threads. The program's own
//! file name is harmful too.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::command::gpuflame as command;
use crate::support::harmless::{assert_harmless, assert_harmless_tables};
use crate::support::{self, Done, Run, Way, compile, gpuflame, scratch};

/// GPU time, in ns, of one iteration of the program's two threads.
const NANOS: u64 = 2 * 10_600;
/// The file name of the program, which is harmful. File names may contain any character except slashes.
const FILE: &str = "=file\x1b[31m\u{202e}turned\rback";
/// Name of the kernel as gpuflame shows it, with its control characters replaced.
const KERNEL: &str = "gemm mmeg iso late r_d3000";
const RANGE: &str = "=range [31m turned back";
const THREAD: &str = "-b+ [3m t x";
const PROCESS: &str = "=file [31m turned back";

fn program() -> PathBuf {
    let program = scratch("named").join(FILE);
    // The test renames the program instead of copying it. If the program were copied, a child process that another test
    // forks could still have the copy open for writing, and the program could not be started (ETXTBSY).
    fs::rename(compile("tests/programs/named.c", &["-O2"]), &program).unwrap();
    program
}

fn run(program: &Path, how: &str, output: &str, formats: &str) -> Done {
    let run = Run::new(program, Way::Injected).arg(how).env("NVTX_INJECTION64_PATH", gpuflame());
    let run = run.env("GPUFLAME_FORMATS", formats).env("GPUFLAME_ROOT", "process,thread");
    run.env("GPUFLAME_OUTPUT", output).env("GPUFLAME_CHECKPOINT", "0.2").done()
}

/// Runs the `gpuflame` command in `folder`, with the simulated CUDA stack.
fn on_the_stack(folder: &Path, args: &[&str]) -> Done {
    Run::new(Path::new(env!("CARGO_BIN_EXE_gpuflame")), Way::None)
        .in_folder(folder)
        .args(args.to_vec())
        .done()
}

/// Texts that gpuflame printed or wrote, each with the name of its source.
#[derive(Default)]
struct Shown(Vec<(String, String)>);

impl Shown {
    fn text(&mut self, by: &str, text: String) {
        assert_harmless(&text, by);
        self.0.push((by.to_owned(), text));
    }

    fn table(&mut self, by: &str, text: String) {
        assert_harmless_tables(&text, by);
        self.0.push((by.to_owned(), text));
    }

    /// Adds the text of a file to the texts. The file's name decides whether it is checked as a table or as a text. If
    /// a file is not UTF-8, it must not contain the harmful names.
    fn file(&mut self, path: &Path) {
        let name = path.display().to_string();
        let bytes = fs::read(path).unwrap();
        match String::from_utf8(bytes) {
            Ok(text) if name.ends_with(".csv") => self.table(&name, text),
            Ok(text) => self.text(&name, text),
            Err(error) => {
                let has = |part: &[u8]| error.as_bytes().windows(part.len()).any(|bytes| bytes == part);
                assert!(!has(b"\x1b[3") && !has("\u{202e}".as_bytes()), "{name}");
            }
        }
    }

    /// Adds the texts of all files in a folder, except recordings (which contain the harmful names) and files of the
    /// simulated CUDA stack.
    fn files(&mut self, folder: &Path) {
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let is_shown = |path: &&PathBuf| {
            path.is_file() && !path.ends_with("truth.json") && path.extension() != Some("gfr".as_ref())
        };
        paths.iter().filter(is_shown).for_each(|path| self.file(path));
    }

    /// Runs a command, and adds its output to the texts.
    fn command(&mut self, folder: &Path, args: &[&str]) {
        let ran = command(folder, args.iter().copied());
        let by = args.join(" ");
        // The command `check` exits with 1 if it finds a problem.
        assert!(ran.code == 0 || (args[0], ran.code) == ("check", 1), "{by}: {}", ran.stderr);
        self.text(&by, ran.stderr);
        if args.contains(&"csv") { self.table(&by, ran.stdout) } else { self.text(&by, ran.stdout) }
    }

    /// Asserts that the harmless form of each name is in a minimum number of texts.
    fn assert_holding(&self, least: [(&str, usize); 4]) {
        for (words, least) in least {
            let by: Vec<_> =
                self.0.iter().filter(|(_, text)| text.contains(words)).map(|(by, _)| by).collect();
            assert!(by.len() >= least, "{words:?} is in only {} texts: {by:#?}", by.len());
        }
    }
}

#[test]
fn hostile_names_are_inert_in_files_and_no_cell_starts_a_formula() {
    let formats = "folded,svg,csv,idle,wait,alloc,together,activities,chrome,cupti-text,gfr";
    let done = run(&program(), "", "out", formats);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let total: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(total, NANOS, "{}", done.stderr);
    let mut shown = Shown::default();
    shown.text("the ledger", done.stderr.clone());
    shown.files(&done.folder);
    shown.assert_holding([(KERNEL, 8), (RANGE, 5), (THREAD, 5), (PROCESS, 6)]);
}

#[test]
fn hostile_names_are_inert_in_command_output_and_no_cell_starts_a_formula() {
    let program = program();
    let done = run(&program, "", "out", "gfr");
    let more = run(&program, "more", "more", "gfr");
    let folder = done.folder.as_path();
    fs::rename(more.folder.join("more.gfr"), folder.join("more.gfr")).unwrap();
    let mut shown = Shown::default();
    for format in ["text", "csv", "json"] {
        let by = ["kernels", "stacks", "line", "function", "delay", "idle", "comm"];
        let top = by.map(|by| vec!["top", "out.gfr", "-n", "0", "--by", by]);
        let others = [
            vec!["info", "out.gfr"],
            vec!["check", "out.gfr"],
            vec!["view", "out.gfr"],
            vec!["view", "out.gfr", "--stats"],
            vec!["diff", "out.gfr", "more.gfr"],
            vec!["merge-ranks", "out.gfr", "more.gfr", "--assume-order"],
        ];
        for args in top.iter().chain(&others) {
            shown.command(folder, &[args, &["--format", format][..]].concat());
        }
    }
    let converted =
        ["folded", "extended-folded", "svg", "csv", "chrome", "perfetto", "pprof", "speedscope", "sbt"];
    let converted = converted.map(|to| vec!["convert", "out.gfr", "--to", to, "-o", to]);
    let others = [
        vec!["convert", "out.gfr", "--to", "cupti-text", "-o", "cupti-text"],
        vec!["convert", "out.gfr", "-o", "out.parquet"],
        vec!["convert", "out.gfr", "-o", "out.arrow"],
        vec!["view", "out.gfr", "--timeline"],
        vec!["flamegraph", "out.gfr", "--root", "process,thread"],
        vec!["flamegraph", "out.gfr", "--root", "process,thread", "-o", "root.svg"],
        vec!["flamegraph", "--diff", "out.gfr", "more.gfr", "-o", "diff.svg"],
        vec!["merge-ranks", "out.gfr", "more.gfr", "--assume-order", "-o", "ranks.folded"],
        vec!["extract", "out.gfr", "extracted.csv", "0,9000000000000000"],
        vec!["stats", "out.gfr", "steps.csv", "none", "1e9"],
    ];
    converted.iter().chain(&others).for_each(|args| shown.command(folder, args));
    shown.files(folder);
    shown.assert_holding([(KERNEL, 30), (RANGE, 15), (THREAD, 3), (PROCESS, 5)]);
}

#[test]
fn hostile_names_are_inert_in_run_doctor_and_recover() {
    let program = program();
    let mut shown = Shown::default();
    let library = support::gpuflame();
    let (path, library) = (program.to_str().unwrap(), library.to_str().unwrap());
    for verb in ["run", "gpuperf"] {
        let folder = scratch("verb");
        let done = on_the_stack(&folder, &[verb, "--library", library, "--", path]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        shown.text(verb, done.stdout);
        shown.text(verb, done.stderr);
        shown.files(&folder);
    }
    let left = run(&program, "killed", FILE, "folded");
    assert_eq!(left.signal, Some(libc::SIGKILL));
    let file = format!("{FILE}.gfr");
    for format in ["text", "csv", "json"] {
        let done = on_the_stack(&left.folder, &["doctor", "--library", library, "--format", format]);
        if format == "csv" {
            shown.table("doctor", done.stdout)
        } else {
            shown.text("doctor", done.stdout)
        }
        shown.text("doctor", done.stderr);
    }
    for args in [&["info", &file][..], &["top", &file, "--format", "csv"], &["recover", &file]] {
        shown.command(&left.folder, args);
    }
    shown.files(&left.folder);
    shown.assert_holding([(KERNEL, 10), (RANGE, 8), (THREAD, 1), (PROCESS, 8)]);
}
