/* Ends the process in the way that the argument names. In each way except `nothing`, the program first launches one
 * kernel. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

KERNEL(step, "_Z9step_d500v", (void), NULL)

static int launch(void) {
    LAUNCH(step, 1, 1, 0)();
    return cudaGetLastError();
}

static void *leave(void *unused) {
    usleep(20000);
    exit(0);
    return unused;
}

static void early_handler(void) { printf("early %d\n", launch()); }
static void late_handler(void) { printf("late %d\n", launch()); }

static int tell_version;
__attribute__((destructor)) static void at_unload(void) {
    int n;
    if (tell_version) printf("destructor %d\n", cuDriverGetVersion(&n));
}

void gpusim_truth_flush(void);

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "return";
    if (!strcmp(way, "nothing")) return cuInit(0);
    if (!strcmp(way, "handlers")) atexit(early_handler);
    SITE("main;launch");
    launch();
    if (!strcmp(way, "handlers")) atexit(late_handler);
    if (!strcmp(way, "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, leave, NULL);
        for (;;) launch();
    }
    if (!strcmp(way, "_exit")) _exit(5);
    if (!strcmp(way, "flushed _exit")) gpusim_truth_flush(), _exit(5);
    if (!strcmp(way, "reset")) {
        cudaDeviceReset();
        launch();
        cudaDeviceReset();
    }
    tell_version = !strcmp(way, "destructor");
    return 0;
}
