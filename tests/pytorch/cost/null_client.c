// A CUPTI client that does nothing, to measure the cost of any CUPTI client. The client has the same subscription,
// callbacks and record kinds as gpuflame, but the callbacks do nothing. The client is loaded through
// CUDA_INJECTION64_PATH. Like gpuflame, it reuses a few buffers for records.
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 2 << 20, MOST_SPARE = 16, STATE = 6, FATAL_ERROR = 1 };

static int (*subscribe)(void **, void *, void *);
static int (*enable_callback)(uint32_t, void *, uint32_t, uint32_t);
static int (*callback_name)(uint32_t, uint32_t, const char **);
static int (*enable_kind)(uint32_t);
static int (*register_buffers)(void *, void *);
static int (*flush)(uint32_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *spare[MOST_SPARE];
static int spare_count;

static void callback(void *user, uint32_t domain, uint32_t id, const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
}

static void requested(uint8_t **buffer, size_t *size, size_t *records) {
    pthread_mutex_lock(&lock);
    *buffer = spare_count ? spare[--spare_count] : NULL;
    pthread_mutex_unlock(&lock);
    if (!*buffer) *buffer = aligned_alloc(4096, BUFFER_BYTES);
    *size = BUFFER_BYTES;
    *records = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size, (void)valid;
    pthread_mutex_lock(&lock);
    if (spare_count < MOST_SPARE) spare[spare_count++] = buffer, buffer = NULL;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static int is_one_of(const char *name, const char *const *all) {
    while (*all && strcmp(name, *all)) all++;
    return *all != NULL;
}

// Returns whether gpuflame requests callbacks for this CUDA function. Like gpuflame, this client selects functions by
// name. The selection ignores versions and kinds of streams in the name.
static int is_wanted(const char *name) {
    static const char *const look_alikes[] = {"HostFunc", "Node", "Params", "Get", "SetAttribute", "Occupancy", NULL};
    static const char *const ends[] = {"DeviceReset", "ThreadExit", "CtxDestroy", "DevicePrimaryCtxReset",
                                       "DevicePrimaryCtxRelease", "ProfilerStart", "ProfilerStop", NULL};
    static const char *const copies[] = {"GraphAddChildGraphNode", "GraphClone", "GraphExecUpdate", NULL};
    static const char *const waits[] = {"DeviceSynchronize", "ThreadSynchronize", "CtxSynchronize", "StreamSynchronize",
                                        "EventSynchronize", NULL};
    static const char *const memory[] = {
        "Malloc", "MallocAsync", "MallocFromPoolAsync", "MemAlloc", "MemAllocAsync", "MemAllocFromPoolAsync", "MemCreate",
        "MallocPitch", "MemAllocPitch", "MallocHost", "HostAlloc", "MemAllocHost", "MemHostAlloc", "MallocManaged",
        "MemAllocManaged", "Free", "FreeAsync", "FreeHost", "MemFree", "MemFreeAsync", "MemFreeHost", "MemRelease", NULL};
    char verb[128];
    name += strspn(name, "_");
    name += !strncmp(name, "cuda", 4) || !strncmp(name, "cu64", 4) ? 4 : 2;
    strncpy(verb, name, sizeof verb - 1);
    verb[sizeof verb - 1] = 0;
    for (char *suffix; (suffix = strrchr(verb, '_')) && suffix > verb; *suffix = 0)
        if (strcmp(suffix, "_ptsz") && strcmp(suffix, "_ptds") &&
            (suffix[1] != 'v' || !suffix[2] || suffix[2 + strspn(suffix + 2, "0123456789")]))
            break;
    if (is_one_of(verb, ends) || is_one_of(verb, copies) || is_one_of(verb, waits) || is_one_of(verb, memory)) return 1;
    if (!strncmp(verb, "GraphInstantiate", 16) || (!strncmp(verb, "GraphAdd", 8) && strstr(verb, "Node"))) return 1;
    for (const char *const *look_alike = look_alikes; *look_alike; look_alike++)
        if (strstr(verb, *look_alike)) return 0;
    return !strncmp(verb, "Launch", 6) || !strncmp(verb, "GraphLaunch", 11) || !strncmp(verb, "Memcpy", 6) ||
           !strncmp(verb, "Memset", 6) || (!strncmp(verb, "Mem", 3) && strstr(verb, "Prefetch"));
}

static void at_exit(void) { flush(1); }

int InitializeInjection(void) {
    static const uint32_t kinds[] = {10, 1, 22, 2}, resources[] = {1, 2, 10, 13, 18, 19, 20};
    void *cupti = dlopen("libcupti.so.13", RTLD_NOW), *subscriber;
    if (!cupti) return 0;
    subscribe = dlsym(cupti, "cuptiSubscribe");
    enable_callback = dlsym(cupti, "cuptiEnableCallback");
    callback_name = dlsym(cupti, "cuptiGetCallbackName");
    enable_kind = dlsym(cupti, "cuptiActivityEnable");
    register_buffers = dlsym(cupti, "cuptiActivityRegisterCallbacks");
    flush = dlsym(cupti, "cuptiActivityFlushAll");
    if (subscribe(&subscriber, callback, NULL) || register_buffers(requested, completed)) return 0;
    for (unsigned at = 0; at < sizeof kinds / sizeof *kinds; at++) enable_kind(kinds[at]);
    for (uint32_t domain = 1; domain <= 2; domain++) {
        const char *name;
        for (uint32_t id = 1; callback_name(domain, id, &name) == 0; id++)
            if (is_wanted(name)) enable_callback(1, subscriber, domain, id);
    }
    for (unsigned at = 0; at < sizeof resources / sizeof *resources; at++) enable_callback(1, subscriber, 3, resources[at]);
    enable_callback(1, subscriber, STATE, FATAL_ERROR);
    atexit(at_exit);
    return 1;
}
