/* A rank of a distributed job: each of COUNT steps launches a compute kernel and an all-reduce kernel. If RANK is 1,
 * the all-reduce takes 1 us, because this rank arrives last. If RANK is not 1, the all-reduce takes 90 us, most of
 * which is waiting. If RANK is not set, the program starts itself as ranks 0 and 1.
 *
 *     ranks COUNT [unmarked]
 *
 * With `unmarked`, the program does not mark its steps. */
#define _GNU_SOURCE
#define GPUFLAME_HEADER_ONLY
#include "cuda_mini.h"
#include "gpuflame.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

KERNEL(gemm_d20000, "gemm_d20000", (int n), &n)
KERNEL(reduce_d90000, "ncclDevKernel_AllReduce_d90000", (int n), &n)
KERNEL(reduce_d1000, "ncclDevKernel_AllReduce_d1000", (int n), &n)

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");
    int count = argc > 1 ? atoi(argv[1]) : 1, step, other;
    for (other = 0; !rank && other < 2; other++) {
        if (fork() == 0) {
            char number[2] = {(char)('0' + other), 0};
            setenv("RANK", number, 1);
            execv("/proc/self/exe", argv);
            _exit(9);
        }
    }
    if (rank) {
        /* gpuflame starts at the first CUDA call, and does not record steps before this call. */
        cudaDeviceSynchronize();
        usleep(300000);
    }
    for (step = 0; rank && step < count; step++) {
        if (argc < 3)
            gpuflame_step();
        LAUNCH(gemm_d20000, 1, 32, NULL)(step);
        if (rank[0] == '1')
            LAUNCH(reduce_d1000, 1, 32, NULL)(step);
        else
            LAUNCH(reduce_d90000, 1, 32, NULL)(step);
        cudaDeviceSynchronize();
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}
