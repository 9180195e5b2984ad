/* `launches THREADS COUNT [sites]`: each thread launches COUNT kernels and alternates between two call sites. The
 * program prints launches per second and resident memory in kB. */
#include "cuda_mini.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

KERNEL(even, "_Z9even_d100i", (int n), &n)
KERNEL(odd, "_Z8odd_d250i", (int n), &n)

static long count;

static void *work(void *unused) {
    for (long i = 0; i < count; i++) {
        SITE(i % 2 ? "work;odd" : "work;even");
        if (i % 2)
            LAUNCH(odd, 1, 32, 0)(1);
        else
            LAUNCH(even, 1, 32, 0)(1);
    }
    return unused;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static long resident(void) {
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, f)) if (!strncmp(line, "VmHWM:", 6)) kb = atol(line + 6);
    fclose(f);
    return kb;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    count = argc > 2 ? atol(argv[2]) : 1000;
    pthread_t ids[64];
    cudaSetDevice(0);
    double start = now();
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, NULL);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    cudaDeviceSynchronize();
    printf("%.0f %ld\n", threads * count / (now() - start), resident());
    return 0;
}
