/* Uses two devices, a copy between them, streams that overlap, and two threads with per-thread default streams. */
#include "cuda_mini.h"
#include <pthread.h>
#include <stdio.h>

KERNEL(slow, "_Z12slow_d100000v", (void), NULL)

static void *own_stream(void *device) {
    dim3 one = {1, 1, 1};
    cudaSetDevice((int)(long)device);
    SITE("thread");
    cudaLaunchKernel_ptsz((const void *)slow, one, one, NULL, 0, NULL);
    return NULL;
}

int main(void) {
    void *there, *here;
    cudaStream_t first, second;
    SITE("device 1");
    if (cudaSetDevice(1)) return 2;
    cudaMalloc(&there, 5000);
    LAUNCH(slow, 1, 1, 0)();
    SITE("device 0");
    cudaSetDevice(0);
    cudaMalloc(&here, 5000);
    cudaStreamCreate(&first), cudaStreamCreate(&second);
    LAUNCH(slow, 1, 1, first)();
    LAUNCH(slow, 1, 1, second)();
    SITE("peer");
    cudaMemcpyPeerAsync(there, 1, here, 0, 5000, first);
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, own_stream, (void *)0);
        pthread_join(threads[i], NULL);
    }
    return cudaDeviceSynchronize();
}
