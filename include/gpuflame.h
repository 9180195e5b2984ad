/* gpuflame: GPU flame graphs. The C interface, and a small C++ class around it.
 *
 * Works when linked (-lgpuflame), when injected (CUDA_INJECTION64_PATH or LD_PRELOAD), and when both:
 * then there is one session, whichever way came first. Recording is configured by GPUFLAME_*
 * environment variables, and the outputs are written when the process exits. */
#ifndef GPUFLAME_H
#define GPUFLAME_H

#ifdef __cplusplus
extern "C" {
#endif

/* What the functions return: GPUFLAME_OK, or one of the negative numbers, and then
 * gpuflame_last_error() says in a sentence what happened and what to do. */
#define GPUFLAME_OK 0
#define GPUFLAME_ERROR_NO_DRIVER (-1) /* no NVIDIA driver on this machine */
#define GPUFLAME_ERROR_NO_CUPTI (-2)  /* no usable libcupti was found */
#define GPUFLAME_ERROR_REFUSED (-3)   /* CUPTI refused: no GPU, driver too old, or another profiler */
#define GPUFLAME_ERROR_SETTING (-4)   /* a setting could not be understood */
#define GPUFLAME_ERROR_IO (-5)        /* a file could not be read or written */
#define GPUFLAME_ERROR_FORMAT (-6)    /* a file is malformed */
#define GPUFLAME_ERROR_STATE (-7)     /* not now: nothing started yet, the process is ending, a forked child */
#define GPUFLAME_ERROR_INTERNAL (-8)  /* a bug of gpuflame; it has switched itself off */

/* Opens a window: launches made from now on, by any thread, are recorded. The first call sets the
 * recorder up if it is not injected already; make it before the work to record, best before any CUDA
 * call. Opening an open window does nothing. With injection, set GPUFLAME_ENABLED=0, or a window is
 * open from the beginning. Takes milliseconds at first, then nanoseconds. */
int gpuflame_start(void);

/* Closes the window. Launches made before are followed to their end on the GPU, however late that
 * comes; those made from now on are counted as "outside" and left out. Closing a closed window does
 * nothing. Does not wait for the GPU. */
int gpuflame_stop(void);

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

/* The version of the library, such as "0.1.0". Never NULL; lives for ever. */
const char *gpuflame_version(void);

/* What went wrong in the last call on this thread that returned a negative number, in a sentence;
 * "" if none did. Never NULL; valid until the next gpuflame call on this thread. */
const char *gpuflame_last_error(void);

#ifdef __cplusplus
} /* extern "C" */

namespace gpuflame {

/* A window that is open while the object lives:
 *
 *     {
 *         gpuflame::Window window;
 *         if (!window) std::cerr << gpuflame_last_error() << '\n';
 *         decode(model);
 *     }
 */
class Window {
public:
    Window() : status_(gpuflame_start()) {}
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
class Range {
public:
    explicit Range(const char *name) : status_(gpuflame_range_push(name)) {}
    ~Range() {
        if (status_ == GPUFLAME_OK)
            gpuflame_range_pop();
    }

private:
    Range(const Range &);            /* not copied: */
    Range &operator=(const Range &); /* one object closes one range */
    int status_;
};

} /* namespace gpuflame */
#endif

#endif /* GPUFLAME_H */
