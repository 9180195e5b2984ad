/* A program whose GPU is idle for 5 ms in each step. The argument selects the reason:
 *
 *     culprits sleep|function|lock|file|allocation|thread|calls [STEPS]
 *
 * - `sleep`: the function `train` sleeps after it has waited for the GPU.
 * - `function`: the function `slow_checkpoint` waits for the GPU, and then computes.
 * - `lock`: the function `locked` waits for the GPU, and then for a lock that another thread holds.
 * - `file`: the function `read_file` reads a pipe into which another thread writes late, and then makes a copy.
 * - `allocation`: the function `grow` touches host memory between an allocation and a free.
 * - `thread`: another thread launches, and then does something else while `train` waits for it.
 * - `calls`: the function `train` makes no CUDA call for 5 ms, allocates, and makes no call for another 5 ms.
 *
 * The program prints the time in nanoseconds for which the GPU was idle because of this reason. The program also prints
 * the total time, in nanoseconds, for which its threads were ready to run but had no processor. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
#define STALL 5000000ul

KERNEL(multiply_d2000, "multiply_d2000", (int n), &n)
KERNEL(derive_d2000, "derive_d2000", (int n), &n)

static unsigned long lost, waited;
static char *host;
static void *device;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held;
static int ends[2];

static unsigned long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static void stall(void)
{
    struct timespec pause = {0, STALL};
    nanosleep(&pause, NULL);
}

/* Adds the time for which the calling thread was ready to run but had no processor to the total. */
static void add_waited(void)
{
    unsigned long ns = 0;
    FILE *figures = fopen("/proc/thread-self/schedstat", "r");
    if (figures && fscanf(figures, "%*u %lu", &ns) != 1)
        ns = 0;
    if (figures)
        fclose(figures);
    __atomic_fetch_add(&waited, ns, __ATOMIC_RELAXED);
}

static void *holds_the_lock(void *none)
{
    (void)none;
    pthread_mutex_lock(&mutex);
    pthread_barrier_wait(&held);
    stall();
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void *writes(void *none)
{
    (void)none;
    stall();
    if (write(ends[1], "x", 1) != 1)
        abort();
    return NULL;
}

OWN_FRAME static void compute(void)
{
    SITE("main;train;compute");
    LAUNCH(multiply_d2000, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void slow_checkpoint(void)
{
    unsigned long began;
    cudaDeviceSynchronize();
    began = now();
    while (now() - began < STALL)
        ;
    lost += now() - began;
    KEEP_FRAME();
}

OWN_FRAME static void locked(void)
{
    pthread_t thread;
    unsigned long began;
    cudaDeviceSynchronize();
    /* Start the measurement before any operation that can take long on a busy machine. */
    began = now();
    pthread_create(&thread, NULL, holds_the_lock, NULL);
    pthread_barrier_wait(&held);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    lost += now() - began;
    pthread_join(thread, NULL);
    KEEP_FRAME();
}

OWN_FRAME static void read_file(void)
{
    pthread_t thread;
    unsigned long began = now();
    SITE("main;train;read_file");
    pthread_create(&thread, NULL, writes, NULL);
    if (read(ends[0], host, 1) != 1)
        abort();
    lost += now() - began;
    cudaMemcpyAsync(device, host, 1000, cudaMemcpyHostToDevice, 0);
    pthread_join(thread, NULL);
    KEEP_FRAME();
}

OWN_FRAME static void grow(void)
{
    void *more;
    unsigned long began;
    cudaMalloc(&more, 1 << 20);
    began = now();
    stall();
    lost += now() - began;
    cudaFree(more);
    KEEP_FRAME();
}

OWN_FRAME static void derive(void)
{
    SITE("backward;derive");
    LAUNCH(derive_d2000, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void *backward(void *none)
{
    unsigned long began;
    (void)none;
    pthread_setname_np(pthread_self(), "autograd");
    derive();
    began = now();
    stall();
    lost += now() - began;
    add_waited();
    KEEP_FRAME();
    return NULL;
}

OWN_FRAME static void run_backward(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, backward, NULL);
    pthread_join(thread, NULL);
    KEEP_FRAME();
}

OWN_FRAME static void train(const char *what, int steps)
{
    int step;
    for (step = 0; step < steps; step++) {
        unsigned long began;
        compute();
        if (!strcmp(what, "sleep")) {
            cudaDeviceSynchronize();
            began = now();
            stall();
            lost += now() - began;
        } else if (!strcmp(what, "function"))
            slow_checkpoint();
        else if (!strcmp(what, "lock"))
            locked();
        else if (!strcmp(what, "file"))
            read_file();
        else if (!strcmp(what, "allocation"))
            grow();
        else if (!strcmp(what, "thread"))
            run_backward();
        else if (!strcmp(what, "calls")) {
            void *more;
            stall();
            cudaMalloc(&more, 1 << 20);
            stall();
        }
        compute();
        cudaDeviceSynchronize();
    }
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    if (argc < 2 || pipe(ends) || pthread_barrier_init(&held, NULL, 2))
        return 2;
    cudaMallocHost((void **)&host, 1000);
    cudaMalloc(&device, 1000);
    train(argv[1], argc > 2 ? atoi(argv[2]) : 10);
    add_waited();
    printf("%lu %lu\n", lost, waited);
    return 0;
}
