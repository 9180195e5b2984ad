/* A program whose streams wait for each other by CUDA events, and whose host thread waits in every possible way. The
 * program sets its call sites; the simulated stack's truth file lists all its waits and event records. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdio.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

CUresult cuEventRecord(void *event, CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, void *event, unsigned flags);

KERNEL(produce_d40000, "produce_d40000", (int n), &n)
KERNEL(consume_d20000, "consume_d20000", (int n), &n)
KERNEL(busy_d3000000, "busy_d3000000", (int n), &n)

static cudaStream_t a, b;
static cudaEvent_t ready;

OWN_FRAME static void producer(void)
{
    SITE("main;producer");
    LAUNCH(produce_d40000, 1, 32, a)(1);
    cudaEventRecord(ready, a);
    KEEP_FRAME();
}

OWN_FRAME static void consumer(void)
{
    SITE("main;consumer");
    cudaStreamWaitEvent(b, ready, 0);
    LAUNCH(consume_d20000, 1, 32, b)(1);
    KEEP_FRAME();
}

OWN_FRAME static void by_the_driver(void)
{
    SITE("main;by_the_driver");
    cuEventRecord(ready, b);
    cuStreamWaitEvent(a, ready, 0);
    KEEP_FRAME();
}

/* Creates and destroys an event in each round, so the same handle belongs to several events, one after another. */
OWN_FRAME static void anew(void)
{
    cudaEvent_t event;
    SITE("main;anew");
    cudaEventCreate(&event);
    cudaEventRecord(event, NULL);
    cudaStreamWaitEvent(a, event, 0);
    cudaEventDestroy(event);
    KEEP_FRAME();
}

OWN_FRAME static void poll(void)
{
    SITE("main;poll");
    LAUNCH(busy_d3000000, 1, 32, a)(1);
    cudaEventRecord(ready, a);
    while (cudaEventQuery(ready) != 0)
        ;
    cudaStreamQuery(a);
    KEEP_FRAME();
}

OWN_FRAME static void waits(void)
{
    SITE("main;waits");
    cudaStreamSynchronize(a);
    cudaEventSynchronize(ready);
    cudaDeviceSynchronize();
    cuCtxSynchronize();
    KEEP_FRAME();
}

/* Captures two calls of each kind. The captured calls only build a graph, so they make no activity records. */
OWN_FRAME static void captured(void)
{
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEventCreate(&fork);
    cudaEventCreate(&join);
    SITE("main;captured");
    cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
    cudaEventRecord(fork, a);
    cudaStreamWaitEvent(b, fork, 0);
    LAUNCH(consume_d20000, 1, 32, b)(1);
    cudaEventRecord(join, b);
    cudaStreamWaitEvent(a, join, 0);
    cudaStreamEndCapture(a, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, a);
    KEEP_FRAME();
}

/* Makes calls that fail. A failing call produces neither an activity record nor a row in the recording. */
OWN_FRAME static void refused(void)
{
    SITE("main;refused");
    cudaEventRecord(NULL, a);
    cudaStreamWaitEvent(a, NULL, 0);
    KEEP_FRAME();
}

OWN_FRAME static void *elsewhere(void *nothing)
{
    SITE("elsewhere");
    cudaStreamWaitEvent(b, ready, 0);
    cudaStreamSynchronize(b);
    KEEP_FRAME();
    return nothing;
}

int main(void)
{
    pthread_t thread;
    int i;
    cudaStreamCreate(&a);
    cudaStreamCreate(&b);
    cudaEventCreate(&ready);
    for (i = 0; i < 3; i++) {
        producer();
        consumer();
        anew();
    }
    by_the_driver();
    poll();
    waits();
    captured();
    refused();
    pthread_create(&thread, NULL, elsewhere, NULL);
    pthread_join(thread, NULL);
    return 0;
}
