//! Writes Chrome's trace events while the application runs, row by row. Stores only those rows to which later rows may
//! refer.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;

use super::events::{
    CallEvent, EventText, InnermostFrameId, PENDING, title, write_metadata, write_track_names,
};
use super::lanes::Lanes;
use crate::compose::stack;
use crate::cupti_text::{MAX_CALLERS, starts_work};
use crate::frame::ComposedFrame;
use crate::options::{GraphStacks, NameFolding};
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::error::{Error, Result};
use gpuflame_model::profile::{Profile, SampleSite, json_string};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Created, DeviceId, FrameKind, GpuContextId, IdMap, Instant, LabelId,
    NameId, Nanos, Row, ThreadId, Work,
};

/// Name shown for a call whose real name was not stored.
const UNKNOWN: &str = "[call unknown]";

/// A [`Sink`] that writes Chrome's trace events while the application runs. A row to which other rows refer must be
/// passed to [`ChromeText::row`] before those rows.
#[derive(Debug)]
pub struct ChromeText<W> {
    out: W,
    events: EventText,
    kernel_name: fn(&str) -> String,
    labels: IdMap<LabelId, String>,
    callers: IdMap<ContextId, (ThreadId, LabelId)>,
    kernels: IdMap<NameId, String>,
    /// For each stream, the index of its GPU and the id of the stream. `devices` contains the GPU of each CUDA context.
    streams: BTreeSet<(u32, u32)>,
    lanes: Lanes,
    devices: IdMap<GpuContextId, DeviceId>,
    untimed: u64,
    /// Launch that belongs to the next activity that is passed to this sink.
    matched: Option<Launched>,
    failed: Option<Error>,
}

impl<W: Write> ChromeText<W> {
    /// Starts the file. Times in the file are relative to `base`. `kernel_name` converts a kernel's symbol to the name
    /// shown.
    pub fn new(out: W, base: Nanos, kernel_name: fn(&str) -> String) -> Self {
        let mut events = EventText::new(base, 0);
        events.put(format_args!(
            "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{},\"traceEvents\":[",
            base.0
        ));
        Self {
            out,
            events,
            kernel_name,
            labels: IdMap::default(),
            callers: IdMap::default(),
            kernels: IdMap::default(),
            streams: BTreeSet::new(),
            lanes: Lanes::default(),
            devices: IdMap::default(),
            untimed: 0,
            matched: None,
            failed: None,
        }
    }

    /// Stores the row if later rows may refer to it. Ignores rows to which no later row refers.
    pub fn row(&mut self, row: &Row<'_>) {
        match row {
            Row::Process { id, .. } => self.events.process = *id,
            Row::Label { id, text } => drop(self.labels.insert(*id, (*text).to_owned())),
            Row::Name { id, text } => drop(self.kernels.insert(*id, (self.kernel_name)(text))),
            Row::Context { id, thread, frames, .. } if self.callers.len() < MAX_CALLERS => {
                let mut kinds = frames.iter().map(|frame| frame.kind());
                if let Some(FrameKind::Label(label)) = kinds.find(|kind| !matches!(kind, FrameKind::Range(_)))
                {
                    self.callers.insert(*id, (*thread, label));
                }
            }
            _ => {}
        }
    }

    /// Drops the names of all kernels that `keep` does not select.
    pub fn keep_kernels(&mut self, keep: impl Fn(NameId) -> bool) {
        self.kernels.retain(|id, _| keep(*id));
        self.kernels.shrink_to_fit();
    }

    /// Returns the first error that occurred while writing. Later calls of this function return `None`. After an error,
    /// the file is unusable.
    pub fn failure(&mut self) -> Option<Error> {
        self.failed.take()
    }

    /// Finishes the file with the current names in `profile`, and returns the writer.
    ///
    /// # Errors
    /// Returns the first error that has occurred since the file was started. Nothing was written after the first error.
    pub fn finish(mut self, profile: &Profile) -> Result<W> {
        write_track_names(&mut self.events, profile, &self.streams, &self.lanes);
        self.events.put(format_args!("\n],"));
        write_metadata(&mut self.events, profile, self.untimed);
        self.events.put(format_args!(",\"stackFrames\":{{"));
        let mut used: Vec<ContextId> = self.callers.keys().copied().collect();
        used.sort_unstable();
        let mut frames = WrittenFrames::default();
        for context in used {
            let stack = stack(profile, SampleSite::Context(context), GraphStacks::Both, NameFolding::Kept);
            frames.stack(context, &stack, &mut self.events);
            self.put();
        }
        self.events.put(format_args!("\n}}}}\n"));
        self.put();
        self.failed.map_or(Ok(self.out), Err)
    }

    /// Writes a call. `more` is JSON text with additional arguments. Returns the thread that made the call.
    fn call(&mut self, id: CorrelationId, launched: Launched, nanos: u64, more: &str) -> ThreadId {
        let caller = self.callers.get(&launched.context).copied();
        let name = caller.and_then(|(_, label)| self.labels.get(&label));
        let name = name.map_or(UNKNOWN, String::as_str);
        let thread = caller.map_or(ThreadId(0), |(thread, _)| thread);
        let called = CallEvent { name, thread, begun: launched.time, nanos, id: id.0.into() };
        self.events.call(&called, caller.map(|_| launched.context), format_args!("{more}"));
        thread
    }

    /// Writes a call that launched no GPU work.
    fn host_call(&mut self, id: CorrelationId, time: Nanos, nanos: u64, context: ContextId) {
        let label = self.callers.get(&context).and_then(|(_, label)| self.labels.get(label));
        // A call that starts GPU work has already been written as a launch.
        if !label.is_some_and(|label| starts_work(label)) {
            self.call(id, Launched { time, duration: 0, context }, nanos, "");
        }
    }

    fn put(&mut self) {
        if self.failed.is_none() && !self.events.text.is_empty() {
            self.failed = self.out.write_all(&self.events.text).err().map(Error::from);
        }
        self.events.text.clear();
    }
}

impl<W: Write> Sink for ChromeText<W> {
    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.matched = Some(launched);
    }

    fn activity(&mut self, activity: &Activity, origin: Origin) {
        // If the stack of a call is unknown, the call is not written, because readers of the file would show a wrong
        // stack for it.
        if let Some(launched) = self.matched.take().filter(|launched| launched.context != ContextId::NONE) {
            let thread = self.call(activity.correlation, launched, launched.duration.into(), "");
            self.events.flow_start(activity.correlation.0.into(), thread, launched.time);
        }
        if activity.duration().is_none() {
            self.untimed += 1;
            return self.put();
        }
        let stream = (activity.device.0, activity.stream.0);
        self.streams.insert(stream);
        let track = self.lanes.track(stream, activity.start.0, activity.end.0);
        self.devices.insert(activity.context, activity.device);
        let created = match activity.created {
            Some(Created::Context(context)) => format!(",\"created_sf\":\"{}\"", InnermostFrameId(context)),
            Some(made) => format!(",\"created_stack\":{}", json_string(made.label().unwrap_or_default())),
            None => String::new(),
        };
        let name = match activity.work() {
            Work::Kernel(name) => match self.kernels.get(&name) {
                Some(text) => Cow::Borrowed(text.as_str()),
                None => format!("[kernel without a name: {}]", name.0).into(),
            },
            Work::Copy(kind) => kind.label().into(),
            Work::Set | Work::Graph => "".into(),
        };
        let title = title(activity.work(), name);
        let (id, missing) = (activity.correlation.0.into(), origin.context().err());
        self.events.activity(activity, id, track, &title, missing, format_args!("{created}"));
        self.put();
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        if launched.context != ContextId::NONE {
            self.call(id, launched, launched.duration.into(), PENDING);
            self.put();
        }
    }

    fn host(&mut self, row: &Row<'_>) {
        match row {
            Row::Wait(wait) => self.host_call(wait.correlation, wait.time, wait.duration, wait.context),
            Row::EventCall(call) => {
                self.host_call(call.correlation, call.time, call.duration.into(), call.context);
            }
            Row::Sync(sync) if sync.start.0 != 0 && sync.end >= sync.start => {
                let device = self.devices.get(&sync.context).map_or(0, |device| device.0);
                if let Some(stream) = sync.stream {
                    self.streams.insert((device, stream.0));
                }
                self.events.sync(sync, sync.correlation.0.into(), device, None);
            }
            _ => {}
        }
        self.put();
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        self.events.mark(instant.text, instant.thread, instant.time);
        self.put();
    }
}

/// Frames that have been written to `stackFrames` so far. If several stacks begin with the same frames, these frames
/// are written only once.
#[derive(Default)]
struct WrittenFrames {
    texts: HashMap<String, u32>,
    /// Ids of the written frames, keyed by the id of the calling frame, the text's index and the kind.
    numbers: HashMap<(u32, u32, char), u32>,
    written: bool,
}

/// Id used as the calling frame of a root frame, which has no caller.
const NO_PARENT: u32 = 0;

impl WrittenFrames {
    /// Writes the frames of a stack (root first) that are not written yet. The id of the innermost frame is derived
    /// from the id of the launch context.
    fn stack(&mut self, context: ContextId, stack: &[ComposedFrame<'_>], events: &mut EventText) {
        let Some((leaf, callers)) = stack.split_last() else { return };
        let mut parent = NO_PARENT;
        for frame in callers {
            let next = self.texts.len() as u32;
            let text = *self.texts.entry(frame.exact()).or_insert(next);
            let next = self.numbers.len() as u32 + 1;
            let key = (parent, text, frame.letter());
            let number = *self.numbers.entry(key).or_insert(next);
            if number == next {
                self.frame(&number.to_string(), frame, parent, events);
            }
            parent = number;
        }
        self.frame(&InnermostFrameId(context).to_string(), leaf, parent, events);
    }

    fn frame(&mut self, id: &str, frame: &ComposedFrame<'_>, parent: u32, events: &mut EventText) {
        let comma = if std::mem::replace(&mut self.written, true) { "," } else { "" };
        let category = match frame.letter() {
            'p' => "python",
            'r' => "range",
            _ => "native",
        };
        let name = json_string(&frame.exact());
        events.put(format_args!("{comma}\n\"{id}\":{{\"category\":\"{category}\",\"name\":{name}"));
        match parent {
            NO_PARENT => events.put(format_args!("}}")),
            parent => events.put(format_args!(",\"parent\":\"{parent}\"}}")),
        }
    }
}
