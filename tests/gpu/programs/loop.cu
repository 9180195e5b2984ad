/* The launch loop that the cost matrix measures. The program launches empty kernels in batches of 1,000, waits after
 * each batch, and prints the CPU time per launch without the waits. The waits prevent a full launch queue, which would
 * block launches.
 *
 *     loop LAUNCHES
 *     {"launches": 1000000, "ns_per_launch": mean, "median_ns": of the thousands' means, "wall_ns_per_launch": ..} */
#include "kernels.h"

TIMED(empty_d1)

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const long launches = argc > 1 ? atol(argv[1]) : 1000000, batch = 1000, batches = launches / batch;
    double *means = (double *)malloc(sizeof(double) * (size_t)(batches > 0 ? batches : 1)), spent = 0;
    if (batches < 1 || !means)
        return WRONG_USE;
    for (int i = 0; i < 100; i++) /* warm-up, which loads the kernel */
        GO(empty_d1, 0, 0);
    CUDA(cudaDeviceSynchronize());
    const double begin = seconds();
    for (long b = 0; b < batches; b++) {
        const double from = seconds();
        for (long i = 0; i < batch; i++)
            GO(empty_d1, 0, 0);
        means[b] = 1e9 * (seconds() - from) / (double)batch;
        spent += means[b];
        CUDA(cudaDeviceSynchronize());
    }
    const double wall = 1e9 * (seconds() - begin) / (double)(batches * batch);
    qsort(means, (size_t)batches, sizeof *means, by_value);
    printf("{\"launches\": %ld, \"ns_per_launch\": %.1f, \"median_ns\": %.1f, \"wall_ns_per_launch\": %.1f}\n", batches * batch,
           spent / (double)batches, means[batches / 2], wall);
    return 0;
}
