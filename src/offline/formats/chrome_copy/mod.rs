//! Copies another tool's trace in Chrome's format event by event. Operators, annotations, flows and arguments stay as
//! they are in the trace. Only the new tracks of overlapping GPU work are held in memory.
//!
//! An event is changed only if the format of torch.profiler requires it:
//!
//! | in the trace | in the copy |
//! |---|---|
//! | category of another dialect (`Kernel`, `CudaRuntime`, `GPU_Kernel`) | Kineto's category |
//! | id of another dialect (`correlation id`, `correlationId`), of work and of calls | `correlation`, `device`, `stream` |
//! | exact times among the arguments (Paddle) | `ts` and `dur` |
//! | work that overlaps other work of its track | a track of its own |
//! | names with control characters | a blank for each |

mod rewrite;
mod tracks;

use std::io::Write;

use super::strict_json::put_printable;
use gpuflame_export::clean;
use gpuflame_export::json::comma;
use gpuflame_model::error::{Error, Result};
use gpuflame_model::profile::json_string;
use gpuflame_traces::import::{Call, CpuKind, CpuOp, Event, Flow, Op, OpKind, Property, RawEvent};
use gpuflame_traces::import::{Sink, Text, Wants};

use rewrite::Changes;
pub use tracks::{TrackFinder, Tracks};

/// Categories of API calls in traces of torch.profiler.
const CALLS: [&str; 8] = [
    "cuda_runtime",
    "cuda_driver",
    "xpu_runtime",
    "xpu_driver",
    "mtia_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
    "hpu_runtime",
];

/// Function that writes events from another source before the copied events. Returns whether any events were written.
pub(super) type MoreEvents<'a> = Box<dyn FnOnce(&mut dyn Write) -> Result<bool> + 'a>;

/// Events and a property from another source, which are added to the copy.
pub struct Addition<'a> {
    /// Writes events before the copied events.
    pub events: MoreEvents<'a>,
    /// JSON text of the property `gpuflame`, including the key. The property replaces a property with the same key in
    /// the copied trace.
    pub property: Vec<u8>,
}

/// A [`Sink`] that writes the copy, as described at the top of this module.
pub struct ChromeCopy<'a> {
    out: &'a mut dyn Write,
    tracks: Tracks,
    more: Option<MoreEvents<'a>>,
    own_property: Option<Vec<u8>>,
    part: Part,
    has_events: bool,
    changes: Changes,
    /// Number of GPU operations copied so far.
    works: u64,
    text: Vec<u8>,
    failed: Option<Error>,
}

/// The part of the JSON document at which the writer currently is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Properties of the JSON document that precede the list of events.
    Head,
    Events,
    /// Properties of the JSON document that follow the list of events.
    Tail,
}

impl<'a> ChromeCopy<'a> {
    /// Starts the copy. `tracks` holds the new tracks of overlapping GPU work. `more` holds data from another source to
    /// add to the copy.
    pub fn new(out: &'a mut dyn Write, tracks: Tracks, more: Option<Addition<'a>>) -> Self {
        let (more, own_property) = more.map(|more| (more.events, more.property)).unzip();
        Self {
            out,
            tracks,
            more,
            own_property,
            part: Part::Head,
            has_events: false,
            changes: Changes::default(),
            works: 0,
            text: b"{".to_vec(),
            failed: None,
        }
    }

    /// Completes the document.
    ///
    /// # Errors
    /// Returns the first error that occurred while writing the output. Nothing was written after this error.
    pub fn finish(mut self) -> Result<()> {
        if self.part == Part::Head {
            self.open_events();
        }
        self.close_events();
        if let Some(property) = self.own_property.take() {
            self.put(",\n");
            self.text.extend(property);
        }
        self.text.extend_from_slice(b"}\n");
        self.flush();
        self.failed.map_or(Ok(()), Err)
    }

    fn open_events(&mut self) {
        match self.part {
            Part::Events => return,
            Part::Head => {}
            Part::Tail => self.text.extend_from_slice(b",\n"),
        }
        self.text.extend_from_slice(b"\"traceEvents\":[");
        (self.part, self.has_events) = (Part::Events, false);
        if let Some(more) = self.more.take() {
            self.flush();
            match more(self.out) {
                Ok(any) => self.has_events = any,
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            }
        }
    }

    fn close_events(&mut self) {
        if self.part != Part::Events {
            return;
        }
        for (process, track, name) in self.tracks.take_names() {
            self.begin_event();
            let name = json_string(&name);
            self.put(&format!(
                "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{process},\"tid\":{track},\"args\":{{\"name\":{name}}}}}"
            ));
        }
        self.text.extend_from_slice(b"\n]");
        self.part = Part::Tail;
    }

    fn begin_event(&mut self) {
        self.put(comma(usize::from(self.has_events)));
        self.put("\n");
        self.has_events = true;
    }

    fn property(&mut self, property: &Property<'_>) {
        if self.own_property.is_some() && property.key.raw() == b"gpuflame" {
            return;
        }
        let name = json_string(&property.key.decode());
        self.close_events();
        if self.part == Part::Tail {
            self.put(",\n");
        }
        self.put(&name);
        self.put(":");
        put_printable(&mut self.text, property.value);
        if self.part == Part::Head {
            self.put(",\n");
        }
        self.flush();
    }

    fn put(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(&self.text).err().map(Error::from);
        }
        self.text.clear();
    }

    fn note_op(&mut self, op: &Op<'_>) {
        self.changes.category = match op.kind {
            OpKind::Kernel | OpKind::Graph => Some("kernel"),
            OpKind::Copy => Some("gpu_memcpy"),
            OpKind::Set => Some("gpu_memset"),
        };
        self.changes.ids = [
            ("correlation", op.correlation),
            ("device", op.device.map(u64::from)),
            ("stream", op.stream.map(u64::from)),
        ];
        self.changes.exact_times(op.in_args, op.start, op.end);
        self.changes.track = self.tracks.of_work(self.works);
        self.works += 1;
    }

    fn note_call(&mut self, call: &Call<'_>) {
        self.changes.category = Some(if call.driver { "cuda_driver" } else { "cuda_runtime" });
        self.changes.ids[0] = ("correlation", call.correlation);
    }

    fn note_cpu(&mut self, cpu: &CpuOp<'_>) {
        self.changes.category = match cpu.kind {
            CpuKind::Operator => Some("cpu_op"),
            CpuKind::Range | CpuKind::Step => Some("user_annotation"),
            CpuKind::Overhead => None,
        };
        self.changes.exact_times(cpu.in_args, cpu.start, cpu.end);
    }

    fn note_flow(&mut self, flow: &Flow<'_>) {
        self.changes.track = self.tracks.of_flow(flow);
    }

    /// Drops changes that are not needed, because the event already has the form that torch.profiler uses.
    fn keep_what_is_kineto(&mut self, category: &[u8]) {
        let is_kineto = match self.changes.category {
            Some("cuda_runtime" | "cuda_driver") => CALLS.iter().any(|call| call.as_bytes() == category),
            // For work on an MTIA accelerator, readers of the trace derive the kind of work from the event's name, so
            // the category is not changed.
            Some(_) if category == b"mtia_ccp_events" => true,
            // In Kineto's traces of 2021, a step has the category of an operator.
            Some("user_annotation") => matches!(category, b"user_annotation" | b"cpu_op"),
            Some(word) => word.as_bytes() == category,
            None => true,
        };
        if is_kineto {
            self.changes.category = None;
        }
    }
}

impl Sink for ChromeCopy<'_> {
    fn wants(&self) -> Wants {
        let known = Wants::OPS.and(Wants::CALLS).and(Wants::CPU).and(Wants::STEPS).and(Wants::NAMES);
        known.and(Wants::FLOWS).and(Wants::RAW)
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Op(op) => self.note_op(op),
            Event::Call(call) => self.note_call(call),
            Event::Cpu(cpu) => self.note_cpu(cpu),
            Event::Flow(flow) => self.note_flow(flow),
            Event::Property(property) => self.property(property),
            _ => {}
        }
    }

    fn raw(&mut self, event: RawEvent<'_>) {
        self.open_events();
        self.begin_event();
        self.keep_what_is_kineto(event.category.raw());
        self.changes.name = clean_name(event.name);
        let changes = std::mem::take(&mut self.changes);
        match changes.is_empty() {
            true => put_printable(&mut self.text, event.text),
            false => changes.write(event.text, &mut self.text),
        }
        self.flush();
    }
}

/// Returns the name without its control characters; `None` if the name contains no control character.
fn clean_name(name: Text<'_>) -> Option<String> {
    let is_plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'\\';
    if name.raw().iter().all(is_plain) {
        return None;
    }
    let text = name.decode();
    Some(clean::text(&text)).filter(|clean| *clean != *text)
}
