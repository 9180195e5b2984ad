/* Initialises CUDA in the way that the argument names: `init`, `twice`, `race`, `version`, `runtime`, `fork-before`,
 * `fork-after`. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *init(void *unused) {
    printf("cuInit %d\n", cuInit(0));
    return unused;
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "init";
    int n = -1, status;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(way, "init") || !strcmp(way, "twice")) init(NULL);
    if (!strcmp(way, "twice")) init(NULL);
    if (!strcmp(way, "race")) {
        pthread_t t[4];
        for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, init, NULL);
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    }
    if (!strcmp(way, "version")) {
        int result = cuDriverGetVersion(&n);
        printf("version %d %d\n", result, n);
        printf("count %d\n", cuDeviceGetCount(&n));
        printf("cuInit(1) %d\n", cuInit(1));
    }
    if (!strcmp(way, "runtime")) {
        int result = cudaGetDeviceCount(&n);
        printf("count %d %d\n", result, n);
        printf("error %s\n", cudaGetErrorName(cudaGetLastError()));
    }
    if (!strncmp(way, "fork", 4)) {
        if (!strcmp(way, "fork-after")) init(NULL);
        if (fork() == 0) {
            init(NULL);
            printf("child count %d\n", cuDeviceGetCount(&n));
            _exit(0);
        }
        wait(&status);
        printf("status %d\n", status);
        init(NULL);
    }
    return 0;
}
