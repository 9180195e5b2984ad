/* Launches a kernel N times from one thread, 64 calls below main. Measures the cost for a whole process.
 *
 *     launches [N]
 *
 * The outer 48 frames stay on the stack. The inner 16 functions are called again for every launch, through one of 16
 * call paths. */
#include "cuda_mini.h"

#include <stdlib.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(step_d1000, "step_d1000", (float *x), &x)

static cudaStream_t stream;

OWN_FRAME static void launch(int depth, unsigned path)
{
    (void)depth, (void)path;
    LAUNCH(step_d1000, 1, 128, stream)(NULL);
    KEEP_FRAME();
}

/* Two functions with frames of different sizes. At each of the last four calls, `path` selects one of the two. */
OWN_FRAME static void left(int depth, unsigned path);
OWN_FRAME static void right(int depth, unsigned path)
{
    volatile char room[200];
    room[depth] = 1;
    (depth == 0 ? launch : (path >> (depth & 3)) & 1 ? right : left)(depth - 1, path);
    KEEP_FRAME();
}

static void left(int depth, unsigned path)
{
    (depth == 0 ? launch : (path >> (depth & 3)) & 1 ? right : left)(depth - 1, path);
    KEEP_FRAME();
}

OWN_FRAME static void inner(unsigned long launches)
{
    for (unsigned long i = 0; i < launches; i++)
        left(13, (unsigned)i);
    KEEP_FRAME();
}

OWN_FRAME static void outer(int depth, unsigned long launches)
{
    if (depth == 0)
        inner(launches);
    else
        outer(depth - 1, launches);
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    if (cudaStreamCreate(&stream) != cudaSuccess)
        return 1;
    outer(46, argc > 1 ? strtoul(argv[1], NULL, 10) : 200000);
    return cudaDeviceSynchronize();
}
