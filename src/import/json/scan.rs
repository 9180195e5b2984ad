//! The scanner: from the first byte of the file to the last, event by event, a buffer at a time.
//!
//! What stands around the events (`{"schemaVersion": 1, "traceEvents": [` and what follows it) is read by
//! the same loop. It can begin in mid-file, where an event does, and end where another thread began.

use super::super::Text;
use super::super::model::{Event, Property, Sink, Wants};
use super::Seen;
use super::buffer::{Buffer, LARGEST, Lack, PADDING, Source};
use super::cursor::{self, Shape, Stop, blanks};
use super::damage;
use super::dialect;
use super::fields::{self, Fields};
use super::mask::{self, Job, Level};
use crate::error::{Error, ErrorKind};

/// What the next thing in the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The opening bracket.
    Start,
    /// A key of the trace; `first`: or its end, without a comma before.
    Key { first: bool },
    /// A comma between keys, or the end of the trace.
    BetweenKeys,
    /// An event; `first`: or the end of the array.
    Event,
    /// A comma between events, or the end of the array.
    BetweenEvents,
    /// Behind the end of the document: nothing but blanks.
    Behind,
}

/// How a stretch of the file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The end of the file.
    File,
    /// At an event at or behind the position that was asked for.
    Reached(u64),
}

/// What is wrong, and where. Told once the number of events before it is known.
#[derive(Debug)]
pub(super) enum Trouble {
    Io(std::io::Error),
    /// It makes no sense from here on.
    Odd {
        at: u64,
        wanted: &'static str,
        found: Option<u8>,
    },
    /// It ends in the middle of something; up to `whole` it is sound.
    Cut {
        at: u64,
        whole: u64,
        wanted: &'static str,
        /// Where what is open stops making sense before that, and what should stand there.
        damage: Option<(u64, &'static str)>,
    },
    Large {
        at: u64,
    },
    /// It ended well, but nothing in it was a trace.
    NoEvents,
}

impl Trouble {
    /// As a sentence; `events` were read before.
    pub(super) fn told(self, events: u64) -> Error {
        let message = match self {
            Self::Io(error) => return Error::new(ErrorKind::Io, format!("event {events}: {error}")),
            Self::Odd { at, wanted, found } => {
                let found = match found {
                    Some(byte @ 0x21..0x7f) => format!("`{}`", char::from(byte)),
                    Some(byte) => format!("byte {byte:#04x}"),
                    None => "the end".to_owned(),
                };
                format!(
                    "event {events}: at byte {at} stands {found} where {wanted} should; {events} events before it are sound"
                )
            }
            Self::Cut { damage: Some((at, wanted)), .. } => format!(
                "damaged at byte {at}, in event {events}, where {wanted} should stand; {events} events before it are whole"
            ),
            Self::Cut { at, wanted, .. } => format!(
                "cut short at byte {at}, in event {events}, where {wanted} should stand; {events} events before it are whole"
            ),
            Self::Large { at } => {
                format!("event {events} at byte {at} is larger than {} MiB: this is no trace", LARGEST >> 20)
            }
            Self::NoEvents => {
                "JSON without `traceEvents`: no trace of torch.profiler or for Chrome's viewer".to_owned()
            }
        };
        Error::new(ErrorKind::Format, message)
    }
}

/// The state between two buffers.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    place: Place,
    /// Whether the events stand in an object; else the file is a bare array of them.
    in_object: bool,
    had_events: bool,
    pub(super) seen: Seen,
}

impl Scan {
    /// From the beginning of a file.
    pub(super) fn new() -> Self {
        Self { place: Place::Start, in_object: false, had_events: false, seen: Seen::default() }
    }

    /// From an event in mid-file.
    pub(super) fn within(in_object: bool) -> Self {
        Self { place: Place::Event, in_object, had_events: true, seen: Seen::default() }
    }

    /// From where a scan that [`End::Reached`] a position ended.
    pub(super) fn resumed(&self) -> Self {
        Self { seen: Seen::default(), ..self.clone() }
    }

    /// Reads `input`, whose first byte is number `position` of the file, to its end, or to the first event
    /// at or behind `until`.
    pub(super) fn run(
        &mut self,
        input: &mut impl Source,
        mut position: u64,
        until: u64,
        sink: &mut impl Sink,
    ) -> Result<End, Trouble> {
        let wants = sink.wants();
        let mut buffer = Buffer::new(0);
        let mut is_last = false;
        loop {
            is_last = is_last
                || input.refill(&mut buffer).map_err(|lack| match lack {
                    Lack::Io(error) => Trouble::Io(error),
                    Lack::Room => match damage::first(buffer.unread()) {
                        Some((at, wanted)) => Trouble::Cut {
                            at: position,
                            whole: position,
                            wanted,
                            damage: Some((position + at as u64, wanted)),
                        },
                        None => Trouble::Large { at: position },
                    },
                })?;
            let left = until.saturating_sub(position);
            let until = usize::try_from(left).unwrap_or(usize::MAX);
            let chunk = Chunk { scan: self, bytes: buffer.padded(), until, wants, sink };
            let (consumed, stop) = mask::run(chunk);
            buffer.consume(consumed);
            let begin = position;
            position += consumed as u64;
            match stop {
                Outcome::Reached => return Ok(End::Reached(position)),
                Outcome::Odd { at: within, wanted, found } => {
                    return Err(Trouble::Odd { at: begin + within as u64, wanted, found: Some(found) });
                }
                Outcome::More(wanted) if is_last => return self.end(position, buffer.unread(), wanted),
                Outcome::More(_) => {}
            }
        }
    }

    /// The file ended with `rest` behind position `whole`; `wanted` was to come.
    fn end(&mut self, whole: u64, rest: &[u8], wanted: &'static str) -> Result<End, Trouble> {
        let end = whole + rest.len() as u64;
        self.seen.bytes = end;
        let is_blank = rest.iter().all(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r'));
        match self.place {
            Place::Behind if !self.had_events => Err(Trouble::NoEvents),
            Place::Behind => Ok(End::File),
            // Chrome's format allows an array without its end.
            Place::BetweenEvents | Place::Event if !self.in_object && is_blank => Ok(End::File),
            _ => {
                let damage = damage::first(rest).map(|(at, wanted)| (whole + at as u64, wanted));
                Err(Trouble::Cut { at: end, whole, wanted, damage })
            }
        }
    }
}

/// Why a chunk ended.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    More(&'static str),
    Reached,
    Odd { at: usize, wanted: &'static str, found: u8 },
}

/// Some of the file, with padding behind it.
struct Chunk<'a, S> {
    scan: &'a mut Scan,
    bytes: &'a [u8],
    until: usize,
    wants: Wants,
    sink: &'a mut S,
}

impl<S: Sink> Job for Chunk<'_, S> {
    /// How many bytes are done with, and why it stopped.
    type Out = (usize, Outcome);

    #[inline(always)]
    fn run<L: Level>(self) -> Self::Out {
        let Chunk { scan, bytes, until, wants, sink } = self;
        let mut done = 0;
        let stop = loop {
            let at = blanks(bytes, done);
            done = at;
            let step = match scan.place {
                Place::Event => match bytes[at] {
                    b'{' if at >= until => return (done, Outcome::Reached),
                    b'{' => scan.event::<L>(bytes, at, wants, sink),
                    _ => scan.no_event::<L>(bytes, at),
                },
                Place::BetweenEvents => match bytes[at] {
                    b',' => {
                        scan.place = Place::Event;
                        Ok(at + 1)
                    }
                    b']' => Ok(scan.end_of_events(at)),
                    _ => Err(Stop { at, wanted: "a `,` or the end of the events" }),
                },
                _ => scan.around::<L>(bytes, at, wants, sink),
            };
            match step {
                Ok(next) => done = next,
                Err(stop) => break stop,
            }
        };
        let end = bytes.len() - PADDING;
        if stop.at >= end {
            return (done, Outcome::More(stop.wanted));
        }
        (done, Outcome::Odd { at: stop.at, wanted: stop.wanted, found: bytes[stop.at] })
    }
}

impl Scan {
    #[inline(always)]
    fn event<L: Level>(
        &mut self,
        bytes: &[u8],
        at: usize,
        wants: Wants,
        sink: &mut impl Sink,
    ) -> Result<usize, Stop> {
        let mut fields = Fields::default();
        let next = fields::event::<L>(bytes, at, &mut fields)?;
        self.seen.events += 1;
        self.seen.blank += u64::from(fields.phase.shape == Shape::Missing);
        self.place = Place::BetweenEvents;
        dialect::emit::<L>(bytes, &fields, wants, &mut self.seen, sink);
        Ok(next)
    }

    /// The end of the array, or an element of it that is no object.
    #[inline(always)]
    fn no_event<L: Level>(&mut self, bytes: &[u8], at: usize) -> Result<usize, Stop> {
        match bytes[at] {
            b']' => Ok(self.end_of_events(at)),
            b'n' => {
                let (word, next) = cursor::value::<L>(bytes, at)?;
                if word.of(bytes) != b"null" || bytes[next] == 0 {
                    return Err(Stop { at: if bytes[next] == 0 { next } else { at }, wanted: "an event" });
                }
                self.seen.events += 1;
                self.seen.blank += 1;
                self.place = Place::BetweenEvents;
                Ok(next)
            }
            _ => Err(Stop { at, wanted: "an event" }),
        }
    }

    #[inline(always)]
    fn end_of_events(&mut self, at: usize) -> usize {
        self.place = if self.in_object { Place::BetweenKeys } else { Place::Behind };
        at + 1
    }

    /// What stands before and behind the events.
    #[inline(always)]
    fn around<L: Level>(
        &mut self,
        bytes: &[u8],
        at: usize,
        wants: Wants,
        sink: &mut impl Sink,
    ) -> Result<usize, Stop> {
        match (self.place, bytes[at]) {
            (Place::Start, b'{') => {
                (self.in_object, self.place) = (true, Place::Key { first: true });
                Ok(at + 1)
            }
            (Place::Start, b'[') => {
                (self.had_events, self.place) = (true, Place::Event);
                Ok(at + 1)
            }
            // A byte order mark, as Windows' editors put it.
            (Place::Start, 0xef) if bytes[at + 1..].starts_with(b"\xbb\xbf") => Ok(at + 3),
            (Place::Start, _) => Err(Stop { at, wanted: "a `{` or a `[`" }),
            (Place::Key { first: true } | Place::BetweenKeys, b'}') => {
                self.place = Place::Behind;
                Ok(at + 1)
            }
            (Place::BetweenKeys, b',') => {
                self.place = Place::Key { first: false };
                Ok(at + 1)
            }
            (Place::Key { .. }, b'"') => self.key::<L>(bytes, at + 1, wants, sink),
            (Place::Key { .. }, _) => Err(Stop { at, wanted: "a key" }),
            (Place::BetweenKeys, _) => Err(Stop { at, wanted: "a `,` or the trace's `}`" }),
            (_, _) => Err(Stop { at, wanted: "the end of the file" }),
        }
    }

    #[inline(always)]
    fn key<L: Level>(
        &mut self,
        bytes: &[u8],
        at: usize,
        wants: Wants,
        sink: &mut impl Sink,
    ) -> Result<usize, Stop> {
        let key = cursor::string::<L>(bytes, at)?;
        let behind = cursor::colon(bytes, key.end as usize + 1)?;
        let name = Text::json(key.of(bytes), key.shape == Shape::Escaped);
        if bytes[behind] == b'[' && &*name.decode() == "traceEvents" {
            (self.had_events, self.place) = (true, Place::Event);
            return Ok(behind + 1);
        }
        let (value, next) = cursor::value::<L>(bytes, behind)?;
        if next >= bytes.len() - PADDING {
            // A number may go on in the next buffer.
            return Err(Stop { at: next, wanted: "a `,` or the trace's `}`" });
        }
        self.place = Place::BetweenKeys;
        if wants.has(Wants::NAMES) {
            let (start, end) = match value.shape {
                Shape::String | Shape::Escaped => (behind, next),
                _ => (value.start as usize, value.end as usize),
            };
            sink.event(&Event::Property(Property { key: name, value: &bytes[start..end] }));
        }
        Ok(next)
    }
}

/// Whether an event that makes sense opens at `at`: a guess, before what stands around it is known.
pub(super) fn is_event(padded: &[u8], at: usize) -> bool {
    struct Look<'a>(&'a [u8], usize);
    impl Job for Look<'_> {
        type Out = bool;
        #[inline(always)]
        fn run<L: Level>(self) -> bool {
            let mut fields = Fields::default();
            let next = fields::event::<L>(self.0, self.1, &mut fields);
            next.is_ok() && fields.phase.shape == Shape::String
        }
    }
    mask::run(Look(padded, at))
}
