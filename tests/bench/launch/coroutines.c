/* Prints the CPU time per launch in nanoseconds. COUNT coroutines take turns. Each coroutine launches once per turn, at
 * a depth of 24 calls:
 *
 *     coroutines COUNT     0: no coroutines, and the thread launches on its own stack
 *
 * Prints the fourth-fastest of 40 turns, which other load on the machine hardly affects. */
#include "cuda_mini.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
enum { TURNS = 40, A_TURN = 4000, DEPTH = 24, STACK = 64 << 10 };

KERNEL(step_d100, "step_d100", (int n), &n)

/* Switches to the stack at `to`, and stores the current stack in `from`, so that a later call can switch back to it. */
void go(void **from, void *to);
__asm__(".text\n.type go,@function\ngo:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size go,.-go\n");

static void *scheduler, **current;

OWN_FRAME static void deep(int calls)
{
    char kept[64];
    __asm__ volatile("" : : "r"(kept) : "memory");
    if (calls)
        deep(calls - 1);
    else
        LAUNCH(step_d100, 1, 32, 0)(1);
    __asm__ volatile("" ::: "memory");
}

static void coroutine(void)
{
    for (;;) {
        deep(DEPTH);
        go(current, scheduler);
    }
}

static double processor_time(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1, turn, i;
    double turns[TURNS];
    void **stacks = calloc(count + 1, sizeof *stacks);
    for (i = 0; i < count; i++) {
        uintptr_t *top;
        char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED)
            return 1;
        /* The top word is the return address of the coroutine's first function. This address is 0, because the first
         * function of a coroutine has no caller. The words below it are the address of that function and six registers.
         * */
        top = (uintptr_t *)(stack + STACK) - 1;
        *top = 0;
        *--top = (uintptr_t)coroutine;
        stacks[i] = top - 6;
    }
    for (turn = -2; turn < TURNS; turn++) {
        double began = processor_time();
        for (i = 0; i < A_TURN; i++) {
            if (!count) {
                deep(DEPTH);
                continue;
            }
            current = &stacks[i % count];
            go(&scheduler, *current);
        }
        if (turn >= 0)
            turns[turn] = (processor_time() - began) / A_TURN;
        cudaDeviceSynchronize();
        usleep(20000); /* lets the reader of the records catch up */
    }
    qsort(turns, TURNS, sizeof *turns, by_value);
    printf("%.0f\n", turns[TURNS / 10]);
    return 0;
}
