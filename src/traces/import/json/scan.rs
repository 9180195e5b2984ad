//! The scanner reads a JSON trace from the first byte to the last: one trace event after another, and one buffer after
//! another.
//!
//! The loop over events also reads the text before the array of events (for example a schema version) and the text
//! after the array. A scan can begin at an event in the middle of a file. A scan can end at the event where the scan of
//! a different thread began.

use super::super::Text;
use super::ReadCounts;
use super::buffer::{Buffer, MAX_EVENT_BYTES, PADDING, RefillError, Source};
use super::cursor::{self, Shape, Stop, skip_blanks};
use super::damage;
use super::fields::{self, Fields};
use super::mask::{self, InstructionSet, Job};
use super::visit::{FoundEvent, FoundProperty, Visitor};
use gpuflame_model::error::{Error, ErrorKind};

/// Text for messages: the syntax that is expected after the document.
const END_OF_FILE: &str = "the end of the file";

/// Syntax element that the scanner expects at its current position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// The opening bracket of the document is expected.
    Start,
    /// A key of the trace object is expected. If `first` is true, the object may also end here.
    Key { first: bool },
    /// A comma between two keys, or the end of the trace object, is expected.
    BetweenKeys,
    /// An event, or the end of the array, is expected.
    Event,
    /// A comma between two events, or the end of the array, is expected.
    BetweenEvents,
    /// Only blanks are expected, because the document has ended.
    Nothing,
}

/// Reason why a scan ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanEnd {
    /// The scan reached the end of the file.
    File,
    /// The scan reached the first event at or after the requested end. The variant contains the position at which this
    /// event begins.
    Reached(u64),
}

/// An error, with its position in the file. The conversion to a message takes place later, when the number of events
/// before the error is known.
#[derive(Debug)]
pub(super) enum ScanError {
    Io(std::io::Error),
    /// A byte is invalid at its position.
    Unexpected {
        at: u64,
        expected: &'static str,
        found: Option<u8>,
    },
    /// The file ends in the middle of a value. The file is valid up to the byte offset `complete`.
    Truncated {
        at: u64,
        complete: u64,
        expected: &'static str,
        /// If the unfinished value is invalid at an earlier position: this position, and the syntax that was expected
        /// at it.
        damage: Option<(u64, &'static str)>,
    },
    EventTooLarge {
        at: u64,
        limit: usize,
    },
    /// The file is valid JSON but contains no events.
    NoEvents,
    /// After the first object, there is a second object without events.
    JsonLines {
        at: u64,
    },
}

impl ScanError {
    /// Converts the error to an error message. `events` is the number of events that were read before the error.
    pub(super) fn into_error(self, events: u64) -> Error {
        let message = match self {
            Self::Io(error) => {
                let advice = match error.kind() {
                    kind if is_damage(kind) => format!("; {}", describe_complete(events)),
                    _ => String::new(),
                };
                return Error::new(ErrorKind::Io, format!("event {events}: {error}{advice}"));
            }
            Self::Unexpected { at, expected, found } => {
                let found = match found {
                    Some(byte @ 0x21..0x7f) => format!("`{}`", char::from(byte)),
                    Some(byte) => format!("byte {byte:#04x}"),
                    None => "the end".to_owned(),
                };
                let advice = match expected {
                    END_OF_FILE => format!("; remove what follows the first {at} bytes of text"),
                    _ if events == 0 => "; correct the file there, or write it again".to_owned(),
                    _ => format!(
                        "; correct the file there, or read its beginning (`head -c {at} FILE > OUT`, then `--accept-cut`)"
                    ),
                };
                let complete = match events {
                    0 => String::new(),
                    _ => format!("; the {events} events before it are complete"),
                };
                format!("event {events}: found {found} at byte {at}, expected {expected}{complete}{advice}")
            }
            Self::Truncated { damage: Some((at, expected)), .. } => format!(
                "damaged at byte {at}, in event {events}: expected {expected}; {}",
                describe_complete(events)
            ),
            Self::Truncated { at, expected, .. } => format!(
                "truncated at byte {at}, in event {events}: expected {expected}; {}",
                describe_complete(events)
            ),
            Self::EventTooLarge { at, limit } => {
                let why = match limit {
                    MAX_EVENT_BYTES => "not a trace",
                    _ => "not a trace, or compressed out of all proportion; unpack it first if it is a trace",
                };
                format!("event {events} at byte {at} is larger than {} MiB: {why}", limit >> 20)
            }
            Self::NoEvents => {
                "JSON without `traceEvents`: not a trace of torch.profiler or for Chrome's viewer; let torch.profiler write \
                 one (`export_chrome_trace`), or record the program with `gpuflame run`"
                    .to_owned()
            }
            Self::JsonLines { at } => format!(
                "is JSON lines, one object per line, not one JSON document: the second object begins at byte {at}; join \
                 the lines to an array (`(echo [; sed '$!s/$/,/' FILE; echo ]) > OUT.json`) and give that"
            ),
        };
        Error::new(ErrorKind::Format, message)
    }
}

/// Whether an input error of this kind means that compressed data is truncated or damaged.
fn is_damage(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(kind, UnexpectedEof | InvalidData | InvalidInput)
}

/// Describes the events before a truncation, and states how the user can read these events.
fn describe_complete(events: u64) -> String {
    match events {
        0 => "no event before it is complete, so copy or record the file again".to_owned(),
        _ => format!("the {events} events before it are complete, and `--accept-cut` reads them"),
    }
}

/// State that the scanner keeps from one buffer to the next.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    expect: Expect,
    /// Whether the array of events is inside an object. The field is false for a file that is a plain array of events.
    in_object: bool,
    had_events: bool,
    pub(super) counts: ReadCounts,
}

impl Scanner {
    /// Creates a scanner for a scan that starts at the beginning of a file.
    pub(super) fn new() -> Self {
        Self { expect: Expect::Start, in_object: false, had_events: false, counts: ReadCounts::default() }
    }

    /// Creates a scanner for a scan that starts at an event in the middle of a file.
    pub(super) fn at_event(in_object: bool) -> Self {
        Self { expect: Expect::Event, in_object, had_events: true, counts: ReadCounts::default() }
    }

    /// Creates a scanner that continues after the scan of `self` ended with [`ScanEnd::Reached`].
    pub(super) fn resume(&self) -> Self {
        Self { counts: ReadCounts::default(), ..self.clone() }
    }

    /// Reads `input` until it ends, or until the first event at or after the position `until`. `position` is the
    /// position in the file of the first byte of `input`.
    pub(super) fn run(
        &mut self,
        input: &mut impl Source,
        mut position: u64,
        until: u64,
        visitor: &mut impl Visitor,
    ) -> Result<ScanEnd, ScanError> {
        let mut buffer = Buffer::new(0);
        let mut is_last = false;
        loop {
            is_last = is_last
                || input.refill(&mut buffer).map_err(|lack| match lack {
                    RefillError::Io(error) => ScanError::Io(error),
                    RefillError::EventTooLarge(limit) => match damage::find_first_damage(buffer.unread()) {
                        Some((at, expected)) => ScanError::Truncated {
                            at: position,
                            complete: position,
                            expected,
                            damage: Some((position + at as u64, expected)),
                        },
                        None => ScanError::EventTooLarge { at: position, limit },
                    },
                })?;
            let left = until.saturating_sub(position);
            let until = usize::try_from(left).unwrap_or(usize::MAX);
            let chunk = Chunk { scan: self, bytes: buffer.padded(), until, visitor };
            let (consumed, stop) = mask::run(chunk);
            buffer = visitor.end_of_buffer(buffer, consumed);
            let begin = position;
            position += consumed as u64;
            match stop {
                Outcome::Reached => return Ok(ScanEnd::Reached(position)),
                Outcome::Unexpected { at: within, found: b'{', .. }
                    if self.expect == Expect::Nothing && !self.had_events =>
                {
                    return Err(ScanError::JsonLines { at: begin + within as u64 });
                }
                Outcome::Unexpected { at: within, expected, found } => {
                    return Err(ScanError::Unexpected {
                        at: begin + within as u64,
                        expected,
                        found: Some(found),
                    });
                }
                Outcome::More(expected) if is_last => return self.end(position, buffer.unread(), expected),
                Outcome::More(_) => {}
            }
        }
    }

    /// Handles the end of the input. The file is valid up to the byte offset `complete`. `rest` is the text after this
    /// offset, and `expected` is the syntax that is missing in it.
    fn end(&mut self, complete: u64, rest: &[u8], expected: &'static str) -> Result<ScanEnd, ScanError> {
        let end = complete + rest.len() as u64;
        self.counts.bytes = end;
        let is_blank = rest.iter().all(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r'));
        match self.expect {
            Expect::Nothing if !self.had_events => Err(ScanError::NoEvents),
            Expect::Nothing => Ok(ScanEnd::File),
            // In Chrome's format, the closing bracket of the array of events may be missing.
            Expect::BetweenEvents | Expect::Event if !self.in_object && is_blank => Ok(ScanEnd::File),
            _ => {
                let damage =
                    damage::find_first_damage(rest).map(|(at, expected)| (complete + at as u64, expected));
                Err(ScanError::Truncated { at: end, complete, expected, damage })
            }
        }
    }
}

/// Reason why the scan of one chunk (the content of a buffer) stopped.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    More(&'static str),
    Reached,
    Unexpected { at: usize, expected: &'static str, found: u8 },
}

/// A part of the file that is followed by padding.
struct Chunk<'a, V> {
    scan: &'a mut Scanner,
    bytes: &'a [u8],
    until: usize,
    visitor: &'a mut V,
}

impl<V: Visitor> Job for Chunk<'_, V> {
    /// Number of bytes that were consumed, and the reason why the scan stopped.
    type Out = (usize, Outcome);

    #[inline(always)]
    fn run<L: InstructionSet>(self) -> Self::Out {
        let Chunk { scan, bytes, until, visitor } = self;
        let mut done = 0;
        let stop = loop {
            let at = skip_blanks(bytes, done);
            done = at;
            let step = match scan.expect {
                Expect::Event => match bytes[at] {
                    b'{' if at >= until => return (done, Outcome::Reached),
                    b'{' => scan.event::<L>(bytes, at, visitor),
                    _ => scan.non_object::<L>(bytes, at),
                },
                Expect::BetweenEvents => match bytes[at] {
                    b',' => {
                        scan.expect = Expect::Event;
                        Ok(at + 1)
                    }
                    b']' => Ok(scan.end_of_events(at)),
                    _ => Err(Stop { at, expected: "a `,` or the end of the events" }),
                },
                _ => scan.outside_events::<L>(bytes, at, visitor),
            };
            match step {
                Ok(next) => done = next,
                Err(stop) => break stop,
            }
        };
        let end = bytes.len() - PADDING;
        if stop.at >= end {
            return (done, Outcome::More(stop.expected));
        }
        (done, Outcome::Unexpected { at: stop.at, expected: stop.expected, found: bytes[stop.at] })
    }
}

impl Scanner {
    #[inline(always)]
    fn event<L: InstructionSet>(
        &mut self,
        bytes: &[u8],
        at: usize,
        visitor: &mut impl Visitor,
    ) -> Result<usize, Stop> {
        let mut fields = Fields::default();
        let next = fields::read_fields::<L>(bytes, at, &mut fields)?;
        self.counts.events += 1;
        self.counts.non_events += u64::from(fields.phase.shape == Shape::Missing);
        self.expect = Expect::BetweenEvents;
        visitor.event::<L>(
            bytes,
            &FoundEvent { fields, begin: at as u32, end: next as u32 },
            &mut self.counts,
        );
        Ok(next)
    }

    /// Reads the end of the array of events, or an element that is not an object.
    #[inline(always)]
    fn non_object<L: InstructionSet>(&mut self, bytes: &[u8], at: usize) -> Result<usize, Stop> {
        match bytes[at] {
            b']' => Ok(self.end_of_events(at)),
            b'n' => {
                let (word, next) = cursor::read_value::<L>(bytes, at)?;
                if word.slice(bytes) != b"null" || bytes[next] == 0 {
                    return Err(Stop { at: if bytes[next] == 0 { next } else { at }, expected: "an event" });
                }
                self.counts.events += 1;
                self.counts.non_events += 1;
                self.expect = Expect::BetweenEvents;
                Ok(next)
            }
            _ => Err(Stop { at, expected: "an event" }),
        }
    }

    #[inline(always)]
    fn end_of_events(&mut self, at: usize) -> usize {
        self.expect = if self.in_object { Expect::BetweenKeys } else { Expect::Nothing };
        at + 1
    }

    /// Reads the text before or after the array of events.
    #[inline(always)]
    fn outside_events<L: InstructionSet>(
        &mut self,
        bytes: &[u8],
        at: usize,
        visitor: &mut impl Visitor,
    ) -> Result<usize, Stop> {
        match (self.expect, bytes[at]) {
            (Expect::Start, b'{') => {
                (self.in_object, self.expect) = (true, Expect::Key { first: true });
                Ok(at + 1)
            }
            (Expect::Start, b'[') => {
                (self.had_events, self.expect) = (true, Expect::Event);
                Ok(at + 1)
            }
            // Skips the byte order mark that some editors on Windows write.
            (Expect::Start, 0xef) if bytes[at + 1..].starts_with(b"\xbb\xbf") => Ok(at + 3),
            (Expect::Start, _) => Err(Stop { at, expected: "a `{` or a `[`" }),
            (Expect::Key { first: true } | Expect::BetweenKeys, b'}') => {
                self.expect = Expect::Nothing;
                Ok(at + 1)
            }
            (Expect::BetweenKeys, b',') => {
                self.expect = Expect::Key { first: false };
                Ok(at + 1)
            }
            (Expect::Key { .. }, b'"') => self.key::<L>(bytes, at + 1, visitor),
            (Expect::Key { .. }, _) => Err(Stop { at, expected: "a key" }),
            (Expect::BetweenKeys, _) => Err(Stop { at, expected: "a `,` or the trace's `}`" }),
            (_, _) => Err(Stop { at, expected: END_OF_FILE }),
        }
    }

    #[inline(always)]
    fn key<L: InstructionSet>(
        &mut self,
        bytes: &[u8],
        at: usize,
        visitor: &mut impl Visitor,
    ) -> Result<usize, Stop> {
        let key = cursor::read_string::<L>(bytes, at)?;
        let after = cursor::skip_colon(bytes, key.end as usize + 1)?;
        let name = Text::json(key.slice(bytes), key.shape == Shape::Escaped);
        if bytes[after] == b'[' && &*name.decode() == "traceEvents" {
            (self.had_events, self.expect) = (true, Expect::Event);
            return Ok(after + 1);
        }
        let (value, next) = cursor::read_value::<L>(bytes, after)?;
        if next >= bytes.len() - PADDING {
            // Wait for more input, because the value may be a number that continues in the next buffer.
            return Err(Stop { at: next, expected: "a `,` or the trace's `}`" });
        }
        self.expect = Expect::BetweenKeys;
        let value = match value.shape {
            Shape::String | Shape::Escaped => after..next,
            _ => value.start as usize..value.end as usize,
        };
        visitor.property(bytes, FoundProperty { key, value });
        Ok(next)
    }
}

/// Whether the text at `at` looks like the beginning of an event. The result is only a guess, because the text before
/// this position is unknown.
pub(super) fn is_event(padded: &[u8], at: usize) -> bool {
    struct Check<'a>(&'a [u8], usize);
    impl Job for Check<'_> {
        type Out = bool;
        #[inline(always)]
        fn run<L: InstructionSet>(self) -> bool {
            let mut fields = Fields::default();
            let next = fields::read_fields::<L>(self.0, self.1, &mut fields);
            next.is_ok() && fields.phase.shape == Shape::String
        }
    }
    mask::run(Check(padded, at))
}
