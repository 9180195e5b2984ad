/* Tests memory pools that the program creates and shares, memory whose handle is sent to another process, and the
 * linker for GPU code. */
#include "cuda_mini.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

cudaError_t cudaMemPoolCreate(void **, const void *);
cudaError_t cudaMemPoolDestroy(void *);
cudaError_t cudaMemPoolGetAccess(unsigned *, void *, const void *);
cudaError_t cudaMallocFromPoolAsync(void **, size_t, void *, cudaStream_t);
cudaError_t cudaMemPoolExportToShareableHandle(void *, void *, unsigned, unsigned);
cudaError_t cudaMemPoolImportFromShareableHandle(void **, void *, unsigned, unsigned);
cudaError_t cudaMemPoolExportPointer(void *, void *);
cudaError_t cudaMemPoolImportPointer(void **, void *, const void *);
int cuMemCreate(unsigned long long *, size_t, const void *, unsigned long long);
int cuMemExportToShareableHandle(void *, unsigned long long, unsigned, unsigned long long);
int cuMemImportFromShareableHandle(unsigned long long *, void *, unsigned);
int cuMemGetAllocationPropertiesFromHandle(void *, unsigned long long);
int cuMemRelease(unsigned long long);
int cuLinkCreate_v2(unsigned, const void *, const void *, void **);
int cuLinkAddData_v2(void *, unsigned, const void *, size_t, const char *, unsigned, const void *, const void *);
int cuLinkComplete(void *, const void **, size_t *);
int cuLinkDestroy(void *);

enum { DESCRIPTOR = 1 };

/* Runs in another process, which has received the file descriptor of the memory pool and the 64 bytes of the handle for
 * a pointer. */
static int other(int descriptor, int from) {
    char shared[64];
    void *pool, *device;
    if (read(from, shared, sizeof shared) != sizeof shared) return 20;
    if (cudaMemPoolImportFromShareableHandle(&pool, (void *)(long)descriptor, DESCRIPTOR, 0)) return 21;
    if (cudaMemPoolImportPointer(&device, pool, shared) || cudaMemset(device, 0, 3000)) return 22;
    return cudaFreeAsync(device, NULL) ? 23 : 0;
}

static int pools(int to) {
    char properties[88] = {1}, shared[64];
    int descriptor;
    unsigned access = 0;
    void *pool, *device, *unwanted;
    if (cudaMemPoolCreate(&pool, properties) || cudaMemPoolGetAccess(&access, pool, NULL) || access != 3) return 10;
    if (cudaMallocFromPoolAsync(&device, 3000, pool, NULL) || cudaMemset(device, 0, 3000)) return 11;
    if (!cudaMemPoolExportToShareableHandle(&descriptor, pool, 2, 0)) return 12;
    if (cudaMemPoolExportToShareableHandle(&descriptor, pool, DESCRIPTOR, 0)) return 13;
    if (cudaMemPoolExportPointer(shared, device) || !cudaMemPoolImportPointer(&unwanted, pool, shared)) return 14;
    if (write(to, shared, sizeof shared) != sizeof shared || cudaFreeAsync(device, NULL)) return 15;
    if (!cudaMemPoolImportFromShareableHandle(&unwanted, (void *)12345L, DESCRIPTOR, 0)) return 16;
    return cudaMemPoolDestroy(pool) || !cudaMallocFromPoolAsync(&device, 1, pool, NULL) ? 17 : 0;
}

static int linker(void) {
    const char code[] = "code", *linked;
    size_t bytes;
    void *state;
    if (cuLinkCreate_v2(0, NULL, NULL, &state) || cuLinkAddData_v2(state, 1, code, 5, "a", 0, NULL, NULL)) return 30;
    if (cuLinkComplete(state, (const void **)&linked, &bytes) || bytes != 5 || strcmp(linked, code)) return 31;
    return cuLinkDestroy(state) || !cuLinkDestroy(state) ? 32 : 0;
}

/* CUmemAllocationProp: the memory's kind, the ways in which it may be shared, its location, and the remaining
 * fields. */
struct properties { int type, shared, place, device; void *security; unsigned char flags[8]; };

static int handles(void) {
    const struct properties wanted = {1, DESCRIPTOR, 1, 0, NULL, {1, 1, 1}}, other = {1, 0, 1, 0, NULL, {0}};
    struct properties found;
    unsigned long long handle, second, imported;
    int descriptor;
    if (cuMemCreate(&handle, 1 << 21, &wanted, 0) || cuMemCreate(&second, 1 << 21, &other, 0)) return 33;
    if (cuMemCreate(&imported, 1 << 21, NULL, 0) != 1) return 36;
    if (cuMemGetAllocationPropertiesFromHandle(&found, handle) || memcmp(&found, &wanted, sizeof found)) return 37;
    if (cuMemGetAllocationPropertiesFromHandle(&found, second) || memcmp(&found, &other, sizeof found)) return 38;
    if (cuMemExportToShareableHandle(&descriptor, handle, DESCRIPTOR, 0)) return 34;
    if (cuMemImportFromShareableHandle(&imported, (void *)(long)descriptor, DESCRIPTOR)) return 35;
    if (cuMemGetAllocationPropertiesFromHandle(&found, imported) || found.type != 1 || found.shared != DESCRIPTOR) return 39;
    if (found.place != 1 || found.device != 0 || cuMemRelease(handle) || cuMemRelease(handle) != 1) return 40;
    return cuMemGetAllocationPropertiesFromHandle(&found, handle) != 1 || cuMemRelease(second) ? 41 : 0;
}

int main(void) {
    int way[2], failed, status;
    if (pipe(way)) return 2;
    /* Fork before CUDA is initialized, because a child that is forked later cannot use CUDA. The simulation accepts any
     * descriptor instead of the pool's descriptor. */
    pid_t child = fork();
    if (child == 0) return other(way[0], way[0]);
    if ((failed = pools(way[1])) || (failed = linker()) || (failed = handles())) return failed;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 3;
    return WEXITSTATUS(status) ? WEXITSTATUS(status) : cudaDeviceSynchronize();
}
