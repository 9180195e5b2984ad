//! Reads trace events in the same way as Holistic Trace Analysis (HTA): one row per slice, in file order, with times in
//! whole microseconds. As in HTA, the id of a trace event is its position in `traceEvents`, so that the results of both
//! tools can be compared.

use std::collections::HashMap;

use gpuflame_traces::import::json::document::Document;
use gpuflame_traces::import::{CpuKind, Event, Id, RawEvent, Sink, Text, Wants, json_micros};

/// Kind of a trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// Operator of a framework such as PyTorch.
    Operator,
    /// Range that the program marked, or a step that the profiler marked.
    Annotation,
    /// Any other slice: a Python function, a range on a GPU, or work of the profiler.
    Slice,
    /// Call of the CUDA runtime or the driver.
    Call,
    /// A kernel, copy or fill.
    Work,
    /// Row about a wait for GPU work.
    Sync,
}

/// Id of a process or thread. Ids are ordered as in HTA, which sorts numbers before text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TrackId {
    Number(i64),
    Text(String),
    None,
}

/// A trace event. The times of a trace event are in us.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventRow {
    /// Position of the event in `traceEvents`.
    pub(super) number: u64,
    pub(super) kind: EventKind,
    /// Index of the event's name, for [`HtaEvents::name`].
    pub(super) name: u32,
    pub(super) start: i64,
    /// End of the event, in us. The end of a short event can be before its start, because starts are rounded up and
    /// ends are rounded down.
    pub(super) end: i64,
    /// Index of the event's process and thread, for [`HtaEvents::track`].
    pub(super) track: u32,
    pub(super) device: Option<u32>,
    pub(super) stream: Option<u32>,
    pub(super) correlation: Option<u64>,
    /// Stream whose work was waited for, if the event is a wait.
    pub(super) on_stream: Option<u32>,
    /// If this trace event is a wait for a CUDA event, the correlation id of the call that recorded the CUDA event.
    pub(super) record_correlation: Option<u64>,
}

/// Trace events in the form that [`super::hta_path`] needs.
#[derive(Debug, Default)]
pub struct HtaEvents {
    pub(super) rows: Vec<EventRow>,
    names: Vec<String>,
    name_numbers: HashMap<Vec<u8>, u32>,
    tracks: Vec<(TrackId, TrackId)>,
    track_numbers: HashMap<(TrackId, TrackId), u32>,
    /// Number of elements of `traceEvents` that were read so far. The number is 0 if the trace is not in JSON format.
    elements: u64,
    /// Whether the current element of `traceEvents` became a row.
    has_row: bool,
}

impl HtaEvents {
    /// Whether the trace contains no event with a duration.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn name(&self, number: u32) -> &str {
        &self.names[number as usize]
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(super) fn track(&self, number: u32) -> &(TrackId, TrackId) {
        &self.tracks[number as usize]
    }

    fn intern(&mut self, name: Text<'_>) -> u32 {
        if let Some(number) = self.name_numbers.get(name.raw()) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.decode().into_owned());
        self.name_numbers.insert(name.raw().to_vec(), number);
        number
    }

    fn track_number(&mut self, process: Id<'_>, thread: Id<'_>) -> u32 {
        let key = (TrackId::new(process), TrackId::new(thread));
        let next = self.tracks.len() as u32;
        let number = *self.track_numbers.entry(key.clone()).or_insert(next);
        if number == next {
            self.tracks.push(key);
        }
        number
    }

    /// Adds a row for a trace event. The times in `times` are in ns.
    fn add(
        &mut self,
        kind: EventKind,
        name: Text<'_>,
        times: (i64, i64),
        lane: (Id<'_>, Id<'_>),
    ) -> &mut EventRow {
        let (start, end) = whole_micros(times.0, times.1);
        let row = EventRow {
            number: self.elements.max(self.rows.last().map_or(0, |row| row.number + 1)),
            kind,
            name: self.intern(name),
            start,
            end,
            track: self.track_number(lane.0, lane.1),
            device: None,
            stream: None,
            correlation: None,
            on_stream: None,
            record_correlation: None,
        };
        self.has_row = true;
        self.rows.push(row);
        self.rows.last_mut().expect("the row was pushed")
    }

    /// Adds a slice whose category the importer ignores, for example a range on a GPU. HTA uses slices of all
    /// categories, because it finds windows by the names of all events.
    fn add_unknown(&mut self, text: &[u8]) -> Option<()> {
        let document = Document::from_bytes(text);
        let event = document.root().ok()?;
        let nanos = |key: &str| json_micros(std::str::from_utf8(event.get(key)?.raw()).ok()?);
        let id = |key: &str| match event.get(key) {
            Some(id) => id.integer().map_or(Id::Text(id.text()), Id::Number),
            None => Id::None,
        };
        let (start, duration) = (nanos("ts")?, nanos("dur")?);
        let times = (start, start.saturating_add(duration));
        self.add(EventKind::Slice, event.get("name")?.text(), times, (id("pid"), id("tid")));
        Some(())
    }
}

impl TrackId {
    fn new(id: Id<'_>) -> Self {
        match id {
            Id::None => Self::None,
            Id::Number(number) => Self::Number(number),
            Id::Text(text) => Self::Text(text.decode().into_owned()),
        }
    }
}

impl Sink for HtaEvents {
    fn wants(&self) -> Wants {
        let slices = Wants::CPU.and(Wants::STEPS).and(Wants::PYTHON);
        Wants::OPS.and(Wants::CALLS).and(Wants::SYNCS).and(slices).and(Wants::RAW)
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Cpu(op) => {
                let kind = match op.kind {
                    CpuKind::Operator => EventKind::Operator,
                    CpuKind::Range | CpuKind::Step => EventKind::Annotation,
                    CpuKind::Overhead => EventKind::Slice,
                };
                self.add(kind, op.name, (op.start, op.end), (op.process, op.thread));
            }
            Event::Python(frame) => {
                let lane = (frame.process, frame.thread);
                self.add(EventKind::Slice, frame.name, (frame.start, frame.end), lane);
            }
            Event::Call(call) => {
                let lane = (call.process, call.thread);
                let row = self.add(EventKind::Call, call.name, (call.start, call.end), lane);
                row.correlation = call.correlation;
            }
            Event::Op(op) => {
                let row = self.add(EventKind::Work, op.name, (op.start, op.end), op.lane);
                (row.device, row.stream, row.correlation) = (op.device, op.stream, op.correlation);
            }
            Event::Sync(sync) => {
                let lane = (Id::None, Id::None);
                let row = self.add(EventKind::Sync, sync.name, (sync.start, sync.end), lane);
                (row.device, row.stream, row.correlation) = (sync.device, sync.stream, sync.correlation);
                (row.on_stream, row.record_correlation) = (sync.on_stream, sync.record_correlation);
            }
            _ => {}
        }
    }

    fn raw(&mut self, event: RawEvent<'_>) {
        let category = event.category.raw();
        if self.has_row {
            // Some versions of PyTorch give the profiler's steps the category of operators.
            let row = self.rows.last_mut().expect("the element became a row");
            if row.kind == EventKind::Annotation && matches!(category, b"cpu_op" | b"Operator") {
                row.kind = EventKind::Operator;
            }
            if row.kind == EventKind::Operator {
                row.stream = stream_of(event.text);
            }
        } else if !matches!(category, b"" | b"ac2g" | b"fwdbwd" | b"Trace") {
            self.add_unknown(event.text);
        }
        self.has_row = false;
        self.elements += 1;
    }
}

/// Returns the stream that an operator has as an argument. Operators of Triton have a stream as an argument. Therefore
/// HTA treats operators of Triton as GPU work without a launch, and omits them.
fn stream_of(text: &[u8]) -> Option<u32> {
    const KEY: &[u8] = b"\"stream\"";
    if !text.windows(KEY.len()).any(|window| window == KEY) {
        return None;
    }
    let document = Document::from_bytes(text);
    let stream = document.root().ok()?.get("args")?.get("stream")?.unsigned()?;
    u32::try_from(stream).ok()
}

/// Converts a start and an end from ns to whole microseconds as HTA does: the start is rounded up, and the end is
/// rounded down. HTA calculates with floating-point microseconds, which cannot represent times since 1970 to the
/// nanosecond.
fn whole_micros(start: i64, end: i64) -> (i64, i64) {
    let micros = |nanos: i64| (nanos.div_euclid(1_000)) as f64 + nanos.rem_euclid(1_000) as f64 / 1_000.0;
    let begin = micros(start);
    (begin.ceil() as i64, (begin + micros(end.saturating_sub(start))).floor() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_rounded_up_and_ends_down_with_the_precision_of_binary_floating_point_numbers() {
        assert_eq!(whole_micros(5_000, 9_000), (5, 9));
        assert_eq!(whole_micros(5_001, 8_999), (6, 8));
        assert_eq!(whole_micros(-1_500, 500), (-1, 0));
        // A floating-point number of microseconds since 1970 has a precision of 0.25 us. Because of the precision of
        // 0.25 us, a fraction of 0.1 us is lost, and 0.2 us becomes 0.25 us.
        assert_eq!(
            whole_micros(1_700_000_000_000_000_100, 1_700_000_000_000_003_300).0,
            1_700_000_000_000_000
        );
        assert_eq!(
            whole_micros(1_700_000_000_000_000_200, 1_700_000_000_000_003_300).0,
            1_700_000_000_000_001
        );
    }
}
