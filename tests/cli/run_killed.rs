//! Tests `gpuflame run` on a process that is killed. `gpuflame run` then makes output files, findings and a page from
//! the recording that the process left behind.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::run::{run, said};
use crate::support::command::gpuflame as command;
use crate::support::{Done, compile};
use gpuflame_offline::run::{self, ReadOptions};

#[test]
fn a_process_ended_by_sigkill_has_a_page_and_its_busy_time_is_reported() {
    let program = compile("tests/programs/ending.c", &["-O2", "-g0"]);
    let script = format!("{} left _exit & echo $! > process; wait", program.display());
    let run = run(&[], &["sh", "-c", &script]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut command, folder) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    let wait_for = |launches: u64| {
        let is_written = || {
            let left = run::read(folder.join("out.gfr"), &ReadOptions::default());
            left.is_ok_and(|run| run.ledger().tally.activities.matched == launches)
        };
        while !is_written() {
            assert!(Instant::now() < deadline, "no checkpoint with {launches} launches");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // The test waits for the second checkpoint, because the process tells `gpuflame run` the name of its file only
    // after the first checkpoint.
    wait_for(1100);
    fs::write(folder.join("more"), "").unwrap();
    wait_for(1101);
    let process = fs::read_to_string(folder.join("process")).unwrap().trim().parse().unwrap();
    // SAFETY: kill accepts any two numbers. The process is the one that the shell of this test started.
    unsafe { libc::kill(process, libc::SIGKILL) };
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
    assert!(line.contains("): 1,101 launches, GPU 0 busy "), "{line}");
    assert_eq!(
        said(&done, &format!("wrote {}", done.folder.join("out.html").display())).len(),
        1,
        "{}",
        done.stderr
    );
    let page = fs::read_to_string(done.folder.join("out.html")).unwrap();
    assert!(page.contains("GPU 0 busy "), "the page shows its first line even without JavaScript");
    assert!(page.contains("not complete"), "the page warns that the end is missing");
}

/// Records a program that ends with `_exit` after 1,100 launches. `gpuflame run` may only write files of at most
/// `max_bytes`, but the recorded program has no such limit. The limit takes the place of a full disk, because it does
/// not affect other processes and needs no privileges.
fn run_with_limit(max_bytes: u64) -> Done {
    let program = compile("tests/programs/ending.c", &["-O2", "-g0"]);
    let run = run(&["--formats", "folded,svg,csv"], &[program.to_str().unwrap(), "left", "_exit"]);
    let (mut command, folder) = run.env("GPUFLAME_CHECKPOINT", "0.05").into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    let is_written = || {
        let left = run::read(folder.join("out.gfr"), &ReadOptions::default());
        left.is_ok_and(|run| run.ledger().tally.activities.matched == 1100)
    };
    while !is_written() {
        assert!(Instant::now() < deadline, "no checkpoint with 1,100 launches");
        std::thread::sleep(Duration::from_millis(10));
    }
    let limit = libc::rlimit { rlim_cur: max_bytes, rlim_max: libc::RLIM_INFINITY };
    let process = i32::try_from(child.id()).unwrap();
    // SAFETY: prlimit reads the struct. With the null pointer, prlimit does not return the earlier limit.
    let done = unsafe { libc::prlimit(process, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(done, 0);
    fs::write(folder.join("go"), "").unwrap();
    Done::from_output(child.wait_with_output().unwrap(), folder)
}

/// Returns the names of those files in `folder` that are outputs of the run.
fn outputs(folder: &std::path::Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("out."));
    names.sort();
    names
}

#[test]
fn recovered_files_that_do_not_fit_are_named_and_smaller_files_are_written() {
    // The SVG file contains a script, and is larger than 8 KiB. The folded file and the CSV table have only one line
    // per stack.
    for (max_bytes, missing) in
        [(0, &["out.csv", "out.folded", "out.set.json", "out.svg"][..]), (8 << 10, &["out.svg"])]
    {
        let done = run_with_limit(max_bytes);
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        assert!(said(&done, "saw no process").is_empty(), "{}", done.stderr);
        let [line] = said(&done, "ending (process ").as_slice()[..1] else { panic!("{}", done.stderr) };
        assert!(line.contains("): 1,100 launches, GPU 0 busy "), "{line}");
        for name in missing {
            let words = format!("{} was not written: ", done.folder.join(name).display());
            assert_eq!(said(&done, &words).len(), 1, "{name}: {}", done.stderr);
        }
        let written = |name: &&str| !missing.contains(name);
        let all = ["out.csv", "out.folded", "out.gfr", "out.set.json", "out.svg"];
        let left: Vec<_> = all.into_iter().filter(written).collect();
        assert_eq!(outputs(&done.folder), left, "{}", done.stderr);
        let recording = done.folder.join("out.gfr");
        let advice = format!(
            "{} of 4 files were not written, but their data is in the recording {1}: remove the cause (for example, \
             free disk space), then run `gpuflame recover {1}`",
            missing.len(),
            recording.display()
        );
        let [line] = said(&done, &advice)[..] else { panic!("{}", done.stderr) };
        assert!(line.starts_with("gpuflame: ending (process "), "{line}");
        // The message suggests a command, and this command works.
        command(&done.folder, ["recover", "out.gfr"]).ok();
        let number = if missing.len() == 4 { "" } else { ".1" };
        assert!(done.folder.join(format!("out{number}.svg")).exists(), "{:?}", outputs(&done.folder));
    }
}

#[test]
fn recover_writes_the_files_that_fit_and_exits_with_1() {
    let done = run_with_limit(0);
    let script = r#"ulimit -f 16 && exec "$0" recover out.gfr"#;
    let mut limited = std::process::Command::new("/bin/sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_gpuflame")]).current_dir(&done.folder);
    let limited = limited.output().unwrap();
    let stderr = String::from_utf8(limited.stderr).unwrap();
    assert_eq!(limited.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("out.svg was not written: ") && stderr.contains(" files were not written"),
        "{stderr}"
    );
    let names = outputs(&done.folder);
    assert!(names.contains(&"out.csv".to_owned()) && !names.contains(&"out.svg".to_owned()), "{stderr}");
}
