/* Does many things at the same time that are hard for an unwinder: stacks that are mapped and unmapped, plugins that
 * are loaded and unloaded at one address, forks, signal handlers, loader namespaces, wrong unwind information, and
 * ranges.
 *
 *     stress SECONDS PLUGIN...
 *
 * After SECONDS, the program continues until it has done each action more than 20 times, however slow the machine is.
 * Each way to launch has its own kernel. At the end the program prints the number of launches of each kernel, and how
 * often it did each of the other actions. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "nvtx_mini.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(fiber_d1000, "fiber_d1000", (int n), &n)
KERNEL(range_d1000, "range_d1000", (int n), &n)
KERNEL(wrong_d1000, "wrong_d1000", (int n), &n)
KERNEL(plugin0_d1000, "plugin0_d1000", (int n), &n)
KERNEL(plugin1_d1000, "plugin1_d1000", (int n), &n)

static volatile int done;
static unsigned long launched[5], stacks_gone, reloads, at_one_address, namespaces, forks, handled;

#define COUNT(what) ((void)__atomic_add_fetch(&(what), 1, __ATOMIC_RELAXED))

static sigset_t alarms;

/* Opens each range name once on this thread, so that a signal handler allocates nothing later; then unblocks
 * signals. */
static void let_handlers_come(void)
{
    nvtxRangePushA("in a handler");
    nvtxRangePop();
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
}

static void handler(int signal)
{
    (void)signal;
    nvtxRangePushA("in a handler");
    nvtxRangePop();
    COUNT(handled);
}

/* Calls `function` on the stack that ends at `top`. The unwind information of this function's frame leads from that
 * stack back to the thread's own stack. */
OWN_FRAME static void call_on(char *top, void (*function)(void))
{
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %0, %%rsp\n\tcall *%1\n\tmov %%rbx, %%rsp"
                     :
                     : "r"(top), "r"(function)
                     : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}

OWN_FRAME static void on_a_fiber(void)
{
    LAUNCH(fiber_d1000, 1, 32, 0)(1);
    COUNT(launched[0]);
    KEEP_FRAME();
}

static void *fibers(void *nothing)
{
    enum { COUNT = 32, BYTES = 256 << 10 };
    char *stacks[COUNT] = {0};
    unsigned seed = 1;
    int i;
    let_handlers_come();
    SITE("call_on;on_a_fiber");
    while (!done) {
        i = rand_r(&seed) % COUNT;
        if (!stacks[i]) {
            stacks[i] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stacks[i] == MAP_FAILED)
                exit(4);
        }
        call_on(stacks[i] + BYTES - 64 * (i % 4), on_a_fiber);
        if (rand_r(&seed) % 3 == 0) {
            int at = rand_r(&seed) % COUNT;
            if (stacks[at]) {
                munmap(stacks[at], BYTES);
                COUNT(stacks_gone);
            }
            stacks[at] = NULL;
        } else if (rand_r(&seed) % 16 == 0) {
            int at = rand_r(&seed) % COUNT;
            if (stacks[at]) {
                mprotect(stacks[at], BYTES, PROT_NONE);
                mprotect(stacks[at], BYTES, PROT_READ | PROT_WRITE);
            }
        }
    }
    return nothing;
}

static char **plugins;
static int plugin_count;

static void *plug(void *nothing)
{
    void *last = NULL;
    int i;
    let_handlers_come();
    for (i = 0; !done; i++) {
        int which = i % plugin_count, times;
        void *library = dlopen(plugins[which], RTLD_NOW | RTLD_LOCAL);
        void (*run)(const void *) = library ? (void (*)(const void *))dlsym(library, "plugin_run") : NULL;
        if (!run)
            exit(5);
        at_one_address += (void *)run == last;
        last = (void *)run;
        reloads++;
        SITE(which ? "plug;plugin_run;inner_green" : "plug;plugin_run;inner_red");
        for (times = 0; times < 20; times++) {
            run(which ? (const void *)plugin1_d1000 : (const void *)plugin0_d1000);
            COUNT(launched[3 + which]);
        }
        dlclose(library);
        if (i % 50 == 0) {
            void *elsewhere = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
            if (elsewhere) {
                dlclose(elsewhere);
                namespaces++;
            }
        }
    }
    return nothing;
}

void under_wrong(void);
OWN_FRAME void under_wrong(void)
{
    LAUNCH(wrong_d1000, 1, 32, 0)(1);
    COUNT(launched[2]);
    KEEP_FRAME();
}

/* Functions with wrong unwind information: a frame size of a megabyte, an odd frame size, a wrong place of a saved
 * register, and a number as the caller's stack pointer. */
void wrong_large(void), wrong_odd(void), wrong_register(void), wrong_number(void);
__asm__(".macro wrong name, rule:vararg\n"
        ".globl \\name\n.type \\name,@function\n\\name:\n.cfi_startproc\n"
        "push %rbx\nsub $16, %rsp\nmov $64, %ebx\n\\rule\ncall under_wrong\nadd $16, %rsp\npop %rbx\nret\n"
        ".cfi_endproc\n.size \\name,.-\\name\n.endm\n"
        "wrong wrong_large, .cfi_def_cfa_offset 1048576\n"
        "wrong wrong_odd, .cfi_def_cfa_offset 37\n"
        "wrong wrong_register, .cfi_def_cfa %rbx, 8\n"
        "wrong wrong_number, .cfi_escape 0x16, 7, 2, 8, 64\n");

static void *be_wrong(void *nothing)
{
    void (*const all[])(void) = {wrong_large, wrong_odd, wrong_register, wrong_number};
    int i;
    let_handlers_come();
    const char *const sites[] = {"wrong_large;under_wrong", "wrong_odd;under_wrong", "wrong_register;under_wrong",
                                 "wrong_number;under_wrong"};
    for (i = 0; !done; i++) {
        SITE(sites[i % 4]);
        all[i % 4]();
    }
    return nothing;
}

OWN_FRAME static void in_ranges(int i)
{
    char name[32], site[64];
    snprintf(name, sizeof name, "step-%d", i % 50);
    snprintf(site, sizeof site, "ranges;in_ranges;[range]%s", name);
    SITE(site);
    nvtxRangePushA(name);
    LAUNCH(range_d1000, 1, 32, 0)(1);
    COUNT(launched[1]);
    nvtxRangePop();
    KEEP_FRAME();
}

static void *ranges(void *nothing)
{
    int i;
    let_handlers_come();
    for (i = 0; !done; i++)
        in_ranges(i);
    return nothing;
}

static int fork_one(void)
{
    int status = 0;
    pid_t child = forks % 2 ? _Fork() : fork();
    if (child == 0) {
        alarm(300);
        nvtxRangePushA("in a child");
        nvtxDomainCreateA("in a child");
        nvtxRangePop();
        _exit(0);
    }
    waitpid(child, &status, 0);
    forks++;
    return status == 0;
}

/* Returns whether each action was done more than 20 times. */
static int is_enough(void)
{
    const unsigned long counts[] = {launched[0], launched[1], launched[2],     launched[3], launched[4], stacks_gone,
                                    reloads,     at_one_address, namespaces, forks,       handled};
    size_t i;
    for (i = 0; i < sizeof counts / sizeof *counts; i++)
        if (__atomic_load_n(&counts[i], __ATOMIC_RELAXED) <= 20)
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    void *(*const work[])(void *) = {fibers, plug, be_wrong, ranges};
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {0};
    pthread_t ids[4];
    time_t end, latest;
    size_t i;
    if (argc < 4)
        return 2;
    plugins = argv + 2;
    plugin_count = argc - 2 < 2 ? argc - 2 : 2;
    cudaFree(0);
    nvtxRangePushA("first");
    nvtxRangePop();
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    end = time(NULL) + atoi(argv[1]);
    latest = end + 600;
    for (i = 0; i < 4; i++)
        pthread_create(&ids[i], NULL, work[i], NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    while (time(NULL) < end || (!is_enough() && time(NULL) < latest)) {
        if (!fork_one())
            return 6;
        usleep(20000);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    done = 1;
    for (i = 0; i < 4; i++)
        pthread_join(ids[i], NULL);
    cudaDeviceSynchronize();
    printf("fiber_d1000 %lu\nrange_d1000 %lu\nwrong_d1000 %lu\nplugin0_d1000 %lu\nplugin1_d1000 %lu\n", launched[0],
           launched[1], launched[2], launched[3], launched[4]);
    printf("stacks_gone %lu\nreloads %lu\nat_one_address %lu\nnamespaces %lu\nforks %lu\nhandled %lu\n", stacks_gone,
           reloads, at_one_address, namespaces, forks, handled);
    return 0;
}
