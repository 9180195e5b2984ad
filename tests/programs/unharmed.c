/* A host that does with its descriptors what hosts do, and looks whether somebody else did something to them.
 *
 *     unharmed closes | data | log | closed | full | nonblocking | killed | launches
 *
 * closes: closes 3 to 255 in mid-run and opens 20 files of its own. data: closes 2 in mid-run, and opens a file there.
 * log: moves its stderr to a log in mid-run.
 * closed: begins with 0, 1 and 2 closed, and opens files on them later. full: its stderr is a pipe that is full and that nobody reads.
 * nonblocking: its stderr is a small pipe that does not block, nearly full, with a slow reader. killed: it is.
 * launches: does nothing but that. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* A new file with a line in it, which stays open. */
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
    int i;
    work(1000);
    usleep(100000);
    for (i = 0; i < 3; i++)
        if (fcntl(i, F_GETFD) != -1)
            exit(12);
    for (i = 0; i < 3; i++)
        if (mine(i) != i)
            exit(13);
    work(10000);
}

/* A pipe of one page on 2, with all but `room` bytes of lines in it. Returns where to read. */
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

/* Registered before gpuflame comes in, and so called after it has written. */
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
