//! Hand-made rows and reproducible random numbers, for unit tests of modules that read rows.

use super::*;

/// Returns an activity on device 0 that ran the kernel `NameId(1)`.
pub fn kernel(correlation: u32, start: u64, end: u64) -> Activity {
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

/// Returns `activity`, changed to the kernel with the name id `name`.
pub fn named(name: u32, mut activity: Activity) -> Activity {
    if let Detail::Kernel(kernel) = &mut activity.detail {
        kernel.name = NameId(name);
    }
    activity
}

/// Returns an activity that is a copy on device 0.
pub fn copy(correlation: u32, kind: CopyKind, bytes: u64, start: u64, end: u64) -> Activity {
    let (from, to) = (MemoryKind(1), MemoryKind(3));
    let detail = CopyDetail { kind, from, to, peers: None, bytes, is_async: true, copies: 1 };
    Activity { detail: Detail::Copy(detail), ..kernel(correlation, start, end) }
}

/// Returns an activity that is a fill on device 0.
pub fn set(correlation: u32, bytes: u64, start: u64, end: u64) -> Activity {
    let detail = SetDetail { memory: MemoryKind(3), value: 0, bytes, is_async: false };
    Activity { detail: Detail::Set(detail), ..kernel(correlation, start, end) }
}

/// Returns a launch at time `correlation * 10` that took 5 ns.
pub fn launch(correlation: u32, context: u32) -> Launch {
    Launch {
        time: Nanos(u64::from(correlation) * 10),
        duration: 5,
        correlation: CorrelationId(correlation),
        within: CorrelationId(correlation),
        context: ContextId(context),
    }
}

/// Returns an alias row, which gives a launch a second id: `correlation` is a second id of the launch `within`.
pub fn alias(correlation: u32, within: u32) -> Launch {
    Launch { within: CorrelationId(within), ..launch(correlation, 0) }
}

/// A generator of reproducible random numbers (xorshift64*).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next_u64() >> 11) % limit
    }

    /// Moves each element of the list by less than about `distance` places.
    pub fn shuffle<T>(&mut self, things: &mut [T], distance: u64) {
        let mut keyed: Vec<_> = (0..things.len()).map(|i| (i as u64 + self.below(distance), i)).collect();
        keyed.sort_unstable();
        let mut order: Vec<usize> = keyed.into_iter().map(|(_, i)| i).collect();
        for at in 0..order.len() {
            // Follow the cycle of the permutation, because the element for this index may already have been moved to
            // another index.
            let mut from = order[at];
            while from < at {
                from = order[from];
            }
            order[at] = from;
            things.swap(at, from);
        }
    }
}

/// Models a program that makes calls of all kinds, and passes the rows of its iteration `turn` to `each`. The same
/// `turn` always results in the same rows.
pub fn each_row_of_cycle(turn: u32, each: &mut dyn FnMut(&Row<'_>)) {
    let rng = &mut Rng::new(u64::from(turn) + 1);
    let mut push = |row: Row<'_>| each(&row);
    push(Row::Label { id: LabelId(turn % 3), text: "cudaLaunchKernel" });
    push(Row::Window { edge: WindowEdge::Open, time: Nanos(1000 * u64::from(turn) + 10) });
    for number in 0..20 {
        let (id, of) = (100 * turn + number, rng.below(8) as u32 + 2);
        let frames = [Frame::label(LabelId(turn % 3)), Frame::native(u64::from(of), ModuleEpoch(0))];
        let (context, flags) = (ContextId(of), ContextFlags(of & 7));
        push(Row::Context { id: context, thread: ThreadId(of), flags, frames: &frames });
        push(Row::Name { id: NameId(of), text: "kernel" });
        let (start, end) = (u64::from(id) * 10 + rng.below(30), u64::from(id) * 10 + 40);
        if rng.below(9) > 0 {
            push(Row::Launch(Launch { time: Nanos(start.saturating_sub(5)), ..launch(id, of) }));
        }
        let activity = match rng.below(6) {
            0 => copy(id, CopyKind::HTOD, 4096, start, end),
            1 => set(id, 77, start, end),
            2 => kernel(id, 0, 0),
            3 => {
                let (graph, node) = (GraphId(3), GraphNodeId(u64::from(of)));
                push(Row::GraphNode { graph, node, context });
                Activity { graph, graph_node: node, ..named(of, kernel(id, start, end)) }
            }
            4 => continue,
            _ => named(of, kernel(id, start, end)),
        };
        push(Row::Activity(activity));
        let (time, correlation) = (Nanos(start), CorrelationId(id));
        push(Row::Wait(Wait { time, duration: 7, correlation, context }));
        let allocated =
            (rng.below(2) > 0).then_some(Allocation { memory: MemoryKind::DEVICE, bytes: 1 << of });
        push(Row::Memory(MemoryCall { time, correlation, context, address: of.into(), allocated }));
        let thread = ThreadId(of);
        push(Row::Step(Step { time, end: None, thread, number: id.into(), name: "turn" }));
        push(Row::Unified(Unified {
            kind: UnifiedKind::DTOH,
            value: 9,
            start: Nanos(start),
            end: Nanos(end),
            address: 0,
            source: DeviceId(0),
            target: DeviceId(1),
            flags: 0,
        }));
        push(Row::Sync(SyncRecord {
            kind: SyncKind::STREAM,
            start: Nanos(1),
            end: Nanos(2),
            correlation,
            context: GpuContextId(1),
            stream: None,
            event: None,
            sync: None,
            result: 0,
        }));
    }
    push(Row::Loss { loss: Loss::StacksCut, count: 1 });
    push(Row::Window { edge: WindowEdge::Close, time: Nanos(1000 * u64::from(turn) + 900) });
}
