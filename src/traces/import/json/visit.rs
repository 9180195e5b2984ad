//! Defines visitors, which receive the events that a scan finds. One kind of visitor reads the events immediately. A
//! second kind collects the events for another thread (see `pipeline`).

use std::ops::Range;

use super::super::Text;
use super::super::model::{Event, Property, RawEvent, Sink, Wants};
use super::ReadCounts;
use super::args::Arg;
use super::buffer::Buffer;
use super::classes::Classified;
use super::cursor::{Shape, Value, to_text};
use super::dialect;
use super::fields::Fields;
use super::mask::InstructionSet;

/// Position in a buffer of a trace event, and positions of its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundEvent {
    pub(super) fields: Fields,
    pub(super) begin: u32,
    pub(super) end: u32,
}

/// Positions in a buffer of a key in the trace object, and of the key's value.
#[derive(Clone, Debug)]
pub(super) struct FoundProperty {
    pub(super) key: Value,
    pub(super) value: Range<usize>,
}

/// Receives the events, and the keys of the trace object, in the order of the file. All positions are offsets from the
/// first byte of `bytes`.
pub(super) trait Visitor {
    /// Receives a trace event.
    fn event<L: InstructionSet>(&mut self, bytes: &[u8], found: &FoundEvent, counts: &mut ReadCounts);

    /// Receives a key of the trace object, except the key `traceEvents`.
    fn property(&mut self, bytes: &[u8], found: FoundProperty);

    /// The scan calls this function when it has used the first `consumed` bytes of the buffer. Returns a buffer that
    /// begins with the unused bytes.
    fn end_of_buffer(&mut self, buffer: Buffer, consumed: usize) -> Buffer;
}

/// Passes each event to a sink.
pub(super) struct ToSink<'a, S> {
    wants: Wants,
    sink: &'a mut S,
}

impl<'a, S: Sink> ToSink<'a, S> {
    pub(super) fn new(sink: &'a mut S) -> Self {
        Self { wants: sink.wants(), sink }
    }

    /// Does the same as [`Visitor::event`], for an event that was already classified, and whose arguments may already
    /// have been found.
    #[inline(always)]
    pub(super) fn classified_event<L: InstructionSet>(
        &mut self,
        bytes: &[u8],
        found: &FoundEvent,
        classified: (Classified, Option<&[Arg]>),
        counts: &mut ReadCounts,
    ) {
        let FoundEvent { fields, begin, end } = found;
        dialect::emit::<L>(bytes, fields, classified, self.wants, counts, self.sink);
        if self.wants.has(Wants::RAW) {
            let (category, name) = (to_text(bytes, fields.category), to_text(bytes, fields.name));
            let text = &bytes[*begin as usize..*end as usize];
            self.sink.raw(RawEvent { text, category, name });
        }
    }
}

impl<S: Sink> Visitor for ToSink<'_, S> {
    #[inline(always)]
    fn event<L: InstructionSet>(&mut self, bytes: &[u8], found: &FoundEvent, counts: &mut ReadCounts) {
        let classified = Classified::new::<L>(bytes, &found.fields, self.wants);
        self.classified_event::<L>(bytes, found, (classified, None), counts);
    }

    fn property(&mut self, bytes: &[u8], found: FoundProperty) {
        if self.wants.has(Wants::NAMES) {
            let key = Text::json(found.key.slice(bytes), found.key.shape == Shape::Escaped);
            self.sink.event(&Event::Property(Property { key, value: &bytes[found.value] }));
        }
    }

    fn end_of_buffer(&mut self, mut buffer: Buffer, consumed: usize) -> Buffer {
        buffer.consume(consumed);
        buffer
    }
}
