/* Launches kernels with names that would have an effect where they are displayed: they control a terminal, return to
 * the start of a line, reverse the text after them, or are formulas for a spreadsheet. Two threads, and the ranges that
 * they open, have such names too.
 *
 *     named [more | killed]
 *
 * With `more`, the program launches a second time, under another range. With `killed`, the process is killed three
 * seconds later. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "nvtx_mini.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(escape, "esc\x1b[31mred\x1b]0;title\x07_d1000", (int n), &n)
KERNEL(returns, "over\rwritten\nsecond\x08line_d2000", (int n), &n)
KERNEL(turned, "gemm\xe2\x80\xaemmeg\xe2\x81\xa6iso\xe2\x80\x8flate\xd8\x9cr_d3000", (int n), &n)
KERNEL(computed, "=cmd|' /C calc'!A0_d4000", (int n), &n)
KERNEL(added, "+1+1_d100", (int n), &n)
KERNEL(less, "-1+1_d200", (int n), &n)
KERNEL(at, "@SUM(A1:A9)_d300", (int n), &n)

static sem_t done;

OWN_FRAME static void work(const char *range)
{
    SITE("main;work");
    nvtxRangePushA(range);
    LAUNCH(escape, 1, 32, 0)(1);
    LAUNCH(returns, 1, 32, 0)(1);
    LAUNCH(turned, 1, 32, 0)(1);
    LAUNCH(computed, 1, 32, 0)(1);
    LAUNCH(added, 1, 32, 0)(1);
    LAUNCH(less, 1, 32, 0)(1);
    LAUNCH(at, 1, 32, 0)(1);
    nvtxRangePop();
    cudaDeviceSynchronize();
}

/* The Linux kernel stores only 15 bytes of a thread's name. */
OWN_FRAME static void *other(void *nothing)
{
    pthread_setname_np(pthread_self(), "-b+\x1b[3m\xe2\x80\xaet\rx");
    work("=range\x1b[31m\xe2\x80\xaeturned\rback\xe2\x81\xa7.");
    /* The thread does not end, because gpuflame can read its name only while the thread exists. */
    sem_post(&done);
    for (;;)
        pause();
    return nothing;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    pthread_t thread;
    pthread_setname_np(pthread_self(), "=m\x1b[3m\xe2\x80\xaet\rx");
    sem_init(&done, 0, 0);
    pthread_create(&thread, NULL, other, NULL);
    sem_wait(&done);
    work("@range\x1b[31m\xe2\x80\xaeturned\rback\xe2\x81\xa7.");
    if (!strcmp(how, "more"))
        work("+more\x1b[31m\xe2\x80\xaeturned\rback\xe2\x81\xa7.");
    if (!strcmp(how, "killed")) {
        sleep(3);
        kill(getpid(), SIGKILL);
    }
    return 0;
}
