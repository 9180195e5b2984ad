/* gpuflame: GPU flame graphs. This header declares the C interface, and small C++ classes that wrap it. The header
 * needs C99 or C++11, or later versions.
 *
 * A program can link the library (-lgpuflame), or the library can be injected into the program (CUDA_INJECTION64_PATH
 * or LD_PRELOAD). Even if the library is both linked and injected, in any order, the process has only one session.
 * GPUFLAME_* environment variables configure recording. The outputs are written when the process exits.
 *
 * If GPUFLAME_HEADER_ONLY is defined before this header is included, nothing is linked (an old glibc needs -ldl). If
 * libgpuflame was injected into the process, the functions of this header find it. If the library is absent, the
 * functions do nothing, return GPUFLAME_ABSENT, and cost about 30 ns per call. In header-only mode, a library can
 * define ranges and windows without adding a dependency for its users. The CUDA driver loads gpuflame when CUDA starts.
 * Before CUDA starts, calls do nothing and are not counted. A call also does nothing if the last call before CUDA
 * started was less than 10 ms earlier.
 *
 * Any thread may call any function at any time, also concurrently, but not in a signal handler. Windows, steps and
 * outputs belong to the process. Ranges and gpuflame_last_error() belong to the calling thread. No function ends the
 * program, prints to stdout, or throws an exception. In a forked child, all functions return GPUFLAME_ERROR_STATE. */
#ifndef GPUFLAME_H
#define GPUFLAME_H

#include <stdint.h>

/* The version of this header. gpuflame_version() returns the version of the library. */
#define GPUFLAME_VERSION_MAJOR 0
#define GPUFLAME_VERSION_MINOR 1
#define GPUFLAME_VERSION_PATCH 0
/* The version as one number, for comparisons: 0.1.0 is 100, 1.2.3 is 10203. */
#define GPUFLAME_VERSION (GPUFLAME_VERSION_MAJOR * 10000 + GPUFLAME_VERSION_MINOR * 100 + GPUFLAME_VERSION_PATCH)

/* Return values of the functions: GPUFLAME_OK, GPUFLAME_ABSENT, or a negative error code. After an error,
 * gpuflame_last_error() returns one sentence that describes the error and its remedy. */
#define GPUFLAME_OK 0
#define GPUFLAME_ABSENT 1             /* header-only mode: the library is not in this process, and nothing was done */
#define GPUFLAME_ERROR_NO_DRIVER (-1) /* no NVIDIA driver on this machine */
#define GPUFLAME_ERROR_NO_CUPTI (-2)  /* no usable libcupti was found */
#define GPUFLAME_ERROR_REFUSED (-3)   /* CUPTI refused to record: no GPU, driver too old, or another profiler is active */
#define GPUFLAME_ERROR_SETTING (-4)   /* invalid setting or argument; NULL is never valid */
#define GPUFLAME_ERROR_IO (-5)        /* a file could not be read or written */
#define GPUFLAME_ERROR_FORMAT (-6)    /* a file is malformed */
#define GPUFLAME_ERROR_STATE (-7)     /* not possible now: recording has not started or has ended (on exit, in a forked child) */
#define GPUFLAME_ERROR_INTERNAL (-8)  /* a bug in gpuflame, which has disabled itself */

/* Name, number of runs and total run time of a kernel. */
struct gpuflame_kernel {
    uint64_t count;
    uint64_t ns;
    char name[240]; /* demangled; truncated if longer; always ends with a zero */
};

/* Results of a run so far, which gpuflame_stats() fills in. Later versions of gpuflame may add fields at the end. */
struct gpuflame_statistics {
    uint64_t size; /* before the call: sizeof(struct gpuflame_statistics); after it: number of bytes filled in */

    uint64_t windows; /* windows opened so far, including a window that is open now */
    uint64_t steps;   /* number of calls to gpuflame_step() */

    /* launches = matched + pending + outside + dropped */
    uint64_t launches;
    uint64_t matched; /* launches whose GPU work is complete and has a record */
    uint64_t pending; /* launches whose GPU work is not complete yet */
    uint64_t outside; /* launches made within one second after a window closed; later launches are not counted */
    uint64_t dropped; /* launches that could not be recorded because there was no memory */

    uint64_t activities; /* completed kernels, copies and fills */
    uint64_t gpus;       /* number of GPUs that executed activities */

    /* Total times over all GPUs that executed activities, in nanoseconds. window = busy + idle. idle is the sum of the
     * six causes below. */
    uint64_t window_ns;
    uint64_t busy_ns;
    uint64_t idle_ns;
    uint64_t idle_host_late_ns;      /* the launch call for the next work had not begun */
    uint64_t idle_launch_latency_ns; /* the launch call was in flight, or had just returned */
    uint64_t idle_dependency_ns;     /* launched in time, but waited for an event, another GPU or its turn */
    uint64_t idle_unknown_ns;
    uint64_t idle_opening_ns; /* between the opening of a window and its first GPU work, and during start-up */
    uint64_t idle_closing_ns; /* between the last GPU work of a window and its end (or now), and during shutdown */

    uint64_t kernels; /* number of different kernels that ran */
    struct gpuflame_kernel top[8]; /* kernels with the longest total time, longest first; unused entries are zero */
};

#ifndef GPUFLAME_HEADER_ONLY

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a window: launches that any thread makes after this call are recorded. The first call sets up the recorder if
 * the library was not injected. Make the first call before the GPU work that you want to record, ideally before any
 * CUDA call. If a window is already open, the call has no effect. If the library is injected, set GPUFLAME_ENABLED=0;
 * otherwise a window is open from the beginning. The first call takes milliseconds, later calls take nanoseconds. If
 * the window was closed for two seconds or longer, the call takes longer, because CUPTI must enable its callbacks
 * again. */
int gpuflame_start(void);

/* Closes the window. Launches in the window are tracked until their GPU work ends, even if it ends much later. Launches
 * after this call are counted as "outside" and not recorded. One second after this call, launches are no longer
 * counted. From two seconds after this call, a launch only costs the time that CUPTI needs to record it. If the window
 * is already closed, the call has no effect. If no window was ever opened, the result is GPUFLAME_ERROR_STATE. This
 * function does not wait for the GPU. */
int gpuflame_stop(void);

/* Returns 1 if launches are currently recorded: a window is open and gpuflame has not failed. Otherwise returns 0. The
 * call takes a few nanoseconds. */
int gpuflame_is_active(void);

/* Begins another step. A step is one iteration of the program's main loop, such as a training or decoding step.
 * gpuflame_stats() counts steps. Steps that begin while a window is open are recorded, with their time and thread. A
 * step lasts until the next step of the process begins. The call takes a lock and about 100 ns. Thousands of steps per
 * second are fine; excess steps are counted as steps_dropped. If GPUFLAME_STEPS opens or closes a window at this step,
 * the call takes as long as gpuflame_start() or gpuflame_stop(). */
int gpuflame_step(void);

/* Marks the current instant on the timeline of the calling thread. The mark appears in the recording
 * (GPUFLAME_FORMATS=gfr) and in the timelines that `gpuflame convert` makes from the recording. If no window is open,
 * the call has no effect. If there is no session, the result is GPUFLAME_ERROR_STATE. The text is UTF-8, and up to
 * 1,024 bytes of it are copied. The call takes a lock and about 100 ns. Thousands of marks per second are fine; excess
 * marks are counted as marks_dropped. */
int gpuflame_mark(const char *text);

/* Changes the path prefix of the output files, which overrides GPUFLAME_OUTPUT. `prefix` may contain the same macros as
 * GPUFLAME_OUTPUT (%p process id, %r rank ...), and is relative to the current directory. If `prefix` ends in /, it is
 * a folder. The new prefix applies to all files that are not written yet. The function may be called before
 * gpuflame_start() and between windows. While a window is open, the result is GPUFLAME_ERROR_STATE, and the prefix is
 * unchanged. If the process is killed, its checkpoint still has the prefix that applied when recording started. */
int gpuflame_set_output(const char *prefix);

/* Fills in the results of the run so far. Recording continues. The numbers are the same as the ledger would contain if
 * the process ended now. The numbers cover all windows so far. No number ever decreases, with two exceptions. The
 * number of pending launches decreases when GPU work completes, and an idle time decreases if its cause is found later.
 * So the difference between the results of two calls of gpuflame_stats() covers the time between the calls. The
 * function first collects the completed GPU work, like gpuflame_flush(). A call takes longer the more different stacks
 * there are (a few milliseconds for thousands of stacks), so do not call it in every step. If the size of the structure
 * is too small, the result is GPUFLAME_ERROR_SETTING, and nothing is written to the structure. */
int gpuflame_stats(struct gpuflame_statistics *stats);

/* Collects the activity records of the GPU work that has completed so far, without waiting for GPU work in flight.
 * gpuflame also does this automatically, about once per second. Therefore gpuflame_flush() is useful only if the
 * process may be killed and must not lose recent records. Do not call this function from a CUDA callback. */
int gpuflame_flush(void);

/* Opens a named range on this thread. Until the range is closed, the stack of every launch on this thread has a frame
 * `[range]NAME` between the CPU frames and the kernel. Ranges nest, up to 128 deep. The call works whether a window is
 * open or closed, and before gpuflame_start(). The call takes about 50 ns, and launches inside a range have no extra
 * cost. The name of the range is UTF-8 and is copied. A few thousand different names are fine, but do not use a
 * different name for each step of a long run. */
int gpuflame_range_push(const char *name);

/* Closes the range that was opened last on this thread. If no range is open, the result is GPUFLAME_ERROR_STATE. */
int gpuflame_range_pop(void);

/* Returns the version of the library, such as "0.1.0"; "" if the library is absent. The result is never NULL and is valid
 * until the process ends. */
const char *gpuflame_version(void);

/* Returns one sentence that describes the last error on this thread, that is, the last call that returned a negative
 * number. Returns "" if there was no error. The result is never NULL and is valid until the next gpuflame call on this
 * thread. */
const char *gpuflame_last_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#else /* With GPUFLAME_HEADER_ONLY, the functions look up the library at run time. Needs GCC or Clang, on Linux. */

#include <dlfcn.h>
#include <string.h>
#include <sys/time.h>

#if defined(__GNUC__) || defined(__clang__)
#define GPUFLAME_SHARED_ __attribute__((weak, visibility("hidden")))
#define GPUFLAME_UNUSED_ __attribute__((unused))
#else
#error "GPUFLAME_HEADER_ONLY needs GCC or Clang"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Variables that are shared by all source files of a program or library that include this header. Only a successful
 * search for the library is cached. */
GPUFLAME_SHARED_ void *gpuflame_library_ = 0;
GPUFLAME_SHARED_ long gpuflame_asked_ = 0;
GPUFLAME_SHARED_ void *gpuflame_functions_[16] = {0};

/* Returns the library if it is loaded in this process. At most one thread queries the loader, and at most once every 10
 * ms. The driver loads the library into a separate scope. In that scope, the loader finds the library by its file name,
 * but not by the names of its functions. */
GPUFLAME_UNUSED_ static void *gpuflame_find_library_(void)
{
    void *found = __atomic_load_n(&gpuflame_library_, __ATOMIC_ACQUIRE);
    struct timeval time;
    long now, asked;
    if (found)
        return found;
    gettimeofday(&time, 0);
    now = (long)time.tv_sec * 100 + (long)time.tv_usec / 10000;
    asked = __atomic_load_n(&gpuflame_asked_, __ATOMIC_RELAXED);
    if (asked == now ||
        !__atomic_compare_exchange_n(&gpuflame_asked_, &asked, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return 0;
    found = dlopen("libgpuflame.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (found)
        __atomic_store_n(&gpuflame_library_, found, __ATOMIC_RELEASE);
    else
        (void)dlerror(); /* clears the message, because an absent library is not an error */
    return found;
}

/* Stores the address of the function `name` in `function`. Returns whether the function was found. */
GPUFLAME_UNUSED_ static int gpuflame_find_(int slot, const char *name, void *function)
{
    void *found = __atomic_load_n(&gpuflame_functions_[slot], __ATOMIC_ACQUIRE);
    void *library;
    if (!found) {
        library = gpuflame_find_library_();
        if (!library)
            return 0;
        found = dlsym(library, name);
        if (!found) { /* the library is older than this header */
            (void)dlerror();
            return 0;
        }
        __atomic_store_n(&gpuflame_functions_[slot], found, __ATOMIC_RELEASE);
    }
    memcpy(function, &found, sizeof found);
    return 1;
}

GPUFLAME_UNUSED_ static int gpuflame_start(void)
{
    int (*call)(void);
    return gpuflame_find_(0, "gpuflame_start", &call) ? call() : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_stop(void)
{
    int (*call)(void);
    return gpuflame_find_(1, "gpuflame_stop", &call) ? call() : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_is_active(void)
{
    int (*call)(void);
    return gpuflame_find_(2, "gpuflame_is_active", &call) ? call() : 0;
}

GPUFLAME_UNUSED_ static int gpuflame_step(void)
{
    int (*call)(void);
    return gpuflame_find_(3, "gpuflame_step", &call) ? call() : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_mark(const char *text)
{
    int (*call)(const char *);
    return gpuflame_find_(4, "gpuflame_mark", &call) ? call(text) : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_set_output(const char *prefix)
{
    int (*call)(const char *);
    return gpuflame_find_(5, "gpuflame_set_output", &call) ? call(prefix) : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_stats(struct gpuflame_statistics *stats)
{
    int (*call)(struct gpuflame_statistics *);
    return gpuflame_find_(6, "gpuflame_stats", &call) ? call(stats) : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_flush(void)
{
    int (*call)(void);
    return gpuflame_find_(7, "gpuflame_flush", &call) ? call() : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_range_push(const char *name)
{
    int (*call)(const char *);
    return gpuflame_find_(8, "gpuflame_range_push", &call) ? call(name) : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static int gpuflame_range_pop(void)
{
    int (*call)(void);
    return gpuflame_find_(9, "gpuflame_range_pop", &call) ? call() : GPUFLAME_ABSENT;
}

GPUFLAME_UNUSED_ static const char *gpuflame_version(void)
{
    const char *(*call)(void);
    return gpuflame_find_(10, "gpuflame_version", &call) ? call() : "";
}

GPUFLAME_UNUSED_ static const char *gpuflame_last_error(void)
{
    const char *(*call)(void);
    return gpuflame_find_(11, "gpuflame_last_error", &call) ? call() : "";
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUFLAME_HEADER_ONLY */

#ifdef __cplusplus

/* Makes the compiler warn about `gpuflame::Range("x");`. An object without a name is destroyed immediately, which
 * closes its range. */
#if defined(__has_cpp_attribute) && __cplusplus >= 201703L
#if __has_cpp_attribute(nodiscard)
#define GPUFLAME_NODISCARD_ [[nodiscard]]
#if __has_cpp_attribute(nodiscard) >= 201907L || (defined(__GNUC__) && !defined(__clang__))
#define GPUFLAME_NODISCARD_MADE_ [[nodiscard]]
#endif
#endif
#endif
#ifndef GPUFLAME_NODISCARD_
#define GPUFLAME_NODISCARD_
#endif
#ifndef GPUFLAME_NODISCARD_MADE_
#define GPUFLAME_NODISCARD_MADE_
#endif

namespace gpuflame {

/* A window that stays open while the object lives:
 *
 *     {
 *         gpuflame::Window window;
 *         if (!window) std::cerr << gpuflame_last_error() << '\n';
 *         decode(model);
 *     }
 *
 * Windows do not nest. If two Window objects exist at the same time, the object that is destroyed first closes the
 * window for both objects. */
class GPUFLAME_NODISCARD_ Window {
public:
    GPUFLAME_NODISCARD_MADE_ Window() : status_(gpuflame_start()) {}
    ~Window() { close(); }

    /* Closes the window early. A second call has no effect. */
    void close() {
        if (status_ == GPUFLAME_OK) {
            gpuflame_stop();
            status_ = GPUFLAME_ERROR_STATE;
        }
    }

    /* Whether this object has opened the window and not closed it yet. */
    explicit operator bool() const { return status_ == GPUFLAME_OK; }

private:
    Window(const Window &);            /* not copyable, because */
    Window &operator=(const Window &); /* one object closes one window */
    int status_;
};

/* A range on the thread that creates the object. The range stays open while the object lives:
 *
 *     gpuflame::Range range("attention");
 */
class GPUFLAME_NODISCARD_ Range {
public:
    GPUFLAME_NODISCARD_MADE_ explicit Range(const char *name) : status_(gpuflame_range_push(name)) {}
    ~Range() {
        if (status_ == GPUFLAME_OK)
            gpuflame_range_pop();
    }

private:
    Range(const Range &);            /* not copyable, because */
    Range &operator=(const Range &); /* one object closes one range */
    int status_;
};

/* Results of a run up to the construction of the object:
 *
 *     gpuflame::Stats stats;
 *     if (stats) std::cout << stats.busy_ns << " of " << stats.window_ns << " ns busy\n";
 */
class Stats : public gpuflame_statistics {
public:
    Stats() : gpuflame_statistics() {
        size = sizeof(gpuflame_statistics);
        status_ = gpuflame_stats(this);
    }

    /* Whether the results were filled in successfully. */
    explicit operator bool() const { return status_ == GPUFLAME_OK; }

private:
    int status_;
};

} /* namespace gpuflame */

#endif /* __cplusplus */

#endif /* GPUFLAME_H */
