//! Writes single trace events, one function per type. The exporter of complete recordings and the exporter that writes
//! while the application runs (`live`) use these functions.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::{Arguments, Display, Formatter};
use std::io::Write;

use super::lanes::Lanes;
use crate::clean;
use crate::json::comma;
use crate::threads;
use gpuflame_model::profile::{Profile, ShownFrameKind, json_string};
use gpuflame_model::record::{
    Activity, ContextId, Detail, EventRecord, Missing, Nanos, SyncKind, SyncRecord, ThreadId, Work,
};
use gpuflame_model::sorting;

/// JSON text of a list of trace events.
#[derive(Debug)]
pub struct EventText {
    /// Text of the trace events that are not yet written to the file.
    pub text: Vec<u8>,
    /// Time to which all times in the text are relative.
    pub base: Nanos,
    pub(super) process: u32,
    written: u64,
}

/// A call to a function of CUDA's API.
pub struct CallEvent<'a> {
    /// Name of the API function.
    pub name: &'a str,
    /// Thread that made the call.
    pub thread: ThreadId,
    /// Start of the call.
    pub begun: Nanos,
    /// Duration in nanoseconds.
    pub nanos: u64,
    /// Correlation id of the call, as written to the file.
    pub id: u64,
}

impl EventText {
    /// Creates an empty list whose times are relative to `base`.
    pub fn new(base: Nanos, process: u32) -> Self {
        Self { text: Vec::new(), base, process, written: 0 }
    }

    /// Appends text. Writing to a vector cannot fail.
    pub fn put(&mut self, text: Arguments<'_>) {
        let _ = self.text.write_fmt(text);
    }

    /// Writes the name of a process or a thread.
    pub(super) fn name(&mut self, what: &str, process: u32, thread: u32, name: &str) {
        self.begin();
        let name = json_string(name);
        self.put(format_args!(
            "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process},\"tid\":{thread},\"args\":{{\"name\":{name}}}}}"
        ));
    }

    /// Writes a call. `more` is JSON text with additional arguments. `frame` is the launch context (stack and API call)
    /// whose innermost frame in `stackFrames` represents the call.
    pub fn call(&mut self, call: &CallEvent<'_>, frame: Option<ContextId>, more: Arguments<'_>) {
        let &CallEvent { name, thread, begun, nanos, id } = call;
        let is_driver = name.starts_with("cu") && !name.starts_with("cuda");
        let category = if is_driver { "cuda_driver" } else { "cuda_runtime" };
        let (process, name) = (self.process, json_string(&clean::field(name)));
        let (begun, duration) = (self.time(begun), Micros(nanos));
        self.begin();
        self.put(format_args!(
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{name},\"pid\":{process},\"tid\":{},\"ts\":{begun},\
             \"dur\":{duration},",
            thread.0
        ));
        if let Some(frame) = frame {
            self.put(format_args!("\"sf\":\"{}\",", InnermostFrameId(frame)));
        }
        self.put(format_args!("\"args\":{{\"correlation\":{id}{more}}}}}"));
    }

    /// Writes the start of the flow (arrow) from a call to the GPU operation that the call started.
    pub fn flow_start(&mut self, id: u64, thread: ThreadId, time: Nanos) {
        let (process, time) = (self.process, self.time(time));
        self.begin();
        self.put(format_args!(
            "{{\"ph\":\"s\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":{process},\"tid\":{},\"ts\":{time}}}",
            thread.0
        ));
    }

    /// Writes an activity (a kernel, copy or fill) on a track, with its correlation id `id`, its [`title`] and the
    /// additional arguments `more`. `missing` is the reason why the activity has no launch.
    pub fn activity(
        &mut self,
        activity: &Activity,
        id: u64,
        track: u32,
        name: &str,
        missing: Option<Missing>,
        more: Arguments<'_>,
    ) {
        let category = match ShownFrameKind::for_work(activity.work()) {
            ShownFrameKind::Copy => "gpu_memcpy",
            ShownFrameKind::Set => "gpu_memset",
            _ => "kernel",
        };
        let (device, stream) = (activity.device.0, activity.stream.0);
        let (begin, duration) = (self.time(activity.start), Micros(activity.duration().unwrap_or(0)));
        let name = json_string(&clean::field(name));
        self.begin();
        self.put(format_args!(
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{name},\"pid\":{device},\"tid\":{track},\"ts\":{begin},\
             \"dur\":{duration},\"args\":{{\"correlation\":{id},\"device\":{device},\"context\":{},\"stream\":{stream}",
            activity.context.0,
        ));
        if activity.graph.0 != 0 {
            let (graph, node) = (activity.graph.0, activity.graph_node.0);
            self.put(format_args!(",\"graph id\":{graph},\"graph node id\":{node}"));
        }
        match activity.detail {
            Detail::Kernel(kernel) => {
                let shared = u64::from(kernel.static_shared) + u64::from(kernel.dynamic_shared);
                self.put(format_args!(
                    ",\"grid\":{:?},\"block\":{:?},\"registers per thread\":{},\"shared memory\":{shared}",
                    kernel.grid, kernel.block, kernel.registers,
                ));
            }
            Detail::Copy(_) | Detail::Set(_) => self.put(format_args!(",\"bytes\":{}", activity.bytes())),
            Detail::Graph => {}
        }
        if let Some(missing) = missing {
            self.put(format_args!(",\"gpuflame\":\"{}\"", missing.word()));
        }
        self.put(format_args!("{more}}}}}"));
        if missing.is_none() {
            self.begin();
            self.put(format_args!(
                "{{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":{device},\
                 \"tid\":{track},\"ts\":{begin}}}"
            ));
        }
    }

    /// Writes a synchronization (a wait), named as in Kineto's traces. The wait is drawn on the stream that waited, or
    /// on the stream for which the host waited. `record` states on which stream the awaited CUDA event was recorded, if
    /// CUPTI reported this.
    pub fn sync(&mut self, sync: &SyncRecord, id: u64, device: u32, record: Option<&EventRecord>) {
        let name = match sync.kind {
            SyncKind::EVENT => "Event Sync",
            SyncKind::STREAM_WAIT => "Stream Wait Event",
            SyncKind::STREAM => "Stream Sync",
            SyncKind::CONTEXT => "Context Sync",
            _ => "Sync",
        };
        let thread = sync.stream.map_or_else(|| "-1".to_owned(), |stream| stream.0.to_string());
        let (begin, duration) = (self.time(sync.start), Micros(sync.end.since(sync.start)));
        self.begin();
        self.put(format_args!(
            "{{\"ph\":\"X\",\"cat\":\"cuda_sync\",\"name\":\"{name}\",\"pid\":{device},\"tid\":{thread},\"ts\":{begin},\
             \"dur\":{duration},\"args\":{{\"cuda_sync_kind\":\"{name}\",\"correlation\":{id},\"device\":{device},\
             \"context\":{}",
            sync.context.0,
        ));
        if let Some(stream) = sync.stream {
            self.put(format_args!(",\"stream\":{}", stream.0));
        }
        if let Some(event) = sync.event {
            self.put(format_args!(",\"wait_on_cuda_event_id\":{}", event.0));
        }
        if let Some(record) = record {
            let (stream, id) = (record.stream.0, record.correlation.0);
            self.put(format_args!(",\"wait_on_stream\":{stream},\"wait_on_cuda_event_record_corr_id\":{id}"));
        }
        self.put(format_args!("}}}}"));
    }

    /// Writes a mark (an instant that the program set) on the track of the thread that set the mark.
    pub fn mark(&mut self, text: &str, thread: ThreadId, time: Nanos) {
        let (name, process, time) = (json_string(&clean::field(text)), self.process, self.time(time));
        self.begin();
        self.put(format_args!(
            "{{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"mark\",\"name\":{name},\"pid\":{process},\"tid\":{},\"ts\":{time}}}",
            thread.0,
        ));
    }

    fn begin(&mut self) {
        let comma = comma(self.written as usize);
        self.put(format_args!("{comma}\n"));
        self.written += 1;
    }

    /// Converts a time to the relative time that is written to the file. The relative time may be negative, because
    /// `base` and the time of the call may come from different sources.
    fn time(&self, time: Nanos) -> Time {
        Time(time.0.wrapping_sub(self.base.0) as i64)
    }
}

/// Argument of the trace event of a launch for which no activity has arrived.
pub const PENDING: &str = ",\"gpuflame\":\"launch_pending\"";

/// Writes the number of losses of each kind, the number of activities without times, and the provenance of the profile.
pub fn write_metadata(events: &mut EventText, profile: &Profile, untimed: u64) {
    let word = Missing::Untimed.word();
    events.put(format_args!("\"gpuflame\":{{\"missing\":{{\"{word}\":{untimed}}},\"lost\":{{"));
    for (at, (loss, count)) in profile.lost().enumerate() {
        events.put(format_args!("{}\"{}\":{count}", comma(at), loss.label()));
    }
    events.put(format_args!("}},\"provenance\":["));
    for (at, (what, text)) in profile.provenance().enumerate() {
        events.put(format_args!("{}[\"{}\",{}]", comma(at), what.word(), json_string(text)));
    }
    events.put(format_args!("]}}"));
}

/// Writes the names of the processes, threads and streams. The name of a stream contains the id that CUPTI gave the
/// stream.
pub fn write_track_names(
    events: &mut EventText,
    profile: &Profile,
    streams: &BTreeSet<(u32, u32)>,
    lanes: &Lanes,
) {
    let process = threads::process_id(profile);
    events.name("process_name", process, 0, "CPU");
    for (thread, name) in threads::launching_threads(profile) {
        events.name("thread_name", process, thread.0, &name);
    }
    for device in sorting::into_set(streams.iter().map(|(device, _)| *device)) {
        events.name("process_name", device, 0, &format!("GPU {device}"));
    }
    for &(device, stream) in streams {
        events.name("thread_name", device, stream, &format!("stream {stream}"));
    }
    for (device, track, name) in lanes.names() {
        events.name("thread_name", device, track, &name);
    }
}

/// Returns the title of a GPU operation whose name is `name`: `gemm`, `Memcpy HtoD` or `Memset`.
pub fn title(work: Work, name: Cow<'_, str>) -> Cow<'_, str> {
    match work {
        Work::Kernel(_) => name,
        Work::Copy(_) => format!("Memcpy {name}").into(),
        Work::Set => "Memset".into(),
        Work::Graph => "Graph".into(),
    }
}

/// Duration or time in nanoseconds. The value is displayed in microseconds with three decimal places, which is exact.
pub(super) struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Time relative to the base time of the file, displayed in microseconds like `Micros`. Times before the base time are
/// negative.
#[derive(Clone, Copy)]
struct Time(i64);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", Micros(self.0.unsigned_abs()))
    }
}

/// Id in `stackFrames` of the innermost frame of a launch context.
pub(super) struct InnermostFrameId(pub(super) ContextId);

impl Display for InnermostFrameId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "c{}", self.0.0)
    }
}
