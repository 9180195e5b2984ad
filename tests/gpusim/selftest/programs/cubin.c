/* Loads cubins with driver calls, as Triton does. gpusim must find the kernels and variables in each cubin. One cubin
 * is written by hand. The hand-written cubin has two kernels (one of them has no symbol, only a named section), a
 * function that kernels call, and a variable. */
#include "cuda_mini.h"
#include <elf.h>
#include <stdio.h>
#include <string.h>

int cuModuleUnload(CUmodule);
int cuModuleLoadDataEx(CUmodule *, const void *, unsigned, const int *, void **);
int cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *);
int cuModuleGetGlobal(unsigned *, unsigned *, CUmodule, const char *);
int cuDeviceComputeCapability(int *, int *, CUdevice);
int cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, void *);
int cuFuncSetCacheConfig(CUfunction, int);
int cuTensorMapEncodeTiled(void *, int, unsigned, void *, const void *, const void *, const void *, const void *, int, int, int, int);
int cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cudaLibraryGetKernel(void **, void *, const char *);
int cudaLibraryUnload(void *);
int cudaKernelSetAttributeForDevice(void *, int, int, int);

enum { KERNEL = 0x10, FIRST = 1, FIRST_SECTION = 12, HELPER = 29, HELPER_SECTION = 36, SECOND_SECTION = 49, VARIABLE = 67 };

static struct {
    Elf64_Ehdr header;
    char names[128];
    Elf64_Sym symbols[4];
    Elf64_Shdr sections[7];
} cubin = {
    .header = {.e_ident = "\x7f" "ELF\2\1\1", .e_machine = 190, .e_shoff = 288, .e_shentsize = 64, .e_shnum = 7, .e_shstrndx = 4},
    .names = "\0first_d700\0.text.first_d700\0helper\0.text.helper\0.text.second_d300\0table",
    .symbols = {[1] = {FIRST, STT_FUNC, KERNEL, 1}, [2] = {HELPER, STT_FUNC, 0, 2}, [3] = {VARIABLE, STT_OBJECT, 0, 6, 0, 1000}},
    .sections = {
        [1] = {.sh_name = FIRST_SECTION, .sh_type = SHT_PROGBITS, .sh_offset = 64},
        [2] = {.sh_name = HELPER_SECTION, .sh_type = SHT_PROGBITS, .sh_offset = 64},
        [3] = {.sh_name = SECOND_SECTION, .sh_type = SHT_PROGBITS, .sh_offset = 64},
        [4] = {.sh_type = SHT_STRTAB, .sh_offset = 64, .sh_size = 128},
        [5] = {.sh_type = SHT_SYMTAB, .sh_offset = 192, .sh_size = 96, .sh_link = 4, .sh_entsize = 24},
        /* Shared memory of a thread block; the section has no bytes in the file. */
        [6] = {.sh_type = SHT_NOBITS, .sh_offset = 288, .sh_size = 1 << 20},
    },
};

static int launch(void *kernel) { return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); }

static int modules(void) {
    CUmodule module;
    CUfunction function;
    char map[128];
    if (cuModuleLoadData(&module, &cubin)) return 10;
    if (cuModuleGetFunction(&function, module, "second_d300") || launch(function)) return 11;
    if (cuModuleGetFunction(&function, module, "first_d700") || launch(function)) return 12;
    if (cuFuncSetCacheConfig(function, 2) || cuFuncSetCacheConfig(map, 2) != 400) return 13;
    if (cuModuleGetFunction(&function, module, "helper") != 500) return 14;
    if (cuModuleGetFunction(&function, module, "third") != 500 || cuModuleGetFunction(&function, module, "") != 500) return 15;
    if (cuModuleUnload(module) || cuModuleUnload(module) != 400) return 16;
    if (cuModuleGetFunction(&function, module, "first_d700") != 400) return 17;
    memset(map, 1, sizeof map);
    if (cuTensorMapEncodeTiled(map, 0, 1, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0) || map[0] || map[127]) return 18;
    return cuTensorMapEncodeTiled(NULL, 0, 1, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0) != 1 ? 19 : 0;
}

/* Checks the addresses and sizes of a module's variables. */
static int variables(void) {
    CUmodule module, second;
    CUdeviceptr first, again, other;
    size_t bytes = 0;
    unsigned old;
    void *found;
    if (cuModuleLoadData(&module, &cubin) || cuModuleLoadData(&second, ".version 8.0\n")) return 50;
    if (cuModuleGetGlobal_v2(&first, &bytes, module, "table") || bytes != 1000 || !first) return 51;
    if (cuModuleGetGlobal_v2(&again, NULL, module, "table") || again != first) return 52;
    if (cuMemGetAddressRange_v2(&again, NULL, first + 999) || again != first) return 53;
    if (cuModuleGetGlobal_v2(&other, &bytes, module, "first_d700") != 500 || cuModuleGetGlobal_v2(&other, &bytes, module, "") != 500) return 54;
    /* gpusim does not read this module's image, so every variable is found, with a size of 4,096 bytes. */
    if (cuModuleGetGlobal_v2(&other, &bytes, second, "table") || other == first || bytes != 4096) return 55;
    if (cuModuleGetGlobal_v2(&again, NULL, second, "chairs") || again == other) return 56;
    if (cuModuleGetGlobal_v2(NULL, &bytes, second, "chairs") || bytes != 4096) return 57;
    if (cuModuleGetGlobal(&old, &old, module, "table") != 201) return 58;
    if (cuGetProcAddress_v2("cuModuleGetGlobal", &found, 13000, 0, NULL) || found != (void *)cuModuleGetGlobal_v2) return 59;
    if (cuModuleUnload(module) || cuModuleGetGlobal_v2(&again, NULL, module, "table") != 400) return 60;
    return cuModuleUnload(second) ? 61 : 0;
}

/* Checks that the PTX compiler's log is empty. */
static int logs(void) {
    CUmodule module;
    char info[8] = "before", error[8] = "before";
    const int options[] = {6, 3, 0, 5, 4};
    void *values[] = {(void *)sizeof error, info, (void *)32, error, (void *)sizeof info};
    if (cuModuleLoadDataEx(&module, ".version 8.0\n", 5, options, values)) return 70;
    if (*info || *error || values[0] || values[4] || values[1] != info || values[2] != (void *)32) return 71;
    if (strcmp(info + 1, "efore") || strcmp(error + 1, "efore")) return 72;
    /* A log buffer of 0 bytes, and a log buffer without a size. */
    strcpy(info, "after"), strcpy(error, "after");
    void *without[] = {info, NULL, error};
    if (cuModuleLoadDataEx(&module, ".version 8.0\n", 3, (const int[]){3, 4, 5}, without)) return 73;
    if (strcmp(info, "after") || strcmp(error, "after")) return 74;
    if (cuModuleLoadDataEx(&module, ".version 8.0\n", 0, NULL, NULL)) return 75;
    return cuModuleLoadDataEx(&module, ".version 8.0\n", 1, NULL, NULL) != 1 ? 76 : 0;
}

/* Makes the same checks of cubins with the runtime API's library functions. */
static int libraries(void) {
    void *library, *kernel;
    if (cudaLibraryLoadData(&library, &cubin, NULL, NULL, 0, NULL, NULL, 0)) return 20;
    if (cudaLibraryGetKernel(&kernel, library, "first_d700") || cudaKernelSetAttributeForDevice(kernel, 8, 1 << 16, 0)) return 21;
    if (cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, NULL)) return 22;
    if (cudaLibraryGetKernel(&kernel, library, "third") != 500) return 23;
    if (cudaLibraryUnload(library) || cudaLibraryUnload(library) != 400) return 24;
    return cudaLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0) != 1 ? 25 : 0;
}

/* Loads images that are not cubins: PTX, the first bytes of a fat binary, an empty string, and a truncated cubin. */
static int others(void) {
    CUmodule module;
    CUfunction function;
    const char *const images[] = {".version 8.0\n", "\x50\xed\x55\xba\1", "", "\x7f" "EL"};
    for (int at = 0; at < 4; at++) {
        if (cuModuleLoadData(&module, images[at])) return 30 + at;
        if (cuModuleGetFunction(&function, module, "whichever")) return 40 + at;
    }
    return 0;
}

int main(void) {
    CUcontext context;
    int failed, major = 0, minor = 1;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0)) return 2;
    if ((failed = modules()) || (failed = libraries()) || (failed = others())) return failed;
    if ((failed = variables()) || (failed = logs())) return failed;
    if (cuDeviceComputeCapability(&major, &minor, 0) || major != 9 || minor != 0) return 80;
    if (cuDeviceComputeCapability(&major, &minor, 7) != 101) return 81;
    return cuCtxSynchronize();
}
