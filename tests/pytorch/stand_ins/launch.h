// Launches one kernel through the CUDA runtime, from a library without symbols.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dim { unsigned x, y, z; };

// The CUDA runtime identifies a kernel by an address. Here this is the address of the kernel's entry in this table.
static struct kernel { char name[160]; } kernels[512];
static unsigned kernel_count;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

static int (*launch_kernel)(const void *, struct dim, struct dim, void **, size_t, void *);
static void (*register_kernel)(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);

static void find_runtime(void) {
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW);
    if (!runtime) return;
    launch_kernel = dlsym(runtime, "cudaLaunchKernel");
    register_kernel = dlsym(runtime, "__cudaRegisterFunction");
}

static const void *kernel_of(const char *name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_runtime);
    const void *found = NULL;
    pthread_mutex_lock(&kernels_lock);
    for (unsigned at = 0; at < kernel_count && !found; at++)
        if (!strcmp(kernels[at].name, name)) found = &kernels[at];
    if (!found && register_kernel && kernel_count < sizeof kernels / sizeof *kernels) {
        struct kernel *new = &kernels[kernel_count++];
        snprintf(new->name, sizeof new->name, "%s", name);
        register_kernel(NULL, new, new->name, new->name, -1, NULL, NULL, NULL, NULL, NULL);
        found = new;
    }
    pthread_mutex_unlock(&kernels_lock);
    return found;
}

// Returns CUBLAS_STATUS_SUCCESS or CUBLAS_STATUS_EXECUTION_FAILED.
static int launch(const char *name, struct dim grid, struct dim block, size_t shared_bytes, void *stream) {
    const void *kernel = kernel_of(name);
    void *no_arguments = NULL;
    int result = kernel ? launch_kernel(kernel, grid, block, &no_arguments, shared_bytes, stream) : -1;
    // The functions of this library return only a state. The empty statement hides its value from the compiler.
    asm volatile("" : "+r"(result));
    return result ? 13 : 0;
}

// Returns the name of a matrix element's type, given as cudaDataType.
static const char *type_name(int type) {
    switch (type) {
    case 0: return "f32f32_f32f32_f32";
    case 1: return "f64f64_f64f64_f64";
    case 2: return "f16f16_f16f32_f32";
    case 14: return "bf16bf16_bf16f32_f32";
    case 4: return "cf32cf32_cf32cf32_cf32";
    case 5: return "cf64cf64_cf64cf64_cf64";
    default: return "e4m3e4m3_f32f32_f32";
    }
}

// Returns whether GPUSIM_MATH=1 is set. Then memory has contents, and products of 32-bit floats are computed: C = alpha
// op(A) op(B) + beta C, with matrices stored by columns.
static int computes(void) {
    const char *math = getenv("GPUSIM_MATH");
    return math && !strcmp(math, "1");
}

struct matrix { float *at; long rows; };

static void compute(int transposed_a, int transposed_b, long m, long n, long k, float alpha, struct matrix a,
                    struct matrix b, float beta, struct matrix c) {
    for (long row = 0; row < m; row++)
        for (long column = 0; column < n; column++) {
            float sum = 0, *out = &c.at[row + column * c.rows];
            for (long at = 0; at < k; at++)
                sum += a.at[transposed_a ? at + row * a.rows : row + at * a.rows]
                    * b.at[transposed_b ? column + at * b.rows : at + column * b.rows];
            // If beta is 0, C may hold any old value, even NaN. So the old value is not read.
            *out = alpha * sum + (beta ? beta * *out : 0);
        }
}

// Launches the kernel of a matrix product. Each block of threads computes a tile of the result, and small matrices have
// smaller tiles.
static int multiply(int type, int transposed_a, int transposed_b, long m, long n, long batch, void *stream) {
    unsigned tile = m * n > 256 * 256 ? 128 : 64;
    char name[160];
    snprintf(name, sizeof name, "sm90_xmma_gemm_%s_%c%c_n_tilesize%ux%ux32_warpgroupsize1x1x1_execute_kernel__5x_cublas",
             type_name(type), transposed_a ? 't' : 'n', transposed_b ? 't' : 'n', tile, tile);
    struct dim grid = {(m + tile - 1) / tile, (n + tile - 1) / tile, batch > 0 ? batch : 1}, block = {128, 1, 1};
    if (!m || !n) return 0;
    return launch(name, grid, block, 48 << 10, stream);
}
