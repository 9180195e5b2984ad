// cuBLAS: handles, and one kernel for each product of matrices. Nothing is computed.
#include "launch.h"

struct handle { void *stream; int math_mode, pointer_mode; };

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
        return multiply(type, ta, tb, m, n, batch, h->stream); }

GEMM(cublasSgemm_v2, 0)
GEMM(cublasDgemm_v2, 1)
GEMM(cublasCgemm_v2, 4)
GEMM(cublasZgemm_v2, 5)
GEMM_EX(cublasGemmEx)
GEMM_EX(cublasSgemmEx)
GEMM_BATCHED(cublasSgemmBatched, 0)
GEMM_BATCHED(cublasDgemmBatched, 1)
GEMM_BATCHED(cublasCgemmBatched, 4)
GEMM_BATCHED(cublasZgemmBatched, 5)
GEMM_STRIDED(cublasDgemmStridedBatched, 1)
GEMM_STRIDED(cublasCgemmStridedBatched, 4)
GEMM_STRIDED(cublasZgemmStridedBatched, 5)
GEMM_STRIDED_EX(cublasGemmStridedBatchedEx)
