//! Tests forked children. A child process must not wait for a lock that a thread of its parent holds. A child process
//! that uses CUDA is recorded like any other process if it was forked before gpuflame started in its parent.

use std::fs;

use crate::support::{Run, Way, compile, gpuflame};

/// Calls that create a child: `fork` runs fork handlers, `_Fork` does not, and `clone` bypasses the C library.
const WAYS: [&str; 3] = ["fork", "_Fork", "clone"];

#[test]
fn a_forked_child_does_not_wait_for_another_threads_range_name() {
    for flags in [&["-O2"][..], &["-O2", "-DLINKED"]] {
        let program = compile("tests/programs/forks.c", flags);
        for how in WAYS {
            let run = Run::new(&program, Way::None).env("NVTX_INJECTION64_PATH", gpuflame());
            let done = run.args([how, "100"]).done();
            assert_eq!((done.code, done.stdout.as_str()), (Some(0), "hung 0, failed 0\n"), "{how} {flags:?}");
        }
    }
}

/// If the parent process is recorded, a child process must write nothing, end as it would without gpuflame, and leave
/// its parent's counts unchanged. This must be so however the child process is created.
#[test]
fn children_forked_after_launches_write_nothing_and_end_as_without_gpuflame() {
    let program = compile("tests/programs/forked.c", &["-O2"]);
    let all = ["_exit", "exit", "quick_exit", "SIGTERM"];
    // A vfork child shares its parent's memory, so exit handlers in the child would change the parent. Therefore a
    // child that vfork created ends without running exit handlers.
    let ways = WAYS.iter().map(|way| (*way, &all[..])).chain([("vfork", &["_exit", "SIGTERM"][..])]);
    for (way, end) in ways.flat_map(|(way, ends)| ends.iter().map(move |end| (way, *end))) {
        let run = |with| Run::new(&program, with).args([way, end]);
        let without = run(Way::None).done();
        let done = run(Way::Injected).env("GPUFLAME_CHECKPOINT", "0.02").done();
        let context = format!("{way} {end}: {}", done.stderr);
        assert_eq!((done.code, &done.stdout), (Some(7), &without.stdout), "{context}");
        assert!(matches!(done.stdout.as_str(), "code 5\n" | "signal 15\n"), "{context}");
        let launches = if way == "vfork" { 210 } else { 200 };
        let (seen, became) = done.sum("launches");
        assert_eq!((seen, became["matched"]), (launches, launches), "{context}");
        assert_eq!(done.folded().iter().map(|(_, nanos)| nanos).sum::<u64>(), 1000 * launches, "{context}");
        let files = fs::read_dir(&done.folder).unwrap().map(|file| file.unwrap().file_name());
        let ours = files.map(|name| name.into_string().unwrap()).filter(|name| name.contains("out"));
        assert_eq!(ours.count(), 7, "{context}");
    }
}

#[test]
fn a_child_forked_before_cuda_starts_is_recorded_under_the_inherited_open_ranges() {
    let program = compile("tests/programs/forks.c", &["-O2"]);
    for how in WAYS {
        let run = Run::new(&program, Way::Injected).env("NVTX_INJECTION64_PATH", gpuflame());
        let done = run.env("GPUFLAME_OUTPUT", "out-%p").args([how, "3", "50"]).ok();
        let files = fs::read_dir(&done.folder).unwrap().map(|file| file.unwrap().file_name());
        let mut outputs: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
        outputs.retain(|name| name.ends_with(".folded") && !name.contains(".idle"));
        assert_eq!(outputs.len(), 3, "{how}: {outputs:?}\n{}", done.stderr);
        let mut stacks: Vec<_> = outputs.iter().flat_map(|name| done.folded_file(name)).collect();
        stacks.sort();
        let stack = |frames: &str| frames.split(';').map(str::to_owned).collect::<Vec<_>>();
        let mut expected: Vec<_> = (0..3)
            .map(|child| {
                let ranges = format!("[range]before;[range]child-{child}");
                stack(&format!("main;be_a_child;launch;cudaLaunchKernel;{ranges};[GPU_Kernel]work_d1000"))
            })
            .chain((0..3).map(|_| {
                stack("elsewhere;launch;cudaLaunchKernel;[range]on a thread;[GPU_Kernel]work_d1000")
            }))
            .map(|frames| (frames, 50_000))
            .collect();
        expected.sort();
        assert_eq!(stacks, expected, "{how}\n{}", done.stderr);
    }
}
