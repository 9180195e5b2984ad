//! Tests stacks that contain code generated at run time, which has no unwind information. The stacks continue through
//! this code, and its frames have the names that the process wrote for `perf`.
#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::support::{Done, Run, Way, compile, skip};

fn program(how: &str) -> Run {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-O2", "-fomit-frame-pointer"];
    let program = PROGRAM.get_or_init(|| compile("tests/programs/generated.c", &flags));
    Run::new(program, Way::Injected).arg(how)
}

/// Returns the frames of the only stack, without the frames of the CUDA call and the kernel.
fn stack(done: &Done) -> Vec<String> {
    let [(frames, 500)] = &done.folded()[..] else { panic!("{:?}\n{}", done.folded(), done.stderr) };
    assert!(done.ledger("lost: ")[0].contains(" stacks_cut 0, "), "{}", done.stderr);
    frames[..frames.len() - 2].to_vec()
}

#[test]
fn generated_code_is_named_from_perf_maps_and_jit_dumps() {
    for how in ["map", "dump"] {
        let done = program(how).ok();
        done.assert_exact();
        assert_eq!(stack(&done), ["main", "run", "outer_jit", "step", "inner jit", "leaf"]);
    }
}

#[test]
fn unnamed_generated_code_does_not_truncate_a_stack() {
    let done = program("none").ok();
    let stack = stack(&done);
    // Each offset in the generated page is one less than the return address of a call.
    assert_eq!(stack, ["main", "run", "[unknown]+0x9", "step", "[unknown]+0x105", "leaf"]);
}

#[test]
fn an_ambiguous_generated_address_gets_no_name_and_is_counted() {
    let done = program("several").ok();
    let stack = stack(&done);
    assert!(stack[2].starts_with("[unknown]+0x"), "{stack:?}");
    assert_eq!(stack[4], "inner jit");
    let line = "gpuflame: addresses of generated code without a name, because several functions used them in \
                turn: 1\n";
    assert_eq!(done.stderr.matches(line).count(), 1, "{}", done.stderr);
}

#[test]
fn invalid_perf_maps_are_skipped_without_blocking() {
    for (how, why) in [
        ("fifo", Some("not read, because it is not a regular file")),
        ("device", Some("not read, because it is not a regular file")),
        ("theirs", Some("not read, because it belongs to another user")),
        ("garbage", None),
    ] {
        let done = program(how).done();
        if done.code == Some(75) {
            skip("only root can give files to another user");
            continue;
        }
        assert_eq!(done.code, Some(0), "{how}: {}", done.stderr);
        let stack = stack(&done);
        assert_eq!(
            stack.iter().filter(|frame| frame.starts_with("[unknown]+0x")).count(),
            2,
            "{how}: {stack:?}"
        );
        let said = done.stderr.lines().filter(|line| line.starts_with("gpuflame: /tmp/perf-"));
        let said: Vec<_> = said.filter_map(|line| Some(line.split_once(".map: ")?.1)).collect();
        assert_eq!(said, why.into_iter().collect::<Vec<_>>(), "{how}");
    }
}

/// The command reads the recording after the recorded process has ended.
#[test]
fn a_recording_keeps_the_names_of_generated_code() {
    use crate::support::command::gpuflame;

    let done = program("map").env("GPUFLAME_FORMATS", "folded,gfr").ok();
    let args = ["flamegraph", "out.gfr", "--format", "folded", "-o", "again.folded"];
    gpuflame(&done.folder, args).ok();
    assert_eq!(done.folded_file("again.folded"), done.folded());
    assert!(done.file("again.folded").contains(";outer_jit;step;inner jit;leaf;"));
}

#[test]
fn per_window_files_have_the_names_of_generated_code() {
    let done = program("map").env("GPUFLAME_OUTPUT", "out.%w").ok();
    assert!(done.file("out.1.folded").contains(";outer_jit;step;inner jit;leaf;"), "{}", done.stderr);
}
