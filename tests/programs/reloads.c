/* Loads one plugin after the other without a pause, lets each plugin launch, and unloads it. In every other cycle a
 * plugin launches once, otherwise twice. Before each plugin the program's own code launches from STACKS stacks. The
 * program prints the address of each plugin.
 *
 *     reloads CYCLES STACKS NAMESPACE A.so B.so ...
 *
 * NAMESPACE is a library that is loaded into its own loader namespace, or `-`. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")

KERNEL(step_d1000, "step_d1000", (int n), &n)
KERNEL(other_d1000, "other_d1000", (int n), &n)

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, dlerror());
    return 1;
}

OWN_FRAME static int run(const char *path, int launches)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    volatile int left;
    void (*plugin_run)(const void *) = plugin ? (void (*)(const void *))dlsym(plugin, "plugin_run") : NULL;
    if (!plugin_run)
        return failed(path);
    /* `left` is volatile. Otherwise the compiler could unroll the loop into two calls, which would make two stacks. */
    for (left = launches; left > 0; left--)
        plugin_run((const void *)step_d1000);
    printf("%p %s\n", (void *)plugin_run, path);
    return dlclose(plugin);
}

/* Launches below nine nested calls. Each bit of `number` selects one of two places for a call, so every number has a
 * different stack. */
OWN_FRAME static void descend(int number, int calls)
{
    if (calls == 0)
        LAUNCH(other_d1000, 1, 32, 0)(number);
    else if (number & 1) {
        descend(number >> 1, calls - 1);
        __asm__ volatile("nop");
    } else
        descend(number >> 1, calls - 1);
    KEEP;
}

int main(int argc, char **argv)
{
    int cycle, stack, cycles = atoi(argv[1]), stacks = atoi(argv[2]), plugins = argc - 4, bad = 0;
    cudaDeviceSynchronize();
    if (strcmp(argv[3], "-") != 0 && !dlmopen(LM_ID_NEWLM, argv[3], RTLD_NOW))
        return failed(argv[3]);
    for (cycle = 0; cycle < cycles && !bad; cycle++) {
        for (stack = 0; stack < stacks; stack++)
            descend(stack, 9);
        bad |= run(argv[4 + cycle % plugins], 1 + cycle % 2);
    }
    return bad;
}
