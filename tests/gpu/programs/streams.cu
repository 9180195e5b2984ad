/* Four threads with two streams each run at the same time, so a tool cannot guess a launch's thread from its time.
 *
 * EXPECT kernel left_d15000 1000 work;left
 * EXPECT kernel right_d25000 600 work;right
 * EXPECT copy DtoH 100 work;fetch
 */
#include "kernels.h"

#include <pthread.h>

TIMED(left_d15000)
TIMED(right_d25000)

enum { THREADS = 4 };

OWN_FRAME void left(cudaStream_t stream)
{
    GO(left_d15000, 15000, stream);
    KEEP();
}

OWN_FRAME void right(cudaStream_t stream)
{
    GO(right_d25000, 25000, stream);
    KEEP();
}

OWN_FRAME void fetch(char *pinned, char *device, cudaStream_t stream)
{
    CUDA(cudaMemcpyAsync(pinned, device, 4096, cudaMemcpyDeviceToHost, stream));
    KEEP();
}

OWN_FRAME void *work(void *nothing)
{
    cudaStream_t one, two;
    char *device, *pinned;
    (void)nothing;
    CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&device, 4096));
    CUDA(cudaMallocHost((void **)&pinned, 4096));
    for (int i = 0; i < 250; i++) {
        left(one);
        if (i < 150)
            right(two);
        if (i % 10 == 0)
            fetch(pinned, device, one);
    }
    CUDA(cudaStreamSynchronize(one));
    CUDA(cudaStreamSynchronize(two));
    KEEP();
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    CUDA(cudaFree(0));
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL))
            return FAILED;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
