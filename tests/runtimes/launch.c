/* A library that launches kernels, for programs in any language. The library has plain C functions, and functions for
 * Java's native interface. */
#include "cuda_mini.h"

KERNEL(step_d100, "step_d100", (int n), &n)

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

OWN_FRAME void launch_step(int n)
{
    LAUNCH(step_d100, 1, 32, 0)(n);
    KEEP_FRAME();
}

OWN_FRAME void wait_for_all(void)
{
    cudaDeviceSynchronize();
    KEEP_FRAME();
}

void Java_Threads_launch(void *environment, void *class, int n)
{
    (void)environment, (void)class;
    launch_step(n);
    KEEP_FRAME();
}

void Java_Threads_await(void *environment, void *class)
{
    (void)environment, (void)class;
    wait_for_all();
    KEEP_FRAME();
}
