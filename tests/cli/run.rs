//! Tests `gpuflame run`. Tests that a command runs under gpuflame as it does without gpuflame, and that each process of
//! the command gets a flame graph.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::command::gpuflame as command;
use crate::support::{self, Done, Run, Way, compile, scratch, skip};
use gpuflame_offline::run::{self, ReadOptions};

/// Compiles a program that launches kernels of 1,000 ns and can end in many ways. The source of this program,
/// `ending.c`, lists these ways.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]))
}

/// Returns a run of `gpuflame run OPTIONS -- COMMAND` with the simulated CUDA libraries.
pub(crate) fn run(options: &[&str], command: &[&str]) -> Run {
    let ours = Run::new(Path::new(env!("CARGO_BIN_EXE_gpuflame")), Way::None);
    let library = support::gpuflame();
    ours.arg("run")
        .arg("--library")
        .arg(library)
        .args(options.iter().copied())
        .arg("--")
        .args(command.iter().copied())
}

pub(crate) fn said<'a>(done: &'a Done, words: &str) -> Vec<&'a str> {
    done.stderr.lines().filter(|line| line.contains(words)).collect()
}

#[test]
fn a_command_is_recorded_and_run_returns_its_exit_code() {
    for way in [&[][..], &["--preload"]] {
        let done = run(way, &[program().to_str().unwrap(), "quick"]).done();
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        let (launches, _) = done.sum("launches");
        let lines = said(&done, "ending (process ");
        assert_eq!(lines.len(), 1, "{}", done.stderr);
        assert!(lines[0].contains(&format!("): {launches} launches, GPU 0 busy ")), "{}", lines[0]);
        assert!(lines[0].ends_with(&format!("; {}", done.folder.join("out.svg").display())), "{}", lines[0]);
        assert!(done.file("out.folded").contains("[GPU_Kernel]"));
    }
}

/// Runs two ranks of the program `ranks.c`. Returns the lines that `gpuflame run` prints about rank 1, which arrives
/// last at each collective.
fn lines_about_the_straggler(args: &[&str]) -> Vec<String> {
    let program = compile("tests/programs/ranks.c", &["-O2"]);
    let run = run(&["-o", "rank%r"], &[&[program.to_str().unwrap()], args].concat());
    let done = run.env("GPUSIM_CLOCK", "real").ok();
    done.stderr.lines().filter(|line| line.contains("rank 1 ")).map(str::to_owned).collect()
}

#[test]
fn a_run_names_the_straggler_of_its_ranks() {
    // Each of 20 steps has one all-reduce, which takes 1 us on rank 1 and 90 us on rank 0.
    let found = lines_about_the_straggler(&["20"]);
    let expected = "gpuflame: rank 1 is the straggler: the other ranks wait for it in ncclDevKernel_AllReduce_d90000 \
                    (1.000 us of communication per step, the other ranks 90.000 us)";
    assert_eq!(found, [expected]);
    // Nine steps are too few to name a straggler. If the program marks no steps, the command prints a hint.
    assert_eq!(lines_about_the_straggler(&["9"]), [""; 0]);
    let hint = lines_about_the_straggler(&["20", "unmarked"]);
    assert!(hint.len() == 1 && hint[0].contains("the other ranks may wait for rank 1 in "), "{hint:?}");
}

#[test]
fn options_override_the_environment() {
    let done =
        run(&["-o", "a/b-%e", "--formats", "csv", "-q"], &[program().to_str().unwrap(), "quick"]).done();
    assert_eq!(done.code, Some(7));
    assert!(done.folder.join("a/b-ending.csv").exists());
    assert!(!done.folder.join("out.folded").exists() && !done.folder.join("a/b-ending.svg").exists());
    assert!(done.stderr.lines().all(|line| !line.starts_with("gpuflame:")), "{}", done.stderr);
}

#[test]
fn a_verbose_run_prints_the_ledger_and_a_time_of_a_window_has_a_unit() {
    let quick = |options: &[&str]| {
        run(options, &[program().to_str().unwrap(), "quick"]).env("GPUFLAME_VERBOSE", "0").done()
    };
    let (done, quiet) = (quick(&["--verbose"]), quick(&[]));
    let ledger = |done: &Done| done.stderr.lines().any(|line| line.starts_with("gpuflame: launches "));
    assert!(ledger(&done) && !ledger(&quiet), "{}", done.stderr);
    let late =
        run(&["--window", "delay=1min,duration=500ms"], &[program().to_str().unwrap(), "quick"]).done();
    let [line] = said(&late, "ending (process ")[..] else { panic!("{}", late.stderr) };
    assert!(line.contains(" launches, none in a window; "), "{line}");
}

#[test]
fn rows_adds_every_call_and_activity_to_the_usual_files() {
    for (options, has_rows) in
        [(&["-o", "x", "--formats", "csv,sums"][..], false), (&["-o", "x", "--rows"], true)]
    {
        let done = run(options, &[program().to_str().unwrap(), "quick"]).done();
        assert!(done.folder.join("x.csv").exists(), "{}", done.stderr);
        let viewed = command(&done.folder, ["view", "x.gfr", "-n", "1"]);
        match has_rows {
            true => drop(viewed.ok()),
            false => viewed.fails(1, &["x.gfr", "`gpuflame run --rows PROGRAM`"]),
        }
    }
}

#[test]
fn an_output_folder_is_created_and_gets_files_of_the_default_name() {
    let done = run(&["-o", "new/", "--formats", "svg"], &[program().to_str().unwrap(), "quick"]).done();
    let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
    let process = line.split("process ").nth(1).unwrap().split(')').next().unwrap();
    let picture = done.folder.join(format!("new/ending.{process}.svg"));
    assert!(picture.exists() && line.ends_with(&format!("; {}", picture.display())), "{}", done.stderr);
}

#[test]
fn a_run_with_no_launch_inside_a_window_reports_it() {
    let done = run(&["--window", "off"], &[program().to_str().unwrap(), "quick"]).done();
    let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
    assert!(line.contains(" launches, none in a window; "), "{line}");
}

/// Creates a folder that contains only a fake `xdg-open`. The fake `xdg-open` writes down what it was told to open, and
/// exits with the code `ends_with`.
fn desktop(ends_with: i32) -> PathBuf {
    let folder = scratch("desktop");
    let opener = folder.join("xdg-open");
    fs::write(&opener, format!("#!/bin/sh\necho \"$1\" >> opened\nexit {ends_with}\n")).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn open_shows_the_page_or_prints_its_path() {
    let command = [program().to_str().unwrap(), "quick"];
    for (path, is_opened, why) in [
        (desktop(0), true, None),
        (desktop(3), true, Some("xdg-open cannot show it")),
        (scratch("no-desktop"), false, Some("cannot start xdg-open")),
    ] {
        let done = run(&["--open"], &command).env("PATH", &path).done();
        let page = done.folder.join("out.html").display().to_string();
        let opened = fs::read_to_string(done.folder.join("opened")).unwrap_or_default();
        assert_eq!(opened, if is_opened { format!("{page}\n") } else { String::new() });
        let lines = said(&done, "in a browser");
        match why {
            None => assert!(lines.is_empty(), "{}", done.stderr),
            Some(why) => assert_eq!(lines, [format!("gpuflame: {why}; open {page} in a browser")]),
        }
    }
    let done = run(&["--open", "--formats", "csv"], &command).env("PATH", desktop(0)).done();
    assert!(!done.folder.join("opened").exists());
    assert_eq!(
        said(&done, "no page or picture to open; write one with --formats svg").len(),
        1,
        "{}",
        done.stderr
    );
}

#[test]
fn a_run_leaves_a_page_unless_formats_are_chosen() {
    let command = [program().to_str().unwrap(), "quick"];
    let done = run(&[], &command).done();
    let page = fs::read_to_string(done.folder.join("out.html")).unwrap();
    assert!(page.contains("GPU 0 busy "), "the page shows its first line even without JavaScript");
    assert_eq!(
        said(&done, &format!("wrote {}", done.folder.join("out.html").display())).len(),
        1,
        "{}",
        done.stderr
    );
    let chosen = [
        run(&["--formats", "sums,svg"], &command),
        run(&[], &command).env("GPUFLAME_FORMATS", "sums"),
        run(&[], &command).env("GPUFLAME_DISABLE", "1"),
    ];
    for run in chosen {
        assert!(!run.done().folder.join("out.html").exists());
    }
    // The two ranks share one page, which is named after rank 0.
    let ranks = compile("tests/programs/ranks.c", &["-O2"]);
    let done =
        self::run(&["-o", "rank%r"], &[ranks.to_str().unwrap(), "20"]).env("GPUSIM_CLOCK", "real").ok();
    let pages = ["rank0.html", "rank1.html"].map(|name| done.folder.join(name).exists());
    assert_eq!(pages, [true, false], "{}", done.stderr);
}

#[test]
fn options_override_the_environment_and_that_overrides_the_settings_file() {
    let timed = compile("tests/programs/timed.c", &["-O2"]);
    let config = scratch("config").join("nightly.toml");
    fs::write(&config, "output = 'night/%e'\nformats = ['folded', 'csv']\nsteps = '1..3'\n").unwrap();
    let options = ["--config", config.to_str().unwrap(), "--window", "steps=2..4", "--formats", "folded"];
    // Options take precedence over the environment, and the environment over the settings file.
    let done = run(&options, &[timed.to_str().unwrap(), "steps", "5"]).env("GPUFLAME_STEPS", "4..5").done();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"]), (15, 2 + 3), "{}", done.stderr);
    assert!(!done.folder.join("night").exists(), "the environment names the outputs");
    assert!(done.folder.join("out.folded").exists() && !done.folder.join("out.csv").exists());
}

#[test]
fn a_settings_file_in_the_working_folder_is_read_and_named() {
    let folder = scratch("settings-file");
    let file = |text: &str| fs::write(folder.join("gpuflame.toml"), text).unwrap();
    let done = |options: &[&str]| {
        let command = [program().to_str().unwrap(), "quick"];
        let done = run(options, &command).in_folder(&folder).env("GPUFLAME_OUTPUT", "").done();
        let named: Vec<_> =
            done.stderr.lines().filter(|line| line.contains("gpuflame.toml")).map(str::to_owned).collect();
        (done.code, named, folder.join("night.csv").exists())
    };
    file("quiet = false\noutput = 'night'\nformats = ['csv']\n");
    assert_eq!(done(&["--no-config"]), (Some(7), vec![], false));
    let line = "gpuflame: gpuflame.toml sets formats, quiet (--no-config ignores the file)";
    // The environment takes precedence over the settings file even if the variable's value is empty.
    assert_eq!(done(&[]).1, [line]);
    assert_eq!(done(&["--output", "night"]), (Some(7), vec![line.to_owned()], true));
    assert!(!folder.join("night.html").exists(), "no page if the file has chosen formats");

    for (text, words) in [
        (
            "output = 'x'\nduration = 'long'\n",
            "gpuflame.toml: line 2: duration: expected a number of seconds",
        ),
        ("formats = [", "gpuflame.toml: line 1: "),
        ("cupti = './libcupti.so'\n", "gpuflame.toml: cupti names a library to load"),
    ] {
        file(text);
        let (code, named, _) = done(&[]);
        assert!(code == Some(2) && named.len() == 1 && named[0].contains(words), "{code:?}: {named:?}");
        assert!(named[0].ends_with("; --no-config ignores the file"), "{named:?}");
        assert_eq!(done(&["--no-config"]).0, Some(7));
    }
}

#[test]
fn cpu_samples_are_drawn_when_the_option_is_given() {
    let sampled = compile("tests/programs/sampled.c", &["-O2", "-pthread"]);
    let options = ["--cpu-samples", "999", "--formats", "csv"];
    let done = run(&options, &[sampled.to_str().unwrap(), "late"]).done();
    assert_eq!((done.code, done.ledger("cpu samples").len()), (Some(0), 1), "{}", done.stderr);
    assert!(done.folder.join("out.cpu.svg").exists() && done.folder.join("out.cpu.folded").exists());
    assert!(!done.folder.join("out.svg").exists());
}

#[test]
fn an_invalid_window_or_settings_file_is_rejected_before_the_command_runs() {
    let wrong = scratch("config").join("wrong.toml");
    fs::write(&wrong, "formats = ['svg']\nduration = 'long'\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    for (options, words) in [
        (["--window", "duration=0"], "--window duration=0: expected a number of seconds above 0"),
        (
            ["--window", "when=now"],
            "`when=now` is neither `off` nor one of delay=, duration=, repeat=, steps=,",
        ),
        (["--window", "flag=/tmp"], "--window flag=/tmp: /tmp is a folder"),
        (["--config", wrong], "wrong.toml: line 2: duration: expected a number of seconds"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: "),
    ] {
        let done = run(&options, &["touch", "ran"]).done();
        assert!(done.code == Some(2) || done.code == Some(1), "{:?}: {}", done.code, done.stderr);
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert!(!done.folder.join("ran").exists(), "{options:?}");
    }
}

#[test]
fn every_process_of_the_command_gets_its_own_line_and_files() {
    let script = format!("{0} quick; {0} quick; exit 3", program().display());
    let done = run(&["-o", "out-%p"], &["sh", "-c", &script]).env("RANK", "5").done();
    assert_eq!(done.code, Some(3));
    let lines = said(&done, "ending (process ");
    assert_eq!(lines.len(), 2, "{}", done.stderr);
    for line in lines {
        let number = line.split("process ").nth(1).unwrap().split(',').next().unwrap();
        assert!(line.contains(", rank 5): "), "{line}");
        assert!(done.folder.join(format!("out-{number}.svg")).exists(), "{line}");
    }
}

/// The file size limit is 0, so any write to a file raises SIGXFSZ. SIGXFSZ ends a program that has no handler for this
/// signal.
#[test]
fn a_program_that_may_not_write_files_runs_to_its_end() {
    let program = support::compile("tests/programs/odd.c", &["-O2"]);
    let script = r#"ulimit -f 0 && unset GPUSIM_TRUTH && exec "$0" plain"#;
    let done = run(&[], &["/bin/sh", "-c", script, program.to_str().unwrap()]).done();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    assert!(said(&done, "saw no process of the command call CUDA").is_empty(), "{}", done.stderr);
}

#[test]
fn a_command_without_cuda_runs_unchanged_and_the_missing_report_is_printed() {
    let done = run(&[], &["false"]).done();
    assert_eq!((done.code, said(&done, "no report arrived: ").len()), (Some(1), 1), "{}", done.stderr);
    let done = run(&[], &["sh", "-c", "kill -9 $$"]).done();
    assert_eq!(done.code, Some(128 + 9), "{}", done.stderr);
    let echoed = support::command::gpuflame_with(
        &scratch("run-cat"),
        ["run", "--library", support::gpuflame().to_str().unwrap(), "cat"],
        b"what it reads",
    );
    assert_eq!((echoed.code, &echoed.stdout[..]), (0, "what it reads"));
}

/// Waits until the program in this folder has launched a kernel.
pub(crate) fn wait_for_launches(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let launched =
        || fs::read(folder.join("launched")).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    while !launched() {
        assert!(Instant::now() < deadline, "the program does not launch");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn send(child: &Child, signal: i32) {
    // SAFETY: kill accepts any two numbers. The process is a child of this test.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// The test sends the signal only to `gpuflame run`, as a parent process may do. (On a terminal, Ctrl+C and Ctrl+\ send
/// SIGINT and SIGQUIT to the command as well, so `gpuflame run` does not forward the signals.)
#[test]
fn signals_of_another_process_are_forwarded() {
    for (signal, code) in [(libc::SIGTERM, 128 + 15), (libc::SIGHUP, 128 + 1), (libc::SIGINT, 128 + 2)] {
        let (mut command, folder) = run(&[], &[program().to_str().unwrap(), "for_ever", "1"]).into_command();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_launches(&folder);
        send(&child, signal);
        let done = Done::from_output(child.wait_with_output().unwrap(), folder);
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert_eq!(said(&done, "ending (process ").len(), 1, "{}", done.stderr);
        let folded = done.file("out.folded");
        // If the signal stops the program while it is inside CUPTI, CUPTI delivers no more records.
        assert!(
            folded.contains("main;launch;") && folded.contains(";cudaLaunchKernel;"),
            "{folded}{}",
            done.stderr
        );
    }
}

/// The program does not handle SIGQUIT, so only the checkpoint of its recording remains.
#[test]
fn sigquit_of_another_process_ends_the_program_and_its_checkpoint_is_recovered() {
    let run = run(&[], &[program().to_str().unwrap(), "for_ever", "1"]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut command, folder) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_launches(&folder);
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_written = || {
        let left = run::read(folder.join("out.gfr"), &ReadOptions::default());
        left.is_ok_and(|run| run.ledger().tally.activities.matched > 0)
    };
    while !is_written() {
        assert!(Instant::now() < deadline, "no checkpoint was written");
        std::thread::sleep(Duration::from_millis(10));
    }
    send(&child, libc::SIGQUIT);
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    assert_eq!(done.code, Some(128 + libc::SIGQUIT), "{}", done.stderr);
    let folded = done.file("out.folded");
    assert!(
        folded.contains("main;launch;") && folded.contains(";cudaLaunchKernel;"),
        "{folded}{}",
        done.stderr
    );
}

#[test]
fn processes_that_skip_exit_hooks_are_recovered_in_the_requested_formats() {
    let program = program().to_str().unwrap();
    // If activity records are written to a `.gfr` file, that recording remains.
    for (formats, files) in [
        ("svg", &["out.gfr", "out.set.json", "out.svg"][..]),
        ("gfr,csv", &["out.csv", "out.gfr", "out.set.json"]),
    ] {
        for (how, code) in [("_exit", 7), ("abort", 128 + libc::SIGABRT)] {
            let run =
                run(&["--formats", formats], &[program, "left", how]).env("GPUFLAME_CHECKPOINT", "0.05");
            let (mut command, folder) = run.into_command();
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let deadline = Instant::now() + Duration::from_secs(100);
            let is_written = || {
                let left = run::read(folder.join("out.gfr"), &ReadOptions::default());
                left.is_ok_and(|run| run.ledger().tally.activities.matched == 1100)
            };
            while !is_written() {
                assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "{formats} {how}");
                std::thread::sleep(Duration::from_millis(10));
            }
            fs::write(folder.join("go"), "").unwrap();
            let done = Done::from_output(child.wait_with_output().unwrap(), folder);
            assert_eq!(done.code, Some(code), "{}", done.stderr);
            assert_eq!(
                said(&done, "out.gfr: its process ended without its exit hooks").len(),
                1,
                "{}",
                done.stderr
            );
            let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
            assert!(line.contains("): 1,100 launches, GPU 0 busy "), "{line}");
            let shown = files.iter().find(|file| !["out.gfr", "out.set.json"].contains(*file)).unwrap();
            assert!(line.ends_with(&format!("/{shown}")), "{line}");
            let names = fs::read_dir(&done.folder).unwrap();
            let mut names: Vec<_> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.retain(|name| name.starts_with("out."));
            names.sort();
            assert_eq!(names, files);
        }
    }
}

/// Returns a name that is not UTF-8.
fn odd_name(rest: &str) -> OsString {
    OsString::from_vec([b"\xff", rest.as_bytes()].concat())
}

/// Creates a folder for runs. The name of the folder is not UTF-8, and contains a percent sign.
fn odd_folder() -> PathBuf {
    let folder = scratch("bytes").join(OsStr::from_bytes(b"caf\xe9%p"));
    fs::create_dir(&folder).unwrap();
    folder
}

/// Returns those files in `folder` whose names are not UTF-8.
fn odd_files(folder: &Path) -> Vec<OsString> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.retain(|name| name.as_bytes()[0] == 0xff);
    files.sort();
    files
}

/// Returns a run of `gpuflame run -o PREFIX --formats gfr,svg --open -- ending HOW` in `folder`.
fn run_odd(folder: &Path, prefix: OsString, how: &[&str]) -> Run {
    let ours = Run::new(Path::new(env!("CARGO_BIN_EXE_gpuflame")), Way::None).in_folder(folder);
    let ours = ours.arg("run").arg("--library").arg(support::gpuflame()).arg("-o").arg(prefix);
    let ours = ours.args(["--formats", "gfr,svg", "--open", "--"]).arg(program());
    ours.args(how.iter().copied()).env("PATH", desktop(0)).env("GPUSIM_TRUTH", "")
}

#[test]
fn files_with_non_utf8_names_are_printed_opened_read_and_merged_by_rank() {
    let folder = odd_folder();
    for (rank, name) in [("3", odd_name("three")), ("5", odd_name("five"))] {
        let done = run_odd(&folder, name, &["quick"]).env("RANK", rank).done();
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        assert_eq!(said(&done, "ended without its exit hooks"), [""; 0], "{}", done.stderr);
        let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
        assert!(line.contains("/caf\u{fffd}%p/\u{fffd}") && line.ends_with(".svg"), "{line}");
    }
    let endings = ["gfr", "html", "set.json", "svg"];
    let names = ["five", "three"].map(|name| endings.map(|ending| odd_name(&format!("{name}.{ending}"))));
    assert_eq!(odd_files(&folder), names.concat());
    let opened = fs::read(folder.join("opened")).unwrap();
    let opened: Vec<_> = opened.split(|byte| *byte == b'\n').collect();
    let pages = ["three.html", "five.html"].map(|name| folder.join(odd_name(name)));
    assert_eq!(opened, [pages[0].as_os_str().as_bytes(), pages[1].as_os_str().as_bytes(), b""]);
    let (recording, folded) = (odd_name("three.gfr"), odd_name("three.folded"));
    command(&folder, [OsStr::new("flamegraph"), &recording, OsStr::new("-o"), &folded]).ok();
    assert!(fs::read_to_string(folder.join(folded)).unwrap().contains("[GPU_Kernel]"));
    command(&folder, ["merge-ranks", ".", "-o", "all.folded"]).ok();
    let merged = fs::read_to_string(folder.join("all.folded")).unwrap();
    assert!(merged.contains("rank 3;") && merged.contains("rank 5;"), "{merged}");
}

#[test]
fn a_process_that_skips_exit_hooks_is_recovered_under_a_non_utf8_name() {
    let folder = odd_folder();
    let run = run_odd(&folder, odd_name(""), &["left", "_exit"]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut command, _) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    let is_written = || {
        let left = run::read(folder.join(odd_name(".gfr")), &ReadOptions::default());
        left.is_ok_and(|run| run.ledger().tally.activities.matched == 1100)
    };
    while !is_written() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::write(folder.join("go"), "").unwrap();
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    assert_eq!(said(&done, "ended without its exit hooks").len(), 1, "{}", done.stderr);
    let files = [".gfr", ".html", ".set.json", ".svg"].map(odd_name);
    assert_eq!(odd_files(&done.folder), files, "{}", done.stderr);
}

#[test]
fn surviving_processes_are_listed_and_not_awaited() {
    let begun = Instant::now();
    let done = run(&[], &["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(200));
    let number: i32 = done.stdout.trim().parse().unwrap();
    let lines = said(&done, "still running, not waited for: processes ");
    // SAFETY: kill accepts any two numbers. The process is the one that the shell of this test left running.
    unsafe { libc::kill(number, libc::SIGKILL) };
    assert!(lines.len() == 1 && lines[0].ends_with(&format!(" {number}")), "{}", done.stderr);
}

#[test]
fn a_surviving_process_in_the_middle_of_an_exec_is_listed() {
    // The program replaces itself by itself with `exec` again and again, so it is inside an `exec` most of the time.
    let folder = scratch("run-becoming");
    let again = folder.join("again");
    fs::write(&again, "#!/bin/sh\nexec \"$0\"\n").unwrap();
    fs::set_permissions(&again, fs::Permissions::from_mode(0o755)).unwrap();
    let becomes = format!("{} >/dev/null 2>&1 & echo $!", again.display());
    for _ in 0..20 {
        let done = run(&[], &["sh", "-c", &becomes]).ok();
        let number: i32 = done.stdout.trim().parse().unwrap();
        let lines = said(&done, "still running, not waited for: processes ");
        // SAFETY: kill accepts any two numbers. The process is the one that the shell of this test left running.
        unsafe { libc::kill(number, libc::SIGKILL) };
        assert!(lines.len() == 1 && lines[0].ends_with(&format!(" {number}")), "{}", done.stderr);
    }
}

#[test]
fn a_command_line_that_cannot_be_run_is_rejected_in_one_line() {
    let folder = scratch("run-bad");
    let library = support::gpuflame();
    let library = library.to_str().unwrap();
    fs::write(folder.join("text.so"), "no library at all, but long enough").unwrap();
    fs::write(folder.join("not-executable"), "x").unwrap();
    let run = |args: &[&str]| command(&folder, [&["run"], args].concat());
    run(&["--library", library, "./not-there"]).fails(127, &["./not-there", "No such file"]);
    run(&["--library", library, "./not-executable"]).fails(126, &["./not-executable", "ermission denied"]);
    run(&["--library", "text.so", "true"]).fails(1, &["text.so", "not a shared library", "--library"]);
    run(&["--library", "nothing.so", "true"]).fails(1, &["nothing.so", "No such file", "--library"]);
    run(&["--library", library, "--cpu-samples", "20000", "true"]).fails(2, &["--cpu-samples", "10000 Hz"]);
    run(&["--library", library, "--formats", "svg,jpeg", "true"]).fails(2, &["--formats", "jpeg", "folded"]);
    // With a limit of 4 file descriptors, gpuflame starts but cannot start a program. With a limit of 3 file
    // descriptors, the loader fails before gpuflame's first instruction. The test closes descriptor 3 first, because
    // other tests of this process open descriptors, which programs inherit.
    let script = r#"exec 3>&- && ulimit -n 4 && exec "$0" run --library "$1" true"#;
    let gpuflame = env!("CARGO_BIN_EXE_gpuflame");
    let limited = Command::new("sh").args(["-c", script, gpuflame, library]).output().unwrap();
    let expected = "gpuflame: cannot run true: Too many open files (os error 24); raise the limit of open files, `ulimit -n`\n";
    assert_eq!(String::from_utf8(limited.stderr).unwrap(), expected);
    assert_eq!(limited.status.code(), Some(126));
    // Only gpuflame's library exports the entry points that the driver calls. Therefore `run --library` refuses
    // programs and all other libraries.
    let own = env!("CARGO_BIN_EXE_gpuflame");
    run(&["--library", own, "true"]).fails(1, &["gpuflame is another library, or a program", "--library"]);
    let other = support::cuda().join("libcudart.so.13");
    run(&["--library", other.to_str().unwrap(), "true"]).fails(1, &["is another library, or a program"]);
    // The parser must not take a misspelt option of `gpuflame run` for the command. Options that follow the command
    // belong to the command, not to `gpuflame run`.
    let said = run(&["--library", library, "--frmats", "svg", "true"]);
    assert!(said.code == 2 && said.stderr.contains("--formats"), "{}", said.stderr);
    assert_eq!(run(&["--library", library, "--format", "svg", "true"]).code, 0, "as in other verbs");
    run(&["--library", library, "--verbose", "-q", "true"]).fails(2, &["--verbose and --quiet"]);
    let ran = run(&["--library", library, "echo", "-o", "--formats", "--", "x"]).ok();
    assert_eq!(ran.stdout, "-o --formats -- x\n");
    let ran = command(&folder, ["record", "--library", library, "--", "echo", "also called record"]).ok();
    assert_eq!(ran.stdout, "also called record\n");
}

/// Starts a command, and ignores its standard output.
fn start(run: Run, stderr: Stdio) -> (Child, PathBuf) {
    let (mut command, folder) = run.into_command();
    (command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap(), folder)
}

/// Waits for the child. Returns the child's exit code, or `None` if a signal ended the child. Panics if the child does
/// not end in time.
pub(crate) fn code_of(mut child: Child) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(100);
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.code(),
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("the command does not end");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Returns the write end of a pipe whose read end is closed.
fn broken_pipe() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn full_disk() -> Stdio {
    fs::File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn an_unwritable_stderr_changes_neither_the_status_nor_the_recovered_files() {
    for stderr in [broken_pipe(), full_disk()] {
        let run = run(&["--formats", "svg"], &[program().to_str().unwrap(), "left", "abort"]);
        let (child, folder) = start(run.env("GPUFLAME_CHECKPOINT", "0.05"), stderr);
        let deadline = Instant::now() + Duration::from_secs(100);
        let is_written = || {
            let left = run::read(folder.join("out.gfr"), &ReadOptions::default());
            left.is_ok_and(|run| run.ledger().tally.activities.matched == 1100)
        };
        while !is_written() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write(folder.join("go"), "").unwrap();
        assert_eq!(code_of(child), Some(128 + libc::SIGABRT));
        assert!(folder.join("out.svg").exists());
    }
}

#[test]
fn every_verb_keeps_its_status_on_unwritable_stderr_and_fails_on_full_stdout() {
    let verb = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let code = |command: &mut Command| command.status().unwrap().code();
    for unwritable in [broken_pipe, full_disk] {
        assert_eq!(code(verb(&["info", "/nowhere.gfr"]).stderr(unwritable())), Some(1));
        assert_eq!(code(verb(&["no-such-verb"]).stderr(unwritable())), Some(2));
        assert_eq!(code(verb(&["settings", "-o", "/dev/null"]).stderr(unwritable())), Some(0));
    }
    // As with other tools, a full disk is an error, but a pipe closed by its reader is not.
    for words in [&["--help"][..], &["settings"]] {
        assert_eq!(code(verb(words).stdout(broken_pipe())), Some(0), "{words:?}");
        assert_eq!(code(verb(words).stdout(full_disk())), Some(1), "{words:?}");
    }
}

#[test]
fn a_full_unread_stderr_does_not_keep_run_from_exiting() {
    use std::os::fd::AsRawFd;
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: both fcntl calls use a pipe of this test. O_NONBLOCK is set only while the test fills the pipe.
    unsafe {
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        while libc::write(writer.as_raw_fd(), [0_u8; 512].as_ptr().cast(), 512) > 0 {}
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, 0);
    }
    let (child, _) = start(run(&[], &["sh", "-c", "exit 3"]), writer.into());
    assert_eq!(code_of(child), Some(3));
    drop(reader);
}

#[test]
fn pipes_and_endless_files_among_the_reports_are_skipped() {
    let script =
        "mkfifo pipe $GPUFLAME_REPORT/a.1.1.json; printf %s \"$PWD/pipe\" > $GPUFLAME_REPORT/a.2.2.2.begun
        ln -s /dev/zero $GPUFLAME_REPORT/a.3.3.json; truncate -s 1T $GPUFLAME_REPORT/a.4.4.json; exit 9";
    let (mut command, _folder) = run(&[], &["sh", "-c", script]).into_command();
    // The memory of the command is limited, because reading an endless file must not use up the memory of the machine.
    let limit = || {
        let limit = libc::rlimit { rlim_cur: 2 << 30, rlim_max: 2 << 30 };
        // SAFETY: setrlimit only reads the struct to which its argument points.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
        Ok(())
    };
    // SAFETY: between fork and exec the child calls only setrlimit, which is async-signal-safe.
    unsafe { command.pre_exec(limit) };
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(code_of(child), Some(9));
}

#[test]
fn the_command_inherits_unchanged_signal_settings_and_file_descriptors() {
    let shown =
        ["sh", "-c", "grep -E 'SigIgn|SigBlk|SigCgt' /proc/self/status; ls /proc/self/fd | head -3; exit 4"];
    let odd = || {
        // SAFETY: each of these system calls is allowed between fork and exec, and allocates no memory.
        unsafe {
            for signal in [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGUSR1] {
                libc::signal(signal, libc::SIG_IGN);
            }
            let mut mask = std::mem::zeroed();
            libc::sigemptyset(&mut mask);
            libc::sigaddset(&mut mask, libc::SIGUSR2);
            libc::sigprocmask(libc::SIG_BLOCK, &mask, std::ptr::null_mut());
            libc::close(0);
        }
        Ok(())
    };
    let shows = |mut command: Command| {
        // SAFETY: SAFETY: `odd` only makes system calls that are allowed between fork and exec.
        unsafe { command.pre_exec(odd) };
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let without =
        shows(Run::new(Path::new("/bin/sh"), Way::None).args(shown[1..].iter().copied()).into_command().0);
    assert!(without.0 == Some(4) && without.1.contains("SigIgn"), "{without:?}");
    assert_eq!(shows(run(&[], &shown).into_command().0), without);
}

#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    let script = scratch("script").join("script");
    fs::write(&script, "exit 4\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let done = run(&[], &[script.to_str().unwrap()]).done();
    assert_eq!(done.code, Some(4), "{}", done.stderr);
}

#[test]
fn a_command_runs_in_a_removed_folder_and_without_a_temporary_folder() {
    let script = format!(
        "mkdir gone; cd gone; rmdir ../gone; TMPDIR=/nowhere exec {} run --library {} -o out -- sh -c 'exit 6'",
        env!("CARGO_BIN_EXE_gpuflame"),
        support::gpuflame().display()
    );
    let folder = scratch("run-removed");
    let output = Command::new("sh").args(["-c", &script]).current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_command_runs_without_a_proc_file_system() {
    // The command finds the library next to itself, because the path of the command is known even without `/proc`.
    let folder = scratch("run-no-proc");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpuflame"), folder.join("gpuflame")).unwrap();
    std::os::unix::fs::symlink(support::gpuflame(), folder.join("libgpuflame.so")).unwrap();
    let script = format!(
        "mount -t tmpfs none /proc || exit 99; exec {}/gpuflame run -- sh -c 'exit 6'",
        folder.display()
    );
    let output = Command::new("unshare").args(["-rm", "sh", "-c", &script]).output();
    let stderr = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    match output {
        Ok(output) if output.status.code() == Some(6) => {}
        Ok(output) if output.status.code() == Some(99) || stderr(&output).starts_with("unshare: ") => {
            skip(&format!("no user namespace can be created here: {}", stderr(&output)));
        }
        Ok(output) => panic!("{:?}: {}", output.status, stderr(&output)),
        Err(error) => skip(&format!("no user namespace can be created here: unshare: {error}")),
    }
}

#[test]
fn replacing_another_injected_tool_is_reported_with_its_path() {
    for way in [&[][..], &["--preload"]] {
        let run = run(way, &[program().to_str().unwrap(), "quick"]);
        let done = run.env("CUDA_INJECTION64_PATH", "/opt/tool/libother.so").done();
        let lines = said(&done, "CUDA_INJECTION64_PATH=/opt/tool/libother.so is replaced");
        assert_eq!((done.code, lines.len()), (Some(7), 1), "{}", done.stderr);
        assert_eq!(said(&done, "ending (process ").len(), 1, "{}", done.stderr);
    }
    let run = run(&[], &["true"]).env("CUDA_INJECTION64_PATH", support::gpuflame());
    assert_eq!(said(&run.done(), "is replaced"), [""; 0]);
}

#[test]
fn a_musl_program_runs_with_preload() {
    let folder = scratch("run-musl");
    fs::write(folder.join("five.c"), "int main(void) { return 5; }\n").unwrap();
    let compiled = Command::new("musl-gcc").args(["five.c", "-o", "five"]).current_dir(&folder).output();
    if !compiled.is_ok_and(|compiled| compiled.status.success()) {
        return skip("musl-gcc compiles no programs here; apt-get install musl-tools");
    }
    let done = run(&["--preload"], &[folder.join("five").to_str().unwrap()]).done();
    assert_eq!(done.code, Some(5), "{}", done.stderr);
}

/// The first process of the command sets the environment variable that the driver reads. The descendants of the first
/// process inherit the variable.
#[test]
fn preload_loads_the_library_at_once_in_descendants_too() {
    let script = "grep -c 'libgpuflame[.]so' /proc/self/maps; true";
    let done = run(&["--preload"], &["sh", "-c", script]).done();
    let mapped: u32 = done.stdout.trim().parse().unwrap();
    assert!(mapped > 0, "{}", done.stderr);
}

/// Returns the words `gpuflame run --library LIBRARY --`, which start a run inside another run.
fn inner() -> String {
    format!("{} run --library {} --", env!("CARGO_BIN_EXE_gpuflame"), support::gpuflame().display())
}

#[test]
fn reports_arrive_from_processes_in_other_folders_and_from_nested_runs() {
    let quick = format!("{} quick", program().display());
    for script in [format!("cd /; exec {quick}"), format!("exec {} {quick}", inner())] {
        let run = run(&["-o", "there"], &["sh", "-c", &script]).env("TMPDIR", "temporary");
        let (mut command, folder) = run.into_command();
        fs::create_dir(folder.join("temporary")).unwrap();
        let done = Done::from_output(command.output().unwrap(), folder);
        let lines = said(&done, "ending (process ");
        let expected = 1 + usize::from(script.contains(" run "));
        assert_eq!((done.code, lines.len()), (Some(7), expected), "{}", done.stderr);
        assert_eq!(said(&done, "no report arrived"), [""; 0], "{}", done.stderr);
        assert_eq!(fs::read_dir(done.folder.join("temporary")).unwrap().count(), 0);
    }
}

#[test]
fn a_report_arrives_from_a_command_that_changes_its_user() {
    let folder = scratch("run-user");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let dropped = ["setpriv", "--reuid=65534", "--clear-groups", "--"];
    let can_drop = Command::new(dropped[0]).args(&dropped[1..]).arg("ls").arg(program()).output();
    if !can_drop.is_ok_and(|listed| listed.status.success()) {
        return skip("no other user can run the test program here: run the test as root");
    }
    let command = [&dropped[..], &[program().to_str().unwrap(), "quick"]].concat();
    let done = run(&[], &command).in_folder(&folder).env("GPUSIM_TRUTH", "").done();
    assert_eq!((done.code, said(&done, "ending (process ").len()), (Some(7), 1), "{}", done.stderr);
}

#[test]
fn processes_that_called_cuda_and_left_no_file_are_counted() {
    // In this test, no recording window is opened. Therefore there is no checkpoint, whenever the process ends.
    let options = ["--window", "off", "--formats", "csv"];
    for (how, code, count) in [("_exit", 7, 1), ("exec", 0, 1), ("abort", 134, 1)] {
        let run = run(&options, &[program().to_str().unwrap(), "left", how]);
        let (mut command, folder) = run.env("GPUFLAME_CHECKPOINT", "0").into_command();
        fs::write(folder.join("go"), "").unwrap();
        let done = Done::from_output(command.output().unwrap(), folder);
        let words = format!(
            "no report arrived from {count} process that called CUDA and left no file: ending (process "
        );
        assert_eq!((done.code, said(&done, &words).len()), (Some(code), 1), "{how}: {}", done.stderr);
    }
    // If a program cannot be recorded, `gpuflame run` prints the reason.
    let done = run(&[], &[program().to_str().unwrap(), "quick"])
        .with_libraries(&support::stage("run-none", &[]))
        .done();
    let lines = said(&done, "ending (process ");
    assert!(lines.len() == 1 && lines[0].contains(") was not recorded: "), "{}", done.stderr);
}

#[test]
fn a_run_with_gpuflame_disabled_reports_the_variable_that_disables_it() {
    let config = scratch("config").join("off.toml");
    fs::write(&config, "disable = true\n").unwrap();
    let command = [program().to_str().unwrap(), "quick"];
    let by_file = run(&["--config", config.to_str().unwrap()], &command);
    for run in [run(&[], &command).env("GPUFLAME_DISABLE", "1"), by_file] {
        let done = run.done();
        let lines = said(&done, "GPUFLAME_DISABLE=1");
        assert_eq!((done.code, lines.len()), (Some(7), 1), "{}", done.stderr);
        assert!(!done.stderr.contains("--preload"), "{}", done.stderr);
    }
}
