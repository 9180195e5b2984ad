/* Records a part of a program: it makes 100 launches before gpuflame_start, 100 launches between gpuflame_start and
 * gpuflame_stop, and 100 launches after gpuflame_stop. The outputs contain the middle hundred launches; the line
 * `complete` at the exit counts the other launches as outside the windows.
 *
 * The launches are memsets, so that the program needs no nvcc. From the repository's root, with CUDA installed:
 *
 *     cargo build --release
 *     cc -std=c99 -O2 -g examples/embed.c -o embed -I include -I /usr/local/cuda/include \
 *         -L target/release -lgpuflame -L /usr/local/cuda/lib64 -lcudart -Wl,-rpath,$PWD/target/release
 *     ./embed
 *
 * If gpuflame is linked like this, it starts at the first gpuflame_start, so it does not count the first hundred
 * launches: `200 launches, none lost; 100 launches outside`. If gpuflame is injected, it sees all 300 launches, and
 * GPUFLAME_ENABLED=0 keeps the window closed until gpuflame_start:
 *
 *     CUDA_INJECTION64_PATH=$PWD/target/release/libgpuflame.so GPUFLAME_ENABLED=0 ./embed
 *
 * Without CUDA, the program runs on the simulated CUDA stack:
 *
 *     libs=$(tests/gpusim/run --stage)
 *     cc -std=c99 -O2 -g examples/embed.c -o embed -I include -DGPUSIM -isystem tests/gpusim/include \
 *         -L target/release -lgpuflame -L $libs -lcudart -Wl,-rpath,$PWD/target/release
 *     tests/gpusim/run ./embed
 */
#include "call_site.h"

#include <gpuflame.h>
#include <stdio.h>

#ifdef GPUSIM
#include <cuda_mini.h>
#else
#include <cuda_runtime_api.h>
#endif

enum { LAUNCHES = 100, BYTES = 1 << 20 };

/* Returns whether the call succeeded. */
static int check(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        fprintf(stderr, "embed: %s: %s\n", call, cudaGetErrorString(error));
    return error == cudaSuccess;
}

OWN_FRAME static int launch(void *memory)
{
    ENTER();
    int good = 1;
    for (int i = 0; i < LAUNCHES && good; i++) {
        CUDA_CALL_SITE();
        good = check(cudaMemsetAsync(memory, i, BYTES, NULL), "cudaMemsetAsync");
    }
    LEAVE();
    return good;
}

OWN_FRAME static int warm_up(void *memory)
{
    ENTER();
    const int good = launch(memory);
    LEAVE();
    return good;
}

/* The part of the program that is recorded. This function need not wait for the GPU, because gpuflame records work that
 * was launched in the window until the work ends. If gpuflame cannot record, the function prints the reason, and the
 * program continues as it would without gpuflame. */
OWN_FRAME static int measure(void *memory)
{
    ENTER();
    if (gpuflame_start() != GPUFLAME_OK)
        fprintf(stderr, "embed: not recorded: %s\n", gpuflame_last_error());
    const int good = launch(memory);
    gpuflame_stop();
    LEAVE();
    return good;
}

OWN_FRAME static int wind_down(void *memory)
{
    ENTER();
    const int good = launch(memory);
    LEAVE();
    return good;
}

int main(void)
{
    ENTER();
    void *memory;
    if (!check(cudaMalloc(&memory, BYTES), "cudaMalloc"))
        return 1;
    const int good = warm_up(memory) && measure(memory) && wind_down(memory) &&
                     check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (good)
        printf("%d launches; gpuflame %s was asked for the middle %d\n", 3 * LAUNCHES, gpuflame_version(), LAUNCHES);
    LEAVE();
    return good ? 0 : 1;
}
