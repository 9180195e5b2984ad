/* Lets an example report its position in the program, so that tests can compare a profiler's stacks with it.
 *
 * The simulated CUDA stack of tests/gpusim exports gpusim_site() and writes the reported position next to each kernel,
 * copy or fill. On a real CUDA stack the symbol does not exist, so these macros do nothing. gpuflame does not need
 * them, and you can leave them out of your own program.
 *
 *     OWN_FRAME static void forward(void)
 *     {
 *         ENTER();
 *         CUDA_CALL_SITE();      right before a CUDA call: reports "main;decode;forward"
 *         cudaLaunchKernel(...);
 *         LEAVE();               also keeps the call above from becoming a jump, which has no frame
 *     }
 */
#ifndef CALL_SITE_H
#define CALL_SITE_H

#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C"
#endif
    void
    gpusim_site(const char *path) __attribute__((weak));

/* Makes a function keep its frame and its name: the function is not inlined, and is not renamed to
 * `forward.constprop.0`. */
#ifdef __clang__
#define OWN_FRAME __attribute__((noinline))
#else
#define OWN_FRAME __attribute__((noinline, noclone))
#endif

#define ENTER() const size_t call_site_caller = call_site_enter(__func__)
#define LEAVE() call_site_leave(call_site_caller)
#define CUDA_CALL_SITE() call_site_tell()

/* Path of the calling thread: the functions that the thread is in, root first. */
static __thread char call_site_path[512];
static __thread size_t call_site_length;

/* Adds a function to the calling thread's path. Returns the earlier length of the path, which LEAVE restores. */
static inline size_t call_site_enter(const char *function)
{
    const size_t caller = call_site_length;
    const size_t length = strlen(function);
    if (gpusim_site && caller + length + 2 <= sizeof call_site_path) {
        if (caller > 0)
            call_site_path[call_site_length++] = ';';
        memcpy(call_site_path + call_site_length, function, length + 1);
        call_site_length += length;
    }
    return caller;
}

static inline void call_site_leave(size_t caller)
{
    call_site_length = caller;
    call_site_path[caller] = '\0';
    /* Prevents the compiler from moving this code before the last call in the function. */
    __asm__ volatile("" ::: "memory");
}

static inline void call_site_tell(void)
{
    if (gpusim_site)
        gpusim_site(call_site_path);
}

#endif
