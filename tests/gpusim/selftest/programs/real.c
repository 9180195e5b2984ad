/* Runs on the real clock: measures waits, queries and events around a kernel of 100 ms, and prints the times in ms. */
#include "cuda_mini.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

KERNEL(long_one, "_Z19long_one_d100000000v", (void), NULL)
KERNEL(short_one, "_Z14short_one_d100v", (void), NULL)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    cudaEvent_t from, to;
    float ms = 0;
    cudaSetDevice(0);
    cudaEventCreate(&from), cudaEventCreate(&to);
    double start = now();
    LAUNCH(short_one, 1, 1, 0)();
    cudaEventRecord(from, 0);
    LAUNCH(long_one, 1, 1, 0)();
    cudaEventRecord(to, 0);
    double launched = now();
    if (argc > 1 && !strcmp(argv[1], "leave")) return 0;
    int query = cudaStreamQuery(0);
    cudaDeviceSynchronize();
    double waited = now();
    cudaEventElapsedTime(&ms, from, to);
    printf("launched=%.0f query=%d waited=%.0f again=%d event=%.0f\n", launched - start, query, waited - start,
           cudaStreamQuery(0), ms);
    return 0;
}
