/* Creates more stacks, kernels, threads or libraries than gpuflame can store, between launches that the test checks.
 *
 *     flood WHAT COUNT ...
 *
 * - `flood stacks COUNT [DEPTH]` launches once from each of COUNT stacks of DEPTH frames (default 50).
 * - `flood kernels COUNT` launches each of COUNT kernels once.
 * - `flood threads COUNT` creates COUNT threads, one after another. Each thread has a name and launches once.
 * - `flood unloads COUNT PLUGIN` loads and unloads PLUGIN COUNT times, and launches from 500 stacks after each time.
 *
 * Four functions make the launches that the test checks. `before` launches 1,000 times before the flood, and `after`
 * 1,000 times after it. `between` launches once per 64 of the flood's stacks, kernels or threads. `second` runs on a
 * thread of its own; it launches once before the flood and 1,000 times after it. After every 4,096 launches the program
 * waits until gpuflame has read all records. FLOOD_MIB is the memory, in MiB, that the program itself allocates. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(junk_d101, "junk_d101", (int n), &n)
KERNEL(early_d2003, "early_d2003", (int n), &n)
KERNEL(middle_d3001, "middle_d3001", (int n), &n)
KERNEL(late_d4007, "late_d4007", (int n), &n)
KERNEL(second_d51, "second_d51", (int n), &n)

/* gpuflame_flush() of the injected library; NULL if no library is injected. */
static int (*flush)(void);
static unsigned long launches;

static void pause_now_and_then(void)
{
    if (++launches % 4096 == 0 && flush && flush() != 0)
        exit(3);
}

OWN_FRAME static void before(void)
{
    SITE("main;before");
    LAUNCH(early_d2003, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void between(const char *site)
{
    SITE(site);
    LAUNCH(middle_d3001, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void after(void)
{
    SITE("main;after");
    LAUNCH(late_d4007, 1, 32, 0)(1);
    KEEP_FRAME();
}

static pthread_barrier_t turn;

OWN_FRAME static void second(void)
{
    SITE("other_thread;second");
    LAUNCH(second_d51, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void *other_thread(void *nothing)
{
    int i;
    second();
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn); /* the flood is over */
    for (i = 0; i < 1000; i++)
        second();
    KEEP_FRAME();
    return nothing;
}

/* Functions that call each other in the order of the digits of `path`. The lowest digit determines the function that is
 * nearest to the root, so two stacks have almost no frames in common. More functions are called until the stack has
 * `depth` frames. */
typedef void step(unsigned long path, int depth);
static step one, two, three, four;
static step *const steps[] = {one, two, three, four};
#define STEP(name)                                                                                     \
    OWN_FRAME static void name(unsigned long path, int depth)                                          \
    {                                                                                                  \
        if (depth <= 0)                                                                                \
            LAUNCH(junk_d101, 1, 32, 0)(1);                                                            \
        else                                                                                           \
            steps[path % 4](path / 4, depth - 1);                                                      \
        KEEP_FRAME();                                                                                  \
    }
STEP(one)
STEP(two)
STEP(three)
STEP(four)

OWN_FRAME static void flood_stacks(unsigned long count, int depth)
{
    unsigned long i;
    for (i = 0; i < count; i++) {
        SITE("flood");
        steps[i % 4](i / 4, depth - 3);
        pause_now_and_then();
        if (i % 64 == 63)
            between("main;flood_stacks;between");
    }
    KEEP_FRAME();
}

OWN_FRAME static void flood_unloads(unsigned long count, const char *plugin)
{
    unsigned long i, j;
    for (i = 0; i < count; i++) {
        void *library = dlopen(plugin, RTLD_NOW);
        if (!library || dlclose(library))
            exit(7);
        for (j = 0; j < 500; j++) {
            SITE("flood");
            steps[j % 4](j / 4, 47);
            pause_now_and_then();
        }
        if (i % 64 == 63)
            between("main;flood_unloads;between");
    }
    KEEP_FRAME();
}

OWN_FRAME static void many(CUfunction function)
{
    cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    KEEP_FRAME();
}

OWN_FRAME static void flood_kernels(unsigned long count)
{
    CUmodule module = NULL;
    unsigned long i;
    if (cuModuleLoadData(&module, "") != 0)
        exit(4);
    for (i = 0; i < count; i++) {
        char name[64];
        CUfunction function;
        snprintf(name, sizeof name, "some_kernel_with_a_long_name_%lu_d101", i);
        if (cuModuleGetFunction(&function, module, name) != 0)
            exit(5);
        SITE("main;flood_kernels;many");
        many(function);
        pause_now_and_then();
        if (i % 64 == 63)
            between("main;flood_kernels;between");
    }
    KEEP_FRAME();
}

OWN_FRAME static void *worker(void *number)
{
    char name[16];
    snprintf(name, sizeof name, "w%lu", (unsigned long)number);
    pthread_setname_np(pthread_self(), name);
    SITE("worker");
    LAUNCH(junk_d101, 1, 32, 0)(1);
    KEEP_FRAME();
    return NULL;
}

OWN_FRAME static void flood_threads(unsigned long count)
{
    unsigned long i;
    for (i = 0; i < count; i++) {
        pthread_t id;
        if (pthread_create(&id, NULL, worker, (void *)i))
            exit(6);
        pthread_join(id, NULL);
        pause_now_and_then();
        if (i % 64 == 63)
            between("main;flood_threads;between");
    }
    KEEP_FRAME();
}

static void take(const char *mib)
{
    size_t bytes = mib ? strtoul(mib, NULL, 10) << 20 : 0;
    char *taken = bytes ? malloc(bytes) : NULL;
    if (taken)
        memset(taken, 1, bytes);
    __asm__ volatile("" : : "r"(taken) : "memory");
}

int main(int argc, char **argv)
{
    const char *path = getenv("CUDA_INJECTION64_PATH"), *what = argc > 2 ? argv[1] : "";
    unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    void *library;
    pthread_t other;
    int i;
    take(getenv("FLOOD_MIB"));
    cudaFree(0); /* loads the CUDA driver, which loads gpuflame */
    library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library)
        *(void **)&flush = dlsym(library, "gpuflame_flush");
    pthread_barrier_init(&turn, NULL, 2);
    if (pthread_create(&other, NULL, other_thread, NULL))
        return 1;
    pthread_barrier_wait(&turn);
    for (i = 0; i < 1000; i++)
        before();
    if (!strcmp(what, "stacks"))
        flood_stacks(count, argc > 3 ? atoi(argv[3]) : 50);
    else if (!strcmp(what, "kernels"))
        flood_kernels(count);
    else if (!strcmp(what, "threads"))
        flood_threads(count);
    else if (!strcmp(what, "unloads") && argc > 3)
        flood_unloads(count, argv[3]);
    else
        return 2;
    for (i = 0; i < 1000; i++)
        after();
    pthread_barrier_wait(&turn);
    pthread_join(other, NULL);
    return cudaDeviceSynchronize();
}
