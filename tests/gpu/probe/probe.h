/* Declarations that the probe's files share: CUPTI's functions, which are looked up at run time, and the few CUPTI
 * structs that the probe reads. The declarations are our own, written from the documented interface. The structs have
 * only fields whose offsets are the same in every release from 11.8 to 13.5. Functions that a release lacks are
 * NULL. */
#ifndef PROBE_H
#define PROBE_H

#include <stddef.h>
#include <stdint.h>

enum { DRIVER = 1, RUNTIME = 2, RESOURCE = 3, SYNCHRONIZE = 4, STATE = 6 };
enum { ENTER = 0, EXIT = 1 };
enum { KIND_COPY = 1, KIND_SET = 2, KIND_DRIVER = 4, KIND_RUNTIME = 5, KIND_KERNEL = 10, KIND_OVERHEAD = 17, KIND_PEER_COPY = 22 };

/* CUpti_CallbackData, the argument of an API callback. */
struct api_data {
    uint32_t site;
    const char *name;
    const void *params;
    const uint32_t *result;
    const char *symbol;
    void *context;
    uint32_t context_uid;
    uint64_t *slot;
    uint32_t correlation;
};

/* CUpti_ResourceData, the argument of a resource callback. For graphs, its descriptor points to a CUpti_GraphData. */
struct resource_data {
    void *context, *stream, *descriptor;
};
struct graph_data {
    void *graph, *original_graph, *node, *original_node;
    uint32_t node_type;
    void *dependency, *exec;
};

typedef void (*callback_function)(void *user, uint32_t domain, uint32_t id, const void *data);
typedef void (*requested_function)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*completed_function)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

#define CUPTI_FUNCTIONS(X)                                                   \
    X(GetVersion, (uint32_t *))                                              \
    X(Subscribe, (void **, callback_function, void *))                       \
    X(EnableCallback, (uint32_t, void *, uint32_t, uint32_t))                \
    X(GetCallbackName, (uint32_t, uint32_t, const char **))                  \
    X(ActivityRegisterCallbacks, (requested_function, completed_function))   \
    X(ActivityEnable, (uint32_t))                                            \
    X(ActivityFlushAll, (uint32_t))                                          \
    X(ActivityGetNextRecord, (uint8_t *, size_t, uint8_t **))                \
    X(ActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))            \
    X(GetTimestamp, (uint64_t *))                                            \
    X(GetContextId, (void *, uint32_t *))                                    \
    X(GetStreamIdEx, (void *, void *, uint8_t, uint32_t *))                  \
    X(GetGraphId, (void *, uint32_t *))                                      \
    X(GetGraphExecId, (void *, uint32_t *))                                  \
    X(GetGraphNodeId, (void *, uint64_t *))

struct cupti {
#define X(name, parameters) int(*name) parameters;
    CUPTI_FUNCTIONS(X)
#undef X
};
extern struct cupti cupti;
extern void *subscriber;

/* Path at which libcupti was found; NULL if it was not found. */
extern const char *cupti_path;

/* Returns the environment variable PROBE_name, or `otherwise` if the variable is not set. */
const char *option(const char *name, const char *otherwise);

/* Writes a line of JSON to $PROBE_OUT; a lock keeps the lines of several threads apart. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Subscribes `callback` to CUPTI and writes a line with the result. */
int subscribe(callback_function callback);

/* Enables the callbacks in `domain` whose names contain one of `words` (an array that ends with NULL). */
int enable_names(uint32_t domain, const char *const *words);
extern const char *const LAUNCHES[], *const COPIES[], *const GRAPHS[], *const WAITS[];

/* Enables the activity kinds `kinds` (an array that ends with 0), with buffers of PROBE_BUFFER bytes. For each buffer
 * that CUPTI returns, the reader calls `before`, then `record` for each record in the buffer, then `after`. `before`
 * and `after` may be NULL. */
struct reader {
    void (*before)(uint8_t *buffer, size_t size, size_t valid);
    void (*record)(uint8_t *buffer, uint8_t *record);
    void (*after)(void);
};
void read_kinds(const uint32_t *kinds, struct reader reader);

/* Flushes all activity records if the probe has seen a CUDA call; otherwise returns -1. */
int flush_all(void);
extern int api_seen;

uint64_t now_ns(void);
uint32_t u32_at(const uint8_t *record, size_t offset);
uint64_t u64_at(const uint8_t *record, size_t offset);
const char *kernel_name(const uint8_t *record);
/* Returns the correlation id of the activity record of a kernel, copy or fill; 0 for other records. */
uint32_t correlation_of(const uint8_t *record);

/* Functions that start the probe's modes. $PROBE selects the mode, see probe.c. */
void start_cost(const char *level);
void start_witness(void);
void start_recorder(void);
void start_exit_order(void);
void start_drops(void);
void start_names(void);
void start_fork(void);

#endif
