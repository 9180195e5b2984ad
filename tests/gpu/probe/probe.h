/* Declarations that the probe's files share: CUPTI's functions, found at run time, and the few of its structs that
 * we read. The declarations are our own, after the documented interface. The declarations have only fields that are
 * at the same place in every release from 11.8 to 13.5. Functions that a release lacks are NULL. */
#ifndef PROBE_H
#define PROBE_H

#include <stddef.h>
#include <stdint.h>

enum { DRIVER = 1, RUNTIME = 2, RESOURCE = 3, SYNCHRONIZE = 4, STATE = 6 };
enum { ENTER = 0, EXIT = 1 };
enum { KIND_COPY = 1, KIND_SET = 2, KIND_DRIVER = 4, KIND_RUNTIME = 5, KIND_KERNEL = 10, KIND_OVERHEAD = 17, KIND_PEER_COPY = 22 };

/* Argument of an API callback: CUpti_CallbackData. */
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

/* Argument of a resource callback: CUpti_ResourceData, and for graphs CUpti_GraphData behind it. */
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

/* Returns $PROBE_name, or `otherwise` if it is not set. */
const char *option(const char *name, const char *otherwise);

/* Writes a line of JSON to $PROBE_OUT; lines of several threads do not mix. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Subscribes `callback` and writes a line about the result. */
int subscribe(callback_function callback);

/* Enables the callbacks of `domain` whose name contains one of `words` (ended by NULL). */
int enable_names(uint32_t domain, const char *const *words);
extern const char *const LAUNCHES[], *const COPIES[], *const GRAPHS[], *const WAITS[];

/* Asks for records of `kinds` (ended by 0), in buffers of PROBE_BUFFER bytes. For each buffer that comes back, `before` is
 * called, then `record` for each of its records, then `after`. `before` and `after` may be NULL. */
struct reader {
    void (*before)(uint8_t *buffer, size_t size, size_t valid);
    void (*record)(uint8_t *buffer, uint8_t *record);
    void (*after)(void);
};
void read_kinds(const uint32_t *kinds, struct reader reader);

/* Flushes all records, if a CUDA call was seen; returns -1 if none was. */
int flush_all(void);
extern int api_seen;

uint64_t now_ns(void);
uint32_t u32_at(const uint8_t *record, size_t offset);
uint64_t u64_at(const uint8_t *record, size_t offset);
const char *kernel_name(const uint8_t *record);
/* Correlation id of a record of a kernel, copy or fill; 0 for other records. */
uint32_t correlation_of(const uint8_t *record);

/* The modes: what the probe does is chosen by $PROBE, see probe.c. */
void start_cost(const char *level);
void start_witness(void);
void start_recorder(void);
void start_exit_order(void);
void start_drops(void);
void start_names(void);
void start_fork(void);

#endif
