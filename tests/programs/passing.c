/* A program with a CUPTI client in a plugin. The client starts, records some work and stops, and the program continues.
 * After that, nothing may call the client.
 *
 *     passing HOW CLIENT [CLIENT2]
 *
 * - `unloaded`: the client records 40 kernels, and its plugin is unloaded.
 * - `freed`: as `unloaded`, but the plugin stays loaded.
 * - `unflushed`: as `unloaded`, but the client does not flush before the plugin is unloaded.
 * - `clock`: the client only registers a clock, and its plugin is unloaded.
 * - `next`: as `unloaded`. 2.5 s later a second client enables fills before it registers its functions, while another
 *   thread launches; this client records 5 fills.
 *
 * The program launches 50 kernels before the first client starts. After the last client, it launches, fills and copies
 * for 2.5 s, and then launches 70 kernels. The program prints the number of records of each client, and its exit status
 * is 7. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(before_d1000, "before_d1000", (int n), &n)
KERNEL(theirs_d1000, "theirs_d1000", (int n), &n)
KERNEL(rest_d1000, "rest_d1000", (int n), &n)
KERNEL(after_d1000, "after_d1000", (int n), &n)
KERNEL(busy_d1000, "busy_d1000", (int n), &n)

enum { KERNELS = 10, FILLS = 2, STATUS = 7 };

static void *memory;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

OWN_FRAME static void before(void)
{
    int i;
    SITE("main;before");
    for (i = 0; i < 50; i++)
        LAUNCH(before_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

OWN_FRAME static void theirs(void)
{
    int i;
    SITE("main;theirs");
    for (i = 0; i < 40; i++)
        LAUNCH(theirs_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

OWN_FRAME static void rest(int has_fills)
{
    double begin = now();
    char bytes[64] = {0};
    SITE("main;rest");
    while (now() - begin < 2500) {
        LAUNCH(rest_d1000, 1, 32, 0)(1);
        if (has_fills)
            cudaMemset(memory, 0, sizeof bytes);
        if (has_fills)
            cudaMemcpy(memory, bytes, sizeof bytes, cudaMemcpyHostToDevice);
        cudaDeviceSynchronize();
        usleep(5000);
    }
}

OWN_FRAME static void after(void)
{
    int i;
    SITE("main;after");
    for (i = 0; i < 70; i++)
        LAUNCH(after_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

static volatile int is_over;

OWN_FRAME static void *busy(void *nothing)
{
    SITE("busy");
    while (!is_over)
        LAUNCH(busy_d1000, 1, 32, 0)(1);
    return nothing;
}

static void *load(const char *path)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        exit(9);
    }
    return plugin;
}

static int call(void *plugin, const char *name)
{
    int (*function)(void);
    *(void **)&function = dlsym(plugin, name);
    return function();
}

static void comes(void *plugin, const char *how, uint32_t kind)
{
    int (*function)(const char *, uint32_t), failed;
    *(void **)&function = dlsym(plugin, "client_comes");
    failed = function(how, kind);
    if (failed)
        exit(failed);
}

static void goes(void *plugin, const char *how)
{
    if (strcmp(how, "clock") && call(plugin, "client_stops"))
        exit(10);
    if (strcmp(how, "clock") && strcmp(how, "unflushed") && call(plugin, "client_flushes"))
        exit(11);
    printf("%d\n", call(plugin, "client_goes"));
    fflush(stdout);
    if (strcmp(how, "freed") && dlclose(plugin))
        exit(12);
}

int main(int count, char **words)
{
    const char *how = words[1];
    void *plugin, *next;
    pthread_t thread;
    int i;
    if (count < 3)
        return 2;
    if (cudaMalloc(&memory, 4096))
        return 3;
    before();
    plugin = load(words[2]);
    /* The program loads the second plugin before it unloads the first, so the plugins have different addresses. */
    next = strcmp(how, "next") ? NULL : load(words[3]);
    comes(plugin, strcmp(how, "clock") ? "functions" : "clock", KERNELS);
    theirs();
    goes(plugin, how);
    rest(strcmp(how, "next"));
    if (next) {
        if (pthread_create(&thread, NULL, busy, NULL))
            return 4;
        usleep(1000);
        comes(next, "kind", FILLS);
        for (i = 0; i < 5; i++)
            cudaMemset(memory, 0, 64);
        is_over = 1;
        pthread_join(thread, NULL);
        goes(next, how);
        rest(1);
    }
    after();
    return STATUS;
}
