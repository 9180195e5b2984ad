//! Chrome's trace events, in the dialect that torch.profiler writes: <https://ui.perfetto.dev>,
//! `chrome://tracing` and the tools made for PyTorch traces read it.
//!
//! Calls stand on the threads that made them, activities on the streams of their GPU (`pid` is the GPU's
//! number, as Kineto has it), and an `ac2g` flow leads from each call to what it started. Times are
//! microseconds with three places, that is exact, from `baseTimeNanoseconds` on.

use std::collections::BTreeSet;
use std::io::Write;

use super::callers::Callers;
use super::clean;
use super::compose::work_name;
use super::format::Format;
use super::json::{comma, json};
use crate::error::Result;
use crate::events::{Call, Events, JoinedActivity};
use crate::join::Origin;
use crate::profile::{Kind, Profile};
use crate::record::{Detail, Missing, Nanos};

/// Chrome's trace events, with the names that the profile has for them. Activities whose times were not
/// collected have no place in a time line: they are counted in `gpuflame.missing`.
pub(super) static CHROME: Format = Format::of_events(
    "chrome",
    &[".json"],
    |profile, events, mut out| write(profile, events, &mut out),
    "Chrome's trace events, as torch.profiler writes them (.json)",
);

fn write(profile: &Profile, events: &Events, out: &mut impl Write) -> Result<()> {
    let mut chrome = Chrome { profile, callers: Callers::of(profile), base: events.begin(), written: 0, out };
    chrome.head(events)?;
    for call in events.calls() {
        chrome.call(call)?;
    }
    for event in events.activities().iter().filter(|event| event.activity.duration().is_some()) {
        chrome.activity(event)?;
    }
    writeln!(chrome.out, "\n]}}")?;
    Ok(())
}

struct Chrome<'a, W> {
    profile: &'a Profile,
    callers: Callers<'a>,
    base: Nanos,
    written: usize,
    out: &'a mut W,
}

impl<W: Write> Chrome<'_, W> {
    fn head(&mut self, events: &Events) -> Result<()> {
        write!(
            self.out,
            "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{},\"gpuflame\":{{",
            self.base.0
        )?;
        let untimed = events.activities().iter().filter(|event| event.activity.duration().is_none()).count();
        write!(self.out, "\"missing\":{{\"{}\":{untimed}}},\"lost\":{{", Missing::Untimed.word())?;
        for (at, (loss, count)) in self.profile.lost().enumerate() {
            write!(self.out, "{}\"{}\":{count}", comma(at), loss.label())?;
        }
        write!(self.out, "}}}},\"traceEvents\":[")?;
        let process = self.callers.process();
        self.name("process_name", process, 0, "CPU")?;
        for (thread, name) in self.callers.threads() {
            self.name("thread_name", process, thread.0, &name)?;
        }
        let streams: BTreeSet<_> =
            events.activities().iter().map(|e| (e.activity.device.0, e.activity.stream.0)).collect();
        for device in streams.iter().map(|(device, _)| *device).collect::<BTreeSet<_>>() {
            self.name("process_name", device, 0, &format!("GPU {device}"))?;
        }
        for &(device, stream) in &streams {
            self.name("thread_name", device, stream, &format!("stream {stream}"))?;
        }
        Ok(())
    }

    /// Says what a process or a thread is called.
    fn name(&mut self, what: &str, process: u32, thread: u32, name: &str) -> Result<()> {
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process},\"tid\":{thread},\"args\":{{\"name\":{}}}}}",
            json(name)
        )?;
        Ok(())
    }

    fn call(&mut self, call: &Call) -> Result<()> {
        let caller = self.callers.get(call.launched.context);
        let (process, thread, id) = (self.callers.process(), caller.thread.0, call.id.0);
        let (begin, duration) = (self.time(call.launched.time), micros(call.launched.duration.into()));
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{process},\"tid\":{thread},\"ts\":{begin},\
             \"dur\":{duration},\"args\":{{\"correlation\":{id},\"stack\":{}{}}}}}",
            if caller.call.starts_with("cu") && !caller.call.starts_with("cuda") {
                "cuda_driver"
            } else {
                "cuda_runtime"
            },
            json(&clean::text(&caller.call)),
            json(&caller.stack()),
            if call.pending { ",\"gpuflame\":\"launch_pending\"" } else { "" },
        )?;
        if !call.pending {
            self.begin()?;
            write!(
                self.out,
                "{{\"ph\":\"s\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":{process},\
                 \"tid\":{thread},\"ts\":{begin}}}"
            )?;
        }
        Ok(())
    }

    fn activity(&mut self, event: &JoinedActivity) -> Result<()> {
        let activity = &event.activity;
        let category = match Kind::of(activity.work()) {
            Kind::Copy => "gpu_memcpy",
            Kind::Set => "gpu_memset",
            _ => "kernel",
        };
        let name = clean::text(&name(self.profile, event));
        let (device, stream, id) = (activity.device.0, activity.stream.0, activity.correlation.0);
        let begin = self.time(activity.start);
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{},\"pid\":{device},\"tid\":{stream},\"ts\":{begin},\
             \"dur\":{},\"args\":{{\"correlation\":{id},\"device\":{device},\"context\":{},\"stream\":{stream}",
            json(&name),
            micros(activity.duration().unwrap_or(0)),
            activity.context.0,
        )?;
        if activity.graph.0 != 0 {
            write!(
                self.out,
                ",\"graph id\":{},\"graph node id\":{}",
                activity.graph.0, activity.graph_node.0
            )?;
        }
        match activity.detail {
            Detail::Kernel(kernel) => write!(
                self.out,
                ",\"grid\":{:?},\"block\":{:?},\"registers per thread\":{},\"shared memory\":{}",
                kernel.grid,
                kernel.block,
                kernel.registers,
                u64::from(kernel.static_shared) + u64::from(kernel.dynamic_shared),
            )?,
            Detail::Copy(_) | Detail::Set(_) => write!(self.out, ",\"bytes\":{}", activity.bytes())?,
            Detail::Graph => {}
        }
        if let Err(missing) = event.origin.context() {
            write!(self.out, ",\"gpuflame\":\"{}\"", missing.word())?;
        }
        write!(self.out, "}}}}")?;
        if let Origin::Launch(_) = event.origin {
            self.begin()?;
            write!(
                self.out,
                "{{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":{device},\
                 \"tid\":{stream},\"ts\":{begin}}}"
            )?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        writeln!(self.out, "{}", comma(self.written))?;
        self.written += 1;
        Ok(())
    }

    fn time(&self, time: Nanos) -> String {
        micros(time.since(self.base))
    }
}

/// Nanoseconds as microseconds, exactly.
pub(super) fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// `gemm`, `Memcpy HtoD` or `Memset`.
pub(super) fn name(profile: &Profile, event: &JoinedActivity) -> String {
    let name = work_name(profile, event.activity.work());
    match event.activity.detail {
        Detail::Kernel(_) => name,
        Detail::Copy(_) => format!("Memcpy {name}"),
        Detail::Set(_) => "Memset".to_owned(),
        Detail::Graph => "Graph".to_owned(),
    }
}
