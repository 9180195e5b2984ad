// Launches 1,100 kernels of 1,000 ns each. When a file `go` exists, the program ends by an uncaught exception.
#include "cuda_mini.h"

#include <stdexcept>
#include <unistd.h>

KERNEL(step_d1000, "step_d1000", (int n), &n)

__attribute__((noinline, noclone)) static void launch(int n)
{
    LAUNCH(step_d1000, 1, 32, 0)(n);
    __asm__ volatile("" ::: "memory");
}

int main()
{
    for (int i = 0; i < 1100; i++)
        launch(i);
    cudaDeviceSynchronize();
    while (unlink("go") != 0)
        usleep(1000);
    throw std::runtime_error("thrown");
}
