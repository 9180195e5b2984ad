/* Before the first CUDA call, the program uses up the loader's static reserve for thread-local storage. After the call,
 * three threads launch; one of these threads was created before the first CUDA call.
 *
 *     late_tls FOLDER      FOLDER has libraries 0.so to 99.so, each with variables that need the reserve */
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d700, "step_d700", (int n), &n)

static sem_t loaded;

OWN_FRAME static void *worker(void *waits)
{
    int n;
    SITE("worker");
    if (waits)
        sem_wait(&loaded);
    for (n = 0; n < 10; n++)
        LAUNCH(step_d700, 1, 32, 0)(n);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t old, new;
    char path[4096];
    int n;
    sem_init(&loaded, 0, 0);
    pthread_create(&old, NULL, worker, &loaded);
    for (n = 0; n < 100; n++) {
        snprintf(path, sizeof path, "%s/%d.so", argv[argc - 1], n);
        if (!dlopen(path, RTLD_NOW))
            break;
    }
    if (n == 100)
        return 2;
    printf("%s\n", dlerror());
    pthread_create(&new, NULL, worker, NULL);
    pthread_join(new, NULL);
    sem_post(&loaded);
    pthread_create(&new, NULL, worker, NULL);
    pthread_join(old, NULL);
    pthread_join(new, NULL);
    cudaDeviceSynchronize();
    return 0;
}
