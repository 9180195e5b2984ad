/* direct COUNT: launches a kernel that does not exist COUNT times. The program is linked with the CUDA runtime. The
 * launch calls fail, but the probes see them. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct three {
    unsigned x, y, z;
};
int cudaLaunchKernel(const void *, struct three, struct three, void **, size_t, void *);

__attribute__((noinline)) static int launch(int count)
{
    static const struct three one = {1, 1, 1};
    int failed = 0;
    while (count-- > 0)
        failed += cudaLaunchKernel("no kernel", one, one, NULL, 0, NULL) != 0;
    return failed;
}

int main(int argc, char **argv)
{
    printf("failed %d\n", argc > 1 ? launch(atoi(argv[1])) : 0);
    return 0;
}
