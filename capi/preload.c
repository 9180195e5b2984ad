/* libgpuflame-preload.so is a small library that can be preloaded (LD_PRELOAD) into a whole shell. Programs that call
 * CUDA are recorded. Programs that do not call CUDA are practically unaffected. The preload library only sets
 * environment variables that make the CUDA driver and NVTX load libgpuflame.so from the same folder.
 *
 * Every program that is started from such a shell loads this library. Therefore the preload library has only a few
 * KiB, needs no other library and uses no versioned symbol. Some C libraries lack functions that this library calls.
 * If the program's C library lacks such a function, the program's environment stays unchanged. This library is
 * written in C because a Cargo workspace cannot build a no_std Rust library together with libraries that unwind. */
#include <stddef.h>

#define NAME "libgpuflame-preload.so"
#define LIBRARY "libgpuflame.so"
#define LONGEST 4096
#define WEAK __attribute__((weak))

struct found {
    const char *file;
    void *at;
    const char *symbol;
    void *value;
};

extern char **environ WEAK;
extern int dladdr(const void *address, struct found *found) WEAK;
extern void *dlopen(const char *file, int how) WEAK;
extern char *getcwd(char *into, size_t bytes) WEAK;
extern unsigned long getauxval(unsigned long what) WEAK;
extern const char *gnu_get_libc_version(void) WEAK;
extern void *mmap(void *at, size_t bytes, int may, int how, int file, long offset) WEAK;

enum { IS_SECURE = 23, READ_WRITE = 3, PRIVATE_ANONYMOUS = 0x22, LAZY_GLOBAL = 0x101 };

/* Names of environment variables, in the order in which this library searches and adds the variables. The driver
 * reads CUDA_INJECTION64_PATH, and NVTX reads NVTX_INJECTION64_PATH. libgpuflame.so reads _GPUFLAME_PRELOAD, and
 * refuses to work if the preload stub is from another release. libgpuflame.so also reads _GPUFLAME_STDERR, which
 * identifies the file that was open as descriptor 2 when the program started. `gpuflame run --preload` sets
 * _GPUFLAME_LOAD, which makes this stub load libgpuflame.so immediately. The program can then call libgpuflame.so
 * before CUDA is loaded. Loading libgpuflame.so immediately works only in programs that use glibc, because
 * libgpuflame.so needs glibc. The names of the variables are an array of arrays, because an array of pointers would
 * need relocations. */
enum { DRIVER, NVTX, OWN, STDERR, PRELOAD, AT_ONCE, NAMES };
static const char NAME_OF[NAMES][24] = {"CUDA_INJECTION64_PATH=", "NVTX_INJECTION64_PATH=", "_GPUFLAME_PRELOAD=",
                                        "_GPUFLAME_STDERR=", "LD_PRELOAD=", "_GPUFLAME_LOAD="};
#define BEFORE_PATH "_GPUFLAME_PRELOAD=" VERSION " "

/* Memory for the new list of environment variables and its strings. This memory is used only if the list and the
 * strings fit into it. This array is in a page to which the loader writes in any case, so the array costs no
 * additional page. */
static char *room[300];

/* Returns the rest of `text` after `prefix`; NULL if `text` does not begin with `prefix`. */
static const char *behind(const char *prefix, const char *text)
{
    while (*prefix && *prefix == *text)
        prefix++, text++;
    return *prefix ? NULL : text;
}

/* Copies at most `bytes` bytes of `text`, and adds a terminating zero. Returns the address of the terminating zero. */
static char *append(char *at, const char *text, size_t bytes)
{
    while (bytes-- && *text)
        *at++ = *text++;
    *at = 0;
    return at;
}

/* Searches LD_PRELOAD for the entry with this library's file name. Returns the start of this library's entry, and
 * sets `end` to the start of the file name within the entry. Returns NULL if the list has no entry for this library. */
static const char *entry(const char *list, const char **end)
{
    const char *start = list, *name = list, *at;
    for (at = list;; at++) {
        if (*at == '/')
            name = at + 1;
        if (*at && *at != ':' && *at != ' ')
            continue;
        *end = behind(NAME, name);
        if (*end == at) {
            *end = name;
            return start;
        }
        if (!*at)
            return NULL;
        start = name = at + 1;
    }
}

/* Finds the folder of this library. libgpuflame.so is installed in the same folder. Sets `from` to the path of this
 * library's folder. Returns the length of the path including the last slash; 0 if the folder is unknown. */
static size_t folder(const char **from, const char *preload)
{
    const char *to = NULL, *at;
    struct found found;
    *from = NULL;
    if (dladdr && dladdr(NAME_OF, &found) && found.file)
        for (*from = to = at = found.file; *at; at++)
            if (*at == '/')
                to = at + 1;
    if (*from == to && preload)
        *from = entry(preload, &to);
    return *from ? (size_t)(to - *from) : 0;
}

static size_t length(const char *text)
{
    size_t bytes = 0;
    while (text[bytes])
        bytes++;
    return bytes;
}

/* Writes a number in hexadecimal to `at`. Returns the address after the last digit that was written. */
static char *append_number(char *at, unsigned long number)
{
    int shift = 60;
    while (shift && !(number >> shift))
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *at++ = "0123456789abcdef"[number >> shift & 15];
    return at;
}

/* Stores the device and the inode of the file that is open as descriptor 2. Returns 0 if descriptor 2 is closed or
 * the architecture is unknown. Uses a raw system call, because C libraries provide `fstat` under different names,
 * and these functions set errno. */
static int look_at_stderr(unsigned long *device, unsigned long *inode)
{
    unsigned long facts[32];
    long failed = -1;
#if defined __x86_64__
    __asm__ volatile("syscall" : "=a"(failed) : "0"(5L), "D"(2L), "S"(facts) : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long call __asm__("x8") = 80, result __asm__("x0") = 2;
    register unsigned long *into __asm__("x1") = facts;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(call), "r"(into) : "memory");
    failed = result;
#endif
    if (failed)
        return 0;
    *device = facts[0];
    *inode = facts[1];
    return 1;
}

/* Whether the copy of this stub in an ancestor process has set CUDA_INJECTION64_PATH to `driver`. `own` is the value
 * of _GPUFLAME_PRELOAD. The value of _GPUFLAME_PRELOAD consists of the version and the path that the ancestor's stub
 * has stored. */
static int is_own(const char *own, const char *driver)
{
    const char *rest, *path = own ? behind(VERSION " ", own) : NULL;
    return path && (rest = behind(path, driver)) && !*rest;
}

/* Loads `library`. Does nothing if `library` is NULL or the program's C library is not glibc. */
static void load(const char *library)
{
    if (library && dlopen && gnu_get_libc_version)
        dlopen(library, LAZY_GLOBAL);
}

__attribute__((constructor)) static void have_the_driver_load_it(void)
{
    const char *has[NAMES] = {NULL}, *from, *here = "", *library;
    char working[LONGEST];
    size_t count = 0, n, added = 0, bytes, needed;
    unsigned long device, inode;
    char **old, **new = room, *text;
    int name;
    if (!&environ || !(old = environ) || (getauxval && getauxval(IS_SECURE)))
        return;
    for (; old[count]; count++)
        for (name = 0; name < NAMES; name++)
            if (!has[name])
                has[name] = behind(NAME_OF[name], old[count]);
    /* If CUDA_INJECTION64_PATH is already set, this code leaves that variable unchanged. This code only replaces
     * _GPUFLAME_STDERR, because the old value identifies the file that an ancestor process had open as descriptor 2. */
    bytes = has[DRIVER] ? 0 : folder(&from, has[PRELOAD]);
    library = has[DRIVER] && is_own(has[OWN], has[DRIVER]) ? has[DRIVER] : NULL;
    if (!bytes && !(has[DRIVER] && has[STDERR])) {
        load(has[AT_ONCE] ? library : NULL);
        return;
    }
    if (bytes && *from != '/' && !(getcwd && getcwd(working, sizeof working)))
        return;
    if (bytes && *from != '/')
        here = working;
    needed = (count + 5) * sizeof *new + 3 * (sizeof BEFORE_PATH + 32 + length(here) + bytes + sizeof LIBRARY) + 64;
    if (needed > sizeof room) {
        new = mmap ? mmap(NULL, needed, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) : (void *)-1;
        if (new == (void *)-1)
            return;
    }
    text = (char *)(new + count + 5);
    if (bytes)
        library = text + sizeof "CUDA_INJECTION64_PATH";
    for (n = 0; n < count; n++)
        if (!(bytes && behind(NAME_OF[OWN], old[n])) && !behind(NAME_OF[STDERR], old[n]))
            new[added++] = old[n];
    for (name = DRIVER; bytes && name <= OWN; name++) {
        if (name != OWN && has[name])
            continue;
        new[added++] = text;
        text = append(text, name == OWN ? BEFORE_PATH : NAME_OF[name], (size_t)-1);
        text = append(text, here, (size_t)-1);
        text = append(text, *here ? "/" : "", 1);
        text = append(text, from, bytes);
        text = append(text, LIBRARY, (size_t)-1) + 1;
    }
    if (look_at_stderr(&device, &inode)) {
        new[added++] = text;
        text = append_number(append(text, NAME_OF[STDERR], (size_t)-1), device);
        *text++ = ':';
        *append_number(text, inode) = 0;
    }
    new[added] = NULL;
    /* Another thread may be reading the old list of environment variables. Therefore the list of environment variables
     * is replaced with one atomic store, and the old list is not freed. */
    __atomic_store_n(&environ, new, __ATOMIC_RELEASE);
    load(has[AT_ONCE] ? library : NULL);
}
