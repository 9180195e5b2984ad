/* half_loaded LIBRARY: loads a fake interpreter library while another thread launches, each time from a new stack. Then
 * the program launches from functions of the library. The library is built from interpreter.c with -DSLOW. */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "cuda_mini.h"

KERNEL(step_d100, "step_d100", (int n), &n)

static volatile int is_loaded;

static void launch(void *with)
{
    (void)with;
    LAUNCH(step_d100, 1, 32, 0)(1);
}

__attribute__((noinline, noclone)) static int deeper(int depth)
{
    volatile int deepest = depth; /* volatile, so that the compiler keeps the nested calls */
    launch(0);
    usleep(1000);
    if (!is_loaded && depth < 1000)
        deepest = deeper(depth + 1);
    return deepest;
}

static void *launch_meanwhile(void *with)
{
    static int depth;
    (void)with;
    depth = deeper(0);
    return &depth;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    void *library;
    int (*evaluate)(int, void (*)(void *), void *);
    launch(0);
    pthread_create(&thread, 0, launch_meanwhile, 0);
    library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_GLOBAL);
    is_loaded = 1;
    pthread_join(thread, 0);
    evaluate = library ? dlsym(library, "evaluate") : 0;
    if (!evaluate)
        return 2;
    evaluate(7, launch, 0);
    cudaDeviceSynchronize();
    return 0;
}
