/* Graph nodes that allocate and free memory, conditional nodes, and nodes of instantiated graphs that get another
 * kernel. */
#include "cuda_mini.h"

KERNEL(gemm, "_Z10gemm_d3000v", (void), NULL)
KERNEL(relu, "_Z10relu_d7000v", (void), NULL)

/* cudaMemAllocNodeParams */
struct alloc {
    unsigned kind, handles, location, device;
    unsigned long long of_pool[9];
    void *access;
    size_t access_count, bytes;
    char *address;
};

/* cudaGraphNodeParams of a conditional node */
struct conditional {
    unsigned node, reserved[3];
    unsigned long long condition;
    unsigned kind, size;
    cudaGraph_t *bodies;
    unsigned long long rest[26];
};

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t, struct alloc *);
cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t, void *);
cudaError_t cudaDeviceGetGraphMemAttribute(int, int, unsigned long long *);
cudaError_t cudaDeviceGraphMemTrim(int);
cudaError_t cudaGraphConditionalHandleCreate(unsigned long long *, cudaGraph_t, unsigned, unsigned);
cudaError_t cudaGraphAddNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, const void *, size_t,
                             struct conditional *);
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const void *, const void *, size_t, int);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, unsigned *);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t, cudaGraphNode_t, const struct cudaKernelNodeParams *);

static cudaStream_t stream;

static unsigned long long used(void) {
    unsigned long long bytes = ~0ull;
    return cudaDeviceGetGraphMemAttribute(0, 0, &bytes) ? ~0ull : bytes;
}

static struct cudaKernelNodeParams kernel(void (*function)(void)) {
    struct cudaKernelNodeParams params = {.func = (void *)function, .gridDim = {8, 1, 1}, .blockDim = {128, 1, 1}};
    return params;
}

static cudaGraph_t graph(void) {
    cudaGraph_t made;
    return cudaGraphCreate(&made, 0) ? NULL : made;
}

static __attribute__((noinline)) int launch(cudaGraph_t made, cudaGraphExec_t *exec, const char *site) {
    SITE(site);
    return cudaGraphInstantiate(exec, made, 0) || cudaGraphLaunch(*exec, stream) || cudaStreamSynchronize(stream);
}

/* Memory that an allocation node allocates exists until the free node runs. If the graph has no free node, the program
 * frees the memory. */
static __attribute__((noinline)) int memory(void) {
    cudaGraphNode_t node;
    cudaGraphExec_t exec;
    unsigned type;
    struct alloc params = {.kind = 1, .location = 1, .bytes = 1 << 20};
    struct cudaKernelNodeParams first = kernel(gemm);
    cudaGraph_t open = graph(), whole = graph();
    SITE("main;memory");
    if (cudaGraphAddMemAllocNode(&node, open, NULL, 0, &params) || !params.address) return 10;
    if (cudaGraphNodeGetType(node, &type) || type != 10 || used() != 0) return 11;
    if (launch(open, &exec, "main;memory;launch") || used() != 1 << 20) return 12;
    if (cudaGraphLaunch(exec, stream) || used() != 1 << 20) return 18;
    if (cudaFreeAsync(params.address, stream) || used() != 0 || !cudaFreeAsync(params.address, stream)) return 13;
    SITE("main;memory");
    if (cudaGraphAddMemAllocNode(&node, whole, NULL, 0, &params)) return 14;
    if (cudaGraphAddKernelNode(&node, whole, NULL, 0, &first)) return 15;
    if (cudaGraphAddMemFreeNode(&node, whole, NULL, 0, params.address)) return 16;
    if (launch(whole, &exec, "main;memory;launch") || used() != 0) return 17;
    SITE("main;memory");
    if (cudaGraphLaunch(exec, stream) || used() != 0 || cudaDeviceGraphMemTrim(0)) return 19;
    return 0;
}

/* A capture creates the same nodes as the function `memory`: two memory nodes and a kernel. */
static __attribute__((noinline)) int captured(void) {
    cudaGraph_t made;
    cudaGraphExec_t exec;
    void *device;
    if (cudaStreamBeginCapture(stream, 0) || cudaMallocAsync(&device, 4096, stream)) return 20;
    SITE("main;captured;relu");
    LAUNCH(relu, 8, 128, stream)();
    if (cudaFreeAsync(device, stream) || cudaStreamEndCapture(stream, &made)) return 21;
    return launch(made, &exec, "main;captured;launch") || used() != 0 ? 22 : 0;
}

/* Conditions keep their default value, because simulated kernels do not change them. The body graph with index n has
 * n + 1 kernels; the last of these kernels is captured. */
static __attribute__((noinline)) int condition(unsigned kind, unsigned size, unsigned value) {
    cudaGraphNode_t node;
    cudaGraphExec_t exec;
    cudaGraph_t made = graph();
    struct conditional params = {.node = 13, .kind = kind, .size = size};
    struct cudaKernelNodeParams work = kernel(gemm);
    if (cudaGraphConditionalHandleCreate(&params.condition, made, value, 1)) return 30;
    if (cudaGraphAddNode(&node, made, NULL, NULL, 0, &params) || !params.bodies) return 31;
    for (unsigned body = 0; body < size; body++) {
        SITE("main;condition");
        for (unsigned kernels = 0; kernels < body; kernels++)
            if (cudaGraphAddKernelNode(&node, params.bodies[body], NULL, 0, &work)) return 32;
        if (cudaStreamBeginCaptureToGraph(stream, params.bodies[body], NULL, NULL, 0, 0)) return 34;
        SITE("main;condition;gemm");
        LAUNCH(gemm, 8, 128, stream)();
        if (cudaStreamEndCapture(stream, NULL)) return 35;
    }
    return launch(made, &exec, "main;condition;launch") ? 33 : 0;
}

/* Replaces the kernel in a node of an instantiated graph; the original graph keeps its kernel. */
static __attribute__((noinline)) int changed(void) {
    cudaGraphNode_t node;
    cudaGraphExec_t exec;
    cudaGraph_t made = graph();
    struct cudaKernelNodeParams first = kernel(gemm), second = kernel(relu);
    SITE("main;changed");
    if (cudaGraphAddKernelNode(&node, made, NULL, 0, &first) || launch(made, &exec, "main;changed;launch")) return 40;
    SITE("main;elsewhere");
    if (cudaGraphExecKernelNodeSetParams(exec, node, &second)) return 41;
    SITE("main;changed");
    if (cudaGraphLaunch(exec, stream)) return 42;
    return launch(made, &exec, "main;changed;launch") ? 43 : 0;
}

int main(void) {
    int failed;
    if (cudaStreamCreate(&stream)) return 2;
    if ((failed = memory()) || (failed = captured()) || (failed = changed())) return failed;
    /* Three `if` nodes: true, false, and false with an `else`. Two loops: the first runs its body, the second does not.
     * Two switches: the value of the first switch selects a body graph, the value of the second switch selects none. */
    const unsigned all[][3] = {{0, 1, 1}, {0, 1, 0}, {0, 2, 0}, {1, 1, 9}, {1, 1, 0}, {2, 3, 2}, {2, 3, 3}};
    for (int at = 0; at < 7; at++)
        if ((failed = condition(all[at][0], all[at][1], all[at][2]))) return failed + 100 * at;
    return cudaDeviceSynchronize();
}
