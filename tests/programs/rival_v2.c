/* A program that contains another CUPTI client. The client shares CUPTI with gpuflame: it subscribes, and enables its
 * own activity records.
 *
 *     rival_v2 first|second|v1|v1-first
 *
 * - `first`: the client starts before the driver is initialised, and therefore before an injected library starts.
 * - `second`: the client starts after 50 launches.
 * - `v1`: after 50 launches, a client of CUPTI's old interface starts, and tries all calls that it can make.
 * - `v1-first`: a client of the old interface enables activity records before the driver is initialised, and does not
 *   subscribe.
 *
 * The program prints the client's data: the number of API calls, the number of records and their total nanoseconds, and
 * the number of dropped records. The program also prints the number of API calls whose EXIT callback had the word that
 * the client stored at ENTER. For `v1`, the program prints the result of each call. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "cupti.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(before_d1000, "before_d1000", (int n), &n)
KERNEL(after_d2000, "after_d2000", (int n), &n)

/* CUpti_SubscriberParams, and the fields of CUpti_CallbackData that this client reads */
struct params { size_t size; const char *name; char *old_name; size_t old_size; uint8_t shares, pad[7]; };
struct data { int site; const char *name; void *params, *result, *symbol, *context; uint32_t uid; uint64_t *word; };

static void *subscriber;
static volatile unsigned calls, kept, records;
static volatile uint64_t nanos;

static void on_call(void *user, int domain, int id, const struct data *data)
{
    (void)user, (void)domain, (void)id;
    if (data->site == 0) {
        calls++;
        *data->word = 0x5eed0000 + calls;
    } else if (*data->word == 0x5eed0000 + calls)
        kept++;
}

static void requested(uint8_t **buffer, size_t *size, size_t *most, void *about)
{
    (void)about;
    *size = 64 << 10;
    *buffer = malloc(*size);
    *most = 0;
}

static void add(const uint8_t *record)
{
    uint64_t times[2];
    memcpy(times, record + 16, sizeof times);
    nanos += times[1] - times[0];
    records++;
}

static void completed(uint8_t *buffer, size_t size, size_t valid, void *about)
{
    int (*next)(void *, uint8_t *, size_t, uint8_t **);
    uint8_t *record = NULL;
    (void)size, (void)about;
    *(void **)&next = cupti("cuptiActivityGetNextRecord_v2");
    while (valid && next(subscriber, buffer, valid, &record) == 0)
        add(record);
    free(buffer);
}

static void old_requested(uint8_t **buffer, size_t *size, size_t *most)
{
    requested(buffer, size, most, NULL);
}

static void old_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    int (*next)(uint8_t *, size_t, uint8_t **);
    uint8_t *record = NULL;
    (void)context, (void)stream, (void)size;
    *(void **)&next = cupti("cuptiActivityGetNextRecord");
    while (valid && next(buffer, valid, &record) == 0)
        add(record);
    free(buffer);
}

static void client_comes(void)
{
    static const uint32_t kinds[] = {1, 2, 10};
    struct params params = {40, "rival", NULL, 0, 1, {0}};
    int (*subscribe)(void **, void *, void *, void *), (*ask)(void *, void *, void *);
    int (*set)(void *, uint32_t, void *), (*listen)(uint32_t, void *, int, int);
    unsigned at;
    *(void **)&subscribe = cupti("cuptiSubscribe_v2");
    *(void **)&ask = cupti("cuptiActivityRegisterCallbacks_v2");
    *(void **)&set = cupti("cuptiActivityEnable_v2");
    *(void **)&listen = cupti("cuptiEnableCallback");
    if (subscribe(&subscriber, (void *)on_call, NULL, &params) ||
        ask(subscriber, (void *)requested, (void *)completed))
        exit(21);
    for (at = 0; at < sizeof kinds / sizeof *kinds; at++)
        if (set(subscriber, kinds[at], NULL))
            exit(22);
    if (listen(1, subscriber, 1, 307)) /* cuLaunchKernel */
        exit(23);
}

static void old_client_comes(int subscribes)
{
    int (*subscribe)(void **, void *, void *), (*ask)(void *, void *), (*set)(uint32_t);
    void *mine;
    *(void **)&subscribe = cupti("cuptiSubscribe");
    *(void **)&ask = cupti("cuptiActivityRegisterCallbacks");
    *(void **)&set = cupti("cuptiActivityEnable");
    if (subscribes)
        printf("subscribe %d ", subscribe(&mine, (void *)on_call, NULL));
    printf("register %d ", ask((void *)old_requested, (void *)old_completed));
    printf("enable %d", set(10));
}

static void flush(void)
{
    int (*all)(uint32_t);
    *(void **)&all = cupti("cuptiActivityFlushAll");
    all(0);
}

static void report(void)
{
    int (*lost)(void *, void *, uint32_t, size_t *);
    size_t dropped = 0;
    *(void **)&lost = cupti("cuptiActivityGetNumDroppedRecords_v2");
    flush();
    if (lost(subscriber, NULL, 0, &dropped))
        exit(24);
    printf("calls %u kept %u records %u nanos %llu dropped %zu\n", calls, kept, records, (unsigned long long)nanos,
           dropped);
}

OWN_FRAME static void before(void)
{
    int i;
    SITE("main;before");
    for (i = 0; i < 50; i++)
        LAUNCH(before_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

OWN_FRAME static void after(void)
{
    int i;
    SITE("main;after");
    for (i = 0; i < 5000; i++)
        LAUNCH(after_d2000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

int main(int count, char **words)
{
    const char *when = count > 1 ? words[1] : "second";
    if (!strcmp(when, "first"))
        client_comes();
    if (!strcmp(when, "v1-first"))
        old_client_comes(0);
    before();
    if (!strcmp(when, "second"))
        client_comes();
    if (!strcmp(when, "v1"))
        old_client_comes(1);
    after();
    if (subscriber)
        report();
    if (!strcmp(when, "v1-first")) {
        flush();
        printf(" records %u nanos %llu", records, (unsigned long long)nanos);
    }
    if (!strncmp(when, "v1", 2))
        printf("\n");
    return 0;
}
