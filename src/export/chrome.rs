//! Chrome's trace events, in the dialect that torch.profiler writes: <https://ui.perfetto.dev>,
//! `chrome://tracing` and the tools made for PyTorch traces read it.
//!
//! Calls stand on the threads that made them, activities on the streams of their GPU (`pid` is the GPU's
//! number, as Kineto has it), and an `ac2g` flow leads from each call to what it started. Waits are `cuda_sync`, and calls
//! that wait or are about events are calls like others. What Kineto has no place for, and gpuflame reads again, stands in
//! arguments: whole stacks (`stack`, `created_stack` and what their frames are) and reasons (`gpuflame`). Times are
//! microseconds with three places, that is exact, from `baseTimeNanoseconds` on.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write;

use super::callers::{Caller, Callers};
use super::clean;
use super::compose::work_name;
use super::format::Format;
use super::json::{comma, json};
use crate::error::Result;
use crate::events::{Call, Events, HostCall, JoinedActivity, Marked};
use crate::profile::{Kind, Profile};
use crate::record::{Created, Detail, EventUse, GpuContextId, Missing, Nanos, Sync, SyncKind};

/// Chrome's trace events, with the names that the profile has for them. Activities whose times were not
/// collected have no place in a time line: they are counted in `gpuflame.missing`.
pub(super) static CHROME: Format = Format::of_events(
    "chrome",
    &[".json"],
    |profile, events, _, mut out| write(profile, events, &mut out),
    "Chrome's trace events, as torch.profiler writes them (.json)",
);

fn write(profile: &Profile, events: &Events, out: &mut impl Write) -> Result<()> {
    let mut chrome = Chrome { profile, callers: Callers::of(profile), base: events.begin(), written: 0, out };
    chrome.head(events)?;
    for call in events.calls() {
        chrome.call(call)?;
    }
    for call in events.host_calls() {
        chrome.host_call(call, events)?;
    }
    for event in events.activities().iter().filter(|event| event.activity.duration().is_some()) {
        chrome.activity(event)?;
    }
    for sync in events.timed_syncs() {
        chrome.sync(sync, events)?;
    }
    for mark in events.marks() {
        chrome.mark(mark)?;
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
        write!(self.out, "}},\"provenance\":[")?;
        for (at, (what, text)) in self.profile.provenance().enumerate() {
            write!(self.out, "{}[\"{}\",{}]", comma(at), what.word(), json(text))?;
        }
        write!(self.out, "]}},\"traceEvents\":[")?;
        let process = self.callers.process();
        self.name("process_name", process, 0, "CPU")?;
        for (thread, name) in self.callers.threads() {
            self.name("thread_name", process, thread.0, &name)?;
        }
        let streams = events.activities().iter().map(|e| (e.activity.device.0, e.activity.stream.0));
        let waiting =
            events.timed_syncs().filter_map(|sync| Some((device(events, sync.context), sync.stream?.0)));
        let streams: BTreeSet<_> = streams.chain(waiting).collect();
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
        // Whose stack is not known would have another when it is read again.
        if !call.has_stack() {
            return Ok(());
        }
        let caller = self.callers.get(call.launched.context);
        let (process, thread, id) = (self.callers.process(), caller.thread.0, call.id.0);
        let begin = self.time(call.launched.time);
        let pending = if call.pending { ",\"gpuflame\":\"launch_pending\"" } else { "" };
        self.call_of(&caller, call.launched.time, call.launched.duration.into(), id, pending)?;
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

    /// A call with its stack, and `more` arguments.
    fn call_of(&mut self, caller: &Caller, time: Nanos, nanos: u64, id: u32, more: &str) -> Result<()> {
        let (process, thread) = (self.callers.process(), caller.thread.0);
        let (begin, duration) = (self.time(time), micros(nanos));
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{process},\"tid\":{thread},\"ts\":{begin},\
             \"dur\":{duration},\"args\":{{\"correlation\":{id}{}{more}}}}}",
            if caller.call.starts_with("cu") && !caller.call.starts_with("cuda") {
                "cuda_driver"
            } else {
                "cuda_runtime"
            },
            json(&clean::text(&caller.call)),
            stack("stack", "stack_kinds", caller),
        )?;
        Ok(())
    }

    /// A call that started no work, and the event that it put on a stream.
    fn host_call(&mut self, call: &HostCall, events: &Events) -> Result<()> {
        let caller = self.callers.get(call.context);
        let records = events.event_records();
        let at = records.partition_point(|record| record.correlation.0 < call.id.0);
        let record = records.get(at).filter(|record| record.correlation == call.id);
        let more = record.filter(|_| call.does == Some(EventUse::Record)).map(|record| {
            format!(
                ",\"cuda_event_id\":{},\"stream\":{},\"context\":{}",
                record.event.0, record.stream.0, record.context.0
            )
        });
        self.call_of(&caller, call.time, call.duration, call.id.0, &more.unwrap_or_default())
    }

    /// A wait, in Kineto's words, on the stream that waited or was waited for.
    fn sync(&mut self, sync: &Sync, events: &Events) -> Result<()> {
        let name = match sync.kind {
            SyncKind::EVENT => "Event Sync",
            SyncKind::STREAM_WAIT => "Stream Wait Event",
            SyncKind::STREAM => "Stream Sync",
            SyncKind::CONTEXT => "Context Sync",
            _ => "Sync",
        };
        let (device, begin) = (device(events, sync.context), self.time(sync.start));
        let thread = sync.stream.map_or_else(|| "-1".to_owned(), |stream| stream.0.to_string());
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"X\",\"cat\":\"cuda_sync\",\"name\":\"{name}\",\"pid\":{device},\"tid\":{thread},\"ts\":{begin},\
             \"dur\":{},\"args\":{{\"cuda_sync_kind\":\"{name}\",\"correlation\":{},\"device\":{device},\"context\":{}",
            micros(sync.end.since(sync.start)),
            sync.correlation.0,
            sync.context.0,
        )?;
        if let Some(stream) = sync.stream {
            write!(self.out, ",\"stream\":{}", stream.0)?;
        }
        if let Some(event) = sync.event {
            write!(self.out, ",\"wait_on_cuda_event_id\":{}", event.0)?;
        }
        // Which record of the event it was, where the tracer says so.
        let records = events.event_records().iter();
        if let Some(record) =
            records.filter(|record| record.sync.is_some()).find(|record| record.sync == sync.sync)
        {
            write!(
                self.out,
                ",\"wait_on_stream\":{},\"wait_on_cuda_event_record_corr_id\":{}",
                record.stream.0, record.correlation.0
            )?;
        }
        write!(self.out, "}}}}")?;
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
        match activity.created {
            Some(Created::Context(context)) => {
                write!(self.out, "{}", stack("created_stack", "created_kinds", &self.callers.get(context)))?;
            }
            Some(made) => write!(self.out, ",\"created_stack\":{}", json(made.label().unwrap_or_default()))?,
            None => {}
        }
        write!(self.out, "}}}}")?;
        if event.origin.context().is_ok() {
            self.begin()?;
            write!(
                self.out,
                "{{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":{device},\
                 \"tid\":{stream},\"ts\":{begin}}}"
            )?;
        }
        Ok(())
    }

    /// An instant, on the thread that marked it.
    fn mark(&mut self, mark: &Marked) -> Result<()> {
        let (name, process, begin) = (clean::text(&mark.text), self.callers.process(), self.time(mark.time));
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"mark\",\"name\":{},\"pid\":{process},\"tid\":{},\"ts\":{begin}}}",
            json(&name),
            mark.thread.0,
        )?;
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

/// The arguments that say a stack and, where that is not plain, what its frames are.
fn stack(text: &str, kinds: &str, caller: &Caller) -> String {
    let stack = format!(",\"{text}\":{}", json(&caller.exact_stack()));
    match caller.kinds() {
        letters if letters.is_empty() => stack,
        letters => format!("{stack},\"{kinds}\":\"{letters}\""),
    }
}

/// The GPU of a context; the first where nothing ran in it.
fn device(events: &Events, context: GpuContextId) -> u32 {
    events.device_of(context).map_or(0, |device| device.0)
}

/// Nanoseconds as microseconds, exactly.
pub(super) fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// `gemm`, `Memcpy HtoD` or `Memset`.
pub(super) fn name<'a>(profile: &'a Profile, event: &JoinedActivity) -> Cow<'a, str> {
    let name = work_name(profile, event.activity.work());
    match event.activity.detail {
        Detail::Kernel(_) => name,
        Detail::Copy(_) => format!("Memcpy {name}").into(),
        Detail::Set(_) => "Memset".into(),
        Detail::Graph => "Graph".into(),
    }
}
