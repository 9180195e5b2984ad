//! Memory cost of a graph, by the allocator's own count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gpuflame_explain::graphs::Graphs;
use gpuflame_model::record::{ContextId, GraphId, GraphNodeId, Row};

thread_local! {
    /// Bytes that this thread holds. The count is per thread because the test harness allocates on other threads.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with a counter.
struct Counting;

// SAFETY: all calls are passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
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
