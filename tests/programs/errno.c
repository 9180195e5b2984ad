/* Sets errno to 77 before calls, and prints the calls that changed it: every gpuflame function (succeeding or failing),
 * NVTX calls, launches (including launches on a new thread), cudaProfilerStart and cudaDeviceReset. The program is
 * linked with gpuflame, and NVTX loads gpuflame as its tool. */
#include "cuda_mini.h"
#include "gpuflame.h"
#include "nvtx_mini.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

KERNEL(small_d1000, "small_d1000", (int n), &n)

static int calls, changed;

#define KEEPS(call)                                                                                     \
    do {                                                                                                \
        errno = 77;                                                                                     \
        (void)(call);                                                                                   \
        calls++;                                                                                        \
        if (errno != 77) {                                                                              \
            printf("%d after %s\n", errno, #call);                                                      \
            changed++;                                                                                  \
        }                                                                                               \
    } while (0)

#define FAILS(call, code)                                                                               \
    do {                                                                                                \
        int answer_ = 0;                                                                                \
        KEEPS(answer_ = call);                                                                          \
        if (answer_ != (code))                                                                          \
            printf("%s answers %d\n", #call, answer_);                                                  \
    } while (0)

static void all(struct gpuflame_statistics *stats)
{
    stats->size = sizeof *stats;
    KEEPS(gpuflame_is_active());
    KEEPS(gpuflame_version());
    KEEPS(gpuflame_last_error());
    FAILS(gpuflame_mark(NULL), GPUFLAME_ERROR_SETTING);
    KEEPS(gpuflame_last_error());
    FAILS(gpuflame_range_push(NULL), GPUFLAME_ERROR_SETTING);
    FAILS(gpuflame_range_pop(), GPUFLAME_ERROR_STATE);
    FAILS(gpuflame_set_output(NULL), GPUFLAME_ERROR_SETTING);
    FAILS(gpuflame_stats(NULL), GPUFLAME_ERROR_SETTING);
    FAILS(gpuflame_range_push("range"), GPUFLAME_OK);
    FAILS(gpuflame_range_pop(), GPUFLAME_OK);
}

static void launch(void)
{
    LAUNCH(small_d1000, 1, 32, 0)(1);
}

static void *first_launches(void *nothing)
{
    int i;
    for (i = 0; i < 10; i++)
        KEEPS((launch(), 0));
    return nothing;
}

static void on_a_new_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, first_launches, NULL);
    pthread_join(thread, NULL);
}

int main(void)
{
    struct gpuflame_statistics stats;
    int i;
    FAILS(gpuflame_stop(), GPUFLAME_ERROR_STATE);
    FAILS(gpuflame_flush(), GPUFLAME_ERROR_STATE);
    FAILS(gpuflame_mark("early"), GPUFLAME_ERROR_STATE);
    all(&stats);
    FAILS(gpuflame_set_output("out"), GPUFLAME_OK);
    /* The first call of gpuflame_start initialises the CUDA driver. */
    FAILS(gpuflame_start(), GPUFLAME_OK);
    all(&stats);
    FAILS(gpuflame_set_output("late"), GPUFLAME_ERROR_STATE);
    cudaDeviceSynchronize();
    launch();
    for (i = 0; i < 100; i++)
        KEEPS((launch(), 0));
    KEEPS(cudaDeviceSynchronize());
    FAILS(gpuflame_step(), GPUFLAME_OK);
    FAILS(gpuflame_mark("instant"), GPUFLAME_OK);
    FAILS(gpuflame_stats(&stats), GPUFLAME_OK);
    FAILS(gpuflame_flush(), GPUFLAME_OK);
    nvtxRangePushA("the first call loads what it is to tell");
    for (i = 0; i < 100; i++)
        KEEPS(nvtxRangePushA("step"));
    for (i = 0; i < 101; i++)
        KEEPS(nvtxRangePop());
    FAILS(gpuflame_stop(), GPUFLAME_OK);
    KEEPS(cudaProfilerStart());
    KEEPS(gpuflame_is_active());
    KEEPS((launch(), 0));
    KEEPS(cudaProfilerStop());
    all(&stats);
    FAILS(gpuflame_start(), GPUFLAME_OK);
    on_a_new_thread();
    KEEPS(cudaDeviceReset());
    printf("%d of %d changed\n", changed, calls);
    return 0;
}
