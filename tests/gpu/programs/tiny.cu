/* Programs to record. The programs are so small that a person can read every callback in a recording.
 *
 *     tiny runtime | copies | streams | exit       (driver.c has one more, tiny_graph.cu three) */
#include "kernels.h"

TIMED(a_d10000)
TIMED(b_d20000)

static void runtime(void)
{
    GO(a_d10000, 10000, 0);
    GO(b_d20000, 20000, 0);
    CUDA(cudaDeviceSynchronize());
}

static void copies(void)
{
    static char pageable[1024];
    char *device, *pinned;
    CUDA(cudaMalloc((void **)&device, 1024));
    CUDA(cudaMallocHost((void **)&pinned, 1024));
    CUDA(cudaMemcpy(device, pageable, 1024, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpyAsync(device, pinned, 1024, cudaMemcpyHostToDevice, 0));
    CUDA(cudaMemcpyAsync(pinned, device, 1024, cudaMemcpyDeviceToHost, 0));
    CUDA(cudaMemcpy(pageable, device, 1024, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(device, 1, 1024));
    CUDA(cudaMemsetAsync(device, 2, 1024, 0));
    CUDA(cudaDeviceSynchronize());
}

static void streams(void)
{
    cudaStream_t one, two;
    CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    GO(a_d10000, 10000, one);
    GO(b_d20000, 20000, two);
    GO(a_d10000, 10000, two);
    GO(b_d20000, 20000, one);
    CUDA(cudaStreamSynchronize(one));
    CUDA(cudaStreamSynchronize(two));
    CUDA(cudaStreamDestroy(one));
    CUDA(cudaStreamDestroy(two));
}

/* Exits while the GPU may still run kernels. */
static void end_midway(void)
{
    for (int i = 0; i < 4; i++)
        GO(b_d20000, 20000, 0);
    exit(0);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "runtime"))
        runtime();
    else if (!strcmp(mode, "copies"))
        copies();
    else if (!strcmp(mode, "streams"))
        streams();
    else if (!strcmp(mode, "exit"))
        end_midway();
    else
        return WRONG_USE;
    return 0;
}
