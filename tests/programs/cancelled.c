/* Creates threads that are cancelled before their first launch, and that end right after this launch.
 *
 *     cancelled THREADS [first|flush]
 *
 * - `first`: the launch of the first thread is the first CUDA call of the process, which starts gpuflame.
 * - `flush`: each thread calls gpuflame_flush() of the injected library instead of launching.
 *
 * Prints the number of threads that were cancelled. */
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d700, "step_d700", (int n), &n)

static int (*flush)(void);

OWN_FRAME static void *worker(void *nothing)
{
    int old;
    SITE("worker");
    pthread_cancel(pthread_self());
    if (!flush)
        LAUNCH(step_d700, 1, 32, 0)(1);
    else if (flush())
        return nothing;
    /* The cancelled thread ends at this call, unless gpuflame has left cancellation disabled. */
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    return nothing;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1, ended = 0;
    const char *how = argc > 2 ? argv[2] : "";
    if (strcmp(how, "first"))
        cudaDeviceSynchronize();
    if (!strcmp(how, "flush")) {
        void *library = dlopen("libgpuflame.so.0", RTLD_LAZY | RTLD_NOLOAD);
        *(void **)&flush = library ? dlsym(library, "gpuflame_flush") : NULL;
        if (!flush)
            return 2;
    }
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
