/* The levels of the cost matrix below gpuflame. Each level uses one CUPTI feature in addition to the features of the
 * previous level. Therefore the difference between two levels is the cost of that feature for the launching thread. */
#include "probe.h"

#include <execinfo.h>
#include <stdlib.h>
#include <string.h>

static void empty_callback(void *user, uint32_t domain, uint32_t id, const void *data)
{
    (void)user, (void)domain, (void)id, (void)data;
    api_seen = 1;
}

/* Captures a stack with backtrace() in each launch callback, as a naive profiler does. */
static void naive_callback(void *user, uint32_t domain, uint32_t id, const void *data)
{
    static __thread void *stack[64];
    const struct api_data *call = data;
    (void)user, (void)domain, (void)id;
    api_seen = 1;
    if (call->site == ENTER)
        backtrace(stack, 64);
}

static unsigned long records;

static void count(uint8_t *buffer, uint8_t *record)
{
    (void)buffer, (void)record;
    records++;
}

static void at_exit(void)
{
    const int flushed = flush_all();
    say("{\"records\":%lu,\"flush\":%d}", records, flushed);
}

void start_cost(const char *level)
{
    static const char *const levels[] = {"subscribe", "callback", "nested", "kernels", "copies", "apis"};
    const struct reader reader = {NULL, count, NULL};
    const uint32_t kernels[] = {KIND_KERNEL, 0}, copies[] = {KIND_COPY, KIND_SET, KIND_PEER_COPY, 0};
    const uint32_t apis[] = {KIND_DRIVER, KIND_RUNTIME, 0};
    const int is_naive = !strcmp(level, "backtrace");
    int height = is_naive ? 4 : -1;
    for (int i = 0; i < 6; i++)
        if (!strcmp(level, levels[i]))
            height = i;
    if (height < 0) {
        say("{\"error\":\"PROBE names no mode\"}");
        return;
    }
    if (!subscribe(is_naive ? naive_callback : empty_callback))
        return;
    int enabled = 0;
    if (height >= 1)
        enabled += enable_names(RUNTIME, LAUNCHES);
    if (height >= 2)
        enabled += enable_names(DRIVER, LAUNCHES);
    if (height >= 3)
        read_kinds(kernels, reader);
    if (height >= 4) {
        enabled += enable_names(RUNTIME, COPIES) + enable_names(DRIVER, COPIES);
        read_kinds(copies, reader);
    }
    if (height >= 5)
        read_kinds(apis, reader);
    say("{\"level\":\"%s\",\"callbacks_enabled\":%d}", level, enabled);
    atexit(at_exit);
}
