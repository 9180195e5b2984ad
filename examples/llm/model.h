/* The model of the inference examples: its size and its weights. The weights are random, but the same for
 * the same seed. This file does not use CUDA. The program puts one copy of the weights into host memory,
 * which the reference reads, and another copy onto the GPU. */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* The sizes are as small as possible, but large enough that every kernel has work. */
enum {
    DIM = 256,        /* width of the residual stream */
    HEADS = 8,        /* attention heads */
    HEAD_DIM = 32,    /* DIM / HEADS */
    HIDDEN = 704,     /* width inside the MLP */
    VOCABULARY = 512, /* tokens are 0 to 511 */
    CONTEXT = 256,    /* positions in the cache; if it is full, the oldest is overwritten */
    MAX_LAYERS = 64
};

#define NORM_EPSILON 1e-5f
#define ROPE_BASE 10000.0f

/* Matrices are row-major, [output][input]. */
struct layer_weights {
    float *attention_norm;                      /* [DIM] */
    float *query, *key, *value, *attention_out; /* [DIM][DIM] */
    float *mlp_norm;                            /* [DIM] */
    float *gate, *up;                           /* [HIDDEN][DIM] */
    float *down;                                /* [DIM][HIDDEN] */
};

struct weights {
    struct layer_weights layer[MAX_LAYERS];
    float *embedding;  /* [VOCABULARY][DIM] */
    float *final_norm; /* [DIM] */
    float *classifier; /* [VOCABULARY][DIM] */
};

enum {
    LAYER_FLOATS = 2 * DIM + 4 * DIM * DIM + 3 * DIM * HIDDEN,
    OUTER_FLOATS = 2 * VOCABULARY * DIM + DIM
};

static inline size_t weight_count(int layers)
{
    return (size_t)layers * LAYER_FLOATS + OUTER_FLOATS;
}

/* Returns the address *next, and moves *next past the `count` floats there. */
static inline float *take(float **next, size_t count)
{
    float *taken = *next;
    *next += count;
    return taken;
}

/* Divides weight_count(layers) floats among the tensors. The layers are first, each in one contiguous piece. */
static inline void lay_out(struct weights *weights, float *floats, int layers)
{
    for (int i = 0; i < layers; i++) {
        struct layer_weights *layer = &weights->layer[i];
        layer->attention_norm = take(&floats, DIM);
        layer->query = take(&floats, DIM * DIM);
        layer->key = take(&floats, DIM * DIM);
        layer->value = take(&floats, DIM * DIM);
        layer->attention_out = take(&floats, DIM * DIM);
        layer->mlp_norm = take(&floats, DIM);
        layer->gate = take(&floats, HIDDEN * DIM);
        layer->up = take(&floats, HIDDEN * DIM);
        layer->down = take(&floats, DIM * HIDDEN);
    }
    weights->embedding = take(&floats, VOCABULARY * DIM);
    weights->final_norm = take(&floats, DIM);
    weights->classifier = take(&floats, VOCABULARY * DIM);
}

/* Returns a random number in [0, 1), by xorshift64* (Vigna 2016), which is short and portable. */
static inline float random_unit(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (float)((*state * UINT64_C(2685821657736338717)) >> 40) / 16777216.0f;
}

/* Draws uniform random weights. The variance of the weights keeps activations near 1 in every layer. */
static inline void draw(float *tensor, size_t count, int inputs, uint64_t *state)
{
    const float reach = sqrtf(3.0f / (float)inputs);
    for (size_t i = 0; i < count; i++)
        tensor[i] = reach * (2.0f * random_unit(state) - 1.0f);
}

static inline void fill(float *tensor, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        tensor[i] = value;
}

static inline void draw_weights(struct weights *weights, int layers, uint64_t *state)
{
    for (int i = 0; i < layers; i++) {
        struct layer_weights *layer = &weights->layer[i];
        fill(layer->attention_norm, DIM, 1.0f);
        draw(layer->query, 4 * DIM * DIM, DIM, state); /* also fills key, value, attention_out, which follow */
        fill(layer->mlp_norm, DIM, 1.0f);
        draw(layer->gate, 2 * HIDDEN * DIM, DIM, state); /* also fills up, which follows */
        draw(layer->down, DIM * HIDDEN, HIDDEN, state);
    }
    draw(weights->embedding, VOCABULARY * DIM, 1, state);
    fill(weights->final_norm, DIM, 1.0f);
    draw(weights->classifier, VOCABULARY * DIM, DIM, state);
}

#endif
