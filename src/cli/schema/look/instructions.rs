//! Lines of `gpuflame instructions --format jsonl`.

use schemars::JsonSchema;

/// First line of `gpuflame instructions --format jsonl`: facts about the file.
#[derive(JsonSchema)]
#[allow(dead_code)]
pub(crate) struct InstructionsHead {
    /// Version of this description.
    #[schemars(range(min = 1, max = 1))]
    schema: u32,
    /// Path of the input.
    file: String,
    /// Clock of `zero_ns`: `unix` counts from 1970, `file` is the clock of the file.
    clock: String,
    /// Start of the window on the clock, in ns. Other times count from it.
    zero_ns: u64,
    /// Length of the window, in ns.
    window_ns: u64,
    /// Order of the lines: `issue` or `start`.
    order: String,
    /// Number of instructions in the file, including those that are not shown.
    instructions: u64,
}

/// Any other line of `gpuflame instructions --format jsonl`: an instruction. Keys that the data does not have are absent.
#[derive(JsonSchema)]
#[allow(dead_code)]
pub(crate) struct Instruction {
    /// Number in order of issue, from 0. It does not depend on filters.
    number: u32,
    /// `kernel`, `copy`, `fill`, `host_function`, `graph`, `launch` (a launch whose work is not in the file), `record`, `wait` or
    /// `synchronize`.
    kind: String,
    /// Name of the kernel.
    name: Option<String>,
    /// API function that issued the instruction.
    call: Option<String>,
    /// Id of the thread that called it.
    thread: Option<u32>,
    /// Start of the call; negative before the window.
    called_ns: Option<i64>,
    /// Duration of the call.
    call_duration_ns: Option<u64>,
    /// Id that links the call, the work and the records of waits.
    correlation: Option<u64>,
    /// Why the call of GPU work is unknown: `launched_before_recording`, `device_graph` or `no_launch_stack`.
    missing_call: Option<String>,
    /// Number of the GPU.
    device: Option<u32>,
    /// Number of the GPU context.
    context: Option<u32>,
    /// Stream that runs the instruction, or that the host waits for.
    stream: Option<u32>,
    /// Streams on which the nodes of a graph ran, if there are several.
    streams: Option<Vec<u32>>,
    /// Start of the GPU work; of a graph's first node for a graph.
    start_ns: Option<i64>,
    /// End of the GPU work; of a graph's last node for a graph.
    end_ns: Option<i64>,
    /// Number of blocks in x, y and z.
    grid: Option<Vec<u32>>,
    /// Number of threads per block in x, y and z.
    block: Option<Vec<u32>>,
    /// Shared memory per block, in bytes.
    shared_bytes: Option<u64>,
    /// Registers per thread.
    registers: Option<u32>,
    /// Direction of a copy: `HtoD`, `DtoH`, `DtoD`, `PtoP` and so on.
    direction: Option<String>,
    /// Kind of memory that a copy reads: `pageable`, `pinned`, `device`, `managed` and so on.
    from: Option<String>,
    /// Kind of memory that a copy or fill writes.
    to: Option<String>,
    /// GPU that a copy between two GPUs reads.
    from_device: Option<u32>,
    /// GPU that a copy between two GPUs writes.
    to_device: Option<u32>,
    /// Bytes copied or filled.
    bytes: Option<u64>,
    /// Value that a fill writes.
    value: Option<u32>,
    /// Whether the call of a copy or fill may return before the work is done. Only recordings tell.
    is_async: Option<bool>,
    /// Number of the event that is recorded or waited for.
    event: Option<u32>,
    /// Target of the host's wait: `event`, `stream` or `context`.
    waits_for: Option<String>,
    /// Return code of a wait of the host, if it is not 0: the call did not wait.
    result: Option<u32>,
    /// Id of the graph.
    graph: Option<u64>,
    /// Id of the graph's node.
    node: Option<u64>,
    /// Number of nodes that ran. Each is an instruction.
    nodes: Option<u32>,
    /// Number of the instruction that launched the graph of this node.
    launch: Option<u32>,
    /// True for work that the GPU itself launched.
    device_launched: Option<bool>,
    /// Whether a kernel launched with attributes may begin before the kernel before it on its stream ends.
    programmatic: Option<bool>,
    /// Instructions that must be done first.
    after: Option<Vec<After>>,
}

/// An instruction that must be done before another one.
#[derive(JsonSchema)]
#[allow(dead_code)]
pub(crate) struct After {
    /// Number of the instruction.
    number: u32,
    /// `stream`, `event`, `context`, `graph`, `graph_edge` or `same_graph`.
    reason: String,
}

/// Objects of JSON Lines, which have no tables.
pub(crate) const LINES: [&str; 3] = ["InstructionsHead", "Instruction", "After"];
