//! Damages a trace at random. The JSON scanner must still have the properties that `fuzz/property.rs` checks for
//! arbitrary bytes.
//!
//! `GPUFLAME_FUZZ=N` makes the test N times longer, and tries other seeds. With a nightly compiler, `cargo fuzz run
//! scan` in `tests/fuzz` searches for more inputs.

#[path = "../fuzz/property.rs"]
mod property;

/// The trace to damage. This trace has an example of everything that a trace may contain.
const TRACE: &str = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a \"b\" \\"}], "traceEvents": [
{"ph": "X", "cat": "kernel", "name": "void gemm<float, [4]>({})", "pid": 0, "tid": 7, "ts": 1712195495505583.173, "dur": 12.5,
 "args": {"External id": 3, "device": 0, "context": 1, "stream": 7, "correlation": 9, "grid": [1, 2, 3], "x": {"y": ["]}"]}}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 25738, "tid": "25738", "ts": 1, "dur": 2, "args": {"correlation": 9}},
{"name": "gemm[0.012 ms]", "pid": 0, "tid": "7(C++)", "ts": 12, "dur": 12.345, "ph": "X", "cat": "Kernel",
 "args": {"start_time": "12.999 us", "end_time": "25.344 us", "correlation id": 3}},
{"ph": "X", "cat": "python_function", "name": "\u0000\ud83d\ude00.py(3): f", "ts": "5.5", "dur": 1e2, "args": {"Python id": 1}},
{"ph": "M", "name": "thread_name", "pid": 1, "tid": -3, "args": {"name": "main\ttwo"}}, null,
{"ph": "s", "id": 9, "pid": 0, "tid": 7, "ts": 3, "cat": "ac2g", "name": "ac2g"}, {}
], "traceName": "x", "z": [true, false, null, -0.0]}"#;

/// Texts that the test inserts into the trace.
const PIECES: [&str; 24] = [
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\n",
    "\0",
    "0",
    "-",
    ".",
    "1e400",
    "NaN",
    "null",
    "{}",
    "\\u12",
    "\\\"",
    "\"ph\": \"X\", ",
    "\"ts\": \"",
    "], \"traceEvents\": [",
    "\u{feff}",
];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// Damages `text` in one place.
fn damage(text: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(text.len());
    let some = at..(at + random.below(40)).min(text.len());
    match random.below(6) {
        0 => drop(text.drain(some)),
        1 => drop(text.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
        2 => drop(text.splice(at..(at + 1).min(text.len()), PIECES[random.below(PIECES.len())].bytes())),
        3 => {
            let copy = text[some].to_vec();
            let to = random.below(text.len());
            drop(text.splice(to..to, copy));
        }
        4 if !text.is_empty() => text[at] = random.below(256) as u8,
        _ if random.below(8) == 0 => text.truncate(at),
        _ => {}
    }
}

#[test]
fn random_damage_neither_panics_nor_makes_buffer_sizes_disagree() {
    let longer: u64 = std::env::var("GPUFLAME_FUZZ").ok().and_then(|word| word.parse().ok()).unwrap_or(1);
    let (mut traces, mut others) = (0, 0);
    for seed in 0..longer {
        let mut random = Random(seed);
        for _ in 0..6_000 {
            let mut text = TRACE.as_bytes().to_vec();
            for _ in 0..1 + random.below(4) {
                damage(&mut text, &mut random);
            }
            if property::check(&text) { traces += 1 } else { others += 1 }
        }
    }
    assert!(
        traces > 500 && others > 500,
        "only {traces} traces and {others} rejected inputs: too few for a verdict"
    );
}
