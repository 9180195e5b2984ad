"""Runs a small transformer in plain PyTorch. The model's random weights have a fixed seed, so every run has the same
kernels.

    model.py --mode eager|graph|compile [--kineto TABLE] [--iterations N] [--device cuda]

With --kineto the whole run is under torch.profiler, and the counts and times per kernel are written to TABLE (see
kineto_table.py). Each iteration calls `attend` and `feed`. In mode graph both functions are captured once and replayed.
Exit code 75: this PyTorch cannot run the program."""

import argparse
import sys
import tempfile

import kineto_table

try:
    import torch
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(75)

WIDTH, HEADS, LENGTH, LAYERS = 512, 8, 64, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query_key_value = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        q, k, v = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(1, LENGTH, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 8, dim=-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(1, LENGTH, WIDTH))

    def feed(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return self.feed(self.attend(x))


def make(device):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(Block() for _ in range(LAYERS))).to(device).eval()
    return model, torch.randn(1, LENGTH, WIDTH, device=device)


def capture(model, x):
    """Captures the model's kernels as one graph, and returns a function that replays the graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


@torch.no_grad()
def work(options):
    model, x = make(options.device)
    if options.mode == "compile":
        model = torch.compile(model)
    step = capture(model, x) if options.mode == "graph" else lambda: model(x)
    for _ in range(options.iterations):
        step()
    if options.device == "cuda":
        torch.cuda.synchronize()


def profiled(options):
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if options.device == "cuda" else [])
    with profile(activities=activities) as profiler:
        work(options)
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(folder + "/trace.json")
        kineto_table.write(folder + "/trace.json", options.kineto)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["eager", "graph", "compile"], default="eager")
    parser.add_argument("--kineto")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device == "cuda":
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:  # no driver, an old driver, or a CPU build
            print("PyTorch sees no GPU:", str(error).partition("\n")[0], file=sys.stderr)
            sys.exit(75)
    profiled(options) if options.kineto else work(options)


if __name__ == "__main__":
    main()
