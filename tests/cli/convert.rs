//! Compares the output of `gpuflame convert` with the hand-made recording. If a format has a viewer, it is tested in
//! `viewers.rs` as well.
use std::fs;

use crate::support::command::{gpuflame, gpuflame_with};
use crate::support::{handmade, scratch};
use serde_json::Value;

const FORMATS: [&str; 12] = [
    "folded",
    "extended-folded",
    "svg",
    "csv",
    "chrome",
    "perfetto",
    "pprof",
    "speedscope",
    "parquet",
    "arrow",
    "sbt",
    "cupti-text",
];

fn convert(format: &str) -> Vec<u8> {
    let folder = scratch("convert");
    handmade::recording(&folder);
    gpuflame(&folder, ["convert", "hand.gfr", "--to", format, "-o", "out.parquet"]).ok();
    fs::read(folder.join("out.parquet")).unwrap()
}

fn text(format: &str) -> String {
    String::from_utf8(convert(format)).unwrap()
}

#[test]
fn the_order_in_which_buffers_arrive_changes_no_format() {
    let folder = scratch("convert");
    handmade::recording(&folder);
    fs::write(folder.join("back.gfr"), handmade::backwards()).unwrap();
    for format in FORMATS {
        for name in ["hand", "back"] {
            let out = format!("{name}.parquet");
            gpuflame(&folder, ["-q", "convert", &format!("{name}.gfr"), "--to", format, "-o", &out]).ok();
        }
        let [a, b] = ["hand", "back"].map(|name| fs::read(folder.join(format!("{name}.parquet"))).unwrap());
        let (a, b) = match format {
            // The output contains the name of its input file, so the test replaces this name before the comparison.
            "speedscope" => (String::from_utf8(a).unwrap().replace("hand.gfr", "back.gfr").into_bytes(), b),
            _ => (a, b),
        };
        assert!(a == b, "{format} differs");
        assert!(a.len() > 100, "{format} is nearly empty");
    }
}

#[test]
fn extended_folded_has_a_line_per_launch_with_time_thread_and_stack() {
    let at = |micros: u64| handmade::BASE + micros * 1000;
    let lines = [
        format!("{} python3_-m_x 100 100 -1 main;decode;cudaLaunchKernel;[correlation 10]", at(12)),
        format!("{} python3_-m_x 100 100 -1 main;load;cudaMemcpyAsync;[correlation 11]", at(14)),
        format!("{} python3_-m_x 100 100 -1 main;decode;cudaLaunchKernel;[correlation 12]", at(16)),
        format!("{} worker 100 101 -1 main;worker;cudaLaunchKernel;[correlation 13]", at(40)),
        format!("{} worker 100 101 -1 main;worker;cudaMemsetAsync;[correlation 14]", at(44)),
        format!("{} python3_-m_x 100 100 -1 main;decode;cudaLaunchKernel;[correlation 15]", at(60)),
        format!("{} python3_-m_x 100 100 -1 main;decode;cudaLaunchKernel;[correlation 16]", at(70)),
    ];
    assert_eq!(text("extended-folded"), lines.join("\n") + "\n");
    let folder = scratch("convert");
    handmade::recording(&folder);
    let plain =
        gpuflame(&folder, ["convert", "hand.gfr", "--to", "extended-folded", "--no-correlation"]).ok().stdout;
    let bare = |line: &String| line.rsplit_once(';').unwrap().0.to_owned();
    assert_eq!(plain.lines().collect::<Vec<_>>(), lines.iter().map(bare).collect::<Vec<_>>());
}

#[test]
fn cupti_text_contains_the_kernel_call_and_copy_lines() {
    let text = text("cupti-text");
    let base = handmade::BASE;
    let kernel = format!(
        "CONCURRENT_KERNEL [ {}, {} ] duration 10001, \"_Z4gemmIfEvPT_\", correlationId 12, \
         cacheConfigRequested 0, cacheConfigExecuted 0\n\
         \tgrid [ 4, 2, 1 ], block [ 128, 1, 1 ], cluster [ 0, 0, 0 ], sharedMemory (static 1024, dynamic 512)\n\
         \tdeviceId 0, contextId 1, streamId 7, graphId 0, graphNodeId 0, channelId 0, channelType COMPUTE\n",
        base + 30_000,
        base + 40_001
    );
    assert!(text.contains(&kernel), "{text}");
    let call = format!(
        "RUNTIME [ {}, {} ] duration 3000, \"cudaMemcpyAsync\", cbid 0, processId 100, threadId 100, correlationId 11\n",
        base + 14_000,
        base + 17_000
    );
    assert!(text.contains(&call), "{text}");
    let copy = format!(
        "MEMCPY \"HtoD\" [ {}, {} ] duration 12000, size 4096, copyCount 1, srcKind PAGEABLE, dstKind DEVICE, correlationId 11\n",
        base + 20_000,
        base + 32_000
    );
    assert!(text.contains(&copy), "{text}");
}

#[test]
fn chrome_times_are_exact_to_the_nanosecond_and_flows_connect_calls_to_work() {
    let text = text("chrome");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["baseTimeNanoseconds"], handmade::BASE);
    assert_eq!(json["gpuflame"]["missing"]["timestamp_not_collected"], 1);
    let events = json["traceEvents"].as_array().unwrap();
    let of = |category: &str, phase: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["cat"] == category && event["ph"] == phase).collect()
    };
    assert_eq!(of("kernel", "X").len(), 5);
    assert_eq!(of("cuda_runtime", "X").len(), 7);
    // An f64 cannot represent this time in microseconds since 1970 exactly, but the text in the output is exact.
    assert!(text.contains("\"ts\":30.000,\"dur\":10.001"), "{text}");
    for end in of("ac2g", "f") {
        let begin = of("ac2g", "s").into_iter().find(|begin| begin["id"] == end["id"]).unwrap();
        assert!(begin["ts"].as_f64() < end["ts"].as_f64(), "{begin} {end}");
    }
    assert_eq!((of("ac2g", "s").len(), of("ac2g", "f").len()), (6, 5), "the work of one call has no times");
    let copy = of("gpu_memcpy", "X")[0];
    assert_eq!((&copy["pid"], &copy["tid"], &copy["args"]["bytes"]), (&0.into(), &8.into(), &4096.into()));
}

/// A reader of SBT files, written from the layout that the exporter's comment describes.
struct Sbt<'a>(&'a [u8]);

impl Sbt<'_> {
    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap();
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }

    fn text(&mut self) -> String {
        let length = self.number() as usize;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }
}

#[test]
fn tracesmiths_binary_format_reads_back_event_by_event() {
    let bytes = convert("sbt");
    assert_eq!(&bytes[..8], b"SBT\0\0\0\x01\0");
    let offset = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (metadata, strings, events, count) = (offset(16), offset(24), offset(40), offset(56));
    let mut reader = Sbt(&bytes[offset(32)..events]);
    assert_eq!((reader.byte(), reader.number()), (3, 2), "a table of two GPUs");
    for device in 0..2 {
        assert_eq!((reader.number(), reader.text()), (device, format!("GPU {device}")));
        // A recording does not contain the GPU's vendor and nine numbers of its SBT entry, so these fields are empty or
        // 0.
        assert_eq!((reader.text(), [(); 9].map(|()| reader.number())), (String::new(), [0; 9]));
    }
    assert!(reader.0.is_empty());
    assert_eq!((metadata, bytes[72], bytes.last()), (72, 1, Some(&255)));
    let mut reader = Sbt(&bytes[strings..]);
    assert_eq!(reader.byte(), 2);
    let names: Vec<String> = (0..reader.number()).map(|_| reader.text()).collect();
    assert_eq!(reader.0, [255]);
    let mut reader = Sbt(&bytes[events..strings]);
    assert_eq!(reader.byte(), 4);
    let mut time = reader.number();
    let mut seen = Vec::new();
    for _ in 0..count {
        let (kind, flags) = (reader.byte(), reader.byte());
        time += reader.number();
        let duration = if flags & 1 != 0 { reader.number() } else { 0 };
        let [device, stream, id, name] = std::array::from_fn(|_| reader.number());
        let skip = (if flags & 2 != 0 { 8 } else { 0 }) + (if flags & 4 != 0 { 3 } else { 0 });
        (0..skip).for_each(|_| {
            reader.number();
        });
        let mut stack = Vec::new();
        if flags & 8 != 0 {
            let (_thread, frames) = (reader.number(), reader.number());
            for _ in 0..frames {
                let [_, function, _, _] = std::array::from_fn(|_| reader.number());
                stack.push(names[function as usize].clone());
            }
        }
        seen.push((
            kind,
            time - handmade::BASE,
            duration,
            device,
            stream,
            id,
            names[name as usize].clone(),
            stack.join("<"),
        ));
    }
    assert!(reader.0.is_empty());
    let times: Vec<u64> = seen.iter().map(|event| event.1).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(seen.len(), 14, "seven calls and seven activities with times");
    assert!(seen.contains(&(2, 30_000, 10_001, 0, 7, 12, "gemm<float>".into(), String::new())), "{seen:?}");
    let stack = "cudaMemcpyAsync<load<main".to_owned();
    assert!(seen.contains(&(1, 14_000, 3_000, 0, 0, 11, "cudaMemcpyAsync".into(), stack)), "{seen:?}");
    assert!(seen.contains(&(3, 20_000, 12_000, 0, 8, 11, "Memcpy HtoD".into(), String::new())), "{seen:?}");
}

#[test]
fn the_format_is_chosen_by_the_file_extension_or_an_option() {
    let folder = scratch("convert");
    handmade::recording(&folder);
    let ran = gpuflame_with(&folder, ["convert", "-", "--format", "folded"], &handmade::bytes()).ok();
    assert_eq!(ran.stdout, handmade::FOLDED);
    gpuflame(&folder, ["convert", "-i", "hand.gfr", "-o", "out.json"]).ok();
    assert!(fs::read_to_string(folder.join("out.json")).unwrap().contains("\"traceEvents\""));
    gpuflame(&folder, ["convert", "hand.gfr", "-o", "out.xyz"])
        .fails(2, &["out.xyz", "unknown file extension"]);
    gpuflame(&folder, ["convert", "hand.gfr"]).fails(2, &["--format chrome"]);
    gpuflame(&folder, ["convert", "hand.gfr", "hand.gfr", "-o", "x.json"]).fails(2, &["--format parquet"]);
    gpuflame(&folder, ["convert", "none.gfr", "-o", "x.json"]).fails(1, &["none.gfr", "no such file"]);
    assert!(!folder.join("x.json").exists());
}

#[test]
fn chrome_output_has_the_same_stacks_when_read_back() {
    let folder = scratch("convert");
    handmade::recording(&folder);
    let drawn = |name: &str| gpuflame(&folder, ["-q", "flamegraph", name]).ok().stdout;
    gpuflame(&folder, ["convert", "hand.gfr", "-o", "hand.json"]).ok();
    // A timeline cannot show GPU work whose times are unknown. GPU work whose launch is missing has no stack.
    let timed = |text: String| -> Vec<String> {
        let is_timed = |line: &&str| line.starts_with("main;") && !line.ends_with(" 0");
        text.lines().filter(is_timed).map(str::to_owned).collect()
    };
    let (before, after) = (timed(drawn("hand.gfr")), timed(drawn("hand.json")));
    assert!(before.len() >= 3, "{before:?}");
    assert_eq!(before, after);
}
