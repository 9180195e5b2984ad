/* Launches a kernel by its handle. The program makes the calls to which nvcc 12.4 and later compile `<<<>>>`. */
#include "cuda_mini.h"

KERNEL(step, "_Z9step_d500v", (void), NULL)
cudaError_t __cudaGetKernel(void **kernel, const void *host_function);
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream);

int main(void) {
    void *kernel;
    (void)step;
    if (__cudaGetKernel(&kernel, (const void *)step)) return 2;
    return __cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, NULL);
}
