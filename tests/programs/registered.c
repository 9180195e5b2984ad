/* Launches from code that was generated at run time without a frame pointer. Only libgcc knows the code's unwind
 * information (`__register_frame`). Therefore gpuflame's stack ends at this code, and libgcc's stack does not.
 *
 *     registered KNOWN     1: launches through that code; 0: does not */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

KERNEL(step_d1000, "step_d1000", (float *x), &x)

void __register_frame(void *);

static void launch(void)
{
    for (int i = 0; i < 10; i++)
        LAUNCH(step_d1000, 1, 128, 0)(NULL);
}

/* push rbp; mov ebp, 7; call rdi; mov ecx, 1; pop rbp; ret */
static const unsigned char code[] = {0x55, 0xbd, 7, 0, 0, 0, 0xff, 0xd7, 0xb9, 1, 0, 0, 0, 0x5d, 0xc3};

/* Unwind information: a CIE (CFA = rsp + 8, return address at CFA - 8) and an FDE (CFA = rsp + 16 after the push). */
static const unsigned char frames[] = {
    20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1, 0, 0,
    28, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, sizeof code, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x86, 2, 0, 0,
    0, 0, 0, 0};

int main(int argc, char **argv)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 1;
    memcpy(page, code, sizeof code);
    memcpy(page + 64, frames, sizeof frames);
    memcpy(page + 64 + 32, &page, sizeof page);
    __register_frame(page + 64);
    if (argc > 1 && atoi(argv[1]))
        ((void (*)(void (*)(void)))(uintptr_t)page)(launch);
    else
        launch();
    return cudaDeviceSynchronize();
}
