/* Starts threads that run fibers (ucontext) on stacks of many sizes. Stacks are unmapped and mapped again, so they
 * reuse earlier addresses and are next to other stacks. Four threads run at the same time; after they end, four new
 * threads run, THREADS times in total. Each thread runs FIBERS fibers, ROUNDS times. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(step_d100, "step_d100", (int n), &n)

enum { LAUNCHES = 20 };

struct fiber {
    ucontext_t own, *back;
    void *stack;
    size_t size;
    unsigned seed;
    int is_done;
};

static __thread struct fiber *current;
static int fiber_count, rounds;

OWN_FRAME static void dig(int depth)
{
    char kept[64];
    __asm__ volatile("" : : "r"(kept) : "memory");
    if (depth > 0)
        dig(depth - 1);
    else
        LAUNCH(step_d100, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void yield(void)
{
    swapcontext(&current->own, current->back);
    KEEP_FRAME();
}

OWN_FRAME static void fiber(void)
{
    int launch;
    for (launch = 0; launch < LAUNCHES; launch++) {
        dig(rand_r(&current->seed) % 40);
        yield();
    }
    current->is_done = 1;
    yield();
}

/* With a probability of 1/2, replaces the fiber's stack by a new stack of 64 to 300 KiB. */
static void renew_stack(struct fiber *f, unsigned *seed)
{
    if (f->stack && rand_r(seed) % 2) {
        munmap(f->stack, f->size);
        f->stack = NULL;
    }
    if (!f->stack) {
        f->size = (16 + rand_r(seed) % 60) << 12;
        f->stack = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
}

static void make(struct fiber *f, ucontext_t *scheduler, unsigned *seed)
{
    getcontext(&f->own);
    f->own.uc_stack.ss_sp = f->stack;
    f->own.uc_stack.ss_size = f->size;
    f->back = scheduler;
    f->seed = rand_r(seed);
    f->is_done = 0;
    makecontext(&f->own, fiber, 0);
}

static void *thread(void *number)
{
    unsigned seed = (unsigned)(size_t)number;
    struct fiber *fibers = calloc(fiber_count, sizeof *fibers);
    ucontext_t scheduler;
    int round, f, left;
    for (round = 0; round < rounds; round++) {
        for (f = 0; f < fiber_count; f++) {
            renew_stack(&fibers[f], &seed);
            make(&fibers[f], &scheduler, &seed);
        }
        do {
            left = 0;
            for (f = 0; f < fiber_count; f++)
                if (!fibers[f].is_done) {
                    current = &fibers[f];
                    swapcontext(&scheduler, &current->own);
                    left += !current->is_done;
                }
        } while (left);
    }
    for (f = 0; f < fiber_count; f++)
        munmap(fibers[f].stack, fibers[f].size);
    free(fibers);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[4];
    int turn, t, turns = argc > 1 ? atoi(argv[1]) : 1;
    fiber_count = argc > 2 ? atoi(argv[2]) : 60;
    rounds = argc > 3 ? atoi(argv[3]) : 5;
    for (turn = 0; turn < turns; turn++) {
        for (t = 0; t < 4; t++)
            pthread_create(&threads[t], NULL, thread, (void *)(size_t)(turn * 4 + t + 1));
        for (t = 0; t < 4; t++)
            pthread_join(threads[t], NULL);
    }
    return cudaDeviceSynchronize();
}
