// cuBLASLt: what a product is described by, and one kernel for each. Nothing is computed.
#include "launch.h"

struct product { int transposed_a, transposed_b; };
struct layout { int type, batch; unsigned long rows, columns; };
// cublasLtMatmulHeuristicResult_t
struct found { unsigned long algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

#define FUNCTION(name, ...) int name(__VA_ARGS__)

size_t cublasLtGetVersion(void) { return 130200; }
FUNCTION(cublasLtMatmulDescCreate, struct product **out) { return (*out = calloc(1, sizeof **out)) ? 0 : 3; }
FUNCTION(cublasLtMatmulDescDestroy, struct product *it) { free(it); return 0; }
FUNCTION(cublasLtMatmulDescSetAttribute, struct product *it, int what, const int *value) {
    if (what == 3) it->transposed_a = *value;
    if (what == 4) it->transposed_b = *value;
    return 0;
}
FUNCTION(cublasLtMatrixLayoutCreate, struct layout **out, int type, unsigned long rows, unsigned long columns) {
    *out = calloc(1, sizeof **out);
    if (!*out) return 3;
    **out = (struct layout){type, 1, rows, columns};
    return 0;
}
FUNCTION(cublasLtMatrixLayoutDestroy, struct layout *it) { free(it); return 0; }
FUNCTION(cublasLtMatrixLayoutSetAttribute, struct layout *it, int what, const int *value) {
    if (what == 5) it->batch = *value;
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
FUNCTION(cublasLtMatmul, void *handle, struct product *product, void *alpha, void *a, struct layout *a_layout, void *b,
         void *b_layout, void *beta, void *c, void *c_layout, void *d, struct layout *d_layout, void *algorithm,
         void *workspace, size_t bytes, void *stream) {
    return multiply(a_layout->type, product->transposed_a, product->transposed_b, d_layout->rows, d_layout->columns,
                    d_layout->batch, stream);
}
