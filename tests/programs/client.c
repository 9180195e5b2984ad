/* A program that contains another CUPTI client. The client starts recording, records some kernels, and stops.
 *
 *     client HOW [busy | flushes]
 *
 * The program launches 50 times and waits; the client starts; the program launches 40 times and waits; the client
 * stops; the program launches for 2.5 s, then launches 70 times and waits. HOW selects the client's actions:
 *
 * - `records`: registers its buffer functions, enables activity kinds, and flushes before it stops.
 * - `again`: as `records`, and the client starts a second time by only enabling its kind.
 * - `clock`: as `records`, with its own clock, which runs three times as fast. The client starts a second time and then
 *   registers its functions and enables its kind again.
 * - `late`: as `records`, but it flushes 2.5 s after it disabled its kinds, and stops 2.5 s after that.
 * - `slow`: as `records`, but it needs 0.4 s to read each small buffer.
 * - `switch`: as `records`, but 2.5 s earlier it enables and disables another kind.
 * - `context`: enables its kind for one CUDA context, and never stops.
 * - `window`: as `records`, and a gpuflame window is closed and opened while the client is active.
 * - `early`: starts before the first CUDA call, and enables records of API calls too.
 * - `subscription`: subscribes to callbacks of all runtime calls, and unsubscribes.
 * - `both`: subscribes, and then acts as `records`.
 * - `two`: as `records`; while this client is active, another client subscribes and unsubscribes, and launches continue
 *   for 2.5 s.
 * - `finalize`: finalizes CUPTI.
 * - `ended`: subscribes, and then finalizes CUPTI.
 * - `jumps`: as `records`. Before that, CUPTI calls the client's clock function, which leaves the call by longjmp.
 *
 * With `busy`, another thread launches all the time. With `flushes`, another thread calls gpuflame_flush() all the
 * time. The program prints the results of the client's calls and the client's data: the number of kernels in its
 * records, the number of calls, and the CUPTI setting that it found.
 *
 * If TO_CUPTI is defined, the program is linked with CUPTI. If TO_CUPTI is not defined, the program looks up each CUPTI
 * function when it needs the function. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "cupti.h"

#include <pthread.h>
#include <setjmp.h>
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
    cuptiEnableDomain(uint32_t, void *, int), cuptiFinalize(void), cuptiGetLastError(void),
    cuptiActivityEnableContext(void *, int);
#define CALL(name, types, ...) name(__VA_ARGS__)
#else
#define CALL(name, types, ...) ((int(*) types)cupti(#name))(__VA_ARGS__)
#endif

enum { KERNELS = 10, CALLS = 5, ZEROED = 5, RUNTIME = 2 };

int cuCtxGetCurrent(void **);

static volatile unsigned kernels, calls, strange;
static unsigned owed;
static int is_slow, has_clock, is_at_work;

static uint64_t fast_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 3 * (time.tv_sec * 1000000000ull + time.tv_nsec);
}

static jmp_buf out;

static uint64_t clock_that_jumps(void)
{
    longjmp(out, 1);
}

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *size = is_slow ? 2 << 10 : 256 << 10;
    *buffer = malloc(*size);
    *most = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    struct timespec pause = {0, 400000000};
    uint8_t *record = NULL;
    uint64_t end;
    int kind;
    (void)context, (void)stream, (void)size;
    if (is_slow)
        nanosleep(&pause, NULL);
    while (!CALL(cuptiActivityGetNextRecord, (uint8_t *, size_t, uint8_t **), buffer, valid, &record)) {
        memcpy(&kind, record, sizeof kind);
        memcpy(&end, record + 24, sizeof end);
        kernels += kind == KERNELS;
        /* Counts records whose time is in the future or more than an hour ago by the client's clock. */
        if (has_clock)
            strange += end > fast_clock() || end + 3 * 3600000000000ull < fast_clock();
    }
    free(buffer);
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
    is_slow = !strcmp(how, "slow");
    if (!strcmp(how, "jumps") && !setjmp(out))
        CALL(cuptiActivityRegisterTimestampCallback, (void *), (void *)clock_that_jumps);
    if (!strcmp(how, "subscription") || !strcmp(how, "both") || !strcmp(how, "two") || !strcmp(how, "ended")) {
        int refused = CALL(cuptiSubscribe, (void **, void *, void *), &subscriber, (void *)on_call, NULL);
        int last = CALL(cuptiGetLastError, (void), );
        if (!refused && CALL(cuptiEnableDomain, (uint32_t, void *, int), 1, subscriber, RUNTIME))
            exit(21);
        printf("subscribe %d, then %d; ", refused, last);
        if (strcmp(how, "both") && strcmp(how, "ended"))
            return;
    }
    if (!strcmp(how, "finalize") || !strcmp(how, "ended")) {
        printf("finalize %d; ", CALL(cuptiFinalize, (void), ));
        subscriber = NULL;
        return;
    }
    if (!strcmp(how, "clock") && !has_clock++ && CALL(cuptiActivityRegisterTimestampCallback, (void *), (void *)fast_clock))
        exit(22);
    if (CALL(cuptiActivityRegisterCallbacks, (void *, void *), (void *)requested, (void *)completed))
        exit(23);
    printf("zeroed %d; ", zeroed());
    if (!strcmp(how, "context")) {
        void *context = NULL;
        if (cuCtxGetCurrent(&context) || CALL(cuptiActivityEnableContext, (void *, int), context, KERNELS))
            exit(29);
    } else if (CALL(cuptiActivityEnable, (int), KERNELS))
        exit(24);
    is_at_work = 1;
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
    owed += is_at_work ? 40 : 0;
    cudaDeviceSynchronize();
}

OWN_FRAME static void rest(void)
{
    double begin = now();
    struct timespec pause = {0, 5000000};
    SITE("main;rest");
    while (now() - begin < 2500) {
        LAUNCH(rest_d1000, 1, 32, 0)(1);
        owed += is_at_work;
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
    owed += is_at_work ? 70 : 0;
    cudaDeviceSynchronize();
}

static void goes(const char *how)
{
    if (subscriber) {
        if (CALL(cuptiUnsubscribe, (void *), subscriber))
            exit(25);
        subscriber = NULL;
    }
    if (strcmp(how, "subscription") && strcmp(how, "finalize") && strcmp(how, "ended") && strcmp(how, "context")) {
        CALL(cuptiActivityDisable, (int), KERNELS);
        is_at_work = 0;
        if (!strcmp(how, "late"))
            rest();
        CALL(cuptiActivityFlushAll, (uint32_t), 0);
    }
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

static void *flushes(void *nothing)
{
    void *library = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_LAZY);
    int (*flush)(void) = library ? (int (*)(void))dlsym(library, "gpuflame_flush") : NULL;
    if (!flush)
        exit(27);
    while (!is_over)
        flush();
    return nothing;
}

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "records";
    int is_busy = count > 2 && !strcmp(words[2], "busy");
    pthread_t thread;
    if (is_busy && pthread_create(&thread, NULL, busy, NULL))
        exit(28);
    if (!strcmp(how, "early")) {
        comes(how);
        CALL(cuptiActivityEnable, (int), CALLS);
    }
    before();
    if (!strcmp(how, "switch")) {
        CALL(cuptiActivityEnable, (int), CALLS);
        CALL(cuptiActivityDisable, (int), CALLS);
        rest();
    }
    if (count > 2 && !is_busy && pthread_create(&thread, NULL, flushes, NULL))
        exit(28);
    if (!strcmp(how, "two"))
        comes("records");
    if (strcmp(how, "early"))
        comes(how);
    if (!strcmp(how, "two")) {
        goes("subscription");
        rest();
    }
    if (!strcmp(how, "window")) {
        window("gpuflame_stop");
        window("gpuflame_start");
    }
    theirs();
    goes(how);
    rest();
    after();
    if (!strcmp(how, "again") || !strcmp(how, "clock")) {
        if (!strcmp(how, "clock"))
            comes(how);
        else if (CALL(cuptiActivityEnable, (int), KERNELS))
            exit(26);
        is_at_work = 1;
        theirs();
        goes(how);
        rest();
        after();
    }
    is_over = 1;
    if (count > 2)
        pthread_join(thread, NULL);
    cudaDeviceSynchronize();
    if (is_at_work)
        CALL(cuptiActivityFlushAll, (uint32_t), 0);
    printf("kernels %u of %u, calls %u, at another time %u\n", kernels, owed, calls, strange);
    return 0;
}
