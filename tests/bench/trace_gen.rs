//! Writes a large Kineto trace. With the events of the real trace, the written trace has 1,588,124 events in
//! 531,635,124 bytes, including 135,133 GPU operations and 352,659 calls.
//!
//! The repeated events are those of a real trace (`kineto-2023/control.json.gz` in the folder of traces). If that file
//! does not exist, the repeated events are those of a made-up training step. The events are repeated with shifted times
//! and ids, until a time or an id would need more digits. In both cases the written trace has Kineto's own layout. If
//! the trace is smaller than the wanted size, blanks are added after each event, the same number after every event.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

pub(crate) const EVENTS: u64 = 1_588_124;
pub(crate) const BYTES: u64 = 531_635_124;

/// Text of an event, split at the times and ids that are shifted in each repetition.
struct Template {
    pieces: Vec<(String, Option<(u64, Shift)>)>,
    tail: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Shift {
    Time,
    Id,
}

/// Returns the folder of real traces, if it exists.
pub(crate) fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    std::env::var_os("GPUFLAME_TRACES").map(PathBuf::from).or(Some(beside)).filter(|folder| folder.is_dir())
}

/// Writes the trace to `path`, unless the file exists already. Returns the number of events in the trace.
pub(crate) fn make(path: &Path, events: u64, bytes: Option<u64>) -> u64 {
    if bytes.is_some() && path.metadata().is_ok_and(|metadata| Some(metadata.len()) == bytes) {
        return events;
    }
    let templates: Vec<Template> =
        real().unwrap_or_else(made_up).iter().map(|text| Template::new(text)).collect();
    let write = |at: u64, line: &mut String| {
        let count = templates.len() as u64;
        line.clear();
        templates[(at % count) as usize].write(at / count, line);
        line.push_str(if at + 1 == events { "\n" } else { ",\n" });
    };
    const HEAD: &str = "{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [\n";
    const TAIL: &str = "  ],\n  \"traceName\": \"large\"\n}";
    let mut line = String::new();
    let natural = (HEAD.len() + TAIL.len()) as u64
        + (0..events)
            .map(|at| {
                write(at, &mut line);
                line.len() as u64
            })
            .sum::<u64>();
    let bytes = bytes.unwrap_or(natural);
    let missing = bytes.checked_sub(natural).expect("the events are not larger than the wanted size");
    let part = path.with_extension("part");
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&part).unwrap());
    out.write_all(HEAD.as_bytes()).unwrap();
    for at in 0..events {
        write(at, &mut line);
        let blanks = missing * (at + 1) / events - missing * at / events;
        line.extend(std::iter::repeat_n(' ', blanks as usize));
        out.write_all(line.as_bytes()).unwrap();
    }
    out.write_all(TAIL.as_bytes()).unwrap();
    out.into_inner().unwrap().sync_all().unwrap();
    std::fs::rename(part, path).unwrap();
    assert_eq!(path.metadata().unwrap().len(), bytes);
    events
}

/// Returns the events of the real trace, unchanged.
fn real() -> Option<Vec<String>> {
    let file = std::fs::File::open(traces()?.join("kineto-2023/control.json.gz")).ok()?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).ok()?;
    let begin = text.find("\"traceEvents\": [")? + 16;
    let end = text.rfind("\n  }")?;
    let events = text[begin..end].split("\n  },").map(|event| format!("  {}\n  }}", event.trim()));
    Some(events.filter(|event| event.starts_with("  {") && event.contains("\"ph\": ")).collect())
}

/// Returns the events of a made-up training step of a model with two layers.
fn made_up() -> Vec<String> {
    let mut events = Vec::new();
    let mut id = 1000;
    for step in 0..40_u64 {
        let begin = 1_664_000_000_000_000 + step * 21_000;
        events.push(event(
            "user_annotation",
            &format!("ProfilerStep#{step}"),
            (7, 7),
            begin,
            20_000,
            &format!("\"External id\": {id}, \"Ev Idx\": {step}"),
        ));
        for op in 0..230_u64 {
            let at = begin + 50 + op * 80;
            let shapes = "\"Input Dims\": [[4096, 1024], [1024, 4096], []], \"Input type\": [\"float\", \"float\", \"Scalar\"], \"Module Hierarchy\": \"\", \"Call stack\": \"\"";
            for inner in 0..4 {
                events.push(event("cpu_op", "aten::linear_backward_accumulate", (7, 7), at + inner, 60 - inner, &format!("\"Trace name\": \"PyTorch Profiler\", \"Trace iteration\": 0,\n      \"External id\": {}, \"Profiler Event Index\": {op}, {shapes}", id + inner)));
            }
            for call in ["cudaStreamIsCapturing", "cudaEventQuery"] {
                id += 1;
                events.push(event(
                    "cuda_runtime",
                    call,
                    (7, 7),
                    at + 5,
                    2,
                    &format!("\"External id\": {id}, \"cbid\": 317, \"correlation\": {id}"),
                ));
            }
            if op % 8 < 7 {
                id += 1;
                let name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)";
                events.push(event(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    (7, 7),
                    at + 8,
                    6,
                    &format!("\"External id\": {id}, \"cbid\": 211, \"correlation\": {id}"),
                ));
                events.push(format!("  {{\n    \"ph\": \"s\", \"id\": {id}, \"pid\": 7, \"tid\": 7, \"ts\": {},\n    \"cat\": \"async_cpu_to_gpu\", \"name\": \"async_cpu_to_gpu\"\n  }}", at + 8));
                events.push(event("kernel", name, (0, 7), at + 20, 40, &format!("\"External id\": {id}, \"queued\": 0, \"device\": 0, \"context\": 1,\n      \"stream\": 7, \"correlation\": {id},\n      \"registers per thread\": 32,\n      \"shared memory\": 0, \"blocks per SM\": 4.5, \"warps per SM\": 36,\n      \"grid\": [486, 1, 1],\n      \"block\": [256, 1, 1],\n      \"est. achieved occupancy %\": 56")));
                events.push(format!("  {{\n    \"ph\": \"f\", \"id\": {id}, \"pid\": 0, \"tid\": 7, \"ts\": {},\n    \"cat\": \"async_cpu_to_gpu\", \"name\": \"async_cpu_to_gpu\", \"bp\": \"e\"\n  }}", at + 20));
            }
        }
    }
    events
}

fn event(category: &str, name: &str, (pid, tid): (u32, u32), ts: u64, dur: u64, args: &str) -> String {
    format!(
        "  {{\n    \"ph\": \"X\", \"cat\": \"{category}\", \"name\": \"{name}\", \"pid\": {pid}, \"tid\": {tid},\n    \
         \"ts\": {ts}, \"dur\": {dur},\n    \"args\": {{\n      {args}\n    }}\n  }}"
    )
}

impl Template {
    fn new(text: &str) -> Self {
        const KEYS: [(&str, Shift); 4] = [
            ("\"ts\": ", Shift::Time),
            ("\"correlation\": ", Shift::Id),
            ("\"id\": ", Shift::Id),
            ("\"External id\": ", Shift::Id),
        ];
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((at, shift)) = KEYS
            .iter()
            .filter_map(|(key, shift)| Some((rest.find(key)? + key.len(), *shift)))
            .min_by_key(|(at, _)| *at)
        {
            let digits = rest[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
            let number = rest[at..at + digits].parse().ok().map(|number| (number, shift));
            pieces.push((rest[..at].to_owned(), number));
            rest = &rest[at + digits..];
        }
        Self { pieces, tail: rest.to_owned() }
    }

    fn write(&self, round: u64, line: &mut String) {
        use std::fmt::Write;
        for (before, number) in &self.pieces {
            line.push_str(before);
            match number {
                // Each repetition shifts times by more than the trace's duration, and shifts ids by more than the range
                // of the trace's ids.
                Some((number, Shift::Time)) => write!(line, "{}", number + round * 20_000_000).unwrap(),
                Some((number, Shift::Id)) => write!(line, "{}", number + round * 500_000).unwrap(),
                None => {}
            }
        }
        line.push_str(&self.tail);
    }
}
