/* Threads that launch, copy, wait, fork and are interrupted, as a number has it, and one of many ends.
 *
 *     chaos SEED HOW
 *
 * HOW is how it ends: `return`, `exit` on another thread, `_exit`, `abort`, `term` or `kill` by a signal. Before that it
 * prints what of its state is not to change: how often errno did in a launch, the descriptors that it has for longer
 * than a moment, the signals that are blocked, and its limits. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
enum { TURNS = 400, THREADS = 3, CODE = 5, LOOKS = 50, BELOW = 1000 };

KERNEL(add_d301, "add_d301", (int n), &n)
KERNEL(mul_d1200, "mul_d1200", (int n), &n)

static uint64_t seed;
static const char *how = "return";
static long errnos;
/* Threads that wait for each other in the driver have their errno changed by that. */
static volatile int is_alone = 1;
static volatile sig_atomic_t interrupts;

static void interrupted(int signal)
{
    (void)signal;
    interrupts++;
    errno = 123;
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* errno as it was: a signal handler of ours would change it, so none comes meanwhile. */
OWN_FRAME static void launch(int which)
{
    sigset_t alarm, old;
    SITE("launch");
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &alarm, &old);
    errno = 77;
    if (which)
        LAUNCH(add_d301, 1, 32, 0)(1);
    else
        LAUNCH(mul_d1200, 1, 32, 0)(1);
    if (is_alone && errno != 77)
        errnos++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* The same with signals that come. */
OWN_FRAME static void interrupted_launch(void)
{
    SITE("interrupted_launch");
    LAUNCH(mul_d1200, 1, 32, 0)(1);
    __asm__ volatile("" ::: "memory");
}

static void fork_once(int ends)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        if (ends == 0)
            _exit(3);
        if (ends == 1)
            exit(3);
        execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
        _exit(4);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
        printf("a child ended with %x\n", status);
}

static void *worker(void *number)
{
    uint64_t state = seed * 7919 + (uintptr_t)number * 104729 + 1;
    void *memory = NULL;
    int turn;
    for (turn = 0; turn < TURNS; turn++) {
        uint64_t dice = next(&state) % 100;
        if (dice < 50)
            launch(dice % 2);
        else if (dice < 70)
            interrupted_launch();
        else if (dice < 80)
            cudaDeviceSynchronize();
        else if (dice < 84 && !memory)
            cudaMalloc(&memory, 4096);
        else if (dice < 88 && memory)
            cudaMemsetAsync(memory, 0, 4096, 0);
        else if (dice < 90)
            usleep(300);
        else if (dice < 91 && seed % 3 == 0)
            fork_once((int)(next(&state) % 3));
        else if (dice < 92)
            raise(SIGPROF);
    }
    return NULL;
}

/* Descriptors below 1,000 that are there each time that it is looked, over 50 ms. The kernel gives every file the lowest
 * number first: one that another thread reads, or has just made and moves up, is there for less than a millisecond. */
static unsigned descriptors(void)
{
    static char times[BELOW];
    unsigned sum = 0;
    int look, fd;
    for (look = 0; look < LOOKS; look++) {
        DIR *all = opendir("/proc/self/fd");
        struct dirent *entry;
        while ((entry = readdir(all)))
            if (entry->d_name[0] != '.' && (fd = atoi(entry->d_name)) < BELOW && fd != dirfd(all))
                times[fd]++;
        closedir(all);
        usleep(1000);
    }
    for (fd = 0; fd < BELOW; fd++)
        if (times[fd] == LOOKS)
            sum = sum * 31 + (unsigned)fd;
    return sum;
}

static void tell(void)
{
    static const int limits[] = {RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_STACK, RLIMIT_CORE, RLIMIT_NPROC};
    sigset_t blocked;
    unsigned at;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    printf("errno %ld, descriptors %x, blocked", errnos, descriptors());
    for (at = 1; at < 65; at++)
        printf(sigismember(&blocked, (int)at) > 0 ? "1" : "0");
    for (at = 0; at < sizeof limits / sizeof *limits; at++) {
        struct rlimit limit;
        getrlimit(limits[at], &limit);
        printf(" %lx/%lx", (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    printf("\n");
    fflush(stdout);
}

static void *ends(void *nothing)
{
    exit(CODE);
    return nothing;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 700}, {0, 700}};
    pthread_t threads[THREADS], last;
    intptr_t at;
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    how = argc > 2 ? argv[2] : how;
    sigaction(SIGPROF, &action, NULL);
    for (at = 0; at < 20; at++)
        launch((int)at % 2);
    is_alone = 0;
    setitimer(ITIMER_PROF, &often, NULL);
    for (at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, worker, (void *)at);
    for (at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    if (strcmp(how, "exit"))
        cudaDeviceSynchronize();
    tell();
    if (!strcmp(how, "exit")) {
        pthread_create(&last, NULL, ends, NULL);
        for (;;)
            interrupted_launch();
    }
    if (!strcmp(how, "_exit"))
        _exit(CODE);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "term"))
        raise(SIGTERM);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    return CODE;
}
