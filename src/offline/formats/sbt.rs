//! Writes TraceSmith's binary format, version 0.1, as TraceSmith's code reads it. TraceSmith's documentation describes
//! the format differently.
//!
//! ```text
//! file     := header metadata devices events strings 255:u8
//! header   := "SBT\0" 0:u16 1:u16 flags:u32 72:u32 metadata:u64 strings:u64 devices:u64 events:u64
//!             callstacks:u64 count:u64 compression:u8 reserved:u8[7]              offsets from the start
//! metadata := 1:u8 program:text command:text begin:n end:n host:text process:n
//! strings  := 2:u8 count:n text[count]
//! devices  := 3:u8 count:n (number:n name:text vendor:text facts:n[9])[count]    compute capability to warp size, 0: unknown
//! events   := 4:u8 base:n event[count]
//! event    := type:u8 flags:u8 delta:n [duration:n] device:n stream:n correlation:n name:n
//!             [grid:n[3] block:n[3] shared:n registers:n] [from:n to:n bytes:n]
//!             [thread:n frames:n (address:n function:n file:n line:n)[frames]]
//! text     := length:n byte[length]          n := LEB128
//! ```
//!
//! Calls are events of type 1 (kernel launch) with their stack, leaf first. Kernels are written as events of type 2. If
//! a kernel is a graph node, its stack is the stack that created the node. Waits are events of type 7 (wait for a
//! stream), 8 (for a device) and 10 (for a CUDA event). Events of type 9 are calls that record a CUDA event on a
//! stream. If CUPTI delivers a record for a wait, the wait's event has the ids from CUPTI's record, and the stack of
//! the call that waited. Calls that record a CUDA event, and waits for a CUDA event, have three numbers in the fields
//! from, to and bytes: the id of the CUDA event plus 1 (0: unknown), 0, and an id that the recording call shares with
//! its waits (0: unknown). The format has no field for the counts of dropped data, so events of type 0 (unknown)
//! contain these counts.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;

use super::callers::{Caller, Callers};
use gpuflame_explain::events::{HostCall, JoinedActivity, JoinedRows, LaunchCall};
use gpuflame_export::compose::work_name;
use gpuflame_export::format::Format;
use gpuflame_export::{chrome, clean, threads};
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    ContextId, CopyKind, Created, Detail, EventId, EventRecord, EventUse, IdMap, SyncId, SyncKind, SyncRecord,
};

const HEADER_BYTES: u64 = 72;
const LITTLE_ENDIAN: u32 = 1;
const HAS_STACKS: u32 = 2;
/// File names that are written for Python frames and range frames whose source file is unknown.
const PYTHON: &str = "<python>";
const RANGE: &str = "<range>";
/// Flag of an event that is followed by a stack.
const HAS_STACK: u8 = 8;
/// Flag of an event that is followed by source, destination and number of bytes.
const HAS_MEMORY: u8 = 4;

mod kind {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const LAUNCH: u8 = 1;
    pub(super) const KERNEL: u8 = 2;
    pub(super) const HTOD: u8 = 3;
    pub(super) const DTOH: u8 = 4;
    pub(super) const DTOD: u8 = 5;
    pub(super) const SET: u8 = 6;
    pub(super) const STREAM_SYNC: u8 = 7;
    pub(super) const DEVICE_SYNC: u8 = 8;
    pub(super) const EVENT_RECORD: u8 = 9;
    pub(super) const EVENT_SYNC: u8 = 10;
}

/// TraceSmith's binary format, with events sorted by time. Activities without times are omitted.
pub(super) static SBT: Format = Format::of_events(
    "sbt",
    &[".sbt"],
    |profile, events, _, mut out| write(profile, events, &mut out),
    "TraceSmith's binary format (.sbt)",
)
.binary();

fn write(profile: &Profile, events: &JoinedRows, out: &mut impl Write) -> Result<()> {
    let mut body = SbtWriter {
        callers: Callers::new(profile),
        profile,
        bytes: Vec::new(),
        strings: Vec::new(),
        ids: HashMap::new(),
        last: events.first_time().0,
    };
    let timed =
        || (0_u32..).zip(events.activities()).filter(|(_, event)| event.activity.duration().is_some());
    let end = timed().map(|(_, event)| event.activity.end.0).max().unwrap_or(body.last);
    let mut all: Vec<(u64, SbtEvent<'_>)> =
        events.calls().iter().map(|call| (call.launched.time.0, SbtEvent::Call(call))).collect();
    all.extend(events.host_calls().iter().map(|call| (call.time.0, SbtEvent::Host(call))));
    all.extend(events.timed_syncs().map(|sync| (sync.start.0, SbtEvent::Sync(sync))));
    all.extend(timed().map(|(at, event)| (event.activity.start.0, SbtEvent::Activity(at))));
    all.sort_by_key(|(time, _)| *time);
    let waits: IdMap<u32, ContextId> =
        events.host_calls().iter().map(|call| (call.id.0, call.context)).collect();
    let records: IdMap<u32, &EventRecord> =
        events.event_records().iter().map(|record| (record.correlation.0, record)).collect();
    let synced: IdMap<u32, ()> = events.timed_syncs().map(|sync| (sync.correlation.0, ())).collect();
    body.bytes.push(4);
    write_varint(&mut body.bytes, body.last);
    profile.lost().for_each(|(loss, count)| body.write_loss(&format!("[lost: {count} {}]", loss.label())));
    let mut count = profile.lost().count() as u64;
    for (_, event) in all {
        match event {
            SbtEvent::Call(call) => body.write_call(call),
            // CUPTI delivered a record for this wait. CUPTI's record is written instead of the call that waited.
            SbtEvent::Host(call) if synced.contains_key(&call.id.0) => continue,
            SbtEvent::Host(call) => {
                let record = records.get(&call.id.0).filter(|_| call.event_use == Some(EventUse::Record));
                let device = record.and_then(|record| events.device_of(record.context));
                body.write_host_call(call, device.map_or(0, |device| device.0), record.copied());
            }
            SbtEvent::Sync(sync) => {
                let device = events.device_of(sync.context).map_or(0, |device| device.0);
                body.write_sync(sync, device, waits.get(&sync.correlation.0).copied());
            }
            SbtEvent::Activity(at) => body.write_activity(&events.activity_at(at)),
        }
        count += 1;
    }
    let mut metadata = vec![1];
    write_text(&mut metadata, "");
    write_text(&mut metadata, "");
    write_varint(&mut metadata, events.first_time().0);
    write_varint(&mut metadata, end);
    write_text(&mut metadata, "");
    write_varint(&mut metadata, threads::process_id(body.profile).into());
    let devices = device_table(events);
    let devices_at = HEADER_BYTES + metadata.len() as u64;
    let events_at = devices_at + devices.len() as u64;
    let strings_at = events_at + body.bytes.len() as u64;
    out.write_all(b"SBT\0\0\0\x01\0")?;
    out.write_all(&(LITTLE_ENDIAN | HAS_STACKS).to_le_bytes())?;
    out.write_all(&(HEADER_BYTES as u32).to_le_bytes())?;
    for offset in [HEADER_BYTES, strings_at, devices_at, events_at, 0, count] {
        out.write_all(&offset.to_le_bytes())?;
    }
    out.write_all(&[0; 8])?;
    out.write_all(&metadata)?;
    out.write_all(&devices)?;
    out.write_all(&body.bytes)?;
    let mut strings = vec![2];
    write_varint(&mut strings, body.strings.len() as u64);
    body.strings.iter().for_each(|string| write_text(&mut strings, string));
    strings.push(255);
    out.write_all(&strings)?;
    Ok(())
}

/// Number of facts about a GPU that the format requires. Recordings do not contain these facts, so zeros are written.
const DEVICE_FACTS: usize = 9;

/// Returns the section of the file that lists the GPUs on which work ran.
fn device_table(events: &JoinedRows) -> Vec<u8> {
    let devices: BTreeSet<u32> = events.activities().map(|event| event.activity.device.0).collect();
    let mut section = vec![3];
    write_varint(&mut section, devices.len() as u64);
    for device in devices {
        write_varint(&mut section, device.into());
        write_text(&mut section, &format!("GPU {device}"));
        write_text(&mut section, "");
        section.extend([0; DEVICE_FACTS]);
    }
    section
}

/// An event that will be written to the file.
enum SbtEvent<'a> {
    Call(&'a LaunchCall),
    Host(&'a HostCall),
    Sync(&'a SyncRecord),
    /// Index of the activity in the list of all activities.
    Activity(u32),
}

struct SbtWriter<'a> {
    profile: &'a Profile,
    callers: Callers<'a>,
    bytes: Vec<u8>,
    strings: Vec<String>,
    ids: HashMap<String, u64>,
    /// Time of the previous event in ns.
    last: u64,
}

impl SbtWriter<'_> {
    fn write_call(&mut self, call: &LaunchCall) {
        let (time, duration) = (call.launched.time.0, u64::from(call.launched.duration));
        let caller = self.callers.get(call.launched.context);
        // If the stack of a call is unknown, the call gets no correlation id, because a reader of the file would assign
        // a wrong stack to the call.
        let id = if call.has_stack() { call.id.0.into() } else { 0 };
        let name = clean::text(&caller.call);
        self.write_event(kind::LAUNCH, (time, duration), [0, 0, id], &name, (Some(&caller), None));
    }

    /// Writes a call that started no GPU work.
    fn write_host_call(&mut self, call: &HostCall, device: u32, record: Option<&EventRecord>) {
        let caller = self.callers.get(call.context);
        let kind = match call.event_use {
            Some(EventUse::Record) => kind::EVENT_RECORD,
            Some(EventUse::Wait) => kind::EVENT_SYNC,
            None if caller.call.contains("Event") => kind::EVENT_SYNC,
            None if caller.call.contains("Device") || caller.call.contains("Ctx") => kind::DEVICE_SYNC,
            None => kind::STREAM_SYNC,
        };
        let name = clean::text(&caller.call);
        let stream = record.map_or(0, |record| record.stream.0);
        let place = [device, stream, call.id.0].map(u64::from);
        let dependency = record.map(|record| dependency(Some(record.event), record.sync));
        self.write_event(kind, (call.time.0, call.duration), place, &name, (Some(&caller), dependency));
    }

    /// Writes CUPTI's record of a wait. The stack of the call is included if it is known.
    fn write_sync(&mut self, sync: &SyncRecord, device: u32, context: Option<ContextId>) {
        let kind = match sync.kind {
            SyncKind::STREAM => kind::STREAM_SYNC,
            SyncKind::CONTEXT => kind::DEVICE_SYNC,
            _ => kind::EVENT_SYNC,
        };
        let caller = context.map(|context| self.callers.get(context));
        let name = caller.as_ref().map_or_else(|| sync.kind.word().to_owned(), |it| clean::text(&it.call));
        let place = [device, sync.stream.map_or(0, |stream| stream.0), sync.correlation.0].map(u64::from);
        let times = (sync.start.0, sync.end.since(sync.start));
        let dependency =
            (sync.event.is_some() || sync.sync.is_some()).then(|| dependency(sync.event, sync.sync));
        self.write_event(kind, times, place, &name, (caller.as_deref(), dependency));
    }

    /// Writes an event. `place` is (device, stream, correlation id). The stack (`caller`) and the [`dependency`] are
    /// optional.
    fn write_event(
        &mut self,
        kind: u8,
        (time, duration): (u64, u64),
        place: [u64; 3],
        name: &str,
        (caller, dependency): (Option<&Caller>, Option<[u64; 3]>),
    ) {
        let caller = caller.filter(|caller| !caller.frames.is_empty());
        let flags = u8::from(duration > 0) | if caller.is_some() { HAS_STACK } else { 0 };
        let flags = flags | if dependency.is_some() { HAS_MEMORY } else { 0 };
        self.write_event_head(kind, flags, time);
        self.write_varints([duration].into_iter().filter(|duration| *duration > 0));
        let name = self.intern_string(name);
        self.write_varints(place.into_iter().chain([name]));
        self.write_varints(dependency.into_iter().flatten());
        caller.into_iter().for_each(|caller| self.write_stack(caller));
    }

    /// Writes the thread and the frames of a stack, leaf first.
    fn write_stack(&mut self, caller: &Caller) {
        self.write_varints([caller.thread.0.into(), caller.frames.len() as u64]);
        for frame in caller.frames.iter().rev() {
            // For a Python or range frame without a file, the kind of the frame replaces the file name.
            let file = match frame.letter {
                'p' if frame.file.is_empty() => PYTHON,
                'r' if frame.file.is_empty() => RANGE,
                _ => &frame.file,
            };
            let (function, file) = (self.intern_string(&frame.exact), self.intern_string(file));
            self.write_varints([0, function, file, frame.line.into()]);
        }
    }

    /// Writes an event of type 0 (unknown), which contains a count of dropped data. Events of type 0 come before all
    /// other events, and have the time of the first other event.
    fn write_loss(&mut self, text: &str) {
        self.write_event_head(kind::UNKNOWN, 0, self.last);
        let name = self.intern_string(text);
        self.write_varints([0, 0, 0, name]);
    }

    fn write_activity(&mut self, event: &JoinedActivity) {
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
        let created = match activity.created {
            Some(Created::Context(context)) => Some(self.callers.get(context)),
            _ => None,
        };
        let has_stack = if created.is_some() { HAS_STACK } else { 0 };
        self.write_event_head(kind, extra | has_stack | u8::from(duration > 0), activity.start.0);
        self.write_varints([duration].into_iter().filter(|duration| *duration > 0));
        let work = activity.work();
        let name =
            self.intern_string(&clean::text(&chrome::events::title(work, work_name(self.profile, work))));
        let place = [activity.device.0, activity.stream.0, activity.correlation.0].map(u64::from);
        self.write_varints(place.into_iter().chain([name]));
        match activity.detail {
            Detail::Kernel(kernel) => {
                self.write_varints(kernel.grid.into_iter().chain(kernel.block).map(u64::from));
                let shared = u64::from(kernel.static_shared) + u64::from(kernel.dynamic_shared);
                self.write_varints([shared, kernel.registers.into()]);
            }
            // A graph launched as a whole is written with eight numbers, like a kernel, but all eight numbers are 0.
            Detail::Graph => self.write_varints([0; 8]),
            Detail::Copy(_) | Detail::Set(_) => self.write_varints([0, 0, activity.bytes()]),
        }
        created.into_iter().for_each(|caller| self.write_stack(&caller));
    }

    fn write_event_head(&mut self, kind: u8, flags: u8, time: u64) {
        self.bytes.extend([kind, flags]);
        // The subtraction saturates, because the times in a damaged recording may be in any order. In an intact
        // recording, each time is at least as large as the previous time.
        self.write_varints([time.saturating_sub(self.last)]);
        self.last = self.last.max(time);
    }

    fn write_varints(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|value| write_varint(&mut self.bytes, value));
    }

    fn intern_string(&mut self, string: &str) -> u64 {
        if let Some(&id) = self.ids.get(string) {
            return id;
        }
        let id = self.strings.len() as u64;
        self.strings.push(string.to_owned());
        self.ids.insert(string.to_owned(), id);
        id
    }
}

/// Returns the three numbers that link a wait for a CUDA event to the call that recorded the event.
fn dependency(event: Option<EventId>, record: Option<SyncId>) -> [u64; 3] {
    let event = event.map_or(0, |event| u64::from(event.0) + 1);
    [event, 0, record.map_or(0, |record| record.0)]
}

fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn write_text(bytes: &mut Vec<u8>, text: &str) {
    write_varint(bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
}
