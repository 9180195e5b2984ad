//! A hand-made recording that is so small that every sum can be computed by hand.
//!
//! ```text
//!  us       0    10   20   30   40   50   60   70   80   90  100
//!  GPU 0 s7 [early ]  [gemm    ] [gemm    ]      [x]              early: launched before recording
//!        s8           [HtoD 4K   ]                                x: a kernel without times has none here
//!  GPU 1 s9                           [add ][set ]    [lone]      lone: its launch was never seen
//! ```
//!
//! | id | call, stack | work | where | time in ns |
//! |---|---|---|---|---|
//! | 5 | - (before 10, the first) | early | GPU 0, stream 7 | 10,000 |
//! | 10 | main;decode;cudaLaunchKernel | gemm | GPU 0, stream 7 | 10,000 |
//! | 11 | main;load;cudaMemcpyAsync | copy HtoD, 4,096 bytes | GPU 0, stream 8 | 12,000 |
//! | 12 | main;decode;cudaLaunchKernel | gemm | GPU 0, stream 7 | 10,001 |
//! | 13 | main;worker;cudaLaunchKernel | add | GPU 1, stream 9 | 5,000 |
//! | 14 | main;worker;cudaMemsetAsync | set, 256 bytes | GPU 1, stream 9 | 5,000 |
//! | 15 | main;decode;cudaLaunchKernel | gemm | GPU 0, stream 7 | not collected |
//! | 16 | main;decode;cudaLaunchKernel | - pending | | |
//! | 40 | - (after the first, never seen) | lone | GPU 1, stream 9 | 5,000 |

use std::path::{Path, PathBuf};

use gpuflame_model::record::{
    Activity, ContextFlags, ContextId, CopyDetail, CopyKind, CorrelationId, Detail, DeviceId, Frame,
    GpuContextId, GraphId, GraphNodeId, KernelDetail, LabelId, Launch, MemoryKind, NameId, Nanos, Row,
    SetDetail, StreamId, ThreadId, WindowEdge, Writer,
};

/// Time 0 of the picture at the top of this file, in ns since the epoch. Time 0 is an odd number of nanoseconds, which
/// an `f64` in microseconds cannot represent.
pub const BASE: u64 = 1_760_000_000_123_456_789;

/// Folded stacks of the recording, computed by hand.
pub const FOLDED: &str = "\
[launched before recording];[GPU0_Kernel]early 10000
[no launch stack];[GPU1_Kernel]lone 5000
main;decode;cudaLaunchKernel;[GPU0_Kernel]gemm 20001
main;decode;cudaLaunchKernel;[GPU_Launch_Pending] 0
main;decode;cudaLaunchKernel;[timestamp not collected];[GPU0_Kernel]gemm 0
main;load;cudaMemcpyAsync;[GPU0_Memcpy HtoD] 12000
main;worker;cudaLaunchKernel;[GPU1_Kernel]add 5000
main;worker;cudaMemsetAsync;[GPU1_Memset] 5000
";

/// Writes the recording to a file in `folder`, and returns the file's path.
pub fn recording(folder: &Path) -> PathBuf {
    let path = folder.join("hand.gfr");
    std::fs::write(&path, bytes()).unwrap();
    path
}

/// Returns the bytes of the recording with its activities in reverse order, as if CUPTI had delivered its buffers in
/// another order.
pub fn backwards() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut activities = Vec::new();
    rows(&mut |row| match row {
        Row::Activity(activity) => activities.push(*activity),
        Row::Window { edge: WindowEdge::Close, .. } => {}
        _ => writer.row(row).unwrap(),
    });
    activities.iter().rev().for_each(|activity| writer.row(&Row::Activity(*activity)).unwrap());
    writer.row(&Row::Window { edge: WindowEdge::Close, time: micros(100) }).unwrap();
    writer.finish().unwrap()
}

/// Returns the bytes of the hand-made recording.
pub fn bytes() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    rows(&mut |row| writer.row(row).unwrap());
    writer.finish().unwrap()
}

fn rows(row: &mut dyn FnMut(&Row<'_>)) {
    let labels =
        ["main", "decode", "load", "worker", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"];
    for (id, text) in (0..).zip(labels) {
        row(&Row::Label { id: LabelId(id), text });
    }
    for (id, text) in [(1, "_Z4gemmIfEvPT_"), (2, "add"), (3, "early"), (4, "lone")] {
        row(&Row::Name { id: NameId(id), text });
    }
    row(&Row::Window { edge: WindowEdge::Open, time: micros(5) });
    row(&Row::Thread { id: ThreadId(100), name: "python3 -m x" });
    row(&Row::Thread { id: ThreadId(101), name: "worker" });
    for (id, thread, leaf_first) in
        [(2, 100, [4, 1, 0]), (3, 100, [5, 2, 0]), (4, 101, [4, 3, 0]), (5, 101, [6, 3, 0])]
    {
        let frames = leaf_first.map(|label| Frame::label(LabelId(label)));
        let thread = ThreadId(thread);
        row(&Row::Context { id: ContextId(id), thread, flags: ContextFlags(0), frames: &frames });
    }
    for (id, context, time) in
        [(10, 2, 12), (11, 3, 14), (12, 2, 16), (13, 4, 40), (14, 5, 44), (15, 2, 60), (16, 2, 70)]
    {
        row(&Row::Launch(Launch {
            time: micros(time),
            duration: 3_000,
            correlation: CorrelationId(id),
            within: CorrelationId(id),
            context: ContextId(context),
        }));
    }
    let copy = CopyDetail {
        kind: CopyKind::HTOD,
        from: MemoryKind(1),
        to: MemoryKind(3),
        peers: None,
        bytes: 4096,
        is_async: true,
        copies: 1,
    };
    let set = SetDetail { memory: MemoryKind(3), value: 0, bytes: 256, is_async: true };
    for (id, place, from, nanos, detail) in [
        (5, (0, 7), 0, 10_000, kernel(3)),
        (10, (0, 7), 20, 10_000, kernel(1)),
        (11, (0, 8), 20, 12_000, Detail::Copy(copy)),
        (12, (0, 7), 30, 10_001, kernel(1)),
        (13, (1, 9), 50, 5_000, kernel(2)),
        (14, (1, 9), 55, 5_000, Detail::Set(set)),
        (40, (1, 9), 80, 5_000, kernel(4)),
    ] {
        row(&Row::Activity(activity(id, place, micros(from), Nanos(micros(from).0 + nanos), detail)));
    }
    row(&Row::Activity(activity(15, (0, 7), Nanos(0), Nanos(0), kernel(1))));
    row(&Row::Window { edge: WindowEdge::Close, time: micros(100) });
}

fn micros(micros: u64) -> Nanos {
    Nanos(BASE + micros * 1000)
}

/// Returns the details of a kernel; `name` is the id of the kernel's name.
pub fn kernel(name: u32) -> Detail {
    Detail::Kernel(KernelDetail {
        name: NameId(name),
        grid: [4, 2, 1],
        block: [128, 1, 1],
        registers: 32,
        static_shared: 1024,
        dynamic_shared: 512,
    })
}

/// Returns the activity (kernel, copy or fill) of the launch with this correlation id.
pub fn activity(id: u32, (device, stream): (u32, u32), start: Nanos, end: Nanos, detail: Detail) -> Activity {
    Activity {
        correlation: CorrelationId(id),
        device: DeviceId(device),
        context: GpuContextId(1),
        stream: StreamId(stream),
        channel: None,
        start,
        end,
        graph: GraphId(0),
        graph_node: GraphNodeId(0),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail,
    }
}
