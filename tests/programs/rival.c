/* A program that contains another CUPTI client. The other client enables activity records without a subscription, as
 * Kineto does.
 *
 *     rival MILLISECONDS [returns | profiler]
 *
 * The program launches and waits; the client enables activity records; the program launches and waits for MILLISECONDS.
 * The client counts and frees every buffer that CUPTI passes to it, including buffers that belong to gpuflame.
 *
 * - `returns`: the client stops in the middle (it disables all kinds that it enabled), a window is closed and opened,
 *   and the program continues.
 * - `profiler`: as `returns`, but cudaProfilerStop and cudaProfilerStart close and open the window.
 *
 * The program prints whether the client got any records. The program also prints whether CUPTI assumes zeroed buffers,
 * before and after the client's actions. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "cupti.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(before_d1000, "before_d1000", (int n), &n)
KERNEL(taken_d1000, "taken_d1000", (int n), &n)
KERNEL(after_d1000, "after_d1000", (int n), &n)

static volatile size_t bytes, handed;

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *size = 256 << 10;
    *buffer = malloc(*size);
    *most = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    bytes += valid;
    handed++;
    free(buffer);
}

static void each_kind(const char *what)
{
    static const uint32_t kinds[] = {1, 2, 10};
    int (*set)(uint32_t);
    unsigned at;
    *(void **)&set = cupti(what);
    for (at = 0; at < sizeof kinds / sizeof *kinds; at++)
        set(kinds[at]);
}

static void client_comes(void)
{
    int (*ask)(void *, void *);
    *(void **)&ask = cupti("cuptiActivityRegisterCallbacks");
    if (ask((void *)requested, (void *)completed))
        exit(21);
    each_kind("cuptiActivityEnable");
}

static void flush(void)
{
    int (*all)(uint32_t);
    *(void **)&all = cupti("cuptiActivityFlushAll");
    all(0);
}

static int zeroed(void)
{
    int (*get)(int, size_t *, void *);
    uint8_t value = 0;
    size_t size = sizeof value;
    *(void **)&get = cupti("cuptiActivityGetAttribute");
    return get(5, &size, &value) ? -1 : value;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

OWN_FRAME static void before(void)
{
    int i;
    SITE("main;before");
    for (i = 0; i < 50; i++)
        LAUNCH(before_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

OWN_FRAME static void taken(double millis)
{
    double begin = now();
    struct timespec pause = {0, 5000000};
    SITE("main;taken");
    while (now() - begin < millis) {
        LAUNCH(taken_d1000, 1, 32, 0)(1);
        cudaDeviceSynchronize();
        nanosleep(&pause, NULL);
    }
}

OWN_FRAME static void after(void)
{
    int i;
    SITE("main;after");
    for (i = 0; i < 70; i++)
        LAUNCH(after_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

static void window(const char *what)
{
    void *library = dlopen(getenv("CUDA_INJECTION64_PATH") ? getenv("CUDA_INJECTION64_PATH") : "", RTLD_LAZY);
    int (*set)(void);
    *(void **)&set = library ? dlsym(library, what) : NULL;
    if (set && set())
        exit(22);
}

int main(int count, char **words)
{
    double millis = count > 1 ? atof(words[1]) : 100;
    int at_first, then;
    before();
    at_first = zeroed();
    client_comes();
    taken(millis);
    then = zeroed();
    fprintf(stderr, "rival: flushes\n");
    flush();
    if (count > 2) {
        each_kind("cuptiActivityDisable");
        if (!strcmp(words[2], "profiler")) {
            cudaProfilerStop();
            cudaProfilerStart();
        } else {
            window("gpuflame_stop");
            window("gpuflame_start");
        }
        after();
    }
    printf("%s, zeroed %d then %d\n", handed && bytes ? "handed" : "nothing", at_first, then);
    return 0;
}
