"""Shows Python functions in stacks, without PyTorch. The program launches kernels through NVIDIA's own binding, from
nested functions, a generator, threads and asyncio. The kernels do nothing.

    pip install cuda-bindings
    gpuflame run python examples/python_frames.py                           # on a GPU
    tests/gpusim/run env CUDA_INJECTION64_PATH=$PWD/target/release/libgpuflame.so python examples/python_frames.py    # without one

In python_frames.PID.svg, each kernel is under the functions that launched it. GPUFLAME_PYTHON=lines shows the executed lines, and
`gpuflame top --by line` adds up GPU time by line.
"""

import asyncio
import threading

from cuda.bindings import driver

# On the simulated stack, the number in a kernel's name is its duration in nanoseconds.
KERNELS = ("load_d100", "attention_d500", "mlp_d300", "copy_d200", "decode_d400")
PTX = ".version 7.0\n.target sm_50\n.address_size 64\n" + "".join(
    ".visible .entry %s() { ret; }\n" % kernel for kernel in KERNELS
)


def must(result):
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if len(values) == 1 else values


class Gpu:
    def __init__(self):
        must(driver.cuInit(0))
        self.context = must(driver.cuDevicePrimaryCtxRetain(must(driver.cuDeviceGet(0))))
        must(driver.cuCtxSetCurrent(self.context))
        module = must(driver.cuModuleLoadData(PTX.encode() + b"\0"))
        self.kernels = {name: must(driver.cuModuleGetFunction(module, name.encode())) for name in KERNELS}

    def launch(self, name):
        must(driver.cuLaunchKernel(self.kernels[name], 4, 1, 1, 64, 1, 1, 0, 0, 0, 0))


class Block:
    def __init__(self, gpu):
        self.gpu = gpu

    def forward(self):
        self.attention()
        self.gpu.launch("mlp_d300")

    def attention(self):
        self.gpu.launch("attention_d500")


def batches(gpu, count):
    """Launches in a generator. The generator's frame is called from the frame of the function that iterates over the
    generator."""
    for batch in range(count):
        gpu.launch("load_d100")
        yield batch


def step(blocks):
    for block in blocks:
        block.forward()


def train(gpu):
    blocks = [Block(gpu) for _ in range(3)]
    for _ in batches(gpu, 10):
        step(blocks)


def prefetch(gpu):
    """Launches in a thread. Each thread has its own stack."""
    must(driver.cuCtxSetCurrent(gpu.context))
    for _ in range(20):
        gpu.launch("copy_d200")


async def decode(gpu):
    gpu.launch("decode_d400")
    await asyncio.sleep(0)


async def answer(gpu, tokens):
    for _ in range(tokens):
        await decode(gpu)


async def serve(gpu):
    """Launches in asyncio tasks. The tasks appear under the event loop that runs them, not under the function that
    created them."""
    await asyncio.gather(*(answer(gpu, tokens) for tokens in (3, 5, 8)))


def main():
    gpu = Gpu()
    threads = [threading.Thread(target=prefetch, args=(gpu,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    train(gpu)
    asyncio.run(serve(gpu))
    for thread in threads:
        thread.join()
    must(driver.cuCtxSynchronize())


main()
