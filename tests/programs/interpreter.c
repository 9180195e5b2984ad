/* A fake CPython interpreter that evaluates no code. The fake interpreter has the data structures that gpuflame reads
 * in real interpreters of a few versions: frames of functions, calls of the evaluator, and a description of their
 * layout. Tests use it for two purposes. Some tests count instructions, which is impossible with a real interpreter,
 * because it starts up and collects garbage. Other tests imitate versions that have not been released.
 *
 * VERSION and THREADS (1: without the global lock) are the version and the build that this interpreter claims to be.
 * The layout of the interpreter's data is that of 3.9, 3.11 or 3.13: the latest of these versions that is not newer
 * than VERSION. With COLD, every other call of the evaluator comes from a part of the evaluator that the compiler moved
 * to another address (3.9). ELSEWHERE is the number of an evaluation. Starting with this evaluation, there is one more
 * frame, and frames claim to be at an address outside all calls of the evaluator (3.9: there are twice as many frames).
 * With SLOW, the loader needs 0.3 s to relocate this library. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef VERSION
#define VERSION 0x030d00f0
#endif
#ifndef ELSEWHERE
#define ELSEWHERE 1000000
#endif
#ifndef THREADS
#define THREADS 0
#endif

#define FUNCTIONS 16
#define FILES 4
#define IN_EVALUATOR 3 /* owner value of a frame that the evaluator stores on the C stack */

struct object {
    uint64_t references;
    const void *type;
};

struct text {
    struct object head;
    uint64_t length;
    uint64_t hash;
    uint32_t state;
#if VERSION < 0x030c0000
    uint64_t wide;
#endif
    char letters[92];
};

struct bytes {
    struct object head;
    uint64_t length;
    uint64_t hash;
    char bytes[48];
};

#if VERSION < 0x030b0000
struct code {
    struct object head;
    uint32_t unread[6];
    uint32_t first_line;
    uint64_t others[7];
    const struct text *file, *name;
    const struct bytes *lines;
    uint64_t last[12];
};

/* A frame as a Python object. */
struct frame {
    struct object head;
    uint64_t length;
    struct frame *previous;
    struct code *code;
    uint64_t unread[8];
    int32_t position, line;
    uint64_t last;
};
#elif VERSION < 0x030d0000
struct code {
    struct object head;
    uint64_t unread[7];
    uint32_t first_line;
    uint32_t more[9];
    const struct text *file, *bare_name, *name;
    const struct bytes *lines;
    uint64_t rest[3];
    uint32_t traceable, unused;
    uint64_t last;
    uint8_t instructions[56];
};

struct frame {
    uint64_t unread[4];
    struct code *code;
    uint64_t unused;
    struct frame *previous;
    uint8_t *position;
    uint32_t top;
    uint8_t is_entry, owner, last[2];
};

/* Data of one evaluator call, stored on the C stack. */
struct cframe {
    uint64_t tracing;
    struct frame *frame;
    struct cframe *previous;
};
#else
struct code {
    struct object head;
    uint64_t unread[6];
    uint32_t unused;
    uint32_t first_line;
    uint32_t more[5];
    uint32_t version;
    uint64_t others[2];
    const struct text *file, *bare_name, *name;
    const struct bytes *lines;
    uint64_t rest[5];
    uint64_t traceable;
    uint64_t last;
    uint8_t instructions[56];
};

struct frame {
    struct code *code;
    struct frame *previous;
    uint64_t unread[5];
    uint8_t *position;
    uint8_t unused[6];
    uint8_t owner;
    uint8_t last;
};
#endif

struct thread {
#if VERSION < 0x030b0000
    uint64_t unread[3];
    struct frame *frame;
#elif VERSION < 0x030d0000
    uint64_t unread[7];
    struct cframe *cframe;
#else
    uint64_t unread[9];
    struct frame *frame;
#endif
};

#if VERSION < 0x030b0000
_Static_assert(offsetof(struct code, first_line) == 40 && offsetof(struct code, file) == 104, "as in 3.9");
_Static_assert(offsetof(struct code, name) == 112 && offsetof(struct code, lines) == 120, "as in 3.9");
_Static_assert(offsetof(struct frame, code) == 32 && offsetof(struct frame, position) == 104, "as in 3.9");
#elif VERSION < 0x030d0000
_Static_assert(offsetof(struct code, first_line) == 72 && offsetof(struct code, file) == 112, "as in 3.11");
_Static_assert(offsetof(struct code, lines) == 136 && offsetof(struct code, traceable) == 168, "as in 3.11");
_Static_assert(offsetof(struct code, instructions) == 184, "as in 3.11");
_Static_assert(offsetof(struct frame, previous) == 48 && offsetof(struct frame, owner) == 69, "as in 3.11");
#else
_Static_assert(offsetof(struct code, version) == 92, "as in 3.13");
_Static_assert(offsetof(struct code, instructions) == 200, "as in 3.13");
_Static_assert(offsetof(struct frame, owner) == 70, "as in 3.13");
#endif

/* Indexes of two words in a type object: the type's size, and flags that show whether the interpreter was initialized.
 * In builds without the global lock, each object begins with two more words. */
#define SIZE (4 + 2 * THREADS)
#define FLAGS (21 + 2 * THREADS)
#define IS_READY (1 << 12)

uint64_t PyCode_Type[26] = {[SIZE] = 176}, PyUnicode_Type[26], PyBytes_Type[26], PyFrame_Type[26];
uint64_t Py_Version = VERSION;

#if VERSION < 0x030d0000
uint64_t _PyRuntime[128];
#else
/* The runtime's state. The word at offset 608 is the finalizing thread. */
uint64_t _PyRuntime[128] = {
    [1] = VERSION,
    [2] = THREADS,
    [4] = 608,
    [23] = offsetof(struct thread, frame),
    [29] = offsetof(struct frame, previous),
    [30] = offsetof(struct frame, code),
    [31] = offsetof(struct frame, position),
    [33] = offsetof(struct frame, owner),
    [35] = offsetof(struct code, file),
    [36] = offsetof(struct code, bare_name),
    [37] = offsetof(struct code, name),
    [38] = offsetof(struct code, lines),
    [39] = offsetof(struct code, first_line),
    [43] = offsetof(struct code, instructions),
    [45] = offsetof(struct object, type),
    [65] = offsetof(struct bytes, length),
    [66] = offsetof(struct bytes, bytes),
    [68] = offsetof(struct text, state),
    [69] = offsetof(struct text, length),
    [70] = offsetof(struct text, letters),
};
#endif

/* Source paths. Except for the first, they are as long as the paths of installed packages. */
static const char *const PATHS[FILES] = {
    "model.py",
    "/usr/lib/python3/site-packages/torch/nn/modules/module.py",
    "/usr/lib/python3/site-packages/transformers/models/gpt2/modeling_gpt2.py",
    "/usr/lib/python3/site-packages/torch/nn/modules/linear.py",
};
static struct text files[FILES], names[FUNCTIONS];
static struct bytes lines[FUNCTIONS];
static struct code codes[FUNCTIONS];
static __thread struct thread thread;

struct thread *PyGILState_GetThisThreadState(void)
{
    return &thread;
}

#ifdef SLOW
/* The loader calls this function to resolve `slow`, before it relocates the symbols that the functions above use. At
 * this time, this function cannot call other libraries, so it makes a system call itself. */
static int (*resolve(void))(void)
{
    static const int64_t duration[2] = {0, 300 * 1000 * 1000};
    int64_t result = 35; /* nanosleep */
    __asm__ volatile("syscall" : "+a"(result) : "D"(duration), "S"(0) : "rcx", "r11", "memory");
    return 0;
}

int slow(void) __attribute__((ifunc("resolve")));
int (*const relocated)(void) = slow;
#endif

static struct text text(const char *letters, uint64_t hash)
{
    struct text text = {
        .head = {1, PyUnicode_Type}, .length = strlen(letters), .hash = hash, .state = 1 << 2 | 1 << 5 | 1 << 6};
    strcpy(text.letters, letters);
    return text;
}

__attribute__((constructor)) static void make(void)
{
#if VERSION >= 0x030d0000
    memcpy(_PyRuntime, "xdebugpy", 8);
#endif
    for (int at = 0; at < FILES; at++)
        files[at] = text(PATHS[at], UINT64_MAX);
    for (int at = 0; at < FUNCTIONS; at++) {
        names[at] = text("function_x", 1000 + at);
        names[at].letters[9] = 'a' + at;
        lines[at] = (struct bytes){{1, PyBytes_Type}, 4, UINT64_MAX, {(char)0x80, 0, (char)0xd8, 1}};
        codes[at] = (struct code){.head = {1, PyCode_Type}, .first_line = 10 * (at + 1)};
#if VERSION >= 0x030d0000
        codes[at].version = 100 + at;
#endif
        codes[at].file = at < 9 ? &files[0] : &files[at % FILES];
        codes[at].name = &names[at];
        codes[at].lines = &lines[at];
    }
    PyCode_Type[FLAGS] |= IS_READY;
}

struct job {
    void (*then)(void *);
    void *with;
};

static struct code *code_of(int frames)
{
    return &codes[frames % FUNCTIONS];
}

/* Number of calls of the evaluator so far. */
static int evaluations;

#ifdef COLD
static __attribute__((cold, noinline)) void seldom(void)
{
    __asm__ volatile("" ::: "memory");
}
#endif

#if VERSION < 0x030b0000
/* In this version of Python, each call of the evaluator runs one frame. */
__attribute__((noinline)) int _PyEval_EvalFrameDefault(int frames, const struct job *job)
{
    struct frame held = {{1, PyFrame_Type}, .previous = thread.frame, .code = code_of(frames), .position = 2};
    static struct frame others[FUNCTIONS];
    if (evaluations >= ELSEWHERE) {
        others[frames] = held;
        held.previous = &others[frames];
    }
    struct frame *before = thread.frame;
    thread.frame = &held;
#ifdef COLD
    /* The compiler considers this code cold and moves it to another address. */
    if (frames % 2 == 0) {
        seldom();
        frames = _PyEval_EvalFrameDefault(frames - 1, job) + 1;
        __asm__ volatile("# cold" ::: "memory");
    } else
#endif
    if (frames > 1)
        frames = _PyEval_EvalFrameDefault(frames - 1, job) + 1;
    else
        job->then(job->with);
    thread.frame = before;
    __asm__ volatile("" ::: "memory");
    return frames + 1;
}
#else
/* In this version of Python, each call of the evaluator runs three frames. */
__attribute__((noinline)) int _PyEval_EvalFrameDefault(int frames, const struct job *job)
{
    struct frame held[3];
#if VERSION < 0x030d0000
    struct cframe *around = thread.cframe;
    static struct cframe others[FUNCTIONS];
    struct cframe mine, *call = evaluations >= ELSEWHERE ? &others[frames] : &mine;
    *call = (struct cframe){.previous = around};
    struct frame *before = around ? around->frame : 0;
#else
    static struct frame others[FUNCTIONS];
    struct frame mine, *shim = evaluations >= ELSEWHERE ? &others[frames] : &mine;
    *shim = (struct frame){.previous = thread.frame, .owner = IN_EVALUATOR};
    struct frame *before = shim;
#endif
    for (int at = 0; at < 3 && frames > 0; at++, frames--) {
        struct code *code = code_of(frames);
        held[at] = (struct frame){.code = code, .previous = before, .position = code->instructions + 2};
#if VERSION < 0x030d0000
        held[at].is_entry = at == 0;
#endif
        before = &held[at];
    }
#if VERSION < 0x030d0000
    call->frame = before;
    thread.cframe = call;
#else
    thread.frame = before;
#endif
    if (frames > 0)
        frames = _PyEval_EvalFrameDefault(frames, job) + 1;
    else
        job->then(job->with);
#if VERSION < 0x030d0000
    thread.cframe = around;
#else
    thread.frame = shim->previous;
#endif
    __asm__ volatile("" ::: "memory");
    return frames + 1;
}
#endif

/* Fills the calling thread's interpreter state as if the thread were just being created: each word is `word`, or the
 * state's own address. */
void fill_state(uint64_t word, int is_own_address)
{
    uint64_t *words = (uint64_t *)&thread;
    for (size_t at = 0; at < sizeof thread / sizeof *words; at++)
        words[at] = is_own_address ? (uint64_t)(uintptr_t)words : word;
}

/* Calls `then` from a stack of `frames` Python frames. */
int evaluate(int frames, void (*then)(void *), void *with)
{
    struct job job = {then, with};
    return _PyEval_EvalFrameDefault(frames + (++evaluations >= ELSEWHERE), &job);
}
