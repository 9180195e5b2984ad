/* A program whose threads launch kernels, and spend a known CPU time in functions with known names:
 *
 *     sampled shares | threads | ends | closes | forks | calls | late | sleeps | locks | faults | reads | refused | takes
 *             | takes_all | fixed [refused]
 *
 * - `shares`: the functions sixty, thirty and ten use 60, 30 and 10 % of a thread's time.
 * - `threads`: eight threads run at the same time, each in its own function.
 * - `ends`: twenty threads run one after another.
 * - `closes`: the program closes all descriptors from 3 up, and opens its own files under those numbers.
 * - `forks`: a child spends time in its own function, and ends by _exit(5).
 * - `calls`: sleeps, polls, reads and waits; prints the number of interrupted calls; ends with code 3.
 * - `late`: spends time in `before_the_second`, between two launches.
 * - `sleeps`: the function `naps` sleeps between two launches.
 * - `locks`: the function `wants_the_lock` waits for a lock that another thread holds for 20 ms.
 * - `faults`: the function `touches` accesses memory for the first time.
 * - `reads`: the function `reads_a_pipe` reads from a pipe that another thread writes to after 20 ms.
 * - `refused`: Linux refuses perf_event_open; the second word `refused` has the same effect.
 * - `takes`: sets an action for the last real-time signal while gpuflame samples the program; prints how often the
 *   signal arrives after that.
 * - `takes_all`: sets an action for every real-time signal before gpuflame samples the program.
 * - `fixed`: does the same amount of work each time, and also prints the CPU time that the whole process used for this
 *   work.
 *
 * All modes except `calls` end with code 0. The program prints the CPU time in nanoseconds that the named functions
 * used; for waits, it prints the wall-clock time. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
#define MS 1000000ul

KERNEL(step_d1000, "step_d1000", (int n), &n)

static unsigned long taken(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

/* SPIN(ns) uses this much CPU time. SPIN is a macro, because a function would add a frame. */
#define SPIN(NANOS)                                                                                                    \
    do {                                                                                                               \
        unsigned long began_ = taken(), nanos_ = (NANOS);                                                              \
        volatile int i_;                                                                                               \
        while (taken() - began_ < nanos_)                                                                              \
            for (i_ = 0; i_ < 20000; i_++)                                                                              \
                ;                                                                                                      \
    } while (0)

/* Returns a random factor from 1/2 to 3/2, in thousandths. If work had the same period as the samples, it would be
 * sampled too often, or never. */
static unsigned long uneven(void)
{
    static unsigned long state = 1;
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return 500 + (state >> 33) % 1001;
}

OWN_FRAME static void sixty(unsigned long scale) { SPIN(4200 * scale); KEEP_FRAME(); }
OWN_FRAME static void thirty(unsigned long scale) { SPIN(2100 * scale); KEEP_FRAME(); }
OWN_FRAME static void ten(unsigned long scale) { SPIN(700 * scale); KEEP_FRAME(); }
OWN_FRAME static void in_a_thread(void) { SPIN(300 * MS); KEEP_FRAME(); }
OWN_FRAME static void in_a_child(void) { SPIN(300 * MS); KEEP_FRAME(); }
OWN_FRAME static void in_main(void) { SPIN(400 * MS); KEEP_FRAME(); }
OWN_FRAME static void before_the_second(void) { SPIN(20 * MS); KEEP_FRAME(); }

static unsigned long clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

OWN_FRAME static void naps(void)
{
    struct timespec pause = {0, 20 * MS};
    nanosleep(&pause, NULL);
    KEEP_FRAME();
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_held;
static int ends[2];

/* Holds the lock for 20 ms, writes a byte, and then leaves the lock free for 1 ms. */
static void *holder(void *none)
{
    for (;;) {
        struct timespec pause = {0, 20 * MS}, between = {0, MS};
        pthread_mutex_lock(&lock);
        is_held = 1;
        nanosleep(&pause, NULL);
        is_held = 0;
        pthread_mutex_unlock(&lock);
        if (write(ends[1], "", 1) != 1)
            return none;
        nanosleep(&between, NULL);
    }
}

OWN_FRAME static void wants_the_lock(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    KEEP_FRAME();
}

OWN_FRAME static void reads_a_pipe(void)
{
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        abort();
    KEEP_FRAME();
}

OWN_FRAME static void touches(void)
{
    size_t size = 16 << 20, at;
    volatile char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    for (at = 0; at < size; at += 4096)
        memory[at] = 1;
    munmap((void *)memory, size);
    KEEP_FRAME();
}

OWN_FRAME static void launch(void)
{
    SITE("launch");
    LAUNCH(step_d1000, 1, 32, 0)(1);
    cudaDeviceSynchronize();
    KEEP_FRAME();
}

static void *thread(void *none)
{
    launch();
    in_a_thread();
    return none;
}

static void threads(int at_once, int times)
{
    pthread_t all[8];
    int i;
    for (; times > 0; times--) {
        for (i = 0; i < at_once; i++)
            if (pthread_create(&all[i], NULL, thread, NULL))
                abort();
        for (i = 0; i < at_once; i++)
            pthread_join(all[i], NULL);
    }
}

/* Returns the number of perf event descriptors that are still open. */
static int left_open(void)
{
    DIR *all = opendir("/proc/self/fd");
    struct dirent *one;
    int count = 0;
    while ((one = readdir(all))) {
        char name[64] = "";
        if (readlinkat(dirfd(all), one->d_name, name, sizeof name - 1) > 0 && strstr(name, "perf_event"))
            count++;
    }
    closedir(all);
    return count;
}

static int closes(void)
{
    int i, file, open_ones;
    in_main();
    open_ones = left_open();
    for (i = 3; i < 5000; i++)
        close(i);
    for (i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "mine%d", i);
        file = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        if (file != 3 + i || write(file, "mine\n", 5) != 5)
            return 10;
    }
    in_main();
    threads(4, 1);
    for (i = 3; i < 23; i++)
        if (write(i, "mine\n", 5) != 5)
            return 11;
    return open_ones ? 12 : 0;
}

static int forks(void)
{
    int status;
    pid_t child;
    in_main();
    child = fork();
    if (child == 0) {
        in_a_child();
        _exit(5);
    }
    in_main();
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 10;
    return WEXITSTATUS(status) == 5 ? 0 : 11;
}

static int fixed(void)
{
    struct timespec t;
    unsigned long began, process;
    volatile long i;
    SPIN(100 * MS);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    process = t.tv_sec * 1000000000ul + t.tv_nsec;
    began = taken();
    for (i = 0; i < 600000000; i++)
        ;
    began = taken() - began;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    printf("%lu %lu\n", began, t.tv_sec * 1000000000ul + t.tv_nsec - process);
    return 0;
}

/* Makes Linux refuse perf_event_open, as in a container. */
static int refuse(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {4, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
}

static volatile int came;

static void on_signal(int signal)
{
    (void)signal;
    came++;
}

/* Sets an action for the timer's signal, and counts signals only after 400 ms: a signal may still be in flight, and the
 * collector stops the timer only at its next check. */
static int takes(void)
{
    SPIN(100 * MS);
    signal(SIGRTMAX, on_signal);
    SPIN(400 * MS);
    came = 0;
    SPIN(200 * MS);
    printf("%d\n", came);
    return 0;
}

/* Makes calls that a signal would interrupt, and checks that errno changes only during these calls. */
static int calls(void)
{
    int ends[2], number = 0, interrupted = 0, changed = 0, i;
    struct timespec pause = {0, 20 * MS}, left;
    if (pipe(ends))
        return 10;
    for (i = 0; i < 20; i++) {
        struct pollfd one = {ends[0], POLLIN, 0};
        errno = 0;
        interrupted += nanosleep(&pause, &left) != 0;
        interrupted += poll(&one, 1, 20) != 0;
        interrupted += syscall(SYS_futex, &number, FUTEX_WAIT, 0, &pause, NULL, 0) == 0 || errno == EINTR;
        errno = 77;
        SPIN(20 * MS);
        changed += errno != 77;
    }
    printf("%d interrupted, %d changed\n", interrupted, changed);
    return 3;
}

OWN_FRAME static void waits(const char *what)
{
    unsigned long waited = 0;
    int i;
    pthread_t other;
    if (pipe(ends) || pthread_create(&other, NULL, holder, NULL))
        abort();
    /* Wait until gpuflame samples this thread, because it samples a thread only after a launch. */
    launch();
    SPIN(100 * MS);
    for (i = 0; i < 50; i++) {
        unsigned long began, is_wait = strcmp(what, "faults") != 0;
        while (!strcmp(what, "locks") && !is_held)
            usleep(100);
        began = is_wait ? clock_now() : taken();
        if (!strcmp(what, "sleeps"))
            naps();
        else if (!strcmp(what, "locks"))
            wants_the_lock();
        else if (!strcmp(what, "reads"))
            reads_a_pipe();
        else
            touches();
        waited += (is_wait ? clock_now() : taken()) - began;
        launch();
    }
    printf("%lu\n", waited);
    KEEP_FRAME();
}

OWN_FRAME static void work(const char *what)
{
    unsigned long began;
    int i;
    launch();
    began = taken();
    if (!strcmp(what, "shares")) {
        for (i = 0; i < 430; i++) {
            unsigned long scale = uneven();
            sixty(scale);
            thirty(scale);
            ten(scale);
        }
    } else {
        for (i = 0; i < 50; i++) {
            before_the_second();
            launch();
        }
    }
    printf("%lu\n", taken() - began);
    KEEP_FRAME();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int each;
    if (argc > 2 && !strcmp(argv[2], "refused") && refuse())
        return 10;
    for (each = SIGRTMIN; each <= SIGRTMAX && !strcmp(what, "takes_all"); each++)
        signal(each, on_signal);
    if (!strcmp(what, "refused")) {
        if (refuse())
            return 10;
        threads(2, 1);
        return 0;
    }
    if (!strcmp(what, "shares") || !strcmp(what, "late"))
        work(what);
    else if (!strcmp(what, "sleeps") || !strcmp(what, "locks") || !strcmp(what, "reads") || !strcmp(what, "faults"))
        waits(what);
    else if (!strcmp(what, "threads"))
        threads(8, 1);
    else if (!strcmp(what, "ends"))
        threads(1, 20);
    else {
        launch();
        if (!strcmp(what, "closes"))
            return closes();
        if (!strcmp(what, "forks"))
            return forks();
        if (!strcmp(what, "fixed"))
            return fixed();
        if (!strncmp(what, "takes", 5))
            return takes();
        return calls();
    }
    return 0;
}
