/* Measures how much longer it takes to start a program with a library in LD_PRELOAD.
 *
 *     exec TIMES LIBRARY...
 *
 * In each of TIMES rounds, starts /bin/true without a library and then with each library, and waits for each run.
 * Prints two medians for each library, in microseconds: the median time, and the median difference from the run without
 * a library in the same round. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static double start(const char *library)
{
    static char variable[4096];
    char *words[] = {"true", NULL}, *with[] = {variable, NULL}, *without[] = {NULL};
    double begin;
    int status;
    pid_t child;
    if (library)
        snprintf(variable, sizeof variable, "LD_PRELOAD=%s", library);
    begin = now();
    child = vfork();
    if (child == 0) {
        execve("/bin/true", words, library ? with : without);
        _exit(9);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        exit(3);
    return now() - begin;
}

static int in_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, long count)
{
    qsort(values, count, sizeof *values, in_order);
    return values[count / 2];
}

int main(int count, char **words)
{
    long times = count > 1 ? atol(words[1]) : 0, turn;
    int libraries = count - 1, at;
    double *all[MOST], *more[MOST];
    if (times < 1 || libraries > MOST)
        return 2;
    /* The first entry of the list is empty: it is the run without a library. */
    for (at = 0; at < libraries; at++) {
        all[at] = malloc(times * sizeof **all);
        more[at] = malloc(times * sizeof **more);
    }
    for (turn = 0; turn < times; turn++)
        for (at = 0; at < libraries; at++) {
            all[at][turn] = start(at ? words[at + 1] : NULL);
            more[at][turn] = all[at][turn] - all[0][turn];
        }
    for (at = 0; at < libraries; at++)
        printf("%.1f %.1f\n", median(all[at], times), median(more[at], times));
    return 0;
}
