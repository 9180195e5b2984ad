/* Declares the few CUDA functions that test programs and examples call. With this header, the programs build without a
 * CUDA toolkit and run on the simulated CUDA stack. The declarations are our own; types that are opaque in CUDA's
 * headers are `void *` here. Programs that nvcc compiles do not need this file.
 *
 *     #include "cuda_mini.h"
 *     KERNEL(gemm, "_Z4gemmPfi", (float *a, int n), &a, &n)     // as if: __global__ void gemm(float *, int)
 *     int main(void) { LAUNCH(gemm, 64, 256, 0)(a, n); return cudaDeviceSynchronize(); }
 *
 *     gcc program.c -I tests/gpusim/include -L DIR -lcudart     // DIR: tests/gpusim/run --stage
 */
#ifndef CUDA_MINI_H
#define CUDA_MINI_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;
typedef struct dim3 {
    unsigned x, y, z;
} dim3;

enum { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum { cudaStreamNonBlocking = 1 };
#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);

cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMallocHost(void **pointer, size_t bytes);
cudaError_t cudaFreeHost(void *pointer);
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags);
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);
cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         int kind);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, int kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream);
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes);
typedef struct cudaPitchedPtr {
    void *ptr;
    size_t pitch, xsize, ysize;
} cudaPitchedPtr;
typedef struct cudaExtent {
    size_t width, height, depth;
} cudaExtent;
typedef struct cudaPos {
    size_t x, y, z;
} cudaPos;
typedef struct cudaMemcpy3DParms {
    void *srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    void *dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    cudaExtent extent;
    int kind;
} cudaMemcpy3DParms;
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms *what);
typedef struct cudaArray *cudaArray_t;
typedef struct cudaChannelFormatDesc {
    int x, y, z, w, f;
} cudaChannelFormatDesc;
cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, int kind);
cudaError_t cudaMallocArray(cudaArray_t *array, const cudaChannelFormatDesc *of, size_t width, size_t height, unsigned flags);
cudaError_t cudaFreeArray(cudaArray_t array);
cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width, size_t height,
                                int kind);
cudaError_t cudaMemcpy2DFromArray(void *to, size_t pitch, cudaArray_t from, size_t x, size_t y, size_t width, size_t height,
                                  int kind);
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms *what, cudaStream_t stream);
/* cudaMemcpyBatchAsync as declared in CUDA 13; the attributes of the copies have no effect in the simulation. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes, size_t count,
                                 void *attributes, size_t *attribute_indices, size_t attribute_count,
                                 cudaStream_t stream);
/* cudaMemLocation as declared in CUDA 13; type 1 is a device, type 2 is the host. */
typedef struct cudaMemLocation {
    int type, id;
} cudaMemLocation;
cudaError_t cudaMemPrefetchAsync(const void *start, size_t bytes, cudaMemLocation location, unsigned flags,
                                 cudaStream_t stream);
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height);
cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventDestroy(cudaEvent_t event);

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream);
/* Kernel launches with attributes. Attribute id 6 is programmatic stream serialization, id 7 is a programmatic
 * event. */
typedef struct cudaLaunchAttribute {
    int id, pad;
    union {
        char bytes[64];
        int programmaticStreamSerializationAllowed;
        struct {
            cudaEvent_t event;
            int flags, triggerAtBlockStart;
        } programmaticEvent;
    } val;
} cudaLaunchAttribute;
typedef struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args);
cudaError_t cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                  cudaStream_t stream);
/* Functions for graphs. */
typedef void *cudaGraph_t, *cudaGraphNode_t, *cudaGraphExec_t;
struct cudaKernelNodeParams {
    void *func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
};
struct cudaMemsetParams {
    void *dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
};
struct cudaHostNodeParams {
    void (*fn)(void *);
    void *userData;
};
typedef struct cudaGraphExecUpdateResultInfo {
    int result;
    cudaGraphNode_t errorNode, errorFromNode;
} cudaGraphExecUpdateResultInfo;
enum { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status);
cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *edges, size_t count,
                                   const struct cudaKernelNodeParams *params);
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *edges,
                                     size_t count, void *to, const void *from, size_t bytes, int kind);
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *edges, size_t count,
                                   const struct cudaMemsetParams *params);
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *edges, size_t count,
                                 const struct cudaHostNodeParams *params);
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *edges,
                                       size_t count, cudaGraph_t child);
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *edges, size_t count);
cudaError_t cudaGraphClone(cudaGraph_t *copy, cudaGraph_t graph);
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *), void *data);
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

/* Functions that are called by the host code that nvcc generates. */
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function, const char *name,
                            int thread_limit, void *thread, void *block, void *block_size, void *grid_size,
                            int *warp_size);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);

/* Driver API functions, for programs that link with -lcuda. */
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params,
                        void **extra);

/* Sets the calling thread's call site: the names of the functions that the thread is in, from the root, separated by
 * semicolons. The simulation's truth file contains the call site of every kernel, copy and memset. On a real CUDA stack
 * this function does not exist, so its address is NULL. */
__attribute__((weak)) void gpusim_site(const char *path);

/* Functions for programs that run on the stepped clock (GPUSIM_CLOCK=stepped, see README.md). If the clock is not
 * stepped, and on a real CUDA stack, these functions do nothing. `gpusim_work` advances the calling thread's clock. If
 * a program calls CUDA on several threads, it must declare each thread: the parent calls `gpusim_fork` before it
 * creates the thread, and the new thread passes the result of that call to `gpusim_begin`. Declared threads must wait
 * for each other with the last four functions. If a thread waits in any other way, the clocks of all threads stop. */
__attribute__((weak)) void gpusim_work(unsigned long long ns);
__attribute__((weak)) unsigned long long gpusim_fork(void);
__attribute__((weak)) void gpusim_begin(unsigned long long thread);
__attribute__((weak)) void gpusim_join(unsigned long long thread);
__attribute__((weak)) void gpusim_lock(unsigned long long lock);
__attribute__((weak)) void gpusim_unlock(unsigned long long lock);
__attribute__((weak)) void gpusim_meet(unsigned long long meeting, unsigned long long threads);

#ifdef __cplusplus
}
#endif

#define WORK(ns) (gpusim_work ? gpusim_work(ns) : (void)0)
#define SITE(path) (gpusim_site ? gpusim_site(path) : (void)0)

/* KERNEL(name, "mangled", (parameters), &each, &parameter): defines a host stub like nvcc's, which is registered before
 * main. For a kernel without parameters: KERNEL(name, "mangled", (void), NULL). */
#define KERNEL(name, mangled, parameters, ...)                                                          \
    __attribute__((noinline)) static void name parameters {                                             \
        void *args_[] = {__VA_ARGS__};                                                                  \
        dim3 grid_, block_;                                                                             \
        size_t shared_;                                                                                 \
        cudaStream_t stream_;                                                                           \
        if (__cudaPopCallConfiguration(&grid_, &block_, &shared_, &stream_) == cudaSuccess)             \
            cudaLaunchKernel((const void *)name, grid_, block_, args_, shared_, stream_);               \
    }                                                                                                   \
    __attribute__((constructor)) static void name##_register_(void) {                                   \
        static int binary_;                                                                             \
        static char mangled_[] = mangled;                                                               \
        void **handle_ = __cudaRegisterFatBinary(&binary_);                                             \
        __cudaRegisterFunction(handle_, (const char *)name, mangled_, mangled, -1, 0, 0, 0, 0, 0);      \
        __cudaRegisterFatBinaryEnd(handle_);                                                            \
    }

/* LAUNCH(name, blocks, threads, stream)(arguments): does what `name<<<blocks, threads, 0, stream>>>(arguments)` does. */
#define LAUNCH(name, blocks, threads, stream)                                                           \
    __cudaPushCallConfiguration(DIM_(blocks), DIM_(threads), 0, stream) ? (void)0 : name
#ifdef __cplusplus
#define DIM_(n) dim3{(unsigned)(n), 1, 1}
#else
#define DIM_(n) ((dim3){(n), 1, 1})
#endif

#endif
