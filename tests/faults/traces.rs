//! A small simulation of training jobs that writes traces in the format of PyTorch's profiler. Each host thread and
//! each stream in the simulation has a clock. As on a GPU, the work of a stream runs in order: after its launch, and
//! after the events, copies and collectives on which it depends. Therefore idle time results from the simulation, and
//! is never written by hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Time at which every run starts, in nanoseconds since 1970.
const START_NS: i64 = 1_750_000_000_000_000_000;
const PROCESS: u32 = 4100;
/// Ids of streams, as PyTorch assigns them: the legacy default stream, a stream for copies, and a stream for
/// collectives.
pub(crate) const DEFAULT_STREAM: u32 = 7;
pub(crate) const COPY_STREAM: u32 = 20;
pub(crate) const NCCL_STREAM: u32 = 24;
/// Maximum number of launches that may be pending on a stream. If a thread launches more, the launch call blocks.
const QUEUE_LENGTH: usize = 1024;
/// `LATENCY_NS` is the minimum time, in ns, from the start of a launch to the start of its kernel. `GAP_NS` is the time
/// between two kernels on a stream.
const LATENCY_NS: f64 = 4_500.0;
const GAP_NS: i64 = 900;

/// A generator of random numbers (splitmix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number that is uniformly distributed in (0, 1].
    fn fraction(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a log-normal factor with median 1.
    fn factor(&mut self, sigma: f64) -> f64 {
        let normal = (-2.0 * self.fraction().ln()).sqrt() * (std::f64::consts::TAU * self.fraction()).cos();
        (sigma * normal).exp()
    }
}

/// All ranks of a job. Each rank is a process with its own trace.
pub(crate) struct World {
    pub(crate) ranks: Vec<Rank>,
}

/// A rank: a process with its threads, the streams of its GPUs, and its trace.
pub(crate) struct Rank {
    pub(crate) index: usize,
    count: usize,
    /// Random generators: one for the healthy loop, and one per planted fault. Therefore a planted fault does not
    /// change the loop's noise.
    generators: Vec<Random>,
    generator: usize,
    threads: Vec<Thread>,
    thread: usize,
    /// Times at which the pending work on each stream ends, keyed by (device, stream).
    streams: BTreeMap<(u32, u32), VecDeque<i64>>,
    /// Streams that synchronize with the legacy default stream: they wait for it, and it waits for them.
    pub(crate) blocking_streams: BTreeSet<u32>,
    next_id: u64,
    /// Thread id and start of the call that was made last.
    last_call: (u32, i64),
    /// Text of the trace, or `None` if only the times are needed.
    text: Option<String>,
    /// Factor by which the duration of every kernel is multiplied.
    pub(crate) kernel_factor: f64,
    /// Host time added to every operator.
    pub(crate) operator_ns: f64,
    /// Host time that another profiler takes per launch.
    pub(crate) profiler_ns: f64,
    /// `lost_share` is the share of kernels that have no record. `impossible_share` is the share of kernels with
    /// impossible times.
    pub(crate) lost_share: f64,
    pub(crate) impossible_share: f64,
    /// Number of records that are lost or that get impossible times. `lost_share` and `impossible_share` determine this
    /// number.
    pub(crate) affected: u64,
    /// `gpu_clock_ns` is the error, in ns, of the clock that times GPU work. `clock_ns` is the error of all clocks of
    /// the process.
    pub(crate) gpu_clock_ns: i64,
    pub(crate) clock_ns: i64,
    pub(crate) has_flows: bool,
}

struct Thread {
    id: u32,
    now: i64,
    open: Vec<Open>,
}

/// A slice that has begun and not ended yet.
struct Open {
    category: &'static str,
    name: String,
    start: i64,
    id: u64,
}

/// The time on a stream that a CUDA event recorded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Event(i64);

/// Number of noise generators: one for the loop, and at most three for faults.
const GENERATORS: u64 = 4;

impl World {
    pub(crate) fn new(seed: u64, ranks: usize, is_recorded: bool) -> Self {
        let rank = |index| Rank::new(seed, index, ranks, is_recorded);
        Self { ranks: (0..ranks).map(rank).collect() }
    }

    /// Runs a collective on device 0, on the stream that is used for collectives. The kernel of the collective must
    /// start on all ranks before it can end on any rank.
    pub(crate) fn collective(&mut self, annotation: &str, kernel: &str, ns: f64) {
        let starts: Vec<_> = self.ranks.iter_mut().map(|rank| rank.start_collective(annotation)).collect();
        let last = starts.iter().map(|(_, start)| *start).max().unwrap();
        let end = last + (ns * self.ranks[0].noise(0.03)) as i64;
        for (rank, (id, start)) in self.ranks.iter_mut().zip(starts) {
            rank.finish_work("kernel", kernel, (0, NCCL_STREAM), id, (start, end), "");
        }
    }

    /// Returns the time in ns from the start of the run to the end of the last host or GPU work.
    pub(crate) fn length_ns(&self) -> i64 {
        self.ranks.iter().map(Rank::end).max().unwrap() - START_NS
    }

    /// Writes one trace file per rank, and returns the names of the files.
    pub(crate) fn write(self, folder: &Path) -> Vec<String> {
        let mut names = Vec::new();
        for rank in self.ranks {
            let name = format!("rank{}.json", rank.index);
            fs::write(folder.join(&name), rank.finish()).unwrap();
            names.push(name);
        }
        names
    }
}

impl Rank {
    fn new(seed: u64, index: usize, count: usize, is_recorded: bool) -> Self {
        let main = Thread { id: PROCESS, now: START_NS, open: Vec::new() };
        let autograd = Thread { id: PROCESS + 60, now: START_NS, open: Vec::new() };
        let helper = Thread { id: PROCESS + 90, now: START_NS, open: Vec::new() };
        let generator = |which| Random((seed << 20) + (index as u64) * GENERATORS + which);
        Self {
            index,
            count,
            generators: (0..GENERATORS).map(generator).collect(),
            generator: 0,
            threads: vec![main, autograd, helper],
            thread: 0,
            streams: BTreeMap::new(),
            blocking_streams: BTreeSet::new(),
            next_id: 1,
            last_call: (PROCESS, START_NS),
            text: is_recorded.then(String::new),
            kernel_factor: 1.0,
            operator_ns: 0.0,
            profiler_ns: 0.0,
            lost_share: 0.0,
            impossible_share: 0.0,
            affected: 0,
            gpu_clock_ns: 0,
            clock_ns: 0,
            has_flows: true,
        }
    }

    /// Runs `body` with the noise generator at index `number`.
    pub(crate) fn with_generator(&mut self, number: usize, body: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.generator, number);
        body(self);
        self.generator = before;
    }

    fn noise(&mut self, sigma: f64) -> f64 {
        self.generators[self.generator].factor(sigma)
    }

    pub(crate) fn now(&self) -> i64 {
        self.threads[self.thread].now
    }

    /// Lets the current thread compute for about `ns`.
    pub(crate) fn host(&mut self, ns: f64) {
        let ns = ns * self.noise(0.1);
        self.threads[self.thread].now += ns as i64;
    }

    pub(crate) fn open(&mut self, category: &'static str, name: &str) {
        let id = self.take_id();
        let name = if self.text.is_some() { name.to_owned() } else { String::new() };
        let thread = &mut self.threads[self.thread];
        thread.open.push(Open { category, name, start: thread.now, id });
        self.host(400.0);
    }

    pub(crate) fn close(&mut self) {
        self.host(300.0);
        let thread = &mut self.threads[self.thread];
        let (now, tid) = (thread.now, thread.id);
        let Open { category, name, start, id } = thread.open.pop().expect("an open slice");
        let parent = thread.open.iter().rev().find(|open| open.category == "python_function");
        let args = match category {
            "python_function" => {
                let parent = parent.map_or("null".to_owned(), |parent| parent.id.to_string());
                format!(r#""Python parent id":{parent},"Python id":{id},"Ev Idx":{id}"#)
            }
            _ => format!(r#""External id":{id},"Ev Idx":{id}"#),
        };
        self.event(category, &name, (PROCESS, tid), (start, now), &args);
    }

    pub(crate) fn python(&mut self, name: &str, body: impl FnOnce(&mut Self)) {
        self.slice("python_function", name, body);
    }

    pub(crate) fn operator(&mut self, name: &str, body: impl FnOnce(&mut Self)) {
        self.slice("cpu_op", name, |rank| {
            rank.host(1_200.0 + rank.operator_ns);
            body(rank);
        });
    }

    pub(crate) fn slice(&mut self, category: &'static str, name: &str, body: impl FnOnce(&mut Self)) {
        self.open(category, name);
        body(self);
        self.close();
    }

    /// Runs `body` on another thread; meanwhile the current thread waits for that thread.
    pub(crate) fn on_thread(&mut self, thread: usize, body: impl FnOnce(&mut Self)) {
        let now = self.now();
        let before = std::mem::replace(&mut self.thread, thread);
        self.threads[thread].now = self.threads[thread].now.max(now + 2_000);
        body(self);
        let end = self.now() + 2_000;
        self.thread = before;
        self.threads[before].now = end;
    }

    /// Makes a call of the CUDA runtime that takes about `ns`. If the call waits for something, it ends at the time
    /// `until` or later.
    pub(crate) fn call(&mut self, name: &str, ns: f64, until: i64) -> u64 {
        let id = self.take_id();
        let start = self.now();
        self.host(ns);
        let thread = &mut self.threads[self.thread];
        thread.now = thread.now.max(until);
        let (now, tid) = (thread.now, thread.id);
        self.last_call = (tid, start);
        let category = if name.starts_with("cuda") { "cuda_runtime" } else { "cuda_driver" };
        self.event(
            category,
            name,
            (PROCESS, tid),
            (start, now),
            &format!(r#""cbid":211,"correlation":{id}"#),
        );
        id
    }

    /// Launches a kernel that takes about `ns`.
    pub(crate) fn launch(&mut self, kernel: &str, device: u32, stream: u32, ns: f64) {
        let (id, start) = self.start_launch("cudaLaunchKernel", device, stream);
        let ns = ns * self.kernel_factor * self.noise(0.04);
        let args = r#","registers per thread":32,"shared memory":0,"grid":[512,1,1],"block":[256,1,1]"#;
        self.finish_work("kernel", kernel, (device, stream), id, (start, start + ns as i64), args);
        if self.profiler_ns > 0.0 {
            let start = self.now();
            self.host(self.profiler_ns);
            let place = (PROCESS, self.threads[self.thread].id);
            self.event("overhead", "Instrumentation", place, (start, self.now()), "");
        }
    }

    /// Launches a CUDA graph of kernels with the given names and durations.
    pub(crate) fn launch_graph<'a>(&mut self, stream: u32, kernels: impl Iterator<Item = (&'a str, f64)>) {
        let (id, mut start) = self.start_launch("cudaGraphLaunch", 0, stream);
        for (node, (kernel, ns)) in kernels.enumerate() {
            let end = start + (ns * self.kernel_factor * self.noise(0.04)) as i64;
            let args = format!(r#","graph id":3,"graph node id":{}"#, node + 1);
            self.finish_work("kernel", kernel, (0, stream), id, (start, end), &args);
            start = end + GAP_NS;
        }
    }

    /// Copies with `cudaMemcpyAsync`, or with `cudaMemcpy`, which waits for the copy.
    pub(crate) fn copy(&mut self, call: &str, name: &str, device: u32, stream: u32, bytes: u64) {
        let is_pageable = name.contains("Pageable");
        let is_waiting = is_pageable || call == "cudaMemcpy";
        let (id, start) = self.start_launch(call, device, stream);
        // A rate of 1 GB/s is one byte per nanosecond. The driver copies pageable memory in stages, which is slower.
        let ns = (1_300.0 + bytes as f64 / if is_pageable { 5.0 } else { 24.0 }) * self.noise(0.03);
        let end = start + ns as i64;
        let args = format!(r#","bytes":{bytes},"memory bandwidth (GB/s)":{:.3}"#, bytes as f64 / ns);
        self.finish_work("gpu_memcpy", name, (device, stream), id, (start, end), &args);
        if is_waiting {
            // The end of the call was written before the end of the copy was known, so it is corrected now.
            self.extend_last_call(id, end + 2_500);
        }
    }

    pub(crate) fn fill(&mut self, device: u32, stream: u32, bytes: u64) {
        let (id, start) = self.start_launch("cudaMemsetAsync", device, stream);
        let end = start + 1_000 + bytes as i64 / 1_000;
        let args = format!(r#","bytes":{bytes}"#);
        self.finish_work("gpu_memset", "Memset (Device)", (device, stream), id, (start, end), &args);
    }

    pub(crate) fn synchronize_stream(&mut self, device: u32, stream: u32) {
        let until = self.stream_end(device, stream);
        self.call("cudaStreamSynchronize", 2_500.0, until + 3_000);
    }

    pub(crate) fn synchronize_device(&mut self, device: u32) {
        let until = self.device_end(device);
        self.call("cudaDeviceSynchronize", 2_500.0, until + 3_000);
    }

    /// Frees device memory. This call waits for all work on the device.
    pub(crate) fn free(&mut self, device: u32, ns: f64) {
        let idle = self.device_end(device).max(self.now());
        let ns = ns * self.noise(0.1);
        self.call("cudaFree", 500.0, idle + ns as i64);
    }

    pub(crate) fn record_event(&mut self, device: u32, stream: u32) -> Event {
        self.call("cudaEventRecord", 1_500.0, 0);
        Event(self.stream_end(device, stream).max(self.now()))
    }

    pub(crate) fn synchronize_event(&mut self, event: Event) {
        self.call("cudaEventSynchronize", 2_000.0, event.0 + 3_000);
    }

    /// Makes later work of the stream wait for the event.
    pub(crate) fn stream_waits(&mut self, device: u32, stream: u32, event: Event) {
        self.call("cudaStreamWaitEvent", 1_500.0, 0);
        let ends = self.streams.entry((device, stream)).or_default();
        let end = ends.back().copied().unwrap_or(0).max(event.0);
        match ends.back_mut() {
            Some(last) => *last = end,
            None => ends.push_back(end),
        }
    }

    /// Makes a second thread run a function in the background for the next `ns`.
    pub(crate) fn background(&mut self, name: &str, ns: i64) {
        let start = self.now().max(self.threads[2].now);
        let (id, tid, end) = (self.take_id(), self.threads[2].id, self.now() + ns);
        self.threads[2].now = end;
        let args = format!(r#""Python parent id":null,"Python id":{id}"#);
        self.event("python_function", name, (PROCESS, tid), (start, end), &args);
    }

    fn start_collective(&mut self, annotation: &str) -> (u64, i64) {
        // The collective waits for the work that has been submitted so far to the model's stream.
        self.open("user_annotation", annotation);
        let event = self.record_event(0, DEFAULT_STREAM);
        self.stream_waits(0, NCCL_STREAM, event);
        let started = self.start_launch("cudaLaunchKernelExC", 0, NCCL_STREAM);
        self.close();
        started
    }

    fn start_launch(&mut self, call: &str, device: u32, stream: u32) -> (u64, i64) {
        let began = self.now();
        let is_full = self.streams.get(&(device, stream)).filter(|ends| ends.len() >= QUEUE_LENGTH);
        let room = is_full.map_or(0, |ends| ends[ends.len() - QUEUE_LENGTH]);
        let id = self.call(call, 4_200.0, room);
        let latency = (LATENCY_NS * self.noise(0.1)) as i64;
        let mut start = (began + latency).max(room);
        for (&(other_device, other), ends) in &self.streams {
            let is_waited_for = other == stream
                || (stream == DEFAULT_STREAM && self.blocking_streams.contains(&other))
                || (other == DEFAULT_STREAM && self.blocking_streams.contains(&stream));
            if other_device == device && is_waited_for {
                start = start.max(ends.back().map_or(0, |end| end + GAP_NS));
            }
        }
        (id, start)
    }

    fn finish_work(
        &mut self,
        category: &'static str,
        name: &str,
        (device, stream): (u32, u32),
        id: u64,
        (start, end): (i64, i64),
        args: &str,
    ) {
        let ends = self.streams.entry((device, stream)).or_default();
        ends.push_back(end);
        if ends.len() > QUEUE_LENGTH {
            ends.pop_front();
        }
        if self.text.is_none() {
            return;
        }
        let choice = Random(id ^ 0x5eed).fraction();
        if category == "kernel" && choice <= self.lost_share {
            self.affected += 1;
            return;
        }
        let (start, mut end) = (start + self.gpu_clock_ns, end + self.gpu_clock_ns);
        if category == "kernel" && choice <= self.impossible_share {
            self.affected += 1;
            // An impossible end is either before the start or years after it, in turn.
            end = if id.is_multiple_of(2) { start - 3_000 } else { start + 100_000_000_000_000_000 };
        }
        let args = format!(
            r#""External id":{id},"queued":0,"device":{device},"context":1,"stream":{stream},"correlation":{id}{args}"#
        );
        self.event(category, name, (device, stream), (start, end), &args);
        if self.has_flows {
            self.flow(id, (device, stream), start);
        }
    }

    /// Writes the start and the end of the flow arrow from a launch to its GPU work. The arrow starts at the call that
    /// was made last.
    fn flow(&mut self, id: u64, (process, thread): (u32, u32), end: i64) {
        let ((tid, start), clock) = (self.last_call, self.clock_ns);
        let Some(text) = &mut self.text else { return };
        let head = format!(r#","id":{id},"cat":"ac2g","name":"ac2g","#);
        let _ =
            write!(text, r#",{{"ph":"s"{head}"pid":{PROCESS},"tid":{tid},"ts":{}}}"#, Micros(start + clock));
        let _ = write!(
            text,
            r#",{{"ph":"f","bp":"e"{head}"pid":{process},"tid":{thread},"ts":{}}}"#,
            Micros(end + clock)
        );
    }

    fn event(
        &mut self,
        category: &str,
        name: &str,
        (process, thread): (u32, u32),
        (start, end): (i64, i64),
        args: &str,
    ) {
        let clock = self.clock_ns;
        let Some(text) = &mut self.text else { return };
        let _ = write!(
            text,
            ",\n{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":{process},\"tid\":{thread},\
             \"ts\":{},\"dur\":{},\"args\":{{{args}}}}}",
            Micros(start + clock),
            Micros(end - start)
        );
    }

    /// Moves the end of the call that was just written to `end`, and the time of its thread as well.
    fn extend_last_call(&mut self, id: u64, end: i64) {
        let thread = &mut self.threads[self.thread];
        let end = end.max(thread.now);
        let more = end - thread.now;
        thread.now = end;
        let Some(text) = &mut self.text else { return };
        let call = text.rfind(&format!("\"cbid\":211,\"correlation\":{id}}}")).expect("the call was written");
        let from = text[..call].rfind("\"dur\":").unwrap() + 6;
        let to = from + text[from..].find(',').unwrap();
        let before: i64 = text[from..to].replace('.', "").parse().unwrap();
        text.replace_range(from..to, &Micros(before + more).to_string());
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn stream_end(&self, device: u32, stream: u32) -> i64 {
        self.streams.get(&(device, stream)).and_then(|ends| ends.back()).copied().unwrap_or(0)
    }

    fn device_end(&self, device: u32) -> i64 {
        let ends = self.streams.iter().filter(|((owner, _), _)| *owner == device);
        ends.filter_map(|(_, ends)| ends.back()).copied().max().unwrap_or(0)
    }

    fn end(&self) -> i64 {
        let work = self.streams.values().filter_map(|ends| ends.back());
        work.copied().chain(self.threads.iter().map(|thread| thread.now)).max().unwrap()
    }

    /// Returns the text of the trace file.
    fn finish(mut self) -> String {
        let (start, end) = (Micros(START_NS + self.clock_ns), Micros(self.end() - START_NS));
        assert!(self.threads.iter().all(|thread| thread.open.is_empty()), "a slice has no end");
        let body = self.text.take().expect("a recorded run");
        let (index, count) = (self.index, self.count);
        let job = match count {
            1 => String::new(),
            _ => format!(r#""distributedInfo":{{"backend":"nccl","rank":{index},"world_size":{count}}},"#),
        };
        let gpu = r#"{"id":0,"name":"GPU","totalGlobalMem":85899345920,"computeMajor":9,"computeMinor":0,"numSms":132}"#;
        let devices: BTreeSet<_> = self.streams.keys().map(|(device, _)| *device).collect();
        let gpus: Vec<_> =
            devices.iter().map(|id| gpu.replace("\"id\":0", &format!("\"id\":{id}"))).collect();
        format!(
            r#"{{"schemaVersion":1,"deviceProperties":[{}],{job}"displayTimeUnit":"ms","baseTimeNanoseconds":0,"traceEvents":[
{{"name":"process_name","ph":"M","ts":{start},"pid":{PROCESS},"tid":0,"args":{{"name":"python3"}}}},
{{"name":"process_labels","ph":"M","ts":{start},"pid":{PROCESS},"tid":0,"args":{{"labels":"CPU"}}}}{body},
{{"ph":"X","cat":"Trace","ts":{start},"dur":{end},"pid":"Spans","tid":"PyTorch Profiler","name":"PyTorch Profiler (0)","args":{{"Op count":0}}}}
]}}"#,
            gpus.join(",")
        )
    }
}

/// A time in nanoseconds, which is printed as microseconds with three decimals.
struct Micros(i64);

impl std::fmt::Display for Micros {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(formatter, "{sign}{}.{:03}", self.0.abs() / 1000, self.0.abs() % 1000)
    }
}
