/* A decode loop as servers run it. One step of the loop is captured into a CUDA graph once, and the graph is launched
 * for every token. Therefore the CPU makes one call for the whole model. When half of the tokens are decoded, the cache
 * has grown, so the graph is captured again, and an exec update replaces the old graph by the new one.
 *
 * A profiler without the stacks of the capture shows only cudaGraphLaunch. gpuflame shows
 *
 *     main;generate;cudaGraphLaunch;[graph];prepare;capture;step;layer;attention;...;[GPU_Kernel]softmax_kernel
 *
 * graph_decode.cu and graph_decode.c define the kernels and the macro LAUNCH, and then include this file.
 * graph/program.h uses only language features that C99 and C++ have in common.
 */
#ifndef GRAPH_PROGRAM_H
#define GRAPH_PROGRAM_H

#include "../call_site.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 1024 };

static void check(cudaError_t error, const char *call)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "graph_decode: %s: %s\n", call, cudaGetErrorString(error));
        exit(1);
    }
}

#define CUDA(call) (CUDA_CALL_SITE(), check((call), #call))

/* The reported position includes the kernel's stub, which has a stack frame: a host function with the kernel's name. */
#define RUN(kernel, stream, ...) \
    do { \
        const size_t caller = call_site_enter(#kernel); \
        CUDA_CALL_SITE(); \
        LAUNCH(kernel, WIDTH / 256, 256, stream)(__VA_ARGS__); \
        call_site_leave(caller); \
        check(cudaGetLastError(), #kernel); \
    } while (0)

struct model {
    int layers;
    float *x, *y, *scores;
    cudaStream_t stream;
};

OWN_FRAME static void attention(const struct model *model)
{
    ENTER();
    RUN(norm_kernel, model->stream, model->y, model->x);
    RUN(qkv_kernel, model->stream, model->y, model->y);
    RUN(scores_kernel, model->stream, model->scores, model->y);
    RUN(softmax_kernel, model->stream, model->scores, model->scores);
    RUN(values_kernel, model->stream, model->x, model->scores);
    LEAVE();
}

OWN_FRAME static void feed_forward(const struct model *model)
{
    ENTER();
    RUN(norm_kernel, model->stream, model->y, model->x);
    RUN(up_kernel, model->stream, model->y, model->y);
    RUN(down_kernel, model->stream, model->x, model->y);
    LEAVE();
}

/* A layer launches eight kernels. */
OWN_FRAME static void layer(const struct model *model)
{
    ENTER();
    attention(model);
    feed_forward(model);
    LEAVE();
}

OWN_FRAME static void step(const struct model *model)
{
    ENTER();
    for (int i = 0; i < model->layers; i++)
        layer(model);
    LEAVE();
}

OWN_FRAME static cudaGraph_t capture(const struct model *model)
{
    ENTER();
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(model->stream, cudaStreamCaptureModeGlobal));
    step(model);
    CUDA(cudaStreamEndCapture(model->stream, &graph));
    LEAVE();
    return graph;
}

OWN_FRAME static cudaGraphExec_t prepare(const struct model *model)
{
    ENTER();
    cudaGraphExec_t exec;
    cudaGraph_t graph = capture(model);
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    LEAVE();
    return exec;
}

OWN_FRAME static void grow_cache(const struct model *model, cudaGraphExec_t exec)
{
    ENTER();
    cudaGraphExecUpdateResultInfo info;
    cudaGraph_t graph = capture(model);
    CUDA(cudaGraphExecUpdate(exec, graph, &info));
    CUDA(cudaGraphDestroy(graph));
    LEAVE();
}

OWN_FRAME static void generate(const struct model *model, cudaGraphExec_t exec, int tokens)
{
    ENTER();
    for (int token = 0; token < tokens; token++) {
        if (token == tokens / 2)
            grow_cache(model, exec);
        CUDA(cudaGraphLaunch(exec, model->stream));
    }
    CUDA(cudaStreamSynchronize(model->stream));
    LEAVE();
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int number(const char *option, const char *text)
{
    char *end;
    const long value = text ? strtol(text, &end, 10) : 0;
    if (!text || *end || value < 1 || value > 100000000) {
        fprintf(stderr, "graph_decode: %s wants a number from 1 to 100000000\n", option);
        exit(2);
    }
    return (int)value;
}

int main(int argc, char **argv)
{
    ENTER();
    int tokens = 1000;
    struct model model = {40, NULL, NULL, NULL, NULL};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--tokens"))
            tokens = number(option, argv[++i]);
        else if (!strcmp(option, "--layers"))
            model.layers = number(option, argv[++i]);
        else {
            fprintf(stderr, "usage: graph_decode [--tokens N] [--layers N]    (1000 tokens, 40 layers)\n");
            exit(strcmp(option, "--help") ? 2 : 0);
        }
    }
    CUDA(cudaStreamCreate(&model.stream));
    CUDA(cudaMalloc((void **)&model.x, WIDTH * sizeof(float)));
    CUDA(cudaMalloc((void **)&model.y, WIDTH * sizeof(float)));
    CUDA(cudaMalloc((void **)&model.scores, WIDTH * sizeof(float)));
    cudaGraphExec_t exec = prepare(&model);
    const double start = seconds();
    generate(&model, exec, tokens);
    const double took = seconds() - start;
    CUDA(cudaGraphExecDestroy(exec));
    printf("%d tokens in %.3f s: %.0f tokens/s, each a launch of one graph of %d kernels\n", tokens, took,
           tokens / took, 8 * model.layers);
    LEAVE();
    return 0;
}

#endif
