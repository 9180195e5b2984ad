//! Checks how much memory a flame graph and a checkpoint need. A custom allocator counts the memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gpuflame_explain::graphs::Graphs;
use gpuflame_explain::{Explain, Options};
use gpuflame_model::record::testing::{kernel, launch};
use gpuflame_model::record::{
    Chunk, ContextFlags, ContextId, Frame, GraphId, GraphNodeId, ModuleEpoch, Row, SumsWriter, ThreadId,
};

thread_local! {
    /// Number of bytes that this thread has allocated and not freed. The count is per thread because the test harness
    /// allocates on other threads.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// Maximum of `HELD` since `PEAK` was last set.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system allocator, which also counts the allocated bytes.
struct Counting;

// SAFETY: SAFETY: `System` gets all calls unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(HELD.get()));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn held() -> isize {
    HELD.get()
}

const NODES: u64 = 1_000_000;

#[test]
fn a_live_graph_node_costs_at_most_16_bytes_and_instantiations_nothing() {
    let before = held();
    let mut graphs = Graphs::default();
    for node in 0..NODES {
        let context = ContextId(2 + node as u32 % 999);
        graphs.push(&Row::GraphNode { graph: GraphId(1), node: GraphNodeId(node), context });
    }
    let made = held() - before;
    assert!(made <= 16 * NODES as isize, "{} bytes a node", made as f64 / NODES as f64);
    let mut next = NODES;
    for copy in 2..12 {
        for original in 0..NODES {
            let (node, original) = (GraphNodeId(next), GraphNodeId(original));
            graphs.push(&Row::GraphClone { graph: GraphId(copy), node, original });
            next += 1;
        }
    }
    let copied = held() - before;
    eprintln!(
        "  {NODES} nodes: {:.2} bytes each; with ten instantiations {:.2}",
        made as f64 / NODES as f64,
        copied as f64 / NODES as f64
    );
    assert!(copied <= 16 * NODES as isize, "{} bytes a node", copied as f64 / NODES as f64);
    let told = graphs.heap_bytes() as isize;
    assert!((told - copied).abs() < 4096, "{told} of {copied} bytes are told");
    drop(graphs);
    assert!(held() - before < 4096, "{} bytes are left", held() - before);
}

/// Each tested number of stacks is an eighth larger than the previous number, because memory use jumps when a table
/// doubles in size.
#[test]
fn a_checkpoint_needs_at_most_the_memory_that_is_required_for_it() {
    let mut options = vec![Options { merge_threads: true, ..Options::default() }];
    options.push(Options { by_stream: true, has_squares: true, ..Options::default() });
    let mut wrong = Vec::new();
    for options in options {
        let mut count = 500;
        while count < 60_000 {
            let mut explain = Explain::new(options);
            for id in 2..2 + count {
                let frames = [Frame::native(0x1000 + u64::from(id), ModuleEpoch(0))];
                let (id, thread, flags) = (ContextId(id), ThreadId(1), ContextFlags(0));
                explain.push(&Row::Context { id, thread, flags, frames: &frames }, &mut ());
                explain.push(&Row::Launch(launch(id.0, id.0)), &mut ());
                // The kernels begin 30 us apart and take 0.9 us, so the GPU is idle before each kernel.
                let start = 1_000_000 + 30_000 * u64::from(id.0);
                explain.push(&Row::Activity(kernel(id.0, start, start + 900)), &mut ());
            }
            let (before, required) = (held(), explain.checkpoint_bytes() as isize);
            PEAK.set(before);
            let (mut written, mut chunk) = (SumsWriter::default(), Chunk::default());
            explain.write_sums(&[], &mut written, &mut chunk);
            let used = PEAK.get() - before;
            let line = format!("{count} stacks use {used} bytes of {required}");
            eprintln!("{line}, {} each of {}", used / count as isize, required / count as isize);
            if !(used..=2 * used).contains(&required) {
                wrong.push(line);
            }
            count += count / 8;
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
