/* Launches from functions of an interpreter that is loaded: evaluates LIBRARY, as interpreter.c makes it. */
#include <dlfcn.h>

#include "cuda_mini.h"

KERNEL(step_d100, "step_d100", (int n), &n)

static void launch(void *with)
{
    (void)with;
    LAUNCH(step_d100, 1, 32, 0)(1);
}

int main(int count, char **arguments)
{
    void *library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_GLOBAL);
    int (*evaluate)(int, void (*)(void *), void *) = library ? dlsym(library, "evaluate") : 0;
    if (!evaluate)
        return 2;
    for (int at = 0; at < 3; at++)
        evaluate(7, launch, 0);
    cudaDeviceSynchronize();
    return 0;
}
