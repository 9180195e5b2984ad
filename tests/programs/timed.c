/* timed MODE: launches kernels for windows that are opened not by the program but by settings. MODE is:
 *
 * - `steps N`, `ranges N`: step I has I launches.
 * - `profiler`: 5 launches, then 7 launches between cudaProfilerStart and cudaProfilerStop, and then 11 launches.
 * - `handled`: 3 launches, a signal for which the program has a handler, and 3 launches; the program ends with code 4
 *   if the handler is not called.
 * - `graphs N`: the program first captures a graph of 3 kernels, and launches it once in each of N steps.
 * - `run THREADS`: THREADS threads launch a few thousand times per second each, with a step about every millisecond,
 *   until a file `stop` exists. */
#define GPUFLAME_HEADER_ONLY
#include "cuda_mini.h"
#include "gpuflame.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d20000, "step_d20000", (int n), &n)

static volatile int is_over;

OWN_FRAME static void launch(int count, cudaStream_t stream)
{
    int i;
    SITE("main;launch");
    for (i = 0; i < count; i++)
        LAUNCH(step_d20000, 1, 32, stream)(i);
    __asm__ volatile("" ::: "memory");
}

static void steps(int count, int are_ranges)
{
    int step;
    for (step = 1; step <= count; step++) {
        char name[32];
        snprintf(name, sizeof name, "step %d", step);
        if (are_ranges)
            gpuflame_range_push(name);
        else
            gpuflame_step();
        launch(step, NULL);
        if (are_ranges)
            gpuflame_range_pop();
    }
}

static void profiler(void)
{
    launch(5, NULL);
    cudaProfilerStart();
    launch(7, NULL);
    cudaProfilerStop();
    launch(11, NULL);
}

static volatile sig_atomic_t noted;

static void note(int signal)
{
    noted = signal;
}

static void handled(void)
{
    launch(3, NULL);
    raise(SIGUSR2);
    launch(3, NULL);
    if (noted != SIGUSR2)
        exit(4);
}

OWN_FRAME static void replay(cudaGraphExec_t exec, cudaStream_t stream)
{
    SITE("main;replay");
    cudaGraphLaunch(exec, stream);
    __asm__ volatile("" ::: "memory");
}

static void graphs(int count)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int step;
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, 0);
    launch(3, stream);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (step = 1; step <= count; step++) {
        gpuflame_step();
        replay(exec, stream);
    }
    cudaStreamSynchronize(stream);
}

static void *worker(void *stream)
{
    while (!is_over) {
        launch(1, stream);
        usleep(300);
    }
    return NULL;
}

static void run(int threads)
{
    pthread_t ids[64];
    int i;
    launch(1, NULL); /* this launch initialises CUDA */
    for (i = 0; i < threads; i++) {
        cudaStream_t stream;
        cudaStreamCreate(&stream);
        pthread_create(&ids[i], NULL, worker, stream);
    }
    while (access("stop", F_OK)) {
        gpuflame_step();
        usleep(1000);
    }
    is_over = 1;
    for (i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int count = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(mode, "handled"))
        signal(SIGUSR2, note);
    cudaFree(NULL); /* the first CUDA call; gpuflame counts only steps after it */
    if (!strcmp(mode, "steps") || !strcmp(mode, "ranges"))
        steps(count, mode[0] == 'r');
    else if (!strcmp(mode, "profiler"))
        profiler();
    else if (!strcmp(mode, "handled"))
        handled();
    else if (!strcmp(mode, "graphs"))
        graphs(count);
    else if (!strcmp(mode, "run"))
        run(count);
    else
        return 2;
    return cudaDeviceSynchronize();
}
