/* A program that uses gpuflame's header but is not linked with gpuflame. `early` calls gpuflame's functions before CUDA
 * has started, and `late` calls them after that. If gpuflame is absent, these calls have no effect. The program counts
 * its calls of dlopen. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GPUFLAME_HEADER_ONLY
#include "gpuflame.h"

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(work_d1000, "work_d1000", (int n), &n)

static int asked;

void *dlopen(const char *name, int flags)
{
    static void *(*next)(const char *, int);
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "dlopen");
        memcpy(&next, &found, sizeof next);
    }
    if (name && strstr(name, "libgpuflame.so.0"))
        asked++;
    return next(name, flags);
}

static void expect(int is, int should, const char *what)
{
    if (is != should) {
        fprintf(stderr, "%s answers %d, not %d: %s\n", what, is, should, gpuflame_last_error());
        exit(3);
    }
}

OWN_FRAME static void launch(const char *name)
{
    int is_there = gpuflame_range_push(name) == GPUFLAME_OK;
    SITE("main;launch");
    LAUNCH(work_d1000, 1, 32, 0)(1);
    if (is_there)
        gpuflame_range_pop();
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    int is_early = argc > 1 && !strcmp(argv[1], "early"), is_alone = argc > 2, i;
    struct gpuflame_statistics stats;
    time_t began = time(NULL);
    stats.size = sizeof stats;
    if (is_early) {
        expect(gpuflame_range_push("nobody hears"), GPUFLAME_ABSENT, "a push without the library");
        expect(gpuflame_range_pop(), GPUFLAME_ABSENT, "a pop without the library");
    }
    if (cudaFree(NULL))
        return 1;
    if (is_alone) {
        for (i = 0; i < 1000000; i++)
            expect(gpuflame_start(), GPUFLAME_ABSENT, "a start without the library");
        expect(gpuflame_stop() + gpuflame_step() + gpuflame_flush(), 3 * GPUFLAME_ABSENT, "the others");
        expect(gpuflame_mark("x") + gpuflame_set_output("x"), 2 * GPUFLAME_ABSENT, "those with a text");
        expect(gpuflame_stats(&stats), GPUFLAME_ABSENT, "stats");
        expect(gpuflame_is_active(), 0, "gpuflame_is_active");
        expect(!*gpuflame_version() && !*gpuflame_last_error(), 1, "the texts");
        launch("nobody");
        if (dlerror())
            return 4;
    } else if (is_early) {
        /* At this point gpuflame is loaded. The header looks for gpuflame at most every 10 ms, so it finds gpuflame 10
         * ms after the last failed look-up. When the header has found gpuflame, gpuflame counts steps. */
        usleep(20000);
        expect(gpuflame_step(), GPUFLAME_OK, "a step 20 ms after CUDA has started");
        expect(gpuflame_stats(&stats), GPUFLAME_OK, "stats");
        expect((int)stats.steps, 1, "the number of steps");
        launch("found");
    } else {
        launch("at once");
    }
    /* Adds a second, because `began` may have been read at the end of a second. */
    if (asked > 100 * (time(NULL) - began + 1) + 1) {
        fprintf(stderr, "the loader was asked %d times in %ld s\n", asked, (long)(time(NULL) - began));
        return 5;
    }
    return cudaDeviceSynchronize();
}
