"""Training loops with one planted fault each: faults.py loader | item | collector | tiny | pageable | warmup | straggler.

The line that causes the fault ends in a comment with the fault's name. STEPS (40) is the number of steps."""

import gc
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from model import settle, steps


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.sum()


def train_step(net, optimizer, batch):
    optimizer.zero_grad()
    loss = net(batch)
    loss.backward()
    optimizer.step()
    return loss


def decode(row):
    total = 0
    for byte in range(40_000):
        total += byte * row  # loader
    return total


def load_batch(batch):
    for row in range(16):
        decode(row)
    return batch.cuda(non_blocking=True)


def metrics(history):
    history.append(sum(history[-10:]) / 10 + 1)
    gc.collect()  # collector


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self):
        self.me = self


def augment(x):
    for _ in range(400):
        x = x + 1  # tiny
    return x


def report(loss):
    return loss.item()  # item


def prepare():
    table = 0
    for entry in range(30_000_000):
        table += entry  # warmup
    return table


def upload(images):
    return images.cuda()  # pageable


def validate():
    # One line, because the samples of a loop are divided between its lines.
    return sum(range(4_000_000))  # straggler


def train(fault, rank=0):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    pinned = torch.ones(64, 256).pin_memory()
    images = torch.ones(64, 3, 224, 224)
    batch = pinned.cuda()
    history = [1.0]
    kept = [Cycle() for _ in range(100_000)] if fault == "collector" else []
    for number in range(steps(40)):
        torch.cuda.nvtx.range_push("step")
        if fault == "loader":
            batch = load_batch(pinned)
        if fault == "pageable":
            upload(images)
        if fault == "tiny":
            augment(batch)
        if fault == "warmup" and number == 0:
            prepare()
        loss = train_step(net, optimizer, batch)
        if fault == "item":
            report(loss)
        if fault == "collector":
            metrics(history)
        if fault == "straggler":
            if rank == 1:
                validate()
            dist.all_reduce(net.layers[0].weight.grad)
        torch.cuda.nvtx.range_pop()
    settle()
    del kept


def one_of(rank, meeting):
    os.environ["RANK"] = str(rank)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=2)
    train("straggler", rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "straggler":
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(one_of, args=(os.path.join(folder, "meeting"),), nprocs=2)
    else:
        train(sys.argv[1])
