/* Creates threads with names; each thread has its own stream on one of two GPUs. With the argument `roots`, each thread
 * adds its name at the root of its call site. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d700, "step_d700", (int n), &n)

/* Name, GPU and number of launches of each thread. */
static const struct job {
    const char *name;
    int device, launches;
} jobs[] = {{"left", 0, 1}, {"right", 1, 2}, {"worker", 0, 3}, {"worker", 1, 4}};

OWN_FRAME static void launch(cudaStream_t stream)
{
    LAUNCH(step_d700, 1, 32, stream)(1);
    __asm__ volatile("" ::: "memory");
}

OWN_FRAME static void *run(void *at)
{
    const struct job *job = at;
    cudaStream_t stream;
    int i;
    pthread_setname_np(pthread_self(), job->name);
    cudaSetDevice(job->device);
    cudaStreamCreate(&stream);
    printf("%s %ld\n", job->name, syscall(SYS_gettid));
    for (i = 0; i < job->launches; i++)
        launch(stream);
    return NULL;
}

int main(void)
{
    pthread_t ids[4];
    int i;
    for (i = 0; i < 4; i++) {
        pthread_create(&ids[i], NULL, run, (void *)&jobs[i]);
        pthread_join(ids[i], NULL);
    }
    cudaSetDevice(0);
    launch(0);
    cudaSetDevice(1);
    launch(0);
    printf("main %d\n", getpid());
    return 0;
}
