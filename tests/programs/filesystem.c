/* A preloaded library that makes file operations fail or block for files whose names end in `.gfr` or `.part`. The
 * variable TROUBLE selects the problem:
 *
 * - `hang`: opening such a file never returns. If the variable HELD is set, only files whose names contain HELD hang.
 * - `hang_windows`: opening a file of the first window (`out.1.`) never returns.
 * - `later`: a thread that begins to write outputs creates a file `waits`, and blocks while a file `wait` exists.
 *   Writing begins when the thread claims the outputs' name. With HELD, it begins when the thread opens a file whose
 *   name contains HELD.
 * - `until`: a thread that opens such a file creates a file `waits`, and blocks until a file `answers` exists.
 * - `full`, `quota`, `stale`, `read_only`: writes fail when a file `trouble` exists. With `full` and `quota`, writes
 *   over existing bytes succeed, because they do not append. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_ours(const char *path)
{
    size_t length = strlen(path);
    return (length > 4 && !strcmp(path + length - 4, ".gfr")) || (length > 5 && !strcmp(path + length - 5, ".part"));
}

static int has(const char *trouble)
{
    const char *wanted = getenv("TROUBLE");
    return wanted && !strcmp(wanted, trouble);
}

int open64(const char *path, int flags, ...)
{
    static int (*next)(const char *, int, ...);
    va_list more;
    int mode;
    va_start(more, flags);
    mode = va_arg(more, int);
    va_end(more);
    if (!next)
        next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    while ((has("hang") && is_ours(path) && strstr(path, getenv("HELD") ? getenv("HELD") : ".gfr")) || (has("hang_windows") && strstr(path, "out.1.")))
        pause();
    if (has("later") && strstr(path, getenv("HELD") ? getenv("HELD") : ".set.json") && access("wait", F_OK) == 0) {
        close(next("waits", O_WRONLY | O_CREAT, 0600));
        while (access("wait", F_OK) == 0)
            usleep(1000);
    }
    if (has("until") && is_ours(path)) {
        close(next("waits", O_WRONLY | O_CREAT, 0600));
        while (access("answers", F_OK) != 0)
            usleep(1000);
    }
    return next(path, flags, mode);
}

/* Error code with which writes fail; 0 if writes succeed. */
static int failure(void)
{
    if (access("trouble", F_OK) != 0)
        return 0;
    return has("full") ? ENOSPC : has("quota") ? EDQUOT : has("stale") ? ESTALE : has("read_only") ? EROFS : 0;
}

ssize_t write(int file, const void *bytes, size_t count)
{
    static ssize_t (*next)(int, const void *, size_t);
    char link[64], path[4096];
    ssize_t length;
    if (!next)
        next = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (failure()) {
        strcpy(link, "/proc/self/fd/");
        length = (ssize_t)strlen(link);
        {
            char digits[16];
            int at = 0, rest = file;
            do
                digits[at++] = (char)('0' + rest % 10);
            while ((rest /= 10) > 0);
            while (at > 0)
                link[length++] = digits[--at];
            link[length] = 0;
        }
        length = readlink(link, path, sizeof path - 1);
        path[length > 0 ? length : 0] = 0;
        if (strstr(path, ".gfr") && (has("stale") || has("read_only") || fcntl(file, F_GETFL) & O_APPEND)) {
            errno = failure();
            return -1;
        }
    }
    return next(file, bytes, count);
}
