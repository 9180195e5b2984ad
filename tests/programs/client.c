/* A program with another client of CUPTI in it, that comes, does its work and goes.
 *
 *     client records|again|clock|window|early|subscription|finalize [busy]
 *
 * Launches 50 times and waits; the client comes; launches 40 times and waits; the client goes; launches for 2.5 s; launches 70
 * times and waits. records: it registers its functions, enables kinds, and when it goes flushes what it disabled. again: it comes
 * once more, by enabling its kind alone, and goes. clock: with a clock of its own, that goes three times as fast. window: one is
 * closed and opened while it is there. early: it comes before CUDA is called, and wants calls. subscription: it subscribes, wants all calls of the runtime, and unsubscribes.
 * finalize: it ends CUPTI. busy: another thread launches all the time. Prints what the client was answered and has: kernels by
 * its records, calls, and what setting it found.
 *
 * TO_CUPTI: linked to CUPTI; else it asks for each function when it needs it. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "cupti.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(before_d1000, "before_d1000", (int n), &n)
KERNEL(theirs_d1000, "theirs_d1000", (int n), &n)
KERNEL(rest_d1000, "rest_d1000", (int n), &n)
KERNEL(after_d1000, "after_d1000", (int n), &n)
KERNEL(busy_d1000, "busy_d1000", (int n), &n)

#ifdef TO_CUPTI
int cuptiActivityRegisterCallbacks(void *, void *), cuptiActivityRegisterTimestampCallback(void *), cuptiActivityEnable(int),
    cuptiActivityDisable(int), cuptiActivityFlushAll(uint32_t), cuptiActivityGetNextRecord(uint8_t *, size_t, uint8_t **),
    cuptiActivityGetAttribute(int, size_t *, void *), cuptiSubscribe(void **, void *, void *), cuptiUnsubscribe(void *),
    cuptiEnableDomain(uint32_t, void *, int), cuptiFinalize(void), cuptiGetLastError(void);
#define CALL(name, types, ...) name(__VA_ARGS__)
#else
#define CALL(name, types, ...) ((int(*) types)cupti(#name))(__VA_ARGS__)
#endif

enum { KERNELS = 10, CALLS = 5, ZEROED = 5, RUNTIME = 2 };

static volatile unsigned kernels, calls;

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *size = 256 << 10;
    *buffer = malloc(*size);
    *most = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    uint8_t *record = NULL;
    int kind;
    (void)context, (void)stream, (void)size;
    while (!CALL(cuptiActivityGetNextRecord, (uint8_t *, size_t, uint8_t **), buffer, valid, &record)) {
        memcpy(&kind, record, sizeof kind);
        kernels += kind == KERNELS;
    }
    free(buffer);
}

static uint64_t fast_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 3 * (time.tv_sec * 1000000000ull + time.tv_nsec);
}

static void on_call(void *user, int domain, int id, const void *data)
{
    (void)user, (void)domain, (void)id, (void)data;
    calls++;
}

static int zeroed(void)
{
    uint8_t value = 0;
    size_t size = sizeof value;
    return CALL(cuptiActivityGetAttribute, (int, size_t *, void *), ZEROED, &size, &value) ? -1 : value;
}

static void *subscriber;

static void comes(const char *how)
{
    if (!strcmp(how, "subscription")) {
        int refused = CALL(cuptiSubscribe, (void **, void *, void *), &subscriber, (void *)on_call, NULL);
        int last = CALL(cuptiGetLastError, (void), );
        if (!refused && CALL(cuptiEnableDomain, (uint32_t, void *, int), 1, subscriber, RUNTIME))
            exit(21);
        printf("subscribe %d, then %d; ", refused, last);
        return;
    }
    if (!strcmp(how, "finalize")) {
        printf("finalize %d; ", CALL(cuptiFinalize, (void), ));
        return;
    }
    if (!strcmp(how, "clock") && CALL(cuptiActivityRegisterTimestampCallback, (void *), (void *)fast_clock))
        exit(22);
    if (CALL(cuptiActivityRegisterCallbacks, (void *, void *), (void *)requested, (void *)completed))
        exit(23);
    printf("zeroed %d; ", zeroed());
    if (CALL(cuptiActivityEnable, (int), KERNELS))
        exit(24);
}

static void goes(const char *how)
{
    if (!strcmp(how, "subscription")) {
        if (subscriber && CALL(cuptiUnsubscribe, (void *), subscriber))
            exit(25);
    } else if (strcmp(how, "finalize")) {
        CALL(cuptiActivityDisable, (int), KERNELS);
        CALL(cuptiActivityFlushAll, (uint32_t), 0);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

OWN_FRAME static void before(void)
{
    int i;
    SITE("main;before");
    for (i = 0; i < 50; i++)
        LAUNCH(before_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

OWN_FRAME static void theirs(void)
{
    int i;
    SITE("main;theirs");
    for (i = 0; i < 40; i++)
        LAUNCH(theirs_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

OWN_FRAME static void rest(void)
{
    double begin = now();
    struct timespec pause = {0, 5000000};
    SITE("main;rest");
    while (now() - begin < 2500) {
        LAUNCH(rest_d1000, 1, 32, 0)(1);
        cudaDeviceSynchronize();
        nanosleep(&pause, NULL);
    }
}

OWN_FRAME static void after(void)
{
    int i;
    SITE("main;after");
    for (i = 0; i < 70; i++)
        LAUNCH(after_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

static volatile int is_over;

OWN_FRAME static void *busy(void *nothing)
{
    SITE("busy");
    while (!is_over)
        LAUNCH(busy_d1000, 1, 32, 0)(1);
    return nothing;
}

static void window(const char *what)
{
    void *library = dlopen(getenv("CUDA_INJECTION64_PATH") ? getenv("CUDA_INJECTION64_PATH") : "", RTLD_LAZY);
    int (*set)(void) = library ? (int (*)(void))dlsym(library, what) : NULL;
    if (set && set())
        exit(27);
}

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "records";
    pthread_t thread;
    if (count > 2 && pthread_create(&thread, NULL, busy, NULL))
        exit(28);
    if (!strcmp(how, "early")) {
        comes(how);
        CALL(cuptiActivityEnable, (int), CALLS);
    }
    before();
    if (strcmp(how, "early"))
        comes(how);
    if (!strcmp(how, "window")) {
        window("gpuflame_stop");
        window("gpuflame_start");
    }
    theirs();
    goes(how);
    rest();
    after();
    if (!strcmp(how, "again")) {
        if (CALL(cuptiActivityEnable, (int), KERNELS))
            exit(26);
        theirs();
        goes(how);
        rest();
        after();
    }
    is_over = 1;
    if (count > 2)
        pthread_join(thread, NULL);
    cudaDeviceSynchronize();
    printf("kernels %u, calls %u\n", kernels, calls);
    return 0;
}
