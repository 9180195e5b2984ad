/* Ends the main thread by pthread_exit. Another thread of the program blocks all signals, starts while gpuflame is set
 * up, and outlives the main thread.
 *
 *     left worker|nothing
 *
 * - `worker`: this thread starts in the middle of the first CUDA call, works for some seconds, and ends the process
 *   with code 7.
 * - `nothing`: this thread does not exist, and the process ends when main has ended.
 *
 * The program starts this thread as soon as gpuflame or CUPTI creates a thread. If neither gpuflame nor CUPTI creates a
 * thread, the program starts this thread after the first CUDA call. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

KERNEL(step_d1000, "step_d1000", (int n), &n)

static int is_wanted, is_started;
static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static void *work(void *nothing)
{
    (void)nothing;
    sleep(5);
    exit(7);
}

static void start_once(void)
{
    sigset_t all, old;
    pthread_t worker;
    if (!is_wanted || __atomic_exchange_n(&is_started, 1, __ATOMIC_SEQ_CST))
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (create(&worker, NULL, work, NULL) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Replaces the C library's pthread_create, to detect that gpuflame or CUPTI creates a thread. */
int pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*start)(void *), void *with)
{
    start_once();
    return create(made, how, start, with);
}

__attribute__((constructor)) static void find(void)
{
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
}

int main(int argc, char **argv)
{
    is_wanted = argc > 1 && !strcmp(argv[1], "worker");
    alarm(60);
    LAUNCH(step_d1000, 1, 32, 0)(1);
    cudaDeviceSynchronize();
    start_once();
    pthread_exit(NULL);
}
