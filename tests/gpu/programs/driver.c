/* Uses the driver API without the CUDA runtime, as Triton and JAX do. The program is in plain C and builds without a
 * CUDA toolkit: it looks up the driver's functions at run time, and the driver compiles its kernels from PTX.
 *
 * EXPECT kernel north_d20000 120 main;north
 * EXPECT kernel south_d30000 80 main;south
 * EXPECT set memset 5 main;south
 * EXPECT copy DtoH 5 main;south
 *
 * With an argument N, the program launches each kernel N times instead. The recordings of tiny programs use this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP() __asm__ volatile("" ::: "memory")

/* A kernel that waits until the GPU's clock has advanced by its argument. */
#define TIMED_PTX(name)                                                                                            \
    ".visible .entry " name "(.param .u64 nanos)\n"                                                                \
    "{\n"                                                                                                          \
    "    .reg .pred %p<2>; .reg .b64 %rd<5>;\n"                                                                    \
    "    ld.param.u64 %rd1, [nanos];\n"                                                                            \
    "    mov.u64 %rd2, %globaltimer;\n"                                                                            \
    "again:\n"                                                                                                     \
    "    mov.u64 %rd3, %globaltimer;\n"                                                                            \
    "    sub.u64 %rd4, %rd3, %rd2;\n"                                                                              \
    "    setp.lt.u64 %p1, %rd4, %rd1;\n"                                                                           \
    "    @%p1 bra again;\n"                                                                                        \
    "    ret;\n"                                                                                                   \
    "}\n"

static const char ptx[] = ".version 6.0\n.target sm_70\n.address_size 64\n" TIMED_PTX("north_d20000") TIMED_PTX("south_d30000");

static void *cuda;

static void *function(const char *name)
{
    void *found = dlsym(cuda, name);
    if (!found) {
        fprintf(stderr, "driver: libcuda has no %s\n", name);
        exit(75);
    }
    return found;
}

static void check(int result, const char *call)
{
    if (result) {
        fprintf(stderr, "driver: %s: error %d\n", call, result);
        exit(1);
    }
}

static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **);

static void launch(void *kernel, long long nanos)
{
    void *arguments[] = {&nanos};
    check(launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
}

OWN_FRAME void north(void *kernel, int times)
{
    for (int i = 0; i < times; i++)
        launch(kernel, 20000);
    KEEP();
}

OWN_FRAME void south(void *kernel, int times)
{
    int (*fill)(unsigned long long, unsigned char, size_t) = (int (*)(unsigned long long, unsigned char, size_t))function("cuMemsetD8_v2");
    int (*fetch)(void *, unsigned long long, size_t) = (int (*)(void *, unsigned long long, size_t))function("cuMemcpyDtoH_v2");
    int (*allocate)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))function("cuMemAlloc_v2");
    unsigned long long device;
    char host[256];
    for (int i = 0; i < times; i++)
        launch(kernel, 30000);
    check(allocate(&device, sizeof host), "cuMemAlloc");
    for (int i = 0; i < 5; i++) {
        check(fill(device, 7, sizeof host), "cuMemsetD8");
        check(fetch(host, device, sizeof host), "cuMemcpyDtoH");
    }
    KEEP();
}

int main(int argc, char **argv)
{
    const int times = argc > 1 ? atoi(argv[1]) : 0;
    void *context, *module, *kernels[2];
    int device;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "driver: %s\n", dlerror());
        return 75;
    }
    check(((int (*)(unsigned))function("cuInit"))(0), "cuInit");
    check(((int (*)(int *, int))function("cuDeviceGet"))(&device, 0), "cuDeviceGet");
    check(((int (*)(void **, unsigned, int))function("cuCtxCreate_v2"))(&context, 0, device), "cuCtxCreate");
    check(((int (*)(void **, const void *))function("cuModuleLoadData"))(&module, ptx), "cuModuleLoadData");
    check(((int (*)(void **, void *, const char *))function("cuModuleGetFunction"))(&kernels[0], module, "north_d20000"), "north");
    check(((int (*)(void **, void *, const char *))function("cuModuleGetFunction"))(&kernels[1], module, "south_d30000"), "south");
    *(void **)&launch_kernel = function("cuLaunchKernel");
    north(kernels[0], times ? times : 120);
    south(kernels[1], times ? times : 80);
    check(((int (*)(void))function("cuCtxSynchronize"))(), "cuCtxSynchronize");
    return 0;
}
