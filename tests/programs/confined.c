/* A program that runs out of a resource, or lets gpuflame run out of it.
 *
 *     confined HOW
 *
 * - `depth`: prints the bytes of stack that each launch uses. These launches are the first launch of the process, 19
 *   launches on another thread (nine of them from new stacks, the last six after a library was loaded or unloaded), and
 *   six in a signal handler on a signal stack.
 * - `descriptors`: after the first launches, the process cannot open another descriptor.
 * - `threads`: gpuflame cannot create a thread.
 * - `memory`: eight threads launch 100 times each while no memory is available, and once more with memory available.
 *
 * The program launches 20 times in any mode, and ends with code 7. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define OWN_FRAME __attribute__((noinline, noclone))
enum { CODE = 7, PAINTED = 120 << 10, PAINT = 0x5a };

KERNEL(step_d700, "step_d700", (int n), &n)

OWN_FRAME static void launch(int times)
{
    int n;
    SITE("main;launch");
    for (n = 0; n < times; n++)
        LAUNCH(step_d700, 1, 32, 0)(n);
    __asm__ volatile("" ::: "memory");
}

static int refuses;

/* Replaces the C library's pthread_create and refuses gpuflame's threads. CUPTI also calls this function; gpuflame's
 * threads are detached and CUPTI's are not. */
int pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*start)(void *), void *with)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    Dl_info who;
    int state = PTHREAD_CREATE_JOINABLE;
    if (refuses && how && pthread_attr_getdetachstate(how, &state) == 0 && state == PTHREAD_CREATE_DETACHED &&
        dladdr(__builtin_return_address(0), &who) && strstr(who.dli_fname, "libgpuflame"))
        return EAGAIN;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(made, how, start, with);
}

/* Fills the unused stack below this frame with a pattern, launches `times` times, and returns the number of bytes of
 * stack that the launches used. */
OWN_FRAME static long depth(int times)
{
    volatile unsigned char *below = (unsigned char *)__builtin_frame_address(0) - PAINTED;
    long at;
    /* Writes from high to low addresses, because a stack grows downwards, one page at a time. The nearest 512 bytes
     * belong to this function. */
    for (at = PAINTED - 512; at-- > 0;)
        below[at] = PAINT;
    launch(times);
    for (at = 0; at < PAINTED && below[at] == PAINT; at++)
        ;
    return PAINTED - at;
}

OWN_FRAME static long depth_within(int calls)
{
    long found = calls ? depth_within(calls - 1) : depth(1);
    __asm__ volatile("" ::: "memory");
    return found;
}

static void *painted(void *is_first)
{
    int turn, turns = is_first ? 1 : 19;
    void *library = NULL;
    for (turn = 0; turn < turns; turn++) {
        if (turn >= 13 && library)
            dlclose(library), library = NULL;
        else if (turn >= 13)
            library = dlopen("libresolv.so.2", RTLD_NOW);
        printf("%ld\n", depth_within(turn < 10 ? 0 : turn));
    }
    return NULL;
}

static void launch_in_handler(int signal)
{
    (void)signal;
    launch(1);
}

static void *on_a_signal_stack(void *nothing)
{
    static unsigned char area[PAINTED];
    stack_t stack = {.ss_sp = area, .ss_size = sizeof area};
    struct sigaction action = {.sa_handler = launch_in_handler, .sa_flags = SA_ONSTACK};
    long turn, at;
    launch(1);
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (turn = 0; turn < 6; turn++) {
        memset(area, PAINT, sizeof area);
        raise(SIGUSR1);
        for (at = 0; at < PAINTED && area[at] == PAINT; at++)
            ;
        printf("%ld\n", PAINTED - at);
    }
    return nothing;
}

static void on_a_thread(void *(*body)(void *), void *is_first)
{
    pthread_t thread;
    pthread_create(&thread, NULL, body, is_first);
    pthread_join(thread, NULL);
}

enum { THREADS = 8, PIECES = 256 };
static pthread_barrier_t turn;

static void *launch_without_memory(void *nothing)
{
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    errno = 77;
    launch(100);
    if (errno != 77)
        printf("errno is %d\n", errno);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    launch(1);
    return nothing;
}

static unsigned long address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1)
        exit(1);
    fclose(file);
    return pages << 12;
}

/* Limits the address space. Small allocations still succeed, because 16 MiB are free in the heap. */
static void memory(void)
{
    pthread_t threads[THREADS];
    void *pieces[PIECES];
    struct rlimit all, limit;
    int at;
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    pthread_barrier_init(&turn, NULL, THREADS + 1);
    for (at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, launch_without_memory, NULL);
    pthread_barrier_wait(&turn);
    for (at = 0; at < PIECES; at++)
        pieces[at] = malloc(64 << 10);
    for (at = 0; at < PIECES; at++)
        free(pieces[at]);
    getrlimit(RLIMIT_AS, &all);
    limit = all;
    limit.rlim_cur = address_space();
    setrlimit(RLIMIT_AS, &limit);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    setrlimit(RLIMIT_AS, &all);
    pthread_barrier_wait(&turn);
    for (at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    refuses = !strcmp(how, "threads");
    if (!strcmp(how, "depth")) {
        on_a_thread(painted, &refuses);
        on_a_thread(painted, NULL);
        on_a_thread(on_a_signal_stack, NULL);
    } else {
        launch(10);
        if (!strcmp(how, "memory"))
            memory();
        if (!strcmp(how, "descriptors")) {
            struct rlimit none = {3, 3};
            setrlimit(RLIMIT_NOFILE, &none);
        }
        launch(10);
    }
    cudaDeviceSynchronize();
    return CODE;
}
