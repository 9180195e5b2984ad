/* `stepped CASE`: programs whose schedules on the stepped clock were computed by hand. */
#include "cuda_mini.h"
#include <pthread.h>
#include <string.h>

KERNEL(k1, "_Z8k1_d1000v", (void), NULL)
KERNEL(k2, "_Z8k2_d2000v", (void), NULL)
KERNEL(k9, "_Z8k9_d9000v", (void), NULL)
KERNEL(early, "_Z17early_t4500_d9000v", (void), NULL)
KERNEL(late, "_Z15late_s300_d1000v", (void), NULL)

static cudaStream_t stream(unsigned flags) {
    cudaStream_t made = NULL;
    cudaStreamCreateWithFlags(&made, flags);
    return made;
}

static int default_stream(void) {
    cudaStream_t a = stream(0), b = stream(0), other = stream(cudaStreamNonBlocking);
    LAUNCH(k9, 1, 32, a)();
    LAUNCH(k1, 1, 32, other)();
    LAUNCH(k1, 1, 32, 0)();
    LAUNCH(k2, 1, 32, b)();
    LAUNCH(k1, 1, 32, other)();
    LAUNCH(k2, 1, 32, cudaStreamPerThread)();
    return cudaDeviceSynchronize();
}

static int events(void) {
    cudaStream_t a = stream(0), b = stream(0);
    cudaEvent_t event;
    cudaEventCreate(&event);
    LAUNCH(k9, 1, 32, a)();
    cudaEventRecord(event, a);
    cudaStreamWaitEvent(b, event, 0);
    LAUNCH(k1, 1, 32, b)();
    if (cudaEventQuery(event) != cudaErrorNotReady) return 3;
    cudaEventSynchronize(event);
    WORK(500);
    LAUNCH(k1, 1, 32, a)();
    cudaStreamSynchronize(b);
    return 0;
}

static int diamond(void) {
    cudaStream_t a = stream(0);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t top, sides[2], bottom;
    struct cudaKernelNodeParams of1 = {(void *)k1, {1, 1, 1}, {32, 1, 1}}, of2 = of1, of9 = of1;
    of2.func = (void *)k2, of9.func = (void *)k9;
    cudaGraphCreate(&graph, 0);
    cudaGraphAddKernelNode(&top, graph, NULL, 0, &of1);
    cudaGraphAddKernelNode(&sides[0], graph, &top, 1, &of2);
    cudaGraphAddKernelNode(&sides[1], graph, &top, 1, &of9);
    cudaGraphAddKernelNode(&bottom, graph, sides, 2, &of1);
    if (cudaGraphInstantiate(&exec, graph, 0)) return 3;
    LAUNCH(k1, 1, 32, a)();
    cudaGraphLaunch(exec, a);
    LAUNCH(k1, 1, 32, a)();
    return cudaDeviceSynchronize();
}

/* Captures the diamond-shaped graph from two streams. */
static int captured(void) {
    cudaStream_t a = stream(0), b = stream(0);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t fork, join;
    cudaEventCreate(&fork), cudaEventCreate(&join);
    cudaStreamBeginCapture(a, 0);
    LAUNCH(k1, 1, 32, a)();
    cudaEventRecord(fork, a), cudaStreamWaitEvent(b, fork, 0);
    LAUNCH(k2, 1, 32, a)();
    LAUNCH(k9, 1, 32, b)();
    cudaEventRecord(join, b), cudaStreamWaitEvent(a, join, 0);
    LAUNCH(k1, 1, 32, a)();
    if (cudaStreamEndCapture(a, &graph) || cudaGraphInstantiate(&exec, graph, 0)) return 3;
    cudaGraphLaunch(exec, b);
    return cudaDeviceSynchronize();
}

static int programmatic(void) {
    cudaStream_t a = stream(0), b = stream(0);
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaLaunchAttribute serialized = {.id = 6, .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchAttribute with_event = {.id = 7, .val.programmaticEvent = {event, 0, 0}};
    cudaLaunchConfig_t first = {{1, 1, 1}, {32, 1, 1}, 0, a, &with_event, 1};
    cudaLaunchConfig_t second = {{1, 1, 1}, {32, 1, 1}, 0, a, &serialized, 1};
    if (cudaLaunchKernelExC(&first, (void *)early, NULL)) return 3;
    if (cudaLaunchKernelExC(&second, (void *)late, NULL)) return 4;
    cudaStreamWaitEvent(b, event, 0);
    LAUNCH(k1, 1, 32, a)();
    LAUNCH(k1, 1, 32, b)();
    return cudaDeviceSynchronize();
}

static int two_gpus(void) {
    cudaStream_t streams[2];
    cudaEvent_t event;
    void *buffers[2];
    for (int device = 0; device < 2; device++) {
        if (cudaSetDevice(device) || cudaMalloc(&buffers[device], 1 << 20)) return 3;
        streams[device] = stream(0);
    }
    cudaSetDevice(0), cudaEventCreate(&event);
    LAUNCH(k9, 1, 32, streams[0])();
    cudaMemcpyPeerAsync(buffers[1], 1, buffers[0], 0, 25000, streams[0]);
    cudaEventRecord(event, streams[0]);
    cudaSetDevice(1);
    LAUNCH(k1, 1, 32, streams[1])();
    cudaStreamWaitEvent(streams[1], event, 0);
    LAUNCH(k1, 1, 32, streams[1])();
    return cudaDeviceSynchronize();
}

static void nap(void *ns) { WORK((unsigned long long)ns); }

static int host_function(void) {
    cudaStream_t a = stream(0);
    void *buffer;
    cudaMalloc(&buffer, 1 << 20);
    LAUNCH(k1, 1, 32, a)();
    cudaLaunchHostFunc(a, nap, (void *)700);
    cudaMemsetAsync(buffer, 0, 1000, 0);
    LAUNCH(k1, 1, 32, a)();
    return cudaMemcpy(buffer, &buffer, 8, cudaMemcpyHostToDevice);
}

static void *second_thread(void *number) {
    gpusim_begin((unsigned long long)number);
    cudaStream_t b = stream(0);
    gpusim_lock(5);
    LAUNCH(k2, 1, 32, b)();
    gpusim_unlock(5);
    gpusim_meet(1, 2);
    LAUNCH(k2, 1, 32, b)();
    return NULL;
}

static int two_threads(void) {
    pthread_t thread;
    cudaStream_t a = stream(0);
    gpusim_lock(5);
    unsigned long long number = gpusim_fork();
    if (pthread_create(&thread, NULL, second_thread, (void *)number)) return 3;
    WORK(10000);
    LAUNCH(k1, 1, 32, a)();
    gpusim_unlock(5);
    WORK(300);
    gpusim_meet(1, 2);
    LAUNCH(k1, 1, 32, a)();
    gpusim_join(number);
    pthread_join(thread, NULL);
    return cudaDeviceSynchronize();
}

/* Waits for a thread with pthread_join, which the simulation does not see, so the watchdog ends the program. */
static int stuck(void) {
    pthread_t thread;
    unsigned long long number = gpusim_fork();
    WORK(1);
    if (pthread_create(&thread, NULL, second_thread, (void *)number)) return 3;
    pthread_join(thread, NULL);
    return 0;
}

int main(int count, char **args) {
    const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"default_stream", default_stream}, {"events", events}, {"diamond", diamond}, {"captured", captured},
                 {"programmatic", programmatic}, {"two_gpus", two_gpus}, {"host_function", host_function},
                 {"two_threads", two_threads}, {"stuck", stuck}};
    for (unsigned at = 0; count > 1 && at < sizeof cases / sizeof *cases; at++)
        if (!strcmp(args[1], cases[at].name)) return cases[at].run();
    return 2;
}
