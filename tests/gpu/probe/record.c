/* Probe mode that writes a recording: all callbacks and buffers that the probe receives from CUPTI, in order, with the
 * buffers' bytes. Each line is a JSON object:
 *
 *   {"n":0,"recording":1,"version":130000,"program":".."}
 *   {"n":7,"call":"enter","domain":2,"id":211,"name":"cudaLaunchKernel","corr":5,"thread":91,"symbol":"..",
 *    "context":1,"stream":7,"slot":0,"handle":0,"graph":0,"result":null}
 *   {"n":8,"resource":13,"thread":91,"corr":5,"graph":3,"node":17,"original":0,"exec":0,"handle":0}
 *   {"n":9,"wait":1,..}   {"n":10,"state":1,..}
 *   {"n":11,"buffer":1,"thread":92,"thread_name":"..","size":2097152,"valid":216,"at":[0],"names":["k"],"hex":".."}
 *   {"n":12,"flush":0,"dropped":0}
 *
 * `n` is the sequence number of a callback or buffer. In a call, `graph` is the graph from which an instantiated graph
 * is updated. `handle` is the address of the instantiated graph that a call or callback uses. Pointers in a buffer are
 * addresses in the process, so the recorder also writes the names to which they point. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Lock that a thread holds while it writes a line, so that the lines are in the order of the callbacks. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static unsigned long n;
/* Correlation id of the API call that the thread is in, for callbacks inside this call; and the nesting depth of this
 * call. */
static __thread uint32_t inside;
static __thread int depth;

static long thread_id(void) { return (long)syscall(SYS_gettid); }

/* Returns CUPTI's id of a launch's stream; -1 if the call's stream is unknown, or if CUPTI returns an error. */
static long stream_of(uint32_t domain, const struct api_data *call)
{
    const char *name = call->name ? call->name : "";
    size_t offset;
    uint32_t id = 0;
    if (domain == DRIVER && !strncmp(name, "cuLaunchKernel", 14) && !strstr(name, "Ex"))
        offset = 40;
    else if (domain == RUNTIME && strstr(name, "cudaLaunchKernel") && !strstr(name, "Ex"))
        offset = 48;
    else if (strstr(name, "GraphLaunch"))
        offset = 8;
    else
        return -1;
    void *stream;
    memcpy(&stream, (const char *)call->params + offset, sizeof stream);
    if (!cupti.GetStreamIdEx || cupti.GetStreamIdEx(call->context, stream, strstr(name, "_pts") != NULL, &id) != 0)
        return -1;
    return (long)id;
}

/* Returns the address of a call's instantiated graph, which is the call's first argument. */
static unsigned long long handle_of(const struct api_data *call)
{
    const char *name = call->name ? call->name : "";
    uint64_t handle = 0;
    if (call->params && (strstr(name, "GraphLaunch") || strstr(name, "GraphExecUpdate") || strstr(name, "GraphExecDestroy")))
        memcpy(&handle, call->params, sizeof handle);
    return handle;
}

/* Returns the id of the graph from which a call updates an instantiated graph. This graph is the call's second
 * argument. */
static uint32_t source_of(const struct api_data *call)
{
    uint32_t graph = 0;
    void *source = NULL;
    if (call->params && call->name && strstr(call->name, "GraphExecUpdate"))
        memcpy(&source, (const char *)call->params + sizeof source, sizeof source);
    if (source && cupti.GetGraphId)
        cupti.GetGraphId(source, &graph);
    return graph;
}

static void record_call(uint32_t domain, uint32_t id, const struct api_data *call)
{
    uint32_t context = 0;
    char result[16] = "null";
    api_seen = 1;
    const int known = cupti.GetContextId && call->context ? cupti.GetContextId(call->context, &context) : -1;
    const long stream = stream_of(domain, call);
    if (call->site == EXIT && call->result)
        snprintf(result, sizeof result, "%d", (int)*call->result);
    pthread_mutex_lock(&order);
    say("{\"n\":%lu,\"call\":\"%s\",\"domain\":%u,\"id\":%u,\"name\":\"%s\",\"corr\":%u,\"thread\":%ld,\"symbol\":\"%s\","
        "\"context\":%u,\"context_result\":%d,\"stream\":%ld,\"slot\":%llu,\"handle\":%llu,\"graph\":%u,\"result\":%s}",
        ++n, call->site == ENTER ? "enter" : "exit", domain, id, call->name ? call->name : "", call->correlation,
        thread_id(), call->symbol ? call->symbol : "", context, known, stream,
        (unsigned long long)(call->slot ? *call->slot : 0), handle_of(call), source_of(call), result);
    pthread_mutex_unlock(&order);
    if (call->slot && call->site == ENTER)
        *call->slot = call->correlation;
    depth += call->site == ENTER ? 1 : -1;
    inside = depth > 0 ? call->correlation : 0;
}

enum {
    FIRST_OF_GRAPHS = 9,
    GRAPH_CLONED = 11,
    GRAPH_EXEC_FIRST = 17,
    GRAPH_EXEC_CREATED = 18,
    GRAPH_NODE_CLONED = 20,
    LAST_OF_GRAPHS = 23
};

static void record_resource(uint32_t id, const struct resource_data *data)
{
    uint32_t graph = 0, exec = 0;
    uint64_t node = 0, original = 0, handle = 0;
    const struct graph_data *of = data->descriptor;
    const int is_graph = id >= FIRST_OF_GRAPHS && id <= LAST_OF_GRAPHS && id != 21;
    if (is_graph && of) {
        const int has_node = (id >= 12 && id <= 16) || id == GRAPH_NODE_CLONED || id >= 22;
        const int is_exec = id >= GRAPH_EXEC_FIRST && id < GRAPH_NODE_CLONED;
        if (of->graph && cupti.GetGraphId && !is_exec)
            cupti.GetGraphId(of->graph, &graph);
        if (is_exec)
            handle = (uintptr_t)of->exec;
        if (has_node && of->node && cupti.GetGraphNodeId)
            cupti.GetGraphNodeId(of->node, &node);
        if (id == GRAPH_NODE_CLONED && of->original_node && cupti.GetGraphNodeId)
            cupti.GetGraphNodeId(of->original_node, &original);
        if (id == GRAPH_CLONED && of->original_graph && cupti.GetGraphId) {
            uint32_t from = 0;
            cupti.GetGraphId(of->original_graph, &from);
            original = from;
        }
        if (id == GRAPH_EXEC_CREATED && of->exec && cupti.GetGraphExecId)
            cupti.GetGraphExecId(of->exec, &exec);
    }
    pthread_mutex_lock(&order);
    say("{\"n\":%lu,\"resource\":%u,\"thread\":%ld,\"corr\":%u,\"graph\":%u,\"node\":%llu,\"original\":%llu,\"exec\":%u,\"handle\":%llu}",
        ++n, id, thread_id(), inside, graph, (unsigned long long)node, (unsigned long long)original, exec,
        (unsigned long long)handle);
    pthread_mutex_unlock(&order);
}

static void callback(void *user, uint32_t domain, uint32_t id, const void *data)
{
    (void)user;
    if (domain == DRIVER || domain == RUNTIME) {
        record_call(domain, id, data);
    } else if (domain == RESOURCE) {
        record_resource(id, data);
    } else {
        pthread_mutex_lock(&order);
        say("{\"n\":%lu,\"%s\":%u,\"thread\":%ld,\"corr\":%u}", ++n, domain == STATE ? "state" : "wait", id, thread_id(), inside);
        pthread_mutex_unlock(&order);
    }
}

/* ---- Buffers. CUPTI returns one buffer at a time, on its worker thread or, during a flush, on the probe's thread.
 * ---- */

enum { MOST_RECORDS = 65536 };
static pthread_mutex_t one_buffer = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *current;
static size_t current_size, current_valid;
static uint32_t at[MOST_RECORDS];
static int records;

static void begin_buffer(uint8_t *buffer, size_t size, size_t valid)
{
    pthread_mutex_lock(&one_buffer);
    current = buffer, current_size = size, current_valid = valid, records = 0;
}

static void note_record(uint8_t *buffer, uint8_t *record)
{
    if (records < MOST_RECORDS)
        at[records++] = (uint32_t)(record - buffer);
}

static void end_buffer(void)
{
    static unsigned long number;
    char thread[32] = "", *line = NULL;
    size_t length = 0;
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    FILE *text = open_memstream(&line, &length);
    if (text) {
        fputs("\"at\":[", text);
        for (int i = 0; i < records; i++)
            fprintf(text, "%s%u", i ? "," : "", at[i]);
        fputs("],\"names\":[", text);
        for (int i = 0; i < records; i++)
            fprintf(text, "%s\"%s\"", i ? "," : "", u32_at(current + at[i], 0) == KIND_KERNEL ? kernel_name(current + at[i]) : "");
        fputs("],\"hex\":\"", text);
        for (size_t i = 0; i < current_valid; i++)
            fprintf(text, "%02x", current[i]);
        fputs("\"}", text);
        fclose(text);
        pthread_mutex_lock(&order);
        say("{\"n\":%lu,\"buffer\":%lu,\"thread\":%ld,\"thread_name\":\"%s\",\"size\":%zu,\"valid\":%zu,%s", ++n, ++number,
            thread_id(), thread, current_size, current_valid, line);
        pthread_mutex_unlock(&order);
        free(line);
    }
    pthread_mutex_unlock(&one_buffer);
}

static void at_exit(void)
{
    size_t dropped = 0;
    const int flushed = flush_all();
    if (api_seen)
        cupti.ActivityGetNumDroppedRecords(NULL, 0, &dropped);
    pthread_mutex_lock(&order);
    say("{\"n\":%lu,\"flush\":%d,\"dropped\":%zu}", ++n, flushed, dropped);
    pthread_mutex_unlock(&order);
}

void start_recorder(void)
{
    static const uint32_t resources[] = {1, 2, 3, 4, 9, 10, 11, 12, 13, 14, 17, 18, 19, 20, 22, 23, 0};
    const uint32_t kinds[] = {KIND_KERNEL, KIND_COPY, KIND_SET, KIND_PEER_COPY, KIND_OVERHEAD, 0};
    uint32_t version = 0;
    cupti.GetVersion(&version);
    say("{\"n\":0,\"recording\":1,\"version\":%u,\"program\":\"%s\"}", version, program_invocation_short_name);
    if (!subscribe(callback))
        return;
    read_kinds(kinds, (struct reader){begin_buffer, note_record, end_buffer});
    for (uint32_t domain = DRIVER; domain <= RUNTIME; domain++) {
        enable_names(domain, LAUNCHES);
        enable_names(domain, COPIES);
        enable_names(domain, GRAPHS);
        enable_names(domain, WAITS);
    }
    for (const uint32_t *id = resources; *id; id++)
        cupti.EnableCallback(1, subscriber, RESOURCE, *id); /* older releases do not know newer ids */
    cupti.EnableCallback(1, subscriber, STATE, 1);
    atexit(at_exit);
}
