//! Activities that the tracer delivers twice: the second counts as such, and is nothing else.
//!
//! A copy may have several parts, one after another, and a graph has many nodes, each of which may run several times. So of a
//! launch the last activity is remembered, and of graphs the last tens of thousands, each by a number that is made of what tells it
//! from all others.

use crate::record::{Activity, GraphId};

/// Numbers in a set, which are one line of the processor's cache, and sets: 6 MiB of records, where CUPTI delivers up to 1 MiB
/// at once.
const WAYS: usize = 8;
const SETS: usize = 1 << 12;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// Of nodes of graphs, the youngest first; none until there is a graph.
    nodes: Vec<[u64; WAYS]>,
}

/// The last activity of a launch, told from its others by where and when it ran. No two can do so on one stream at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last(u32);

impl Last {
    pub(super) fn of(activity: &Activity) -> Self {
        let number = number(activity);
        // What has the GPU in it ends in the lower half.
        Self((number ^ number >> 32) as u32)
    }
}

fn number(activity: &Activity) -> u64 {
    let Activity { device, context, stream, start, end, .. } = activity;
    let place = u64::from(device.0) << 48 ^ u64::from(context.0) << 32 ^ u64::from(stream.0);
    mix(mix(mix(0, start.0), end.0), place)
}

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Of what has no times there may be any number.
fn is_timed(activity: &Activity) -> bool {
    activity.duration().is_some_and(|nanos| nanos > 0)
}

impl Repeats {
    /// Whether an activity was delivered before whose launch had this one last.
    pub(super) fn is_repeated(&mut self, last: Option<Last>, activity: &Activity) -> bool {
        if !is_timed(activity) {
            return false;
        }
        if activity.graph != GraphId(0) {
            return self.has_node(activity);
        }
        last == Some(Last::of(activity))
    }

    /// Whether the node was there before. From now on it is.
    fn has_node(&mut self, activity: &Activity) -> bool {
        if self.nodes.is_empty() {
            self.nodes.resize(SETS, [0; WAYS]);
        }
        let ids = u64::from(activity.correlation.0) << 32 ^ u64::from(activity.graph.0);
        // 0 stands for none.
        let number = mix(mix(number(activity), activity.graph_node.0), ids) | 1;
        let set = &mut self.nodes[(number >> 32) as usize % SETS];
        if set.contains(&number) {
            return true;
        }
        set.rotate_right(1);
        set[0] = number;
        false
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<[u64; WAYS]>()
    }
}
