/* Makes runtime API calls that PyTorch makes and that no other test program makes: attributes, memory pools, queries of
 * a capture's graph, user objects. */
#include "cuda_mini.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

KERNEL(gemm, "_Z10gemm_d3000v", (void), NULL)

struct pointer { int kind, device; void *on_device, *on_host; long reserved[8]; };
int cudaPointerGetAttributes(struct pointer *, const void *);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
int cudaDeviceGetDefaultMemPool(void **, int);
int cudaMemPoolSetAttribute(void *, int, void *);
int cudaMemPoolGetAttribute(void *, int, void *);
int cudaDeviceGetPCIBusId(char *, int, int);
int cudaStreamCreateWithPriority(cudaStream_t *, unsigned, int);
int cudaStreamGetPriority(cudaStream_t, int *);
int cudaDeviceGetStreamPriorityRange(int *, int *);
int cudaThreadExchangeStreamCaptureMode(int *);
int cudaStreamGetCaptureInfo(cudaStream_t, int *, unsigned long long *, cudaGraph_t *, const void ***, const void **, size_t *);
int cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const void **, const void *, size_t, int);
int cudaGraphGetNodes(cudaGraph_t, void **, size_t *);
int cudaUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned);
int cudaUserObjectRelease(void *, unsigned);
int cudaFuncGetAttributes(void *, const void *);
int cudaGraphNodeGetDependencies(void *, void **, void *, size_t *);
int cudaGraphRetainUserObject(cudaGraph_t, void *, unsigned, unsigned);
int cudaStreamAddCallback(cudaStream_t, void (*)(cudaStream_t, int, void *), void *, unsigned);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
int cudaLibraryGetGlobal(void *, void *);

static int destroyed, called;
static void destroy(void *count) { __atomic_add_fetch((int *)count, 1, __ATOMIC_SEQ_CST); }
static void call(cudaStream_t stream, int status, void *data) { called += stream == data && status == 0; }

static int attributes(void) {
    struct pointer what;
    void *device, *pinned;
    int blocks, on_stack, least, greatest;
    char bus[32];
    if (cudaMalloc(&device, 1000) || cudaMallocHost(&pinned, 1000)) return 1;
    if (cudaPointerGetAttributes(&what, device) || what.kind != 2 || what.device != 0 || what.on_device != device) return 2;
    if (cudaPointerGetAttributes(&what, pinned) || what.kind != 1 || what.on_host != pinned) return 3;
    if (cudaPointerGetAttributes(&what, &on_stack) || what.kind != 0) return 4;
    /* A multiprocessor has 2048 threads and 228 KB of shared memory. Each block uses 1 KB more shared memory than it
     * requests. */
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)gemm, 256, 0) || blocks != 8) return 5;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)gemm, 128, 100 << 10) || blocks != 2) return 6;
    /* The first fields of cudaFuncAttributes: three sizes, then the maximum number of threads per block. */
    struct { size_t bytes[3]; int threads, registers, others[28]; } kernel;
    if (cudaFuncGetAttributes(&kernel, (void *)gemm) || kernel.threads != 1024 || kernel.bytes[0]) return 9;
    if (cudaFuncGetAttributes(&kernel, &kernel) != 98) return 10;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, 0) || strcmp(bus, "0000:1e:00.0")) return 7;
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) || least != 0 || greatest != -5) return 8;
    return 0;
}

static int pools_and_priorities(void) {
    void *pool;
    unsigned long threshold = 5, used;
    int priority, mode = 2;
    cudaStream_t stream;
    if (cudaDeviceGetDefaultMemPool(&pool, 0) || cudaMemPoolSetAttribute(pool, 4, &threshold)) return 11;
    threshold = 0;
    if (cudaMemPoolGetAttribute(pool, 4, &threshold) || threshold != 5) return 12;
    if (cudaMemPoolGetAttribute(pool, 7, &used) || used < 1000) return 13;
    if (cudaStreamCreateWithPriority(&stream, 0, -3) || cudaStreamGetPriority(stream, &priority) || priority != -3) return 14;
    if (cudaThreadExchangeStreamCaptureMode(&mode) || mode != 0) return 15;
    if (cudaThreadExchangeStreamCaptureMode(&mode) || mode != 2) return 16;
    if (cudaStreamAddCallback(stream, call, stream, 0) || cudaStreamSynchronize(stream) || called != 1) return 17;
    return 0;
}

static int captures(void) {
    cudaStream_t stream;
    cudaGraph_t graph, into;
    cudaGraphExec_t exec;
    const void **edges;
    unsigned long long id, second;
    size_t count;
    int status;
    void *object;
    if (cudaStreamCreate(&stream)) return 21;
    if (cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL, NULL) || status != 0) return 22;
    if (cudaStreamBeginCapture(stream, 0)) return 23;
    if (cudaStreamGetCaptureInfo(stream, &status, &id, &into, &edges, NULL, &count) || status != 1 || count) return 24;
    LAUNCH(gemm, 8, 128, stream)();
    LAUNCH(gemm, 8, 128, stream)();
    void *nodes[2];
    if (cudaStreamGetCaptureInfo(stream, &status, &id, &into, &edges, NULL, &count) || count != 1) return 25;
    size_t room = 2;
    if (cudaGraphGetNodes(into, NULL, &count) || count != 2 || cudaGraphGetNodes(into, nodes, &room)) return 26;
    if (edges[0] != nodes[1]) return 27;
    if (cudaStreamEndCapture(stream, &graph) || graph != into) return 28;
    /* Without the stepped clock, the simulation does not store graph edges. */
    if (cudaGraphNodeGetDependencies(nodes[1], NULL, NULL, &count) || count != 0) return 36;
    if (!cudaGraphNodeGetDependencies(NULL, NULL, NULL, &count)) return 37;
    if (cudaStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, 0)) return 29;
    if (cudaStreamGetCaptureInfo(stream, &status, &second, &into, NULL, NULL, NULL) || second == id || into != graph) return 30;
    LAUNCH(gemm, 8, 128, stream)();
    if (cudaStreamEndCapture(stream, &into) || cudaGraphGetNodes(graph, NULL, &count) || count != 3) return 31;
    /* The graph and its instantiated copy each hold one reference to the object; the program has passed its own
     * reference to the graph. */
    if (cudaUserObjectCreate(&object, &destroyed, destroy, 1, 1) || cudaGraphRetainUserObject(graph, object, 1, 1)) return 32;
    if (cudaGraphInstantiate(&exec, graph, 0) || cudaGraphDestroy(graph)) return 33;
    if (cudaGraphLaunch(exec, stream) || cudaDeviceSynchronize() || destroyed) return 34;
    if (cudaGraphExecDestroy(exec) || cudaDeviceSynchronize() || destroyed != 1) return 35;
    /* The object has two references, which the program releases one after the other. */
    if (cudaUserObjectCreate(&object, &destroyed, destroy, 2, 1) || cudaUserObjectRelease(object, 1)) return 39;
    if (cudaDeviceSynchronize() || destroyed != 1 || cudaUserObjectRelease(object, 1)) return 40;
    for (int turn = 0; turn < 5000 && __atomic_load_n(&destroyed, __ATOMIC_SEQ_CST) != 2; turn++) usleep(1000);
    if (destroyed != 2 || cudaUserObjectRelease(object, 1) != 1) return 44;
    return 0;
}

int main(void) {
    void *function;
    int found, failed = attributes();
    failed = failed ? failed : pools_and_priorities();
    failed = failed ? failed : captures();
    if (failed) return failed;
    if (cudaGetDriverEntryPointByVersion("cuStreamSynchronize", &function, 13000, 0, &found) || found || !function) return 41;
    if (cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 13000, 0, &found) || found != 1 || function) return 42;
    return cudaLibraryGetGlobal(NULL, NULL) == 801 && cudaLibraryGetGlobal(NULL, NULL) == 801 ? 0 : 43;
}
