/* A program whose threads launch, and spend known processor time in functions of known names:
 *
 *     sampled shares | threads | ends | closes | forks | calls | late | refused
 *
 * shares   sixty, thirty and ten take 60, 30 and 10 % of the time of a thread
 * threads  eight threads at once, each in a function of its own
 * ends     twenty threads, one after another
 * closes   closes all descriptors from 3 on, and has files of its own under them
 * forks    a child takes time in a function of its own, and ends by _exit(5)
 * calls    sleeps, polls, reads and waits: prints how many calls were interrupted; ends with 3
 * late     between two launches: before_the_second
 * refused  the kernel lets nobody sample
 *
 * All but `calls` end with 0. It prints the processor time in nanoseconds that the named functions took. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Not a function, which would be a frame. */
#define SPIN(NANOS)                                                                                                    \
    do {                                                                                                               \
        unsigned long began_ = taken(), nanos_ = (NANOS);                                                              \
        volatile int i_;                                                                                               \
        while (taken() - began_ < nanos_)                                                                              \
            for (i_ = 0; i_ < 20000; i_++)                                                                              \
                ;                                                                                                      \
    } while (0)

/* From 1/2 to 3/2, in 1,000ths: work in step with the samples would be found too often, or never. */
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

/* How many descriptors of samples are open. */
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

/* As in a container. */
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

/* Calls that a signal would interrupt, and errno over time spent outside of calls. */
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
    if (!strcmp(what, "refused")) {
        if (refuse())
            return 10;
        threads(2, 1);
        return 0;
    }
    if (!strcmp(what, "shares") || !strcmp(what, "late"))
        work(what);
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
        return calls();
    }
    return 0;
}
