//! Forked children where no session exists yet: none waits for a lock that a thread held which did not follow it,
//! and one that turns to CUDA is recorded like any other process.

use std::fs;

use crate::support::{Run, Way, compile, gpuflame};

/// Those that run fork handlers, those that do not, and those of which the C library knows nothing.
const WAYS: [&str; 3] = ["fork", "_Fork", "clone"];

#[test]
fn no_child_waits_for_a_name_that_another_thread_was_giving() {
    for flags in [&["-O2"][..], &["-O2", "-DLINKED"]] {
        let program = compile("tests/programs/forks.c", flags);
        for how in WAYS {
            let run = Run::new(&program, Way::None).env("NVTX_INJECTION64_PATH", gpuflame());
            let done = run.args([how, "100"]).done();
            assert_eq!((done.code, done.stdout.as_str()), (Some(0), "hung 0, failed 0\n"), "{how} {flags:?}");
        }
    }
}

#[test]
fn a_child_of_a_process_without_a_session_is_recorded_under_the_ranges_that_were_open() {
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
