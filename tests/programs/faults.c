/* A training loop with planted performance faults, whose costs are known.
 *
 *     faults --fault NAME --strength PERCENT [--fault NAME --strength PERCENT] [--steps N] [--right]
 *
 * Each step first waits for the GPU work of the step before the previous one, and then launches eight layers of 400 us.
 * A fault takes about PERCENT of the run time. With --right the program does the same work without the faults. The
 * program prints the nanoseconds that it added to kernels, and the nanoseconds for which the launching thread waited
 * for a processor. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
#define LAYERS 8
#define LAYER_NS 400000ul
#define STEP_NS (LAYERS * LAYER_NS)
/* Speed of copies in the simulation, in bytes per ns. */
#define BYTES_PER_NS 25

KERNEL(layer_d400000, "layer_d400000", (int n), &n)
KERNEL(tiny_d1500, "tiny_d1500", (int n), &n)

/* Sets the end time of the thread's next kernel; NULL unless the program runs on the simulated CUDA stack. */
static void (*set_end)(unsigned long (*end)(void *, unsigned long), void *argument);

/* Names of the planted faults. `extras` are the nanoseconds per step that each fault costs. */
static const char *faults[2] = {"", ""};
static unsigned long extras[2], percents[2] = {12, 12};
static unsigned long kernel_ns = LAYER_NS, lengthened;
static int step, steps = 30, right, devices = 1;
static char *pageable, *pinned, *device, *managed;
static cudaStream_t stream[2], copies;
static cudaEvent_t copied;
static volatile int over;

/* Returns the nanoseconds per step that a fault costs; 0 if the fault is not planted. */
static unsigned long extra_of(const char *name)
{
    return !strcmp(faults[0], name) ? extras[0] : !strcmp(faults[1], name) ? extras[1] : 0;
}

static unsigned long now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

/* Computes on the host until the thread has used `ns` nanoseconds of CPU time. */
OWN_FRAME static void compute_on_host(unsigned long ns)
{
    unsigned long began = now(CLOCK_THREAD_CPUTIME_ID);
    while (now(CLOCK_THREAD_CPUTIME_ID) - began < ns)
        KEEP_FRAME();
}

static void nap(unsigned long ns)
{
    struct timespec pause = {ns / 1000000000ul, ns % 1000000000ul};
    nanosleep(&pause, NULL);
}

static unsigned long end_of_kernel(void *argument, unsigned long start)
{
    (void)argument;
    return start + kernel_ns;
}

static void launch_layer(int gpu)
{
    if (set_end && kernel_ns != LAYER_NS) {
        set_end(end_of_kernel, NULL);
        lengthened += kernel_ns - LAYER_NS;
    }
    LAUNCH(layer_d400000, 1, 32, stream[gpu])(step);
}

OWN_FRAME static void log_metrics(void)
{
    if (!right) {
        cudaMemcpyAsync(pageable, device, 4, cudaMemcpyDeviceToHost, stream[0]);
        cudaStreamSynchronize(stream[0]); /* fault: sync_read */
    }
    compute_on_host(extra_of("sync_read"));
    KEEP_FRAME();
}

OWN_FRAME static void add_bias_per_token(void)
{
    unsigned long i, count = right ? 1 : extra_of("tiny_kernels") / 1500;
    for (i = 0; i < count; i++)
        LAUNCH(tiny_d1500, 1, 32, stream[0])(step); /* fault: tiny_kernels */
    KEEP_FRAME();
}

OWN_FRAME static void load_batch(void)
{
    size_t bytes = (extra_of("pageable_copies") + extra_of("sync_copies")) * BYTES_PER_NS + 4096;
    if (extra_of("pageable_copies") && !right) {
        /* The driver copies pageable memory through pinned buffers, and the call returns when the driver has read all
         * bytes. */
        cudaMemcpyAsync(device, pageable, bytes, cudaMemcpyHostToDevice, stream[0]); /* fault: pageable_copies */
        cudaStreamSynchronize(stream[0]);
    } else if (extra_of("sync_copies") && !right) {
        cudaStreamSynchronize(stream[0]); /* on a real GPU, the default stream would wait for stream[0] */
        cudaMemcpy(device, pinned, bytes, cudaMemcpyHostToDevice); /* fault: sync_copies */
    } else {
        cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, copies);
        cudaEventRecord(copied, copies);
        cudaStreamWaitEvent(stream[0], copied, 0);
    }
    KEEP_FRAME();
}

/* Allocates and frees memory in the loop. On a real GPU cudaFree waits for the device. */
OWN_FRAME static void with_workspace(void)
{
    unsigned long began;
    void *memory;
    if (right)
        return;
    cudaDeviceSynchronize();
    for (began = now(CLOCK_MONOTONIC); now(CLOCK_MONOTONIC) - began < extra_of("allocation_in_loop");) {
        cudaMalloc(&memory, 1 << 20);
        cudaFree(memory); /* fault: allocation_in_loop */
    }
    KEEP_FRAME();
}

/* Moves managed memory out of the GPU and back in, as if another program's memory did not fit next to it. */
OWN_FRAME static void touch_table(void)
{
    size_t bytes = extra_of("managed_memory") / 2 * BYTES_PER_NS;
    cudaMemLocation gpu = {1, 0}, host = {2, 0};
    if (right)
        return;
    cudaMemPrefetchAsync(managed, bytes, gpu, 0, stream[0]); /* fault: managed_memory */
    cudaMemPrefetchAsync(managed, bytes, host, 0, stream[0]);
    KEEP_FRAME();
}

OWN_FRAME static void write_log(void)
{
    if (!right && (step == steps / 4 || step == steps / 2))
        nap(extra_of("pauses") * steps / 2 + 2 * STEP_NS); /* fault: pauses */
    KEEP_FRAME();
}

/* Makes kernels longer in the last 40 % of the run, or in every fifth step. On average, the added time is the cost of
 * the fault. */
static void set_kernel_length(void)
{
    unsigned long slow = 0;
    if (!right && step * 10 >= steps * 6)
        slow += extra_of("late_slowdown") * 10 / 4;
    if (!right && step % 5 == 3)
        slow += extra_of("slow_steps") * 5;
    kernel_ns = LAYER_NS + slow / LAYERS;
}

OWN_FRAME static void forward(void)
{
    unsigned long idle = extra_of("idle_gpu") < STEP_NS ? extra_of("idle_gpu") : STEP_NS;
    unsigned long layer, from = steps * LAYERS * (STEP_NS - idle) / STEP_NS;
    int gpu, at;
    SITE("main;run_step;forward");
    for (layer = step * LAYERS; layer < (step + 1ul) * LAYERS; layer++)
        for (gpu = 0; gpu < devices; gpu++) {
            at = idle && !right && layer >= from ? 0 : gpu;
            if (devices > 1)
                cudaSetDevice(at);
            launch_layer(at); /* fault: idle_gpu slow_steps late_slowdown */
        }
    if (devices > 1)
        cudaSetDevice(0);
    KEEP_FRAME();
}

OWN_FRAME static void run_step(void)
{
    set_kernel_length();
    load_batch();
    forward();
    SITE("main;run_step");
    if (extra_of("tiny_kernels"))
        add_bias_per_token();
    if (extra_of("allocation_in_loop"))
        with_workspace();
    if (extra_of("managed_memory"))
        touch_table();
    if (extra_of("sync_read"))
        log_metrics();
    if (extra_of("pauses"))
        write_log();
    if (extra_of("starved_thread"))
        compute_on_host(STEP_NS / 2); /* fault: starved_thread */
    KEEP_FRAME();
}

/* A thread that competes with the launching thread for its processor; if the fault is weak, it competes for three
 * quarters of the time. */
static void *burn(void *argument)
{
    (void)argument;
    while (!over) {
        unsigned long began = now(CLOCK_MONOTONIC);
        while (!over && now(CLOCK_MONOTONIC) - began < STEP_NS)
            KEEP_FRAME();
        if (extra_of("starved_thread") < STEP_NS / 9)
            nap(STEP_NS / 3);
    }
    return NULL;
}

/* Returns the nanoseconds for which the calling thread was ready to run but had no processor. */
static unsigned long waited(void)
{
    unsigned long ns = 0;
    FILE *figures = fopen("/proc/thread-self/schedstat", "r");
    if (figures && fscanf(figures, "%*u %lu", &ns) != 1)
        ns = 0;
    if (figures)
        fclose(figures);
    return ns;
}

int main(int argc, char **argv)
{
    unsigned long bytes = 4096;
    cudaEvent_t done[2];
    pthread_t burners[3];
    cpu_set_t one;
    void *driver;
    int at, burning = 0, count = 0;
    for (at = 1; at < argc; at++) {
        if (!strcmp(argv[at], "--right"))
            right = 1;
        else if (at + 1 < argc && !strcmp(argv[at], "--fault") && count < 2)
            faults[count++] = argv[++at];
        else if (at + 1 < argc && !strcmp(argv[at], "--strength") && count)
            percents[count - 1] = strtoul(argv[++at], NULL, 10);
        else if (at + 1 < argc && !strcmp(argv[at], "--steps"))
            steps = atoi(argv[++at]);
        else
            return 2;
    }
    for (at = 0; at < count; at++) {
        if (percents[at] > 90)
            return 2;
        extras[at] = STEP_NS * percents[at] / (100 - percents[at]);
        bytes += extras[at] * BYTES_PER_NS;
    }
    devices = extra_of("idle_gpu") ? 2 : 1;
    for (at = devices - 1; at >= 0; at--) {
        cudaSetDevice(at);
        cudaStreamCreateWithFlags(&stream[at], cudaStreamNonBlocking);
    }
    cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
    cudaEventCreate(&copied);
    cudaMalloc((void **)&device, bytes);
    cudaMallocHost((void **)&pinned, extra_of("pageable_copies") || extra_of("sync_copies") ? bytes : 4096);
    if (extra_of("managed_memory"))
        cudaMallocManaged((void **)&managed, bytes, 1);
    pageable = malloc(bytes);
    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver)
        *(void **)&set_end = dlsym(driver, "gpusim_meeting");
    for (at = 0; at < 2; at++)
        cudaEventCreate(&done[at]);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (extra_of("starved_thread"))
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    if (extra_of("starved_thread") && !right)
        burning = extra_of("starved_thread") < STEP_NS / 2 ? 1 : 3;
    for (at = 0; at < burning; at++)
        pthread_create(&burners[at], NULL, burn, NULL);
    for (step = 0; step < steps; step++) {
        if (step >= 2)
            cudaEventSynchronize(done[step % 2]);
        run_step();
        cudaEventRecord(done[step % 2], stream[0]);
    }
    over = 1;
    for (at = 0; at < burning; at++)
        pthread_join(burners[at], NULL);
    cudaDeviceSynchronize();
    printf("%lu %lu\n", lengthened, waited());
    return 0;
}
