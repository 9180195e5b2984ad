/* Computes the model on the CPU, with code as simple as possible. --check compares the kernels with this. One call
 * computes one position of the sequence. The caller passes the token at that position. */
#ifndef LLM_REFERENCE_H
#define LLM_REFERENCE_H

#include "model.h"

#include <stdlib.h>
#include <string.h>

struct reference {
    const struct weights *weights;
    int layers, position;
    float *keys, *values; /* [layers][CONTEXT][DIM] */
    float probabilities[VOCABULARY];
};

/* Returns whether there was enough memory. */
static inline int reference_open(struct reference *reference, const struct weights *weights, int layers)
{
    const size_t cache = (size_t)layers * CONTEXT * DIM;
    reference->weights = weights;
    reference->layers = layers;
    reference->position = 0;
    reference->keys = (float *)calloc(cache, sizeof(float));
    reference->values = (float *)calloc(cache, sizeof(float));
    return reference->keys && reference->values;
}

static inline void reference_close(struct reference *reference)
{
    free(reference->keys);
    free(reference->values);
}

static inline void reference_rmsnorm(float *out, const float *x, const float *weight)
{
    double squares = 0;
    for (int i = 0; i < DIM; i++)
        squares += (double)x[i] * x[i];
    const double scale = 1.0 / sqrt(squares / DIM + NORM_EPSILON);
    for (int i = 0; i < DIM; i++)
        out[i] = (float)(x[i] * scale * weight[i]);
}

static inline double reference_dot(const float *a, const float *b, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static inline void reference_matmul(float *out, const float *x, const float *matrix, int inputs, int outputs)
{
    for (int row = 0; row < outputs; row++)
        out[row] = (float)reference_dot(matrix + (size_t)row * inputs, x, inputs);
}

static inline void reference_rope(float *heads, int position)
{
    for (int i = 0; i < DIM; i += 2) {
        const double angle = position * pow(ROPE_BASE, -(double)(i % HEAD_DIM) / HEAD_DIM);
        const double a = heads[i], b = heads[i + 1];
        heads[i] = (float)(a * cos(angle) - b * sin(angle));
        heads[i + 1] = (float)(a * sin(angle) + b * cos(angle));
    }
}

static inline void reference_softmax(float *row, int length)
{
    float highest = row[0];
    for (int i = 1; i < length; i++)
        highest = fmaxf(highest, row[i]);
    double sum = 0;
    for (int i = 0; i < length; i++)
        sum += row[i] = expf(row[i] - highest);
    for (int i = 0; i < length; i++)
        row[i] = (float)(row[i] / sum);
}

/* Computes the attention of one head over the first `length` slots of the cache. */
static inline void reference_head(float *out, const float *query, const float *keys, const float *values,
                                  int length)
{
    float scores[CONTEXT];
    for (int t = 0; t < length; t++)
        scores[t] = (float)(reference_dot(query, keys + (size_t)t * DIM, HEAD_DIM) / sqrt((double)HEAD_DIM));
    reference_softmax(scores, length);
    for (int i = 0; i < HEAD_DIM; i++) {
        double sum = 0;
        for (int t = 0; t < length; t++)
            sum += (double)scores[t] * values[(size_t)t * DIM + i];
        out[i] = (float)sum;
    }
}

static inline void reference_attention(struct reference *reference, float *x, int index)
{
    const struct layer_weights *layer = &reference->weights->layer[index];
    const int position = reference->position, slot = position % CONTEXT;
    float *keys = reference->keys + (size_t)index * CONTEXT * DIM;
    float *values = reference->values + (size_t)index * CONTEXT * DIM;
    float normed[DIM], query[DIM], mixed[DIM], out[DIM];

    reference_rmsnorm(normed, x, layer->attention_norm);
    reference_matmul(query, normed, layer->query, DIM, DIM);
    reference_matmul(keys + (size_t)slot * DIM, normed, layer->key, DIM, DIM);
    reference_matmul(values + (size_t)slot * DIM, normed, layer->value, DIM, DIM);
    reference_rope(query, position);
    reference_rope(keys + (size_t)slot * DIM, position);
    for (int head = 0; head < DIM; head += HEAD_DIM)
        reference_head(mixed + head, query + head, keys + head, values + head,
                       position < CONTEXT ? position + 1 : CONTEXT);
    reference_matmul(out, mixed, layer->attention_out, DIM, DIM);
    for (int i = 0; i < DIM; i++)
        x[i] += out[i];
}

static inline void reference_mlp(const struct layer_weights *layer, float *x)
{
    float normed[DIM], gate[HIDDEN], up[HIDDEN], out[DIM];

    reference_rmsnorm(normed, x, layer->mlp_norm);
    reference_matmul(gate, normed, layer->gate, DIM, HIDDEN);
    reference_matmul(up, normed, layer->up, DIM, HIDDEN);
    for (int i = 0; i < HIDDEN; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    reference_matmul(out, gate, layer->down, HIDDEN, DIM);
    for (int i = 0; i < DIM; i++)
        x[i] += out[i];
}

/* Puts `token` at the next position, and computes the probabilities of the token after it. */
static inline void reference_forward(struct reference *reference, int token)
{
    const struct weights *weights = reference->weights;
    float x[DIM], normed[DIM];

    memcpy(x, weights->embedding + (size_t)token * DIM, sizeof x);
    for (int i = 0; i < reference->layers; i++) {
        reference_attention(reference, x, i);
        reference_mlp(&weights->layer[i], x);
    }
    reference_rmsnorm(normed, x, weights->final_norm);
    reference_matmul(reference->probabilities, normed, weights->classifier, DIM, VOCABULARY);
    reference_softmax(reference->probabilities, VOCABULARY);
    reference->position++;
}

#endif
