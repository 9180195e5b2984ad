//! Detects activities that CUPTI delivers twice. The second delivery is counted and dropped.
//!
//! Two activities of one launch need not be duplicates:
//! - A copy may have several parts, which run one after another.
//! - A graph has many nodes, and a node may run several times.
//!
//! This module therefore remembers the last activity of each launch. For graphs, it remembers the last tens of
//! thousands of node runs instead, and so it does for activities whose launch has no row. Each is stored as a hash of
//! the fields that distinguish it from other activities.

use gpuflame_model::record::{Activity, CorrelationId, GraphId};

/// Number of hashes per set (one cache line), and number of sets. All sets together have room for the hashes of 6 MiB
/// of records; CUPTI delivers up to 1 MiB at once.
const WAYS: usize = 8;
const SETS: usize = 1 << 12;

/// Detects activities that were delivered twice. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct DuplicateDetector {
    /// Hashes of the latest runs of graph nodes and of the latest activities without a launch, newest first in each set.
    /// Empty until there is such an activity.
    latest: Vec<[u64; WAYS]>,
}

/// Hash of the stream and times of a launch's last activity. No two activities can run on one stream at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActivityHash(u32);

impl ActivityHash {
    pub(super) fn from_activity(activity: &Activity) -> Self {
        let hash = hash_activity(activity);
        // The GPU's number affects only the lower half of the hash, so both halves are combined.
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

/// Whether `activity` has times. Activities without times may legitimately be identical.
fn is_timed(activity: &Activity) -> bool {
    activity.duration().is_some_and(|nanos| nanos > 0)
}

impl DuplicateDetector {
    /// Whether `activity` was delivered before. `last` is the previous activity of its launch.
    pub(super) fn is_duplicate(&mut self, last: Option<ActivityHash>, activity: &Activity) -> bool {
        if !is_timed(activity) {
            return false;
        }
        if activity.graph != GraphId(0) {
            return self.is_in_latest(activity);
        }
        last == Some(ActivityHash::from_activity(activity))
    }

    /// Whether `activity`, whose launch has no row, was delivered before. Work that the GPU itself launched may have the
    /// id 0, as other work of the same stream and time may; so only nodes of graphs are compared if the id is 0.
    pub(super) fn is_duplicate_without_launch(&mut self, activity: &Activity) -> bool {
        let has_id = activity.correlation != CorrelationId(0) || activity.graph != GraphId(0);
        has_id && is_timed(activity) && self.is_in_latest(activity)
    }

    /// Whether the activity is one of the latest. From this call on, it is.
    fn is_in_latest(&mut self, activity: &Activity) -> bool {
        if self.latest.is_empty() {
            self.latest.resize(SETS, [0; WAYS]);
        }
        let ids = u64::from(activity.correlation.0) << 32 ^ u64::from(activity.graph.0);
        // The lowest bit is set, because a hash of 0 marks an empty entry.
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
