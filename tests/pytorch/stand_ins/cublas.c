// A stand-in for cuBLAS with handles. Each matrix product is one kernel. With GPUSIM_MATH=1 the stand-in computes
// products of 32-bit floats: of two matrices, or of a matrix and a vector. The stand-in computes neither cublasSgemmEx
// nor products of arrays of matrices.
#include "launch.h"

struct handle { void *stream; int math_mode, pointer_mode; };

// CUDA_R_32F
enum { FLOAT = 0 };

#define FUNCTION(name, ...) int name(__VA_ARGS__)

FUNCTION(cublasCreate_v2, struct handle **out) { return (*out = calloc(1, sizeof **out)) ? 0 : 3; }
FUNCTION(cublasDestroy_v2, struct handle *handle) { free(handle); return 0; }
FUNCTION(cublasSetStream_v2, struct handle *handle, void *stream) { handle->stream = stream; return 0; }
FUNCTION(cublasSetWorkspace_v2, struct handle *handle, void *memory, size_t bytes) { return 0; }
FUNCTION(cublasSetSmCountTarget, struct handle *handle, int count) { return 0; }
FUNCTION(cublasGetMathMode, struct handle *handle, int *mode) { *mode = handle->math_mode; return 0; }
FUNCTION(cublasSetMathMode, struct handle *handle, int mode) { handle->math_mode = mode; return 0; }
FUNCTION(cublasGetPointerMode_v2, struct handle *handle, int *mode) { *mode = handle->pointer_mode; return 0; }
FUNCTION(cublasSetPointerMode_v2, struct handle *handle, int mode) { handle->pointer_mode = mode; return 0; }

__attribute__((visibility("hidden"), noinline)) int standin_kernel(struct handle *handle, const char *name) {
    struct dim grid = {64, 1, 1}, block = {128, 1, 1};
    return launch(name, grid, block, 0, handle->stream);
}

#define GEMM(name, type) \
    int name(struct handle *h, int ta, int tb, int m, int n, int k) { return multiply(type, ta, tb, m, n, 1, h->stream); }
FUNCTION(cublasSgemm_v2, struct handle *h, int ta, int tb, int m, int n, int k, float *alpha, float *a, int lda, float *b,
         int ldb, float *beta, float *c, int ldc) {
    struct matrix first = {a, lda}, second = {b, ldb}, out = {c, ldc};
    int status = multiply(FLOAT, ta, tb, m, n, 1, h->stream);
    if (!status && computes()) compute(ta, tb, m, n, k, *alpha, first, second, *beta, out);
    return status;
}

FUNCTION(cublasGemmEx, struct handle *h, int ta, int tb, int m, int n, int k, float *alpha, float *a, int type, int lda,
         float *b, int type_b, int ldb, float *beta, float *c, int type_c, int ldc) {
    struct matrix first = {a, lda}, second = {b, ldb}, out = {c, ldc};
    int status = multiply(type, ta, tb, m, n, 1, h->stream), are_floats = type == FLOAT && type_c == FLOAT;
    if (!status && are_floats && computes()) compute(ta, tb, m, n, k, *alpha, first, second, *beta, out);
    return status;
}

// Computes y = alpha op(A) x + beta y. The vector is treated as a matrix of one column, whose elements are `step`
// elements apart in memory. If the step is negative, the elements are in reverse order.
static float *of_vector(float *at, long count, long apart, long place) { return at + (apart > 0 ? place : place - count + 1) * apart; }

FUNCTION(cublasSgemv_v2, struct handle *h, int transposed, int m, int n, float *alpha, float *a, int lda, float *x, int x_apart,
         float *beta, float *y, int y_apart) {
    int status = standin_kernel(h, "cublasSgemv_v2_kernel");
    long rows = transposed ? n : m, columns = transposed ? m : n;
    for (long row = 0; row < rows && !status && computes(); row++) {
        float sum = 0, *out = of_vector(y, rows, y_apart, row);
        for (long at = 0; at < columns; at++)
            sum += a[transposed ? at + row * lda : row + at * lda] * *of_vector(x, columns, x_apart, at);
        *out = *alpha * sum + (*beta ? *beta * *out : 0);
    }
    return status;
}

#define GEMM_EX(name) \
    int name(struct handle *h, int ta, int tb, int m, int n, int k, void *alpha, void *a, int type) { \
        return multiply(type, ta, tb, m, n, 1, h->stream); }
#define GEMM_BATCHED(name, type) \
    int name(struct handle *h, int ta, int tb, int m, int n, int k, void *alpha, void **a, int lda, void **b, int ldb, \
             void *beta, void **c, int ldc, int batch) { return multiply(type, ta, tb, m, n, batch, h->stream); }
#define GEMM_STRIDED(name, type) \
    int name(struct handle *h, int ta, int tb, int m, int n, int k, void *alpha, void *a, int lda, long sa, void *b, \
             int ldb, long sb, void *beta, void *c, int ldc, long sc, int batch) { \
        return multiply(type, ta, tb, m, n, batch, h->stream); }
#define GEMM_STRIDED_EX(name) \
    int name(struct handle *h, int ta, int tb, int m, int n, int k, void *alpha, void *a, int type, int lda, long sa, \
             void *b, int btype, int ldb, long sb, void *beta, void *c, int ctype, int ldc, long sc, int batch) { \
        int status = multiply(type, ta, tb, m, n, batch, h->stream); \
        for (long at = 0; at < batch && !status && type == FLOAT && ctype == FLOAT && computes(); at++) { \
            struct matrix first = {(float *)a + at * sa, lda}, second = {(float *)b + at * sb, ldb}; \
            struct matrix out = {(float *)c + at * sc, ldc}; \
            compute(ta, tb, m, n, k, *(float *)alpha, first, second, *(float *)beta, out); \
        } \
        return status; }

GEMM(cublasDgemm_v2, 1)
GEMM(cublasCgemm_v2, 4)
GEMM(cublasZgemm_v2, 5)
GEMM_EX(cublasSgemmEx)
GEMM_BATCHED(cublasSgemmBatched, 0)
GEMM_BATCHED(cublasDgemmBatched, 1)
GEMM_BATCHED(cublasCgemmBatched, 4)
GEMM_BATCHED(cublasZgemmBatched, 5)
GEMM_STRIDED(cublasDgemmStridedBatched, 1)
GEMM_STRIDED(cublasCgemmStridedBatched, 4)
GEMM_STRIDED(cublasZgemmStridedBatched, 5)
GEMM_STRIDED_EX(cublasGemmStridedBatchedEx)
