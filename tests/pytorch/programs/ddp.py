"""Runs two ranks, each a process with its own GPU. Gradients are averaged while the backward pass continues. The second rank has
more work in each step, so that the first rank waits for it."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from model import Gpt, settle, steps

RANKS = 2
# TRACE=NAME: each rank runs under PyTorch's own profiler, which writes NAME0.json and NAME1.json. LEAVES=1: rank 1 exits
# after its first step without notifying the other rank. PATIENT=1: the other rank is then not killed.


def more_work(x):
    for _ in range(100):
        x = x * 2
    return x


def one_of(rank, meeting):
    # Set as torchrun sets it.
    os.environ["RANK"] = str(rank)
    torch.cuda.set_device(rank)
    if "TRACE" not in os.environ:
        train(rank, meeting)
        return
    torch.cuda.init()
    with torch.profiler.profile() as profiler:
        train(rank, meeting)
    profiler.export_chrome_trace(f"{os.environ['TRACE']}{rank}.json")


def others(rank):
    """Calls the collectives that the training does not use, and two operations in one call."""
    million = torch.empty(1_000_000, device="cuda")
    dist.broadcast(million, 0)
    dist.reduce_scatter_tensor(million[:250_000], million[:500_000])
    dist.all_to_all_single(million[:500_000], million[500_000:])
    both = [dist.P2POp(dist.isend, million[:1000], 1 - rank), dist.P2POp(dist.irecv, million[1000:2000], 1 - rank)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def train(rank, meeting):
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    torch.manual_seed(1)
    # With `init_sync`, the ranks would check on the GPUs that their models have the same shapes. But the simulated GPUs
    # compute nothing.
    model = DistributedDataParallel(Gpt().cuda(), device_ids=[rank], init_sync=False, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.zeros(2, 32, dtype=torch.long, device="cuda")
    for _ in range(steps(4)):
        optimizer.zero_grad()
        loss = model(tokens).square().mean()
        if rank == 1:
            more_work(tokens)
        loss.backward()
        optimizer.step()
        if rank == int(os.environ.get("LEAVES", -1)):
            os._exit(3)
    both = [torch.empty(8, device="cuda") for _ in range(RANKS)]
    dist.all_gather(both, both[rank])
    if rank == 0:
        dist.send(both[0], 1)
    else:
        dist.recv(both[0], 0)
    others(rank)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    settle()
    # One call writes the line. `print` writes it in two parts, so the other rank's line could come in between.
    os.write(1, f"rank {rank} of {RANKS}\n".encode())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.spawn(one_of, args=(os.path.join(folder, "meeting"),), nprocs=RANKS, join=False)
        if "PATIENT" in os.environ:
            for process in ranks.processes:
                process.join()
        # If a rank has failed, SIGTERM ends the other ranks.
        while not ranks.join():
            pass
    print("two ranks")
