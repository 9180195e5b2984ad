"""Prints the properties that PyTorch reads from its GPU through `cudaDeviceProp`, in the layout of the headers with which the
wheel was built. Also runs attention, for which PyTorch chooses a kernel by these properties."""

import torch
from torch.nn import functional as F

import model  # noqa: F401  keeps attention off cuDNN

of = torch.cuda.get_device_properties(0)
for name in (
    "major",
    "minor",
    "multi_processor_count",
    "total_memory",
    "warp_size",
    "max_threads_per_block",
    "max_threads_per_multi_processor",
    "regs_per_multiprocessor",
    "shared_memory_per_block",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "L2_cache_size",
    "memory_bus_width",
    "is_integrated",
    "is_multi_gpu_board",
):
    print(name, int(getattr(of, name)))
print("capability", *torch.cuda.get_device_capability())
print("bfloat16", int(torch.cuda.is_bf16_supported(including_emulation=False)))
q = torch.zeros(1, 4, 64, 32, dtype=torch.bfloat16, device="cuda")
F.scaled_dot_product_attention(q, q, q, is_causal=True)
torch.cuda.synchronize()
