/* planted THREADS ROUNDS: in each round, every thread calls three functions, and each of these functions launches a
 * different kernel. The environment variable GPUSIM_KERNELS sets how long each kernel takes, so it is known which share
 * of the GPU time each function causes. The program prints the average duration of a launch on the slowest thread, in
 * nanoseconds. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(attend, "attend", (int n), &n)
KERNEL(feed, "feed", (int n), &n)
KERNEL(planted, "planted", (int n), &n)

static int rounds = 1000;
static pthread_barrier_t together;

OWN_FRAME static void attention(int n)
{
    LAUNCH(attend, 1, 32, 0)(n);
    KEEP_FRAME();
}

OWN_FRAME static void feed_forward(int n)
{
    LAUNCH(feed, 1, 32, 0)(n);
    KEEP_FRAME();
}

OWN_FRAME static void planted_function(int n)
{
    LAUNCH(planted, 1, 32, 0)(n);
    KEEP_FRAME();
}

OWN_FRAME static void *worker(void *took)
{
    struct timespec begin, end;
    attention(-1); /* the first call sets CUDA up, so it must not count towards the cost of a launch */
    pthread_barrier_wait(&together);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int at = 0; at < rounds; at++) {
        attention(at);
        feed_forward(at);
        planted_function(at);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    *(double *)took = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1, at;
    rounds = argc > 2 ? atoi(argv[2]) : rounds;
    pthread_t ids[64];
    double took[64] = {0}, most = 0;
    if (threads < 1 || threads > 64 || rounds < 1)
        return 2;
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (at = 0; at < threads; at++)
        if (pthread_create(&ids[at], NULL, worker, &took[at]))
            return 1;
    for (at = 0; at < threads; at++) {
        pthread_join(ids[at], NULL);
        most = took[at] > most ? took[at] : most;
    }
    printf("ns_per_launch %.0f\n", most / (3.0 * rounds));
    return 0;
}
