/* Launches 100 times before a window, 100 times in it and 100 times after it. At the begin and the end of the window,
 * kernels are still running. */
#include "cuda_mini.h"
#include "gpuflame.h"

#include <stdio.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d200000, "step_d200000", (int n), &n)

OWN_FRAME static void launch_100(void)
{
    int i;
    SITE("main;launch_100");
    for (i = 0; i < 100; i++)
        LAUNCH(step_d200000, 1, 32, 0)(i);
    __asm__ volatile("" ::: "memory");
}

OWN_FRAME static void inside(void)
{
    int i;
    SITE("main;inside");
    for (i = 0; i < 100; i++)
        LAUNCH(step_d200000, 1, 32, 0)(i);
    __asm__ volatile("" ::: "memory");
}

static int must(int code)
{
    if (code)
        fprintf(stderr, "window: %d: %s\n", code, gpuflame_last_error());
    return code;
}

int main(void)
{
    launch_100();
    if (must(gpuflame_start()) || must(gpuflame_start()))
        return 1;
    inside();
    if (must(gpuflame_stop()) || must(gpuflame_stop()))
        return 1;
    launch_100();
    if (must(gpuflame_flush()))
        return 1;
    return cudaDeviceSynchronize();
}
