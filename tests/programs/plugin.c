/* A plugin that launches kernels. The plugin is built twice with different NAMEs, so that both plugins can be loaded at
 * the same address one after the other. */
#include "cuda_mini.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

__attribute__((noinline, noclone)) static void JOIN(inner_, NAME)(const void *kernel)
{
    dim3 one = {1, 1, 1};
    cudaLaunchKernel(kernel, one, one, 0, 0, 0);
    __asm__ volatile("" ::: "memory");
}

void plugin_run(const void *kernel)
{
    JOIN(inner_, NAME)(kernel);
    __asm__ volatile("" ::: "memory");
}
