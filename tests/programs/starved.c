/* A program whose address space is limited while gpuflame records it.
 *
 *     starved KIB [STACKS] [SHRINKS]
 *
 * The program launches 20,000 times and waits for 0.9 s. After that, the program limits its address space to KIB more
 * than the present size. Under this limit, the program launches from STACKS different stacks, under ranges of many
 * names, sets marks and queries the progress. At the same time, the program lowers the limit SHRINKS times, at last to
 * the present size. The program itself allocates no memory. The program prints how many of its waits failed. */
#include "cuda_mini.h"
#include "gpuflame.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d1000, "step_d1000", (int n), &n)

static volatile int failed, sink;

static void left(unsigned path, int depth);

OWN_FRAME static void right(unsigned path, int depth)
{
    if (depth)
        left(path, depth);
    sink++;
}

OWN_FRAME static void left(unsigned path, int depth)
{
    if (!depth)
        LAUNCH(step_d1000, 1, 32, 0)(1);
    else if (path & 1)
        right(path >> 1, depth - 1), right(0, 0);
    else
        left(path >> 1, depth - 1), sink++;
    sink++;
}

static size_t address_space_kib(void)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "VmSize:", 7))
            kib = strtoul(line + 7, NULL, 10);
    if (file)
        fclose(file);
    return kib;
}

/* Functions of gpuflame that the program calls; NULL if gpuflame is not loaded. */
static int (*range_push)(const char *), (*range_pop)(void), (*mark)(const char *), (*flushed)(void), (*statistics)(void *);

static void find(void)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!library)
        return;
    *(void **)&range_push = dlsym(library, "gpuflame_range_push");
    *(void **)&range_pop = dlsym(library, "gpuflame_range_pop");
    *(void **)&mark = dlsym(library, "gpuflame_mark");
    *(void **)&flushed = dlsym(library, "gpuflame_flush");
    *(void **)&statistics = dlsym(library, "gpuflame_stats");
}

/* Makes gpuflame's own thread call CUPTI for the first time while memory is available. The simulation allocates 1,592
 * bytes for each thread that calls it, and aborts if this allocation fails. Without this flush, on a busy machine,
 * gpuflame's thread might first call CUPTI after the pause. */
static void flush(void)
{
    if (flushed)
        flushed();
}

/* Launches from one of many stacks, under one of many ranges, and makes some other gpuflame calls. */
static void step(unsigned i)
{
    static char name[] = "range 00000";
    struct gpuflame_statistics stats;
    snprintf(name + 6, sizeof name - 6, "%05u", i / 50 % 100000);
    if (range_push && range_pop) {
        range_push(name);
        left(i, 16);
        range_pop();
    } else {
        left(i, 16);
    }
    stats.size = sizeof stats;
    if (mark && i % 500 == 0)
        mark(name);
    if (statistics && i % 5000 == 0)
        statistics(&stats);
}

static void limit_to(size_t kib)
{
    struct rlimit limit = {kib << 10, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit))
        exit(2);
}

int main(int count, char **words)
{
    size_t more = count > 1 ? strtoul(words[1], NULL, 10) : 1024;
    unsigned stacks = count > 2 ? strtoul(words[2], NULL, 10) : 20000, i;
    unsigned shrinks = count > 3 ? strtoul(words[3], NULL, 10) : 0;
    struct timespec pause = {0, 900000000}, breath = {0, 1000000};
    size_t had;
    char line[64];
    /* When these launches are done, the simulation's own lists have their final size. If the lists had to grow later,
     * the simulation would abort. */
    for (i = 0; i < 20000; i++)
        left(i % 100, 7);
    cudaDeviceSynchronize();
    find();
    flush();
    nanosleep(&pause, NULL);
    had = address_space_kib();
    limit_to(had + more);
    for (i = 0; i < stacks; i++) {
        if (shrinks && i % (stacks / (shrinks + 1) + 1) == 0)
            limit_to(had + more - more / shrinks * (i / (stacks / (shrinks + 1) + 1)));
        step(i);
        if (i % 200 == 199) {
            failed += cudaDeviceSynchronize() != 0;
            nanosleep(&breath, NULL);
        }
    }
    cudaDeviceSynchronize();
    nanosleep(&pause, NULL);
    snprintf(line, sizeof line, "%d failed\n", failed);
    fputs(line, stdout);
    return 0;
}
