/* Launches from N different stacks, or launches N kernels with different names. After these launches, prints `ready`
 * and waits for a signal.
 *
 *     many stacks N [on] | names N [on] | again N
 *
 * With `on`, the program makes a launch every 10 ms while it waits. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")
enum { BITS = 20 };

KERNEL(step_d1000, "step_d1000", (int n), &n)

static void left(long way, int more);
static void right(long way, int more);

OWN_FRAME static void go_on(long way, int more)
{
    if (more == 0)
        LAUNCH(step_d1000, 1, 32, 0)(0);
    else if (way & 1)
        right(way >> 1, more - 1);
    else
        left(way >> 1, more - 1);
    KEEP;
}

OWN_FRAME static void left(long way, int more) { go_on(way, more); KEEP; }
OWN_FRAME static void right(long way, int more) { go_on(way, more); KEEP; }

/* Launches a kernel whose name is as long as the names of PyTorch's elementwise kernels. */
static int launch_named(CUmodule module, long number)
{
    char name[200];
    CUfunction function;
    void *parameters[] = {&number};
    snprintf(name, sizeof name,
             "_ZN2at6native29vectorized_elementwise_kernelILi%ldENS0_13BinaryFunctorIfffNS0_15binary_internal"
             "10MulFunctorIfEEEESt5arrayIPcLm3EEEEvifT_T0_",
             number);
    return cuModuleGetFunction(&function, module, name) ||
           cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
}

static volatile sig_atomic_t is_over;

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

/* Makes 20,000 launches per second, as a training loop may do, until SIGUSR1 arrives. */
static int again(long count)
{
    struct timespec began, now;
    long launches = 0;
    signal(SIGUSR1, end);
    puts("ready");
    fflush(stdout);
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (!is_over) {
        go_on(launches++ % count, BITS);
        if (launches % 20 == 0) {
            cudaDeviceSynchronize();
            usleep(1000);
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%.0f\n", (double)launches / (double)(now.tv_sec - began.tv_sec));
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    long count = argc > 2 ? atol(argv[2]) : 0, i;
    int is_stacks = argc > 1 && !strcmp(argv[1], "stacks");
    CUmodule module = NULL;
    cudaFree(NULL);
    if (count <= 0 || cuModuleLoadData(&module, ""))
        return 2;
    if (!strcmp(argv[1], "again"))
        return again(count);
    for (i = 0; i < count; i++) {
        if (is_stacks)
            go_on(i, BITS);
        else if (launch_named(module, i))
            return 3;
        if (i % 4096 == 0)
            cudaDeviceSynchronize();
    }
    cudaDeviceSynchronize();
    puts("ready");
    fflush(stdout);
    while (argc <= 3)
        pause();
    for (i = 0;; i++) {
        go_on(i % count, BITS);
        usleep(10000);
    }
}
