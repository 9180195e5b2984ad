/* Probe mode that sums activity records independently of gpuflame. The probe writes the count and the time per kernel
 * symbol and per kind of copy. The kit compares these sums with the tables that gpuflame wrote in another run of the
 * same program. */
#include "probe.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct sum {
    char *name;
    unsigned long count;
    uint64_t nanos;
};

enum { MOST = 8192 };
static struct sum sums[MOST];
static int used;
static unsigned long more_names, untimed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(const char *name, uint64_t nanos)
{
    int i = 0;
    while (i < used && strcmp(sums[i].name, name))
        i++;
    if (i == MOST) {
        more_names++;
        return;
    }
    if (i == used)
        sums[used++].name = strdup(name);
    sums[i].count++;
    sums[i].nanos += nanos;
}

static void sum(uint8_t *buffer, uint8_t *record)
{
    static const char *const copies[] = {"?", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"};
    const uint64_t start = u64_at(record, 16), end = u64_at(record, 24);
    char name[32] = "copy ";
    (void)buffer;
    pthread_mutex_lock(&lock);
    if (end == 0)
        untimed++;
    switch (u32_at(record, 0)) {
    case KIND_KERNEL: add(kernel_name(record), end - start); break;
    case KIND_SET: add("set memset", end - start); break;
    case KIND_PEER_COPY: add("copy PtoP", end - start); break;
    case KIND_COPY: add(strcat(name, record[4] < 11 ? copies[record[4]] : "?"), end - start); break;
    }
    pthread_mutex_unlock(&lock);
}

static void seen(void *user, uint32_t domain, uint32_t id, const void *data)
{
    (void)user, (void)domain, (void)id, (void)data;
    api_seen = 1;
}

static void at_exit(void)
{
    size_t dropped = 0;
    const int flushed = flush_all();
    if (api_seen)
        cupti.ActivityGetNumDroppedRecords(NULL, 0, &dropped);
    for (int i = 0; i < used; i++)
        say("{\"name\":\"%s\",\"count\":%lu,\"nanos\":%llu}", sums[i].name, sums[i].count, (unsigned long long)sums[i].nanos);
    say("{\"flush\":%d,\"dropped\":%zu,\"untimed\":%lu,\"more_names\":%lu}", flushed, dropped, untimed, more_names);
}

void start_witness(void)
{
    const uint32_t kinds[] = {KIND_KERNEL, KIND_COPY, KIND_SET, KIND_PEER_COPY, 0};
    if (!subscribe(seen))
        return;
    enable_names(RUNTIME, LAUNCHES);
    enable_names(DRIVER, LAUNCHES);
    enable_names(RUNTIME, COPIES);
    read_kinds(kinds, (struct reader){NULL, sum, NULL});
    atexit(at_exit);
}
