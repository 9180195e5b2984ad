//! Recognizes kernels that move data between GPUs. Only their names identify them.

/// Lower-case parts of the names of communication kernels. The kernels are from NCCL and RCCL, NVSHMEM, DeepEP,
/// MSCCL++, and from frameworks: vLLM, sglang, TensorRT-LLM, PyTorch's symmetric memory, AMD's quick reduce.
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
/// Names that contain a communication word although the kernel only reduces within a block or a warp.
const WITHIN_GPU_WORDS: [&str; 3] = ["warpallreduce", "blockallreduce", "threadallreduce"];

/// Whether a kernel with this name, as displayed, moves data between GPUs.
pub fn is_communication_kernel(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let joined: String = lower.chars().filter(|c| *c != '_').collect();
    let is = |text: &str| COMMUNICATION_WORDS.iter().any(|word| text.contains(word));
    !WITHIN_GPU_WORDS.iter().any(|word| joined.contains(word)) && (is(&lower) || is(&joined))
}
