//! Tests that the rows and tables of a trace do not depend on the way in which the trace file is read: the size of the
//! read buffer, the number of threads, or the compression.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::Path;

use gpuflame_traces::import::{self, Options};

use crate::support::command::gpuflame;
use crate::support::scratch;

/// Number of steps in the trace. The file must exceed 8 MiB, so that two threads read the file and no read buffer holds
/// all of it.
const STEPS: u64 = 200;
/// Number of launches per step.
const LAUNCHES: u64 = 60;

/// Returns a trace in which each step has operators on two threads that launch kernels on two streams. Every tenth
/// launch has no kernel.
fn trace() -> String {
    let mut text = String::from("{\"schemaVersion\": 1, \"traceEvents\": [\n");
    let mut event = |category: &str, name: &str, thread: u64, start: u64, nanos: u64, args: String| {
        let (start, length) = (start as f64 / 1000.0, nanos as f64 / 1000.0);
        let place = if category == "kernel" { 0 } else { 100 };
        text.push_str(&format!(
            "{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": \"{name}\", \"pid\": {place}, \"tid\": {thread}, \
             \"ts\": {start:.3}, \"dur\": {length:.3}, \"args\": {{{args}}}}},\n"
        ));
    };
    let padding = "[4096, 1024], ".repeat(20);
    for step in 0..STEPS {
        let begin = 1_000_000_000 + step * 10_000_000;
        event("user_annotation", &format!("ProfilerStep#{step}"), 1, begin, 9_900_000, String::new());
        for launch in 0..LAUNCHES {
            let (id, at) = (1 + step * LAUNCHES + launch, begin + 1_000 + launch * 150_007);
            let (thread, stream) = (1 + launch % 2, 7 + launch % 3 / 2);
            let shapes = format!("\"External id\": {id}, \"Input Dims\": [{padding}[]]");
            event("cpu_op", &format!("aten::op{}", launch % 11), thread, at, 40_001, shapes);
            let ids = format!("\"External id\": {id}, \"correlation\": {id}");
            event("cuda_runtime", "cudaLaunchKernel", thread, at + 5_003, 6_001, ids);
            let place = format!("\"device\": 0, \"context\": 1, \"stream\": {stream}, \"correlation\": {id}");
            if launch % 10 != 9 {
                let name = format!("kernel{}", launch % 13);
                event("kernel", &name, stream, at + 20_011, 90_000 + launch * 1_000, place);
            }
        }
    }
    text.push_str("{}]}");
    text
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Returns a zstd frame, all of whose blocks are stored uncompressed.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    // The window of this zstd frame is 1 MiB. The frame has neither a content size nor a checksum.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    let blocks: Vec<&[u8]> = bytes.chunks(100_000).collect();
    for (at, block) in blocks.iter().enumerate() {
        let header = (block.len() as u32) << 3 | u32::from(at + 1 == blocks.len());
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

/// Reads the rows of a trace. Returns the number of rows, and a hash of all rows.
fn rows(path: &Path, options: &Options) -> (usize, u64) {
    let (mut count, mut hash) = (0, DefaultHasher::new());
    let linked = import::rows(import::open(path).unwrap(), options, &mut |row| {
        count += 1;
        format!("{row:?}").hash(&mut hash);
    });
    let linked = linked.unwrap();
    let kernels = STEPS * LAUNCHES * 9 / 10;
    assert_eq!((linked.ops, linked.linked_ops, linked.launches_without_op), (kernels, kernels, kernels / 9));
    (count, hash.finish())
}

#[test]
fn the_result_does_not_depend_on_how_the_file_is_read() {
    let (folder, text) = (scratch("reading"), trace());
    assert!(text.len() > 8 << 20, "{} bytes", text.len());
    let bytes = text.as_bytes();
    let mut shown = Vec::new();
    let mut first = None;
    for (name, contents) in [("plain", bytes.to_vec()), ("gzip", gzip(bytes)), ("zstd", zstd(bytes))] {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("trace.json");
        fs::write(&path, contents).unwrap();
        for buffer in [64 << 10, (1 << 20) + 1, 8 << 20] {
            for threads in [1, 2, 4] {
                let options = Options { buffer, threads, ..Options::default() };
                let found = rows(&path, &options);
                assert_eq!(*first.get_or_insert(found), found, "{name}, {buffer} bytes, {threads} threads");
            }
        }
        let verbs = ["info", "top", "states"];
        shown.push(verbs.map(|verb| gpuflame(&folder, [verb, "trace.json"]).ok().stdout));
    }
    assert!(shown.iter().all(|one| *one == shown[0]), "the tables differ: {shown:#?}");
    assert!(shown[0].iter().all(|table| table.len() > 200), "{:#?}", shown[0]);
}
