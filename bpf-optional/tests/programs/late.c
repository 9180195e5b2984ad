/* late LIBRARY COUNT [wait]: opens the CUDA runtime LIBRARY with `dlopen`, and then immediately launches a kernel COUNT
 * times. A watcher that does not stop the program would notice the CUDA runtime too late. The kernel does not exist, so
 * the launch calls fail, but the probes see them. With `wait`, the program waits until its standard input ends or
 * provides a byte, and then begins. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct three {
    unsigned x, y, z;
};
typedef int launches(const void *, struct three, struct three, void **, size_t, void *);

__attribute__((noinline)) static int open_late(const char *library, int count)
{
    static const struct three one = {1, 1, 1};
    void *runtime = dlopen(library, RTLD_NOW);
    launches *launch = runtime ? (launches *)dlsym(runtime, "cudaLaunchKernel") : NULL;
    int failed = 0;
    if (!launch)
        return -1;
    while (count-- > 0)
        failed += launch("no kernel", one, one, NULL, 0, NULL) != 0;
    return failed;
}

int main(int argc, char **argv)
{
    char byte;
    if (argc > 3 && !strcmp(argv[3], "wait") && fread(&byte, 1, 1, stdin) > 1)
        return 1;
    printf("failed %d\n", open_late(argv[1], atoi(argv[2])));
    return 0;
}
