/* A program that moves managed memory between the host and two GPUs. Some of these moves have no effect, because the
 * memory is already there. */
#include "cuda_mini.h"

#include <stdio.h>

#define MIB (1u << 20)

KERNEL(touch_d5000, "touch_d5000", (char *at), &at)

static void move(void *start, size_t bytes, int type, int id, cudaStream_t stream)
{
    cudaMemLocation location = {type, id};
    cudaError_t error = cudaMemPrefetchAsync(start, bytes, location, 0, stream);
    if (error != 0)
        fprintf(stderr, "cudaMemPrefetchAsync: %d\n", error);
}

int main(void)
{
    char *memory, *other;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaMallocManaged((void **)&memory, 5 * MIB, 1);
    cudaMallocManaged((void **)&other, 64 * 1024, 1);
    move(memory, 5 * MIB, 1, 0, stream);        /* moves 3 pieces to GPU 0 */
    move(memory, 5 * MIB, 1, 0, stream);        /* moves nothing: all is on GPU 0 */
    move(memory + MIB, 2 * MIB, 1, 1, stream);  /* moves a piece from GPU 0 to GPU 1 */
    move(memory, 5 * MIB, 2, 0, stream);        /* moves 3 pieces to the host: from GPU 0, 1, 0 */
    move(other, 64 * 1024, 1, 1, stream);       /* moves 64 KiB to GPU 1 */
    LAUNCH(touch_d5000, 1, 32, stream)(memory);
    cudaFree(memory);
    cudaFree(other);
    cudaDeviceSynchronize();
    return 0;
}
