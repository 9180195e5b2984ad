/* graph_decode.cu in plain C, so that it builds without nvcc. graph_decode.c and graph_decode.cu contain the same
 * program (graph/program.h), but the kernels in graph_decode.c are only names. This program is for the simulated CUDA
 * stack, which gives each kernel a duration and computes nothing.
 *
 *     libs=$(tests/gpusim/run --stage)
 *     cc -std=c99 -O2 -g examples/graph_decode.c -o decode -isystem tests/gpusim/include -L $libs -lcudart
 *     CUDA_INJECTION64_PATH=$PWD/target/release/libgpuflame.so tests/gpusim/run ./decode
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "cuda_mini.h"

#define STEP_OF_TWO(name, mangled) KERNEL(name, mangled, (float *out, const float *in), &out, &in)

STEP_OF_TWO(norm_kernel, "_Z11norm_kernelPfPKf")
STEP_OF_TWO(qkv_kernel, "_Z10qkv_kernelPfPKf")
STEP_OF_TWO(scores_kernel, "_Z13scores_kernelPfPKf")
STEP_OF_TWO(softmax_kernel, "_Z14softmax_kernelPfPKf")
STEP_OF_TWO(values_kernel, "_Z13values_kernelPfPKf")
STEP_OF_TWO(up_kernel, "_Z9up_kernelPfPKf")
STEP_OF_TWO(down_kernel, "_Z11down_kernelPfPKf")

#include "graph/program.h"
