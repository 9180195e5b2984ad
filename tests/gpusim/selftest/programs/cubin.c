/* Cubins that a program loads itself, as Triton does: those kernels are found that they have. One is made by hand: two kernels, of
 * which one is named by its section alone, and a function that kernels call. */
#include "cuda_mini.h"
#include <elf.h>
#include <stdio.h>
#include <string.h>

int cuModuleUnload(CUmodule);
int cuFuncSetCacheConfig(CUfunction, int);
int cuTensorMapEncodeTiled(void *, int, unsigned, void *, const void *, const void *, const void *, const void *, int, int, int, int);
int cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cudaLibraryGetKernel(void **, void *, const char *);
int cudaLibraryUnload(void *);
int cudaKernelSetAttributeForDevice(void *, int, int, int);

enum { KERNEL = 0x10, FIRST = 1, FIRST_SECTION = 12, HELPER = 29, HELPER_SECTION = 36, SECOND_SECTION = 49 };

static struct {
    Elf64_Ehdr header;
    char names[128];
    Elf64_Sym symbols[3];
    Elf64_Shdr sections[7];
} cubin = {
    .header = {.e_ident = "\x7f" "ELF\2\1\1", .e_machine = 190, .e_shoff = 264, .e_shentsize = 64, .e_shnum = 7, .e_shstrndx = 4},
    .names = "\0first_d700\0.text.first_d700\0helper\0.text.helper\0.text.second_d300",
    .symbols = {[1] = {FIRST, STT_FUNC, KERNEL, 1}, [2] = {HELPER, STT_FUNC, 0, 2}},
    .sections = {
        [1] = {.sh_name = FIRST_SECTION, .sh_type = SHT_PROGBITS, .sh_offset = 64},
        [2] = {.sh_name = HELPER_SECTION, .sh_type = SHT_PROGBITS, .sh_offset = 64},
        [3] = {.sh_name = SECOND_SECTION, .sh_type = SHT_PROGBITS, .sh_offset = 64},
        [4] = {.sh_type = SHT_STRTAB, .sh_offset = 64, .sh_size = 128},
        [5] = {.sh_type = SHT_SYMTAB, .sh_offset = 192, .sh_size = 72, .sh_link = 4, .sh_entsize = 24},
        /* Memory that blocks share: nothing of it is in the file. */
        [6] = {.sh_type = SHT_NOBITS, .sh_offset = 264, .sh_size = 1 << 20},
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

/* The same by the runtime. */
static int libraries(void) {
    void *library, *kernel;
    if (cudaLibraryLoadData(&library, &cubin, NULL, NULL, 0, NULL, NULL, 0)) return 20;
    if (cudaLibraryGetKernel(&kernel, library, "first_d700") || cudaKernelSetAttributeForDevice(kernel, 8, 1 << 16, 0)) return 21;
    if (cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, NULL)) return 22;
    if (cudaLibraryGetKernel(&kernel, library, "third") != 500) return 23;
    if (cudaLibraryUnload(library) || cudaLibraryUnload(library) != 400) return 24;
    return cudaLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0) != 1 ? 25 : 0;
}

/* What is no cubin: PTX, a fat binary's first bytes, an empty text, and one that is cut off where a cubin goes on. */
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
    int failed;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0)) return 2;
    if ((failed = modules()) || (failed = libraries()) || (failed = others())) return failed;
    return cuCtxSynchronize();
}
