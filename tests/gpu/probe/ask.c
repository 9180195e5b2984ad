/* Probe modes that each answer one question about the behaviour of the real CUDA stack. A mode writes its observations
 * as JSON lines. steps/50-questions.sh runs the modes, and answers.py puts the answers into the report. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Mode exit: does the driver still work when the probe's atexit handlers and destructor run? ---- */

static int (*driver_version)(int *);
static unsigned long kernels;
static int is_on;

static int driver_answers(void)
{
    int version = 0;
    return driver_version ? driver_version(&version) : -1;
}

static void count_kernel(uint8_t *buffer, uint8_t *record)
{
    (void)buffer;
    kernels += u32_at(record, 0) == KIND_KERNEL;
}

static void report_exit(const char *who)
{
    const int flushed = flush_all();
    say("{\"at_exit\":\"%s\",\"driver\":%d,\"flush\":%d,\"kernels\":%lu}", who, driver_answers(), flushed, kernels);
}

static void first_handler(void) { report_exit("handler registered at injection"); }
static void second_handler(void) { report_exit("handler registered at the first context"); }

static void watch_context(void *user, uint32_t domain, uint32_t id, const void *data)
{
    static int registered;
    (void)user, (void)data;
    if (domain == RESOURCE && id == 1 && !registered++)
        atexit(second_handler);
    if (domain != RESOURCE)
        api_seen = 1;
}

void start_exit_order(void)
{
    const uint32_t kinds[] = {KIND_KERNEL, 0};
    *(void **)&driver_version = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuDriverGetVersion");
    if (!subscribe(watch_context))
        return;
    enable_names(RUNTIME, LAUNCHES);
    enable_names(DRIVER, LAUNCHES);
    cupti.EnableCallback(1, subscriber, RESOURCE, 1);
    read_kinds(kinds, (struct reader){NULL, count_kernel, NULL});
    is_on = 1;
    atexit(first_handler);
}

__attribute__((destructor)) static void at_unload(void)
{
    if (is_on)
        say("{\"at_exit\":\"destructor\",\"driver\":%d,\"flush\":null,\"kernels\":%lu}", driver_answers(), kernels);
}

/* ---- Mode drops: what does CUPTI do when it gets no more buffers? CUPTI first gets PROBE_BUFFERS buffers. ---- */

static void seen(void *user, uint32_t domain, uint32_t id, const void *data)
{
    (void)user, (void)domain, (void)id, (void)data;
    api_seen = 1;
}

static void report_drops(void)
{
    size_t dropped = 0, again = 0;
    const int flushed = flush_all();
    const int result = api_seen ? cupti.ActivityGetNumDroppedRecords(NULL, 0, &dropped) : -1;
    if (api_seen)
        cupti.ActivityGetNumDroppedRecords(NULL, 0, &again);
    say("{\"flush\":%d,\"kernels\":%lu,\"dropped\":%zu,\"dropped_again\":%zu,\"result\":%d}", flushed, kernels, dropped, again, result);
}

void start_drops(void)
{
    const uint32_t kinds[] = {KIND_KERNEL, 0};
    if (!subscribe(seen))
        return;
    enable_names(RUNTIME, LAUNCHES);
    enable_names(DRIVER, LAUNCHES);
    read_kinds(kinds, (struct reader){NULL, count_kernel, NULL});
    atexit(report_drops);
}

/* ---- Mode names: what is the cost of requesting the name of every callback? ---- */

void start_names(void)
{
    const char *name;
    unsigned names[3] = {0, 0, 0};
    uint64_t nanos[4] = {0};
    uint32_t version = 0;
    cupti.GetVersion(&version);
    for (int round = 0; round < 4; round++) { /* in the first round, caches are cold */
        const uint64_t start = now_ns();
        for (uint32_t domain = DRIVER; domain <= RUNTIME; domain++)
            for (names[domain] = 0; cupti.GetCallbackName(domain, names[domain] + 1, &name) == 0 && name;)
                names[domain]++;
        nanos[round] = now_ns() - start;
    }
    say("{\"version\":%u,\"cupti\":\"%s\",\"driver_names\":%u,\"runtime_names\":%u,\"nanos\":[%llu,%llu,%llu,%llu]}", version,
        cupti_path, names[DRIVER], names[RUNTIME], (unsigned long long)nanos[0], (unsigned long long)nanos[1],
        (unsigned long long)nanos[2], (unsigned long long)nanos[3]);
}

/* ---- Mode fork: does the driver load the probe into a forked child, and do callbacks arrive there? The probe makes no
 * CUPTI call in a child. ---- */

static pid_t parent;

static void notice_child(void *user, uint32_t domain, uint32_t id, const void *data)
{
    (void)user, (void)data;
    if (getpid() != parent)
        say("{\"callback_in_child\":true,\"domain\":%u,\"id\":%u}", domain, id);
}

void start_fork(void)
{
    parent = getpid();
    say("{\"injected\":1}");
    if (subscribe(notice_child)) {
        enable_names(RUNTIME, LAUNCHES);
        enable_names(DRIVER, LAUNCHES);
    }
}
