//! Detects activities that CUPTI delivers twice. If CUPTI delivers an activity a second time, this second delivery is
//! counted and dropped.
//!
//! Two activities of one launch are not always duplicates, for two reasons:
//! - A memory copy may consist of several parts, which run one after another.
//! - A graph has many nodes, and a node may run several times.
//!
//! For each launch that is not a graph launch, this module therefore stores only the launch's last activity. For graph
//! launches, and for activities whose launch has no row, the module stores the latest tens of thousands of activities.
//! Each activity is stored as a hash of the fields that distinguish activities.

use gpuflame_model::record::{Activity, CorrelationId, GraphId};

/// Number of hashes per set, and number of sets, in the table of the latest activities. Each set is one cache line. The
/// table has room for the hashes of 6 MiB of activity records. For comparison, one CUPTI buffer has up to 1 MiB.
const WAYS: usize = 8;
const SETS: usize = 1 << 12;

/// Detects activities that were delivered twice. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct DuplicateDetector {
    /// Hashes of the latest runs of graph nodes, and of the latest activities whose launch has no row. In each set, the
    /// newest hash comes first. The table is empty until the first run of a graph node, or the first activity without a
    /// launch row, arrives.
    latest: Vec<[u64; WAYS]>,
}

/// Hash of an activity's stream and times. The hash identifies the activity among all activities of its launch, because
/// two activities cannot run on one stream at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActivityHash(u32);

impl ActivityHash {
    pub(super) fn from_activity(activity: &Activity) -> Self {
        let hash = hash_activity(activity);
        // The device id affects only the lower half of the 64-bit hash, so both halves are combined.
        Self((hash ^ hash >> 32) as u32)
    }
}

fn hash_activity(activity: &Activity) -> u64 {
    let Activity { device, context, stream, start, end, .. } = activity;
    let place = u64::from(device.0) << 48 ^ u64::from(context.0) << 32 ^ u64::from(stream.0);
    mix(mix(mix(0, start.0), end.0), place)
}

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Whether `activity` has start and end times. Two activities without times may be identical without being duplicates.
fn is_timed(activity: &Activity) -> bool {
    activity.duration().is_some_and(|nanos| nanos > 0)
}

impl DuplicateDetector {
    /// Whether `activity` was delivered before. `last` is the previous activity of the same launch.
    pub(super) fn is_duplicate(&mut self, last: Option<ActivityHash>, activity: &Activity) -> bool {
        if !is_timed(activity) {
            return false;
        }
        if activity.graph != GraphId(0) {
            return self.is_in_latest(activity);
        }
        last == Some(ActivityHash::from_activity(activity))
    }

    /// Whether `activity`, whose launch has no row, was delivered before. Work that the GPU launched may have the id 0.
    /// Different work on the same stream and with the same times may have the id 0 too. Therefore, activities with the
    /// id 0 are compared only if they ran graph nodes.
    pub(super) fn is_duplicate_without_launch(&mut self, activity: &Activity) -> bool {
        let has_id = activity.correlation != CorrelationId(0) || activity.graph != GraphId(0);
        has_id && is_timed(activity) && self.is_in_latest(activity)
    }

    /// Whether the activity is in the table of the latest activities. An activity that is not in the table is added to
    /// the table.
    fn is_in_latest(&mut self, activity: &Activity) -> bool {
        if self.latest.is_empty() {
            self.latest.resize(SETS, [0; WAYS]);
        }
        let ids = u64::from(activity.correlation.0) << 32 ^ u64::from(activity.graph.0);
        // The lowest bit is always set, because a hash of 0 marks an empty entry.
        let hash = mix(mix(hash_activity(activity), activity.graph_node.0), ids) | 1;
        let set = &mut self.latest[(hash >> 32) as usize % SETS];
        if set.contains(&hash) {
            return true;
        }
        set.rotate_right(1);
        set[0] = hash;
        false
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.latest.capacity() * size_of::<[u64; WAYS]>()
    }
}
