"""Runs workers that record windows by a flag file, as in vLLM: flag_window.py FOLDER KIND KIND [kill]. Each worker does one kind
of work: train, decode or ddp. The driver creates the file, makes two calls that are recorded, creates the file anew between two
ticks, makes a third call, and removes the file. Worker N writes the times of each call to calls-N.json.

kill: the driver kills worker 0 after the first recorded call."""

import json
import os
import subprocess
import sys
import time


def worker(folder, number, kind):
    from chakra_trace.manager import get_global_manager

    manager = get_global_manager()
    manager.tick_by_flag()  # sets gpuflame up, before the first CUDA call
    import torch

    torch.manual_seed(1)
    call = {"train": training, "decode": decoding, "ddp": shared_training}[kind](folder, number)
    call()
    torch.cuda.synchronize()
    tell("ready")
    calls = []
    while sys.stdin.readline():
        recorded, began = manager.active, time.time_ns()
        call()
        torch.cuda.synchronize()
        calls.append({"recorded": recorded, "began": began, "ended": time.time_ns()})
        manager.tick_by_flag()
        tell("on" if manager.active else "off")
    with open(os.path.join(folder, "calls-%d.json" % number), "w") as file:
        json.dump({"process": os.getpid(), "calls": calls}, file)
    if kind == "ddp":
        torch.distributed.destroy_process_group()
    from model import settle
    settle()


def training(*_):
    import torch
    from model import Gpt
    from train import step

    model, tokens = Gpt().cuda(), torch.randint(0, 512, (4, 33)).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), foreach=True), torch.amp.GradScaler("cuda")
    return lambda: step(model, optimizer, scaler, tokens)


def decoding(*_):
    import torch
    from decode import Decoder
    from model import Gpt

    decoder = Decoder(Gpt().cuda().eval(), 2)

    @torch.inference_mode()
    def generate():
        decoder.decode(4)

    return generate


def shared_training(folder, rank):
    import torch
    import torch.distributed as dist
    from model import Gpt
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="file://" + os.path.join(folder, "meeting"), rank=rank, world_size=2)
    model = DistributedDataParallel(Gpt().cuda(), device_ids=[rank], init_sync=False, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(2, 32, dtype=torch.long, device="cuda")

    def step():
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()

    return step


def driver(folder, kinds, kills):
    flag = os.path.join(folder, "flag")
    environment = dict(os.environ, VLLM_CHAKRA_TRACE_DIR=folder, VLLM_CHAKRA_FLAG=flag)
    environment.pop("GPUFLAME_OUTPUT", None)  # the manager chooses the name of its recording
    command = [sys.executable, os.path.abspath(__file__), "--worker", folder]
    workers = [subprocess.Popen(command + [str(number), kind], env=environment, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True) for number, kind in enumerate(kinds)]
    for one in workers:
        wait_for(one, "ready")
    call(workers, "off")
    touch(flag)
    call(workers, "on")  # opens the window at its end
    call(workers, "on")
    if kills:
        time.sleep(2)  # the recording is written to disk once per second
        workers[0].kill()
        workers.pop(0).wait()
    call(workers, "on")
    os.remove(flag)
    touch(flag)
    call(workers, "on")  # the second window opens
    call(workers, "on")
    os.remove(flag)
    call(workers, "off")
    call(workers, "off")
    for one in workers:
        one.stdin.close()
        if one.wait():
            sys.exit("flag_window: a worker ended with %d" % one.returncode)
    print("%d workers" % len(workers))


def touch(path):
    with open(path, "w"):
        pass


def call(workers, expected):
    for one in workers:
        one.stdin.write("go on\n")
        one.stdin.flush()
    for one in workers:
        wait_for(one, expected)


def wait_for(one, expected):
    line = one.stdout.readline().strip()
    if line != expected:
        sys.exit("flag_window: a worker says %r, not %r" % (line, expected))


def tell(word):
    print(word, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        driver(os.path.abspath(sys.argv[1]), sys.argv[2:4], "kill" in sys.argv)
