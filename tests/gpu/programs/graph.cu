/* Launches two CUDA graphs: a captured graph, which is instantiated twice and updated once, and a graph that is built
 * node by node. Each kernel is captured or added by only one function, so that the kit detects a wrong creation site.
 *
 * EXPECT kernel attend_d20000 42 main;replay
 * EXPECT kernel mlp_d30000 21 main;replay
 * EXPECT kernel node_d10000 12 main;replay
 * EXPECT kernel eager_d10000 7 main;eager
 * EXPECT set memset 21 main;replay
 * CAPTURED kernel attend_d20000 capture_attend
 * CAPTURED kernel mlp_d30000 capture_mlp
 * CAPTURED kernel node_d10000 add_nodes
 *
 * The 42 launches of attend are 2 nodes x (10 launches of the first instantiated graph + 5 of the second + 6 after the
 * update). */
#include "kernels.h"

TIMED(attend_d20000)
TIMED(mlp_d30000)
TIMED(node_d10000)
TIMED(eager_d10000)

OWN_FRAME void capture_attend(cudaStream_t stream)
{
    GO(attend_d20000, 20000, stream);
    GO(attend_d20000, 20000, stream);
    KEEP();
}

OWN_FRAME void capture_mlp(cudaStream_t stream)
{
    GO(mlp_d30000, 30000, stream);
    KEEP();
}

OWN_FRAME cudaGraph_t capture(cudaStream_t stream, char *device)
{
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemsetAsync(device, 0, 4096, stream));
    capture_attend(stream);
    capture_mlp(stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    KEEP();
    return graph;
}

OWN_FRAME cudaGraph_t add_nodes(void)
{
    cudaGraph_t graph;
    cudaGraphNode_t node;
    long long nanos = 10000;
    void *arguments[] = {&nanos};
    struct cudaKernelNodeParams params;
    params.func = (void *)node_d10000;
    params.gridDim.x = params.gridDim.y = params.gridDim.z = 1;
    params.blockDim = params.gridDim;
    params.sharedMemBytes = 0;
    params.kernelParams = arguments;
    params.extra = NULL;
    CUDA(cudaGraphCreate(&graph, 0));
    for (int i = 0; i < 3; i++)
        CUDA(cudaGraphAddKernelNode(&node, graph, NULL, 0, &params));
    KEEP();
    return graph;
}

OWN_FRAME void replay(cudaGraphExec_t exec, cudaStream_t stream, int times)
{
    for (int i = 0; i < times; i++)
        CUDA(cudaGraphLaunch(exec, stream));
    KEEP();
}

OWN_FRAME void eager(cudaStream_t stream)
{
    for (int i = 0; i < 7; i++)
        GO(eager_d10000, 10000, stream);
    KEEP();
}

int main(void)
{
    cudaStream_t stream;
    cudaGraphExec_t one, two, explicit_one;
    cudaGraphExecUpdateResultInfo updated;
    char *device;
    CUDA(cudaMalloc((void **)&device, 4096));
    CUDA(cudaStreamCreate(&stream));
    cudaGraph_t graph = capture(stream, device), again, nodes = add_nodes();
    CUDA(cudaGraphInstantiate(&one, graph, 0));
    CUDA(cudaGraphInstantiate(&two, graph, 0));
    CUDA(cudaGraphInstantiate(&explicit_one, nodes, 0));
    replay(one, stream, 10);
    eager(stream);
    replay(two, stream, 5);
    replay(explicit_one, stream, 4);
    again = capture(stream, device);
    CUDA(cudaGraphExecUpdate(one, again, &updated));
    replay(one, stream, 6);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(two));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphDestroy(again));
    CUDA(cudaDeviceSynchronize());
    return 0;
}
