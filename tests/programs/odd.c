/* Exercises one unusual action of a program, and ends with code 7.
 *
 *     odd HOW [LAUNCHES]
 *
 * HOW is `plain`, or the name of a function in the table below. The program launches LAUNCHES kernels (default 100);
 * every tenth kernel is followed by a fill. The program continues after a launch that fails. */
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
enum { CODE = 7 };

KERNEL(add_d301, "add_d301", (int n), &n)
KERNEL(mul_d1200, "mul_d1200", (int n), &n)
KERNEL(rest_d60000000000, "rest_d60000000000", (int n), &n) /* runs for a minute */
KERNEL(semicolon, "evil;main;fake 12_d100", (int n), &n)
KERNEL(lines, "two\nlines 99\r\n_d200", (int n), &n)
KERNEL(number, "# lost 31_d300", (int n), &n)

static long launches = 100;
static void *memory;
static volatile int done;

OWN_FRAME static void work(const char *site)
{
    long i;
    SITE(site);
    if (!memory)
        cudaMalloc(&memory, 4096);
    for (i = 0; i < launches; i++) {
        if (i % 2) {
            LAUNCH(add_d301, 1, 32, 0)(1);
        } else {
            LAUNCH(mul_d1200, 1, 32, 0)(1);
        }
        if (i % 10 == 0)
            cudaMemsetAsync(memory, 0, 4096, 0);
    }
    KEEP_FRAME();
}

static int plain(void)
{
    work("main;plain;work");
    cudaDeviceSynchronize();
    return CODE;
}

static int no_cuda(void)
{
    return CODE;
}

/* A thread that launches kernels without end while another thread ends the process. */
static void *launch_for_ever(void *nothing)
{
    for (;;) {
        SITE("launch_for_ever");
        LAUNCH(add_d301, 1, 32, 0)(1);
        done = 1;
    }
    return nothing;
}

static void *end(void *nothing)
{
    while (!done)
        usleep(100);
    (void)nothing;
    exit(CODE);
}

static int exit_in_mid_launch(void)
{
    pthread_t ids[2];
    work("main;exit_in_mid_launch;work");
    pthread_create(&ids[0], NULL, launch_for_ever, NULL);
    pthread_create(&ids[1], NULL, end, NULL);
    pthread_join(ids[0], NULL);
    return 1;
}

/* Exit handlers of the test program. Some run before, and some after, the exit handlers of the driver and gpuflame. */
OWN_FRAME static void late(void)
{
    SITE("late");
    LAUNCH(mul_d1200, 1, 32, 0)(1);
    printf("late\n");
    KEEP_FRAME();
}

OWN_FRAME static void last(void)
{
    LAUNCH(mul_d1200, 1, 32, 0)(1);
    printf("last\n");
    KEEP_FRAME();
}

static int handlers(void)
{
    atexit(last);
    work("main;handlers;work");
    atexit(late);
    return CODE;
}

static int reset(void)
{
    work("main;reset;work");
    cudaDeviceReset();
    return CODE;
}

static int resets(void)
{
    work("main;resets;work");
    cudaDeviceReset();
    work("main;resets;work");
    cudaDeviceReset();
    return CODE;
}

/* Calls cuptiGetLastError on this thread, after CUPTI has refused a client. */
static int last_error(void)
{
    void *library = dlopen("libcupti.so.13", RTLD_LAZY);
    int (*last_of_thread)(void);
    *(void **)&last_of_thread = library ? dlsym(library, "cuptiGetLastError") : NULL;
    work("main;last_error;work");
    printf("%d\n", last_of_thread ? last_of_thread() : -1);
    return CODE;
}

static int still_running(void)
{
    SITE("main;still_running");
    LAUNCH(add_d301, 1, 32, 0)(1);
    cudaDeviceSynchronize();
    LAUNCH(rest_d60000000000, 1, 32, 0)(1);
    KEEP_FRAME();
    return CODE;
}

static int no_handlers(void)
{
    work("main;no_handlers;work");
    _exit(CODE);
}

static int names(void)
{
    SITE("main;names;semicolon");
    LAUNCH(semicolon, 1, 32, 0)(1);
    SITE("main;names;lines");
    LAUNCH(lines, 1, 32, 0)(1);
    SITE("main;names;number");
    LAUNCH(number, 1, 32, 0)(1);
    KEEP_FRAME();
    return CODE;
}

/* Initialises CUDA through the driver API, which works with any driver version. */
static int driver(void)
{
    CUdevice device;
    if (cuInit(0) == 0)
        cuDeviceGet(&device, 0);
    return CODE;
}

static const struct {
    const char *name;
    int (*function)(void);
} table[] = {
    {"plain", plain},       {"no_cuda", no_cuda}, {"exit_in_mid_launch", exit_in_mid_launch},
    {"handlers", handlers}, {"reset", reset},     {"still_running", still_running},
    {"no_handlers", no_handlers}, {"names", names}, {"driver", driver},
    {"resets", resets},     {"last_error", last_error},
};

int main(int argc, char **argv)
{
    size_t i;
    int code = 1;
    if (argc > 2)
        launches = atol(argv[2]);
    for (i = 0; argc > 1 && i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, argv[1]))
            code = table[i].function();
    KEEP_FRAME();
    return code;
}
