//! Unusual input: errors for files that are not traces say what to do, truncated traces are read on request, and
//! folded stacks that we write can be read again.

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
fn the_error_for_a_file_that_is_not_a_trace_says_what_to_do() {
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
        ("a.idle.svg", b"<?xml version=\"1.0\"?>\n<svg></svg>\n", ["a picture or a table", "--formats gfr"]),
        ("a.csv", b"kind,name,device\nkernel,gemm,0\n", ["a picture or a table", "--formats gfr"]),
        (
            "a.set.json",
            b"{\"process\":1,\"program\":\"a\",\"windows\":[],\"files\":[\"a.svg\"]}\n",
            ["the list of files that one run wrote", "--formats gfr"],
        ),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
        gpuflame(&folder, ["info", name]).fails(1, &[&[name], &words[..]].concat());
    }
}

#[test]
fn every_verb_reads_a_truncated_trace_with_accept_cut() {
    let folder = scratch("odd");
    trace().write(&folder.join("whole.json"));
    let whole = fs::read(folder.join("whole.json")).unwrap();
    fs::write(folder.join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&whole).unwrap();
    let packed = packed.finish().unwrap();
    fs::write(folder.join("cut.json.gz"), &packed[..packed.len() / 2]).unwrap();
    // A trace so short that the truncation is reached while the format is detected.
    let mut short = GzEncoder::new(Vec::new(), Compression::fast());
    short.write_all(&whole[..2000]).unwrap();
    let short = short.finish().unwrap();
    fs::write(folder.join("short.json.gz"), &short[..short.len() - 30]).unwrap();
    gpuflame(&folder, ["info", "short.json.gz"]).fails(1, &["short.json.gz", "truncated"]);
    let ran = gpuflame(&folder, ["flamegraph", "short.json.gz", "--accept-cut"]).ok();
    assert!(ran.stdout.starts_with("cudaLaunchKernel;[GPU_Kernel]gemm "), "{}", ran.stdout);
    for name in ["cut.json", "cut.json.gz"] {
        for verb in
            [&["info"][..], &["top"], &["flamegraph"], &["check"], &["view"], &["convert", "--to", "folded"]]
        {
            gpuflame(&folder, verb.iter().chain(&[name])).fails(1, &[name, "truncated"]);
            let ran = gpuflame(&folder, verb.iter().chain(&[name, "--accept-cut"])).ok();
            assert!(ran.stderr.contains("truncated at byte"), "{verb:?} {name}: {}", ran.stderr);
        }
        let drawn = gpuflame(&folder, ["flamegraph", name, "--accept-cut", "--quiet"]).ok().stdout;
        // If the file ends between a launch and its kernel, the launch has a line of its own.
        let (stack, nanos) = drawn.lines().next().unwrap().rsplit_once(' ').unwrap();
        assert_eq!(stack, "cudaLaunchKernel;[GPU_Kernel]gemm");
        // Each kernel takes 10 us, and about half the kernels are in the file.
        let nanos: u64 = nanos.parse().unwrap();
        assert!(nanos.is_multiple_of(10_000) && (5_000_000..=15_000_000).contains(&nanos), "{nanos}");
    }
}

#[test]
fn folded_output_can_be_read_again_whatever_its_first_frame() {
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
fn a_damaged_rank_is_skipped_and_the_remaining_ranks_are_merged() {
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

#[test]
fn the_error_for_damage_in_mid_file_gives_its_position_and_not_the_end_of_the_file() {
    let folder = scratch("odd");
    trace().write(&folder.join("whole.json"));
    let whole = fs::read_to_string(folder.join("whole.json")).unwrap();
    // The arguments of an event in mid-file open brackets that are not closed before the end of the file.
    let args = "\"args\":{";
    let event = whole[whole.len() / 2..].find(args).map(|at| at + whole.len() / 2 + args.len()).unwrap();
    let mut damaged = whole.clone();
    damaged.insert_str(event, "\"x\":[{\"y\":[{\"z\":[1,");
    fs::write(folder.join("damaged.json"), &damaged).unwrap();
    // A key follows in the open list, and after it comes a colon.
    let colon = damaged.find("[1,\"").map(|at| at + 4 + damaged[at + 4..].find(':').unwrap()).unwrap();
    let ran = gpuflame(&folder, ["info", "damaged.json"]);
    ran.fails(1, &["damaged.json", &format!("damaged at byte {colon},"), "the end of the open value"]);
    // The events before the damage can be read.
    let ran = gpuflame(&folder, ["flamegraph", "damaged.json", "--accept-cut"]).ok();
    assert!(ran.stdout.starts_with("cudaLaunchKernel;[GPU_Kernel]gemm "), "{}", ran.stdout);
}

#[test]
fn gpu_work_of_mtia_xpu_jax_and_ascend_is_recognised() {
    let folder = scratch("odd");
    let drawn = |name: &str, events: &str| {
        fs::write(folder.join(name), format!("{{\"traceEvents\":[{events}]}}")).unwrap();
        gpuflame(&folder, ["-q", "flamegraph", name]).ok().stdout
    };
    let mtia = r#"
        {"ph":"X","cat":"mtia_runtime","name":"runFunction","pid":8,"tid":9,"ts":1,"dur":5,"args":{"correlation":3}},
        {"ph":"X","cat":"mtia_ccp_events","name":"pe_exe","pid":17,"tid":30,"ts":10,"dur":7,"args":{"correlation":3,"stream":1}},
        {"ph":"X","cat":"mtia_ccp_events","name":"event_wait","pid":17,"tid":30,"ts":2,"dur":7,"args":{"stream":1}},
        {"ph":"X","cat":"mtia_ccp_events","name":"dma_request","pid":17,"tid":30,"ts":20,"dur":2,
         "args":{"correlation":3,"direction":"DEVICE_TO_HOST","size":64}}"#;
    assert_eq!(
        drawn("mtia.json", mtia),
        "runFunction;[GPU_Kernel]pe_exe 7000\nrunFunction;[GPU_Memcpy DtoH] 2000\n"
    );
    let xpu = r#"
        {"ph":"X","cat":"xpu_driver","name":"zeCommandListAppendLaunchKernel","pid":8,"tid":9,"ts":1,"dur":5,"args":{"correlation":3}},
        {"ph":"X","cat":"kernel","name":"gemm_xmx","pid":0,"tid":30,"ts":10,"dur":7,"args":{"correlation":3,"device":0}}"#;
    assert_eq!(drawn("xpu.json", xpu), "zeCommandListAppendLaunchKernel;[GPU_Kernel]gemm_xmx 7000\n");
    let jax = r#"
        {"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}},
        {"ph":"X","name":"$model.py:12 step","pid":701,"tid":9,"ts":0,"dur":50},
        {"ph":"X","name":"cuLaunchKernel","pid":701,"tid":9,"ts":1,"dur":5,"args":{"correlation_id":"3"}},
        {"ph":"X","name":"loop_add_fusion","pid":1,"tid":13,"ts":10,"dur":7,
         "args":{"correlation_id":"3","hlo_op":"add.1","kernel_details":"regs:16 grid:1,1,1 block:64,1,1"}},
        {"ph":"X","name":"XLA Modules","pid":1,"tid":2,"ts":10,"dur":7,"args":{"hlo_module":"jit_f"}}"#;
    assert_eq!(drawn("jax.json", jax), "$model.py:12 step;cuLaunchKernel;[GPU_Kernel]loop_add_fusion 7000\n");
    let ascend = r#"
        {"ph":"X","name":"MatMulV2","pid":5,"tid":2,"ts":"1695349886150.190","dur":7.5,
         "args":{"Model Id":1,"Task Type":"AI_CORE","Physic Stream Id":2,"Task Id":3}},
        {"ph":"X","name":"EVENT_WAIT","pid":5,"tid":2,"ts":"1695349886160.190","dur":7.5,"args":{"Task Type":"EVENT_WAIT"}}"#;
    assert_eq!(drawn("ascend.json", ascend), "[no launch stack];[GPU_Kernel]MatMulV2 7500\n");
}

#[test]
fn several_files_of_one_rank_are_merged_if_ranks_json_assigns_them() {
    let folder = scratch("odd");
    for name in ["rank0_a.json", "rank0_b.json", "rank1.json"] {
        trace().write(&folder.join(name));
    }
    gpuflame(&folder, ["merge-ranks", "."])
        .fails(2, &["rank0_a.json", "rank0_b.json", "rank 0", "ranks.json"]);
    fs::write(folder.join("ranks.json"), r#"{"rank0_a.json": 0, "rank0_b.json": 0, "rank1.json": 1}"#)
        .unwrap();
    let ran = gpuflame(&folder, ["merge-ranks", ".", "--format", "json", "-o", "all.folded"]).ok();
    let table: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let busy: Vec<_> =
        table["ranks"].as_array().unwrap().iter().map(|rank| rank["busy_ns"].clone()).collect();
    assert_eq!(busy, [40_000_000, 20_000_000]);
    let merged = fs::read_to_string(folder.join("all.folded")).unwrap();
    assert!(merged.starts_with("rank 0;cudaLaunchKernel;[GPU_Kernel]gemm 40000000\n"), "{merged}");
    fs::write(folder.join("ranks.json"), "[1]").unwrap();
    gpuflame(&folder, ["merge-ranks", "."]).fails(1, &["ranks.json", "not an index of ranks"]);
}
