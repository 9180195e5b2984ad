/* Library functions for Python test programs that Python code cannot implement: launch for a long time without Python's
 * lock, launch with the lock held, corrupt Python's frames, and spin. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda_mini.h"

KERNEL(step_d100, "step_d100", (int n), &n)

static atomic_int launched;
static atomic_int is_over;

void launch_once(void)
{
    LAUNCH(step_d100, 1, 32, 0)(1);
    atomic_fetch_add(&launched, 1);
}

/* Launches kernels until `stop` is called. If `stop` is not called, the thread launches until the program ends. */
void launch_on(void)
{
    while (!atomic_load(&is_over)) {
        launch_once();
        usleep(20);
    }
}

void stop(void)
{
    atomic_store(&is_over, 1);
}

/* Waits until `more` launches have been made since the call; returns 0 if this takes longer than a minute. */
int wait_for_launches(int more)
{
    int until = atomic_load(&launched) + more;
    for (int tenths = 0; tenths < 600000; tenths++) {
        if (atomic_load(&launched) >= until)
            return 1;
        usleep(100);
    }
    return 0;
}

/* Sleeps for a second, and returns the number of launches that other threads made in this second. */
int launched_in_a_second(void)
{
    struct timespec left = {1, 0};
    int before = atomic_load(&launched);
    while (nanosleep(&left, &left) != 0)
        continue;
    return atomic_load(&launched) - before;
}

/* Makes Linux refuse a system call from this thread and from the threads that it starts, as in a container. */
static int refuse(unsigned call)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {4, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
}

int refuse_events(void)
{
    return refuse(SYS_perf_event_open);
}

int refuse_reads(void)
{
    return refuse(SYS_process_vm_readv);
}

/* Spins until the thread has used this many milliseconds of CPU time. */
void spin(int milliseconds)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    int64_t until = now.tv_sec * 1000000000LL + now.tv_nsec + milliseconds * 1000000LL;
    while (now.tv_sec * 1000000000LL + now.tv_nsec < until)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
}

/* Writes a wrong value to a word of the interpreter's memory, launches, and restores the word. */
void launch_with(uint64_t *word, uint64_t wrong)
{
    uint64_t right = *word;
    *(volatile uint64_t *)word = wrong;
    launch_once();
    *(volatile uint64_t *)word = right;
}

/* Returns an address whose memory has been unmapped. */
uint64_t unmapped(void)
{
    void *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(memory, 1 << 16);
    return (uint64_t)(uintptr_t)memory;
}
