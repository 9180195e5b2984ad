/* Launches, forks, and makes CUDA calls in the child and in the parent. Both processes print a JSON line with the
 * results. */
#include "kernels.h"

#include <sys/wait.h>
#include <unistd.h>

TIMED(parent_d10000)

int main(void)
{
    int count = 0, status = 0;
    GO(parent_d10000, 10000, 0);
    CUDA(cudaDeviceSynchronize());
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int counted = (int)cudaGetDeviceCount(&count), freed = (int)cudaFree(0);
        const int waited = (int)cudaDeviceSynchronize();
        printf("{\"child\": true, \"cudaGetDeviceCount\": %d, \"cudaFree\": %d, \"cudaDeviceSynchronize\": %d}\n", counted, freed, waited);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    GO(parent_d10000, 10000, 0);
    CUDA(cudaDeviceSynchronize());
    printf("{\"child\": false, \"status\": %d, \"signal\": %d}\n", WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    return 0;
}
