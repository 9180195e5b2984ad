/* Threads that are asked to end before they launch for the first time, and end right behind it.
 *
 *     cancelled THREADS
 *
 * It prints how many of them ended so. */
#include "cuda_mini.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d700, "step_d700", (int n), &n)

OWN_FRAME static void *worker(void *nothing)
{
    int old;
    SITE("worker");
    pthread_cancel(pthread_self());
    LAUNCH(step_d700, 1, 32, 0)(1);
    /* Had gpuflame left it switched off, nothing would end here. */
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    return nothing;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1, ended = 0;
    cudaDeviceSynchronize();
    while (threads-- > 0) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, worker, NULL) || pthread_join(thread, &result))
            return 1;
        ended += result == PTHREAD_CANCELED;
    }
    printf("%d\n", ended);
    return 0;
}
