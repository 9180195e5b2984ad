// A stand-in for cuBLASLt with the descriptions of a product. Each product is one kernel. With GPUSIM_MATH=1 the
// stand-in computes products of 32-bit floats. If the epilogue requests this, a bias is added to each row, and negative
// results become 0. The stand-in does not compute any other epilogue.
#include "launch.h"

// CUDA_R_32F
enum { FLOAT = 0 };
// Values of cublasLtEpilogue_t: these values are bits that can be combined.
enum { NOTHING = 1, RELU = 2, BIAS = 4 };

struct product { int transposed_a, transposed_b; unsigned epilogue; float *bias; };
struct layout { int type, batch; unsigned long rows, columns; long leading, stride; };
// cublasLtMatmulHeuristicResult_t
struct found { unsigned long algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

#define FUNCTION(name, ...) int name(__VA_ARGS__)

size_t cublasLtGetVersion(void) { return 130200; }
FUNCTION(cublasLtMatmulDescCreate, struct product **out) { return (*out = calloc(1, sizeof **out)) ? 0 : 3; }
FUNCTION(cublasLtMatmulDescDestroy, struct product *it) { free(it); return 0; }
FUNCTION(cublasLtMatmulDescSetAttribute, struct product *it, int what, const void *value) {
    if (what == 3) it->transposed_a = *(const int *)value;
    if (what == 4) it->transposed_b = *(const int *)value;
    if (what == 7) it->epilogue = *(const unsigned *)value;
    if (what == 8) it->bias = *(float *const *)value;
    return 0;
}
FUNCTION(cublasLtMatrixLayoutCreate, struct layout **out, int type, unsigned long rows, unsigned long columns, long leading) {
    *out = calloc(1, sizeof **out);
    if (!*out) return 3;
    **out = (struct layout){type, 1, rows, columns, leading};
    return 0;
}
FUNCTION(cublasLtMatrixLayoutDestroy, struct layout *it) { free(it); return 0; }
FUNCTION(cublasLtMatrixLayoutSetAttribute, struct layout *it, int what, const void *value) {
    if (what == 5) it->batch = *(const int *)value;
    if (what == 6) it->stride = *(const long *)value;
    return 0;
}
FUNCTION(cublasLtMatmulPreferenceCreate, void **out) { return (*out = calloc(1, 64)) ? 0 : 3; }
FUNCTION(cublasLtMatmulPreferenceDestroy, void *it) { free(it); return 0; }
FUNCTION(cublasLtMatmulPreferenceSetAttribute, void *it) { return 0; }
FUNCTION(cublasLtMatmulAlgoGetHeuristic, void *handle, struct product *product, void *a, void *b, void *c, void *d,
         void *preference, int room, struct found *found, int *count) {
    *count = room > 0;
    if (*count) memset(found, 0, sizeof *found);
    return 0;
}
FUNCTION(cublasLtMatmulAlgoInit, void *handle) { return 0; }
FUNCTION(cublasLtMatmulAlgoConfigSetAttribute, void *algorithm) { return 0; }
// Computes D = alpha op(A) op(B) + beta C and its epilogue for each product of a batch.
static void compute_all(struct product *product, float alpha, float *a, struct layout *of_a, float *b, struct layout *of_b,
                        float beta, float *c, struct layout *of_c, float *d, struct layout *of_d) {
    long inner = product->transposed_a ? of_a->rows : of_a->columns;
    for (long at = 0; at < (of_d->batch > 0 ? of_d->batch : 1); at++) {
        struct matrix first = {a + at * of_a->stride, of_a->leading}, second = {b + at * of_b->stride, of_b->leading};
        struct matrix old = {c + at * of_c->stride, of_c->leading}, out = {d + at * of_d->stride, of_d->leading};
        for (unsigned long column = 0; beta && d != c && column < of_d->columns; column++)
            memcpy(out.at + column * out.rows, old.at + column * old.rows, of_d->rows * sizeof *d);
        compute(product->transposed_a, product->transposed_b, of_d->rows, of_d->columns, inner, alpha, first, second, beta, out);
        for (unsigned long place = 0; place < of_d->rows * of_d->columns; place++) {
            float *value = &out.at[place % of_d->rows + place / of_d->rows * out.rows];
            if (product->epilogue & BIAS && product->bias) *value += product->bias[place % of_d->rows];
            if (product->epilogue & RELU && *value < 0) *value = 0;
        }
    }
}

FUNCTION(cublasLtMatmul, void *handle, struct product *product, float *alpha, void *a, struct layout *of_a, void *b,
         struct layout *of_b, float *beta, void *c, struct layout *of_c, void *d, struct layout *of_d, void *algorithm,
         void *workspace, size_t bytes, void *stream) {
    int status = multiply(of_a->type, product->transposed_a, product->transposed_b, of_d->rows, of_d->columns, of_d->batch, stream);
    int are_floats = of_a->type == FLOAT && of_b->type == FLOAT && of_d->type == FLOAT;
    if (!status && are_floats && !(product->epilogue & ~(NOTHING | RELU | BIAS)) && computes())
        compute_all(product, *alpha, a, of_a, b, of_b, *beta, c, of_c, d, of_d);
    return status;
}
