/* plugins A.so B.so ...: loads each plugin, lets it launch, and unloads it before it loads the next plugin. */
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdio.h>

KERNEL(step_d1000, "step_d1000", (int n), &n)

__attribute__((noinline, noclone)) static int run(const char *path)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void (*plugin_run)(const void *) = plugin ? (void (*)(const void *))dlsym(plugin, "plugin_run") : NULL;
    if (!plugin_run) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    plugin_run((const void *)step_d1000);
    printf("%p\n", (void *)plugin_run);
    return dlclose(plugin);
}

int main(int argc, char **argv)
{
    int at, failed = 0;
    cudaDeviceSynchronize();
    for (at = 1; at < argc; at++)
        failed |= run(argv[at]);
    return failed;
}
