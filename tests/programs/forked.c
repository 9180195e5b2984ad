/* Launches 100 kernels and creates a child that launches 10 kernels and ends. The program prints how the child ended,
 * launches 100 more kernels, and exits with code 7.
 *
 *     forked WAY END
 *
 * - WAY is the way in which the child is created: `fork`, `_Fork` (no fork handlers run), `clone` (the system call,
 *   which bypasses even the C library), or `vfork` (the child shares its parent's memory, so its launches count as its
 *   parent's launches).
 * - END is the way in which the child ends: `_exit`, `exit` or `quick_exit` with code 5, or `SIGTERM`, which the child
 *   sends to itself. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(work_d1000, "work_d1000", (int n), &n)

OWN_FRAME static void launch(int count)
{
    SITE("main;launch");
    while (count-- > 0)
        LAUNCH(work_d1000, 1, 32, 0)(1);
}

static void end(const char *how)
{
    launch(10);
    if (!strcmp(how, "exit"))
        exit(5);
    if (!strcmp(how, "quick_exit"))
        quick_exit(5);
    if (!strcmp(how, "SIGTERM"))
        kill((pid_t)syscall(SYS_getpid), SIGTERM);
    _exit(5);
}

int main(int count, char **arguments)
{
    const char *way = arguments[1], *how = arguments[count - 1];
    int status;
    pid_t child;
    alarm(60);
    launch(100);
    cudaDeviceSynchronize();
    if (!strcmp(way, "vfork")) {
        child = vfork();
        if (child == 0)
            end(how);
    } else {
        child = !strcmp(way, "_Fork")  ? _Fork()
                : !strcmp(way, "fork") ? fork()
                                       : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0)
            end(how);
    }
    if (waitpid(child, &status, 0) != child)
        return 1;
    if (WIFSIGNALED(status))
        printf("signal %d\n", WTERMSIG(status));
    else
        printf("code %d\n", WEXITSTATUS(status));
    launch(100);
    cudaDeviceSynchronize();
    exit(7);
}
