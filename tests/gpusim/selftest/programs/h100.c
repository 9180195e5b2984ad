/* Prints a line for each device attribute whose number is on the command line, with the values that the driver and the
 * runtime return. */
#include "cuda_mini.h"
#include <stdio.h>
#include <stdlib.h>

int cuDeviceGetAttribute(int *, int, CUdevice);
int cuDeviceTotalMem_v2(size_t *, CUdevice);
int cudaDeviceGetAttribute(int *, int, int);

int main(int argc, char **argv) {
    size_t bytes;
    if (cuInit(0)) return 1;
    for (int device = 0; device < 2; device++) {
        for (int i = 1; i < argc; i++) {
            int driver, runtime, what = atoi(argv[i]);
            if (cuDeviceGetAttribute(&driver, what, device) || cudaDeviceGetAttribute(&runtime, what, device)) return 2;
            printf("%d: %d %d\n", what, driver, runtime);
        }
        if (cuDeviceTotalMem_v2(&bytes, device)) return 3;
        printf("%zu MiB\n", bytes >> 20);
    }
    return cuDeviceGetAttribute(&argc, 16, 2) == 101 ? 0 : 4;
}
