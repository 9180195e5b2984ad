/* The thread that makes the first CUDA call has unusual scheduler settings: it is bound to one processor, in a
 * non-default scheduling class, with a higher nice value than the other threads. The program prints these settings
 * (processors, class, niceness) of the main thread and of the threads whose names begin with `gpuflame`, one line per
 * thread. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

KERNEL(step_d700, "step_d700", (int n), &n)

static void *first(void *nothing)
{
    struct sched_param none = {0};
    cpu_set_t one;
    int at;
    sched_getaffinity(0, sizeof one, &one);
    for (at = 0; !CPU_ISSET(at, &one);)
        at++;
    CPU_ZERO(&one);
    CPU_SET(at, &one);
    if (sched_setaffinity(0, sizeof one, &one) || sched_setscheduler(0, SCHED_BATCH, &none) ||
        setpriority(PRIO_PROCESS, (id_t)gettid(), 7))
        exit(2);
    LAUNCH(step_d700, 1, 32, 0)(1);
    cudaDeviceSynchronize();
    return nothing;
}

static void tell(int thread)
{
    cpu_set_t set;
    int at;
    sched_getaffinity(thread, sizeof set, &set);
    for (at = 0; at < CPU_SETSIZE; at++)
        if (CPU_ISSET(at, &set))
            printf("%d,", at);
    printf(" %d %d\n", sched_getscheduler(thread), getpriority(PRIO_PROCESS, (id_t)thread));
}

/* Waits at most 5 s until the thread has other settings, because a new thread first has the settings of its creator. */
static void wait_until_as(int wanted, int thread)
{
    int tries;
    for (tries = 0; tries < 500; tries++) {
        if (sched_getscheduler(thread) == sched_getscheduler(wanted) &&
            getpriority(PRIO_PROCESS, (id_t)thread) == getpriority(PRIO_PROCESS, (id_t)wanted))
            return;
        usleep(10000);
    }
}

int main(void)
{
    pthread_t thread;
    struct dirent *entry;
    DIR *all;
    if (pthread_create(&thread, NULL, first, NULL) || pthread_join(thread, NULL))
        return 1;
    tell(getpid());
    all = opendir("/proc/self/task");
    while ((entry = readdir(all))) {
        char path[64], name[32] = "";
        FILE *file;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", entry->d_name);
        if (!(file = fopen(path, "r")))
            continue;
        if (fgets(name, sizeof name, file) && !strncmp(name, "gpuflame", 8)) {
            wait_until_as(getpid(), atoi(entry->d_name));
            tell(atoi(entry->d_name));
        }
        fclose(file);
    }
    return 0;
}
