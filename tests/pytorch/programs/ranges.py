"""Uses NVTX ranges: the program's own ranges, and a range for every operator."""

import torch
from torch.cuda import nvtx

from model import Gpt, site


@torch.inference_mode()
def main():
    torch.manual_seed(1)
    model = Gpt(layers=2).cuda().eval()
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")
    for step in range(4):
        with nvtx.range("prefill"), site("prefill"):
            model(tokens)
        nvtx.range_push("decode")
        with site("decode"):
            model(tokens[:, -1:])
        nvtx.range_pop()
    with torch.autograd.profiler.emit_nvtx(), site("operators"):
        for step in range(4):
            model(tokens)
    torch.cuda.synchronize()
    print("done")


main()
