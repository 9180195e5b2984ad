/* A small CUPTI client. The simulated driver loads it through CUDA_INJECTION64_PATH. The client logs each callback,
 * record and call result as a line in $CLIENT_LOG. Other variables set its behaviour:
 * - `CLIENT_KINDS=10,1`: activity kinds to enable.
 * - `CLIENT_CALLBACKS=2:211,3:1`: callbacks to enable, as domain:id.
 * - `CLIENT_BUFFER=4096`: size of each buffer in bytes; 0: the client returns NULL; odd: the buffer is not aligned.
 * - `CLIENT_FLUSH=1`: flag with which the client calls cuptiActivityFlushAll at exit; `none`: no flush; `now`: it also
 *   flushes in each EXIT callback of an API call.
 * - `CLIENT_IN=...`: action of the client inside callbacks, see act_inside.
 * - `CLIENT_RETURN=0`: value that InitializeInjection returns.
 * - `CLIENT_STACK=1`: the client logs the stack at ENTER.
 * - `CLIENT_INSIST=1`: the client continues after a failed subscribe.
 * - `CLIENT_THREADS=0`: value of attribute 9 (buffers per thread).
 * - `CLIENT_CLOCK=1`: the client's timestamps count from boot; `ticks`: they are ticks of a 2.6 GHz clock.
 * - `CLIENT_EXTERNAL=3:42,5:43`: external ids to push, as kind:id, on the thread that initialises the client.
 * - `CLIENT_OF_CONTEXT=2:+10,1:-1`: when the CUDA context with this id is created (callback 3:1), the client enables
 *   (+) or disables (-) the activity kind for this context.
 *
 * All declarations in this file are our own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int (*function)();
static void *cupti;
static void *subscriber;
static FILE *log_file;
static int callbacks_seen, buffers_out;
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;

static function cupti_function(const char *name) { return (function)dlsym(cupti, name); }
#define CUPTI(name) (cupti_function("cupti" #name))

static const char *option(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static void say(const char *format, ...) {
    char line[16384];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n] = '\n';
    if (log_file) fwrite(line, 1, n + 1, log_file);
}

static uint32_t u32(const char *record, int offset) { uint32_t v; memcpy(&v, record + offset, 4); return v; }
static uint64_t u64(const char *record, int offset) { uint64_t v; memcpy(&v, record + offset, 8); return v; }

static uint64_t own_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t ticks(void) { return (unsigned __int128)own_clock() * 13 / 5; }

static const char *file_of(void *address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return "?";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

/* Logs the library or program of each function on the stack, leaf first: once unwound with .eh_frame, and once by
 * following frame pointers. */
static void say_stack(void) {
    void *addresses[64];
    char line[4096] = "";
    int n = backtrace(addresses, 64);
    for (int i = 0; i < n; i++) strcat(strcat(line, i ? ">" : ""), file_of(addresses[i]));
    uintptr_t *frame = __builtin_frame_address(0), *base = frame;
    int frames = 0;
    while (frame >= base && frame < base + 8192 && frame[0]) frames++, frame = (uintptr_t *)frame[0];
    say("stack by_eh_frame=%s by_pointers=%d", line, frames);
}

static void act_inside(const char *where) {
    const char *action = option("CLIENT_IN", "");
    if (strncmp(action, where, strlen(where)) || action[strlen(where)] != ':') return;
    action += strlen(where) + 1;
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    if (!strcmp(action, "flush")) CUPTI(ActivityFlushAll)(0);
    if (!strcmp(action, "cuda")) ((function)dlsym(runtime, "cudaGetLastError"))();
    if (!strcmp(action, "sync")) ((function)dlsym(runtime, "cudaDeviceSynchronize"))();
    if (!strcmp(action, "lock")) pthread_mutex_lock(&own_lock);
    if (!strcmp(action, "exit")) exit(3);
    if (!strcmp(action, "sleep")) sleep(30);
    if (!strcmp(action, "pause")) usleep(2000);
}

/* Buffers that the client has passed to CUPTI and that CUPTI has not returned. If CUPTI returns a buffer that is not in
 * this table, it has returned that buffer twice. */
static uint8_t *lent[1 << 14];

/* Replaces `what` by `with` in the table `lent`; returns 0 if `what` is not in the table. */
static int swap_lent(uint8_t *what, uint8_t *with) {
    for (size_t at = 0; at < sizeof lent / sizeof *lent; at++)
        if (lent[at] == what && __sync_bool_compare_and_swap(&lent[at], what, with)) return 1;
    return 0;
}

static void requested(uint8_t **buffer, size_t *size, size_t *records) {
    size_t bytes = atol(option("CLIENT_BUFFER", "65536"));
    act_inside("requested");
    say("requested");
    *size = bytes;
    *records = atol(option("CLIENT_RECORDS", "0"));
    *buffer = bytes ? malloc(bytes + 1) : NULL;
    if (bytes % 2) *buffer += 1;
    if (bytes && !swap_lent(NULL, *buffer)) say("too many buffers"), abort();
    __atomic_add_fetch(&buffers_out, 1, __ATOMIC_RELAXED);
}

/* Enables and disables activity kinds for one CUDA context, as $CLIENT_OF_CONTEXT says. */
static void ask_of_context(void *context) {
    uint32_t number = 0;
    CUPTI(GetContextId)(context, &number);
    for (const char *p = option("CLIENT_OF_CONTEXT", ""); *p; p += strspn(p, ",")) {
        const uint32_t of = strtoul(p, (char **)&p, 10);
        const int on = p[1] == '+';
        const uint32_t kind = strtoul(p + 2, (char **)&p, 10);
        if (of != number) continue;
        say("OfContext kind=%u on=%d result=%d of_nothing=%d", kind, on,
            on ? CUPTI(ActivityEnableContext)(context, kind) : CUPTI(ActivityDisableContext)(context, kind),
            CUPTI(ActivityEnableContext)(NULL, kind));
    }
}

/* Logs the id that CUPTI's two stream id functions return for a stream, and the id of the context's default stream. */
static void say_stream(void *context, void *stream) {
    uint32_t id = 0, ex = 0, own = 0, nothing = 0;
    const int result = CUPTI(GetStreamId)(context, stream, &id);
    CUPTI(GetStreamIdEx)(context, stream, 0, &ex);
    CUPTI(GetStreamId)(context, NULL, &own);
    say("stream result=%d id=%u ex=%u own=%u bad=%d nowhere=%d", result, id, ex, own,
        CUPTI(GetStreamId)(context, log_file, &nothing), CUPTI(GetStreamId)(context, stream, NULL));
}

/* Logs the graph node in an activity record, and, since CUPTI 13.4, the node from which this node was created. */
static void say_node(const char *record, int node, int graph, int source) {
    uint32_t version = 0;
    CUPTI(GetVersion)(&version);
    const int has_source = version >= 130400 && source;
    say("node graph=%u node=%llu source=%u:%llu", u32(record, graph), u64(record, node), has_source ? u32(record, source) : 0,
        has_source ? u64(record, source + 8) : 0);
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream;
    char thread[32];
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    say("buffer size=%zu valid=%zu thread=%s tid=%ld", size, valid, thread, (long)syscall(SYS_gettid));
    if (!swap_lent(buffer, NULL)) return say("twice valid=%zu", valid);
    act_inside("completed");
    char *record = NULL, *before = NULL;
    while (CUPTI(ActivityGetNextRecord)(buffer, valid, &record) == 0) {
        uint32_t kind = u32(record, 0);
        if (before) say("stride %ld", (long)(record - before));
        if (kind == 10 || kind == 3) {
            const char *name;
            memcpy(&name, record + 104, sizeof name);
            say("record kind=%u corr=%u start=%llu end=%llu device=%u context=%u stream=%u grid=%u,%u,%u name=%s", kind,
                u32(record, 92), u64(record, 16), u64(record, 24), u32(record, 40), u32(record, 44), u32(record, 48),
                u32(record, 52), u32(record, 56), u32(record, 60), name ? name : "NULL");
            if (u32(record, 156)) say_node(record, 144, 156, 232);
        } else if (kind == 1 || kind == 2 || kind == 22) {
            say("record kind=%u corr=%u start=%llu end=%llu device=%u context=%u stream=%u bytes=%llu copy=%u from=%u to=%u "
                "peers=%u:%u",
                kind, u32(record, kind == 22 ? 60 : 44), u64(record, 16), u64(record, 24), u32(record, 32), u32(record, 36),
                u32(record, 40), u64(record, 8), (uint8_t)record[4], (uint8_t)record[5], (uint8_t)record[6],
                kind == 22 ? u32(record, 44) : 0, kind == 22 ? u32(record, 52) : 0);
            const int graph = kind == 22 ? 80 : 72;
            if (u32(record, graph)) say_node(record, graph - 8, graph, kind == 1 ? 96 : kind == 2 ? 88 : 0);
        } else if (kind == 51) {
            say("record kind=%u corr=%u start=%llu end=%llu device=%u graph=%u context=%u stream=%u", kind, u32(record, 4),
                u64(record, 8), u64(record, 16), u32(record, 24), u32(record, 28), u32(record, 32), u32(record, 36));
        } else if (kind == 4 || kind == 5) {
            say("record kind=%u corr=%u start=%llu end=%llu cbid=%u thread=%u result=%u", kind, u32(record, 32), u64(record, 8),
                u64(record, 16), u32(record, 4), u32(record, 28), u32(record, 36));
        } else if (kind == 39) {
            say("record kind=%u corr=%u start=0 end=0 external=%u id=%llu", kind, u32(record, 16), u32(record, 4), u64(record, 8));
        } else {
            say("record kind=%u corr=0 start=0 end=0", kind);
        }
        before = record;
    }
    __atomic_sub_fetch(&buffers_out, 1, __ATOMIC_RELAXED);
    free((void *)((uintptr_t)buffer & ~1ul));
}

struct data {
    uint32_t site;
    const char *name;
    const void *params;
    const uint32_t *result;
    const char *symbol;
    void *context;
    uint32_t context_uid;
    uint64_t *slot;
    uint32_t corr;
};

static void callback(void *user, uint32_t domain, uint32_t id, const void *raw) {
    const struct data *d = raw;
    (void)user;
    callbacks_seen = 1;
    if (!raw) return say("null domain=%u id=%u", domain, id);
    if (domain == 6) {
        say("state id=%u result=%u", id, *(const uint32_t *)raw);
    } else if (domain == 3 && id >= 9 && id <= 20) {
        void *const *const graph = ((void *const *)raw)[2];
        uint32_t of = 0;
        uint64_t node = 0, original = 0;
        CUPTI(GetGraphId)(graph[0], &of);
        if (graph[2]) CUPTI(GetGraphNodeId)(graph[2], &node);
        if (graph[3]) CUPTI(GetGraphNodeId)(graph[3], &original);
        say("graph id=%u graph=%u node=%llu original=%llu type=%u", id, of, node, original, *(const uint32_t *)(graph + 4));
    } else if (domain == 3 && (id == 6 || id == 7)) {
        const struct { uint32_t number; size_t bytes; const char *cubin; } *module = ((void *const *)raw)[2];
        say("module id=%u number=%u bytes=%zu", id, module->number, module->bytes);
    } else if (domain > 2) {
        say("resource domain=%u id=%u", domain, id);
        if (domain == 3 && id == 1) ask_of_context(((void *const *)raw)[0]);
        if (domain == 3 && id == 3) say_stream(((void *const *)raw)[0], ((void *const *)raw)[1]);
        act_inside("resource");
    } else {
        say("callback domain=%u id=%u site=%s corr=%u name=%s symbol=%s slot=%llu tid=%ld result=%d", domain, id,
            d->site ? "exit" : "enter", d->corr, d->name, d->symbol ? d->symbol : "NULL", *d->slot,
            (long)syscall(SYS_gettid), d->result ? (int)*d->result : -1);
        if (!d->site) *d->slot = 1000 + d->corr;
        if (!d->site && *option("CLIENT_STACK", "")) say_stack();
        act_inside(d->site ? "exit" : "enter");
        if (d->site && !strcmp(option("CLIENT_FLUSH", ""), "now")) say("FlushAll %d", CUPTI(ActivityFlushAll)(0));
    }
}

static void dropped(void) {
    size_t n = 99;
    int result = CUPTI(ActivityGetNumDroppedRecords)(NULL, 0, &n);
    say("dropped n=%zu result=%d", n, result);
}

static void at_exit(void) {
    const char *flush = option("CLIENT_FLUSH", "1");
    if (strcmp(flush, "none") && (callbacks_seen || !strcmp(flush, "always")))
        say("FlushAll %d", CUPTI(ActivityFlushAll)(strcmp(flush, "0") != 0));
    dropped();
    dropped();
    say("out n=%d", buffers_out);
    fflush(log_file);
}

/* Takes the client's own lock and then CUPTI's lock, by a call to CUPTI. `bufferRequested` takes the two locks in the
 * opposite order, which can deadlock. */
static void *opposite_order(void *unused) {
    pthread_mutex_lock(&own_lock);
    usleep(300000);
    dropped();
    return unused;
}

/* A test program calls this function to flush, as a polling client does. */
void client_flush(int flag) { say("FlushAll %d", CUPTI(ActivityFlushAll)(flag)); }

int InitializeInjection(void) {
    if (!log_file) log_file = fopen(option("CLIENT_LOG", "/dev/null"), "a");
    if (log_file) setvbuf(log_file, NULL, _IOLBF, 1 << 14);
    if (*option("CLIENT_STACK", "")) say_stack();
    say("injected tid=%ld pid=%d", (long)syscall(SYS_gettid), getpid());
    cupti = dlopen(option("CLIENT_CUPTI", "libcupti.so.13"), RTLD_NOW);
    if (!cupti) return say("no cupti: %s", dlerror()), 1;
    uint32_t version = 0;
    int result = CUPTI(GetVersion)(&version);
    say("version n=%u result=%d", version, result);
    for (const char **name = (const char *[]){"Subscribe", "Subscribe_v2", "GetErrorMessage", "ActivityGetStructSize", "GetStreamId",
                                                "ActivityEnableContext", "ActivityDisableContext", 0}; *name; name++) {
        char full[64];
        snprintf(full, sizeof full, "cupti%s", *name);
        say("symbol %s %s", full, cupti_function(full) ? "present" : "missing");
    }
    void *again = dlopen(option("CLIENT_SONAME", "libcupti.so.13"), RTLD_NOW | RTLD_NOLOAD);
    say("soname %s", again == cupti ? "same" : again ? "other" : "unknown");
    result = CUPTI(Subscribe)(&subscriber, callback, NULL);
    say("Subscribe %d", result);
    if (result && !*option("CLIENT_INSIST", "")) return fflush(log_file), atoi(option("CLIENT_RETURN", "1"));
    if (*option("CLIENT_THREADS", "")) {
        uint8_t on = atoi(option("CLIENT_THREADS", ""));
        size_t size = 1;
        say("SetAttribute %d", CUPTI(ActivitySetAttribute)(9, &size, &on));
    }
    if (*option("CLIENT_CLOCK", "")) {
        uint64_t (*clock)(void) = strcmp(option("CLIENT_CLOCK", ""), "ticks") ? own_clock : ticks;
        say("clock %d", CUPTI(ActivityRegisterTimestampCallback)(clock));
    }
    for (const char *p = option("CLIENT_EXTERNAL", ""); *p; p += strspn(p, ",")) {
        uint32_t kind = strtoul(p, (char **)&p, 10);
        say("push %d", CUPTI(ActivityPushExternalCorrelationId)(kind, (uint64_t)strtoul(p + 1, (char **)&p, 10)));
    }
    say("RegisterCallbacks %d", CUPTI(ActivityRegisterCallbacks)(requested, completed));
    for (const char *p = option("CLIENT_KINDS", ""); *p; p += strspn(p, ","))
        say("ActivityEnable %d", CUPTI(ActivityEnable)((uint32_t)strtoul(p, (char **)&p, 10)));
    for (const char *p = option("CLIENT_CALLBACKS", ""); *p; p += strspn(p, ",")) {
        uint32_t domain = strtoul(p, (char **)&p, 10), id = strtoul(p + 1, (char **)&p, 10);
        int result = id ? CUPTI(EnableCallback)(1, subscriber, domain, id) : CUPTI(EnableDomain)(1, subscriber, domain);
        if (result) say("EnableCallback %d", result);
    }
    atexit(at_exit);
    if (!strncmp(option("CLIENT_IN", ""), "requested:lock", 14)) {
        pthread_t thread;
        pthread_create(&thread, NULL, opposite_order, NULL);
        usleep(100000);
    }
    return atoi(option("CLIENT_RETURN", "1"));
}

__attribute__((destructor)) static void unload(void) {
    say("destructor");
    if (log_file) fclose(log_file);
    log_file = NULL;
}
