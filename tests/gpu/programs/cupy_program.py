"""Runs CuPy with this program's own kernels, whose launches are counted below. Exit code 75: there is no CuPy or no
GPU.

EXPECT kernel kit_scale 150 cuLaunchKernel
EXPECT kernel kit_shift 90 cuLaunchKernel
"""

import sys

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # CuPy raises its own errors if there is no driver
    print(error, file=sys.stderr)
    sys.exit(75)

scale = cupy.RawKernel('extern "C" __global__ void kit_scale(float *x) { x[threadIdx.x] *= 1.5f; }', "kit_scale")
shift = cupy.RawKernel('extern "C" __global__ void kit_shift(float *x) { x[threadIdx.x] += 1.0f; }', "kit_shift")
x = cupy.zeros(256, dtype=cupy.float32)
for i in range(150):
    scale((1,), (256,), (x,))
    if i < 90:
        shift((1,), (256,), (x,))
cupy.cuda.Device().synchronize()
