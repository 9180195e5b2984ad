//! Sources that are odd: what is no trace says what to do next, what is cut short is taken on request, and what we write as
//! folded stacks is read again.

use std::fs;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

fn trace() -> Trace {
    let mut trace = Trace::default();
    for at in 0..2000 {
        let start = 100 * u64::from(at);
        trace.launch(at + 1, "gemm", 1, start, start + 10, start + 20);
    }
    trace
}

#[test]
fn what_is_no_trace_says_what_to_do_next() {
    let folder = scratch("odd");
    for (name, bytes, words) in [
        ("a.nsys-rep", &b"\x01\x02\x03\x04binary"[..], ["Nsight Systems", "nsys export --type sqlite"]),
        ("a.qdrep", b"\x01\x02\x03\x04binary", ["Nsight Systems", "nsys export"]),
        ("a.pftrace", b"\x0a\x05\x08\x01binary", ["Perfetto", "traceconv json"]),
        ("a.xplane.pb", b"\x0a\x05\x08\x01binary", ["XPlane", "trace.json.gz"]),
        ("b.pb", b"\x0a\x8c\x05\x08\x01\x12\x0d/device:GPU:0 rest", ["XPlane", "libgpuflame.so"]),
        (
            "a.json",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n",
            ["Git LFS", "git lfs pull"],
        ),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
        gpuflame(&folder, ["info", name]).fails(1, &[&[name], &words[..]].concat());
    }
}

#[test]
fn a_trace_that_was_cut_short_is_taken_by_every_verb_that_is_told_to() {
    let folder = scratch("odd");
    trace().write(&folder.join("whole.json"));
    let whole = fs::read(folder.join("whole.json")).unwrap();
    fs::write(folder.join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&whole).unwrap();
    let packed = packed.finish().unwrap();
    fs::write(folder.join("cut.json.gz"), &packed[..packed.len() / 2]).unwrap();
    // So short that the cut is met before anybody asked for events.
    let mut short = GzEncoder::new(Vec::new(), Compression::fast());
    short.write_all(&whole[..2000]).unwrap();
    let short = short.finish().unwrap();
    fs::write(folder.join("short.json.gz"), &short[..short.len() - 30]).unwrap();
    gpuflame(&folder, ["info", "short.json.gz"]).fails(1, &["short.json.gz", "cut short"]);
    let ran = gpuflame(&folder, ["flamegraph", "short.json.gz", "--accept-cut"]).ok();
    assert!(ran.stdout.starts_with("cudaLaunchKernel;[GPU_Kernel]gemm "), "{}", ran.stdout);
    for name in ["cut.json", "cut.json.gz"] {
        for verb in
            [&["info"][..], &["top"], &["flamegraph"], &["check"], &["view"], &["convert", "--to", "folded"]]
        {
            gpuflame(&folder, verb.iter().chain(&[name])).fails(1, &[name, "cut short"]);
            let ran = gpuflame(&folder, verb.iter().chain(&[name, "--accept-cut"])).ok();
            assert!(ran.stderr.contains("cut short behind byte"), "{verb:?} {name}: {}", ran.stderr);
        }
        let drawn = gpuflame(&folder, ["flamegraph", name, "--accept-cut", "--quiet"]).ok().stdout;
        // Where the file ends between a launch and its kernel the launch has a line of its own.
        let (stack, nanos) = drawn.lines().next().unwrap().rsplit_once(' ').unwrap();
        assert_eq!(stack, "cudaLaunchKernel;[GPU_Kernel]gemm");
        // Each is of 10 us, and about half of them are there.
        let nanos: u64 = nanos.parse().unwrap();
        assert!(nanos.is_multiple_of(10_000) && (5_000_000..=15_000_000).contains(&nanos), "{nanos}");
    }
}

#[test]
fn what_is_written_as_folded_stacks_is_read_again_whatever_it_begins_with() {
    let folder = scratch("odd");
    let mut trace = trace();
    trace.work("kernel", 90_000, "orphan", 7, 300_000, 300_010);
    trace.write(&folder.join("a.json"));
    let sum = |text: &str| -> u64 {
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    for root in ["process", "thread", "device", "stream", "thread,device"] {
        let folded = gpuflame(&folder, ["flamegraph", "a.json", "--root", root, "--quiet"]).ok().stdout;
        assert!(folded.starts_with('['), "{folded}");
        fs::write(folder.join("a.folded"), &folded).unwrap();
        let again = gpuflame(&folder, ["flamegraph", "a.folded"]).ok().stdout;
        assert_eq!((sum(&again), again.lines().count()), (20_010_000, folded.lines().count()), "{root}");
    }
    let idle = gpuflame(&folder, ["flamegraph", "a.json", "--idle", "--quiet"]).ok().stdout;
    let idle: String =
        idle.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    assert!(idle.starts_with('['), "{idle}");
    fs::write(folder.join("idle.folded"), &idle).unwrap();
    assert_eq!(sum(&gpuflame(&folder, ["flamegraph", "idle.folded"]).ok().stdout), sum(&idle));
}

#[test]
fn a_rank_that_is_damaged_is_left_out_and_the_others_are_merged() {
    let folder = scratch("odd");
    for rank in 0..3 {
        trace().write(&folder.join(format!("rank{rank}.json")));
    }
    fs::write(folder.join("rank1.json"), "{\"traceEvents\": [{\"ph\": \"X\"} nonsense").unwrap();
    let ran = gpuflame(&folder, ["merge-ranks", ".", "-o", "all.folded"]).ok();
    assert!(ran.stderr.contains("rank1.json") && ran.stderr.contains("rank 1 is left out"), "{}", ran.stderr);
    let merged = fs::read_to_string(folder.join("all.folded")).unwrap();
    assert_eq!(merged.lines().count(), 2, "{merged}");
    gpuflame(&folder, ["merge-ranks", "rank1.json"]).fails(1, &["rank1.json"]);
    trace().write(&folder.join("h100_bert.json"));
    let unrelated = ["merge-ranks", "rank0.json", "h100_bert.json"];
    gpuflame(&folder, unrelated).fails(2, &["--assume-order"]);
    gpuflame(&folder, unrelated.iter().chain(&["--assume-order"])).ok();
}
