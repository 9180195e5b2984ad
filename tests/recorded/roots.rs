//! Tests the frames at the root of all stacks that name process, thread, GPU and stream.

use std::collections::BTreeMap;

use crate::support::{Done, Run, Way, command, compile};

fn run(root: &str, formats: &str) -> Done {
    let program = compile("tests/programs/roots.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).env("GPUSIM_NDEV", "2");
    run.env("GPUFLAME_ROOT", root).env("GPUFLAME_FORMATS", formats).ok()
}

/// Returns the GPU time in a file, keyed by the first `count` frames, which are the root frames.
fn by_root(done: &Done, file: &str, count: usize) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (frames, weight) in done.folded_file(file) {
        assert!(["main", "run"].contains(&frames[count].as_str()), "{frames:?}");
        *sums.entry(frames[..count].join(";")).or_default() += weight;
    }
    sums
}

/// Returns the program's description of its threads, in the order in which the threads ran.
fn threads(done: &Done) -> Vec<String> {
    done.stdout.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

fn expected<const N: usize>(sums: [(String, u64); N]) -> BTreeMap<String, u64> {
    BTreeMap::from(sums)
}

#[test]
fn threads_are_rooted_by_name_and_separated_by_id_if_names_repeat() {
    let done = run("thread", "folded");
    let ids = threads(&done);
    let expected = expected([
        ("[thread left]".to_owned(), 700),
        ("[thread right]".to_owned(), 1400),
        (format!("[thread worker {}]", ids[2]), 2100),
        (format!("[thread worker {}]", ids[3]), 2800),
        ("[thread roots]".to_owned(), 1400),
    ]);
    assert_eq!(by_root(&done, "out.folded", 1), expected, "{}", done.stderr);
}

#[test]
fn process_gpu_and_stream_roots_appear_in_the_requested_order() {
    let done = run("process,stream,device", "folded,gfr,idle");
    let process = format!("[process roots {}]", threads(&done)[4]);
    let root = |stream: &str, gpu: u32| format!("{process};[stream {stream}];[GPU {gpu}]");
    // Streams that the program creates have the ids 13 and up. Each CUDA context has a stream 7.
    let sums = expected([
        (root("13", 0), 700),
        (root("14", 1), 1400),
        (root("15", 0), 2100),
        (root("16", 1), 2800),
        (root("7 of GPU 0, context 1", 0), 700),
        (root("7 of GPU 1, context 2", 1), 700),
    ]);
    assert_eq!(by_root(&done, "out.folded", 3), sums, "{}", done.stderr);
    // Stacks of idle time have no frame for a stream, because idle time belongs to no stream.
    let idle = done.folded_file("out.idle.folded");
    assert!(
        idle.iter().all(|(frames, _)| frames[0] == process && frames[1].starts_with("[GPU ")),
        "{idle:?}"
    );
    let again = ["flamegraph", "out.gfr", "--format", "folded", "--root", "process,stream,device"];
    assert_eq!(command::gpuflame(&done.folder, again).ok().stdout, done.file("out.folded"));
}
