/* Forks while other threads open ranges under new names, before CUDA starts.
 *
 *     forks HOW CHILDREN [LAUNCHES]
 *
 * HOW is `fork`, `_Fork` (no fork handlers run) or `clone` (the system call, which bypasses even the C library). Each
 * child opens and closes its own ranges. With LAUNCHES, the child makes this number of launches in these ranges and
 * exits normally. If a child is not done within ten seconds, its alarm kills it; the program prints the number of such
 * children. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "nvtx_mini.h"

#ifdef LINKED
#include <gpuflame.h>
#define OPEN(name) gpuflame_range_push(name)
#define CLOSE() gpuflame_range_pop()
#else
#define OPEN(name) nvtxRangePushA(name)
#define CLOSE() nvtxRangePop()
#endif

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(work_d1000, "work_d1000", (int n), &n)

static volatile int done;

static void *name_for_ever(void *prefix)
{
    char name[64];
    unsigned long i;
    for (i = 0; !done; i++) {
        snprintf(name, sizeof name, "%s-%lu", (const char *)prefix, i % 30000);
        OPEN(name);
        CLOSE();
        nvtxDomainCreateA("a domain");
    }
    return NULL;
}

static pid_t child_by(const char *how)
{
    if (!strcmp(how, "_Fork"))
        return _Fork();
    if (!strcmp(how, "clone"))
        return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    return fork();
}

OWN_FRAME static void launch(int launches)
{
    int i;
    for (i = 0; i < launches; i++)
        LAUNCH(work_d1000, 1, 32, 0)(1);
    cudaDeviceSynchronize();
    KEEP_FRAME();
}

static void *elsewhere(void *launches)
{
    OPEN("on a thread");
    launch(*(int *)launches);
    CLOSE();
    return NULL;
}

OWN_FRAME static void be_a_child(int number, int launches)
{
    char name[64];
    alarm(10);
    snprintf(name, sizeof name, "child-%d", number);
    OPEN(name);
    nvtxDomainCreateA("a domain of the child");
    if (launches) {
        pthread_t other;
        launch(launches);
        pthread_create(&other, NULL, elsewhere, &launches);
        pthread_join(other, NULL);
    }
    CLOSE();
#ifdef LINKED
    if (!launches)
        gpuflame_stop();
#endif
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    int children = argc > 2 ? atoi(argv[2]) : 1, launches = argc > 3 ? atoi(argv[3]) : 0;
    int i, hung = 0, failed = 0;
    char prefixes[2][8] = {"first", "second"};
    pthread_t ids[2];
    if (argc < 2)
        return 2;
    OPEN("before");
    for (i = 0; i < 2; i++)
        pthread_create(&ids[i], NULL, name_for_ever, prefixes[i]);
    for (i = 0; i < children; i++) {
        int status = 0;
        pid_t child = child_by(argv[1]);
        if (child == 0) {
            be_a_child(i, launches);
            if (launches)
                exit(0);
            _exit(0);
        }
        waitpid(child, &status, 0);
        hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        failed += status != 0;
    }
    done = 1;
    for (i = 0; i < 2; i++)
        pthread_join(ids[i], NULL);
    CLOSE();
    printf("hung %d, failed %d\n", hung, failed);
    return failed != 0;
}
