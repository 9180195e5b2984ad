/* A random program for the stepped clock: `random SEED [STEPS [WITHOUT]]` makes STEPS (default 60) steps on each of 1
 * to 3 host threads, on 1 or 2 GPUs. WITHOUT is the sum of the numbers of the features to leave out: 1 graphs, 2
 * programmatic launches, 4 host functions on streams, 8 the legacy default stream, 16 threads other than the main
 * thread, 32 host functions in graphs. The seed alone determines all steps. The steps are: kernels of 0.3 to 40 us
 * (plain and programmatic), copies and fills (with and without a wait), events, graphs with branches (built and
 * captured), host functions, waits of streams and threads, queries, and `gpusim_work` between the API calls. The steps
 * use blocking, non-blocking and default CUDA streams. */
#include "cuda_mini.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

KERNEL(tiny, "_Z9tiny_d300v", (void), NULL)
KERNEL(small, "_Z11small_d2700v", (void), NULL)
KERNEL(medium, "_Z19medium_t9000_d12345v", (void), NULL)
KERNEL(large, "_Z12large_d40000v", (void), NULL)
KERNEL(patient, "_Z18patient_s800_d6001v", (void), NULL)

static void (*const kernels[])(void) = {tiny, small, medium, large, patient};

enum { MAX_GPUS = 2, MAX_THREADS = 3, STREAMS = 4, EVENTS = 4, GRAPHS = 2, NODES = 7 };

/* Streams, events and memory of one host thread on one GPU. Other host threads wait for these CUDA events, too. */
struct gpu {
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[EVENTS];
    cudaGraphExec_t graphs[GRAPHS];
    void *memory;
};

static struct gpu gpus[MAX_THREADS][MAX_GPUS];
static int gpu_count, thread_count, steps = 60, without;
enum { GRAPH = 1, PROGRAMMATIC = 2, HOST_FUNCTION = 4, LEGACY = 8, THREADS = 16, HOST_NODE = 32 };
static uint64_t seed;

struct host {
    uint64_t state;
    int number, device;
};

/* splitmix64 */
static uint64_t below(struct host *host, uint64_t limit) {
    uint64_t z = host->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % limit;
}

static void nap(void *ns) { WORK((unsigned long long)ns); }

static void check(cudaError_t error) {
    if (error && error != cudaErrorNotReady) exit(10 + error % 100);
}

static void launch(struct host *host, cudaStream_t stream) {
    void (*kernel)(void) = kernels[below(host, 5)];
    dim3 one = {1, 1, 1}, threads = {128, 1, 1};
    cudaLaunchAttribute attribute = {.id = 6, .val.programmaticStreamSerializationAllowed = below(host, 2)};
    cudaLaunchConfig_t config = {one, threads, 0, stream, &attribute, 1};
    if (below(host, 3) || without & PROGRAMMATIC) check(cudaLaunchKernel((void *)kernel, one, threads, NULL, 0, stream));
    else check(cudaLaunchKernelExC(&config, (void *)kernel, NULL));
}

/* Builds a graph in which each node depends on none, one or two earlier nodes. */
static cudaGraphExec_t built(struct host *host) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t nodes[NODES];
    check(cudaGraphCreate(&graph, 0));
    int count = 2 + below(host, NODES - 1);
    for (int at = 0; at < count; at++) {
        cudaGraphNode_t edges[2];
        int edge_count = at ? below(host, at > 1 ? 3 : 2) : 0, first = at ? below(host, at) : 0;
        edges[0] = nodes[first], edges[1] = nodes[(first + 1) % (at ? at : 1)];
        struct cudaKernelNodeParams kernel = {(void *)kernels[below(host, 5)], {1, 1, 1}, {128, 1, 1}};
        struct cudaMemsetParams fill = {gpus[host->number][host->device].memory, 0, 0, 1, 1 + below(host, 1 << 20), 1};
        struct cudaHostNodeParams function = {nap, (void *)below(host, 5000)};
        switch (below(host, 6)) {
        case 0: check(cudaGraphAddMemsetNode(&nodes[at], graph, edges, edge_count, &fill)); break;
        case 1: check(cudaGraphAddEmptyNode(&nodes[at], graph, edges, edge_count)); break;
        case 2:
            if (without & HOST_NODE) check(cudaGraphAddEmptyNode(&nodes[at], graph, edges, edge_count));
            else check(cudaGraphAddHostNode(&nodes[at], graph, edges, edge_count, &function)); break;
        default: check(cudaGraphAddKernelNode(&nodes[at], graph, edges, edge_count, &kernel)); break;
        }
    }
    check(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

/* Captures a graph from two streams that wait for each other. */
static cudaGraphExec_t captured(struct host *host, struct gpu *gpu) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t a = gpu->streams[0], b = gpu->streams[1];
    cudaEvent_t fork, join;
    check(cudaEventCreate(&fork)), check(cudaEventCreate(&join));
    check(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    launch(host, a);
    check(cudaEventRecord(fork, a)), check(cudaStreamWaitEvent(b, fork, 0));
    for (int at = 0; at < 3; at++) launch(host, below(host, 2) ? a : b);
    check(cudaEventRecord(join, b)), check(cudaStreamWaitEvent(a, join, 0));
    launch(host, a);
    check(cudaStreamEndCapture(a, &graph)), check(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void set_up(struct host *host) {
    for (host->device = 0; host->device < gpu_count; host->device++) {
        struct gpu *gpu = &gpus[host->number][host->device];
        check(cudaSetDevice(host->device)), check(cudaMalloc(&gpu->memory, 1 << 20));
        for (int at = 0; at < STREAMS - 2; at++) check(cudaStreamCreateWithFlags(&gpu->streams[at], 0));
        check(cudaStreamCreateWithFlags(&gpu->streams[STREAMS - 2], cudaStreamNonBlocking));
        gpu->streams[STREAMS - 1] = below(host, 3) || without & LEGACY ? cudaStreamPerThread : cudaStreamLegacy;
        for (int at = 0; at < EVENTS; at++) check(cudaEventCreate(&gpu->events[at]));
        gpu->graphs[0] = built(host), gpu->graphs[1] = captured(host, gpu);
    }
}

static void step(struct host *host) {
    static char here[1 << 20];
    struct gpu *gpu = &gpus[host->number][host->device], *other = &gpus[below(host, thread_count)][below(host, gpu_count)];
    cudaStream_t stream = gpu->streams[below(host, STREAMS)];
    cudaEvent_t own = gpu->events[below(host, EVENTS)], any = other->events[below(host, EVENTS)];
    size_t bytes = 1 + below(host, 1 << 20);
    switch (below(host, 22)) {
    case 0: host->device = below(host, gpu_count), check(cudaSetDevice(host->device)); break;
    case 1: case 2: check(cudaEventRecord(own, stream)); break;
    case 3: case 4: check(cudaStreamWaitEvent(stream, any, 0)); break;
    case 5: check(cudaMemcpyAsync(gpu->memory, here, bytes, cudaMemcpyHostToDevice, stream)); break;
    case 6: check(cudaMemsetAsync(gpu->memory, 0, bytes, stream)); break;
    case 7: check(cudaMemcpyPeerAsync(other->memory, 0, gpu->memory, host->device, bytes, stream)); break;
    case 8: case 9:
        if (without & GRAPH) launch(host, stream);
        else check(cudaGraphLaunch(gpu->graphs[below(host, GRAPHS)], stream));
        break;
    case 10: case 11: case 12: WORK(below(host, 30000)); break;
    case 13: check(below(host, 2) ? cudaStreamQuery(stream) : cudaEventQuery(own)); break;
    case 14:
        switch (below(host, 8)) {
        case 0: check(cudaDeviceSynchronize()); break;
        case 1: check(cudaStreamSynchronize(stream)); break;
        case 2: check(cudaEventSynchronize(any)); break;
        case 3:
            /* A plain cudaMemcpy uses the legacy default stream. */
            if (!(without & LEGACY)) check(cudaMemcpy(here, gpu->memory, 4096, cudaMemcpyDeviceToHost));
            break;
        case 4:
            if (!(without & HOST_FUNCTION)) check(cudaLaunchHostFunc(stream, nap, (void *)below(host, 9000))); break;
        case 5: gpusim_lock(1), WORK(below(host, 9000)), launch(host, stream), gpusim_unlock(1); break;
        }
        break;
    default: launch(host, stream); break;
    }
}

static void run(struct host *host) {
    set_up(host);
    host->device = 0, check(cudaSetDevice(0));
    /* After this barrier, the events of all threads exist. */
    gpusim_meet(1, thread_count);
    for (int at = 0; at < steps; at++) step(host);
    gpusim_meet(2, thread_count);
}

static void *thread(void *number) {
    struct host host = {seed * 1000 + (uintptr_t)number, (uintptr_t)number};
    gpusim_begin((uintptr_t)number);
    run(&host);
    return NULL;
}

int main(int count, char **args) {
    if (count < 2 || !gpusim_work) return 2;
    seed = strtoull(args[1], NULL, 10);
    if (count > 2) steps = atoi(args[2]);
    if (count > 3) without = atoi(args[3]);
    struct host host = {seed * 1000};
    check(cudaGetDeviceCount(&gpu_count));
    gpu_count = gpu_count > 1 ? 1 + below(&host, MAX_GPUS) : 1;
    thread_count = 1 + below(&host, MAX_THREADS);
    if (without & THREADS) thread_count = 1;
    pthread_t threads[MAX_THREADS];
    for (uintptr_t at = 1; at < thread_count; at++)
        if (gpusim_fork() != at || pthread_create(&threads[at], NULL, thread, (void *)at)) return 3;
    run(&host);
    for (uintptr_t at = 1; at < thread_count; at++) gpusim_join(at), pthread_join(threads[at], NULL);
    for (int device = 0; device < gpu_count; device++) cudaSetDevice(device), check(cudaDeviceSynchronize());
    return 0;
}
