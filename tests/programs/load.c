/* Launches many kernels from many threads, through several call paths, and sets the call site of each launch.
 *
 *     load [--threads N] [--launches N] [--leak BYTES] [--contexts BITS] [--flush EVERY] [--watch 1]
 *
 * - `--launches N`: total number of kernels on all threads. Every 64th kernel is followed by a copy and a fill, every
 *   1024th by a synchronous copy.
 * - `--leak BYTES`: leaks this much memory at every launch, to check that a test for leaks detects the leak.
 * - `--contexts BITS`: launches once from each of 2^BITS different stacks.
 * - `--flush EVERY`: after every EVERY launches, each thread waits until gpuflame has read all records. With this
 * option, gpuflame can process all launches in time, however little CPU time it gets. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(attention_d12345, "attention_d12345", (float *x, int n), &x, &n)
KERNEL(mlp_d301, "mlp_d301", (float *x, int n), &x, &n)
KERNEL(norm_d1, "norm_d1", (float *x), &x)

static unsigned long launches = 10000, threads = 8, leak, context_bits, flush_every, watch;

/* The function gpuflame_flush() of the injected library; NULL if no library is injected. */
static int (*flush)(void);

static void find_flush(void)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library)
        *(void **)&flush = dlsym(library, "gpuflame_flush");
}

static void pause_after(unsigned long launch)
{
    if (flush_every && launch % flush_every == 0 && flush && flush() != 0)
        exit(3);
}

struct work {
    float *device, *host;
    cudaStream_t stream;
};

OWN_FRAME static void attend(struct work *work, const char *site)
{
    SITE(site);
    LAUNCH(attention_d12345, 16, 128, work->stream)(work->device, 1);
    KEEP_FRAME();
}

OWN_FRAME static void feed(struct work *work, const char *site)
{
    SITE(site);
    LAUNCH(mlp_d301, 16, 128, work->stream)(work->device, 2);
    KEEP_FRAME();
}

OWN_FRAME static void decode(struct work *work, unsigned long i)
{
    if (i % 3)
        attend(work, "worker;decode;attend");
    else
        feed(work, "worker;decode;feed");
    KEEP_FRAME();
}

OWN_FRAME static void prefill(struct work *work)
{
    attend(work, "worker;prefill;attend");
    KEEP_FRAME();
}

OWN_FRAME static void transfer(struct work *work)
{
    SITE("worker;transfer");
    cudaMemcpyAsync(work->host, work->device, 1000, cudaMemcpyDeviceToHost, work->stream);
    cudaMemsetAsync(work->device, 0, 4096, work->stream);
    KEEP_FRAME();
}

OWN_FRAME static void upload(struct work *work)
{
    SITE("worker;upload");
    cudaMemcpy(work->device, work->host, 4096, cudaMemcpyHostToDevice);
    KEEP_FRAME();
}

OWN_FRAME static void *worker(void *nothing)
{
    struct work work;
    unsigned long i, mine = launches / threads;
    (void)nothing;
    work.host = calloc(4096, 1);
    cudaMalloc((void **)&work.device, 4096);
    cudaStreamCreate(&work.stream);
    for (i = 0; i < mine; i++) {
        if (i % 5)
            decode(&work, i);
        else
            prefill(&work);
        if (i % 64 == 0)
            transfer(&work);
        if (i % 1024 == 0)
            upload(&work);
        if (leak) {
            char *volatile lost = malloc(leak);
            memset(lost, 1, leak);
        }
        pause_after(i + 1);
    }
    cudaStreamSynchronize(work.stream);
    KEEP_FRAME();
    return NULL;
}

/* Two functions that call each other in the order of the bits of `path`. With `depth` bits, these functions make
 * 2^depth different stacks. */
OWN_FRAME static void left(unsigned long path, unsigned depth);
OWN_FRAME static void right(unsigned long path, unsigned depth);

OWN_FRAME static void turn(unsigned long path, unsigned depth)
{
    if (depth == 0) {
        LAUNCH(norm_d1, 1, 1, 0)(NULL);
    } else if (path & 1)
        left(path >> 1, depth - 1);
    else
        right(path >> 1, depth - 1);
    KEEP_FRAME();
}

OWN_FRAME static void left(unsigned long path, unsigned depth)
{
    turn(path, depth);
    KEEP_FRAME();
}

OWN_FRAME static void right(unsigned long path, unsigned depth)
{
    turn(path, depth);
    KEEP_FRAME();
}

/* Prints the memory use of the process in kB, as Linux reports it. */
static void print_memory(void)
{
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "VmRSS:", 6) || !strncmp(line, "RssAnon:", 8))
            printf("%s", line);
    if (status)
        fclose(status);
}

static unsigned long anonymous_kb(void)
{
    unsigned long kb = 0;
    char text[4096], *line;
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size < 0 ? 0 : size] = 0;
    line = strstr(text, "RssAnon:");
    if (line)
        kb = strtoul(line + 8, NULL, 10);
    return kb;
}

static void *watch_memory(void *most)
{
    for (;;) {
        unsigned long now = anonymous_kb();
        if (now > *(volatile unsigned long *)most)
            *(volatile unsigned long *)most = now;
        usleep(2000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static unsigned long most_anonymous;
    pthread_t ids[64], watcher;
    unsigned long i;
    int at;
    for (at = 1; at + 1 < argc; at += 2) {
        unsigned long value = strtoul(argv[at + 1], NULL, 10);
        if (!strcmp(argv[at], "--threads"))
            threads = value;
        else if (!strcmp(argv[at], "--launches"))
            launches = value;
        else if (!strcmp(argv[at], "--leak"))
            leak = value;
        else if (!strcmp(argv[at], "--contexts"))
            context_bits = value;
        else if (!strcmp(argv[at], "--flush"))
            flush_every = value;
        else if (!strcmp(argv[at], "--watch"))
            watch = value;
        else
            return 2;
    }
    if (threads < 1 || threads > 64)
        return 2;
    cudaFree(0); /* loads the CUDA driver, which loads gpuflame */
    find_flush();
    if (watch)
        pthread_create(&watcher, NULL, watch_memory, &most_anonymous);
    if (context_bits) {
        for (i = 0; i < 1ul << context_bits; i++) {
            turn(i, (unsigned)context_bits);
            pause_after(i + 1);
        }
        cudaDeviceSynchronize();
    } else {
        for (i = 0; i < threads; i++)
            pthread_create(&ids[i], NULL, worker, NULL);
        for (i = 0; i < threads; i++)
            pthread_join(ids[i], NULL);
    }
    pause_after(0);
    print_memory();
    if (watch)
        printf("most RssAnon:%lu kB\n", most_anonymous);
    return 0;
}
