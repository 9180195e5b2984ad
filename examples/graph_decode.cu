// A decode loop that is captured into a CUDA graph, which is launched for every token. graph/program.h contains the
// loop. The kernels compute nothing meaningful, but for each token they read and write about as much data as real
// kernels with these names.
//
//     examples/build-cuda.sh
//     CUDA_INJECTION64_PATH=$PWD/target/release/libgpuflame.so target/examples-cuda/graph_decode

#include <cuda_runtime.h>

#define STEP_OF_TWO(name, value)                                                       \
    __global__ void name(float *out, const float *in)                                  \
    {                                                                                  \
        const int at = blockIdx.x * blockDim.x + threadIdx.x;                          \
        const float x = in[at];                                                        \
        out[at] = value;                                                               \
    }

STEP_OF_TWO(norm_kernel, x * rsqrtf(x * x + 1e-5f))
STEP_OF_TWO(qkv_kernel, 3.0f * x)
STEP_OF_TWO(scores_kernel, x * 0.125f)
STEP_OF_TWO(softmax_kernel, 1.0f / (1.0f + __expf(-x)))
STEP_OF_TWO(values_kernel, x + 1.0f)
STEP_OF_TWO(up_kernel, x * x)
STEP_OF_TWO(down_kernel, 0.5f * x)

#define LAUNCH(kernel, blocks, threads, stream) kernel<<<blocks, threads, 0, stream>>>

#include "graph/program.h"
