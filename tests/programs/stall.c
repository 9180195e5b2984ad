/* A program whose host thread delays the GPU in one place: each step launches four kernels, spends 5 ms preparing the
 * next batch, and then copies the batch. The program prints the GPU time, in nanoseconds, that is lost while it
 * prepares batches.
 *
 *     stall [--steps N] [--devices N] [--streams N] */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
#define STALL 5000000ul

KERNEL(attend_d2000, "attend_d2000", (int n), &n)
KERNEL(feed_d1000, "feed_d1000", (int n), &n)

static unsigned long lost;
static char *host;

static unsigned long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

OWN_FRAME static void forward(cudaStream_t stream)
{
    int i;
    SITE("main;step;forward");
    for (i = 0; i < 2; i++) {
        LAUNCH(attend_d2000, 1, 32, stream)(i);
        LAUNCH(feed_d1000, 1, 32, stream)(i);
    }
    KEEP_FRAME();
}

OWN_FRAME static void load_batch(void *device, cudaStream_t stream)
{
    unsigned long began = now();
    struct timespec pause = {0, STALL};
    SITE("main;step;load_batch");
    nanosleep(&pause, NULL);
    lost += now() - began;
    cudaMemcpyAsync(device, host, 1000, cudaMemcpyHostToDevice, stream);
    KEEP_FRAME();
}

OWN_FRAME static void step(void *device, cudaStream_t stream)
{
    forward(stream);
    load_batch(device, stream);
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    int steps = 20, devices = 1, streams = 1, at, i;
    for (at = 1; at + 1 < argc; at += 2) {
        int value = atoi(argv[at + 1]);
        if (!strcmp(argv[at], "--steps"))
            steps = value;
        else if (!strcmp(argv[at], "--devices"))
            devices = value;
        else if (!strcmp(argv[at], "--streams"))
            streams = value;
    }
    cudaMallocHost((void **)&host, 1000);
    for (i = 0; i < devices; i++) {
        cudaStream_t made[8];
        void *device;
        cudaSetDevice(i);
        cudaMalloc(&device, 1000);
        for (at = 0; at < streams; at++)
            cudaStreamCreate(&made[at]);
        for (at = 0; at < steps; at++)
            step(device, made[at % streams]);
        cudaDeviceSynchronize();
    }
    printf("%lu\n", lost);
    return 0;
}
