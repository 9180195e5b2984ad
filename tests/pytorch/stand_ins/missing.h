// Macros for functions without an implementation. MISSING: the function fails, and its first call prints its name.
// KERNEL, for most functions of cuBLAS: the function launches one kernel.
#include <stdio.h>

static int missing(const char *name, char *is_named) {
    if (!__atomic_exchange_n(is_named, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "gpusim: %s of " SONAME " is not simulated\n", name);
    return CODE;
}

#define MISSING(name) int name(void) { static char is_named; return missing(#name, &is_named); }

int standin_kernel(void *handle, const char *name);
#define KERNEL(name) int name(void *handle) { return standin_kernel(handle, #name "_kernel"); }
