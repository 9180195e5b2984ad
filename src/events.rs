//! Joined rows, all of them, in the order of time: for what shows single activities instead of sums.
//!
//! Unlike everything that runs in an application this grows with the number of activities (some 120 bytes
//! each). Whatever the order in which the tracer's buffers came in, the events stand in the same one.

use crate::join::{Launched, Origin, Sink};
use crate::record::{Activity, ContextId, CorrelationId, Detail, Nanos, Unified};

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

/// A [`Sink`] that keeps what it is shown. What was launched outside of all windows is not kept.
#[derive(Clone, Debug, Default)]
pub struct Events {
    activities: Vec<JoinedActivity>,
    calls: Vec<Call>,
    unified: Vec<Unified>,
}

impl Events {
    /// Puts everything in order: activities by start (those without times first), calls by time. To be
    /// called once, after the last row.
    pub fn sort(&mut self) {
        self.activities.sort_unstable_by_key(|event| order(&event.activity));
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

    /// The first moment of all calls and activities; 0 where there is none.
    pub fn begin(&self) -> Nanos {
        let calls = self.calls.iter().map(|call| call.launched.time);
        let starts = self.activities.iter().map(|event| event.activity.start);
        calls.chain(starts).filter(|time| time.0 != 0).min().unwrap_or_default()
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
