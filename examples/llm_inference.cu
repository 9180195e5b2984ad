// A transformer's decode loop in CUDA, small enough to read. This file contains the kernels. llm/program.h contains the
// program that launches them. The kernels are written to be correct and simple, not fast.
//
//     examples/build-cuda.sh
//     CUDA_INJECTION64_PATH=$PWD/target/release/libgpuflame.so target/examples-cuda/llm_inference --tokens 256
//
// --check compares the probabilities of every token with those that the CPU computes (llm/reference.h).

#include "llm/model.h"

// Combines the values of all threads in the block (sum or maximum), and returns the result to every thread. At most
// 1,024 threads.
template <typename Combine>
__device__ float across_block(float value, float neutral, Combine combine)
{
    __shared__ float of_warp[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    for (int offset = 16; offset > 0; offset /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    __syncthreads(); // other threads may still read of_warp from the previous call of this function
    if (lane == 0)
        of_warp[warp] = value;
    __syncthreads();
    value = lane < warps ? of_warp[lane] : neutral;
    for (int offset = 16; offset > 0; offset /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

struct Maximum {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Computes out = x / rms(x) * weight, with one block.
__global__ void rmsnorm_kernel(float *out, const float *x, const float *weight, int count)
{
    float squares = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        squares += x[i] * x[i];
    const float scale = rsqrtf(across_block(squares, 0, Sum()) / count + NORM_EPSILON);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        out[i] = x[i] * scale * weight[i];
}

// Computes out = matrix · x, with one warp per row. The lanes of a warp read neighbouring floats at the same time.
__global__ void matmul_kernel(float *out, const float *x, const float *matrix, int inputs, int outputs)
{
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= outputs)
        return;
    float sum = 0;
    for (int i = lane; i < inputs; i += 32)
        sum += matrix[(size_t)row * inputs + i] * x[i];
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0)
        out[row] = sum;
}

// Rotates each pair of query and key by an angle that grows with the position. One thread rotates each pair.
__global__ void rope_kernel(float *query, float *key, int position)
{
    const int i = 2 * (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= DIM)
        return;
    float sine, cosine;
    sincosf(position * powf(ROPE_BASE, -(float)(i % HEAD_DIM) / HEAD_DIM), &sine, &cosine);
    float *const rotated[2] = {query, key};
    for (float *x : rotated) {
        const float a = x[i], b = x[i + 1];
        x[i] = a * cosine - b * sine;
        x[i + 1] = a * sine + b * cosine;
    }
}

// Computes scores[head][t] = query · key of slot t, with one block per head.
__global__ void attention_scores_kernel(float *scores, const float *query, const float *keys, int length)
{
    const int head = blockIdx.x * HEAD_DIM;
    for (int t = threadIdx.x; t < length; t += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < HEAD_DIM; i++)
            sum += query[head + i] * keys[(size_t)t * DIM + head + i];
        scores[blockIdx.x * CONTEXT + t] = sum * rsqrtf(HEAD_DIM);
    }
}

// Converts each row to probabilities, in place, with one block per row.
__global__ void softmax_kernel(float *rows, int length, int stride)
{
    float *row = rows + (size_t)blockIdx.x * stride;
    float highest = -INFINITY;
    for (int i = threadIdx.x; i < length; i += blockDim.x)
        highest = fmaxf(highest, row[i]);
    highest = across_block(highest, -INFINITY, Maximum());
    float sum = 0;
    for (int i = threadIdx.x; i < length; i += blockDim.x)
        sum += row[i] = expf(row[i] - highest);
    sum = across_block(sum, 0, Sum());
    for (int i = threadIdx.x; i < length; i += blockDim.x)
        row[i] /= sum;
}

// Computes out = the sum of the values in all slots, weighted by the scores. Each head has one block, and each float of
// a head has one thread.
__global__ void attention_values_kernel(float *out, const float *scores, const float *values, int length)
{
    const int i = blockIdx.x * HEAD_DIM + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < length; t++)
        sum += scores[blockIdx.x * CONTEXT + t] * values[(size_t)t * DIM + i];
    out[i] = sum;
}

// gate = silu(gate) * up
__global__ void swiglu_kernel(float *gate, const float *up, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

// Adds the result of a block to the residual stream: x += y.
__global__ void accumulate_kernel(float *x, const float *y, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        x[i] += y[i];
}

#define LAUNCH(kernel, blocks, threads, stream) kernel<<<blocks, threads, 0, stream>>>

#include "llm/program.h"
