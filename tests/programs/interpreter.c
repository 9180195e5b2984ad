/* A CPython 3.13 that evaluates nothing: frames of functions, calls of the evaluator, and the table that says where all of
 * it lies, as the real one has them. For counting instructions, which no interpreter that starts and collects garbage lets
 * one do, and for versions that nobody has released. A library.
 *
 * VERSION and THREADS (1: without the global lock) say what it says that it is. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef VERSION
#define VERSION 0x030d00f0
#endif
#ifndef THREADS
#define THREADS 0
#endif

#define FUNCTIONS 16
#define IN_EVALUATOR 3 /* who holds a frame: the evaluator keeps it on the C stack */

struct object {
    uint64_t references;
    const void *type;
};

struct text {
    struct object head;
    uint64_t length;
    uint64_t hash;
    uint32_t state;
    char letters[36];
};

struct bytes {
    struct object head;
    uint64_t length;
    uint64_t hash;
    char bytes[16];
};

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

struct thread {
    uint64_t unread[9];
    struct frame *frame;
};

_Static_assert(offsetof(struct code, version) == 92, "as in 3.13");
_Static_assert(offsetof(struct code, instructions) == 200, "as in 3.13");
_Static_assert(offsetof(struct frame, owner) == 70, "as in 3.13");

char PyCode_Type[64], PyUnicode_Type[64], PyBytes_Type[64], PyFrame_Type[64];
uint64_t Py_Version = VERSION;

/* The finalizing thread is the word at 608. */
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

static struct text file = {{1, PyUnicode_Type}, 8, UINT64_MAX, 1 << 2 | 1 << 5 | 1 << 6, "model.py"};
static struct bytes lines = {{1, PyBytes_Type}, 4, UINT64_MAX, {(char)0x80, 0, (char)0xd8, 1}};
static struct text names[FUNCTIONS];
static struct code codes[FUNCTIONS];
static __thread struct thread thread;

struct thread *PyGILState_GetThisThreadState(void)
{
    return &thread;
}

__attribute__((constructor)) static void make(void)
{
    memcpy(_PyRuntime, "xdebugpy", 8);
    for (int at = 0; at < FUNCTIONS; at++) {
        names[at] = (struct text){{1, PyUnicode_Type}, 10, 1000 + at, 1 << 2 | 1 << 5 | 1 << 6, "function_x"};
        names[at].letters[9] = 'a' + at;
        codes[at] = (struct code){.head = {1, PyCode_Type}, .first_line = 10 * (at + 1), .version = 100 + at};
        codes[at].file = &file;
        codes[at].name = codes[at].bare_name = &names[at];
        codes[at].lines = &lines;
    }
}

struct job {
    void (*then)(void *);
    void *with;
};

/* Each call of the evaluator runs three frames. */
__attribute__((noinline)) int _PyEval_EvalFrameDefault(int frames, const struct job *job)
{
    struct frame shim = {.previous = thread.frame, .owner = IN_EVALUATOR};
    struct frame held[3];
    struct frame *before = &shim;
    for (int at = 0; at < 3 && frames > 0; at++, frames--) {
        struct code *code = &codes[frames % FUNCTIONS];
        held[at] = (struct frame){.code = code, .previous = before, .position = code->instructions + 2};
        before = &held[at];
    }
    thread.frame = before;
    if (frames > 0)
        frames = _PyEval_EvalFrameDefault(frames, job) + 1;
    else
        job->then(job->with);
    thread.frame = shim.previous;
    __asm__ volatile("" ::: "memory");
    return frames + 1;
}

/* Calls `then` from so many frames. */
int evaluate(int frames, void (*then)(void *), void *with)
{
    struct job job = {then, with};
    return _PyEval_EvalFrameDefault(frames, &job);
}
