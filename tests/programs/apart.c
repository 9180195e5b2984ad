/* apart MODE: opens and closes windows by gpuflame's functions, one after another. MODE is:
 *
 * - `slow`: one window with a kernel of 12 s.
 * - `closed`: three windows. The first window has 5 launches. The second window has 7 launches and a graph of 3 kernels
 *   that was captured before this window. The third window has 11 launches and is opened by cudaProfilerStart. Between
 *   the windows, the program launches once per millisecond, until the file `capture`, `open` or `profiler` exists.
 * - WINDOWS: window I has I launches and one launch of a graph of 3 kernels. Between two windows there is one launch.
 *   At the end the program waits until a file `stop` exists.
 * - WINDOWS EACH: every window has EACH launches, at 300,000 per second; half as many launches follow outside the
 *   window. At most MAX_WAITING windows have no file yet, however slow the machine is. After a tenth of the windows and
 *   at the end, the program prints its resident memory and its number of descriptors. At the end it also prints the CPU
 *   time of its other threads.
 * - one WINDOWS EACH: makes the same launches in a single window. */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#define GPUFLAME_HEADER_ONLY
#include "cuda_mini.h"
#include "gpuflame.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define MAX_WAITING 250

KERNEL(step_d20000, "step_d20000", (int n), &n)
KERNEL(slow_d12000000000, "slow_d12000000000", (int n), &n)
KERNEL(short_d300, "short_d300", (int n), &n)

OWN_FRAME static void launch(int count, cudaStream_t stream)
{
    int i;
    SITE("main;launch");
    for (i = 0; i < count; i++)
        LAUNCH(step_d20000, 1, 32, stream)(i);
    __asm__ volatile("" ::: "memory");
}

OWN_FRAME static void replay(cudaGraphExec_t exec, cudaStream_t stream)
{
    SITE("main;replay");
    cudaGraphLaunch(exec, stream);
    __asm__ volatile("" ::: "memory");
}

static void await_stop(void)
{
    while (access("stop", F_OK))
        usleep(1000);
}

static void windows(int count)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int i;
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, 0);
    launch(3, stream);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (i = 1; i <= count; i++) {
        gpuflame_start();
        launch(i, stream);
        replay(exec, stream);
        gpuflame_stop();
        launch(1, stream);
    }
    await_stop();
}

static void slow(void)
{
    gpuflame_start();
    LAUNCH(slow_d12000000000, 1, 32, NULL)(0);
    gpuflame_stop();
    await_stop();
}

static void launch_until(const char *file)
{
    while (access(file, F_OK)) {
        launch(1, NULL);
        usleep(1000);
    }
}

static void closed(void)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCreate(&stream);
    gpuflame_start();
    launch(5, stream);
    gpuflame_stop();
    launch_until("capture");
    cudaStreamBeginCapture(stream, 0);
    launch(3, stream);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    launch_until("open");
    gpuflame_start();
    launch(7, stream);
    replay(exec, stream);
    gpuflame_stop();
    launch_until("profiler");
    cudaProfilerStart();
    launch(11, stream);
    cudaProfilerStop();
    launch(2, stream);
}

static double seconds(const struct timeval *time)
{
    return time->tv_sec + time->tv_usec / 1e6;
}

/* Prints the resident memory and the number of open descriptors. */
static void print_held(const char *when)
{
    long pages = 0, resident = 0, descriptors = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    DIR *folder = opendir("/proc/self/fd");
    if (!statm || !folder || fscanf(statm, "%ld %ld", &pages, &resident) != 2)
        exit(3);
    fclose(statm);
    while (readdir(folder))
        descriptors++;
    closedir(folder);
    printf("%s %ld KiB %ld descriptors\n", when, resident * (sysconf(_SC_PAGESIZE) / 1024), descriptors);
}

static double others_took(void)
{
    struct rusage all, mine;
    getrusage(RUSAGE_SELF, &all);
    getrusage(RUSAGE_THREAD, &mine);
    return seconds(&all.ru_utime) + seconds(&all.ru_stime) - seconds(&mine.ru_utime) - seconds(&mine.ru_stime);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

OWN_FRAME static void paced(int count)
{
    static double next;
    int i;
    if (!next)
        next = now();
    for (i = 0; i < count; i++) {
        while (now() < next)
            ;
        next += 1 / 300e3;
        LAUNCH(short_d300, 1, 32, NULL)(i);
    }
    __asm__ volatile("" ::: "memory");
}

/* Waits at most a minute for a file whose name is `pattern` with `number` inserted. */
static void wait_for(const char *pattern, int number)
{
    char name[64];
    int millis = 0;
    snprintf(name, sizeof name, pattern, number);
    while (access(name, F_OK) != 0 && millis++ < 60000)
        usleep(1000);
}

static void many(int count, int each, int is_one)
{
    double began, took;
    int i;
    if (is_one)
        gpuflame_start();
    began = now();
    for (i = 1; i <= count; i++) {
        if (!is_one && i > MAX_WAITING)
            wait_for("out.%d.folded", i - MAX_WAITING);
        if (!is_one)
            gpuflame_start();
        paced(each);
        if (!is_one)
            gpuflame_stop();
        paced(each / 2);
        if (i == count / 10)
            print_held("a tenth");
    }
    took = now() - began;
    cudaDeviceSynchronize();
    if (is_one)
        gpuflame_stop();
    sleep(4); /* gpuflame writes files during this time; a slow machine needs more */
    if (!is_one)
        wait_for("out.%d.folded", count - 1);
    print_held("the end");
    printf("%.0f launches/s, other threads took %.3f s\n", count * (each + each / 2) / took, others_took());
}

int main(int argc, char **argv)
{
    int is_one = argc > 1 && !strcmp(argv[1], "one");
    cudaFree(NULL);
    if (argc > 2 + is_one)
        many(atoi(argv[1 + is_one]), atoi(argv[2 + is_one]), is_one);
    else if (argc > 1 && !strcmp(argv[1], "slow"))
        slow();
    else if (argc > 1 && !strcmp(argv[1], "closed"))
        closed();
    else
        windows(argc > 1 ? atoi(argv[1]) : 1);
    return cudaDeviceSynchronize();
}
