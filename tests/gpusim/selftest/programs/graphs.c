/* Captures a graph with a kernel, a copy and a memset, instantiates it twice, launches it, updates it and destroys
 * it. */
#include "cuda_mini.h"

KERNEL(gemm, "_Z10gemm_d3000v", (void), NULL)

static cudaGraph_t capture(cudaStream_t stream, void *device, const char *site) {
    cudaGraph_t graph;
    SITE(site);
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)) return NULL;
    LAUNCH(gemm, 8, 128, stream)();
    cudaMemcpyAsync(device, device, 2500, cudaMemcpyDeviceToDevice, stream);
    cudaMemsetAsync(device, 0, 1000, stream);
    return cudaStreamEndCapture(stream, &graph) ? NULL : graph;
}

int main(void) {
    cudaStream_t stream;
    cudaGraphExec_t first, second;
    cudaGraphExecUpdateResultInfo info;
    void *device;
    int status;
    if (cudaStreamCreate(&stream) || cudaMalloc(&device, 1 << 20)) return 2;
    cudaGraph_t graph = capture(stream, device, "main;capture"), empty;
    if (!graph || cudaStreamBeginCapture(NULL, 0) != 900) return 3;
    cudaStreamBeginCapture(stream, 0);
    if (cudaStreamIsCapturing(stream, &status) || status != 1 || cudaStreamSynchronize(stream) != 900) return 4;
    cudaStreamEndCapture(stream, &empty);
    if (cudaGraphInstantiate(&first, graph, 0) || cudaGraphInstantiate(&second, graph, 0)) return 5;
    SITE("main;replay");
    if (cudaGraphUpload(first, stream) || cudaGraphLaunch(first, stream) || cudaGraphLaunch(second, stream)) return 6;
    cudaGraph_t other = capture(stream, device, "main;recapture");
    if (cudaGraphExecUpdate(first, empty, &info) != 910 || info.result != 2) return 7;
    if (cudaGraphExecUpdate(first, other, &info)) return 8;
    SITE("main;replay");
    if (cudaGraphLaunch(first, stream) || cudaGraphExecDestroy(first) || cudaGraphDestroy(graph)) return 9;
    if (cudaGraphLaunch(first, stream) != 1) return 10;
    return cudaDeviceSynchronize();
}
