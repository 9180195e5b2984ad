/* Kernels whose names would do something where they are shown: drive a terminal, go back to the start of a line, turn
 * what follows, or be computed by a spreadsheet. A range has such a name too. */
#include "cuda_mini.h"

#define OWN_FRAME __attribute__((noinline, noclone))

KERNEL(escape, "esc\x1b[31mred\x1b]0;title\x07_d1000", (int n), &n)
KERNEL(returns, "over\rwritten\nsecond\x08line_d2000", (int n), &n)
KERNEL(turned, "gemm\xe2\x80\xaemmeg\xe2\x81\xa6iso\xe2\x80\x8flate\xd8\x9cr_d3000", (int n), &n)
KERNEL(computed, "=cmd|' /C calc'!A0_d4000", (int n), &n)

OWN_FRAME static void work(void)
{
    SITE("main;work");
    LAUNCH(escape, 1, 32, 0)(1);
    LAUNCH(returns, 1, 32, 0)(1);
    LAUNCH(turned, 1, 32, 0)(1);
    LAUNCH(computed, 1, 32, 0)(1);
    cudaDeviceSynchronize();
}

int main(void)
{
    work();
    return 0;
}
