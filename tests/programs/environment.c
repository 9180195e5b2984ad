/* Loads the library again and again while another thread reads the environment. LD_PRELOAD names the library, because
 * some programs set this variable for their children.
 *
 *     environment LIBRARY TIMES */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int done, stand_aside, stands_aside;
static volatile unsigned long reads;

static void *read_it(void *nothing)
{
    while (!done) {
        stands_aside = stand_aside;
        if (!stands_aside)
            reads += getenv("A_NAME_THAT_NOBODY_HAS") == NULL;
    }
    return nothing;
}

/* In each turn, adds a variable to the environment, which moves the list of variables in memory. During this change,
 * the reading thread is paused. */
static int change(int turn)
{
    char name[32];
    int i;
    snprintf(name, sizeof name, "VARIABLE_%d", turn);
    stand_aside = 1;
    while (!stands_aside)
        sched_yield();
    unsetenv("CUDA_INJECTION64_PATH");
    unsetenv("NVTX_INJECTION64_PATH");
    setenv(name, "1", 1);
    for (i = 1; i < 40; i++)
        if (!malloc(24 * i))
            return 0;
    stand_aside = 0;
    return 1;
}

int main(int argc, char **argv)
{
    int i, times = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t reader;
    if (argc < 2)
        return 2;
    setenv("LD_PRELOAD", argv[1], 1);
    pthread_create(&reader, NULL, read_it, NULL);
    for (i = 0; i < times; i++) {
        unsigned long before;
        void *library;
        if (!change(i))
            return 4;
        for (before = reads; reads < before + 20;)
            sched_yield();
        library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library || !getenv("CUDA_INJECTION64_PATH") || strcmp(getenv("NVTX_INJECTION64_PATH"), argv[1])) {
            fprintf(stderr, "%s\n", library ? "not asked for" : dlerror());
            return 3;
        }
        dlclose(library);
    }
    done = 1;
    pthread_join(reader, NULL);
    printf("%s\n", reads > 0 ? "read on" : "did not read");
    return 0;
}
