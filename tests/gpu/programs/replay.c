/* replay RECORDING: replays a recording on the simulated stack to the injected CUPTI client. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *cupti;
    int (*init)(unsigned), (*play)(const char *);
    if (argc != 2 || !cuda)
        return 2;
    *(void **)&init = dlsym(cuda, "cuInit");
    if (!init || init(0))
        return 1;
    /* The client has already loaded libcupti under one of these sonames. */
    cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
    *(void **)&play = cupti ? dlsym(cupti, "gpusim_replay") : NULL;
    if (!play) {
        fprintf(stderr, "replay: no client has loaded a simulated libcupti.so.13\n");
        return 1;
    }
    return play(argv[1]);
}
