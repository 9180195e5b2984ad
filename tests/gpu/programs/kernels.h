/* Building blocks of the kit's CUDA programs. Two compilers can compile each program. With nvcc, it runs on a GPU, and
 * a kernel NAME_d20000 keeps one thread busy for 20,000 ns. With gcc, it is compiled as C for the simulated stack,
 * which reads this duration from the kernel's name. Therefore the durations are known on both stacks. The launches are
 * known too, because lines
 *     EXPECT kernel NAME COUNT main;function;..        (or copy HtoD, set memset)
 * in a program's source state the number of these launches, and the functions above each launch, in this order. */
#ifndef KIT_KERNELS_H
#define KIT_KERNELS_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
__device__ static void busy(long long nanos)
{
    unsigned long long begin, now;
    if (nanos <= 0)
        return;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < (unsigned long long)nanos);
}
#define TIMED(name) extern "C" __global__ void name(long long nanos) { busy(nanos); }
#define LAUNCH(name, blocks, threads, stream) name<<<blocks, threads, 0, stream>>>
#else
#include "cuda_mini.h"
/* Since CUDA 12.4, nvcc generates host stubs like this one, which launch through __cudaLaunchKernel. Newer CUPTI
 * versions report this call under its own callback id. */
cudaError_t __cudaGetKernel(void **kernel, const void *host_function);
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
#define TIMED(name)                                                                                                \
    __attribute__((noinline)) static void name(long long nanos)                                                   \
    {                                                                                                              \
        static void *kernel;                                                                                       \
        void *arguments[] = {&nanos};                                                                              \
        dim3 grid, block;                                                                                          \
        size_t shared;                                                                                             \
        cudaStream_t stream;                                                                                       \
        if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) == cudaSuccess &&                          \
            (kernel || __cudaGetKernel(&kernel, (const void *)name) == cudaSuccess))                               \
            __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);                                    \
    }                                                                                                              \
    __attribute__((constructor)) static void name##_register(void)                                                 \
    {                                                                                                              \
        static int binary;                                                                                         \
        static char symbol[] = #name;                                                                              \
        void **handle = __cudaRegisterFatBinary(&binary);                                                          \
        __cudaRegisterFunction(handle, (const char *)name, symbol, #name, -1, 0, 0, 0, 0, 0);                      \
        __cudaRegisterFatBinaryEnd(handle);                                                                        \
    }
#endif
#define GO(name, nanos, stream)                                                                                    \
    do {                                                                                                           \
        LAUNCH(name, 1, 1, stream)(nanos);                                                                         \
        check(cudaGetLastError(), #name);                                                                          \
    } while (0)

/* Declares a function that keeps its stack frame and its name. KEEP() must be its last statement, so that no call in
 * the function is compiled to a jump. */
#define OWN_FRAME extern "C" __attribute__((noinline))
#ifndef __cplusplus
#undef OWN_FRAME
#define OWN_FRAME __attribute__((noinline, noclone))
#endif
#define KEEP() __asm__ volatile("" ::: "memory")

/* Exit codes: 1 a CUDA call failed, 2 wrong usage, 75 this CUDA version lacks a feature. */
enum { FAILED = 1, WRONG_USE = 2, CANNOT = 75 };

static inline void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(error == (cudaError_t)801 ? CANNOT : FAILED); /* cudaErrorNotSupported */
}
#define CUDA(call) check(call, #call)

static inline double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#endif
