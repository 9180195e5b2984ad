/* A program that runs out of memory right after CUDA has started.
 *
 *     constructor [LIBRARY]
 *
 * - With LIBRARY (this file, built with -DLIBRARY), CUDA starts in the library's constructor. The loader holds its lock
 *   until the constructor returns, and the threads that wait for this lock then continue without memory.
 * - Without LIBRARY, CUDA starts in main.
 *
 * Memory is available again after 0.3 s, and the program returns 7. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#ifdef LIBRARY
#include "cuda_mini.h"

extern void end_memory(void);

__attribute__((constructor)) static void start(void)
{
    if (cuInit(0) == 0)
        end_memory();
}
#else

int cuInit(unsigned flags);

static struct rlimit all;
static void **last;

static unsigned long address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1)
        exit(1);
    fclose(file);
    return pages << 12;
}

/* Uses up all memory in the heap, which all threads share. */
void end_memory(void)
{
    struct rlimit limit;
    size_t size;
    getrlimit(RLIMIT_AS, &all);
    limit = all;
    limit.rlim_cur = address_space();
    setrlimit(RLIMIT_AS, &limit);
    for (size = 1 << 20; size >= 16; size /= 2) {
        void **block;
        while ((block = malloc(size)) != NULL) {
            *block = last;
            last = block;
        }
    }
}

static void renew_memory(void)
{
    setrlimit(RLIMIT_AS, &all);
    while (last) {
        void **block = last;
        last = *block;
        free(block);
    }
}

int main(int argc, char **argv)
{
    struct timespec pause = {0, 300000000};
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    if (argc > 1) {
        if (!dlopen(argv[1], RTLD_NOW)) {
            renew_memory();
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
    } else if (cuInit(0) == 0) {
        end_memory();
    }
    if (!last)
        return 3;
    nanosleep(&pause, NULL);
    renew_memory();
    return 7;
}
#endif
