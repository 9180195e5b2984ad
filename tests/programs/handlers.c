/* Sets and queries signal actions, like programs that a signal ends.
 *
 *     handlers HOW [SIGNAL ...]
 *
 * - `view`: prints the program's signal actions, as sigaction returns them, while it sets them; returns 7.
 * - `chained SIGNAL`: sets a handler that calls the previous handler, receives the signal twice, and returns 3.
 * - `chained_at_end SIGNAL`: as `chained`, but the handler's last instruction is the call to the previous handler.
 * - `child SIGNAL`: does the same as `chained` in a forked child, and returns the child's result.
 * - `restores SIGNAL`: its handler restores the previous action, and sends the signal again.
 * - `server SIGNAL HOW`: sets a handler before it calls CUDA. The handler sets the default action, launches once more,
 *   and sends the signal to the process again. HOW is the function that sets the action: `sigaction`, `signal`, or
 *   `found` (a function that the handler looks up).
 *
 * Each mode launches 100 kernels of 1,000 ns. `chained`, `child` and `restores` query the previous action through a
 * function whose address they looked up before the first CUDA call. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

KERNEL(step_d1000, "step_d1000", (int n), &n)

typedef int set_action(int, const struct sigaction *, struct sigaction *);

static set_action *volatile kept;
static volatile sig_atomic_t calls;
static struct sigaction before;
static int number;

static void launch(int times)
{
    int i;
    for (i = 0; i < times; i++)
        LAUNCH(step_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
}

static void count(int signal)
{
    (void)signal;
    calls++;
}

static void other(int signal)
{
    (void)signal;
}

static void chain(int signal)
{
    calls++;
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
    calls++;
}

__attribute__((optimize("O2"))) static void chain_at_end(int signal)
{
    calls += 2;
    if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)
        return;
    before.sa_handler(signal);
}

static void restore(int signal)
{
    kept(signal, &before, NULL);
    raise(signal);
}

static void must(int is_so)
{
    if (!is_so)
        exit(20);
}

static void set(set_action *function, void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    must(function(number, &action, &before) == 0);
}

static int chained(void (*handler)(int))
{
    set(kept, handler);
    raise(number);
    raise(number);
    return calls == 4 ? 3 : 21;
}

static const char *name(void (*handler)(int))
{
    return handler == SIG_DFL   ? "default"
           : handler == SIG_IGN ? "ignored"
           : handler == SIG_ERR ? "error"
           : handler == count   ? "count"
           : handler == other   ? "other"
                                : "unknown";
}

static void print(const char *what, const struct sigaction *action)
{
    int signal;
    printf("%d %s: %s %x %d", number, what, name(action->sa_handler), action->sa_flags, action->sa_restorer != NULL);
    for (signal = 1; signal <= 64; signal++)
        if (sigismember(&action->sa_mask, signal) == 1)
            printf(" %d", signal);
    printf("\n");
}

static void ask(const char *when)
{
    struct sigaction action;
    must(sigaction(number, NULL, &action) == 0);
    print(when, &action);
}

static void set_and_ask(set_action *function, void (*handler)(int), int flags, int masked)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    if (masked) {
        sigaddset(&action.sa_mask, masked);
        sigaddset(&action.sa_mask, SIGKILL);
        sigaddset(&action.sa_mask, SIGRTMAX);
    }
    must(function(number, &action, &action) == 0);
    print("replaces", &action);
    ask("asks");
}

static void set_by_signal(void (*handler)(int))
{
    printf("%d signal replaces: %s\n", number, name(signal(number, handler)));
    ask("asks");
}

static void view(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGQUIT, SIGPIPE};
    set_action *found = (set_action *)dlsym(RTLD_DEFAULT, "sigaction");
    unsigned i;
    int status;
    for (i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        pid_t child;
        number = numbers[i];
        ask("begins");
        set_and_ask(sigaction, SIG_DFL, SA_RESTART | SA_NODEFER, SIGUSR2);
        set_and_ask(sigaction, SIG_DFL, 0, 0);
        set_and_ask(found, count, SA_RESTART, SIGUSR1);
        set_and_ask(sigaction, SIG_IGN, 0, 0);
        set_and_ask(found, SIG_DFL, SA_RESETHAND, SIGTERM);
        set_by_signal(other);
        raise(number);
        set_by_signal(SIG_DFL);
        set_by_signal(SIG_IGN);
        set_by_signal(SIG_DFL);
        set_by_signal(SIG_DFL);
        printf("errors: %d %d\n", sigaction(SIGKILL, &before, NULL), signal(0, SIG_DFL) == SIG_ERR);
        fflush(stdout);
        child = fork();
        if (child == 0) {
            ask("child asks");
            set_and_ask(sigaction, count, 0, 0);
            set_and_ask(sigaction, SIG_DFL, 0, 0);
            fflush(stdout);
            raise(number);
            _exit(7);
        }
        must(waitpid(child, &status, 0) == child);
        printf("child: %d %d\n", WIFSIGNALED(status), WTERMSIG(status));
    }
}

static void serve(const char *how)
{
    while (!calls)
        usleep(1000);
    if (!strcmp(how, "signal"))
        must(signal(number, SIG_DFL) == count);
    else if (!strcmp(how, "found"))
        set((set_action *)dlsym(RTLD_DEFAULT, "sigaction"), SIG_DFL);
    else
        set(sigaction, SIG_DFL);
    launch(1);
    raise(number);
    exit(22);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    alarm(120);
    kept = (set_action *)dlsym(RTLD_DEFAULT, "sigaction");
    number = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(how, "server"))
        set(kept, count);
    launch(100);
    if (!strcmp(how, "view")) {
        view();
        return 7;
    }
    if (!strcmp(how, "chained"))
        return chained(chain);
    if (!strcmp(how, "chained_at_end"))
        return chained(chain_at_end);
    if (!strcmp(how, "child")) {
        int status;
        pid_t child;
        set(kept, chain);
        child = fork();
        if (child == 0) {
            raise(number);
            raise(number);
            _exit(calls == 4 ? 3 : 21);
        }
        must(waitpid(child, &status, 0) == child);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (!strcmp(how, "restores")) {
        set(kept, restore);
        raise(number);
        exit(22);
    }
    if (!strcmp(how, "server")) {
        printf("ready\n");
        fflush(stdout);
        fclose(fopen("ready", "w"));
        serve(argc > 3 ? argv[3] : "");
    }
    return 23;
}
