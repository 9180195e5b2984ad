"""Calls the driver API through NVIDIA's own Python binding: launches two kernels by cuLaunchKernel and
cuLaunchKernelEx, and makes copies and fills. The binding was not written for the simulated CUDA stack."""

from cuda.bindings import driver


def must(result):
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


def launch(kernel, stream):
    must(driver.cuLaunchKernel(kernel, 4, 2, 1, 64, 1, 1, 0, stream, 0, 0))


def launch_ex(kernel, stream):
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 8, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream = stream
    must(driver.cuLaunchKernelEx(config, kernel, 0, 0))


def main():
    must(driver.cuInit(0))
    device = must(driver.cuDeviceGet(0))
    context = must(driver.cuDevicePrimaryCtxRetain(device))
    must(driver.cuCtxSetCurrent(context))
    module = must(driver.cuModuleLoadData(b".version 8.0\0"))
    gemm = must(driver.cuModuleGetFunction(module, b"_ZN3net9gemm_d777Ev"))
    relu = must(driver.cuModuleGetFunction(module, b"relu_d301"))
    stream = must(driver.cuStreamCreate(0))
    memory = must(driver.cuMemAlloc(4096))
    host = bytearray(4096)
    for i in range(200):
        launch(gemm, stream)
        launch_ex(relu, stream)
        if i % 10 == 0:
            must(driver.cuMemcpyHtoDAsync(memory, bytes(host), 4096, stream))
            must(driver.cuMemsetD8Async(memory, 0, 4096, stream))
    must(driver.cuStreamSynchronize(stream))
    must(driver.cuMemcpyDtoH(host, memory, 4096))


main()
