/* llm_inference.cu in plain C, so that it builds without nvcc. Both files contain the same program (llm/program.h), but
 * the kernels of this one are only names. This program is for the simulated CUDA stack, which gives each kernel a
 * duration and computes nothing. On a real GPU the launches of this program fail with "invalid device function".
 *
 *     libs=$(tests/gpusim/run --stage)
 *     cc -std=c99 -O2 -g examples/llm_inference.c -o llm -isystem tests/gpusim/include -L $libs -lcudart -lpthread -lm
 *     CUDA_INJECTION64_PATH=$PWD/target/release/libgpuflame.so tests/gpusim/run ./llm --tokens 256
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include "cuda_mini.h"

/* From `__global__ void name(parameters)`, nvcc makes a host function of this name, which launches the kernel, and a
 * mangled name, which tools see. The macro KERNEL makes the same two names. */
KERNEL(rmsnorm_kernel, "_Z14rmsnorm_kernelPfPKfS1_i", (float *out, const float *x, const float *weight, int count),
       &out, &x, &weight, &count)
KERNEL(matmul_kernel, "_Z13matmul_kernelPfPKfS1_ii",
       (float *out, const float *x, const float *matrix, int inputs, int outputs), &out, &x, &matrix, &inputs,
       &outputs)
KERNEL(rope_kernel, "_Z11rope_kernelPfS_i", (float *query, float *key, int position), &query, &key, &position)
KERNEL(attention_scores_kernel, "_Z23attention_scores_kernelPfPKfS1_i",
       (float *scores, const float *query, const float *keys, int length), &scores, &query, &keys, &length)
KERNEL(softmax_kernel, "_Z14softmax_kernelPfii", (float *rows, int length, int stride), &rows, &length, &stride)
KERNEL(attention_values_kernel, "_Z23attention_values_kernelPfPKfS1_i",
       (float *out, const float *scores, const float *values, int length), &out, &scores, &values, &length)
KERNEL(swiglu_kernel, "_Z13swiglu_kernelPfPKfi", (float *gate, const float *up, int count), &gate, &up, &count)
KERNEL(accumulate_kernel, "_Z17accumulate_kernelPfPKfi", (float *x, const float *y, int count), &x, &y, &count)

#include "llm/program.h"
