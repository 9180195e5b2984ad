/* The tiny programs with graphs: tiny_graph capture | explicit | update. See tiny.cu. */
#include "kernels.h"

TIMED(a_d10000)
TIMED(b_d20000)

static cudaGraph_t captured(cudaStream_t stream)
{
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GO(a_d10000, 10000, stream);
    GO(b_d20000, 20000, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static cudaGraph_t built(void)
{
    cudaGraph_t graph;
    cudaGraphNode_t first, second;
    long long nanos = 10000;
    void *arguments[] = {&nanos};
    struct cudaKernelNodeParams params;
    params.func = (void *)a_d10000;
    params.gridDim.x = params.gridDim.y = params.gridDim.z = 1;
    params.blockDim = params.gridDim;
    params.sharedMemBytes = 0;
    params.kernelParams = arguments;
    params.extra = NULL;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphAddKernelNode(&first, graph, NULL, 0, &params));
    CUDA(cudaGraphAddKernelNode(&second, graph, &first, 1, &params));
    return graph;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    cudaStream_t stream;
    cudaGraphExec_t exec, other;
    cudaGraphExecUpdateResultInfo updated;
    const int is_update = !strcmp(mode, "update");
    if (strcmp(mode, "capture") && strcmp(mode, "explicit") && !is_update)
        return WRONG_USE;
    CUDA(cudaStreamCreate(&stream));
    cudaGraph_t graph = strcmp(mode, "explicit") ? captured(stream) : built();
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, stream));
    if (is_update) {
        cudaGraph_t again = captured(stream);
        CUDA(cudaGraphExecUpdate(exec, again, &updated));
        CUDA(cudaGraphDestroy(again));
    } else {
        CUDA(cudaGraphInstantiate(&other, graph, 0));
        CUDA(cudaGraphLaunch(other, stream));
        CUDA(cudaGraphExecDestroy(other));
    }
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    return 0;
}
