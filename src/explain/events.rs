//! Stores all joined rows, for outputs that show single activities instead of sums. The rows are sorted by time.
//!
//! The table of activities grows by 40 bytes per activity. Such a table, which grows with each activity, is never used
//! inside an application that gpuflame profiles. The sorted order does not depend on the order in which CUPTI delivered
//! its buffers.
//!
//! Most activities are repetitions: the same kernel runs with the same grid on the same stream in each step. All fields
//! of an activity except its times, ids and contexts form its *shape*. Each distinct shape is stored only once.

use std::cmp::Ordering;
use std::collections::HashSet;

use crate::join::{Launched, Origin, Sink};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, DeviceId, EventCall, EventRecord, EventUse, GpuContextId,
    IdMap, Instant, LaunchAttributes, Missing, Nanos, Row, SyncRecord, ThreadId, Unified, Wait, hash_one,
};

/// An activity and the launch that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedActivity {
    /// The activity with all fields that the tracer reported.
    pub activity: Activity,
    /// Launch that caused the activity, or the reason why this launch is unknown.
    pub origin: Origin,
}

/// An activity in compact form: the index of its shape, and the fields that differ between activities of the same
/// shape.
#[derive(Clone, Copy, Debug)]
struct StoredActivity {
    start: Nanos,
    end: Nanos,
    /// Start time of the API call that launched the activity, if the call is known.
    call: Nanos,
    call_duration: u32,
    context: ContextId,
    correlation: CorrelationId,
    /// Index of the activity's shape (its fields without times, ids and contexts).
    shape: u32,
}

const _: () =
    assert!(size_of::<StoredActivity>() == 40, "an activity grew: a large trace has a million activities");

/// Fields that many activities share: an activity without its times and ids and, if the launch is unknown, the reason
/// why it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ActivityShape {
    activity: Activity,
    missing: Option<Missing>,
}

impl ActivityShape {
    fn hash(&self) -> u64 {
        let Activity { device, context, stream, channel, graph, graph_node, source_node, detail, .. } =
            self.activity;
        let place = (device, context, stream, channel, graph, graph_node, source_node);
        let origin = (self.activity.device_launched, self.activity.created, self.missing);
        hash_one(&(place, origin, detail))
    }
}

/// Stored activities. Before `sort`, the activities are in the order in which they were added; after `sort`, they are
/// sorted by time.
#[derive(Clone, Debug, Default)]
struct StoredActivities {
    all: Vec<StoredActivity>,
    shapes: Vec<ActivityShape>,
    /// Maps the hash of each shape to the index of the shape. If several shapes have the same hash, the map contains
    /// only the first of them.
    known: IdMap<u64, u32>,
    /// Index of the shape that was used last. The newest activity has this shape.
    last: u32,
}

impl StoredActivities {
    fn push(&mut self, activity: &Activity, origin: Origin) {
        let (launched, missing) = match origin {
            Origin::Launch(launched) => (launched, None),
            Origin::Missing(missing) => {
                (Launched { time: Nanos(0), duration: 0, context: ContextId::NONE }, Some(missing))
            }
        };
        let (start, end, correlation) = (activity.start, activity.end, activity.correlation);
        let without = Activity { start: Nanos(0), end: Nanos(0), correlation: CorrelationId(0), ..*activity };
        let shape = self.intern(ActivityShape { activity: without, missing });
        let Launched { time: call, duration: call_duration, context } = launched;
        self.all.push(StoredActivity { start, end, call, call_duration, context, correlation, shape });
    }

    fn intern(&mut self, shape: ActivityShape) -> u32 {
        if self.shapes.get(self.last as usize) != Some(&shape) {
            let next = self.shapes.len() as u32;
            let known = *self.known.entry(shape.hash()).or_insert(next);
            self.last = if self.shapes.get(known as usize) == Some(&shape) { known } else { next };
            if self.last == next {
                self.shapes.push(shape);
            }
        }
        self.last
    }

    fn get(&self, stored: &StoredActivity) -> JoinedActivity {
        let &StoredActivity { start, end, call, call_duration, context, correlation, shape } = stored;
        let ActivityShape { activity, missing } = self.shapes[shape as usize];
        let launched = Launched { time: call, duration: call_duration, context };
        let origin = missing.map_or(Origin::Launch(launched), Origin::Missing);
        JoinedActivity { activity: Activity { start, end, correlation, ..activity }, origin }
    }

    fn sort(&mut self) {
        let mut all = std::mem::take(&mut self.all);
        // Nearly all activities have different start times, so the comparison of two keys rarely needs the further
        // fields.
        all.sort_unstable_by(|a, b| match a.start.cmp(&b.start) {
            Ordering::Equal => sort_key(&self.get(a).activity).cmp(&sort_key(&self.get(b).activity)),
            order => order,
        });
        self.all = all;
        self.known = IdMap::default();
    }
}

/// An API call that launched GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchCall {
    /// Correlation id of the call and of its activities.
    pub id: CorrelationId,
    /// Time, duration and context of the call.
    pub launched: Launched,
    /// Whether the call has no activity.
    pub pending: bool,
}

/// An API call that launched no GPU work. The call waited, recorded a CUDA event on a stream, or made a stream wait for
/// a CUDA event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// Correlation id of the call and of its event and synchronization records.
    pub id: CorrelationId,
    /// Start time of the call.
    pub time: Nanos,
    /// Duration of the call, in ns.
    pub duration: u64,
    /// Launch context of the call: its stack and API function.
    pub context: ContextId,
    /// Whether the call recorded a CUDA event, or made a stream wait for it. The field is `None` if the call waited.
    pub event_use: Option<EventUse>,
}

/// An instant that the program marked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkedInstant {
    /// Time of the instant.
    pub time: Nanos,
    /// Thread that marked the instant.
    pub thread: ThreadId,
    /// Text that the program passed with the mark.
    pub text: String,
}

/// Unique correlation ids, for an output that shows all rows as if they were from a single process.
#[derive(Clone, Debug)]
pub struct DistinctIds(Option<Vec<u64>>);

impl DistinctIds {
    /// Returns the unique id that the output shows for `id`.
    pub fn get(&self, id: CorrelationId) -> u64 {
        let known = self.0.as_ref().and_then(|ids| ids.get(id.0 as usize));
        known.copied().unwrap_or(id.0.into())
    }
}

/// A [`Sink`] that stores all joined rows. GPU work that was launched outside all windows is not stored.
#[derive(Clone, Debug, Default)]
pub struct JoinedRows {
    activities: StoredActivities,
    calls: Vec<LaunchCall>,
    unified: Vec<Unified>,
    host_calls: Vec<HostCall>,
    event_records: Vec<EventRecord>,
    syncs: Vec<SyncRecord>,
    devices: IdMap<GpuContextId, DeviceId>,
    marks: Vec<MarkedInstant>,
    /// Launches whose attributes were recorded. The value is true for a programmatic dependent launch.
    attributes: IdMap<CorrelationId, bool>,
    /// Correlation ids in the source file, if this file is another tool's trace. The index of an entry is the
    /// correlation id in the rows.
    source_ids: Option<Vec<u64>>,
}

impl JoinedRows {
    /// Sets the correlation ids that another tool's trace contains. `ids` is indexed by the correlation id in the rows.
    /// The value 0 means that the trace has no id for the row.
    pub fn set_source_ids(&mut self, ids: Vec<u64>) {
        self.source_ids = Some(ids);
    }

    /// Returns the correlation id that the source file had for `id`, which is the id in the rows. Returns `None` if the
    /// source file has no id for the row.
    pub fn source_id(&self, id: CorrelationId) -> Option<u64> {
        match &self.source_ids {
            None => Some(id.0.into()),
            Some(ids) => ids.get(id.0 as usize).copied().filter(|id| *id != 0),
        }
    }

    /// Returns a unique correlation id for each id in the rows, for an output that shows all rows as if they were from
    /// a single process. Usually, the unique id is the id in the source file. If the source file has no id for the row,
    /// or uses the same id for a second launch, the unique id is a new one.
    pub fn distinct_ids(&self) -> DistinctIds {
        let Some(ids) = &self.source_ids else { return DistinctIds(None) };
        let mut next = ids.iter().copied().max().unwrap_or(0);
        let mut used = HashSet::new();
        let mut distinct = |&id: &u64| match id {
            id if id != 0 && used.insert(id) => id,
            _ => {
                next = next.saturating_add(1);
                next
            }
        };
        DistinctIds(Some(ids.iter().map(&mut distinct).collect()))
    }

    /// Sorts the activities by start time (activities without times come first), and the calls by time. Call this
    /// function once, after the last row.
    pub fn sort(&mut self) {
        self.sort_with_calls(|_| true);
    }

    /// Does the same as [`sort`](Self::sort), but keeps only some of the launching calls in [`calls`](Self::calls):
    /// those whose correlation id also occurs in other rows.
    pub fn sort_with_shared_calls(&mut self) {
        let mut ids: IdMap<CorrelationId, ()> = IdMap::default();
        ids.extend(self.calls.iter().map(|call| (call.id, ())));
        ids.extend(self.host_calls.iter().map(|call| (call.id, ())));
        ids.extend(self.syncs.iter().map(|sync| (sync.correlation, ())));
        self.sort_with_calls(|id| ids.contains_key(&id));
    }

    /// Does the same as [`sort`](Self::sort), but [`calls`](Self::calls) then contains only the calls without GPU work,
    /// and [`host_calls`](Self::host_calls) stays incomplete. Outputs that only list activities call this function.
    pub fn sort_without_calls(&mut self) {
        self.sort_with_calls(|_| false);
    }

    fn sort_with_calls(&mut self, is_wanted: impl Fn(CorrelationId) -> bool) {
        self.activities.sort();
        self.marks.sort_unstable();
        self.unified.sort_unstable_by_key(|one| (one.start, one.address, one.kind, one.source, one.target));
        let wanted = self.activities.all.iter().filter(|stored| is_wanted(stored.correlation));
        self.calls.extend(wanted.filter_map(|stored| {
            let StoredActivity { call: time, call_duration: duration, context, .. } = *stored;
            let is_launched = self.activities.shapes[stored.shape as usize].missing.is_none();
            let launched = Launched { time, duration, context };
            is_launched.then_some(LaunchCall { id: stored.correlation, launched, pending: false })
        }));
        let key = |call: &LaunchCall| (call.launched.time, call.launched.context, call.id.0, call.pending);
        self.calls.sort_unstable_by_key(key);
        // The call that launched an activity is added to `calls` for each activity, so a call that launched a graph was
        // added many times.
        self.calls.dedup_by_key(|call| (call.launched.time, call.launched.context, call.id));
        // This loop is used because `collect` would reserve space for one CUDA context per activity, although there are
        // few CUDA contexts.
        let mut last = None;
        for stored in &self.activities.all {
            let Activity { context, device, .. } = self.activities.shapes[stored.shape as usize].activity;
            if last.replace((context, device)) != Some((context, device)) {
                self.devices.insert(context, device);
            }
        }
        self.syncs.sort_unstable_by_key(|sync| (sync.start, sync.end, sync.correlation.0));
        self.event_records.sort_unstable_by_key(|record| (record.correlation.0, record.event));
        self.host_calls.sort_unstable_by_key(|call| (call.time, call.id.0, call.event_use.is_some()));
        if !self.host_calls.is_empty() {
            // A call that copies memory and waits for the copy is a launch, so it is already in `calls`.
            let launches: IdMap<u32, Nanos> =
                self.calls.iter().map(|call| (call.id.0, call.launched.time)).collect();
            self.host_calls.retain(|call| launches.get(&call.id.0) != Some(&call.time));
        }
    }

    /// Drops the calls that have an activity. After this call, [`calls`](Self::calls) contains only the launches
    /// without an activity. Call this function after sorting.
    pub fn keep_pending_calls(&mut self) {
        self.calls.retain(|call| call.pending);
        self.calls.shrink_to_fit();
    }

    /// Returns the calls that started no GPU work, sorted by time.
    pub fn host_calls(&self) -> &[HostCall] {
        &self.host_calls
    }

    /// Returns the records of CUDA events on streams, sorted by the correlation id of the call that recorded the event.
    pub fn event_records(&self) -> &[EventRecord] {
        &self.event_records
    }

    /// Returns CUPTI's synchronization records, sorted by time.
    pub fn syncs(&self) -> &[SyncRecord] {
        &self.syncs
    }

    /// Returns CUPTI's synchronization records that have usable times.
    pub fn timed_syncs(&self) -> impl Iterator<Item = &SyncRecord> {
        self.syncs.iter().filter(|sync| sync.start.0 != 0 && sync.end >= sync.start)
    }

    /// Returns the device of a CUDA context, if any GPU work ran in that context.
    pub fn device_of(&self, context: GpuContextId) -> Option<DeviceId> {
        self.devices.get(&context).copied()
    }

    /// Returns all activities, sorted by start time.
    pub fn activities(&self) -> impl ExactSizeIterator<Item = JoinedActivity> + Clone + '_ {
        self.activities.all.iter().map(|stored| self.activities.get(stored))
    }

    /// Returns the activity at index `at` of [`activities`](Self::activities).
    pub fn activity_at(&self, at: u32) -> JoinedActivity {
        self.activities.get(&self.activities.all[at as usize])
    }

    /// Returns the API calls that launched GPU work, including calls that have no activity.
    pub fn calls(&self) -> &[LaunchCall] {
        &self.calls
    }

    /// Returns the unified memory records, sorted by time.
    pub fn unified(&self) -> &[Unified] {
        &self.unified
    }

    /// Returns the launches whose attributes were recorded. The value is true for a programmatic dependent launch.
    pub fn launch_attributes(&self) -> &IdMap<CorrelationId, bool> {
        &self.attributes
    }

    /// Whether a launch is a programmatic dependent launch, which means that its kernel may begin before the previous
    /// kernel on its stream ends. Returns `None` if the attributes of the launch were not recorded.
    pub fn is_programmatic(&self, id: CorrelationId) -> Option<bool> {
        self.attributes.get(&id).copied()
    }

    /// Returns the instants that the program marked, sorted by time.
    pub fn marks(&self) -> &[MarkedInstant] {
        &self.marks
    }

    /// Returns the earliest time of all calls, activities and marks. Returns 0 if there are neither calls nor
    /// activities nor marks.
    pub fn first_time(&self) -> Nanos {
        let calls = self.calls.iter().map(|call| call.launched.time);
        let starts = self.activities.all.iter().map(|stored| stored.start);
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

impl Sink for JoinedRows {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.activities.push(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.calls.push(LaunchCall { id, launched, pending: true });
    }

    fn unified(&mut self, unified: &Unified) {
        self.unified.push(*unified);
    }

    fn host(&mut self, row: &Row<'_>) {
        match *row {
            Row::Wait(Wait { time, duration, correlation: id, context }) => {
                self.host_calls.push(HostCall { id, time, duration, context, event_use: None });
            }
            Row::EventCall(EventCall { time, duration, correlation: id, context, event_use, .. }) => {
                let duration = duration.into();
                self.host_calls.push(HostCall { id, time, duration, context, event_use: Some(event_use) });
            }
            Row::EventRecord(record) => self.event_records.push(record),
            Row::Sync(sync) => self.syncs.push(sync),
            Row::LaunchAttributes(LaunchAttributes { correlation, is_programmatic }) => {
                self.attributes.insert(correlation, is_programmatic);
            }
            _ => {}
        }
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        self.marks.push(MarkedInstant {
            time: instant.time,
            thread: instant.thread,
            text: instant.text.to_owned(),
        });
    }
}

/// Returns the sort key of an activity. The key consists of the activity's time, device, CUDA context and stream,
/// followed by fields that distinguish activities on one stream with equal times.
fn sort_key(activity: &Activity) -> impl Ord + use<> {
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

impl LaunchCall {
    /// Whether the stack that made the call is known.
    pub fn has_stack(&self) -> bool {
        self.launched.context != ContextId::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{CopyKind, Created, GraphId, GraphNodeId, StreamId, testing};

    fn all() -> Vec<JoinedActivity> {
        let kernel = |at: u32| testing::named(at % 3, testing::kernel(at, 1000 - u64::from(at % 7), 2000));
        let launch = |at: u32| {
            Origin::Launch(Launched { time: Nanos(at.into()), duration: at, context: ContextId(at % 5 + 4) })
        };
        let in_graph = |at: u32| Activity {
            graph: GraphId(2),
            graph_node: GraphNodeId((at % 4).into()),
            source_node: GraphNodeId(9),
            created: Some(Created::Context(ContextId(at % 3 + 4))),
            ..kernel(at)
        };
        let activity = |at: u32| match at % 8 {
            0 => testing::copy(at, CopyKind::HTOD, u64::from(at) * 100, 900, 0),
            1 => testing::set(at, 64, 0, 0),
            2 => in_graph(at),
            3 => Activity { created: Some(Created::Unknown), ..in_graph(at) },
            4 => Activity { channel: Some(at % 2), device_launched: at % 16 == 4, ..kernel(at) },
            5 => Activity { device: DeviceId(1), stream: StreamId(at % 3), ..kernel(at) },
            6 => Activity { detail: Detail::Graph, graph: GraphId(at % 2 + 1), ..kernel(at) },
            _ => Activity { context: GpuContextId(7), ..kernel(at) },
        };
        let missing = [Missing::NoStack, Missing::LaunchedBefore, Missing::DeviceGraph];
        let origin = |at: u32| match at % 5 {
            0 => Origin::Missing(missing[at as usize % 3]),
            _ => launch(at),
        };
        (0..2000).map(|at| JoinedActivity { activity: activity(at), origin: origin(at) }).collect()
    }

    #[test]
    fn activities_come_back_as_they_were_added() {
        let (all, mut rows) = (all(), JoinedRows::default());
        all.iter().for_each(|event| rows.activity(&event.activity, event.origin));
        assert_eq!(rows.activities().collect::<Vec<_>>(), all);
        assert_eq!((rows.activities().len(), rows.activity_at(1999)), (2000, all[1999]));
        // In this test, only copies have different sizes.
        let copies = rows.activities.shapes.iter().filter(|shape| shape.activity.bytes() > 64).count();
        let shared = rows.activities.shapes.len() - copies;
        assert!(copies == 249 && shared < 60, "{copies} shapes of copies, {shared} of other work");
    }

    #[test]
    fn sorted_activities_are_in_order_of_time_and_place() {
        let (mut all, mut rows) = (all(), JoinedRows::default());
        all.iter().rev().for_each(|event| rows.activity(&event.activity, event.origin));
        rows.sort();
        all.sort_unstable_by_key(|event| sort_key(&event.activity));
        assert_eq!(rows.activities().collect::<Vec<_>>(), all);
        let launched = all.iter().filter(|event| event.origin.launched().is_some());
        assert_eq!(rows.calls().len(), launched.count(), "each has a call of its own");
    }
}
