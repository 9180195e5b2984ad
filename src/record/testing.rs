//! Hand-made rows and a source of repeatable chance, for the unit tests of everything that reads rows.

use super::*;

/// A kernel called `NameId(1)` on device 0.
pub(crate) fn kernel(correlation: u32, start: u64, end: u64) -> Activity {
    Activity {
        correlation: CorrelationId(correlation),
        device: DeviceId(0),
        context: GpuContextId(1),
        stream: StreamId(7),
        channel: None,
        start: Nanos(start),
        end: Nanos(end),
        graph: GraphId(0),
        graph_node: GraphNodeId(0),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: Detail::Kernel(KernelDetail {
            name: NameId(1),
            grid: [4, 1, 1],
            block: [32, 1, 1],
            registers: 16,
            static_shared: 0,
            dynamic_shared: 0,
        }),
    }
}

/// The same kernel under another name.
pub(crate) fn named(name: u32, mut activity: Activity) -> Activity {
    if let Detail::Kernel(kernel) = &mut activity.detail {
        kernel.name = NameId(name);
    }
    activity
}

/// A copy on device 0.
pub(crate) fn copy(correlation: u32, kind: CopyKind, bytes: u64, start: u64, end: u64) -> Activity {
    let (from, to) = (MemoryKind(1), MemoryKind(3));
    let detail = CopyDetail { kind, from, to, peers: None, bytes, is_async: true, copies: 1 };
    Activity { detail: Detail::Copy(detail), ..kernel(correlation, start, end) }
}

/// A fill on device 0.
pub(crate) fn set(correlation: u32, bytes: u64, start: u64, end: u64) -> Activity {
    let detail = SetDetail { memory: MemoryKind(3), value: 0, bytes, is_async: false };
    Activity { detail: Detail::Set(detail), ..kernel(correlation, start, end) }
}

/// A launch at time `correlation * 10` that took 5 ns.
pub(crate) fn launch(correlation: u32, context: u32) -> Launch {
    Launch {
        time: Nanos(u64::from(correlation) * 10),
        duration: 5,
        correlation: CorrelationId(correlation),
        within: CorrelationId(correlation),
        context: ContextId(context),
    }
}

/// A second id for the launch `within`.
pub(crate) fn alias(correlation: u32, within: u32) -> Launch {
    Launch { within: CorrelationId(within), ..launch(correlation, 0) }
}

/// Repeatable chance (xorshift64*).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// Moves each thing by less than `distance` places or so.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T], distance: u64) {
        let mut keyed: Vec<_> = (0..things.len()).map(|i| (i as u64 + self.below(distance), i)).collect();
        keyed.sort_unstable();
        let mut order: Vec<usize> = keyed.into_iter().map(|(_, i)| i).collect();
        for at in 0..order.len() {
            // Follow the cycle: what belongs here may have been moved away from its old place.
            let mut from = order[at];
            while from < at {
                from = order[from];
            }
            order[at] = from;
            things.swap(at, from);
        }
    }
}
