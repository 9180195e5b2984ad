/* Opens and closes the CUDA runtime and CUPTI as a plugin opens and closes its libraries. Each round opens the runtime
 * and CUPTI, launches a hundred kernels, waits for the first half of them, and closes both libraries. Another thread
 * also opens and closes the two libraries, as fast as it can. After each round the program makes the runtime's former
 * addresses unreadable, so that the next round loads the runtime at another address.
 *
 *     unloads ROUNDS RUNTIME CUPTI
 *
 * Prints the number of rounds after which the runtime was unloaded, and the same number for CUPTI. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static const char *runtime, *cupti;
/* Lock that a thread holds while it has a library open. So the other thread has no library open while the end of a
 * round checks that the libraries are unloaded. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_over;

static void *function(void *library, const char *name)
{
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(3);
    }
    return found;
}

/* Host function that identifies the kernel in a launch. */
static void step_d1000(void)
{
}

OWN_FRAME static void launch(void *library, int times)
{
    cudaError_t (*launch_kernel)(const void *, dim3, dim3, void **, size_t, cudaStream_t) = NULL;
    dim3 one = {1, 1, 1};
    *(void **)&launch_kernel = function(library, "cudaLaunchKernel");
    while (times--)
        if (launch_kernel((const void *)step_d1000, one, one, NULL, 0, NULL))
            exit(4);
    KEEP_FRAME();
}

OWN_FRAME static void in_a_round(void)
{
    void *library = dlopen(runtime, RTLD_NOW | RTLD_LOCAL), *tracer = dlopen(cupti, RTLD_NOW | RTLD_LOCAL);
    void *(*binary)(void *), (*end)(void *), (*site)(const char *);
    void (*named)(void *, const void *, const char *, const char *, int, void *, void *, void *, void *, void *);
    cudaError_t (*wait)(void);
    static int image;
    void *handle;
    *(void **)&binary = function(library, "__cudaRegisterFatBinary");
    *(void **)&named = function(library, "__cudaRegisterFunction");
    *(void **)&end = function(library, "__cudaRegisterFatBinaryEnd");
    *(void **)&wait = function(library, "cudaDeviceSynchronize");
    *(void **)&site = function(library, "gpusim_site");
    function(tracer, "cuptiGetVersion");
    handle = binary(&image);
    named(handle, (const void *)step_d1000, "step_d1000", "step_d1000", -1, NULL, NULL, NULL, NULL, NULL);
    end(handle);
    site("main;in_a_round;launch");
    launch(library, 50);
    if (wait())
        exit(5);
    launch(library, 50);
    if (dlclose(tracer) || dlclose(library))
        exit(6);
    KEEP_FRAME();
}

static int is_gone(const char *library)
{
    void *found = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    return found ? dlclose(found), 0 : 1;
}

static void *open_and_close(void *nothing)
{
    while (!is_over) {
        void *library, *tracer;
        pthread_mutex_lock(&turn);
        library = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
        tracer = dlopen(cupti, RTLD_NOW | RTLD_LOCAL);
        if (!library || !tracer || dlclose(library) || dlclose(tracer))
            exit(7);
        pthread_mutex_unlock(&turn);
    }
    return nothing;
}

int main(int argc, char **argv)
{
    int round, rounds = atoi(argv[1]), runtime_gone = 0, cupti_gone = 0;
    pthread_t other;
    if (argc != 4)
        return 2;
    runtime = argv[2];
    cupti = argv[3];
    if (pthread_create(&other, NULL, open_and_close, NULL))
        return 8;
    for (round = 0; round < rounds; round++) {
        in_a_round();
        pthread_mutex_lock(&turn);
        runtime_gone += is_gone(runtime);
        cupti_gone += is_gone(cupti);
        if (mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return 9;
        pthread_mutex_unlock(&turn);
    }
    is_over = 1;
    pthread_join(other, NULL);
    printf("%d %d\n", runtime_gone, cupti_gone);
    return 0;
}
