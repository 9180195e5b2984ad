/* Launches from machine code that the program generates. The function `outer_jit` has a frame pointer; `inner jit` has
 * only an epilogue. Neither function has unwind information. The program writes the names of the two functions in the
 * formats of `perf`, or in ways that gpuflame must not trust.
 *
 *     generated HOW
 *
 * HOW is `map`, `dump`, `none`, `several`, `fifo`, `device`, `theirs`, `garbage` or `kept`. `theirs` needs root rights,
 * and ends with code 75 if the user is not root. `kept` writes a map file, and the process lives until it is killed.
 * When a file `more` appears, the program removes this file, writes another function's name for the address of
 * `outer_jit` into the map file, and launches again. */
#define _DEFAULT_SOURCE
#include "cuda_mini.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
enum { PAGE = 4096, INNER = 256, SIZE = 16, SKIPPED = 75 };

KERNEL(work_d500, "work_d500", (int n), &n)

typedef void (*generated)(void (*)(void));
static char *code;
static char map[64];

OWN_FRAME static void leaf(void)
{
    SITE("main;run;outer_jit;step;inner jit;leaf");
    LAUNCH(work_d500, 1, 32, 0)(1);
    KEEP_FRAME();
}

OWN_FRAME static void step(void)
{
    ((generated)(uintptr_t)(code + INNER))(leaf);
    KEEP_FRAME();
}

OWN_FRAME static void run(void)
{
    ((generated)(uintptr_t)code)(step);
    KEEP_FRAME();
}

static void generate(void)
{
    /* push %rbp; mov %rsp, %rbp; sub $32, %rsp; call *%rdi; nop; leave; ret */
    static const unsigned char outer[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xff, 0xd7, 0x90, 0xc9, 0xc3};
    /* sub $8, %rsp; call *%rdi; add $8, %rsp; ret */
    static const unsigned char inner[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x08, 0xc3};
    code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, outer, sizeof outer);
    memcpy(code + INNER, inner, sizeof inner);
    mprotect(code, PAGE, PROT_READ | PROT_EXEC);
}

static void write_map(const char *more)
{
    FILE *file = fopen(map, "w");
    fprintf(file, "%lx %x outer_jit\n", (long)(uintptr_t)code, SIZE);
    fprintf(file, "%lx %x inner jit\n%s", (long)(uintptr_t)(code + INNER), SIZE, more);
    fclose(file);
}

static void write_dump(void)
{
    char path[64];
    int fd, at;
    struct {
        uint32_t magic, version, size, machine, pad, pid;
        uint64_t time, flags;
    } head = {0x4A695444, 1, sizeof head, 62, 0, (uint32_t)getpid(), 0, 0};
    snprintf(path, sizeof path, "jit-%d.dump", (int)getpid());
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(fd, &head, sizeof head) < 0)
        abort();
    for (at = 0; at <= INNER; at += INNER) {
        struct {
            uint32_t kind, size;
            uint64_t time;
            uint32_t pid, thread;
            uint64_t vma, address, bytes, index;
            char name[10], code[SIZE + 6];
        } record = {0, sizeof record, 0, 1, 1, 0, (uintptr_t)(code + at), SIZE, 0, "", ""};
        memcpy(record.name, at ? "inner jit" : "outer_jit", sizeof record.name);
        if (write(fd, &record, sizeof record) < 0)
            abort();
    }
    mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
}

static void wait_for_more(void)
{
    FILE *file;
    while (unlink("more"))
        usleep(1000);
    file = fopen(map, "a");
    fprintf(file, "%lx %x other_jit\n", (long)(uintptr_t)code, SIZE);
    fclose(file);
}

static void tidy(void)
{
    unlink(map);
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "map";
    /* This exit handler is registered before CUDA's handlers, so it runs after gpuflame has written its files. */
    atexit(tidy);
    snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
    /* A process that was killed and had the same pid may have left its map file. */
    unlink(map);
    generate();
    if (!strcmp(how, "map") || !strcmp(how, "kept")) {
        write_map("");
    } else if (!strcmp(how, "several")) {
        char more[64];
        snprintf(more, sizeof more, "%lx %x other_jit\n", (long)(uintptr_t)code, SIZE);
        write_map(more);
    } else if (!strcmp(how, "dump")) {
        write_dump();
    } else if (!strcmp(how, "fifo")) {
        mkfifo(map, 0600);
    } else if (!strcmp(how, "device")) {
        if (symlink("/dev/zero", map))
            return 1;
    } else if (!strcmp(how, "garbage")) {
        FILE *file = fopen(map, "w");
        int at;
        for (at = 0; at < 1 << 20; at++)
            fputc((int)((unsigned)at * 7919 >> 3 & 0xff), file);
        fclose(file);
    } else if (!strcmp(how, "theirs")) {
        write_map("");
        if (chown(map, 65534, 65534))
            return SKIPPED;
    }
    for (;;) {
        run();
        cudaDeviceSynchronize();
        if (strcmp(how, "kept"))
            return 0;
        wait_for_more();
    }
}
