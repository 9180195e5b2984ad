//! Joined rows, all of them, in the order of time: for what shows single activities instead of sums.
//!
//! Unlike everything that runs in an application this grows with the number of activities (some 120 bytes
//! each). Whatever the order in which the tracer's buffers came in, the events stand in the same one.

use crate::join::{Launched, Origin, Sink};
use crate::record::{
    Activity, ContextId, CorrelationId, Detail, DeviceId, EventCall, EventRecord, EventUse, GpuContextId,
    IdMap, Instant, Nanos, Row, Sync, ThreadId, Unified, Wait,
};

/// An activity, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedActivity {
    /// What the GPU did.
    pub activity: Activity,
    /// Its launch, or the reason why it has none.
    pub origin: Origin,
}

/// A call that started GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The id that its activities carry.
    pub id: CorrelationId,
    /// When, how long, and who.
    pub launched: Launched,
    /// Whether the GPU did anything for it.
    pub pending: bool,
}

/// A call that started no GPU work: it waited, or put an event on a stream, or had a stream wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// The id that what the tracer says of it carries.
    pub id: CorrelationId,
    /// When it began.
    pub time: Nanos,
    /// How long it took, in nanoseconds.
    pub duration: u64,
    /// The stack that made it.
    pub context: ContextId,
    /// What it did with an event; `None` = it waited.
    pub does: Option<EventUse>,
}

/// An instant that the program marked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marked {
    /// When.
    pub time: Nanos,
    /// On which thread.
    pub thread: ThreadId,
    /// The name.
    pub text: String,
}

/// A [`Sink`] that keeps what it is shown. What was launched outside of all windows is not kept.
#[derive(Clone, Debug, Default)]
pub struct Events {
    activities: Vec<JoinedActivity>,
    calls: Vec<Call>,
    unified: Vec<Unified>,
    host_calls: Vec<HostCall>,
    event_records: Vec<EventRecord>,
    syncs: Vec<Sync>,
    devices: IdMap<GpuContextId, DeviceId>,
    marks: Vec<Marked>,
}

impl Events {
    /// Puts everything in order: activities by start (those without times first), calls by time. To be
    /// called once, after the last row.
    pub fn sort(&mut self) {
        self.activities.sort_unstable_by_key(|event| order(&event.activity));
        self.marks.sort_unstable();
        self.unified.sort_unstable_by_key(|one| (one.start, one.address, one.kind, one.source, one.target));
        self.calls.extend(self.activities.iter().filter_map(|event| match event.origin {
            Origin::Launch(launched) => {
                Some(Call { id: event.activity.correlation, launched, pending: false })
            }
            Origin::Missing(_) => None,
        }));
        let key = |call: &Call| (call.launched.time, call.launched.context, call.id.0, call.pending);
        self.calls.sort_unstable_by_key(key);
        // A graph's launch has many activities.
        self.calls.dedup_by_key(|call| (call.launched.time, call.launched.context, call.id));
        self.devices = self.activities.iter().map(|it| (it.activity.context, it.activity.device)).collect();
        self.syncs.sort_unstable_by_key(|sync| (sync.start, sync.end, sync.correlation.0));
        self.event_records.sort_unstable_by_key(|record| (record.correlation.0, record.event));
        self.host_calls.sort_unstable_by_key(|call| (call.time, call.id.0, call.does.is_some()));
        if !self.host_calls.is_empty() {
            // A copy that waits for its end is a launch, and there already.
            let launches: IdMap<u32, Nanos> =
                self.calls.iter().map(|call| (call.id.0, call.launched.time)).collect();
            self.host_calls.retain(|call| launches.get(&call.id.0) != Some(&call.time));
        }
    }

    /// Calls that started no GPU work, by time.
    pub fn host_calls(&self) -> &[HostCall] {
        &self.host_calls
    }

    /// What the tracer says of events that were put on streams, by the call's id.
    pub fn event_records(&self) -> &[EventRecord] {
        &self.event_records
    }

    /// What the tracer says of waits, by time.
    pub fn syncs(&self) -> &[Sync] {
        &self.syncs
    }

    /// The same for those that have times.
    pub fn timed_syncs(&self) -> impl Iterator<Item = &Sync> {
        self.syncs.iter().filter(|sync| sync.start.0 != 0 && sync.end >= sync.start)
    }

    /// The GPU of a context, where anything ran in it.
    pub fn device_of(&self, context: GpuContextId) -> Option<DeviceId> {
        self.devices.get(&context).copied()
    }

    /// All activities, by start.
    pub fn activities(&self) -> &[JoinedActivity] {
        &self.activities
    }

    /// All calls that started work or should have.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// What happened to unified memory, in the order of time.
    pub fn unified(&self) -> &[Unified] {
        &self.unified
    }

    /// What the program marked, in the order of time.
    pub fn marks(&self) -> &[Marked] {
        &self.marks
    }

    /// The first moment of all calls, activities and marks; 0 where there is none.
    pub fn begin(&self) -> Nanos {
        let calls = self.calls.iter().map(|call| call.launched.time);
        let starts = self.activities.iter().map(|event| event.activity.start);
        let hosts = self.host_calls.iter().map(|call| call.time);
        let syncs = self.syncs.iter().map(|sync| sync.start);
        let marks = self.marks.iter().map(|mark| mark.time);
        calls
            .chain(starts)
            .chain(hosts)
            .chain(syncs)
            .chain(marks)
            .filter(|time| time.0 != 0)
            .min()
            .unwrap_or_default()
    }
}

impl Sink for Events {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.activities.push(JoinedActivity { activity: *activity, origin });
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.calls.push(Call { id, launched, pending: true });
    }

    fn unified(&mut self, unified: &Unified) {
        self.unified.push(*unified);
    }

    fn host(&mut self, row: &Row<'_>) {
        match *row {
            Row::Wait(Wait { time, duration, correlation: id, context }) => {
                self.host_calls.push(HostCall { id, time, duration, context, does: None });
            }
            Row::EventCall(EventCall { time, duration, correlation: id, context, does, .. }) => {
                let duration = duration.into();
                self.host_calls.push(HostCall { id, time, duration, context, does: Some(does) });
            }
            Row::EventRecord(record) => self.event_records.push(record),
            Row::Sync(sync) => self.syncs.push(sync),
            _ => {}
        }
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        self.marks.push(Marked { time: instant.time, thread: instant.thread, text: instant.text.to_owned() });
    }
}

/// By time and place; then by what tells two activities of the same place and time apart.
fn order(activity: &Activity) -> impl Ord + use<> {
    let (start, end) = (activity.start, activity.end);
    let place = (activity.device, activity.context, activity.stream);
    let detail = match activity.detail {
        Detail::Kernel(kernel) => (0, kernel.name.0, 0),
        Detail::Copy(copy) => (1, u32::from(copy.kind.0), copy.bytes),
        Detail::Set(set) => (2, set.value, set.bytes),
        Detail::Graph => (3, activity.graph.0, 0),
    };
    (start, place, end, activity.correlation.0, activity.graph_node, detail)
}

impl Call {
    /// Whether a stack stands behind it.
    pub fn has_stack(&self) -> bool {
        self.launched.context != ContextId::NONE
    }
}
