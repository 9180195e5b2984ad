/* The simplest program of the kit: two functions that launch and one function that copies, on one thread and one
 * stream.
 *
 * EXPECT kernel first_d20000 300 main;first
 * EXPECT kernel second_d40000 200 main;second
 * EXPECT kernel shared_d10000 100 main;first;both
 * EXPECT kernel shared_d10000 50 main;second;both
 * EXPECT copy HtoD 20 main;copies
 * EXPECT copy DtoH 30 main;copies
 * EXPECT set memset 10 main;copies
 *
 * The program prints the time between CUDA events around the kernels. No tool may report more GPU time for these
 * kernels than this time. */
#include "kernels.h"

TIMED(first_d20000)
TIMED(second_d40000)
TIMED(shared_d10000)

enum { BYTES = 1 << 16 };

OWN_FRAME void both(void)
{
    GO(shared_d10000, 10000, 0);
    KEEP();
}

OWN_FRAME void first(void)
{
    for (int i = 0; i < 300; i++) {
        GO(first_d20000, 20000, 0);
        if (i % 3 == 0)
            both();
    }
    KEEP();
}

OWN_FRAME void second(void)
{
    for (int i = 0; i < 200; i++) {
        GO(second_d40000, 40000, 0);
        if (i % 4 == 0)
            both();
    }
    KEEP();
}

OWN_FRAME void copies(char *device, char *pinned)
{
    static char pageable[BYTES];
    for (int i = 0; i < 10; i++) {
        CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, 0));
        CUDA(cudaMemcpy(device, pageable, BYTES, cudaMemcpyHostToDevice));
        CUDA(cudaMemsetAsync(device, 1, BYTES, 0));
        for (int k = 0; k < 2; k++)
            CUDA(cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, 0));
        CUDA(cudaMemcpy(pageable, device, BYTES, cudaMemcpyDeviceToHost));
    }
    KEEP();
}

int main(void)
{
    char *device, *pinned;
    cudaEvent_t begin, end;
    float ms = 0;
    CUDA(cudaMalloc((void **)&device, BYTES));
    CUDA(cudaMallocHost((void **)&pinned, BYTES));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaEventRecord(begin, 0));
    first();
    second();
    CUDA(cudaEventRecord(end, 0));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    copies(device, pinned);
    CUDA(cudaDeviceSynchronize());
    printf("{\"event_ns\": %.0f}\n", 1e6 * ms);
    return 0;
}
