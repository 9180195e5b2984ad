//! Converts rows to trace events in Chrome's format. The converted rows come from a recording, or from another tool's
//! trace in a different format. All rows must be in memory before the first event is written.

use std::io::Write;

use super::callers::{Caller, Callers};
use super::operators::Operators;
use gpuflame_explain::events::{self, DistinctIds, HostCall, JoinedActivity, LaunchCall};
use gpuflame_explain::join::Origin;
use gpuflame_export::chrome::Lanes;
use gpuflame_export::chrome::events::{
    CallEvent, EventText, PENDING, title, write_metadata, write_track_names,
};
use gpuflame_export::compose::work_name;
use gpuflame_export::format::Format;
use gpuflame_export::threads;
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Profile, json_string};
use gpuflame_model::record::{Created, EventUse, GpuContextId, Nanos, SyncRecord, ThreadId};

/// Chrome's trace events. The names of kernels and functions are taken from the profile. Activities without times
/// cannot be placed on a timeline, so they are only counted, in `gpuflame.missing`.
pub(crate) static CHROME: Format = Format::of_events(
    "chrome",
    &[".json"],
    |profile, events, _, mut out| write_chrome(profile, events, &ChromeOptions::default(), &mut out),
    "Chrome's trace events, as torch.profiler writes them (.json)",
);

/// Options for writing calls and GPU work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChromeOptions<'a> {
    /// CPU operators of the trace. The operator that made an API call is looked up in this list. If set, calls and GPU
    /// work get the External id of their operator. Default: none.
    pub operators: Option<&'a Operators>,
    /// Whether stacks of calls are omitted. Default: false.
    pub without_stacks: bool,
}

/// Writes a complete trace.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_chrome(
    profile: &Profile,
    rows: &events::JoinedRows,
    options: &ChromeOptions<'_>,
    out: &mut impl Write,
) -> Result<()> {
    let mut chrome = ChromeWriter::new(profile, rows, options, out);
    chrome.write_head()?;
    chrome.write_events()?;
    writeln!(chrome.out, "\n]}}")?;
    Ok(())
}

/// Writes only the events, separated by commas, for a trace that also contains events from another source. Times are
/// relative to the base time of the operators' trace. Returns whether any event was written.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_chrome_events(
    profile: &Profile,
    rows: &events::JoinedRows,
    options: &ChromeOptions<'_>,
    out: &mut impl Write,
) -> Result<bool> {
    let mut chrome = ChromeWriter::new(profile, rows, options, out);
    chrome.write_events()?;
    // The names of the tracks are written as events too, so at least one event was written.
    Ok(true)
}

/// Returns the property `gpuflame` of a complete trace as JSON text, including the key. The property contains the
/// counts of dropped data and the provenance.
pub fn chrome_metadata(profile: &Profile, rows: &events::JoinedRows) -> Vec<u8> {
    let mut events = EventText::new(Nanos(0), 0);
    let untimed = rows.activities().filter(|event| event.activity.duration().is_none()).count();
    write_metadata(&mut events, profile, untimed as u64);
    events.text
}

/// Returns whether any API call began inside a CPU operator.
pub fn has_calls_in_operators(profile: &Profile, rows: &events::JoinedRows, operators: &Operators) -> bool {
    let (process, callers) = (threads::process_id(profile), Callers::new(profile));
    let is_inside = |context, begun, nanos| {
        operators.around(process, callers.get(context).thread, begun, nanos).is_some()
    };
    let mut launches = rows.calls().iter().map(|call| call.launched);
    let mut others = rows.host_calls().iter();
    launches.any(|call| is_inside(call.context, call.time, call.duration.into()))
        || others.any(|call| is_inside(call.context, call.time, call.duration))
}

struct ChromeWriter<'a, W> {
    profile: &'a Profile,
    callers: Callers<'a>,
    rows: &'a events::JoinedRows,
    options: &'a ChromeOptions<'a>,
    process: u32,
    ids: DistinctIds,
    events: EventText,
    out: &'a mut W,
}

impl<'a, W: Write> ChromeWriter<'a, W> {
    fn new(
        profile: &'a Profile,
        rows: &'a events::JoinedRows,
        options: &'a ChromeOptions<'a>,
        out: &'a mut W,
    ) -> Self {
        let process = threads::process_id(profile);
        let base = options.operators.map_or_else(|| rows.first_time(), Operators::base);
        let (callers, events) = (Callers::new(profile), EventText::new(base, process));
        Self { profile, callers, rows, options, process, ids: rows.distinct_ids(), events, out }
    }

    fn write_events(&mut self) -> Result<()> {
        let rows = self.rows;
        let timed = rows.activities().filter(|event| event.activity.duration().is_some());
        let mut lanes = Lanes::default();
        let tracks: Vec<u32> = timed
            .clone()
            .map(|JoinedActivity { activity, .. }| {
                lanes.track((activity.device.0, activity.stream.0), activity.start.0, activity.end.0)
            })
            .collect();
        self.write_tracks(&lanes)?;
        for call in rows.calls() {
            self.write_call(call)?;
        }
        for call in rows.host_calls() {
            self.write_host_call(call)?;
        }
        for (event, track) in timed.zip(tracks) {
            self.write_activity(&event, track)?;
        }
        for sync in rows.timed_syncs() {
            self.write_sync(sync)?;
        }
        for mark in rows.marks() {
            self.events.mark(&mark.text, mark.thread, mark.time);
            self.flush()?;
        }
        Ok(())
    }

    fn write_head(&mut self) -> Result<()> {
        let base = self.events.base.0;
        self.events.put(format_args!(
            "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{base},"
        ));
        self.events.text.extend(chrome_metadata(self.profile, self.rows));
        self.events.put(format_args!(",\"traceEvents\":["));
        self.flush()
    }

    fn write_tracks(&mut self, lanes: &Lanes) -> Result<()> {
        let activities = self.rows.activities();
        let streams = activities.map(|e| (e.activity.device.0, e.activity.stream.0));
        let syncs = self.rows.timed_syncs();
        let waiting = syncs.filter_map(|sync| Some((device(self.rows, sync.context), sync.stream?.0)));
        write_track_names(&mut self.events, self.profile, &streams.chain(waiting).collect(), lanes);
        self.flush()
    }

    fn write_call(&mut self, call: &LaunchCall) -> Result<()> {
        // Calls without a known stack are omitted, because a reader of the file would assign a wrong stack to them.
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
        let (operator, stack) = (self.operator(caller.thread, begun, called.nanos), self.stack(&caller));
        self.events.call(&called, None, format_args!("{operator}{stack}{pending}"));
        if !call.pending {
            self.events.flow_start(self.ids.get(call.id), caller.thread, begun);
        }
        self.flush()
    }

    /// Writes a call that started no GPU work, and the CUDA event that it recorded on a stream, if any.
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
        let (thread, begun, nanos) = (caller.thread, call.time, call.duration);
        let (operator, stack) = (self.operator(thread, begun, nanos), self.stack(&caller));
        let id = self.ids.get(call.id);
        let called = CallEvent { name: &caller.call, thread, begun, nanos, id };
        self.events.call(&called, None, format_args!("{operator}{stack}{}", more.unwrap_or_default()));
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
            Some(_) if self.options.without_stacks => String::new(),
            Some(Created::Context(context)) => {
                stack("created_stack", "created_kinds", &self.callers.get(context))
            }
            Some(made) => format!(",\"created_stack\":{}", json_string(made.label().unwrap_or_default())),
            None => String::new(),
        };
        let title = title(activity.work(), work_name(self.profile, activity.work()));
        let missing = event.origin.context().err();
        let operator = match event.origin {
            Origin::Launch(launched) => {
                let thread = self.callers.get(launched.context).thread;
                self.operator(thread, launched.time, launched.duration.into())
            }
            Origin::Missing(_) => String::new(),
        };
        let id = self.ids.get(activity.correlation);
        self.events.activity(activity, id, track, &title, missing, format_args!("{operator}{created}"));
        self.flush()
    }

    /// Returns the JSON argument for the operator that made a call; empty if the operator is unknown.
    fn operator(&self, thread: ThreadId, begun: Nanos, nanos: u64) -> String {
        let id = self.options.operators.and_then(|all| all.around(self.process, thread, begun, nanos));
        id.map_or_else(String::new, |id| format!(",\"External id\":{id}"))
    }

    fn stack(&self, caller: &Caller) -> String {
        match self.options.without_stacks {
            true => String::new(),
            false => stack("stack", "stack_kinds", caller),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.out.write_all(&self.events.text)?;
        self.events.text.clear();
        Ok(())
    }
}

/// Returns the JSON arguments for a stack and for the kinds of its frames. The argument for the kinds is omitted if all
/// frames are calls or code.
fn stack(text: &str, kinds: &str, caller: &Caller) -> String {
    let stack = format!(",\"{text}\":{}", json_string(&caller.exact_stack()));
    match caller.kinds() {
        letters if letters.is_empty() => stack,
        letters => format!("{stack},\"{kinds}\":\"{letters}\""),
    }
}

/// Returns the GPU of a CUDA context, or the first GPU if no work ran in the context.
fn device(rows: &events::JoinedRows, context: GpuContextId) -> u32 {
    rows.device_of(context).map_or(0, |device| device.0)
}
