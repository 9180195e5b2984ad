"""Measures how often per second a transformer's decode step runs, eager and as a CUDA graph, with one profiler or none.

    transformer.py --with nothing|profiler|stacks [--seconds S] [--device cuda]
    {"architecture": "..", "parameters": N}     {"eager_per_s": ..}     {"graph_per_s": ..} or {"graph_error": ".."}

The program prints each line as soon as its value is known. After a graph_error, the same lines follow for the kit's own
transformer blocks. The architecture is Hugging Face's Llama with random weights if `transformers` is installed;
otherwise it is the transformer blocks in model.py. A step has one token and no KV cache, so it is as launch-bound as
decoding. The profiler's work before and after its window is not timed. At most MOST steps are timed, because
torch.profiler with with_stack needs long to process its data."""

import argparse
import contextlib
import json
import os
import sys
import time

try:
    import torch
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(75)

MOST = 400


def llama(device):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
                         num_key_value_heads=16, vocab_size=32000, max_position_embeddings=256)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()
    tokens = torch.ones(1, 1, dtype=torch.long, device=device)
    return "LlamaForCausalLM, random weights", model, lambda: model(input_ids=tokens, use_cache=False)


def plain(device):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import model as kit

    model, x = kit.make(device)
    return "the kit's own blocks", model, lambda: model(x)


def profiler(kind, device):
    if kind == "nothing":
        return contextlib.nullcontext()
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    return profile(activities=activities, with_stack=kind == "stacks")


def per_second(step, options):
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    for _ in range(5):
        step()
    wait()
    with profiler(options.with_, options.device):
        step()
        wait()
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < options.seconds and (done < MOST or options.with_ == "nothing"):
            for _ in range(10):
                step()
            wait()
            done += 10
        return done / (time.perf_counter() - begin) if done else 0.0


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--with", dest="with_", choices=["nothing", "profiler", "stacks"], default="nothing")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device == "cuda":
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:  # no driver, an old driver, or a CPU build
            print("PyTorch sees no GPU:", str(error).partition("\n")[0], file=sys.stderr)
            sys.exit(75)
    try:
        name, model, step = llama(options.device)
    except Exception as error:  # transformers is missing or has another version
        print(f"transformers: {error}"[:300], file=sys.stderr)
        name, model, step = plain(options.device)
    say(architecture=name, parameters=sum(p.numel() for p in model.parameters()))
    say(eager_per_s=per_second(step, options))
    if options.device == "cuda":
        try:
            say(graph_per_s=per_second(captured(step), options))
        except RuntimeError as error:  # it cannot be captured, but the kit's own blocks can
            say(graph_error=str(error)[:300])
            _, _, step = plain(options.device)
            say(eager_own_blocks_per_s=per_second(step, options))
            say(graph_own_blocks_per_s=per_second(captured(step), options))


def say(**line):
    print(json.dumps(line), flush=True)


def captured(step):
    """Captures the step as a CUDA graph. As PyTorch's documentation recommends, a few steps run on a side stream
    first."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


if __name__ == "__main__":
    main()
