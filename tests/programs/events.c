/* Records a CUDA event on a stream three times, waits for the last of these records, and launches nothing. */
#include "cuda_mini.h"

#include <stddef.h>

int main(void)
{
    cudaEvent_t event;
    int i;
    cudaEventCreate(&event);
    for (i = 0; i < 3; i++)
        cudaEventRecord(event, NULL);
    return cudaEventSynchronize(event);
}
