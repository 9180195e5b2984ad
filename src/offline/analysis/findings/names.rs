//! Derives the activities of the host from the names of frames and calls. Each name is examined once, because a run has
//! millions of host stacks but only a few thousand names.

/// Activities of the host, derived from the name of a stack frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameTraits {
    /// Whether the garbage collector ran.
    pub(super) collects_garbage: bool,
    /// Whether code for the GPU was compiled or loaded.
    pub(super) compiles: bool,
    /// Whether a profiler worked.
    pub(super) profiles: bool,
    /// Whether a library that loads data was working or waiting.
    pub(super) loads_data: bool,
    /// Whether the host waited for another thread. A wait for another thread counts only if it is in one of the
    /// innermost frames of a stack.
    pub(super) waits_for_thread: bool,
}

impl FrameTraits {
    pub(super) fn of(frame: &str) -> Self {
        Self {
            collects_garbage: contains_any(frame, &GARBAGE_NAMES),
            // `codecache.py: __call__` runs code that was compiled earlier.
            compiles: contains_any(frame, &COMPILER_NAMES) && !frame.ends_with("__call__"),
            profiles: contains_any(frame, &PROFILER_NAMES),
            loads_data: is_loader_frame(frame),
            waits_for_thread: is_lock_frame(frame),
        }
    }

    /// Returns the union of the activities in `self` and in `other`, for a stack that contains the frames of both.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            collects_garbage: self.collects_garbage || other.collects_garbage,
            compiles: self.compiles || other.compiles,
            profiles: self.profiles || other.profiles,
            loads_data: self.loads_data || other.loads_data,
            waits_for_thread: self.waits_for_thread || other.waits_for_thread,
        }
    }
}

/// Properties of a call, derived from the name of the call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallTraits {
    /// Whether the call allocates or frees memory, and may wait for the GPU while it does so.
    pub(super) allocates: bool,
    /// Whether the call copies memory and returns only after the copy has ended.
    pub(super) copies_synchronously: bool,
    /// Whether the call fills memory.
    pub(super) fills: bool,
    /// Whether the call launches a kernel or a graph.
    pub(super) is_launch_call: bool,
    /// Whether the call is a copy or fill function of the CUDA runtime or driver. Operators do not count as copy or
    /// fill functions, because an operator may have any name.
    pub(super) moves_memory: bool,
    /// Whether the call copies or fills memory, or is an operator that does so.
    pub(super) copies: bool,
    /// Whether the call waits for the GPU.
    pub(super) waits_for_gpu: bool,
    /// Whether the call launches GPU work, or is an operator that does so.
    pub(super) launches: bool,
}

impl CallTraits {
    pub(super) fn of(call: &str) -> Self {
        let is_copy = call.contains("Memcpy") || call.contains("memcpy");
        let is_of_api = call.starts_with("cu") || call.starts_with("hip");
        let copies_synchronously = is_copy && !call.contains("Async") && is_of_api;
        let (fills, is_launch_call) = (call.contains("Memset"), call.contains("Launch"));
        let moves_memory = is_of_api && (is_copy || fills);
        Self {
            allocates: ALLOCATIONS.iter().any(|start| call.starts_with(start)) && !call.contains("Async"),
            copies_synchronously,
            fills,
            is_launch_call,
            moves_memory,
            copies: moves_memory || call.ends_with("copy_"),
            waits_for_gpu: call.contains("Synchronize") || copies_synchronously,
            launches: is_launch_call || call.contains("::"),
        }
    }
}

/// Whether the name of a function suggests that the function loads data. The name of a loading function begins with a
/// verb such as `load` and contains a noun such as `batch`.
pub(super) fn is_called_loader(function: &str) -> bool {
    const VERBS: [&str; 8] = ["load", "next", "get", "fetch", "read", "prepare", "decode", "preprocess"];
    const THINGS: [&str; 8] = ["batch", "data", "sample", "image", "token", "example", "record", "input"];
    let name = function.rsplit(": ").next().unwrap_or_default();
    let name = name.rsplit("::").next().unwrap_or_default().to_ascii_lowercase();
    let name = name.trim_start_matches('_');
    VERBS.iter().any(|verb| name.starts_with(verb)) && contains_any(name, &THINGS)
}

fn contains_any(text: &str, names: &[&str]) -> bool {
    names.iter().any(|name| text.contains(name))
}

/// Substrings of the names of functions that collect garbage.
const GARBAGE_NAMES: [&str; 6] = [
    "<built-in function collect>",
    "gc.collect",
    "gc_collect",
    "_PyGC_Collect",
    "[garbage collection]",
    "GC_gcollect",
];

/// Substrings of the names of functions and files that compile or load code.
const COMPILER_NAMES: [&str; 22] = [
    "compile_inner",
    "convert_frame",
    "compile_fx",
    "compile_to_module",
    "codecache.py",
    "torch/_inductor/graph.py",
    "triton/compiler",
    "triton/backends",
    "numba/cuda/compiler",
    "cupy/cuda/compiler",
    "nvrtcCompileProgram",
    "nvJitLink",
    "cuLink",
    "cuModuleLoad",
    "cuLibraryLoad",
    "cudaLibraryLoad",
    "hipModuleLoad",
    "hiprtc",
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
    "torch/utils/cpp_extension",
    "XlaCompile",
];

/// Substrings of the names of profiler activities.
const PROFILER_NAMES: [&str; 5] =
    ["Instrumentation", "Activity Buffer Request", "Command Buffer Full", "Buffer Flush", "cuptiActivity"];

/// Substrings of the names of functions that wait for another thread.
const LOCK_NAMES: [&str; 19] = [
    "_thread.lock",
    "std::mutex",
    "absl::Mutex",
    "condition_variable",
    "unique_lock",
    "semaphore",
    "_thread.RLock",
    "'acquire' of '_thread",
    "[waits for another thread]",
    "pthread_mutex_lock",
    "pthread_cond_",
    "pthread_rwlock",
    "__lll_lock_wait",
    "___pthread_cond",
    "futex",
    "take_gil",
    "PyEval_RestoreThread",
    "PyGILState_Ensure",
    "sem_wait",
];

/// Prefixes of the names of calls that allocate or free memory.
const ALLOCATIONS: [&str; 12] = [
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemCreate",
    "cuMemHostAlloc",
    "hipMalloc",
    "hipFree",
    "hipHostMalloc",
];

fn is_lock_frame(frame: &str) -> bool {
    let file = frame.split('(').next().unwrap_or_default();
    let is_file = |name: &str| file.rsplit('/').next() == Some(name);
    let is_module = is_file("threading.py") || is_file("queue.py");
    let starts_thread = frame.contains(": run") || frame.contains("_bootstrap");
    (is_module || contains_any(frame, &LOCK_NAMES)) && !starts_thread
}

fn is_loader_frame(frame: &str) -> bool {
    const LIBRARIES: [&str; 8] = [
        "torch/utils/data",
        "dataloader",
        "DataLoader",
        "tensorflow/python/data",
        "tf_data",
        "webdataset",
        "nvidia/dali",
        "collate",
    ];
    let is_item = frame.contains("__getitem__") && frame.contains("data");
    is_item || contains_any(frame, &LIBRARIES)
}
