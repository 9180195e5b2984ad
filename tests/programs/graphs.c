/* Creates, copies, changes and destroys CUDA graphs in many ways. Each mode sets its call site both when it creates a
 * node and when it launches a graph.
 *
 *     graphs MODE [N] */
#include "cuda_mini.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
#include <gpuflame.h>
#endif

KERNEL(embed, "_Z11embed_d1000v", (void), NULL)
KERNEL(gemm, "_Z10gemm_d3000v", (void), NULL)
KERNEL(norm, "_Z9norm_d500v", (void), NULL)

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        cudaError_t error_ = (call);                                                                    \
        if (error_ != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(error_));    \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

#define FRAME __attribute__((noinline, noclone)) static
/* Prevents the compiler from replacing a call by a jump. */
#define STAY() __asm__ volatile("" ::: "memory")

static cudaStream_t stream;
static void *device, *other;
/* Name of the mode, which is also the name of the function that runs it. */
static const char *mode;

/* Sets the call site to main, the mode's function and `path`. */
static void at(const char *path)
{
    char site[256];
    snprintf(site, sizeof site, "main;%s;%s", mode, path);
    SITE(site);
}

/* Sets the call site to the host stub of a kernel. */
static void in_stub(const char *path, const char *stub)
{
    char longer[128];
    snprintf(longer, sizeof longer, "%s;%s", path, stub);
    at(longer);
}

FRAME void attention(const char *site)
{
    in_stub(site, "gemm");
    LAUNCH(gemm, 8, 128, stream)();
    in_stub(site, "norm");
    LAUNCH(norm, 8, 128, stream)();
    STAY();
}

FRAME void upload(const char *site)
{
    at(site);
    CHECK(cudaMemcpyAsync(device, other, 4096, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemsetAsync(device, 1, 8192, stream));
    STAY();
}

/* Captures a graph of four nodes: two kernels, a copy and a fill. */
FRAME cudaGraph_t capture(void)
{
    cudaGraph_t graph;
    at("capture");
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    attention("capture;attention");
    upload("capture;upload");
    at("capture");
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

/* Captures the same nodes as `capture`, in another function. */
FRAME cudaGraph_t recapture(void)
{
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    attention("recapture;attention");
    upload("recapture;upload");
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

FRAME void add_kernel(cudaGraph_t graph, void (*kernel)(void), const char *site)
{
    struct cudaKernelNodeParams params = {.func = (void *)kernel, .gridDim = {4, 1, 1}, .blockDim = {64, 1, 1}};
    cudaGraphNode_t node;
    at(site);
    CHECK(cudaGraphAddKernelNode(&node, graph, NULL, 0, &params));
    STAY();
}

FRAME cudaGraph_t build(void)
{
    cudaGraph_t graph;
    cudaGraphNode_t node;
    struct cudaMemsetParams fill = {.dst = device, .elementSize = 4, .width = 256, .height = 1};
    at("build");
    CHECK(cudaGraphCreate(&graph, 0));
    add_kernel(graph, embed, "build;add_kernel");
    at("build");
    CHECK(cudaGraphAddMemcpyNode1D(&node, graph, NULL, 0, device, other, 1024, cudaMemcpyDeviceToDevice));
    CHECK(cudaGraphAddMemsetNode(&node, graph, NULL, 0, &fill));
    CHECK(cudaGraphAddEmptyNode(&node, graph, NULL, 0));
    add_kernel(graph, gemm, "build;add_kernel");
    return graph;
}

FRAME cudaGraphExec_t instantiate(cudaGraph_t graph)
{
    cudaGraphExec_t exec;
    at("instantiate");
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

FRAME void replay(cudaGraphExec_t exec, int times)
{
    at("replay");
    for (int i = 0; i < times; i++)
        CHECK(cudaGraphLaunch(exec, stream));
    STAY();
}

FRAME void step(cudaGraphExec_t exec, int times)
{
    at("step");
    for (int i = 0; i < times; i++)
        CHECK(cudaGraphLaunch(exec, stream));
    STAY();
}

FRAME void captured(int n)
{
    cudaGraphExec_t exec = instantiate(capture());
    attention("attention");
    replay(exec, n);
    STAY();
}

FRAME void explicitly(int n)
{
    replay(instantiate(build()), n);
    STAY();
}

/* Clones a graph, instantiates it twice, and destroys all graphs before their activity records arrive. */
FRAME void copies(int n)
{
    cudaGraph_t graph = capture(), clone, clone_of_clone;
    cudaGraphExec_t first = instantiate(graph), second = instantiate(graph), third;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphClone(&clone_of_clone, clone));
    CHECK(cudaGraphDestroy(clone));
    third = instantiate(clone_of_clone);
    replay(first, n);
    step(second, n);
    CHECK(cudaGraphExecDestroy(first));
    replay(third, n);
    CHECK(cudaGraphExecDestroy(second));
    CHECK(cudaGraphExecDestroy(third));
    CHECK(cudaGraphDestroy(clone_of_clone));
}

FRAME void children(int n)
{
    cudaGraph_t inner = capture(), graph = build(), outer = build();
    cudaGraphNode_t node;
    CHECK(cudaGraphAddChildGraphNode(&node, graph, NULL, 0, inner));
    add_kernel(graph, gemm, "add_kernel");
    CHECK(cudaGraphAddChildGraphNode(&node, graph, NULL, 0, inner));
    CHECK(cudaGraphDestroy(inner));
    CHECK(cudaGraphAddChildGraphNode(&node, outer, NULL, 0, graph));
    replay(instantiate(graph), n);
    step(instantiate(outer), n);
    STAY();
}

FRAME void updated(int n)
{
    cudaGraph_t first = capture(), second = recapture();
    cudaGraphExec_t exec = instantiate(first), untouched = instantiate(first);
    cudaGraphExecUpdateResultInfo info;
    replay(exec, n);
    CHECK(cudaGraphExecUpdate(exec, second, &info));
    CHECK(cudaGraphDestroy(second));
    CHECK(cudaGraphDestroy(first));
    replay(exec, 2 * n);
    step(untouched, n);
    STAY();
}

FRAME void update_that_fails(int n)
{
    cudaGraphExec_t exec = instantiate(capture());
    cudaGraph_t other_graph = build();
    cudaGraphExecUpdateResultInfo info;
    replay(exec, n);
    if (cudaGraphExecUpdate(exec, other_graph, &info) == cudaSuccess || info.result != 2)
        exit(1);
    replay(exec, n);
    STAY();
}

/* Captures from two streams: the second stream joins the capture by waiting for an event. Later a node of the graph is
 * removed. */
FRAME void forked(int n)
{
    cudaStream_t first = stream, second;
    cudaEvent_t begun, done;
    cudaGraph_t graph;
    cudaGraphNode_t node;
    CHECK(cudaStreamCreate(&second));
    CHECK(cudaEventCreate(&begun));
    CHECK(cudaEventCreate(&done));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    attention("attention");
    CHECK(cudaEventRecord(begun, first));
    CHECK(cudaStreamWaitEvent(second, begun, 0));
    stream = second;
    upload("upload");
    stream = first;
    CHECK(cudaEventRecord(done, second));
    CHECK(cudaStreamWaitEvent(first, done, 0));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphAddEmptyNode(&node, graph, NULL, 0));
    CHECK(cudaGraphDestroyNode(node));
    replay(instantiate(graph), n);
    STAY();
}

/* Again and again, destroys a graph, its instantiations, streams and a CUDA context while the GPU still runs the
 * graph. */
FRAME void in_flight(int n)
{
    const cudaStream_t outer = stream;
    for (int i = 0; i < n; i++) {
        CUcontext context;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK((cudaError_t)cuCtxCreate_v2(&context, 0, 0));
        CHECK(cudaStreamCreate(&stream));
        graph = capture();
        exec = instantiate(graph);
        replay(exec, 3);
        at("in_flight");
        CHECK(cudaStreamDestroy(stream));
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaStreamCreate(&stream));
        step(instantiate(graph), 2);
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaStreamDestroy(stream));
        CHECK((cudaError_t)cuCtxDestroy_v2(context));
    }
    stream = outer;
    STAY();
}

static void keep_up(int i)
{
#ifdef LINKED
    if (i % 1024 == 0)
        gpuflame_flush();
#else
    (void)i;
#endif
}

static void tell_memory(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    for (char line[256]; status && fgets(line, sizeof line, status);)
        if (!strncmp(line, "RssAnon:", 8))
            fputs(line, stdout);
    if (status)
        fclose(status);
}

/* Creates, runs and destroys N graphs. */
FRAME void churn(int n)
{
    for (int i = 0; i < n; i++) {
        cudaGraph_t graph = capture();
        cudaGraphExec_t exec = instantiate(graph);
        CHECK(cudaGraphDestroy(graph));
        replay(exec, 1);
        CHECK(cudaGraphExecDestroy(exec));
        keep_up(i);
    }
    tell_memory();
}

#ifdef LINKED
/* Creates one graph outside the window and launches it inside; creates another graph inside the window and launches it
 * outside. */
FRAME void windowed(int n)
{
    cudaGraphExec_t early = instantiate(capture());
    replay(early, n);
    CHECK(cudaDeviceSynchronize());
    if (gpuflame_start() != 0)
        exit(1);
    step(early, n);
    cudaGraphExec_t late = instantiate(build());
    CHECK(cudaDeviceSynchronize());
    gpuflame_stop();
    replay(late, n);
    STAY();
}

/* Creates a graph before gpuflame is started. */
FRAME void before(int n)
{
    cudaGraph_t graph = capture();
    cudaGraphExec_t early = instantiate(graph);
    if (gpuflame_start() != 0)
        exit(1);
    replay(early, n);
    step(instantiate(graph), n);
    STAY();
}
#endif

int main(int argc, char **argv)
{
#define MODE(function) {#function, function}
    static const struct {
        const char *name;
        void (*run)(int);
    } modes[] = {
        MODE(captured), MODE(explicitly), MODE(copies), MODE(children), MODE(updated),
        MODE(update_that_fails), MODE(forked), MODE(churn), MODE(in_flight),
#ifdef LINKED
        MODE(windowed), MODE(before),
#endif
    };
    const int n = argc > 2 ? atoi(argv[2]) : 10;
    SITE("main");
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&device, 1 << 20));
    CHECK(cudaMalloc(&other, 1 << 20));
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (argc > 1 && !strcmp(argv[1], modes[i].name)) {
            mode = modes[i].name;
            modes[i].run(n);
            SITE("main");
            CHECK(cudaDeviceSynchronize());
            return 0;
        }
    }
    fprintf(stderr, "graphs: no such mode\n");
    return 2;
}
