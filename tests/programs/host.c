/* A program that waits for its GPU in several ways, and allocates and frees memory of all kinds. For each way of
 * waiting, the program prints the nanoseconds that it measured itself. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(busy_d20000000, "busy_d20000000", (int n), &n)

static cudaStream_t stream;
static cudaEvent_t event;
static char bytes[1000];

static unsigned long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

/* Defines a function that launches 20 ms of GPU work and waits for it. */
#define WAITS(name, call)                                                                               \
    OWN_FRAME static void name(void *device)                                                            \
    {                                                                                                   \
        unsigned long began;                                                                            \
        LAUNCH(busy_d20000000, 1, 32, stream)(1);                                                       \
        (void)device;                                                                                   \
        began = now();                                                                                  \
        call;                                                                                           \
        printf("%s %lu\n", #name, now() - began);                                                      \
    }

WAITS(for_the_stream, cudaStreamSynchronize(stream))
WAITS(for_the_device, cudaDeviceSynchronize())
WAITS(for_the_event, (cudaEventRecord(event, stream), cudaEventSynchronize(event)))
WAITS(for_the_context, cuCtxSynchronize())
WAITS(for_a_copy, cudaMemcpy(bytes, device, 1000, cudaMemcpyDeviceToHost))

OWN_FRAME static void *grow(size_t size)
{
    void *it;
    cudaMalloc(&it, size);
    KEEP_FRAME();
    return it;
}

OWN_FRAME static void shrink(void *it)
{
    cudaFree(it);
    KEEP_FRAME();
}

OWN_FRAME static void pinned(void)
{
    void *it;
    cudaMallocHost(&it, 5000);
    cudaFreeHost(it);
    KEEP_FRAME();
}

OWN_FRAME static void managed(void)
{
    void *it;
    cudaMallocManaged(&it, 7000, 1);
    cudaFree(it);
    KEEP_FRAME();
}

OWN_FRAME static void in_order(void)
{
    void *it;
    cudaMallocAsync(&it, 9000, stream);
    cudaFreeAsync(it, stream);
    KEEP_FRAME();
}

OWN_FRAME static void by_the_driver(void)
{
    CUdeviceptr it;
    cuMemAlloc_v2(&it, 11000);
    cuMemFree_v2(it);
    KEEP_FRAME();
}

/* Allocates and frees in a loop. When one thread frees memory, another thread immediately gets the same memory. */
OWN_FRAME static void *churn(void *nothing)
{
    int i;
    for (i = 0; i < 500; i++) {
        void *it = grow(100 + (size_t)(i % 7));
        shrink(it);
    }
    return nothing;
}

int main(void)
{
    void *kept, *freed;
    pthread_t threads[4];
    int i;
    cudaStreamCreate(&stream);
    cudaEventCreate(&event);
    kept = grow(1000000);
    freed = grow(3000);
    shrink(freed);
    shrink(NULL);
    pinned();
    managed();
    in_order();
    by_the_driver();
    for (i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, churn, NULL);
    for (i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (i = 0; i < 2; i++) {
        for_the_stream(kept);
        for_the_device(kept);
        for_the_event(kept);
        for_the_context(kept);
        for_a_copy(kept);
    }
    return 0;
}
