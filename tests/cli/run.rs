//! `gpuflame run`: the command as without it, and a picture of every process of it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::command::gpuflame as command;
use crate::support::{self, Done, Run, Way, compile, scratch};

/// Launches kernels of 1,000 ns and ends in many ways; see there.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]))
}

/// `gpuflame run OPTIONS -- COMMAND` on the simulated stack.
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
fn a_command_is_recorded_and_its_exit_code_is_ours() {
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

#[test]
fn what_the_options_say_goes_before_the_environment() {
    let done =
        run(&["-o", "a/b-%e", "--formats", "csv", "-q"], &[program().to_str().unwrap(), "quick"]).done();
    assert_eq!(done.code, Some(7));
    assert!(done.folder.join("a/b-ending.csv").exists());
    assert!(!done.folder.join("out.folded").exists() && !done.folder.join("a/b-ending.svg").exists());
    assert!(done.stderr.lines().all(|line| !line.starts_with("gpuflame:")), "{}", done.stderr);
}

#[test]
fn a_folder_gets_files_of_the_usual_name_and_is_made() {
    let done = run(&["-o", "new/", "--formats", "svg"], &[program().to_str().unwrap(), "quick"]).done();
    let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
    let process = line.split("process ").nth(1).unwrap().split(')').next().unwrap();
    let picture = done.folder.join(format!("new/gpuflame-ending.{process}.svg"));
    assert!(picture.exists() && line.ends_with(&format!("; {}", picture.display())), "{}", done.stderr);
}

#[test]
fn a_command_none_of_whose_launches_were_in_a_window_is_told() {
    let done = run(&["--window", "off"], &[program().to_str().unwrap(), "quick"]).done();
    let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
    assert!(line.contains(" launches, none in a window; "), "{line}");
}

/// A folder with nothing in it but an `xdg-open` that notes what it is to open, and ends so.
fn desktop(ends_with: i32) -> PathBuf {
    let folder = scratch("desktop");
    let opener = folder.join("xdg-open");
    fs::write(&opener, format!("#!/bin/sh\necho \"$1\" >> opened\nexit {ends_with}\n")).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn the_first_picture_is_opened_and_where_it_cannot_be_its_place_is_told() {
    let command = [program().to_str().unwrap(), "quick"];
    for (path, is_opened, why) in [
        (desktop(0), true, None),
        (desktop(3), true, Some("xdg-open does not show it")),
        (scratch("no-desktop"), false, Some("there is no xdg-open here")),
    ] {
        let done = run(&["--open"], &command).env("PATH", &path).done();
        let picture = done.folder.join("out.svg").display().to_string();
        let opened = fs::read_to_string(done.folder.join("opened")).unwrap_or_default();
        assert_eq!(opened, if is_opened { format!("{picture}\n") } else { String::new() });
        let lines = said(&done, "in a browser");
        match why {
            None => assert!(lines.is_empty(), "{}", done.stderr),
            Some(why) => assert_eq!(lines, [format!("gpuflame: {why}; open {picture} in a browser")]),
        }
    }
    let done = run(&["--open", "--formats", "csv"], &command).env("PATH", desktop(0)).done();
    assert!(!done.folder.join("opened").exists());
    assert_eq!(said(&done, "no picture to open; --formats svg writes one").len(), 1, "{}", done.stderr);
}

#[test]
fn a_window_and_a_file_of_settings_say_what_the_variables_do() {
    let timed = compile("tests/programs/timed.c", &["-O2"]);
    let config = scratch("config").join("nightly.toml");
    fs::write(&config, "output = 'night/%e'\nformats = ['folded', 'csv']\nsteps = '1..3'\n").unwrap();
    let options = ["--config", config.to_str().unwrap(), "--window", "steps=2..4", "--formats", "folded"];
    // Of what several say the options count, then the environment, then the file.
    let done = run(&options, &[timed.to_str().unwrap(), "steps", "5"]).env("GPUFLAME_STEPS", "4..5").done();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, parts["matched"]), (15, 2 + 3), "{}", done.stderr);
    assert!(!done.folder.join("night").exists(), "the environment names the outputs");
    assert!(done.folder.join("out.folded").exists() && !done.folder.join("out.csv").exists());
}

#[test]
fn samples_that_the_option_asks_for_are_drawn() {
    let sampled = compile("tests/programs/sampled.c", &["-O2", "-pthread"]);
    let options = ["--cpu-samples", "999", "--formats", "csv"];
    let done = run(&options, &[sampled.to_str().unwrap(), "late"]).done();
    assert_eq!((done.code, done.ledger("cpu samples").len()), (Some(0), 1), "{}", done.stderr);
    assert!(done.folder.join("out.cpu.svg").exists() && done.folder.join("out.cpu.folded").exists());
    assert!(!done.folder.join("out.svg").exists());
}

#[test]
fn a_window_that_cannot_be_is_an_error_before_anything_runs() {
    let wrong = scratch("config").join("wrong.toml");
    fs::write(&wrong, "formats = ['svg']\nduration = 'long'\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    for (options, words) in [
        (["--window", "duration=0"], "--window duration=0: expected a number of seconds above 0"),
        (["--window", "when=now"], "`when=now` is none of delay=, duration=, repeat=, steps=,"),
        (["--window", "flag=/tmp"], "--window flag=/tmp: /tmp is a folder"),
        (["--config", wrong], "wrong.toml: duration: expected a number of seconds"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: "),
    ] {
        let done = run(&options, &["touch", "ran"]).done();
        assert!(done.code == Some(2) || done.code == Some(1), "{:?}: {}", done.code, done.stderr);
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert!(!done.folder.join("ran").exists(), "{options:?}");
    }
}

#[test]
fn every_process_of_the_command_has_a_line_and_files_of_its_own() {
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

#[test]
fn a_command_that_records_nothing_is_as_without_us_and_is_told() {
    let done = run(&[], &["false"]).done();
    assert_eq!((done.code, said(&done, "nothing was recorded").len()), (Some(1), 1), "{}", done.stderr);
    let done = run(&[], &["sh", "-c", "kill -9 $$"]).done();
    assert_eq!(done.code, Some(128 + 9), "{}", done.stderr);
    let echoed = support::command::gpuflame_with(
        &scratch("run-cat"),
        ["run", "--library", support::gpuflame().to_str().unwrap(), "cat"],
        b"what it reads",
    );
    assert_eq!((echoed.code, &echoed.stdout[..]), (0, "what it reads"));
}

/// Waits until the program launches.
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
    // SAFETY: kill takes any two numbers; the process is our child.
    unsafe { libc::kill(child.id() as i32, signal) };
}

#[test]
fn what_a_terminal_sends_to_all_is_left_to_the_command_and_what_is_sent_to_us_is_passed_on() {
    for (signal, code) in [(libc::SIGTERM, 128 + 15), (libc::SIGHUP, 128 + 1)] {
        let (mut command, folder) = run(&[], &[program().to_str().unwrap(), "for_ever", "1"]).into_command();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_launches(&folder);
        // To us alone: a terminal's would reach the command as well, which would end.
        send(&child, libc::SIGINT);
        send(&child, libc::SIGQUIT);
        send(&child, signal);
        let done = Done::of(child.wait_with_output().unwrap(), folder);
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert_eq!(said(&done, "ending (process ").len(), 1, "{}", done.stderr);
        let folded = done.file("out.folded");
        // The program may have been stopped inside the tracer, which then hands over nothing more.
        assert!(
            folded.contains("main;launch;") && folded.contains(";cudaLaunchKernel;"),
            "{folded}{}",
            done.stderr
        );
    }
}

#[test]
fn what_ends_without_a_word_is_recovered_in_the_formats_that_were_asked_for() {
    let program = program().to_str().unwrap();
    // With rows the recording itself is what is left.
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
                let left = gpuflame::read(folder.join("out.gfr"), &gpuflame::ReadOptions::default());
                left.is_ok_and(|run| run.ledger().tally.activities.matched == 1100)
            };
            while !is_written() {
                assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "{formats} {how}");
                std::thread::sleep(Duration::from_millis(10));
            }
            fs::write(folder.join("go"), "").unwrap();
            let done = Done::of(child.wait_with_output().unwrap(), folder);
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

/// A name that is no text.
fn odd_name(rest: &str) -> OsString {
    OsString::from_vec([b"\xff", rest.as_bytes()].concat())
}

/// A folder for runs, of such a name, and with a percent sign.
fn odd_folder() -> PathBuf {
    let folder = scratch("bytes").join(OsStr::from_bytes(b"caf\xe9%p"));
    fs::create_dir(&folder).unwrap();
    folder
}

/// The files of such names in it.
fn odd_files(folder: &Path) -> Vec<OsString> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.retain(|name| name.as_bytes()[0] == 0xff);
    files.sort();
    files
}

/// `gpuflame run -o PREFIX --formats gfr,svg --open -- ending HOW` there.
fn run_odd(folder: &Path, prefix: OsString, how: &[&str]) -> Run {
    let ours = Run::new(Path::new(env!("CARGO_BIN_EXE_gpuflame")), Way::None).in_folder(folder);
    let ours = ours.arg("run").arg("--library").arg(support::gpuflame()).arg("-o").arg(prefix);
    let ours = ours.args(["--formats", "gfr,svg", "--open", "--"]).arg(program());
    ours.args(how.iter().copied()).env("PATH", desktop(0)).env("GPUSIM_TRUTH", "")
}

#[test]
fn files_whose_names_are_no_text_are_named_opened_read_and_of_their_ranks() {
    let folder = odd_folder();
    for (rank, name) in [("3", odd_name("three")), ("5", odd_name("five"))] {
        let done = run_odd(&folder, name, &["quick"]).env("RANK", rank).done();
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        assert_eq!(said(&done, "ended without its exit hooks"), [""; 0], "{}", done.stderr);
        let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
        assert!(line.contains("/caf\u{fffd}%p/\u{fffd}") && line.ends_with(".svg"), "{line}");
    }
    let names = ["five.gfr", "five.set.json", "five.svg", "three.gfr", "three.set.json", "three.svg"];
    assert_eq!(odd_files(&folder), names.map(odd_name));
    let opened = fs::read(folder.join("opened")).unwrap();
    let opened: Vec<_> = opened.split(|byte| *byte == b'\n').collect();
    let pictures = ["three.svg", "five.svg"].map(|name| folder.join(odd_name(name)));
    assert_eq!(opened, [pictures[0].as_os_str().as_bytes(), pictures[1].as_os_str().as_bytes(), b""]);
    let (recording, folded) = (odd_name("three.gfr"), odd_name("three.folded"));
    command(&folder, [OsStr::new("flamegraph"), &recording, OsStr::new("-o"), &folded]).ok();
    assert!(fs::read_to_string(folder.join(folded)).unwrap().contains("[GPU_Kernel]"));
    command(&folder, ["merge-ranks", ".", "-o", "all.folded"]).ok();
    let merged = fs::read_to_string(folder.join("all.folded")).unwrap();
    assert!(merged.contains("rank 3;") && merged.contains("rank 5;"), "{merged}");
}

#[test]
fn what_ends_without_a_word_is_recovered_under_a_name_that_is_no_text() {
    let folder = odd_folder();
    let run = run_odd(&folder, odd_name(""), &["left", "_exit"]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut command, _) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    let is_written = || {
        let left = gpuflame::read(folder.join(odd_name(".gfr")), &gpuflame::ReadOptions::default());
        left.is_ok_and(|run| run.ledger().tally.activities.matched == 1100)
    };
    while !is_written() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::write(folder.join("go"), "").unwrap();
    let done = Done::of(child.wait_with_output().unwrap(), folder);
    assert_eq!(said(&done, "ended without its exit hooks").len(), 1, "{}", done.stderr);
    assert_eq!(odd_files(&done.folder), [".gfr", ".set.json", ".svg"].map(odd_name), "{}", done.stderr);
}

#[test]
fn what_lives_on_is_named_and_not_awaited() {
    let begun = Instant::now();
    let done = run(&[], &["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(200));
    let number: i32 = done.stdout.trim().parse().unwrap();
    let lines = said(&done, "still running, and not awaited: processes ");
    // SAFETY: kill takes any two numbers; the process is the one that the shell of this test left.
    unsafe { libc::kill(number, libc::SIGKILL) };
    assert!(lines.len() == 1 && lines[0].ends_with(&format!(" {number}")), "{}", done.stderr);
}

#[test]
fn what_is_becoming_another_program_lives_on() {
    // It becomes itself again and again: most of its life it is between two programs.
    let folder = scratch("run-becoming");
    let again = folder.join("again");
    fs::write(&again, "#!/bin/sh\nexec \"$0\"\n").unwrap();
    fs::set_permissions(&again, fs::Permissions::from_mode(0o755)).unwrap();
    let becomes = format!("{} >/dev/null 2>&1 & echo $!", again.display());
    for _ in 0..20 {
        let done = run(&[], &["sh", "-c", &becomes]).ok();
        let number: i32 = done.stdout.trim().parse().unwrap();
        let lines = said(&done, "still running, and not awaited: processes ");
        // SAFETY: kill takes any two numbers; the process is the one that the shell of this test left.
        unsafe { libc::kill(number, libc::SIGKILL) };
        assert!(lines.len() == 1 && lines[0].ends_with(&format!(" {number}")), "{}", done.stderr);
    }
}

#[test]
fn a_command_line_that_cannot_be_run_is_one_line() {
    let folder = scratch("run-bad");
    let library = support::gpuflame();
    let library = library.to_str().unwrap();
    fs::write(folder.join("text.so"), "no library at all, but long enough").unwrap();
    fs::write(folder.join("not-executable"), "x").unwrap();
    let run = |args: &[&str]| command(&folder, [&["run"], args].concat());
    run(&["--library", library, "./not-there"]).fails(127, &["./not-there", "No such file"]);
    run(&["--library", library, "./not-executable"]).fails(126, &["./not-executable", "ermission denied"]);
    run(&["--library", "text.so", "true"]).fails(1, &["text.so", "no shared library", "--library"]);
    run(&["--library", "nothing.so", "true"]).fails(1, &["nothing.so", "No such file", "--library"]);
    run(&["--library", library, "--cpu-samples", "20000", "true"]).fails(2, &["--cpu-samples", "10000 Hz"]);
    run(&["--library", library, "--formats", "svg,jpeg", "true"]).fails(2, &["--formats", "jpeg", "folded"]);
    // Neither a program nor somebody else's library has what the driver calls.
    let own = env!("CARGO_BIN_EXE_gpuflame");
    run(&["--library", own, "true"]).fails(1, &["gpuflame is another library, or a program", "--library"]);
    let other = support::cuda().join("libcudart.so.13");
    run(&["--library", other.to_str().unwrap(), "true"]).fails(1, &["is another library, or a program"]);
    // An option that is misspelt is no command; what stands behind the command is the command's.
    let said = run(&["--library", library, "--format", "svg", "true"]);
    assert!(said.code == 2 && said.stderr.contains("--formats"), "{}", said.stderr);
    let ran = run(&["--library", library, "echo", "-o", "--formats", "--", "x"]).ok();
    assert_eq!(ran.stdout, "-o --formats -- x\n");
    let ran = command(&folder, ["record", "--library", library, "--", "echo", "also called record"]).ok();
    assert_eq!(ran.stdout, "also called record\n");
}
