//! JSON objects in the lines of `gpuflame instructions --format jsonl`.

use schemars::JsonSchema;

/// First line of `gpuflame instructions --format jsonl`, with facts about the input file.
#[derive(JsonSchema)]
#[allow(dead_code)]
pub(crate) struct InstructionsHead {
    /// Version of the format of JSON Lines output.
    #[schemars(range(min = 1, max = 1))]
    schema: u32,
    /// Path of the input file.
    file: String,
    /// Clock to which `zero_ns` refers. `unix` counts from 1970; `file` is the clock of the input file.
    clock: String,
    /// Start of the window in ns, on the clock that `clock` names. All other times count from this start.
    zero_ns: u64,
    /// Length of the window from the first start to the last end, in ns.
    window_ns: u64,
    /// Order of the lines: `issue` (by the time of the host's call) or `start` (by the start on the GPU).
    order: String,
    /// Number of instructions in the file, including those that are not shown.
    instructions: u64,
}

/// Any further line of `gpuflame instructions --format jsonl`, which describes an instruction. Keys whose values the
/// input does not contain are absent.
#[derive(JsonSchema)]
#[allow(dead_code)]
pub(crate) struct Instruction {
    /// Number of the instruction in order of issue, counted from 0. The number does not depend on filters.
    number: u32,
    /// Kind of instruction: `kernel`, `copy`, `fill`, `host_function`, `graph`, `launch` (a launch whose work is not in
    /// the file), `record`, `wait` or `synchronize`.
    kind: String,
    /// Name of the kernel.
    name: Option<String>,
    /// API function that issued the instruction.
    call: Option<String>,
    /// Id of the thread that called the API function.
    thread: Option<u32>,
    /// Start of the API call in ns since the start of the window; negative if the call began before the window.
    called_ns: Option<i64>,
    /// Duration of the API call, in ns.
    call_duration_ns: Option<u64>,
    /// Correlation id, which the API call, its GPU work and the records of its waits share.
    correlation: Option<u64>,
    /// Reason why the call that launched GPU work is unknown: `launched_before_recording`, `device_graph` or
    /// `no_launch_stack`.
    missing_call: Option<String>,
    /// Index of the GPU.
    device: Option<u32>,
    /// Id of the CUDA context.
    context: Option<u32>,
    /// Id of the stream that runs the instruction, or for which the host waits.
    stream: Option<u32>,
    /// Ids of the streams on which the nodes of a CUDA graph ran, if there are several.
    streams: Option<Vec<u32>>,
    /// Start of the GPU work in ns since the start of the window. For a CUDA graph: start of its first node.
    start_ns: Option<i64>,
    /// End of the GPU work in ns since the start of the window. For a CUDA graph: end of its last node.
    end_ns: Option<i64>,
    /// Number of blocks of a kernel in x, y and z.
    grid: Option<Vec<u32>>,
    /// Number of threads per block of a kernel in x, y and z.
    block: Option<Vec<u32>>,
    /// Shared memory per block of a kernel, in bytes.
    shared_bytes: Option<u64>,
    /// Number of registers per thread of a kernel.
    registers: Option<u32>,
    /// Direction of a copy: `HtoD`, `DtoH`, `DtoD`, `PtoP` and so on.
    direction: Option<String>,
    /// Kind of memory that a copy reads: `pageable`, `pinned`, `device`, `managed` and so on.
    from: Option<String>,
    /// Kind of memory that a copy or fill writes.
    to: Option<String>,
    /// Index of the GPU from which a copy between two GPUs reads.
    from_device: Option<u32>,
    /// Index of the GPU to which a copy between two GPUs writes.
    to_device: Option<u32>,
    /// Number of bytes that a copy or fill writes.
    bytes: Option<u64>,
    /// Value that a fill writes.
    value: Option<u32>,
    /// Whether the API call of a copy or fill may return before the copy or fill has finished. Only recordings of
    /// gpuflame contain this information.
    is_async: Option<bool>,
    /// Id of the CUDA event that is recorded, or for which a stream or the host waits.
    event: Option<u32>,
    /// Object for which the host waits: `event`, `stream` or `context`.
    waits_for: Option<String>,
    /// Return code of a call that should make the host wait, if the code is not 0. If the code is not 0, the call did
    /// not wait.
    result: Option<u32>,
    /// Id of the CUDA graph.
    graph: Option<u64>,
    /// Id of the CUDA graph's node.
    node: Option<u64>,
    /// Number of nodes of a CUDA graph that ran. Each node of a CUDA graph is also an instruction.
    nodes: Option<u32>,
    /// `number` of the instruction that launched the CUDA graph of this node.
    launch: Option<u32>,
    /// True for GPU work that the GPU itself launched.
    device_launched: Option<bool>,
    /// Whether a kernel that was launched with attributes may begin before the previous kernel on its stream has ended.
    programmatic: Option<bool>,
    /// Instructions that must finish before this instruction begins.
    after: Option<Vec<After>>,
}

/// An instruction that must finish before another instruction begins.
#[derive(JsonSchema)]
#[allow(dead_code)]
pub(crate) struct After {
    /// `number` of the instruction that must finish first.
    number: u32,
    /// Reason for the dependency: `stream`, `event`, `context`, `graph`, `graph_edge` or `same_graph`.
    reason: String,
}

/// Names of the objects that are lines of JSON Lines output instead of rows of tables.
pub(crate) const LINES: [&str; 3] = ["InstructionsHead", "Instruction", "After"];
