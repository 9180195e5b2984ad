//! Tests an output folder that is removed or renamed during the run. The messages that gpuflame prints at the exit must
//! be true. gpuflame restores files whose content is still available through open descriptors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::running::Running;
use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, compile};
use gpuflame_offline::run::{self, ReadOptions};

/// Compiles a program that launches 1,000 kernels of 1,000 ns, prints a line, and exits when a file `go` exists.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]))
}

fn prepare(formats: &str) -> Run {
    let run = Run::new(program(), Way::Injected).args(["left", "exit"]).env("GPUFLAME_OUTPUT", "deep/out");
    run.env("GPUFLAME_FORMATS", formats).env("GPUFLAME_CHECKPOINT", "0.05")
}

/// Waits until the recording contains all launches, calls `change` on the output folder, and waits for the exit of the
/// program.
fn changed(run: Run, change: impl FnOnce(&Path)) -> Done {
    let mut running = Running::of(run);
    let recording = running.folder.join("deep/out.gfr");
    running.wait_for(|_| {
        let read = run::read(&recording, &ReadOptions::default());
        let matched = read.map(|run| run.ledger().tally.activities.matched);
        (matched.as_ref().is_ok_and(|matched| *matched == 1100), format!("{matched:?}"))
    });
    change(&running.folder);
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    done
}

/// Asserts that every file that the ledger names exists. Returns the paths of the files that the ledger names.
fn assert_written(done: &Done) -> Vec<PathBuf> {
    let files: Vec<_> = done.ledger("wrote").into_iter().map(PathBuf::from).collect();
    for file in &files {
        assert!(file.is_file(), "{}\n{}", file.display(), done.stderr);
    }
    files
}

fn folded_of(done: &Done, recording: &str) -> String {
    command(&done.folder, ["-q", "flamegraph", recording, "-o", "-", "--format", "folded"]).ok().stdout
}

#[test]
fn files_of_a_removed_folder_are_written_again_and_reported() {
    let done = changed(prepare("folded,activities,gfr"), |folder| {
        fs::remove_dir_all(folder.join("deep")).unwrap();
    });
    let files = assert_written(&done);
    assert!(files.contains(&done.folder.join("deep/out.gfr")), "{files:?}");
    assert_eq!(done.file("deep/out.activities.csv").lines().count(), 1 + 1100);
    assert_eq!(folded_of(&done, "deep/out.gfr"), done.file("deep/out.folded"));
    let notes: Vec<_> =
        done.stderr.lines().filter(|line| line.contains(" was removed during the run; ")).collect();
    assert_eq!(notes.len(), 2, "{}", done.stderr);
}

#[test]
fn a_recording_moved_during_the_run_is_reported_at_its_new_path() {
    let done = changed(prepare("folded,activities,gfr"), |folder| {
        fs::rename(folder.join("deep"), folder.join("elsewhere")).unwrap();
    });
    let files = assert_written(&done);
    assert!(files.contains(&done.folder.join("elsewhere/out.gfr")), "{files:?}");
    assert!(!done.folder.join("deep/out.gfr").exists());
    assert!(done.stderr.contains("/deep/out.gfr was moved during the run; it is "), "{}", done.stderr);
    assert_eq!(done.file("deep/out.activities.csv").lines().count(), 1 + 1100);
    assert_eq!(folded_of(&done, "elsewhere/out.gfr"), done.file("deep/out.folded"));
    assert!(fs::read_dir(done.folder.join("elsewhere")).unwrap().count() == 1, "no temporary file is left");
}

/// If no descriptor is free above those that the application may use, gpuflame opens the file again for each write.
/// Therefore the content is lost if the file is deleted.
#[test]
fn a_recording_lost_with_its_folder_is_reported_as_not_written() {
    let script = r#"ulimit -n 900 && exec "$0" left exit"#;
    let run = Run::new(Path::new("/bin/sh"), Way::Injected).args(["-c", script]).arg(program());
    let run = run.env("GPUFLAME_OUTPUT", "deep/out").env("GPUFLAME_FORMATS", "folded,gfr");
    let done = changed(run.env("GPUFLAME_CHECKPOINT", "0.05"), |folder| {
        fs::remove_dir_all(folder.join("deep")).unwrap();
    });
    assert_eq!(assert_written(&done), [done.folder.join("deep/out.folded")], "{}", done.stderr);
    let refused = done.ledger("cannot write");
    assert!(refused.len() == 1 && refused[0].contains("deep/out.gfr"), "{}", done.stderr);
}

/// A killed process leaves its checkpoint in the new folder, and a message names the folder that was removed.
#[test]
fn checkpoints_continue_in_a_new_folder_after_theirs_was_removed() {
    let mut running = Running::of(prepare("folded"));
    let recording = running.folder.join("deep/out.gfr");
    running.wait_for(|_| (recording.exists(), "no checkpoint".to_owned()));
    fs::remove_dir_all(running.folder.join("deep")).unwrap();
    running.tell("more");
    running.wait_for(|running| (recording.exists(), running.stderr()));
    running.tell("go");
    let done = running.ended();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    assert_eq!(
        done.stderr.matches(" was removed during the run; checkpoints continue in a new file").count(),
        1
    );
    assert_written(&done);
    let nanos: u64 = done.folded_file("deep/out.folded").iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, 1000 * 1101);
}

/// A hard link in another folder keeps the content of the removed file. However, gpuflame does not know the path of
/// this link, so it copies the content from the open file.
#[test]
fn a_removed_recording_with_a_hard_link_is_restored_under_its_own_name() {
    let done = changed(prepare("folded,gfr"), |folder| {
        fs::hard_link(folder.join("deep/out.gfr"), folder.join("second.gfr")).unwrap();
        assert!(Command::new("rm").arg("-r").arg(folder.join("deep")).status().unwrap().success());
    });
    assert_eq!(assert_written(&done).len(), 2, "{}", done.stderr);
    assert_eq!(folded_of(&done, "deep/out.gfr"), done.file("deep/out.folded"));
    let bytes = |name: &str| fs::read(done.folder.join(name)).unwrap();
    assert!(bytes("deep/out.gfr") == bytes("second.gfr"));
}
