/* A program with a start-up, steps and a shutdown.
 * - `prepare` launches three kernels and sleeps 30 ms.
 * - Each of COUNT steps launches two kernels, waits for them and sleeps 2 ms.
 * - `save` sleeps 40 ms and launches a copy.
 *
 *     steps calls|ranges|early|gaps|none COUNT exit|abort
 *
 * - `calls`: each step begins with gpuflame_step().
 * - `ranges`: each step begins with a range called `batch N`.
 * - `early`: as `calls`, but the first step begins before the first CUDA call, and `prepare` does not run.
 * - `gaps`: as `calls`, but in every third step the program launches nothing.
 * - `none`: the steps are not marked.
 * - `abort`: the process waits for a file `go` and ends without exit handlers. */
#ifndef LINKED
#define GPUFLAME_HEADER_ONLY
#endif
#include "cuda_mini.h"
#include "gpuflame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(fill_d5000, "fill_d5000", (int n), &n)
KERNEL(forward_d20000, "forward_d20000", (int n), &n)
KERNEL(update_d10000, "update_d10000", (int n), &n)

static char *host;
static void *device;

static void pause_ms(long milliseconds)
{
    struct timespec pause = {0, milliseconds * 1000000l};
    nanosleep(&pause, NULL);
}

OWN_FRAME static void prepare(void)
{
    int i;
    SITE("main;prepare");
    for (i = 0; i < 3; i++)
        LAUNCH(fill_d5000, 1, 32, NULL)(i);
    cudaDeviceSynchronize();
    pause_ms(30);
    KEEP_FRAME();
}

OWN_FRAME static void train(int step)
{
    SITE("main;train");
    LAUNCH(forward_d20000, 1, 32, NULL)(step);
    LAUNCH(update_d10000, 1, 32, NULL)(step);
    cudaDeviceSynchronize();
    pause_ms(2);
    KEEP_FRAME();
}

OWN_FRAME static void save(void)
{
    SITE("main;save");
    pause_ms(40);
    cudaMemcpy(host, device, 1000, cudaMemcpyDeviceToHost);
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *end = argc > 3 ? argv[3] : "exit";
    int count = argc > 2 ? atoi(argv[2]) : 1, step;
    int is_early = !strcmp(mode, "early"), has_gaps = !strcmp(mode, "gaps");
    if (is_early)
        gpuflame_step();
    cudaMalloc(&device, 1000);
    host = malloc(1000);
    if (!is_early)
        prepare();
    for (step = 1; step <= count; step++) {
        char name[32];
        snprintf(name, sizeof name, "batch %d", step);
        if (!strcmp(mode, "calls") || has_gaps || (is_early && step > 1))
            gpuflame_step();
        if (!strcmp(mode, "ranges"))
            gpuflame_range_push(name);
        if (!has_gaps || step % 3)
            train(step);
        if (!strcmp(mode, "ranges"))
            gpuflame_range_pop();
    }
    if (strcmp(end, "abort")) {
        save();
        return 0;
    }
    while (access("go", F_OK))
        usleep(1000);
    abort();
}
