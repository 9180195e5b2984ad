/* Calls the test's hook from inside the dynamic loader: from an IFUNC resolver during lazy binding, and from a
   constructor during dlopen. The constructor does this only if GPUFLAME_TEST_HOOK contains the address of a
   function. */
#include <stdint.h>
#include <stdlib.h>

typedef void (*hook)(void);
static hook current;
static volatile int sink;

static void work(void) { sink++; }
static void (*resolve(void))(void) { if (current) current(); sink++; return work; }
void target(void) __attribute__((ifunc("resolve")));

__attribute__((noinline)) static void middle(int n) { char room[80]; room[n & 63] = 1; target(); sink += room[5]; }
void in_resolver(hook h) { current = h; middle(3); sink++; }

__attribute__((constructor)) static void at_load(void) {
    const char *address = getenv("GPUFLAME_TEST_HOOK");
    if (address) ((hook)(uintptr_t)strtoull(address, 0, 16))();
    sink++;
}
