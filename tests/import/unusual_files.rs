//! Tests unusual input. If a file is not a trace, the error message must tell the user what to do next. `--accept-cut`
//! reads truncated traces. Folded stacks that gpuflame writes must be readable again.

use std::fs;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::command::{gpuflame, gpuflame_with};
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
        ("a.idle.svg", b"<?xml version=\"1.0\"?>\n<svg></svg>\n", ["a picture or a table", "NAME.gfr"]),
        ("a.csv", b"kind,name,device\nkernel,gemm,0\n", ["a picture or a table", "NAME.gfr"]),
        (
            "a.set.json",
            b"{\"process\":1,\"program\":\"a\",\"windows\":[],\"files\":[\"a.svg\"]}\n",
            ["the list of files that one run wrote", "NAME.gfr"],
        ),
        ("utf16.json", b"\xff\xfe{\0\"\0t\0", ["UTF-16", "iconv -f UTF-16 -t UTF-8"]),
        (
            "nccl_trace_rank_0",
            b"\x80\x02}q\0(X\x09\0\0\0pg_configq\x01}",
            ["flight recorder", "torchfrtrace"],
        ),
        (
            "a.hatchet",
            b"[{\"children\":[],\"frame\":{\"name\":\"ROOT\"},\"metrics\":{\"time (ns)\":3}},{}]",
            ["Proton", "data=\"trace\""],
        ),
        (
            "profile.json",
            b"[\n  { \"count\" : 9 }\n, { \"name\" : \"conv\", \"timeMs\" : 1, \"averageMs\" : 0.1 }\n]\n",
            ["trtexec", "nsys profile -t cuda"],
        ),
        (
            "gpu.xml",
            b"<?xml version=\"1.0\"?>\n<trace-query-result><node><schema/></node></trace-query-result>",
            ["xctrace", "Instruments"],
        ),
        (
            "samply.json",
            b"{\"meta\":{\"interval\":1,\"preprocessedProfileVersion\":46},\"libs\":[],\"threads\":[]}",
            ["samply", "gpuflame run --cpu-samples"],
        ),
        (
            "lines.json",
            b"{\"ph\":\"X\",\"cat\":\"kernel\",\"ts\":1,\"dur\":2}\n{\"ph\":\"X\"}\n",
            ["JSON lines", "second object begins at byte 41"],
        ),
        ("two.folded", b"main;a 5 7\nmain;b 6 9\n", ["two counts", "--diff BEFORE AFTER"]),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
        gpuflame(&folder, ["info", name]).fails(1, &[&[name], &words[..]].concat());
    }
}

/// Three zstd frames. Readers must skip the first frame. `zstd --check` made the second and the third frame from the
/// two halves of a trace with one kernel of 10 us.
const ZSTD: &[u8] = b"\
    P*M\x18\x03\x00\x00\x00abc(\xb5/\xfd\x04h\x1d\x03\x002\x07\x16\x11\x90}\x02\xc4\x0e\"\xb2\xd4j\xa9Nj\xfc~\xfes\
    \x09\xa0wA\x9e\xd6\x98\x97t\xf7V\xf6\x9c<~w=\x18\xe4\xafn\x0f\x02y\x9c\x1f\x08\xf2-\xda\x07/\x1d\xbd\xce@F\xf5:n\
    .\xfa\xe0\xdd\x8c\x99\xea\xabV\xd3\xec\xc9\xe7\xc5\x1e<z\xf2\xd0>O\xe4q\xa6n\x17\xc7\xd6\xcd\xcf\x03\x02\x00\xac\x90A\x99\xcd=\x01\
    \xba\x9b\x1a(\xb5/\xfd\x04h\x9d\x02\x00\x12F\x12\x12\x90\xcf\x01\x02-npb3\xc5\xfd\x8fn\xb2\x8a\xf3\x9fK\xb9\xe4\x1c\xfa\xe9\xb0\
    \x9b\xd0\x81\xe8\xc3\xc8\xaaqi\xcex\x8e\xfbTM3-:\x08\xa2O\xeb\xc1\xa8\x07\xa1\x8f\x98<x{?=\x03\x0f\xee\x12\x9c\xa9\xbd\
    _\xcd98y\x7f\xc9\xe3\x02\x00,\xa3<\xb8e6\xd8Q\x9f\
    ";

#[test]
fn zstd_is_read_frame_by_frame() {
    let folder = scratch("odd");
    fs::write(folder.join("a.json.zst"), ZSTD).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "a.json.zst"]).ok();
    assert_eq!((&*ran.stdout, &*ran.stderr), ("cudaLaunchKernel;[GPU_Kernel]k 10000\n", ""));
    let piped = gpuflame_with(&folder, ["flamegraph", "-"], ZSTD).ok();
    assert_eq!(piped.stdout, ran.stdout);
    fs::write(folder.join("cut.zst"), &ZSTD[..ZSTD.len() - 20]).unwrap();
    gpuflame(&folder, ["info", "cut.zst"]).fails(1, &["cut.zst", "the zstd data is truncated at byte"]);
    let mut changed = ZSTD.to_vec();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    fs::write(folder.join("changed.zst"), changed).unwrap();
    gpuflame(&folder, ["info", "changed.zst"]).fails(1, &["changed.zst", "checksum", "--accept-cut"]);
    // This zstd frame has a window of 64 MiB (2^(10 + 16)) and one block that repeats a byte 128 Ki times.
    let wide = b"\x28\xb5\x2f\xfd\x00\x80\x03\x00\x10\x20";
    fs::write(folder.join("wide.zst"), wide).unwrap();
    gpuflame(&folder, ["info", "wide.zst"])
        .fails(1, &["wide.zst", "a window of 67108864 bytes", "--long=31"]);
}

#[test]
fn members_of_gzip_are_joined_and_other_data_is_rejected_with_its_byte() {
    let folder = scratch("odd");
    trace().write(&folder.join("whole.json"));
    let whole = fs::read(folder.join("whole.json")).unwrap();
    let pack = |bytes: &[u8]| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    };
    let drawn = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).unwrap();
        gpuflame(&folder, ["flamegraph", name])
    };
    let expected = drawn("plain.json", &whole).ok().stdout;
    let (first, second) = whole.split_at(whole.len() / 3);
    let members = [pack(first), pack(b""), pack(second)].concat();
    let ran = drawn("members.gz", &members).ok();
    assert_eq!((&ran.stdout, &*ran.stderr), (&expected, ""));
    let ran = drawn("zeros.gz", &[&members[..], &[0; 700]].concat()).ok();
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("skipped 700 zero bytes after the compressed data"), "{}", ran.stderr);
    let between = [pack(first), vec![0; 512], pack(second)].concat();
    assert_eq!(drawn("between.gz", &between).ok().stdout, expected);
    let packed = pack(&whole);
    let at = format!("byte {} of the file", packed.len());
    drawn("behind.gz", &[&packed[..], b"text"].concat())
        .fails(1, &["behind.gz", &at, "two programs", "--accept-cut"]);
    let ran = gpuflame(&folder, ["flamegraph", "behind.gz", "--accept-cut"]).ok();
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains(&at), "{}", ran.stderr);
    // Two programs write to the same file in turn, 4 KiB at a time.
    let other = pack(&whole[1..]);
    let turns: Vec<u8> =
        packed.chunks(4096).zip(other.chunks(4096)).flat_map(|(a, b)| [a, b].concat()).collect();
    drawn("turns.gz", &turns).fails(1, &["turns.gz", "damaged at byte", "two programs wrote to it"]);
}

#[test]
fn a_huge_compressed_event_is_rejected_before_it_is_held_in_memory() {
    let folder = scratch("odd");
    let head = b"{\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"";
    for (name, text) in
        [("event.gz", &head[..]), ("property.gz", b"{\"stackFrames\":\""), ("rocprof.gz", ROCPROF)]
    {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text).unwrap();
        (0..40).for_each(|_| packed.write_all(&[b'a'; 1 << 20]).unwrap());
        packed.write_all(b"\"}]}").unwrap();
        fs::write(folder.join(name), packed.finish().unwrap()).unwrap();
        let words = if name == "rocprof.gz" { "64 times as large as the file" } else { "larger than 16 MiB" };
        gpuflame(&folder, ["info", name]).fails(1, &[name, words, "unpack it first"]);
    }
}

const ROCPROF: &[u8] = b"{\"rocprofiler-sdk-tool\": [{\"metadata\": \"";

#[test]
fn a_trace_without_events_fails_in_every_verb() {
    let folder = scratch("odd");
    for (name, text) in [
        ("none.json", "{\"traceEvents\":[]}"),
        ("array.json", "[]"),
        ("blank.json", "{\"traceEvents\": [{}, null]}"),
        ("rocprof.json", "{\"rocprofiler-sdk-tool\": []}"),
    ] {
        fs::write(folder.join(name), text).unwrap();
        for verb in ["info", "check", "top", "flamegraph", "view", "merge-ranks"] {
            gpuflame(&folder, [verb, name]).fails(1, &[name, "has no events"]);
        }
        gpuflame(&folder, ["convert", name, "--to", "csv"]).fails(1, &[name, "has no events"]);
        gpuflame(&folder, ["diff", name, name]).fails(1, &[name, "has no events"]);
        gpuflame(&folder, ["extract", name, "-", "1,2"]).fails(1, &[name, "has no events"]);
        gpuflame(&folder, ["stats", name, "-", "none"]).fails(1, &[name, "has no events"]);
        gpuflame(&folder, ["decode-steps", "sglang", name]).fails(1, &[name, "has no events"]);
    }
}

#[test]
fn a_trace_is_called_cpu_only_if_all_of_its_events_are() {
    let folder = scratch("odd");
    let operator = r#"{"ph":"X","cat":"cpu_op","name":"mm","pid":1,"tid":1,"ts":1,"dur":2}"#;
    let counter = r#"{"ph":"C","name":"memory","pid":1,"ts":1,"args":{"bytes":3}}"#;
    let endless = r#"{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":10}"#;
    for (name, events, words) in [
        ("cpu.json", operator.to_owned(), "all of its events are CPU events"),
        ("mixed.json", format!("{operator},{counter},{counter}"), "1 of its 3 events are CPU events"),
        (
            "counters.json",
            format!("{counter},{counter}"),
            "none of its 2 events is a call, an operator or a range",
        ),
        (
            "endless.json",
            format!("{operator},{endless}"),
            "1 of its 2 events are CPU events; 1 events have no usable",
        ),
        (
            "xpu.json",
            format!(
                "{operator},{}",
                operator.replace("cpu_op", "xpu_runtime").replace("mm", "urEnqueueKernelLaunch")
            ),
            "all of its events are CPU events; 1 launches have none: the profiler did not record the GPU",
        ),
    ] {
        fs::write(folder.join(name), format!("[{events}]")).unwrap();
        gpuflame(&folder, ["-q", "flamegraph", name]).fails(1, &[name, words]);
    }
}

#[test]
fn weights_that_cannot_be_summed_are_rejected_with_their_line() {
    let folder = scratch("odd");
    for (name, text, words) in [
        ("negative.folded", "main;a 5\nmain;b -3\n", "line 2 has a negative weight (-3)"),
        (
            "fraction.folded",
            "main;a 5\n\nmain;b 1.5\n",
            "line 3 has a weight that is not a whole number (1.5)",
        ),
        (
            "late.folded",
            &format!("{}main;b -3\n", "main;a 5\n".repeat(20_000)),
            "line 20001 has a negative weight",
        ),
    ] {
        fs::write(folder.join(name), text).unwrap();
        gpuflame(&folder, ["flamegraph", name]).fails(1, &[name, words]);
    }
    // The name of a frame in folded stacks may end in a number.
    fs::write(folder.join("number.folded"), "main;read block 5 7\nmain;write 9\n").unwrap();
    let drawn = gpuflame(&folder, ["flamegraph", "number.folded"]).ok().stdout;
    assert!(drawn.contains("main;read block_5 7"), "{drawn}");
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
    // This trace is so short that the reader reaches the truncated end while it is still detecting the format.
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
            gpuflame(&folder, verb.iter().chain(&[name])).fails(1, &[name, "truncated", "--accept-cut"]);
            let ran = gpuflame(&folder, verb.iter().chain(&[name, "--accept-cut"])).ok();
            assert!(ran.stderr.contains("truncated at byte"), "{verb:?} {name}: {}", ran.stderr);
        }
        let drawn = gpuflame(&folder, ["flamegraph", name, "--accept-cut", "--quiet"]).ok().stdout;
        // If the file ends between a launch and its kernel, the launch has a separate line.
        let (stack, nanos) = drawn.lines().next().unwrap().rsplit_once(' ').unwrap();
        assert_eq!(stack, "cudaLaunchKernel;[GPU_Kernel]gemm");
        // Each kernel takes 10 us, and the truncated file contains about half the kernels.
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
fn a_front_end_without_a_rank_and_without_gpu_work_is_left_out_of_the_ranks() {
    let folder = scratch("odd");
    for rank in 0..2 {
        trace().write(
            &folder.join(format!("dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.1764000000.pt.trace.json")),
        );
    }
    let front_end = folder.join("host-1_4242.async_llm.1764000000.pt.trace.json");
    let wait = r#"{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"wait","pid":1,"tid":1,"ts":0,"dur":8}]}"#;
    fs::write(&front_end, wait).unwrap();
    let ran = gpuflame(&folder, ["merge-ranks", ".", "--format", "json"]).ok();
    assert!(ran.stderr.contains("async_llm") && ran.stderr.contains("is not a rank"), "{}", ran.stderr);
    let table: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let ranks: Vec<_> = table["ranks"].as_array().unwrap().iter().map(|rank| rank["rank"].clone()).collect();
    assert_eq!(ranks, [0, 1], "{table}");
    // A file that contains GPU work is a rank, so its rank number must be known.
    trace().write(&front_end);
    gpuflame(&folder, ["merge-ranks", "."]).fails(2, &["async_llm", "--assume-order"]);
}

#[test]
fn the_error_for_damage_in_mid_file_gives_its_position_and_not_the_end_of_the_file() {
    let folder = scratch("odd");
    trace().write(&folder.join("whole.json"));
    let whole = fs::read_to_string(folder.join("whole.json")).unwrap();
    // In the middle of the file, the arguments of an event open brackets that are never closed.
    let args = "\"args\":{";
    let event = whole[whole.len() / 2..].find(args).map(|at| at + whole.len() / 2 + args.len()).unwrap();
    let mut damaged = whole.clone();
    damaged.insert_str(event, "\"x\":[{\"y\":[{\"z\":[1,");
    fs::write(folder.join("damaged.json"), &damaged).unwrap();
    // Therefore the next key of the object is inside the open list, in which a colon is invalid.
    let colon = damaged.find("[1,\"").map(|at| at + 4 + damaged[at + 4..].find(':').unwrap()).unwrap();
    let ran = gpuflame(&folder, ["info", "damaged.json"]);
    ran.fails(1, &["damaged.json", &format!("damaged at byte {colon},"), "the end of the open value"]);
    // The events before the damage can still be read.
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
fn work_of_unitrace_is_under_the_calls_that_have_its_id() {
    let folder = scratch("odd");
    let event = |category: &str, name: &str, process: u32, start: u32, length: u32, id: &str| {
        format!(
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{process},"tid":{process},"ts":{start},"dur":{length},
                "args":{{"id":"{id}"}}}}"#
        )
    };
    let [first, second] = [u32::MAX, u32::MAX - 1];
    let events = [
        event("cpu_op", "zeCommandListAppendLaunchKernel", 7, 1, 2, "11"),
        event("gpu_op", "gemm[SIMD32 {8; 1; 1} {64; 1; 1}]", first, 5, 9, "11"),
        event("gpu_op", "gemm[SIMD32 {8; 1; 1} {64; 1; 1}]", second, 5, 3, "12"),
        event("cpu_op", "zeCommandListAppendMemoryCopy", 7, 20, 2, "13"),
        event("gpu_op", "zeCommandListAppendMemoryCopy(M2D)[64 bytes]", first, 25, 4, "13"),
    ];
    fs::write(folder.join("unitrace.json"), format!("[{}]", events.join(","))).unwrap();
    let drawn = gpuflame(&folder, ["-q", "flamegraph", "unitrace.json"]).ok().stdout;
    let lines: Vec<&str> = drawn.lines().collect();
    assert_eq!(lines.len(), 3, "{drawn}");
    assert!(
        lines[0].starts_with("[no launch stack];[GPU1_Kernel]gemm") && lines[0].ends_with(" 3000"),
        "{drawn}"
    );
    let launch = "zeCommandListAppendLaunchKernel;[GPU0_Kernel]gemm";
    assert!(lines[1].starts_with(launch) && lines[1].ends_with(" 9000"), "{drawn}");
    assert!(
        lines[2].starts_with("zeCommandListAppendMemoryCopy;[GPU0_Memcpy") && lines[2].ends_with(" 4000")
    );
}

#[test]
fn nodes_of_cuspy_that_do_no_work_do_not_count_and_streams_are_the_real_ones() {
    let folder = scratch("odd");
    let events = r#"
        {"ph":"X","cat":"cuda_runtime","name":"cudaGraphLaunch","pid":8,"tid":9,"ts":1,"dur":2,"args":{"correlation":3}},
        {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":500,"ts":5,"dur":9,
         "args":{"device":0,"context":1,"stream":500,"original_stream":7,"correlation":3,"graph id":2,"graph node id":5}},
        {"ph":"X","cat":"graph_event_node","name":"EventRecord","pid":0,"tid":500,"ts":14,"dur":0,"args":{"stream":500}},
        {"ph":"X","cat":"graph_host_node","name":"HostNode: f","pid":0,"tid":500,"ts":14,"dur":500,"args":{"stream":500}}"#;
    fs::write(folder.join("cuspy.json"), format!("[{events}]")).unwrap();
    let drawn = gpuflame(&folder, ["flamegraph", "cuspy.json"]).ok();
    assert_eq!(
        (&*drawn.stdout, &*drawn.stderr),
        ("cudaGraphLaunch;[graph];[graph made before recording];[GPU_Kernel]gemm 9000\n", "")
    );
    let listed = gpuflame(&folder, ["view", "cuspy.json", "--format", "csv"]).ok().stdout;
    assert!(listed.lines().nth(1).unwrap().starts_with("0,9000,0,7,"), "{listed}");
    let host = r#"{"ph":"X","cat":"graph_host_node","name":"HostNode","pid":0,"tid":5,"ts":14,"dur":5}"#;
    fs::write(folder.join("host.json"), format!("[{host}]")).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "host.json"]);
    ran.fails(1, &["none of its 1 events"]);
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
