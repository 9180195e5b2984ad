/* A program in a sandbox. After the program's first launch, a filter allows only the system calls that
 * docs/inside-the-process.md names. Any other system call ends the process: with code 99 and a line with the call's
 * number, or by SIGSYS on a thread that blocks all signals.
 *
 *     sandboxed NAME...     the allowed calls, by name; without names no filter is set, and seccomp is only queried
 *
 * The program launches from stacks of its main thread and of two more threads, and from a stack made by hand. After
 * these launches, the program waits, and ends with code 7 or by the signal whose number is in ENDS_BY. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
enum { CODE = 7, MOST = 120, STACK = 64 << 10 };

KERNEL(step_d700, "step_d700", (int n), &n)

static const struct {
    const char *name;
    int number;
} known[] = {
#define CALL(name) {#name, SYS_##name}
    CALL(brk), CALL(clock_gettime), CALL(clock_nanosleep), CALL(clone), CALL(close), CALL(dup3), CALL(exit), CALL(exit_group),
    CALL(fcntl), CALL(fstat), CALL(futex), CALL(getdents64), CALL(geteuid), CALL(getpid), CALL(getpriority),
    CALL(getrandom), CALL(gettid), CALL(ioctl), CALL(linkat), CALL(lseek), CALL(madvise), CALL(mkdir), CALL(mmap),
    CALL(mprotect), CALL(mremap), CALL(munmap), CALL(newfstatat), CALL(open), CALL(openat), CALL(perf_event_open),
    CALL(poll), CALL(ppoll), CALL(prctl), CALL(prlimit64), CALL(process_vm_readv), CALL(pwrite64), CALL(read), CALL(readlink), CALL(rename), CALL(renameat2), CALL(rt_sigaction),
    CALL(rt_sigprocmask), CALL(rt_sigreturn), CALL(rt_sigtimedwait), CALL(sched_getaffinity), CALL(sched_getscheduler),
    CALL(sched_setaffinity), CALL(sched_setscheduler), CALL(sched_yield), CALL(set_robust_list), CALL(setpriority), CALL(sigaltstack), CALL(stat), CALL(statx),
    CALL(tgkill), CALL(timer_create), CALL(timer_delete), CALL(timer_settime), CALL(unlink), CALL(write),
#ifdef SYS_clone3
    CALL(clone3),
#endif
#ifdef SYS_rseq
    CALL(rseq),
#endif
};

OWN_FRAME static void launch(int depth)
{
    if (depth)
        launch(depth - 1);
    else
        LAUNCH(step_d700, 1, 32, 0)(1);
    __asm__ volatile("" ::: "memory");
}

static ucontext_t back, other;

static void on_another_stack(void)
{
    launch(3);
}

static void *work(void *nothing)
{
    int depth;
    for (depth = 0; depth < 200; depth++)
        launch(depth % 40);
    return nothing;
}

static const struct timespec PAUSE = {0, 700000000};

/* The thread waits before it ends, so that gpuflame samples it even if gpuflame starts the sampling late. */
static void *work_and_wait(void *nothing)
{
    work(nothing);
    nanosleep(&PAUSE, NULL);
    return nothing;
}

/* Signal handler that reports the number of a forbidden system call. The handler makes only the system calls that it
 * needs for the report and to end the process. */
static void refused(int signal, siginfo_t *info, void *context)
{
    char text[32];
    int length = snprintf(text, sizeof text, "call %d\n", info->si_syscall);
    (void)signal, (void)context;
    if (write(STDOUT_FILENO, text, length) != length)
        _exit(98);
    _exit(99);
}

static struct sock_filter code[2 * MOST + 8];
static unsigned short length;

static void add(unsigned short what, unsigned char yes, unsigned char no, unsigned k)
{
    code[length++] = (struct sock_filter){what, yes, no, k};
}

/* Installs the filter, which then applies to all threads. */
static int confine(int count, char **names)
{
    struct sigaction action = {.sa_sigaction = refused, .sa_flags = SA_SIGINFO};
    struct sock_fprog program = {0, code};
    size_t at;
    int name;
    if (!count)
        return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
    sigaction(SIGSYS, &action, NULL);
    add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    for (name = 0; name < count && name < MOST; name++) {
        for (at = 0; at < sizeof known / sizeof *known && strcmp(known[at].name, names[name]); at++)
            ;
        if (at == sizeof known / sizeof *known) {
            printf("unknown: %s\n", names[name]);
            return 0;
        }
        add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, known[at].number);
        add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    }
    add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRAP);
    program.len = length;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return 0;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    int thread, stack;
    SITE("main;work;launch");
    launch(0);
    cudaDeviceSynchronize();
    if (!confine(argc - 1, argv + 1)) {
        printf("no filter: %d\n", errno);
        fflush(stdout);
        return 75;
    }
    for (thread = 0; thread < 2; thread++)
        pthread_create(&threads[thread], NULL, work_and_wait, NULL);
    work(NULL);
    for (stack = 0; stack < 3; stack++) {
        getcontext(&other);
        other.uc_stack.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        other.uc_stack.ss_size = STACK;
        other.uc_link = &back;
        makecontext(&other, on_another_stack, 0);
        swapcontext(&back, &other);
    }
    for (thread = 0; thread < 2; thread++)
        pthread_join(threads[thread], NULL);
    /* gpuflame writes a checkpoint during this pause. */
    nanosleep(&PAUSE, NULL);
    cudaDeviceSynchronize();
    if (getenv("ENDS_BY"))
        raise(atoi(getenv("ENDS_BY")));
    return CODE;
}
