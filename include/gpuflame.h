/* gpuflame: GPU flame graphs. The C interface, and small C++ classes around it. C99 and C++11 or later.
 *
 * Works when linked (-lgpuflame), when injected (CUDA_INJECTION64_PATH or LD_PRELOAD), and when both:
 * then there is one session, whichever way came first. Recording is configured by GPUFLAME_*
 * environment variables, and the outputs are written when the process exits.
 *
 * With GPUFLAME_HEADER_ONLY defined before it is included, nothing is linked (an old glibc needs -ldl): where the library
 * is in the process, because somebody injected it, the functions find it there; where it is not, they do nothing, return
 * GPUFLAME_ABSENT, and cost about 30 ns. Libraries can carry their ranges and windows so, whoever uses them. The driver loads
 * the library when CUDA starts: calls before that, and in the 10 ms after the last of them, do nothing and are not counted.
 *
 * Any thread may call any function at any time, also several at once; none is to be called in a signal handler. Windows,
 * steps and outputs are the process's, ranges and gpuflame_last_error() the thread's own. No function ends the
 * program, prints to stdout, or throws. In a forked child all of them return GPUFLAME_ERROR_STATE. */
#ifndef GPUFLAME_H
#define GPUFLAME_H

#include <stdint.h>

/* The version of this header; gpuflame_version() is that of the library. */
#define GPUFLAME_VERSION_MAJOR 0
#define GPUFLAME_VERSION_MINOR 1
#define GPUFLAME_VERSION_PATCH 0
/* To compare: 0.1.0 is 100, 1.2.3 is 10203. */
#define GPUFLAME_VERSION (GPUFLAME_VERSION_MAJOR * 10000 + GPUFLAME_VERSION_MINOR * 100 + GPUFLAME_VERSION_PATCH)

/* What the functions return: GPUFLAME_OK, GPUFLAME_ABSENT, or one of the negative numbers, and then
 * gpuflame_last_error() says in a sentence what happened and what to do. */
#define GPUFLAME_OK 0
#define GPUFLAME_ABSENT 1             /* header only: the library is not in this process, and nothing was done */
#define GPUFLAME_ERROR_NO_DRIVER (-1) /* no NVIDIA driver on this machine */
#define GPUFLAME_ERROR_NO_CUPTI (-2)  /* no usable libcupti was found */
#define GPUFLAME_ERROR_REFUSED (-3)   /* CUPTI refused: no GPU, driver too old, or another profiler */
#define GPUFLAME_ERROR_SETTING (-4)   /* a setting or an argument could not be understood; NULL is never an argument */
#define GPUFLAME_ERROR_IO (-5)        /* a file could not be read or written */
#define GPUFLAME_ERROR_FORMAT (-6)    /* a file is malformed */
#define GPUFLAME_ERROR_STATE (-7)     /* not now: nothing started yet, the process is ending, a forked child */
#define GPUFLAME_ERROR_INTERNAL (-8)  /* a bug of gpuflame; it has switched itself off */

/* A kernel, and how long it ran in all. */
struct gpuflame_kernel {
    uint64_t count;
    uint64_t ns;
    char name[240]; /* demangled; what is longer is cut; always ends in a zero */
};

/* What a run comes to so far, see gpuflame_stats(). Later versions may add to its end. */
struct gpuflame_statistics {
    uint64_t size; /* set it to sizeof(struct gpuflame_statistics); it comes back as how much of that was filled in */

    uint64_t windows; /* opened so far, the present one among them */
    uint64_t steps;   /* calls of gpuflame_step() */

    /* launches = matched + pending + outside + dropped */
    uint64_t launches;
    uint64_t matched; /* with the work that they started on the GPU, which is complete */
    uint64_t pending; /* their work is not complete yet */
    uint64_t outside; /* made while no window was open, and seen: within a second after one closed */
    uint64_t dropped; /* seen and not kept, for want of memory */

    uint64_t activities; /* kernels, copies and fills that are complete */
    uint64_t gpus;       /* that did any of it */

    /* Over all these GPUs, in nanoseconds: window = busy + idle, and idle = the sum of the six causes. */
    uint64_t window_ns;
    uint64_t busy_ns;
    uint64_t idle_ns;
    uint64_t idle_host_late_ns;      /* the launch call had not begun */
    uint64_t idle_launch_latency_ns; /* the call was under way, or had just returned */
    uint64_t idle_dependency_ns;     /* launched in time, but it waited: an event, another GPU, its turn */
    uint64_t idle_unknown_ns;
    uint64_t idle_opening_ns; /* between the opening of a window and the first work in it */
    uint64_t idle_closing_ns; /* between the last work in a window and its end, or now */

    uint64_t kernels; /* how many different kernels ran */
    struct gpuflame_kernel top[8]; /* those that took most time, the longest first; unused ones are zero */
};

#ifndef GPUFLAME_HEADER_ONLY

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a window: launches made from now on, by any thread, are recorded. The first call sets the
 * recorder up if it is not injected already; make it before the work to record, best before any CUDA
 * call. Opening an open window does nothing. With injection, set GPUFLAME_ENABLED=0, or a window is
 * open from the beginning. Takes milliseconds at first, then nanoseconds, unless the window was closed for two seconds
 * or longer: then CUPTI is asked to tell of every call again, which takes as long as it takes. */
int gpuflame_start(void);

/* Closes the window. Launches made before are followed to their end on the GPU, however late that
 * comes; those made from now on are counted as "outside" and left out, and after a second not even seen: they then cost
 * what they cost with CUPTI's records alone. Closing it again does
 * nothing; where none was ever opened it is GPUFLAME_ERROR_STATE. Does not wait for the GPU. */
int gpuflame_stop(void);

/* 1 if what is launched now is recorded: a window is open, and nothing has gone wrong. Else 0. Takes nanoseconds. */
int gpuflame_is_active(void);

/* Says that another step begins: of training, of decoding, whatever the program repeats. gpuflame_stats() counts them.
 * Takes nanoseconds; where GPUFLAME_STEPS has a window open or close with this step, as long as gpuflame_start() and _stop(). */
int gpuflame_step(void);

/* Marks this instant on the timeline of the calling thread, as the recording has it (GPUFLAME_FORMATS=gfr) and what
 * `gpuflame convert` makes of that for timelines. While no window is open it does nothing; without a session it is
 * GPUFLAME_ERROR_STATE. The text is UTF-8 and copied, up to 1,024 bytes of it. Takes a lock and some 100 ns; thousands a
 * second are fine, more are counted as marks_dropped. */
int gpuflame_mark(const char *text);

/* Has the files go elsewhere than GPUFLAME_OUTPUT says: a prefix with the same macros (%p process, %r rank ...), or a
 * folder where it ends in /, relative to the present folder. Counts for all files that are not written yet, at the end of the process. May be called before
 * gpuflame_start() and between windows; while a window is open it is GPUFLAME_ERROR_STATE, and the files go where they
 * would have gone. What a killed process leaves lies where the files would have gone when it started to record. */
int gpuflame_set_output(const char *prefix);

/* Fills in what there is so far, without stopping anything: as the ledger at exit would say it, if the process ended now.
 * All windows so far are in it, and it only grows (but for pending, and idle time, whose cause may be found later): for
 * a part of a run take the difference of two. Collects first, as gpuflame_flush() does, and takes time by the number of
 * different stacks, some milliseconds for thousands; not for every step. A structure whose size is too small is
 * GPUFLAME_ERROR_SETTING, and nothing is written to it. */
int gpuflame_stats(struct gpuflame_statistics *stats);

/* Collects what the GPU has completed so far, without waiting for the rest. Needed only to bound what
 * is lost when the process is killed, since it happens about once a second anyway. Not to be called
 * from a CUDA callback. */
int gpuflame_flush(void);

/* Opens a range on this thread: until it is popped, its name is a frame `[range]NAME` of everything that the
 * thread launches, between the CPU stack and the kernel. Ranges nest, up to 128 deep. Works with a window open
 * or closed, and before gpuflame_start(). Takes some 50 ns; a launch inside it costs what it cost. The name is
 * UTF-8 and copied; a few thousand different ones are fine, one for each step of a long run is not. */
int gpuflame_range_push(const char *name);

/* Closes the range that gpuflame_range_push() opened last on this thread. GPUFLAME_ERROR_STATE if none is. */
int gpuflame_range_pop(void);

/* The version of the library, such as "0.1.0"; "" where it is absent. Never NULL; lives for ever. */
const char *gpuflame_version(void);

/* What went wrong in the last call on this thread that returned a negative number, in a sentence;
 * "" if none did. Never NULL; valid until the next gpuflame call on this thread. */
const char *gpuflame_last_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#else /* GPUFLAME_HEADER_ONLY: the same functions, which look for the library. GCC and Clang, on Linux. */

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

/* One of each in a program or library, in however many files this is included. Only success is kept. */
GPUFLAME_SHARED_ void *gpuflame_library_ = 0;
GPUFLAME_SHARED_ long gpuflame_asked_ = 0;
GPUFLAME_SHARED_ void *gpuflame_functions_[16] = {0};

/* The library, if it is in this process. The loader is asked at most once every 10 ms, by one thread. The
 * driver loads the library for itself alone, so that it is found by its name and not by those of its functions. */
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
        (void)dlerror(); /* that it is not there is nobody's error */
    return found;
}

/* Puts the function of this name into `function`. Returns whether there is one. */
GPUFLAME_UNUSED_ static int gpuflame_find_(int slot, const char *name, void *function)
{
    void *found = __atomic_load_n(&gpuflame_functions_[slot], __ATOMIC_ACQUIRE);
    void *library;
    if (!found) {
        library = gpuflame_find_library_();
        if (!library)
            return 0;
        found = dlsym(library, name);
        if (!found) { /* it is older than this header */
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

/* A warning for `gpuflame::Range("x");`, which opens and closes at once: the object wants a name. */
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

/* A window that is open while the object lives:
 *
 *     {
 *         gpuflame::Window window;
 *         if (!window) std::cerr << gpuflame_last_error() << '\n';
 *         decode(model);
 *     }
 *
 * Windows do not nest: of two that are open at once, the first to go closes both. */
class GPUFLAME_NODISCARD_ Window {
public:
    GPUFLAME_NODISCARD_MADE_ Window() : status_(gpuflame_start()) {}
    ~Window() { close(); }

    /* Closes it before its time. Closing twice does nothing. */
    void close() {
        if (status_ == GPUFLAME_OK) {
            gpuflame_stop();
            status_ = GPUFLAME_ERROR_STATE;
        }
    }

    /* Whether it is open. */
    explicit operator bool() const { return status_ == GPUFLAME_OK; }

private:
    Window(const Window &);            /* not copied: */
    Window &operator=(const Window &); /* one object closes one window */
    int status_;
};

/* A range that is open while the object lives, on the thread that made it:
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
    Range(const Range &);            /* not copied: */
    Range &operator=(const Range &); /* one object closes one range */
    int status_;
};

/* What a run comes to so far, asked when the object is made:
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

    /* Whether it was filled in. */
    explicit operator bool() const { return status_ == GPUFLAME_OK; }

private:
    int status_;
};

} /* namespace gpuflame */

#endif /* __cplusplus */

#endif /* GPUFLAME_H */
