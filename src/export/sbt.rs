//! TraceSmith's binary format, version 0.1, as its code reads it (its documentation differs).
//!
//! ```text
//! file     := header metadata events strings 255:u8
//! header   := "SBT\0" 0:u16 1:u16 flags:u32 72:u32 metadata:u64 strings:u64 devices:u64 events:u64
//!             callstacks:u64 count:u64 compression:u8 reserved:u8[7]              offsets from the start
//! metadata := 1:u8 program:text command:text begin:n end:n host:text process:n
//! strings  := 2:u8 count:n text[count]
//! events   := 4:u8 base:n event[count]
//! event    := type:u8 flags:u8 delta:n [duration:n] device:n stream:n correlation:n name:n
//!             [grid:n[3] block:n[3] shared:n registers:n] [from:n to:n bytes:n]
//!             [thread:n frames:n (address:n function:n file:n line:n)[frames]]
//! text     := length:n byte[length]          n := LEB128
//! ```
//!
//! Calls are events of type 1 (kernel launch) with their stack, leaf first; kernels of type 2. What was lost is
//! named by events of type 0 (unknown), since the format has no place for it.

use std::collections::HashMap;
use std::io::Write;

use super::callers::Callers;
use super::format::Format;
use super::{chrome, clean};
use crate::error::Result;
use crate::events::{Call, Events, JoinedActivity};
use crate::profile::Profile;
use crate::record::{CopyKind, Detail};

const HEADER: u64 = 72;
const LITTLE_ENDIAN: u32 = 1;
const HAS_STACKS: u32 = 2;

mod kind {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const LAUNCH: u8 = 1;
    pub(super) const KERNEL: u8 = 2;
    pub(super) const HTOD: u8 = 3;
    pub(super) const DTOH: u8 = 4;
    pub(super) const DTOD: u8 = 5;
    pub(super) const SET: u8 = 6;
}

/// TraceSmith's binary format: events in the order of time, those without times left out.
pub(super) static SBT: Format = Format::of_events(
    "sbt",
    &[".sbt"],
    |profile, events, mut out| write(profile, events, &mut out),
    "TraceSmith's binary format (.sbt)",
)
.binary();

fn write(profile: &Profile, events: &Events, out: &mut impl Write) -> Result<()> {
    let mut body = Body {
        callers: Callers::of(profile),
        profile,
        bytes: Vec::new(),
        strings: Vec::new(),
        ids: HashMap::new(),
        last: events.begin().0,
    };
    let timed = || events.activities().iter().filter(|event| event.activity.duration().is_some());
    let end = timed().map(|event| event.activity.end.0).max().unwrap_or(body.last);
    body.bytes.push(4);
    number(&mut body.bytes, body.last);
    profile.lost().for_each(|(loss, count)| body.lost(&format!("[lost: {count} {}]", loss.label())));
    let (mut calls, mut activities) = (events.calls().iter().peekable(), timed().peekable());
    let mut count = profile.lost().count() as u64;
    loop {
        match (calls.peek(), activities.peek()) {
            (Some(call), activity)
                if activity.is_none_or(|event| call.launched.time <= event.activity.start) =>
            {
                body.call(call);
                calls.next();
            }
            (_, Some(event)) => {
                body.activity(event);
                activities.next();
            }
            (_, None) => break,
        }
        count += 1;
    }
    let mut metadata = vec![1];
    text(&mut metadata, "");
    text(&mut metadata, "");
    number(&mut metadata, events.begin().0);
    number(&mut metadata, end);
    text(&mut metadata, "");
    number(&mut metadata, body.callers.process().into());
    let events_at = HEADER + metadata.len() as u64;
    let strings_at = events_at + body.bytes.len() as u64;
    out.write_all(b"SBT\0\0\0\x01\0")?;
    out.write_all(&(LITTLE_ENDIAN | HAS_STACKS).to_le_bytes())?;
    out.write_all(&(HEADER as u32).to_le_bytes())?;
    for offset in [HEADER, strings_at, 0, events_at, 0, count] {
        out.write_all(&offset.to_le_bytes())?;
    }
    out.write_all(&[0; 8])?;
    out.write_all(&metadata)?;
    out.write_all(&body.bytes)?;
    let mut strings = vec![2];
    number(&mut strings, body.strings.len() as u64);
    body.strings.iter().for_each(|string| text(&mut strings, string));
    strings.push(255);
    out.write_all(&strings)?;
    Ok(())
}

struct Body<'a> {
    profile: &'a Profile,
    callers: Callers<'a>,
    bytes: Vec<u8>,
    strings: Vec<String>,
    ids: HashMap<String, u64>,
    /// The time of the event before.
    last: u64,
}

impl Body<'_> {
    fn call(&mut self, call: &Call) {
        let caller = self.callers.get(call.launched.context);
        let duration = u64::from(call.launched.duration);
        let flags = u8::from(duration > 0) | if caller.frames.is_empty() { 0 } else { 8 };
        self.head(kind::LAUNCH, flags, call.launched.time.0);
        self.numbers([duration].into_iter().filter(|duration| *duration > 0));
        let name = self.string(&clean::text(&caller.call));
        self.numbers([0, 0, call.id.0.into(), name]);
        if !caller.frames.is_empty() {
            self.numbers([caller.thread.0.into(), caller.frames.len() as u64]);
            for frame in caller.frames.iter().rev() {
                let (function, file) = (self.string(&frame.text), self.string(&frame.file));
                self.numbers([0, function, file, frame.line.into()]);
            }
        }
    }

    /// An event of no known type, at the time of the first.
    fn lost(&mut self, text: &str) {
        self.head(kind::UNKNOWN, 0, self.last);
        let name = self.string(text);
        self.numbers([0, 0, 0, name]);
    }

    fn activity(&mut self, event: &JoinedActivity) {
        let activity = &event.activity;
        let (kind, extra) = match activity.detail {
            Detail::Kernel(_) | Detail::Graph => (kind::KERNEL, 2),
            Detail::Copy(copy) => match copy.kind {
                CopyKind::HTOD => (kind::HTOD, 4),
                CopyKind::DTOH => (kind::DTOH, 4),
                _ => (kind::DTOD, 4),
            },
            Detail::Set(_) => (kind::SET, 4),
        };
        let duration = activity.duration().unwrap_or(0);
        self.head(kind, extra | u8::from(duration > 0), activity.start.0);
        self.numbers([duration].into_iter().filter(|duration| *duration > 0));
        let name = self.string(&clean::text(&chrome::name(self.profile, event)));
        let place = [activity.device.0, activity.stream.0, activity.correlation.0].map(u64::from);
        self.numbers(place.into_iter().chain([name]));
        match activity.detail {
            Detail::Kernel(kernel) => {
                self.numbers(kernel.grid.into_iter().chain(kernel.block).map(u64::from));
                let shared = u64::from(kernel.static_shared) + u64::from(kernel.dynamic_shared);
                self.numbers([shared, kernel.registers.into()]);
            }
            // Eight numbers, as a kernel has them.
            Detail::Graph => self.numbers([0; 8]),
            Detail::Copy(_) | Detail::Set(_) => self.numbers([0, 0, activity.bytes()]),
        }
    }

    fn head(&mut self, kind: u8, flags: u8, time: u64) {
        self.bytes.extend([kind, flags]);
        self.numbers([time - self.last]);
        self.last = time;
    }

    fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|value| number(&mut self.bytes, value));
    }

    fn string(&mut self, string: &str) -> u64 {
        if let Some(&id) = self.ids.get(string) {
            return id;
        }
        let id = self.strings.len() as u64;
        self.strings.push(string.to_owned());
        self.ids.insert(string.to_owned(), id);
        id
    }
}

fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    number(bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
}
