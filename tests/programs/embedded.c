/* A program that calls all functions of gpuflame.h, some with wrong arguments, and queries gpuflame's state during the
 * run. The program is linked with gpuflame, which is not injected. Therefore GPU work before the first gpuflame_start()
 * is not recorded. */
#include "cuda_mini.h"
#include "gpuflame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(small_d1000, "small_d1000", (int n), &n)
KERNEL(large_d5000, "large_d5000", (int n), &n)
KERNEL(endless_d600000000000, "endless_d600000000000", (int n), &n)

static void expect(int is, int should, const char *words, const char *what)
{
    if (is != should || (is < 0 && !strstr(gpuflame_last_error(), words))) {
        fprintf(stderr, "%s answers %d, not %d: %s\n", what, is, should, gpuflame_last_error());
        exit(3);
    }
}

#define EXPECT(call, should, words) expect(call, should, words, #call)

OWN_FRAME static void inside(cudaStream_t stream)
{
    int step;
    for (step = 0; step < 5; step++) {
        char text[32];
        int i;
        snprintf(text, sizeof text, "step %d", step);
        EXPECT(gpuflame_step(), GPUFLAME_OK, "");
        EXPECT(gpuflame_mark(text), GPUFLAME_OK, "");
        SITE("main;inside");
        for (i = 0; i < 3; i++)
            LAUNCH(small_d1000, 1, 32, stream)(i);
        for (i = 0; i < 2; i++)
            LAUNCH(large_d5000, 1, 32, stream)(i);
    }
    KEEP_FRAME();
}

OWN_FRAME static void outside(cudaStream_t stream)
{
    int i;
    SITE("main;outside");
    for (i = 0; i < 4; i++)
        LAUNCH(small_d1000, 1, 32, stream)(i);
    KEEP_FRAME();
}

OWN_FRAME static void hold(cudaStream_t stream)
{
    SITE("main;hold");
    LAUNCH(endless_d600000000000, 1, 32, stream)(0);
    KEEP_FRAME();
}

static void tell(const char *when)
{
    struct gpuflame_statistics now;
    int i;
    now.size = sizeof now;
    EXPECT(gpuflame_stats(&now), GPUFLAME_OK, "");
    printf("%s.windows %llu\n", when, (unsigned long long)now.windows);
#define TELL(field) printf("%s." #field " %llu\n", when, (unsigned long long)now.field)
    TELL(size), TELL(steps), TELL(launches), TELL(matched), TELL(pending), TELL(outside), TELL(dropped);
    TELL(activities), TELL(gpus), TELL(window_ns), TELL(busy_ns), TELL(idle_ns), TELL(idle_host_late_ns);
    TELL(idle_launch_latency_ns), TELL(idle_dependency_ns), TELL(idle_unknown_ns), TELL(idle_opening_ns);
    TELL(idle_closing_ns), TELL(kernels);
    for (i = 0; i < 8; i++)
        if (now.top[i].count)
            printf("%s.%s %llu\n", when, now.top[i].name, (unsigned long long)now.top[i].ns);
}

/* Passes structs that are too small, and a struct that is larger than the library's own version. */
static void odd_sizes(void)
{
    struct {
        struct gpuflame_statistics known;
        unsigned char more[64];
    } larger;
    uint64_t small[2] = {sizeof small, 42};
    memset(&larger, 0x55, sizeof larger);
    EXPECT(gpuflame_stats((struct gpuflame_statistics *)(void *)small), GPUFLAME_ERROR_SETTING, "16 bytes");
    if (small[0] != sizeof small || small[1] != 42)
        exit(4);
    small[0] = 0;
    EXPECT(gpuflame_stats((struct gpuflame_statistics *)(void *)small), GPUFLAME_ERROR_SETTING, "0 bytes");
    larger.known.size = sizeof larger;
    EXPECT(gpuflame_stats(&larger.known), GPUFLAME_OK, "");
    if (larger.known.size != sizeof larger.known || larger.more[0] != 0x55 || larger.more[63] != 0x55)
        exit(5);
}

/* Forks a child that launches nothing. The child must end as it would end without gpuflame. */
static void child_exits(void)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        exit(gpuflame_start() == GPUFLAME_ERROR_STATE ? 0 : 7);
    }
    if (waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "the child ends with %d\n", status);
        exit(6);
    }
}

int main(void)
{
    struct gpuflame_statistics none;
    cudaStream_t stream, other;
    none.size = sizeof none;
    EXPECT(gpuflame_stop(), GPUFLAME_ERROR_STATE, "gpuflame_start()");
    EXPECT(gpuflame_mark("too early"), GPUFLAME_ERROR_STATE, "gpuflame_start()");
    EXPECT(gpuflame_stats(&none), GPUFLAME_ERROR_STATE, "gpuflame_start()");
    EXPECT(gpuflame_is_active(), 0, "");
    EXPECT(gpuflame_mark(NULL), GPUFLAME_ERROR_SETTING, "gpuflame_mark(NULL)");
    EXPECT(gpuflame_set_output(NULL), GPUFLAME_ERROR_SETTING, "gpuflame_set_output(NULL)");
    EXPECT(gpuflame_set_output(""), GPUFLAME_ERROR_SETTING, "empty");
    EXPECT(gpuflame_range_push(NULL), GPUFLAME_ERROR_SETTING, "gpuflame_range_push(NULL)");
    EXPECT(gpuflame_range_pop(), GPUFLAME_ERROR_STATE, "no range is open");
    EXPECT(gpuflame_stats(NULL), GPUFLAME_ERROR_SETTING, "gpuflame_stats(NULL)");
    EXPECT(gpuflame_set_output("first/prefix"), GPUFLAME_OK, "");
    EXPECT(gpuflame_start(), GPUFLAME_OK, "");
    EXPECT(gpuflame_is_active(), 1, "");
    EXPECT(gpuflame_set_output("mid/window"), GPUFLAME_ERROR_STATE, "a window is open");
    odd_sizes();
    if (cudaStreamCreate(&stream) || cudaStreamCreate(&other))
        return 1;
    inside(stream);
    if (cudaStreamSynchronize(stream))
        return 1;
    tell("done");
    hold(stream);
    tell("held");
    EXPECT(gpuflame_stop(), GPUFLAME_OK, "");
    EXPECT(gpuflame_stop(), GPUFLAME_OK, "");
    EXPECT(gpuflame_is_active(), 0, "");
    EXPECT(gpuflame_mark("outside"), GPUFLAME_OK, "");
    outside(other);
    if (cudaStreamSynchronize(other))
        return 1;
    EXPECT(gpuflame_set_output("second/prefix"), GPUFLAME_OK, "");
    child_exits();
    tell("left");
    return 0;
}
