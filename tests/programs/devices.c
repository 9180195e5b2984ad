/* Uses two GPUs with two streams each, and copies data between the GPUs. */
#include "cuda_mini.h"

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d1500, "step_d1500", (int n), &n)

OWN_FRAME static void work(int device, int kernels)
{
    cudaStream_t streams[2];
    int i;
    cudaSetDevice(device);
    cudaStreamCreate(&streams[0]);
    cudaStreamCreate(&streams[1]);
    SITE("main;work");
    for (i = 0; i < kernels; i++)
        LAUNCH(step_d1500, 1, 32, streams[i % 2])(i);
    cudaDeviceSynchronize();
    __asm__ volatile("" ::: "memory");
}

OWN_FRAME static void exchange(void)
{
    void *first, *second;
    cudaSetDevice(0);
    cudaMalloc(&first, 1 << 20);
    cudaSetDevice(1);
    cudaMalloc(&second, 1 << 20);
    SITE("main;exchange");
    cudaMemcpyPeerAsync(second, 1, first, 0, 1 << 20, 0);
    cudaMemsetAsync(second, 0, 1 << 20, 0);
    cudaDeviceSynchronize();
    __asm__ volatile("" ::: "memory");
}

int main(void)
{
    work(0, 3);
    work(1, 5);
    exchange();
    return 0;
}
