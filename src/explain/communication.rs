//! Recognizes kernels that move data between GPUs, by their names.

/// Lower-case words, at least one of which is in the name of every known communication kernel. The known communication
/// kernels belong to the libraries NCCL, RCCL, NVSHMEM, DeepEP and MSCCL++, and to frameworks such as vLLM, sglang,
/// TensorRT-LLM, PyTorch's symmetric memory, and AMD's quick reduce.
const COMMUNICATION_WORDS: [&str; 22] = [
    "nccl",
    "rccl",
    "nvshmem",
    "rocshmem",
    "deep_ep",
    "internode::",
    "intranode::",
    "internode_ll::",
    "mscclpp",
    "msccl",
    "cross_device_reduce",
    "multimem_",
    "symm_mem",
    "one_shot_all",
    "two_shot_all",
    "quickreduce",
    "quick_reduce",
    "allreduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "userbuffers",
];
/// Words in the names of kernels that only reduce within a block or a warp, and therefore do not communicate. The names
/// of these reducing kernels also contain a word of [`COMMUNICATION_WORDS`].
const WITHIN_GPU_WORDS: [&str; 3] = ["warpallreduce", "blockallreduce", "threadallreduce"];

/// Whether the kernel with this name moves data between GPUs. `name` is the kernel's name as gpuflame displays it.
pub fn is_communication_kernel(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let joined: String = lower.chars().filter(|c| *c != '_').collect();
    let is = |text: &str| COMMUNICATION_WORDS.iter().any(|word| text.contains(word));
    !WITHIN_GPU_WORDS.iter().any(|word| joined.contains(word)) && (is(&lower) || is(&joined))
}
