/* Prints the nanoseconds per launch:
 *
 *     closed kinds     without gpuflame: the activity kinds that gpuflame records are enabled, without callbacks
 *     closed window    with gpuflame injected: the same kinds, a few seconds after gpuflame's window closed
 *
 * Prints the fastest of many turns, because load by other programs only makes a turn slower. */
#define GPUFLAME_HEADER_ONLY
#include "cuda_mini.h"
#include "gpuflame.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d100, "step_d100", (int n), &n)

enum { TURNS = 400, EACH = 1000, BUFFER = 1 << 20 };

/* The CUPTI client reuses its buffers, as gpuflame does. */
static struct {
    long bytes[BUFFER / sizeof(long)];
    int is_lent;
} buffers[8];

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    int at = 0;
    while (__sync_lock_test_and_set(&buffers[at].is_lent, 1))
        at = (at + 1) % 8;
    *buffer = (uint8_t *)buffers[at].bytes;
    *size = BUFFER;
    *records = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    int at = 0;
    (void)context, (void)stream, (void)size, (void)valid;
    while ((uint8_t *)buffers[at].bytes != buffer)
        at++;
    __sync_lock_release(&buffers[at].is_lent);
}

/* Enables the activity kinds for kernels, copies, copies between GPUs, and fills. */
static int kinds_on(void)
{
    static const int kinds[] = {10, 1, 22, 2};
    void *cupti = dlopen("libcupti.so.13", RTLD_NOW);
    int (*enable)(int) = cupti ? (int (*)(int))dlsym(cupti, "cuptiActivityEnable") : NULL;
    int (*attach)(void *, void *) =
        cupti ? (int (*)(void *, void *))dlsym(cupti, "cuptiActivityRegisterCallbacks") : NULL;
    unsigned i;
    if (!enable || !attach || attach((void *)requested, (void *)completed))
        return 0;
    for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (enable(kinds[i]))
            return 0;
    return 1;
}

OWN_FRAME static void launch(int count)
{
    int i;
    for (i = 0; i < count; i++)
        LAUNCH(step_d100, 1, 32, NULL)(i);
    __asm__ volatile("" ::: "memory");
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv)
{
    int is_window = argc > 1 && !strcmp(argv[1], "window"), turn;
    double fastest = 1e9;
    cudaFree(NULL);
    if (is_window) {
        if (gpuflame_start())
            return 3;
        launch(10);
        gpuflame_stop();
        for (turn = 0; turn < 400; turn++) { /* callbacks go off two seconds after the window closed */
            launch(1);
            usleep(10000);
        }
    } else if (!kinds_on()) {
        return 4;
    }
    for (turn = 0; turn < TURNS; turn++) {
        double began = now(), each;
        launch(EACH);
        each = (now() - began) / EACH;
        fastest = each < fastest ? each : fastest;
        usleep(500); /* lets the reader of the records catch up */
    }
    printf("%.2f\n", fastest);
    return cudaDeviceSynchronize();
}
