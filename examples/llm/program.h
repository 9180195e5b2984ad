/* The program of the inference examples, from the command line to the kernel launches. The program is a decode loop
 * like that of a server, with a cache of keys and values, a stream for kernels and a stream for copies.
 *
 * llm_inference.cu and llm_inference.c include this file after they have defined the kernels and a launch,
 *     LAUNCH(kernel, blocks, threads, stream)(arguments)
 * so both are the same program, and both must give the same stacks. llm/program.h uses only language features that C99
 * and C++ have in common. The functions in this file are arranged for a readable flame graph:
 *
 *     main;serve;generate;decode;forward;layer;attention_block;matmul;matmul_kernel
 */
#ifndef LLM_PROGRAM_H
#define LLM_PROGRAM_H

#include "../call_site.h"
#include "model.h"
#include "reference.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Errors end the program, which prints one line with the failed call and the reason. ---- */

static void check(cudaError_t error, const char *call)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "llm_inference: %s: %s\n", call, cudaGetErrorString(error));
        exit(1);
    }
}

#define CUDA(call) (CUDA_CALL_SITE(), check((call), #call))

/* The reported position includes the kernel's stub, which has a stack frame: a host function with the kernel's name. */
#define RUN(kernel, blocks, threads, stream, ...) \
    do { \
        const size_t caller = call_site_enter(#kernel); \
        CUDA_CALL_SITE(); \
        LAUNCH(kernel, blocks, threads, stream)(__VA_ARGS__); \
        call_site_leave(caller); \
        check(cudaGetLastError(), #kernel); \
    } while (0)

/* ---- The command line. ---- */

struct options {
    int tokens, layers, threads, check;
    uint64_t seed;
};

static const char usage[] =
    "usage: llm_inference [--tokens N] [--layers N] [--threads N] [--seed N] [--check]\n"
    "  --tokens N   tokens that each thread generates (64)\n"
    "  --layers N   layers of the model, at most 64 (4)\n"
    "  --threads N  sequences decoded at once, each by a thread with two streams, at most 64 (1)\n"
    "  --seed N     of the random weights and of the sampling (1)\n"
    "  --check      compare every token's probabilities with a CPU's; needs a real GPU\n";

static long number(const char *option, const char *text, long most)
{
    char *end;
    const long value = text ? strtol(text, &end, 10) : 0;
    if (!text || *end || value < 1 || value > most) {
        fprintf(stderr, "llm_inference: %s wants a number from 1 to %ld\n%s", option, most, usage);
        exit(2);
    }
    return value;
}

static struct options parse(int argc, char **argv)
{
    struct options options = {64, 4, 1, 0, 1};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--check"))
            options.check = 1;
        else if (!strcmp(option, "--tokens"))
            options.tokens = (int)number(option, argv[++i], 100000000);
        else if (!strcmp(option, "--layers"))
            options.layers = (int)number(option, argv[++i], MAX_LAYERS);
        else if (!strcmp(option, "--threads"))
            options.threads = (int)number(option, argv[++i], 64);
        else if (!strcmp(option, "--seed"))
            options.seed = (uint64_t)number(option, argv[++i], 1000000000);
        else {
            fprintf(stderr, "%s", usage);
            exit(strcmp(option, "--help") ? 2 : 0);
        }
    }
    if (options.check && gpusim_site) {
        fprintf(stderr, "llm_inference: --check: the simulated GPU computes nothing; run it on a real one\n");
        exit(2);
    }
    return options;
}

/* ---- The model on the host and on the GPU, shared by all threads, and never written after loading. ---- */

struct model {
    int layers;
    struct weights host, device;
    float *host_floats, *device_floats;
};

OWN_FRAME static void upload(float *device, const float *host, size_t count)
{
    ENTER();
    CUDA(cudaMemcpy(device, host, count * sizeof(float), cudaMemcpyHostToDevice));
    LEAVE();
}

OWN_FRAME static void load_model(struct model *model, const struct options *options)
{
    ENTER();
    const size_t count = weight_count(options->layers);
    uint64_t random = options->seed;

    model->layers = options->layers;
    /* Pinned memory, so that the GPU can read the embeddings while the program continues. */
    CUDA(cudaMallocHost((void **)&model->host_floats, count * sizeof(float)));
    CUDA(cudaMalloc((void **)&model->device_floats, count * sizeof(float)));
    lay_out(&model->host, model->host_floats, model->layers);
    lay_out(&model->device, model->device_floats, model->layers);
    draw_weights(&model->host, model->layers, &random);
    for (int i = 0; i < model->layers; i++)
        upload(model->device.layer[i].attention_norm, model->host.layer[i].attention_norm, LAYER_FLOATS);
    upload(model->device.embedding, model->host.embedding, OUTER_FLOATS);
    LEAVE();
}

OWN_FRAME static void free_model(struct model *model)
{
    ENTER();
    CUDA(cudaFree(model->device_floats));
    CUDA(cudaFreeHost(model->host_floats));
    LEAVE();
}

/* ---- One sequence being decoded. ---- */

struct session {
    const struct model *model;
    int position;         /* position of the next token */
    uint64_t random;      /* state of the random numbers that select tokens */
    cudaStream_t compute; /* kernels */
    cudaStream_t copy;    /* embeddings in, probabilities out */
    cudaEvent_t arrived;  /* recorded on `copy`; `compute` waits for it */
    cudaEvent_t computed; /* recorded on `compute`; `copy` waits for it */
    float *floats;        /* device memory that contains all following buffers */
    float *x, *normed, *query, *key, *value, *scores, *mixed, *gate, *up, *out, *probabilities;
    float *keys, *values; /* [layers][CONTEXT][DIM] */
    float *host_probabilities;
};

OWN_FRAME static void open_session(struct session *session, const struct model *model, uint64_t seed)
{
    ENTER();
    const size_t cache = (size_t)model->layers * CONTEXT * DIM;
    const size_t count = 7 * DIM + HEADS * CONTEXT + 2 * HIDDEN + VOCABULARY + 2 * cache;

    session->model = model;
    session->position = 0;
    session->random = seed;
    CUDA(cudaStreamCreate(&session->compute));
    CUDA(cudaStreamCreate(&session->copy));
    CUDA(cudaEventCreate(&session->arrived));
    CUDA(cudaEventCreate(&session->computed));
    CUDA(cudaMallocHost((void **)&session->host_probabilities, VOCABULARY * sizeof(float)));
    CUDA(cudaMalloc((void **)&session->floats, count * sizeof(float)));
    CUDA(cudaMemset(session->floats, 0, count * sizeof(float)));
    memset(session->host_probabilities, 0, VOCABULARY * sizeof(float));

    float *next = session->floats;
    session->x = take(&next, DIM);
    session->normed = take(&next, DIM);
    session->query = take(&next, DIM);
    session->key = take(&next, DIM);
    session->value = take(&next, DIM);
    session->mixed = take(&next, DIM);
    session->out = take(&next, DIM);
    session->scores = take(&next, HEADS * CONTEXT);
    session->gate = take(&next, HIDDEN);
    session->up = take(&next, HIDDEN);
    session->probabilities = take(&next, VOCABULARY);
    session->keys = take(&next, cache);
    session->values = take(&next, cache);
    LEAVE();
}

OWN_FRAME static void close_session(struct session *session)
{
    ENTER();
    CUDA(cudaStreamSynchronize(session->compute));
    CUDA(cudaFree(session->floats));
    CUDA(cudaFreeHost(session->host_probabilities));
    CUDA(cudaEventDestroy(session->arrived));
    CUDA(cudaEventDestroy(session->computed));
    CUDA(cudaStreamDestroy(session->compute));
    CUDA(cudaStreamDestroy(session->copy));
    LEAVE();
}

/* ---- Operators. Each launches one kernel, and is called from several places. ---- */

static unsigned blocks(int threads)
{
    return (unsigned)(threads + 255) / 256;
}

OWN_FRAME static void rmsnorm(struct session *session, float *out, const float *x, const float *weight)
{
    ENTER();
    RUN(rmsnorm_kernel, 1, 256, session->compute, out, x, weight, DIM);
    LEAVE();
}

/* One warp computes one row. */
OWN_FRAME static void matmul(struct session *session, float *out, const float *x, const float *matrix,
                             int inputs, int outputs)
{
    ENTER();
    RUN(matmul_kernel, blocks(outputs * 32), 256, session->compute, out, x, matrix, inputs, outputs);
    LEAVE();
}

OWN_FRAME static void rope(struct session *session)
{
    ENTER();
    RUN(rope_kernel, blocks(DIM / 2), 256, session->compute, session->query, session->key,
        session->position);
    LEAVE();
}

OWN_FRAME static void softmax(struct session *session, float *rows, int count, int length, int stride)
{
    ENTER();
    RUN(softmax_kernel, (unsigned)count, 256, session->compute, rows, length, stride);
    LEAVE();
}

OWN_FRAME static void swiglu(struct session *session)
{
    ENTER();
    RUN(swiglu_kernel, blocks(HIDDEN), 256, session->compute, session->gate, session->up, HIDDEN);
    LEAVE();
}

OWN_FRAME static void accumulate(struct session *session, float *x, const float *y)
{
    ENTER();
    RUN(accumulate_kernel, blocks(DIM), 256, session->compute, x, y, DIM);
    LEAVE();
}

/* Appends the keys and values of this position to those of the earlier positions. */
OWN_FRAME static void append_to_cache(struct session *session, int layer)
{
    ENTER();
    const size_t slot = ((size_t)layer * CONTEXT + (size_t)(session->position % CONTEXT)) * DIM;
    CUDA(cudaMemcpyAsync(session->keys + slot, session->key, DIM * sizeof(float), cudaMemcpyDeviceToDevice,
                         session->compute));
    CUDA(cudaMemcpyAsync(session->values + slot, session->value, DIM * sizeof(float),
                         cudaMemcpyDeviceToDevice, session->compute));
    LEAVE();
}

OWN_FRAME static void attention(struct session *session, int layer)
{
    ENTER();
    const int length = session->position < CONTEXT ? session->position + 1 : CONTEXT;
    const float *keys = session->keys + (size_t)layer * CONTEXT * DIM;
    const float *values = session->values + (size_t)layer * CONTEXT * DIM;
    RUN(attention_scores_kernel, HEADS, 256, session->compute, session->scores, session->query, keys, length);
    softmax(session, session->scores, HEADS, length, CONTEXT);
    RUN(attention_values_kernel, HEADS, HEAD_DIM, session->compute, session->mixed, session->scores, values,
        length);
    LEAVE();
}

/* ---- The network. ---- */

OWN_FRAME static void attention_block(struct session *session, int index)
{
    ENTER();
    const struct layer_weights *layer = &session->model->device.layer[index];
    rmsnorm(session, session->normed, session->x, layer->attention_norm);
    matmul(session, session->query, session->normed, layer->query, DIM, DIM);
    matmul(session, session->key, session->normed, layer->key, DIM, DIM);
    matmul(session, session->value, session->normed, layer->value, DIM, DIM);
    rope(session);
    append_to_cache(session, index);
    attention(session, index);
    matmul(session, session->out, session->mixed, layer->attention_out, DIM, DIM);
    accumulate(session, session->x, session->out);
    LEAVE();
}

OWN_FRAME static void mlp_block(struct session *session, int index)
{
    ENTER();
    const struct layer_weights *layer = &session->model->device.layer[index];
    rmsnorm(session, session->normed, session->x, layer->mlp_norm);
    matmul(session, session->gate, session->normed, layer->gate, DIM, HIDDEN);
    matmul(session, session->up, session->normed, layer->up, DIM, HIDDEN);
    swiglu(session);
    matmul(session, session->out, session->gate, layer->down, HIDDEN, DIM);
    accumulate(session, session->x, session->out);
    LEAVE();
}

OWN_FRAME static void layer(struct session *session, int index)
{
    ENTER();
    attention_block(session, index);
    mlp_block(session, index);
    LEAVE();
}

/* Copies the token's embedding from the host, on the copy stream, when x is free. */
OWN_FRAME static void embed(struct session *session, int token)
{
    ENTER();
    const float *row = session->model->host.embedding + (size_t)token * DIM;
    CUDA(cudaStreamWaitEvent(session->copy, session->computed, 0));
    CUDA(cudaMemcpyAsync(session->x, row, DIM * sizeof(float), cudaMemcpyHostToDevice, session->copy));
    CUDA(cudaEventRecord(session->arrived, session->copy));
    CUDA(cudaStreamWaitEvent(session->compute, session->arrived, 0));
    LEAVE();
}

OWN_FRAME static void forward(struct session *session, int token)
{
    ENTER();
    embed(session, token);
    for (int i = 0; i < session->model->layers; i++)
        layer(session, i);
    CUDA(cudaEventRecord(session->computed, session->compute));
    session->position++;
    LEAVE();
}

OWN_FRAME static void classify(struct session *session)
{
    ENTER();
    const struct weights *weights = &session->model->device;
    rmsnorm(session, session->normed, session->x, weights->final_norm);
    matmul(session, session->probabilities, session->normed, weights->classifier, DIM, VOCABULARY);
    softmax(session, session->probabilities, 1, VOCABULARY, VOCABULARY);
    CUDA(cudaEventRecord(session->computed, session->compute));
    LEAVE();
}

/* ---- The loop. ---- */

/* Copies the probabilities to the host, and selects a token at random with these probabilities. */
OWN_FRAME static int sample(struct session *session)
{
    ENTER();
    CUDA(cudaStreamWaitEvent(session->copy, session->computed, 0));
    CUDA(cudaMemcpyAsync(session->host_probabilities, session->probabilities, VOCABULARY * sizeof(float),
                         cudaMemcpyDeviceToHost, session->copy));
    CUDA(cudaStreamSynchronize(session->copy));
    float left = random_unit(&session->random);
    int token = 0;
    while (token < VOCABULARY - 1 && (left -= session->host_probabilities[token]) >= 0)
        token++;
    LEAVE();
    return token;
}

/* Starts a new sequence, with an empty cache. */
OWN_FRAME static void reset(struct session *session)
{
    ENTER();
    const size_t bytes = 2 * (size_t)session->model->layers * CONTEXT * DIM * sizeof(float);
    CUDA(cudaMemsetAsync(session->keys, 0, bytes, session->compute)); /* also clears the values, which follow */
    session->position = 0;
    LEAVE();
}

OWN_FRAME static void prefill(struct session *session, const int *prompt, int count)
{
    ENTER();
    for (int i = 0; i < count; i++)
        forward(session, prompt[i]);
    classify(session);
    LEAVE();
}

OWN_FRAME static void decode(struct session *session, int token)
{
    ENTER();
    forward(session, token);
    classify(session);
    LEAVE();
}

enum { PROMPT = 4 };

/* Returns the largest difference between a probability from the GPU and the same probability from the CPU. */
static float worst_difference(const struct session *session, const struct reference *reference)
{
    float worst = 0;
    for (int i = 0; i < VOCABULARY; i++) {
        const float difference = fabsf(session->host_probabilities[i] - reference->probabilities[i]);
        if (!(difference <= worst)) /* also true if the difference is a NaN */
            worst = difference;
    }
    return worst;
}

struct work {
    const struct model *model;
    const struct options *options;
    int thread;
    int last_token;
    float worst; /* largest difference found by --check */
};

/* Generates one sequence. Runs on every thread. */
OWN_FRAME static void generate(struct work *work)
{
    ENTER();
    static const int prompt[PROMPT] = {11, 42, 7, 301};
    struct session session;
    struct reference reference;

    open_session(&session, work->model, work->options->seed + (uint64_t)work->thread);
    if (work->options->check && !reference_open(&reference, &work->model->host, work->model->layers)) {
        fprintf(stderr, "llm_inference: --check: out of memory\n");
        exit(1);
    }
    reset(&session);
    prefill(&session, prompt, PROMPT);
    for (int i = 0; work->options->check && i < PROMPT; i++)
        reference_forward(&reference, prompt[i]);

    for (int i = 0; i < work->options->tokens; i++) {
        const int token = sample(&session);
        if (work->options->check)
            work->worst = fmaxf(work->worst, worst_difference(&session, &reference));
        decode(&session, token);
        if (work->options->check)
            reference_forward(&reference, token);
        work->last_token = token;
    }
    if (work->options->check)
        reference_close(&reference);
    close_session(&session);
    LEAVE();
}

OWN_FRAME static void *worker(void *work)
{
    ENTER();
    generate((struct work *)work);
    LEAVE();
    return NULL;
}

/* The main thread generates the first sequence. */
OWN_FRAME static void serve(struct work *works, int threads)
{
    ENTER();
    pthread_t others[64];
    for (int i = 1; i < threads; i++) {
        const int error = pthread_create(&others[i], NULL, worker, &works[i]);
        if (error) {
            fprintf(stderr, "llm_inference: cannot start thread %d: %s\n", i, strerror(error));
            exit(1);
        }
    }
    generate(&works[0]);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    LEAVE();
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The CPU sums floats in another order. 1e-5 is far more than the resulting error, and far less than a bug causes. */
static int report_check(const struct work *works, int threads)
{
    float worst = 0;
    for (int i = 0; i < threads; i++)
        worst = works[i].worst <= worst ? worst : works[i].worst;
    const int right = worst <= 1e-5f;
    printf("check: %s, largest difference of a probability %.2g\n", right ? "ok" : "WRONG", (double)worst);
    return right ? 0 : 1;
}

int main(int argc, char **argv)
{
    ENTER();
    const struct options options = parse(argc, argv);
    struct model model;
    struct work works[64];

    load_model(&model, &options);
    for (int i = 0; i < options.threads; i++) {
        const struct work work = {&model, &options, i, 0, 0};
        works[i] = work;
    }
    const double start = seconds();
    serve(works, options.threads);
    const double took = seconds() - start;

    const long tokens = (long)options.tokens * options.threads;
    printf("%ld tokens in %.3f s: %.0f tokens/s (%d layers, %d thread%s, last token %d)\n", tokens, took,
           (double)tokens / took, options.layers, options.threads, options.threads > 1 ? "s" : "",
           works[0].last_token);
    free_model(&model);
    LEAVE();
    return options.check ? report_check(works, options.threads) : 0;
}

#endif
