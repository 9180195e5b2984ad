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
 * library reads the third, and refuses to work with the stub of another release. `gpuflame run --preload` sets the last: the
 * library is loaded at once, so that the program's calls to it work before CUDA is there, but only into programs with glibc,
 * which it needs. No pointers, which would be relocated. */
enum { DRIVER, NVTX, OWN, PRELOAD, AT_ONCE, NAMES };
static const char NAME_OF[NAMES][24] = {"CUDA_INJECTION64_PATH=", "NVTX_INJECTION64_PATH=", "_GPUFLAME_PRELOAD=",
                                        "LD_PRELOAD=", "_GPUFLAME_LOAD="};
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

__attribute__((constructor)) static void have_the_driver_load_it(void)
{
    const char *has[NAMES] = {NULL}, *from, *here = "", *library;
    char working[LONGEST];
    size_t count = 0, n, added = 0, bytes, needed;
    char **old, **new = room, *text;
    int name;
    if (!&environ || !(old = environ) || (getauxval && getauxval(IS_SECURE)))
        return;
    for (; old[count]; count++)
        for (name = 0; name < NAMES; name++)
            if (!has[name])
                has[name] = behind(NAME_OF[name], old[count]);
    /* Who has named a library has chosen. */
    if (has[DRIVER] || !(bytes = folder(&from, has[PRELOAD])))
        return;
    if (*from != '/' && !(getcwd && getcwd(working, sizeof working)))
        return;
    if (*from != '/')
        here = working;
    needed = (count + 4) * sizeof *new + 3 * (sizeof BEFORE_PATH + 32 + length(here) + bytes + sizeof LIBRARY);
    if (needed > sizeof room) {
        new = mmap ? mmap(NULL, needed, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) : (void *)-1;
        if (new == (void *)-1)
            return;
    }
    text = (char *)(new + count + 4);
    library = text + sizeof "CUDA_INJECTION64_PATH";
    for (n = 0; n < count; n++)
        if (!behind(NAME_OF[OWN], old[n]))
            new[added++] = old[n];
    for (name = DRIVER; name <= OWN; name++) {
        if (name != OWN && has[name])
            continue;
        new[added++] = text;
        text = append(text, name == OWN ? BEFORE_PATH : NAME_OF[name], (size_t)-1);
        text = append(text, here, (size_t)-1);
        text = append(text, *here ? "/" : "", 1);
        text = append(text, from, bytes);
        text = append(text, LIBRARY, (size_t)-1) + 1;
    }
    new[added] = NULL;
    /* As a whole, and the old list stays: another thread may be reading it. */
    __atomic_store_n(&environ, new, __ATOMIC_RELEASE);
    if (has[AT_ONCE] && dlopen && gnu_get_libc_version)
        dlopen(library, LAZY_GLOBAL);
}
