/* A plugin that is a CUPTI client, for `passing.c` and `chaos.c`. The client's state is in a separate memory mapping,
 * which `client_goes` unmaps. Therefore any later call to the client faults, even if the plugin is still loaded. */
#include "cupti.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct state {
    unsigned requests, records, all;
    uint32_t kind;
} *state;

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    state->requests++;
    *size = 64 << 10;
    *buffer = malloc(*size);
    *most = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    int (*next)(uint8_t *, size_t, uint8_t **);
    uint8_t *record = NULL;
    (void)context, (void)stream, (void)size;
    *(void **)&next = cupti("cuptiActivityGetNextRecord");
    for (; !next(buffer, valid, &record); state->all++)
        state->records += !memcmp(record, &state->kind, sizeof state->kind);
    free(buffer);
}

static uint64_t clock_of_ours(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    state->requests++;
    return 3 * (time.tv_sec * 1000000000ull + time.tv_nsec);
}

static int switch_kind(const char *how)
{
    int (*set)(uint32_t);
    *(void **)&set = cupti(how);
    return set(state->kind);
}

static int register_functions(void)
{
    int (*set)(void *, void *);
    *(void **)&set = cupti("cuptiActivityRegisterCallbacks");
    return set((void *)requested, (void *)completed);
}

/* Starts the client. `how` selects the order of the client's calls:
 * - `functions`: registers its buffer functions, and then enables its activity kind;
 * - `kind`: enables its activity kind 20 ms before it registers its functions, as in CUPTI's samples;
 * - `clock`: registers only a clock. */
int client_comes(const char *how, uint32_t kind)
{
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED)
        return 30;
    state->kind = kind;
    if (!strcmp(how, "clock")) {
        int (*set)(void *);
        *(void **)&set = cupti("cuptiActivityRegisterTimestampCallback");
        return set((void *)clock_of_ours);
    }
    if (!strcmp(how, "functions"))
        return register_functions() ? 31 : switch_kind("cuptiActivityEnable");
    if (switch_kind("cuptiActivityEnable"))
        return 32;
    usleep(20000);
    return register_functions();
}

/* Disables the client's activity kind. */
int client_stops(void)
{
    return switch_kind("cuptiActivityDisable");
}

int client_flushes(void)
{
    int (*all)(uint32_t);
    *(void **)&all = cupti("cuptiActivityFlushAll");
    return all(0);
}

/* Returns the number of records that the client has received so far, of any kind. */
unsigned client_had(void)
{
    return state->all;
}

/* Unmaps the client's state. Returns the number of records of the client's activity kind. */
unsigned client_goes(void)
{
    unsigned records = state->records;
    if (munmap(state, sizeof *state))
        return -1;
    return records;
}
