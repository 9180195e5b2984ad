/* Twenty times, the program runs a kernel, waits for it, computes for 10 ms of CPU time, and sleeps for 30 ms. */
#include "cuda_mini.h"

#include <stdint.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(step_d1000, "step_d1000", (int n), &n)

static volatile uint64_t result;

OWN_FRAME static void compute(void)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    do {
        for (int at = 0; at < 20000; at++)
            result += (uint64_t)at * at;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000000000ll + now.tv_nsec - begin.tv_nsec < 10000000);
    KEEP_FRAME();
}

OWN_FRAME static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    KEEP_FRAME();
}

int main(void)
{
    for (int turn = 0; turn < 20; turn++) {
        LAUNCH(step_d1000, 1, 32, 0)(0);
        cudaDeviceSynchronize();
        compute();
        rest();
    }
    return 0;
}
