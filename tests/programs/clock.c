/* A program that sees the system clock jump while it runs.
 *
 *     clock SECONDS [BACK]
 *
 * Launches 50 times; sets the clock forward by SECONDS (negative: back); launches 50 times; sets the clock back by BACK
 * seconds; launches 50 times. The program must be linked with -rdynamic, because it replaces the C library's clock
 * function by its own. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d700, "step_d700", (int n), &n)

static volatile long ahead;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*real)(clockid_t, struct timespec *);
    int code;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    code = real(clock, time);
    if (clock == CLOCK_REALTIME)
        time->tv_sec += ahead;
    return code;
}

OWN_FRAME static void launch(void)
{
    /* The pauses are long enough for gpuflame to read the clock before and after each change. */
    struct timespec pause = {0, 300000000};
    int n;
    SITE("main;launch");
    for (n = 0; n < 50; n++)
        LAUNCH(step_d700, 1, 32, 0)(n);
    cudaDeviceSynchronize();
    nanosleep(&pause, NULL);
    __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
    launch();
    ahead += argc > 1 ? atol(argv[1]) : 0;
    launch();
    if (argc > 2) {
        ahead -= atol(argv[2]);
        launch();
    }
    return 0;
}
