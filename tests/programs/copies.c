/* Makes copies and fills with each API function on GPU 0 of two GPUs, each from a C function of its own. */
#include "cuda_mini.h"

#include <stdlib.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define PITCH 512

static char *pageable, *pinned, *managed, *device, *other;
static cudaStream_t stream;
static cudaArray_t array;

/* STEP(name, call): defines a function `name` that sets its call site and makes the call. */
#define STEP(name, ...)                       \
    OWN_FRAME static int name(void)           \
    {                                         \
        int failed;                           \
        SITE("main;" #name);                  \
        failed = __VA_ARGS__;                 \
        __asm__ volatile("" ::: "memory");    \
        return failed;                        \
    }

STEP(up_pageable, cudaMemcpy(device, pageable, 1000, cudaMemcpyHostToDevice))
STEP(up_pageable_async, cudaMemcpyAsync(device, pageable, 1001, cudaMemcpyHostToDevice, stream))
STEP(up_pinned_async, cudaMemcpyAsync(device, pinned, 1002, cudaMemcpyHostToDevice, stream))
STEP(down_pinned, cudaMemcpy(pinned, device, 2000, cudaMemcpyDeviceToHost))
STEP(down_pageable, cudaMemcpy(pageable, device, 2001, cudaMemcpyDeviceToHost))
STEP(within, cudaMemcpyAsync(device + 8192, device, 3000, cudaMemcpyDeviceToDevice, stream))
STEP(on_host, cudaMemcpyAsync(pageable, pinned, 3500, cudaMemcpyHostToHost, stream))
STEP(by_address, cudaMemcpyAsync(device, pinned, 4000, cudaMemcpyDefault, stream))
STEP(from_managed, cudaMemcpyAsync(device, managed, 4500, cudaMemcpyDefault, stream))
STEP(across, cudaMemcpyPeer(other, 1, device, 0, 5000))
STEP(across_async, cudaMemcpyPeerAsync(other, 1, device, 0, 5001, stream))
STEP(across_by_address, cudaMemcpyAsync(other, device, 5002, cudaMemcpyDefault, stream))
STEP(plane, cudaMemcpy2D(device, PITCH, pinned, PITCH, 100, 20, cudaMemcpyHostToDevice))
STEP(plane_async, cudaMemcpy2DAsync(pinned, PITCH, device, PITCH, 100, 21, cudaMemcpyDeviceToHost, stream))
STEP(fill, cudaMemset(device, 7, 6000))
STEP(fill_async, cudaMemsetAsync(device, 7, 6001, stream))
STEP(fill_plane, cudaMemset2D(device, PITCH, 7, 100, 30))
STEP(nothing, cudaMemcpyAsync(device, pinned, 0, cudaMemcpyHostToDevice, stream))

STEP(to_array, cudaMemcpy2DToArray(array, 0, 0, pinned, PITCH, 64, 10, cudaMemcpyHostToDevice))
STEP(from_array, cudaMemcpy2DFromArray(pageable, PITCH, array, 0, 0, 64, 11, cudaMemcpyDeviceToHost))

static cudaMemcpy3DParms cuboid(size_t depth)
{
    cudaMemcpy3DParms what = {0};
    what.srcPtr = (cudaPitchedPtr){pageable, PITCH, PITCH, 4};
    what.dstPtr = (cudaPitchedPtr){device, PITCH, PITCH, 4};
    what.extent = (cudaExtent){100, 4, depth};
    what.kind = cudaMemcpyHostToDevice;
    return what;
}

OWN_FRAME static int volume(void)
{
    cudaMemcpy3DParms what = cuboid(2);
    SITE("main;volume");
    return cudaMemcpy3D(&what) != 0;
}

OWN_FRAME static int volume_async(void)
{
    cudaMemcpy3DParms what = cuboid(3);
    SITE("main;volume_async");
    return cudaMemcpy3DAsync(&what, stream) != 0;
}

/* The width is a number of array elements of four bytes each. */
OWN_FRAME static int volume_to_array(void)
{
    cudaMemcpy3DParms what = cuboid(2);
    what.dstPtr = (cudaPitchedPtr){0};
    what.dstArray = array;
    what.extent.width = 50;
    SITE("main;volume_to_array");
    return cudaMemcpy3DAsync(&what, stream) != 0;
}

OWN_FRAME static int fill_volume(void)
{
    SITE("main;fill_volume");
    return cudaMemset3DAsync((cudaPitchedPtr){device, PITCH, PITCH, 4}, 7, (cudaExtent){100, 4, 5}, stream) != 0;
}

OWN_FRAME static int batch(void)
{
    void *to[3] = {device, device + 1000, device + 2000};
    const void *from[3] = {pinned, pinned + 1000, pinned + 2000};
    size_t bytes[3] = {100, 200, 400};
    SITE("main;batch");
    return cudaMemcpyBatchAsync(to, from, bytes, 3, NULL, NULL, 0, stream) != 0;
}

int main(void)
{
    int failed = 0;
    pageable = malloc(1 << 16);
    cudaMallocHost((void **)&pinned, 1 << 16);
    cudaMallocManaged((void **)&managed, 1 << 16, 1);
    cudaSetDevice(1);
    cudaMalloc((void **)&other, 1 << 16);
    cudaSetDevice(0);
    cudaMalloc((void **)&device, 1 << 16);
    cudaStreamCreate(&stream);
    cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, 2);
    failed |= cudaMallocArray(&array, &floats, 64, 64, 0);
    failed |= up_pageable() | up_pageable_async() | up_pinned_async() | down_pinned() | down_pageable();
    failed |= within() | on_host() | by_address() | from_managed();
    failed |= across() | across_async() | across_by_address();
    failed |= plane() | plane_async() | volume() | volume_async() | batch();
    failed |= to_array() | from_array() | volume_to_array();
    failed |= fill() | fill_async() | fill_plane() | fill_volume() | nothing();
    failed |= cudaDeviceSynchronize();
    return failed;
}
