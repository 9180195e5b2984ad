//! Chrome's trace events from a recording or another tool's trace. All rows are available before anything is written.

use std::io::Write;

use super::callers::{Caller, Callers};
use gpuflame_explain::events::{self, DistinctIds, HostCall, JoinedActivity, LaunchCall};
use gpuflame_export::chrome::Lanes;
use gpuflame_export::chrome::events::{
    CallEvent, EventText, PENDING, title, write_metadata, write_track_names,
};
use gpuflame_export::compose::work_name;
use gpuflame_export::format::Format;
use gpuflame_export::threads;
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Profile, json_string};
use gpuflame_model::record::{Created, EventUse, GpuContextId, SyncRecord};

/// Chrome's trace events, with the names of the profile. Activities without times have no place on a time line, so
/// `gpuflame.missing` counts them instead.
pub(crate) static CHROME: Format = Format::of_events(
    "chrome",
    &[".json"],
    |profile, events, _, mut out| write(profile, events, &mut out),
    "Chrome's trace events, as torch.profiler writes them (.json)",
);

fn write(profile: &Profile, rows: &events::JoinedRows, out: &mut impl Write) -> Result<()> {
    let callers = Callers::new(profile);
    let events = EventText::new(rows.first_time(), threads::process_id(profile));
    let mut lanes = Lanes::default();
    let timed = rows.activities().iter().filter(|event| event.activity.duration().is_some());
    let tracks: Vec<u32> = timed
        .clone()
        .map(|JoinedActivity { activity, .. }| {
            lanes.track((activity.device.0, activity.stream.0), activity.start.0, activity.end.0)
        })
        .collect();
    let mut chrome = ChromeWriter { profile, callers, rows, ids: rows.distinct_ids(), events, out };
    chrome.write_head(&lanes)?;
    for call in rows.calls() {
        chrome.write_call(call)?;
    }
    for call in rows.host_calls() {
        chrome.write_host_call(call)?;
    }
    for (event, track) in timed.zip(tracks) {
        chrome.write_activity(event, track)?;
    }
    for sync in rows.timed_syncs() {
        chrome.write_sync(sync)?;
    }
    for mark in rows.marks() {
        chrome.events.mark(&mark.text, mark.thread, mark.time);
        chrome.flush()?;
    }
    writeln!(chrome.out, "\n]}}")?;
    Ok(())
}

struct ChromeWriter<'a, W> {
    profile: &'a Profile,
    callers: Callers<'a>,
    rows: &'a events::JoinedRows,
    ids: DistinctIds,
    events: EventText,
    out: &'a mut W,
}

impl<W: Write> ChromeWriter<'_, W> {
    fn write_head(&mut self, lanes: &Lanes) -> Result<()> {
        let base = self.events.base.0;
        self.events.put(format_args!(
            "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{base},"
        ));
        let activities = self.rows.activities().iter();
        let untimed = activities.clone().filter(|event| event.activity.duration().is_none()).count();
        write_metadata(&mut self.events, self.profile, untimed as u64);
        self.events.put(format_args!(",\"traceEvents\":["));
        let streams = activities.map(|e| (e.activity.device.0, e.activity.stream.0));
        let syncs = self.rows.timed_syncs();
        let waiting = syncs.filter_map(|sync| Some((device(self.rows, sync.context), sync.stream?.0)));
        write_track_names(&mut self.events, self.profile, &streams.chain(waiting).collect(), lanes);
        self.flush()
    }

    fn write_call(&mut self, call: &LaunchCall) -> Result<()> {
        // A call without a known stack would get a wrong stack when the file is read again.
        if !call.has_stack() {
            return Ok(());
        }
        let caller = self.callers.get(call.launched.context);
        let begun = call.launched.time;
        let called = CallEvent {
            name: &caller.call,
            thread: caller.thread,
            begun,
            nanos: call.launched.duration.into(),
            id: self.ids.get(call.id),
        };
        let pending = if call.pending { PENDING } else { "" };
        let stack = stack("stack", "stack_kinds", &caller);
        self.events.call(&called, None, format_args!("{stack}{pending}"));
        if !call.pending {
            self.events.flow_start(self.ids.get(call.id), caller.thread, begun);
        }
        self.flush()
    }

    /// Writes a call that started no work, and the event that it recorded on a stream.
    fn write_host_call(&mut self, call: &HostCall) -> Result<()> {
        let caller = self.callers.get(call.context);
        let records = self.rows.event_records();
        let at = records.partition_point(|record| record.correlation.0 < call.id.0);
        let record = records.get(at).filter(|record| record.correlation == call.id);
        let more = record.filter(|_| call.event_use == Some(EventUse::Record)).map(|record| {
            format!(
                ",\"cuda_event_id\":{},\"stream\":{},\"context\":{}",
                record.event.0, record.stream.0, record.context.0
            )
        });
        let stack = stack("stack", "stack_kinds", &caller);
        let (thread, begun, nanos) = (caller.thread, call.time, call.duration);
        let id = self.ids.get(call.id);
        let called = CallEvent { name: &caller.call, thread, begun, nanos, id };
        self.events.call(&called, None, format_args!("{stack}{}", more.unwrap_or_default()));
        self.flush()
    }

    fn write_sync(&mut self, sync: &SyncRecord) -> Result<()> {
        let records = self.rows.event_records().iter();
        let record = records.filter(|record| record.sync.is_some()).find(|record| record.sync == sync.sync);
        let id = self.ids.get(sync.correlation);
        self.events.sync(sync, id, device(self.rows, sync.context), record);
        self.flush()
    }

    fn write_activity(&mut self, event: &JoinedActivity, track: u32) -> Result<()> {
        let activity = &event.activity;
        let created = match activity.created {
            Some(Created::Context(context)) => {
                stack("created_stack", "created_kinds", &self.callers.get(context))
            }
            Some(made) => format!(",\"created_stack\":{}", json_string(made.label().unwrap_or_default())),
            None => String::new(),
        };
        let title = title(activity.work(), work_name(self.profile, activity.work()));
        let missing = event.origin.context().err();
        let id = self.ids.get(activity.correlation);
        self.events.activity(activity, id, track, &title, missing, format_args!("{created}"));
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.out.write_all(&self.events.text)?;
        self.events.text.clear();
        Ok(())
    }
}

/// Returns the arguments for a stack and for the kinds of its frames. The kinds are omitted if all frames are call or
/// code.
fn stack(text: &str, kinds: &str, caller: &Caller) -> String {
    let stack = format!(",\"{text}\":{}", json_string(&caller.exact_stack()));
    match caller.kinds() {
        letters if letters.is_empty() => stack,
        letters => format!("{stack},\"{kinds}\":\"{letters}\""),
    }
}

/// Returns the GPU of a context, or the first GPU if no work ran in the context.
fn device(rows: &events::JoinedRows, context: GpuContextId) -> u32 {
    rows.device_of(context).map_or(0, |device| device.0)
}
