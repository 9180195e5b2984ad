/* threads ALIVE ROUNDS: in each of ROUNDS rounds, ALIVE threads run at the same time. Each thread launches twice and
 * ends. */
#include "cuda_mini.h"

#include <pthread.h>
#include <stdlib.h>

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(step_d700, "step_d700", (int n), &n)

static pthread_barrier_t barrier;

OWN_FRAME static void *worker(void *nothing)
{
    SITE("worker");
    LAUNCH(step_d700, 1, 32, 0)(1);
    pthread_barrier_wait(&barrier); /* now all threads of the round exist */
    LAUNCH(step_d700, 1, 32, 0)(2);
    __asm__ volatile("" ::: "memory");
    return nothing;
}

int main(int argc, char **argv)
{
    int alive = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 1, i;
    pthread_t *ids = calloc((size_t)alive, sizeof *ids);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    pthread_barrier_init(&barrier, NULL, (unsigned)alive);
    while (rounds-- > 0) {
        for (i = 0; i < alive; i++)
            if (pthread_create(&ids[i], &small, worker, NULL))
                return 1;
        for (i = 0; i < alive; i++)
            pthread_join(ids[i], NULL);
    }
    return 0;
}
