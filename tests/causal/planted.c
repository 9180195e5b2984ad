/* Programs on the stepped clock whose functions and kernels take known times, for `gpuflame causal`:
 *
 *     planted SHAPE STEPS SCALE [FUNCTION PERCENT]
 *
 * All host work takes SCALE times as long. The host work of FUNCTION takes PERCENT % of its normal time. Variables of
 * the simulated CUDA stack determine the times of kernels and the costs of calls. Each function that makes CUDA calls
 * uses a different CUDA function, so that a test can make the calls of one function faster. For each CUDA call, the
 * program prints the function that makes it, in the order of the calls. */
#include "cuda_mini.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

KERNEL(tiny, "_Z4tinyv", (void), NULL)
KERNEL(grad, "_Z4gradv", (void), NULL)
KERNEL(gemm, "_Z4gemmv", (void), NULL)
KERNEL(relu, "_Z4reluv", (void), NULL)
KERNEL(norm, "_Z4normv", (void), NULL)
KERNEL(reduce, "_Z6reducev", (void), NULL)
KERNEL(softmax, "_Z7softmaxv", (void), NULL)

#define NOINLINE __attribute__((noinline)) static
/* Makes a CUDA call. Before the call, prints the name of the calling function. */
#define CALL(call) (puts(__func__), (call) ? exit(3) : (void)0)
#define OWN_WORK(ns) own_work(__func__, ns)

static unsigned long long scale, percent = 100;
static const char *changed = "";
static cudaStream_t main_stream, side_stream;
static cudaEvent_t ready, reduced, done[2];
static cudaGraphExec_t graph;
static void *device, *host;

static void own_work(const char *function, unsigned long long ns) {
    WORK(ns * scale * (strcmp(function, changed) ? 100 : percent) / 100);
}

NOINLINE void load(unsigned long long ns) {
    OWN_WORK(ns);
    CALL(cudaMemcpyAsync(device, host, 25000, cudaMemcpyHostToDevice, main_stream));
}

NOINLINE void forward(unsigned long long ns, void (*kernel)(void), int count) {
    OWN_WORK(ns);
    for (int at = 0; at < count; at++)
        CALL(cudaLaunchKernel((const void *)kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, main_stream));
}

NOINLINE void backward(unsigned long long ns, void (*kernel)(void), int count, cudaStream_t stream) {
    OWN_WORK(ns);
    cudaLaunchConfig_t config = {{1, 1, 1}, {32, 1, 1}, 0, stream, NULL, 0};
    for (int at = 0; at < count; at++) CALL(cudaLaunchKernelExC(&config, (const void *)kernel, NULL));
}

NOINLINE void update(unsigned long long ns) {
    OWN_WORK(ns);
    CALL(cudaMemsetAsync(device, 0, 10000, main_stream));
}

NOINLINE void replay(unsigned long long ns) {
    OWN_WORK(ns);
    CALL(cudaGraphLaunch(graph, main_stream));
}

NOINLINE void join(cudaEvent_t event, cudaStream_t from, cudaStream_t to) {
    CALL(cudaEventRecord(event, from));
    CALL(cudaStreamWaitEvent(to, event, 0));
}

/* The GPU has already finished its work, so this call does not wait, and takes only host time. */
NOINLINE void check(unsigned long long ns) {
    OWN_WORK(ns);
    CALL(cudaDeviceSynchronize());
}

NOINLINE void finish(void) {
    CALL(cudaStreamSynchronize(main_stream));
}

static void launch_bound(int step) {
    (void)step;
    check(5000);
    load(30000);
    forward(20000, tiny, 3);
    backward(40000, grad, 3, main_stream);
    update(12000);
}

static void gpu_bound(int step) {
    (void)step;
    forward(2000, gemm, 1);
    forward(1000, relu, 1);
    backward(3000, softmax, 1, main_stream);
}

static void two_streams(int step) {
    (void)step;
    forward(3000, gemm, 1);
    join(ready, main_stream, side_stream);
    backward(2000, reduce, 1, side_stream);
    forward(1000, norm, 1);
    join(reduced, side_stream, main_stream);
}

static void waits(int step) {
    (void)step;
    load(40000);
    forward(6000, gemm, 1);
    finish();
    update(25000);
    backward(9000, softmax, 1, main_stream);
    finish();
}

/* The host prepares the next step while the GPU works on the previous step. */
static void pipeline(int step) {
    cudaEvent_t own = done[step % 2], other = done[1 - step % 2];
    load(60000);
    forward(40000, gemm, 1);
    CALL(cudaEventRecord(own, main_stream));
    if (step > 0) CALL(cudaEventSynchronize(other));
}

static void graphs(int step) {
    (void)step;
    update(14000);
    replay(7000);
    finish();
}

static void capture(void) {
    cudaGraph_t captured;
    CALL(cudaStreamBeginCapture(main_stream, 0));
    forward(0, gemm, 1);
    forward(0, relu, 2);
    backward(0, softmax, 1, main_stream);
    CALL(cudaStreamEndCapture(main_stream, &captured));
    CALL(cudaGraphInstantiate(&graph, captured, 0));
}

int main(int count, char **args) {
    const struct {
        const char *name;
        void (*step)(int);
    } shapes[] = {{"launch_bound", launch_bound}, {"gpu_bound", gpu_bound}, {"two_streams", two_streams},
                  {"waits", waits},               {"pipeline", pipeline},   {"graphs", graphs}};
    if (count < 4) return 2;
    scale = strtoull(args[3], NULL, 10);
    if (count > 5) changed = args[4], percent = strtoull(args[5], NULL, 10);
    CALL(cudaMalloc(&device, 1 << 20));
    CALL(cudaMallocHost(&host, 1 << 20));
    CALL(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    CALL(cudaStreamCreateWithFlags(&side_stream, cudaStreamNonBlocking));
    cudaEvent_t *events[] = {&ready, &reduced, &done[0], &done[1]};
    for (int at = 0; at < 4; at++) CALL(cudaEventCreate(events[at]));
    capture();
    for (unsigned at = 0; at < sizeof shapes / sizeof *shapes; at++) {
        if (strcmp(args[1], shapes[at].name)) continue;
        for (int step = 0; step < atoi(args[2]); step++) shapes[at].step(step);
        finish();
        return 0;
    }
    return 2;
}
