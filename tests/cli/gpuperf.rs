//! Tests `gpuflame gpuperf`, which replaces the runner of the eBPF tutorial: its options, files and exit code.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::run::{send, wait_for_launches};
use crate::support::{self, Done, Run, Way, compile};

fn gpuperf(options: &[&str], command: &[&str]) -> Run {
    Run::new(Path::new(env!("CARGO_BIN_EXE_gpuflame")), Way::None)
        .arg("gpuperf")
        .arg("--library")
        .arg(support::gpuflame())
        .args(options.iter().copied())
        .args(command.iter().copied())
}

/// Returns those of the tutorial's file names for which a file exists after a run.
fn files(done: &Done) -> Vec<&'static str> {
    let all = ["cpu_results.txt", "gpu_results.json", "gpu_results.txt", "merged_trace.folded"];
    all.into_iter().filter(|name| done.folder.join(name).exists()).collect()
}

#[test]
fn launches_are_merged_by_id_and_the_commands_exit_code_is_returned() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let script = format!("{} 3 2; exit 3", program.display());
    let done = gpuperf(&[], &["sh", "-c", &script]).done();
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    assert_eq!(files(&done).len(), 4, "{}", done.stderr);
    assert!(done.stdout.contains("Stacks matched: 12 by id, 0 by order, 0 by time"), "{}", done.stdout);
    // The run has 12 kernels of 700 ns each.
    let merged = done.file("merged_trace.folded");
    assert_eq!(merged.lines().count(), 1, "{merged}");
    assert!(merged.starts_with("worker;"), "{merged}");
    assert!(merged.ends_with(";cudaLaunchKernel;[GPU_Kernel]step_d700 8400\n"), "{merged}");
    assert_eq!(done.file("cpu_results.txt").lines().count(), 12);
}

#[test]
fn files_that_the_options_exclude_are_not_written() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let program = program.to_str().unwrap();
    for (option, wanted) in [
        ("--cpu-only", &["cpu_results.txt"][..]),
        ("--no-gpu", &["cpu_results.txt"]),
        ("--no-cpu", &["gpu_results.json", "gpu_results.txt"]),
        ("--no-merge", &["cpu_results.txt", "gpu_results.json", "gpu_results.txt"]),
    ] {
        let done = gpuperf(&[option], &[program]).done();
        assert_eq!((done.code, &*files(&done)), (Some(0), wanted), "{option}: {}", done.stderr);
    }
    let done = gpuperf(&["-o", "a.txt", "-c", "b.json", "-p", "c.txt", "-m", "d.folded"], &[program]).done();
    assert!(["a.txt", "b.json", "c.txt", "d.folded"].iter().all(|name| done.folder.join(name).exists()));
}

#[test]
fn an_interrupted_run_is_still_merged_and_exits_with_130() {
    let program = compile("tests/programs/ending.c", &["-O2", "-g0"]);
    let run = gpuperf(&[], &[program.to_str().unwrap(), "for_ever", "1"]);
    let (mut command, folder) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_launches(&folder);
    send(&child, libc::SIGINT);
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    assert_eq!(files(&done).len(), 4, "{}", done.stderr);
    let merged = fs::read_to_string(done.folder.join("merged_trace.folded")).unwrap();
    assert!(merged.contains("main;launch;"), "{merged}");
}
