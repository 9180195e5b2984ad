/* evaluates [WORD] LIBRARY: launches from functions of a fake interpreter library, which is built from interpreter.c.
 * With WORD, the second launch is made by another thread. All words of this thread's interpreter state have the value
 * WORD (a number), or the address of the state itself (WORD is "own"). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
    void (*fill_state)(uint64_t, int) = dlsym(library, "fill_state");
    for (int at = 0; at < 3; at++) {
        if (count < 3 || at != 1) {
            evaluate(7, launch, 0);
            continue;
        }
        fill_state(strtoull(arguments[1], 0, 0), strcmp(arguments[1], "own") == 0);
        launch(0);
        fill_state(0, 0);
    }
    cudaDeviceSynchronize();
    return 0;
}
