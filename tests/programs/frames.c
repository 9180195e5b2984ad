/* Actions for Python test programs that Python itself cannot take: launching for long without its lock, launching while
 * it holds the lock, and corrupting Python's frames. This file is built as a library. */
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda_mini.h"

KERNEL(step_d100, "step_d100", (int n), &n)

static atomic_int launched;
static atomic_int is_over;

void launch_once(void)
{
    LAUNCH(step_d100, 1, 32, 0)(1);
    atomic_fetch_add(&launched, 1);
}

/* Launches until `stop` is called, or without end: for threads that the end of the program kills. */
void launch_on(void)
{
    while (!atomic_load(&is_over)) {
        launch_once();
        usleep(20);
    }
}

void stop(void)
{
    atomic_store(&is_over, 1);
}

/* Waits until `more` further launches were made; returns 0 if they were not made within a minute. */
int wait_for_launches(int more)
{
    int until = atomic_load(&launched) + more;
    for (int tenths = 0; tenths < 600000; tenths++) {
        if (atomic_load(&launched) >= until)
            return 1;
        usleep(100);
    }
    return 0;
}

/* Number of launches of other threads while the caller sleeps for a second and does nothing else. */
int launched_in_a_second(void)
{
    struct timespec left = {1, 0};
    int before = atomic_load(&launched);
    while (nanosleep(&left, &left) != 0)
        continue;
    return atomic_load(&launched) - before;
}

/* Launches while a word of the interpreter's memory holds a wrong value. */
void launch_with(uint64_t *word, uint64_t wrong)
{
    uint64_t right = *word;
    *(volatile uint64_t *)word = wrong;
    launch_once();
    *(volatile uint64_t *)word = right;
}

/* An address whose memory has been unmapped. */
uint64_t unmapped(void)
{
    void *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(memory, 1 << 16);
    return (uint64_t)(uintptr_t)memory;
}
