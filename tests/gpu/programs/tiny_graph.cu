/* tiny_graph capture | explicit | update | child | clone: small programs to record that use CUDA graphs, like those in
 * tiny.cu. */
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

/* Returns a graph of two kernels and a child graph, which has two kernels and another child graph of two kernels. */
static cudaGraph_t nested(void)
{
    cudaGraph_t inner = built(), middle = built(), outer = built();
    cudaGraphNode_t node;
    CUDA(cudaGraphAddChildGraphNode(&node, middle, NULL, 0, inner));
    CUDA(cudaGraphDestroy(inner));
    CUDA(cudaGraphAddChildGraphNode(&node, outer, NULL, 0, middle));
    CUDA(cudaGraphDestroy(middle));
    return outer;
}

static cudaGraph_t cloned(void)
{
    cudaGraph_t copy, graph = built();
    CUDA(cudaGraphClone(&copy, graph));
    CUDA(cudaGraphDestroy(graph));
    return copy;
}

static cudaGraph_t make(const char *mode, cudaStream_t stream)
{
    if (!strcmp(mode, "explicit")) return built();
    if (!strcmp(mode, "child")) return nested();
    if (!strcmp(mode, "clone")) return cloned();
    return captured(stream);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    cudaStream_t stream;
    cudaGraphExec_t exec, other;
    cudaGraphExecUpdateResultInfo updated;
    const int is_update = !strcmp(mode, "update");
    if (!strstr("capture explicit update child clone", mode) || !*mode)
        return WRONG_USE;
    CUDA(cudaStreamCreate(&stream));
    cudaGraph_t graph = make(mode, stream);
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
