//! Measures how fast a large trace is read: `cargo bench --bench scan`. The benchmark needs half a gigabyte of disk.
//! The comparison with serde needs 4 GB of memory, and `-- --no-serde` omits it.
//!
//! The compared readers run in this process on the same file, one after the other and in several rounds. The best round
//! of each reader is reported, so that the ratios are valid even on a busy machine. The reported memory is the peak
//! memory of the process during the first run of a reader. The readers that need little memory run first.

#[path = "trace_gen.rs"]
mod trace_gen;

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use gpuflame_traces::import::{self, Event, Fork, Options, Sink, Wants};
use gpuflame_traces::steps::{Extract, Ops, Stats, StatsOptions};

const ROUNDS: usize = 15;

/// Name of a reader, and a function that reads the trace and returns a number that depends on the whole trace.
type Reader<'a> = (&'a str, Box<dyn Fn() -> u64 + 'a>);

#[allow(clippy::print_stdout)]
fn main() {
    let folder = std::env::var_os("GPUFLAME_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    // Do not compare the figures for the real trace with those for the made-up trace, because the events of the real
    // trace take longer to decompress.
    let (kind, events) = match trace_gen::traces() {
        Some(_) => ("real", "a real trace's events"),
        None => ("made-up", "made-up events"),
    };
    let plain = folder.join(format!("gpuflame-large-trace-{kind}.json"));
    trace_gen::make(&plain, trace_gen::EVENTS, Some(trace_gen::BYTES));
    let gzip = plain.with_extension("json.gz");
    let made = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if made(&gzip) < made(&plain) {
        compress(&plain, &gzip);
    }
    println!("{}: {events}, {} bytes", plain.display(), plain.metadata().unwrap().len());
    let one = Options { threads: 1, ..Options::default() };
    let two = Options::default();
    let mut readers: Vec<Reader<'_>> = vec![
        ("read(2) only", Box::new(|| read_only(&plain))),
        ("scan, 1 thread", Box::new(|| scan(&plain, &one))),
        ("scan, 2 threads", Box::new(|| scan(&plain, &two))),
        ("scan of gz", Box::new(|| scan(&gzip, &two))),
        ("stats, 1 thread", Box::new(|| stats(&plain, &one))),
        ("stats, 2 threads", Box::new(|| stats(&plain, &two))),
        ("extract, 1 thread", Box::new(|| extract(&plain, &one))),
        ("extract, 2 threads", Box::new(|| extract(&plain, &two))),
        ("inflate only", Box::new(|| inflate_only(&gzip))),
        ("stats of gz", Box::new(|| stats(&gzip, &two))),
    ];
    if !std::env::args().any(|argument| argument == "--no-serde") {
        readers.push(("serde_json::Value", Box::new(|| serde(&plain))));
    }
    let measured = measure(&readers);
    for ((name, _), Measured { best, processor, peak, count }) in readers.iter().zip(&measured) {
        let peak = peak / 1024;
        println!("{name:20} {best:7.3} s   {processor:6.2} s of processor   peak {peak:5} MB   {count}");
    }
    let best = |name: &str| {
        let at = readers.iter().position(|(known, _)| *known == name);
        at.map_or(f64::NAN, |at| measured[at].best)
    };
    for name in ["stats", "extract"] {
        let [one, two] = ["1 thread", "2 threads"].map(|threads| best(&format!("{name}, {threads}")));
        let serde = best("serde_json::Value");
        println!(
            "{name}: {:.1} times as fast as serde_json::Value, with two threads {:.1}",
            serde / one,
            serde / two
        );
    }
    println!("stats of gz: {:.2} times as long as inflating it", best("stats of gz") / best("inflate only"));
}

struct Measured {
    /// Wall time of the fastest round, in seconds.
    best: f64,
    /// CPU time of all threads together in that round, in seconds. Load by other programs affects CPU time less than
    /// wall time.
    processor: f64,
    /// Peak memory in KiB.
    peak: u64,
    count: u64,
}

fn measure(readers: &[Reader<'_>]) -> Vec<Measured> {
    let nothing = || Measured { best: f64::MAX, processor: f64::MAX, peak: 0, count: 0 };
    let mut all: Vec<Measured> = readers.iter().map(|_| nothing()).collect();
    for round in 0..ROUNDS {
        for ((name, reader), measured) in readers.iter().zip(&mut all) {
            if *name == "serde_json::Value" && round > 1 {
                continue;
            }
            forget_peak();
            let (begin, worked) = (Instant::now(), processor());
            measured.count = reader();
            measured.best = measured.best.min(begin.elapsed().as_secs_f64());
            measured.processor = measured.processor.min(processor() - worked);
            if round == 0 {
                measured.peak = peak();
            }
        }
    }
    all
}

fn read_only(path: &Path) -> u64 {
    let (mut file, mut buffer, mut sum) = (File::open(path).unwrap(), vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return sum,
            count => sum += count as u64,
        }
    }
}

fn inflate_only(path: &Path) -> u64 {
    let mut input =
        flate2::read::MultiGzDecoder::new(BufReader::with_capacity(1 << 17, File::open(path).unwrap()));
    let (mut buffer, mut sum) = (vec![0; 1 << 18], 0);
    loop {
        match input.read(&mut buffer).unwrap() {
            0 => return sum,
            count => sum += count as u64,
        }
    }
}

/// Counts the trace events, and adds up the GPU time. A reader of the trace must at least count the events and add up
/// the GPU time, so this is the minimum work.
fn scan(path: &Path, options: &Options) -> u64 {
    let mut sum = Sum::default();
    import::open(path).unwrap().read_parallel(options, &mut sum).unwrap();
    sum.0
}

#[derive(Default)]
struct Sum(u64);

impl Sink for Sum {
    fn wants(&self) -> Wants {
        Wants::OPS
    }

    fn event(&mut self, event: &Event<'_>) {
        if let Event::Op(op) = event {
            self.0 += (op.end - op.start) as u64;
        }
    }
}

impl Fork for Sum {
    fn fork(&self) -> Self {
        Self::default()
    }

    fn join(&mut self, later: Self) {
        self.0 += later.0;
    }
}

fn stats(path: &Path, options: &Options) -> u64 {
    let mut ops = Ops::with_steps();
    let seen = import::open(path).unwrap().read_parallel(options, &mut ops).unwrap();
    assert_eq!(seen.events, trace_gen::EVENTS);
    let options = StatsOptions { trim: None, max: i64::MAX, ..StatsOptions::default() };
    let stats = Stats::new(ops, &options).unwrap();
    stats.write(str::to_owned, &mut std::io::sink()).unwrap();
    stats.report.ops as u64
}

/// Extracts all data from the trace. Extracting all data is the maximum work that a reader of the trace does.
fn extract(path: &Path, options: &Options) -> u64 {
    let mut ops = Ops::within(i64::MIN, i64::MAX);
    import::open(path).unwrap().read_parallel(options, &mut ops).unwrap();
    let extract = Extract::new(ops);
    extract.write(false, str::to_owned, &mut std::io::sink()).unwrap();
    extract.ops().len() as u64
}

fn serde(path: &Path) -> u64 {
    let trace: serde_json::Value =
        serde_json::from_reader(BufReader::with_capacity(1 << 20, File::open(path).unwrap())).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    events
        .iter()
        .filter(|event| matches!(event["cat"].as_str(), Some("kernel" | "gpu_memcpy" | "gpu_memset")))
        .count() as u64
}

fn compress(plain: &Path, gzip: &Path) {
    let part = gzip.with_extension("part");
    let mut out = flate2::write::GzEncoder::new(File::create(&part).unwrap(), flate2::Compression::new(6));
    let (mut input, mut buffer) = (File::open(plain).unwrap(), vec![0; 1 << 20]);
    loop {
        match input.read(&mut buffer).unwrap() {
            0 => break,
            count => out.write_all(&buffer[..count]).unwrap(),
        }
    }
    out.finish().unwrap();
    std::fs::rename(part, gzip).unwrap();
}

/// Returns the CPU time of this process in seconds, in steps of 10 ms.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Resets Linux's counter of peak memory, which [`peak`] reads.
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Returns the peak memory of this process since [`forget_peak`], in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
