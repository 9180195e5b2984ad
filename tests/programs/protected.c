/* A program that is linked with CUPTI and stores the address of a CUPTI function in a page that is unreadable while
 * CUDA starts. The program prints whether the stored address still equals the address that the dynamic linker finds.
 * The program's exit status is 7. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>

enum { PAGE = 4096, STATUS = 7 };

int cuptiActivityDisable(int);

static struct {
    int (*disable)(int);
    char rest[PAGE - sizeof(void *)];
} page __attribute__((aligned(PAGE))) = {cuptiActivityDisable, {1}};

KERNEL(step_d1000, "step_d1000", (int n), &n)

int main(void)
{
    SITE("main");
    if (mprotect(&page, PAGE, PROT_NONE))
        return 2;
    LAUNCH(step_d1000, 1, 32, 0)(1);
    cudaDeviceSynchronize();
    if (mprotect(&page, PAGE, PROT_READ | PROT_WRITE))
        return 3;
    printf("%d\n", (void *)page.disable == dlsym(RTLD_DEFAULT, "cuptiActivityDisable"));
    return STATUS;
}
