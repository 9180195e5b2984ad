/* A program that has forbidden itself, or us, something.
 *
 *     confined depth          prints how many bytes of the stack each launch takes: the first of all, and those of another thread
 *     confined descriptors    no further descriptor can be opened, from the first launches on
 *     confined threads        no thread can be made by gpuflame
 *
 * It launches 20 times in any case, and ends with code 7. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
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

/* In the place of the C library's. */
int pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*start)(void *), void *with)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    Dl_info who;
    if (refuses && dladdr(__builtin_return_address(0), &who) && strstr(who.dli_fname, "libgpuflame"))
        return EAGAIN;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(made, how, start, with);
}

/* Paints the stack below, has `times` launches made on it, and counts what lost its paint. */
OWN_FRAME static long depth(int times)
{
    volatile unsigned char *below = (unsigned char *)__builtin_frame_address(0) - PAINTED;
    long at;
    /* A page at a time, downwards, as a stack grows; what is nearest belongs to this function. */
    for (at = PAINTED - 512; at-- > 0;)
        below[at] = PAINT;
    launch(times);
    for (at = 0; at < PAINTED && below[at] == PAINT; at++)
        ;
    return PAINTED - at;
}

static void *painted(void *is_first)
{
    int turn, turns = is_first ? 1 : 19;
    for (turn = 0; turn < turns; turn++)
        printf("%ld\n", depth(1));
    return NULL;
}

static void on_a_thread(void *is_first)
{
    pthread_t thread;
    pthread_create(&thread, NULL, painted, is_first);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    refuses = !strcmp(how, "threads");
    if (!strcmp(how, "depth")) {
        on_a_thread(&refuses);
        on_a_thread(NULL);
    } else {
        launch(10);
        if (!strcmp(how, "descriptors")) {
            struct rlimit none = {3, 3};
            setrlimit(RLIMIT_NOFILE, &none);
        }
        launch(10);
    }
    cudaDeviceSynchronize();
    return CODE;
}
