// A stand-in for NCCL. The ranks are processes of one machine and meet in shared memory. Each collective or group of
// collectives is one kernel. A kernel begins when its stream is free. The kernel ends on all ranks at the same time:
// when its duration has passed since the last rank was ready. No data is moved. The simulation must know all times when
// work is submitted. So the launch call itself waits for the other ranks, whereas in real NCCL the kernel waits.
// Collectives that are captured into a graph wait for no rank, and last as long as their name states.
#include "launch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 16, SLOTS = 64, GROUP = 256 };
// ncclResult_t
enum { SUCCESS, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE };

// A slot of shared memory in which all ranks meet. A slot is used again after SLOTS meetings.
struct slot {
    atomic_ulong turn, ready, what;
    atomic_uint arrived, left;
    long words[RANKS][2];
};

// Messages from one rank to another: the number of offered and of awaited messages, and the times at which the stream
// of each rank was ready for them.
struct mail { atomic_ulong offered, awaited; atomic_ulong ready[2][SLOTS]; };

struct shared { atomic_uint members; struct slot slots[SLOTS]; struct mail mail[RANKS][RANKS]; };

struct id { char bytes[128]; };
struct comm {
    struct shared *shared;
    struct id id;
    int rank, count, device;
    unsigned long meetings;
    atomic_int error, is_aborted;
};

// Operations that a thread requests within an NCCL group.
enum kind { COLLECTIVE, SEND, RECEIVE };
struct order {
    struct comm *comm;
    void *stream;
    enum kind kind;
    char name[96];
    double bytes;
    unsigned long number;
    int peer, is_offered, result;
};
static __thread struct order group[GROUP];
static __thread int group_depth, group_count;
static __thread char last_error[160];

static unsigned long (*ready_of)(void *stream);
static void (*wait_by)(unsigned long (*end)(void *, unsigned long), void *argument);
static int (*is_capturing)(void *stream, int *state);
static int (*device_of_thread)(int *device), (*use_device)(int device);
static int (*allocate)(void **memory, size_t bytes), (*free_memory)(void *memory);

static void find(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *runtime = dlopen("libcudart.so.13", RTLD_NOW);
    if (!driver || !runtime) return;
    ready_of = dlsym(driver, "gpusim_ready");
    wait_by = dlsym(driver, "gpusim_meeting");
    is_capturing = dlsym(runtime, "cudaStreamIsCapturing");
    device_of_thread = dlsym(runtime, "cudaGetDevice");
    use_device = dlsym(runtime, "cudaSetDevice");
    allocate = dlsym(runtime, "cudaMalloc");
    free_memory = dlsym(runtime, "cudaFree");
}

static int fail(struct comm *comm, int code, const char *text) {
    int rank = comm ? comm->rank : -1;
    snprintf(last_error, sizeof last_error, "%s (rank %d)", text, rank);
    fprintf(stderr, "gpusim: NCCL: %s\n", last_error);
    if (comm) comm->error = code;
    return code;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// Waits until the counter `what` is at least `least`, or until the time limit.
static int await_least(struct comm *comm, void *what, int is_long, unsigned long least) {
    const char *limit = getenv("GPUSIM_NCCL_TIMEOUT");
    double until = seconds() + (limit ? atof(limit) : 60);
    for (int turn = 0;; turn++) {
        unsigned long now = is_long ? atomic_load((atomic_ulong *)what) : atomic_load((atomic_uint *)what);
        if (now >= least) return SUCCESS;
        if (comm->is_aborted) return comm->error = REMOTE;
        if (turn > 1000) {
            if (seconds() > until) return fail(comm, REMOTE, "another rank did not come");
            usleep(20);
        }
    }
}

static void at_least(atomic_ulong *sum, unsigned long value) {
    unsigned long now = *sum;
    while (now < value && !atomic_compare_exchange_weak(sum, &now, value));
}

// Announces in the slot that this rank has arrived, and publishes the rank's values.
static int arrive(struct comm *comm, unsigned long number, unsigned long ready, unsigned long what, const long words[2]) {
    struct slot *slot = &comm->shared->slots[number % SLOTS];
    int result = await_least(comm, &slot->turn, 1, number / SLOTS);
    if (result) return result;
    unsigned long none = 0;
    if (!atomic_compare_exchange_strong(&slot->what, &none, what) && none != what)
        return fail(comm, INVALID_USAGE, "ranks call different collectives, or of different sizes");
    if (words) memcpy(slot->words[comm->rank], words, sizeof slot->words[0]);
    at_least(&slot->ready, ready);
    slot->arrived++;
    return SUCCESS;
}

// Waits for the other ranks. Stores the time at which the last rank was ready, and the values that all ranks published.
static int meet(struct comm *comm, unsigned long number, unsigned long *ready, long words[RANKS][2]) {
    struct slot *slot = &comm->shared->slots[number % SLOTS];
    int result = await_least(comm, &slot->arrived, 0, comm->count);
    if (result) return result;
    *ready = slot->ready;
    if (words) memcpy(words, slot->words, sizeof slot->words);
    if (++slot->left == (unsigned)comm->count) {
        slot->ready = slot->what = 0;
        slot->arrived = slot->left = 0;
        slot->turn++;
    }
    return SUCCESS;
}

static int join(struct comm **out, int count, const struct id *id, int rank) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    if (!ready_of || count < 1 || count > RANKS || rank < 0 || rank >= count)
        return fail(NULL, INVALID_ARGUMENT, "1 to 16 ranks are simulated");
    char path[64];
    snprintf(path, sizeof path, "/gpusim-nccl-%.32s", id->bytes);
    int file = shm_open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared))) return fail(NULL, SYSTEM, strerror(errno));
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    struct comm *comm = calloc(1, sizeof *comm);
    if (shared == MAP_FAILED || !comm) return fail(NULL, SYSTEM, "no memory");
    *comm = (struct comm){.shared = shared, .id = *id, .rank = rank, .count = count};
    device_of_thread(&comm->device);
    // The file of the shared memory is removed once all ranks have mapped it.
    if (++shared->members == (unsigned)count) shm_unlink(path);
    *out = comm;
    return SUCCESS;
}

// Returns the operation that represents a kernel. All similar operations of a communicator on a stream form one kernel,
// and the first operation represents the kernel.
static struct order *first_like(struct order *it) {
    struct order *before = group;
    while (before->comm != it->comm || before->stream != it->stream ||
           (before->kind == COLLECTIVE) != (it->kind == COLLECTIVE)) before++;
    return before;
}

#define EACH_LIKE(it, like) for (struct order *like = it; like < group + group_count; like++) if (first_like(like) == it)

static unsigned long hash(unsigned long sum, const char *text) {
    for (; *text; text++) sum = (sum ^ *text) * 0x100000001b3;
    return sum;
}

static struct mail *mail_of(struct order *it) {
    int is_sent = it->kind == SEND, rank = it->comm->rank;
    return &it->comm->shared->mail[is_sent ? rank : it->peer][is_sent ? it->peer : rank];
}

// Notifies the other ranks that the kernel of this rank can begin at the time `ready`.
static int offer(struct order *it, unsigned long ready) {
    unsigned long what = 0xcbf29ce484222325;
    EACH_LIKE(it, like) {
        what = hash(what, like->name) + (unsigned long)like->bytes;
        if (like->kind == COLLECTIVE) continue;
        atomic_ulong *mine = like->kind == SEND ? &mail_of(like)->offered : &mail_of(like)->awaited;
        like->number = *mine;
        mail_of(like)->ready[like->kind == SEND][like->number % SLOTS] = ready;
        ++*mine;
    }
    if (it->kind != COLLECTIVE) return SUCCESS;
    it->number = it->comm->meetings++;
    return arrive(it->comm, it->number, ready, what | 1, NULL);
}

// Waits until the other ranks have notified this one that their kernels can begin. Stores the latest time at which one
// of the kernels can begin.
static int await_others(struct order *it, unsigned long *ready) {
    if (it->kind == COLLECTIVE) return meet(it->comm, it->number, ready, NULL);
    int result = SUCCESS;
    EACH_LIKE(it, like) {
        struct mail *mail = mail_of(like);
        if (!result)
            result = await_least(like->comm, like->kind == SEND ? &mail->awaited : &mail->offered, 1, like->number + 1);
        unsigned long theirs = mail->ready[like->kind != SEND][like->number % SLOTS];
        if (theirs > *ready) *ready = theirs;
    }
    return result;
}

// Returns the duration of an operation: 5 us, plus the time in which each link of a ring transfers its bytes at 200
// GB/s.
static unsigned long duration(struct order *it) {
    double bytes = 0;
    EACH_LIKE(it, like) bytes += like->bytes;
    return 5000 + bytes / 200;
}

// Returns when a kernel that began at `start` ends.
static unsigned long end(void *argument, unsigned long start) {
    struct order *it = argument;
    unsigned long ready = start;
    if (!it->is_offered) it->result = offer(it, start);
    if (!it->result) it->result = await_others(it, &ready);
    return ready + duration(it);
}

static int is_captured(void *stream) {
    int state = 0;
    return !is_capturing(stream, &state) && state == 1;
}

static int run(struct order *it) {
    char symbol[160];
    struct dim grid = {16, 1, 1}, block = {512, 1, 1};
    int device = it->comm->device;
    device_of_thread(&device);
    if (device != it->comm->device) use_device(it->comm->device);
    snprintf(symbol, sizeof symbol, "_Z%zu%s24ncclDevKernelArgsStorageILm4096EE", strlen(it->name), it->name);
    if (!is_captured(it->stream)) wait_by(end, it);
    if (launch(symbol, grid, block, 0, it->stream) && !it->result)
        it->result = fail(it->comm, UNHANDLED_CUDA, "a kernel could not be launched");
    wait_by(NULL, NULL);
    if (device != it->comm->device) use_device(device);
    return it->result;
}

static int run_group(void) {
    int result = SUCCESS, is_of_several = 0;
    for (struct order *it = group; it < group + group_count; it++) is_of_several |= it->comm != group->comm;
    // One thread may drive several ranks. So the thread notifies the other ranks of all operations before it waits for
    // any operation.
    for (struct order *it = group; it < group + group_count && is_of_several && !result; it++) {
        if (first_like(it) != it || is_captured(it->stream)) continue;
        it->is_offered = 1;
        result = offer(it, ready_of(it->stream));
    }
    for (struct order *it = group; it < group + group_count && !result; it++)
        if (first_like(it) == it) result = run(it);
    group_count = 0;
    return result;
}

static int ask(struct comm *comm, void *stream, enum kind kind, const char *name, double bytes, int peer) {
    if (!comm || peer < 0 || peer >= comm->count) return fail(comm, INVALID_ARGUMENT, "no such rank");
    if (group_count == GROUP) return fail(comm, INVALID_USAGE, "more than 256 calls in a group are not simulated");
    struct order *it = &group[group_count++];
    *it = (struct order){.comm = comm, .stream = stream, .kind = kind, .bytes = bytes, .peer = peer};
    snprintf(it->name, sizeof it->name, "ncclDevKernel_%s", name);
    return group_depth ? SUCCESS : run_group();
}

static double bytes_of(size_t count, int type) {
    static const char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (double)count * (type >= 0 && type < 12 ? sizes[type] : 4);
}

static int reduce(struct comm *comm, void *stream, const char *what, size_t count, int type, int how, double share) {
    static const char *types[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
    static const char *hows[] = {"Sum", "Prod", "MinMax", "MinMax"};
    char name[80];
    snprintf(name, sizeof name, "%s_%s_%s_RING_LL", what, how >= 0 && how < 4 ? hows[how] : "PreMulSum",
             type >= 0 && type < 12 ? types[type] : "f32");
    return ask(comm, stream, COLLECTIVE, name, bytes_of(count, type) * share, 0);
}

#define FUNCTION(name, ...) int name(__VA_ARGS__)
#define RING(comm) ((comm)->count - 1.0) / (comm)->count

FUNCTION(ncclGetVersion, int *version) { *version = 22809; return SUCCESS; }
FUNCTION(ncclGetUniqueId, struct id *out) {
    unsigned char random[16] = {0};
    int file = open("/dev/urandom", O_RDONLY);
    if (file < 0 || read(file, random, sizeof random) != sizeof random) return fail(NULL, SYSTEM, "/dev/urandom");
    close(file);
    memset(out, 0, sizeof *out);
    for (int at = 0; at < 16; at++) snprintf(out->bytes + 2 * at, 3, "%02x", random[at]);
    return SUCCESS;
}
FUNCTION(ncclCommInitRank, struct comm **out, int count, struct id id, int rank) { return join(out, count, &id, rank); }
FUNCTION(ncclCommInitRankConfig, struct comm **out, int count, struct id id, int rank, void *config) {
    return join(out, count, &id, rank);
}
FUNCTION(ncclCommInitRankScalable, struct comm **out, int count, int rank, int ids, struct id *id, void *config) {
    return join(out, count, id, rank);
}
FUNCTION(ncclCommInitAll, struct comm **out, int count, const int *devices) {
    struct id id;
    int result = ncclGetUniqueId(&id);
    for (int rank = 0; rank < count && !result; rank++) {
        result = join(&out[rank], count, &id, rank);
        if (!result) out[rank]->device = devices ? devices[rank] : rank;
    }
    return result;
}
// The new communicator has the ranks of the same color, ordered by key and then by old rank. A rank with a negative color gets
// no communicator.
FUNCTION(ncclCommSplit, struct comm *comm, int color, int key, struct comm **out, void *config) {
    long words[RANKS][2], mine[2] = {color, key};
    unsigned long number = comm->meetings++, ready;
    int result = arrive(comm, number, 0, 1, mine);
    if (!result) result = meet(comm, number, &ready, words);
    *out = NULL;
    if (result || color < 0) return result;
    int count = 0, rank = 0;
    for (int other = 0; other < comm->count; other++) {
        if (words[other][0] != color) continue;
        count++;
        rank += words[other][1] < key || (words[other][1] == key && other < comm->rank);
    }
    struct id id = {{0}};
    unsigned long made = hash(number * 31 + color, comm->id.bytes);
    snprintf(id.bytes, sizeof id.bytes, "%016lx%.16s", made, comm->id.bytes);
    return join(out, count, &id, rank);
}
FUNCTION(ncclCommFinalize, struct comm *comm) { return SUCCESS; }
FUNCTION(ncclCommDestroy, struct comm *comm) {
    munmap(comm->shared, sizeof *comm->shared);
    free(comm);
    return SUCCESS;
}
// Another thread may be waiting in this communicator, so only a flag is set.
FUNCTION(ncclCommAbort, struct comm *comm) { comm->is_aborted = 1; return SUCCESS; }
FUNCTION(ncclCommRevoke, struct comm *comm) { comm->is_aborted = 1; return SUCCESS; }
FUNCTION(ncclCommCount, struct comm *comm, int *count) { *count = comm->count; return SUCCESS; }
FUNCTION(ncclCommUserRank, struct comm *comm, int *rank) { *rank = comm->rank; return SUCCESS; }
FUNCTION(ncclCommCuDevice, struct comm *comm, int *device) { *device = comm->device; return SUCCESS; }
FUNCTION(ncclCommGetAsyncError, struct comm *comm, int *error) { *error = comm->error; return SUCCESS; }
FUNCTION(ncclCommRegister, struct comm *comm, void *memory, size_t bytes, void **handle) { *handle = memory; return SUCCESS; }
FUNCTION(ncclCommDeregister, struct comm *comm, void *handle) { return SUCCESS; }
FUNCTION(ncclMemAlloc, void **memory, size_t bytes) { return allocate(memory, bytes) ? UNHANDLED_CUDA : SUCCESS; }
FUNCTION(ncclMemFree, void *memory) { return free_memory(memory) ? UNHANDLED_CUDA : SUCCESS; }
FUNCTION(ncclRedOpCreatePreMulSum, int *how, void *scalar, int type, int where, struct comm *comm) { *how = 5; return SUCCESS; }
FUNCTION(ncclRedOpDestroy, int how, struct comm *comm) { return SUCCESS; }

FUNCTION(ncclGroupStart, void) { group_depth++; return SUCCESS; }
FUNCTION(ncclGroupEnd, void) {
    if (group_depth == 0) return fail(NULL, INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    return --group_depth ? SUCCESS : run_group();
}

FUNCTION(ncclAllReduce, void *from, void *to, size_t count, int type, int how, struct comm *comm, void *stream) {
    return reduce(comm, stream, "AllReduce", count, type, how, 2 * RING(comm));
}
FUNCTION(ncclReduceScatter, void *from, void *to, size_t count, int type, int how, struct comm *comm, void *stream) {
    return reduce(comm, stream, "ReduceScatter", count, type, how, comm->count - 1);
}
FUNCTION(ncclReduce, void *from, void *to, size_t count, int type, int how, int root, struct comm *comm, void *stream) {
    return reduce(comm, stream, "Reduce", count, type, how, 1);
}
FUNCTION(ncclAllGather, void *from, void *to, size_t count, int type, struct comm *comm, void *stream) {
    return ask(comm, stream, COLLECTIVE, "AllGather_RING_LL", bytes_of(count, type) * (comm->count - 1), 0);
}
FUNCTION(ncclBroadcast, void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream) {
    return ask(comm, stream, COLLECTIVE, "Broadcast_RING_LL", bytes_of(count, type), 0);
}
FUNCTION(ncclBcast, void *memory, size_t count, int type, int root, struct comm *comm, void *stream) {
    return ask(comm, stream, COLLECTIVE, "Broadcast_RING_LL", bytes_of(count, type), 0);
}
FUNCTION(ncclGather, void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream) {
    return ask(comm, stream, COLLECTIVE, "SendRecv", bytes_of(count, type) * (comm->count - 1), 0);
}
FUNCTION(ncclAlltoAll, void *from, void *to, size_t count, int type, struct comm *comm, void *stream) {
    return ask(comm, stream, COLLECTIVE, "SendRecv", bytes_of(count, type) * (comm->count - 1), 0);
}
FUNCTION(ncclSend, void *from, size_t count, int type, int peer, struct comm *comm, void *stream) {
    return ask(comm, stream, SEND, "SendRecv", bytes_of(count, type), peer);
}
FUNCTION(ncclRecv, void *to, size_t count, int type, int peer, struct comm *comm, void *stream) {
    return ask(comm, stream, RECEIVE, "SendRecv", bytes_of(count, type), peer);
}

const char *ncclGetErrorString(int code) {
    static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                  "invalid argument", "invalid usage", "remote process exited or there was a network error"};
    return code >= 0 && code < 7 ? texts[code] : "unknown result code";
}
const char *ncclGetLastError(struct comm *comm) { return last_error; }
