/* A program with each common kind of GPU work: two kernels, copies and memsets, a created stream, an event, a host
 * function. */
#include "cuda_mini.h"
#include <stdio.h>

KERNEL(gemm, "_ZN3net4gemmEPfi", (float *a, int n), &a, &n)
KERNEL(tiny, "_Z9tiny_d301v", (void), NULL)

static int host_calls;
static void host_function(void *data) { host_calls += *(int *)data; }

int main(void) {
    void *device;
    char *pinned, plain[1000];
    cudaStream_t stream;
    int seven = 7;
    SITE("main;setup");
    if (cudaMalloc(&device, 1 << 20) || cudaMallocHost((void **)&pinned, 5000)) return 2;
    cudaStreamCreate(&stream);
    SITE("main;forward");
    LAUNCH(gemm, 64, 256, 0)(device, 3);
    LAUNCH(tiny, 1, 32, stream)();
    SITE("main;copies");
    cudaMemcpy(device, plain, 1000, cudaMemcpyHostToDevice);
    cudaMemcpyAsync(pinned, device, 5000, cudaMemcpyDeviceToHost, stream);
    cudaMemcpy2DAsync(device, 512, pinned, 100, 100, 50, cudaMemcpyDefault, stream);
    cudaMemset(device, 0xab, 1000000);
    SITE(NULL);
    cudaLaunchHostFunc(stream, host_function, &seven);
    cudaStreamSynchronize(stream);
    printf("host %d\n", host_calls);
    cudaStreamDestroy(stream);
    return cudaDeviceSynchronize();
}
