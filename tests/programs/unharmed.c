/* A program that uses its file descriptors as programs do, and checks that gpuflame has not changed any of them.
 *
 *     unharmed closes | data | early | captured | log | unfinished | closed | full | nonblocking | killed | launches
 *     unharmed refused CALL...
 *
 * - `closes`: closes descriptors 3 to 255 during the run, and opens 20 files of its own.
 * - `data`: closes descriptor 2 during the run, and opens a file under this number.
 * - `early`: as `data`, but before its first CUDA call.
 * - `captured`: redirects its stderr to a temporary file, and restores it at the end.
 * - `log`: redirects its stderr to a log file during the run.
 * - `unfinished`: writes half a line to its stderr.
 * - `refused`: after its first launches, a filter refuses the named system calls (poll, ppoll, ioctl).
 * - `closed`: starts with descriptors 0, 1 and 2 closed, and opens files under these numbers later.
 * - `full`: its stderr is a full pipe that no process reads.
 * - `nonblocking`: its stderr is a small non-blocking pipe, nearly full, with a slow reader.
 * - `killed`: the program is killed.
 * - `launches`: the program only launches. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d1000, "step_d1000", (int n), &n)

OWN_FRAME static void work(int launches)
{
    int i;
    SITE("main;work");
    for (i = 0; i < launches; i++)
        LAUNCH(step_d1000, 1, 32, 0)(i);
    cudaDeviceSynchronize();
    __asm__ volatile("" ::: "memory");
}

/* Creates a file, writes a line to it, and leaves it open. */
static int mine(int number)
{
    char name[32];
    int file;
    snprintf(name, sizeof name, "mine%d", number);
    file = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (file < 0 || write(file, "mine\n", 5) != 5)
        exit(10);
    return file;
}

static void closes(void)
{
    int i;
    work(1000);
    for (i = 3; i < 256; i++)
        close(i);
    for (i = 0; i < 20; i++)
        mine(i);
    work(10000);
}

static void data(void)
{
    work(500);
    close(2);
    if (mine(0) != 2)
        exit(11);
    work(500);
}

/* Runs before the program's first CUDA call. */
static void early(void)
{
    close(2);
    if (mine(0) != 2)
        exit(11);
    work(1000);
}

static void captured(void)
{
    int own = dup(2), file = open("captured", O_CREAT | O_RDWR | O_TRUNC, 0644);
    dup2(file, 2);
    close(file);
    work(1000);
    dup2(own, 2);
    close(own);
}

static void unfinished(void)
{
    work(500);
    if (write(2, "half a line", 11) != 11)
        exit(19);
    work(500);
}

static void refused(int count, char **names)
{
    struct sock_filter code[16];
    struct sock_fprog program = {0, code};
    int i;
    work(500);
    code[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (i = 0; i < count; i++) {
        int number = !strcmp(names[i], "poll") ? SYS_poll : !strcmp(names[i], "ppoll") ? SYS_ppoll : SYS_ioctl;
        code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        exit(75);
    work(500);
}

static void logs(void)
{
    int file = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644);
    work(500);
    dup2(file, 2);
    close(file);
    work(500);
}

static void closed(void)
{
    int i, tries, file;
    work(1000);
    /* Wait until descriptors 0 to 2 are free: another thread may have opened a file under one of these numbers to read
     * it. */
    for (i = 0; i < 3; i++)
        for (tries = 0; fcntl(i, F_GETFD) != -1; tries++, usleep(1000))
            if (tries == 60000)
                exit(12);
    for (i = 0; i < 3; i++)
        for (tries = 0; (file = mine(i)) != i; tries++, usleep(1000))
            if (tries == 1000 || close(file))
                exit(13);
    work(10000);
}

/* Replaces descriptor 2 by a pipe of one page that has only `room` free bytes; the rest is filled with lines. Returns
 * the pipe's read end. */
static int pipe_on_two(int room)
{
    int ends[2], size, i;
    if (pipe(ends) || (size = fcntl(ends[1], F_SETPIPE_SZ, 4096)) < 0)
        exit(14);
    for (i = 0; i < (size - room) / 8; i++)
        if (write(ends[1], "filling\n", 8) != 8)
            exit(15);
    dup2(ends[1], 2);
    close(ends[1]);
    return ends[0];
}

/* This exit handler is registered before gpuflame starts, so it runs after gpuflame has written its output. */
static void look_at_flags(void)
{
    if (!(fcntl(2, F_GETFL) & O_NONBLOCK))
        _exit(16);
    close(2);
    wait(NULL);
}

static void nonblocking(void)
{
    int from = pipe_on_two(64);
    if (fork() == 0) {
        char byte;
        int to = open("read", O_CREAT | O_WRONLY | O_TRUNC, 0644);
        close(2);
        usleep(100000);
        while (read(from, &byte, 1) == 1)
            if (write(to, &byte, 1) != 1)
                _exit(17);
        _exit(0);
    }
    close(from);
    fcntl(2, F_SETFL, fcntl(2, F_GETFL) | O_NONBLOCK);
    atexit(look_at_flags);
    work(1000);
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "";
    alarm(120);
    if (!strcmp(mode, "closed")) {
        close(0);
        close(1);
        close(2);
        closed();
    } else if (!strcmp(mode, "closes"))
        closes();
    else if (!strcmp(mode, "data"))
        data();
    else if (!strcmp(mode, "early"))
        early();
    else if (!strcmp(mode, "captured"))
        captured();
    else if (!strcmp(mode, "unfinished"))
        unfinished();
    else if (!strcmp(mode, "refused"))
        refused(count - 2, arguments + 2);
    else if (!strcmp(mode, "log"))
        logs();
    else if (!strcmp(mode, "full")) {
        pipe_on_two(0);
        work(1000);
    } else if (!strcmp(mode, "nonblocking"))
        nonblocking();
    else if (!strcmp(mode, "launches"))
        work(1000);
    else if (!strcmp(mode, "killed")) {
        work(20000);
        sleep(2);
        kill(getpid(), SIGKILL);
    } else
        return 18;
    return 0;
}
