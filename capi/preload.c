/* libgpuflame-preload.so: for LD_PRELOAD of a whole shell. Programs that call CUDA are recorded, and to all others it is as
 * good as nothing: it has the driver load libgpuflame.so, which lies beside it, by the driver's variable.
 *
 * Every program that the shell starts loads it, so it is a few KiB, needs no library, and asks for nothing by a version:
 * what it calls is there or not, in any C library, and where it is not the program is left alone. In C, since in a
 * Cargo workspace a Rust library without the standard library cannot be built beside others that unwind. */
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

/* Variables in the order in which they are looked for and added. The driver reads the first and NVTX the second; the
 * library reads the third, and refuses to work with the stub of another release; from the fourth it knows which file
 * descriptor 2 was when the program started. `gpuflame run --preload` sets the last: the library is loaded at once, so that the
 * program's calls to it work before CUDA is there, but only into programs with glibc, which it needs. No pointers, which would
 * be relocated. */
enum { DRIVER, NVTX, OWN, STDERR, PRELOAD, AT_ONCE, NAMES };
static const char NAME_OF[NAMES][24] = {"CUDA_INJECTION64_PATH=", "NVTX_INJECTION64_PATH=", "_GPUFLAME_PRELOAD=",
                                        "_GPUFLAME_STDERR=", "LD_PRELOAD=", "_GPUFLAME_LOAD="};
#define BEFORE_PATH "_GPUFLAME_PRELOAD=" VERSION " "

/* Room for the new list and its texts where they are short, in the page that the loader writes to in any case. */
static char *room[300];

/* Where `text` goes on behind `prefix`; NULL if it does not begin so. */
static const char *behind(const char *prefix, const char *text)
{
    while (*prefix && *prefix == *text)
        prefix++, text++;
    return *prefix ? NULL : text;
}

/* Writes `text` there, or so many bytes of it, and a zero, to which it points then. */
static char *append(char *at, const char *text, size_t bytes)
{
    while (bytes-- && *text)
        *at++ = *text++;
    *at = 0;
    return at;
}

/* Where the entry of the list in LD_PRELOAD begins that is called as this file is, and into `end` where its name does. */
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

/* The folder in which the library lies beside this file: where its path begins, and how long that is with the last slash.
 * 0: it is not known. */
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

/* Writes a number in hexadecimal, and returns where it ends. */
static char *append_number(char *at, unsigned long number)
{
    int shift = 60;
    while (shift && !(number >> shift))
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *at++ = "0123456789abcdef"[number >> shift & 15];
    return at;
}

/* Device and inode of descriptor 2 into the two numbers; 0: it is closed, or this machine is not known. Without the C library,
 * which has the function under different names and sets errno. */
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
    /* Who has named a library has chosen: only what an ancestor has added about its own descriptor 2 is replaced. */
    bytes = has[DRIVER] ? 0 : folder(&from, has[PRELOAD]);
    if (!bytes && !(has[DRIVER] && has[STDERR]))
        return;
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
    /* As a whole, and the old list stays: another thread may be reading it. */
    __atomic_store_n(&environ, new, __ATOMIC_RELEASE);
    if (bytes && has[AT_ONCE] && dlopen && gnu_get_libc_version)
        dlopen(library, LAZY_GLOBAL);
}
