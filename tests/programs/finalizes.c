/* Embeds Python. LIBRARY is the path of Python's shared library.
 *
 *     finalizes LIBRARY goes_on PROGRAM
 *     finalizes LIBRARY main PROGRAM HOW
 *     finalizes LIBRARY late PROGRAM HOW
 *
 * - `goes_on`: runs a Python program, finalizes Python, and launches 100 more kernels.
 * - `main`: acts as `python PROGRAM HOW`, and then launches 100 more kernels.
 * - `late`: as `main`, but launches 100 kernels before it loads Python. */
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

KERNEL(after_d1000, "after_d1000", (int n), &n)

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        exit(10);
    return found;
}

__attribute__((noinline, noclone)) static void launch_after(void)
{
    int i;
    SITE("main;launch_after");
    for (i = 0; i < 100; i++)
        LAUNCH(after_d1000, 1, 32, 0)(1);
    cudaDeviceSynchronize();
}

static void go_on(const char *program)
{
    FILE *file = fopen(program, "r");
    ((void (*)(void))function("Py_Initialize"))();
    ((int (*)(const char *))function("PyRun_SimpleString"))(
        "import sys\n"
        "sys.argv = ['', 'returns']\n");
    if (!file || ((int (*)(FILE *, const char *))function("PyRun_SimpleFile"))(file, program) != 0)
        exit(11);
    fclose(file);
    if (((int (*)(void))function("Py_FinalizeEx"))() != 0)
        exit(12);
}

int main(int count, char **arguments)
{
    if (!strcmp(arguments[2], "late")) {
        launch_after();
        usleep(300000);
    }
    library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(9);
    }
    if (!strcmp(arguments[2], "goes_on"))
        go_on(arguments[3]);
    else if (((int (*)(int, char **))function("Py_BytesMain"))(count - 2, arguments + 2) != 0)
        exit(13);
    launch_after();
    return 0;
}
