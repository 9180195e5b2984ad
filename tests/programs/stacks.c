/* Launches from stacks that gpuflame cannot unwind completely. Some stacks lead through code without unwind information
 * (with or without a frame pointer), and some are deeper than the maximum. Each stack launches ten times.
 *
 *     stacks WHOLE GUESSED CUT BOTH DEEP     number of stacks of each kind */
#include "cuda_mini.h"

#include <stdlib.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")

KERNEL(step_d1000, "step_d1000", (int n), &n)

/* Two functions that call their argument. */
void with_frame_pointer(void (*)(void));
void without_frame_pointer(void (*)(void));
__asm__(
    ".text\n"
    ".type with_frame_pointer, @function\nwith_frame_pointer:\n"
    "push %rbp\nmov %rsp, %rbp\nsub $16, %rsp\ncall *%rdi\nleave\nret\n"
    ".type without_frame_pointer, @function\nwithout_frame_pointer:\n"
    "push %rbp\nmov $7, %ebp\nsub $16, %rsp\ncall *%rdi\nmov $1, %ecx\nadd $16, %rsp\npop %rbp\nret\n");

/* Number of frames below the code without unwind information; each stack of a kind has a different number. */
static int depth;

OWN_FRAME static void descend(int n)
{
    int i;
    if (n > 0)
        descend(n - 1);
    else
        for (i = 0; i < 10; i++)
            LAUNCH(step_d1000, 1, 32, 0)(i);
    KEEP;
}

OWN_FRAME static void launch(void) { descend(depth); KEEP; }
OWN_FRAME static void guessed(void) { with_frame_pointer(launch); KEEP; }
OWN_FRAME static void cut(void) { without_frame_pointer(launch); KEEP; }
OWN_FRAME static void both(void) { without_frame_pointer(guessed); KEEP; }
OWN_FRAME static void deep(void) { descend(1100 + depth); KEEP; }

int main(int argc, char **argv)
{
    void (*const kinds[])(void) = {launch, guessed, cut, both, deep};
    int kind;
    for (kind = 0; kind < 5 && kind + 1 < argc; kind++)
        for (depth = 0; depth < atoi(argv[kind + 1]); depth++)
            kinds[kind]();
    return cudaDeviceSynchronize();
}
