/* A small CUPTI client that the driver loads through CUDA_INJECTION64_PATH. The client shares no code with gpuflame.
 * The truth kit uses this client for three purposes: as an independent witness, as a recorder, and to measure the lower
 * levels of its cost matrix.
 *
 *     gcc -shared -fPIC -O2 -g tests/gpu/probe/[a-z]*.c -o probe.so -ldl -lpthread
 *     PROBE=witness PROBE_OUT=sums.json CUDA_INJECTION64_PATH=$PWD/probe.so ./program
 *
 * - `PROBE` is the mode: nothing, subscribe, callback, nested, kernels, copies, apis or backtrace (see cost.c); witness
 *   (witness.c); record (record.c); exit, drops, names or fork (ask.c).
 * - `PROBE_OUT` is the path of the file to which the probe writes JSON lines.
 * - `PROBE_CUPTI` is the path of the libcupti that the probe loads if the process has not loaded a libcupti.
 * - `PROBE_BUFFER` is the size of a buffer in bytes.
 * - `PROBE_BUFFERS` is the maximum number of buffers; when CUPTI requests more buffers, the probe returns NULL. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cupti cupti;
void *subscriber;
const char *cupti_path;
int api_seen;

const char *const LAUNCHES[] = {"Launch", NULL};
const char *const COPIES[] = {"Memcpy", "Memset", NULL};
const char *const GRAPHS[] = {"Graph", "Capture", NULL};
const char *const WAITS[] = {"Synchronize", NULL};

const char *option(const char *name, const char *otherwise)
{
    char full[64];
    snprintf(full, sizeof full, "PROBE_%s", name);
    const char *value = getenv(full);
    return value && *value ? value : otherwise;
}

void say(const char *format, ...)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static FILE *out;
    va_list arguments;
    pthread_mutex_lock(&lock);
    if (!out) {
        out = fopen(option("OUT", "/dev/null"), "ae");
        if (!out)
            out = fopen("/dev/null", "we");
        if (out)
            setvbuf(out, NULL, _IOFBF, 1 << 16);
    }
    if (out) {
        va_start(arguments, format);
        vfprintf(out, format, arguments);
        va_end(arguments);
        fputc('\n', out);
        fflush(out); /* the process may end right after this line */
    }
    pthread_mutex_unlock(&lock);
}

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint32_t u32_at(const uint8_t *record, size_t offset)
{
    uint32_t value;
    memcpy(&value, record + offset, sizeof value);
    return value;
}

uint64_t u64_at(const uint8_t *record, size_t offset)
{
    uint64_t value;
    memcpy(&value, record + offset, sizeof value);
    return value;
}

const char *kernel_name(const uint8_t *record)
{
    const char *name = (const char *)(uintptr_t)u64_at(record, 104);
    return name ? name : "";
}

uint32_t correlation_of(const uint8_t *record)
{
    switch (u32_at(record, 0)) {
    case KIND_KERNEL: return u32_at(record, 92);
    case KIND_COPY:
    case KIND_SET: return u32_at(record, 44);
    case KIND_PEER_COPY: return u32_at(record, 60);
    default: return 0;
    }
}

/* ---- Finds libcupti. A libcupti that the process has already loaded is preferred, because two must never be active.
 * ---- */

static int find_mapped(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!name || strncmp(name, "/libcupti.so", 12) != 0)
        return 0;
    *(char **)found = strdup(info->dlpi_name);
    return 1;
}

static int load_cupti(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"};
    char *mapped = NULL;
    void *library = NULL;
    dl_iterate_phdr(find_mapped, &mapped);
    const char *first = mapped ? mapped : getenv("PROBE_CUPTI");
    if (first && *first && (library = dlopen(first, RTLD_NOW)))
        cupti_path = first;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        if ((library = dlopen(names[i], RTLD_NOW)))
            cupti_path = names[i];
    if (!library)
        return 0;
#define X(name, parameters) *(void **)&cupti.name = dlsym(library, "cupti" #name);
    CUPTI_FUNCTIONS(X)
#undef X
    return cupti.Subscribe && cupti.GetVersion && cupti.ActivityRegisterCallbacks;
}

int subscribe(callback_function callback)
{
    const int result = cupti.Subscribe(&subscriber, callback, NULL);
    if (result)
        say("{\"error\":\"cuptiSubscribe\",\"result\":%d}", result);
    return result == 0;
}

int enable_names(uint32_t domain, const char *const *words)
{
    const char *name;
    int enabled = 0;
    for (uint32_t id = 1; id < 4096 && cupti.GetCallbackName(domain, id, &name) == 0 && name; id++)
        for (const char *const *word = words; *word; word++)
            if (strstr(name, *word)) {
                enabled += cupti.EnableCallback(1, subscriber, domain, id) == 0;
                break;
            }
    return enabled;
}

/* ---- Buffers. Free buffers are kept in a list, so that the application's thread rarely calls malloc. ---- */

static pthread_mutex_t buffers = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *free_buffers[64];
static int free_count;
static size_t buffer_size = 2 << 20, handed_out, most_buffers = SIZE_MAX;
static struct reader reader;

static void requested(uint8_t **buffer, size_t *size, size_t *most_records)
{
    *most_records = 0;
    *size = 0;
    *buffer = NULL;
    pthread_mutex_lock(&buffers);
    if (handed_out < most_buffers) {
        handed_out++;
        *buffer = free_count ? free_buffers[--free_count] : NULL;
        if (!*buffer)
            *buffer = aligned_alloc(4096, (buffer_size + 4095) & ~(size_t)4095);
        *size = *buffer ? buffer_size : 0;
    }
    pthread_mutex_unlock(&buffers);
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    uint8_t *record = NULL;
    (void)context, (void)stream;
    if (reader.before)
        reader.before(buffer, size, valid);
    while (valid > 0 && cupti.ActivityGetNextRecord(buffer, valid, &record) == 0)
        reader.record(buffer, record);
    if (reader.after)
        reader.after();
    pthread_mutex_lock(&buffers);
    if (free_count < 64)
        free_buffers[free_count++] = buffer;
    else
        free(buffer);
    pthread_mutex_unlock(&buffers);
}

void read_kinds(const uint32_t *kinds, struct reader with)
{
    buffer_size = strtoul(option("BUFFER", "2097152"), NULL, 10);
    most_buffers = strtoul(option("BUFFERS", "18446744073709551615"), NULL, 10);
    reader = with;
    const int result = cupti.ActivityRegisterCallbacks(requested, completed);
    if (result)
        say("{\"error\":\"cuptiActivityRegisterCallbacks\",\"result\":%d}", result);
    for (; *kinds; kinds++) {
        const int enabled = cupti.ActivityEnable(*kinds);
        if (enabled)
            say("{\"error\":\"cuptiActivityEnable %u\",\"result\":%d}", *kinds, enabled);
    }
}

int flush_all(void)
{
    return api_seen ? cupti.ActivityFlushAll(1) : -1;
}

int InitializeInjection(void)
{
    static int calls;
    const char *mode = getenv("PROBE");
    if (!mode || !*mode || !strcmp(mode, "nothing"))
        return 1;
    if (calls++) {
        say("{\"injected_again\":%d}", calls);
        return 1;
    }
    if (!load_cupti()) {
        say("{\"error\":\"no libcupti\"}");
        return 1;
    }
    if (!strcmp(mode, "witness"))
        start_witness();
    else if (!strcmp(mode, "record"))
        start_recorder();
    else if (!strcmp(mode, "exit"))
        start_exit_order();
    else if (!strcmp(mode, "drops"))
        start_drops();
    else if (!strcmp(mode, "names"))
        start_names();
    else if (!strcmp(mode, "fork"))
        start_fork();
    else
        start_cost(mode);
    return 1;
}
