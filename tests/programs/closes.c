/* Uses gpuflame as a plugin uses a library: opens it, uses it and closes it again.
 *
 *     closes LIBRARY
 *
 * The program opens a window, closes the library, and launches 30 kernels. After that, the program opens the library
 * again, closes the window and the library, launches 40 kernels, and returns 7. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdlib.h>

KERNEL(in_d100, "in_d100", (int n), &n)
KERNEL(out_d100, "out_d100", (int n), &n)

static void call(const char *path, const char *name)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*function)(void);
    *(void **)&function = library ? dlsym(library, name) : NULL;
    if (!function || function() || dlclose(library))
        exit(20);
}

__attribute__((noinline, noclone)) static void launch(int times)
{
    SITE("main;launch");
    while (times--)
        LAUNCH(in_d100, 1, 32, 0)(times);
    cudaDeviceSynchronize();
}

int main(int count, char **words)
{
    int i;
    if (count < 2)
        return 21;
    call(words[1], "gpuflame_start");
    launch(30);
    call(words[1], "gpuflame_stop");
    for (i = 0; i < 40; i++)
        LAUNCH(out_d100, 1, 32, 0)(i);
    cudaDeviceSynchronize();
    return 7;
}
