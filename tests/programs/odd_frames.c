/* Launches through functions that are generated at run time and store a number in rbp, and launches on a stack whose
 * upper pages another thread protects and unprotects.
 *
 *     odd_frames HOW
 *
 * HOW:
 * - `number`: a function saves rbp and stores a number in it.
 * - `thunk`: a function leaves rbp unchanged, and its caller has stored a number in rbp.
 * - `replaced`: functions with other frames replace the functions at the same addresses.
 * - `pages`: another thread protects pages of an unused stack that looks like a stack from which the program launched
 *   before.
 *
 * The program ends with code 7. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
enum { CODE = 7, PAGE = 4096, LAUNCHES = 600, SLOT = 256, RETURN = 64 };

KERNEL(work_d500, "work_d500", (int n), &n)

typedef void (*generated)(void (*)(void));
static unsigned char *code;

OWN_FRAME static void leaf(void)
{
    SITE("leaf");
    LAUNCH(work_d500, 1, 32, 0)(1);
    KEEP_FRAME();
}

/* Writes a function that calls its argument into a slot. In each slot, the return address of the call has the same
 * offset. */
static void write_code(int slot, const void *before, size_t length, const void *after, size_t rest)
{
    unsigned char *place = code + slot * SLOT + RETURN;
    memset(place - RETURN, 0xcc, SLOT);
    memcpy(place - length, before, length);
    memcpy(place, after, rest);
}

static void call(int slot, size_t length, void (*function)(void))
{
    ((generated)(uintptr_t)(code + slot * SLOT + RETURN - length))(function);
}

/* push %rbp; movabs $-8, %rbp; call *%rdi; pop %rbp; ret */
static const unsigned char number[] = {0x55, 0x48, 0xbd, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xd7};
static const unsigned char number_end[] = {0x5d, 0xc3};
/* sub $8, %rsp; call *%rdi; add $8, %rsp; ret */
static const unsigned char thunk[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7};
static const unsigned char thunk_end[] = {0x48, 0x83, 0xc4, 0x08, 0xc3};

OWN_FRAME static void within(void)
{
    call(1, sizeof thunk, leaf);
    KEEP_FRAME();
}

/* The function below is compiled with a frame pointer, like the code of compilers that keep a frame pointer in each
 * function. */
OWN_FRAME __attribute__((optimize("no-omit-frame-pointer"))) static void with_frame_pointer(int slot, size_t length)
{
    call(slot, length, slot == 2 ? within : leaf);
    KEEP_FRAME();
}

/* push %rbx; push %rbp; sub `room`; movabs $7, %rbp; call *%rdi; add; pop %rbp; pop %rbx; ret */
static size_t sized(int slot, unsigned char room)
{
    const unsigned char before[] = {0x53, 0x55, 0x48, 0x83, 0xec, room, 0x48, 0xbd, 7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd7};
    const unsigned char after[] = {0x48, 0x83, 0xc4, room, 0x5d, 0x5b, 0xc3};
    write_code(slot, before, sizeof before, after, sizeof after);
    return sizeof before;
}

static void launch_through_code(const char *how)
{
    size_t length = sizeof number;
    int at;
    code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    write_code(0, number, sizeof number, number_end, sizeof number_end);
    write_code(1, thunk, sizeof thunk, thunk_end, sizeof thunk_end);
    write_code(2, number, sizeof number, number_end, sizeof number_end);
    for (at = 0; at < LAUNCHES; at++) {
        if (!strcmp(how, "replaced") && at % 50 == 0)
            length = sized(0, (unsigned char)(8 + 16 * (at / 50 % 7)));
        with_frame_pointer(strcmp(how, "thunk") ? 0 : 2, length);
    }
}

/* Calls `function` with the stack pointer moved by `distance` bytes. The words above the new frame are a copy of the
 * words of the real stack. */
void call_at(void (*function)(void), intptr_t distance);
__asm__(".text\n"
        ".type call_at, @function\n"
        "call_at:\n"
        "    .cfi_startproc\n"
        "    push %rbx\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    .cfi_rel_offset %rbx, 0\n"
        "    mov %rsi, %rbx\n"
        "    add %rbx, %rsp\n"
        "    call *%rdi\n"
        "    sub %rbx, %rsp\n"
        "    pop %rbx\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    .cfi_restore %rbx\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size call_at, . - call_at\n");

enum { STACK = 64 << 10, TURNS = 15000, ALIKE = 40 };
static unsigned char *stacks;
static unsigned char *above;
static volatile int is_over, is_copied;

static void *protects(void *nothing)
{
    size_t length = (size_t)(stacks + 2 * STACK - above);
    while (!is_over) {
        mprotect(above, length, PROT_NONE);
        mprotect(above, length, PROT_READ | PROT_WRITE);
    }
    return nothing;
}

OWN_FRAME static void leaf_or_copy(void)
{
    /* Copy the stack during the first call, because the frames above this call are the same in all later calls. */
    if (is_copied == 1)
        memcpy(stacks + STACK, stacks, STACK);
    leaf();
    KEEP_FRAME();
}

OWN_FRAME static void deep(int calls)
{
    char room[400];
    int at;
    __asm__ volatile("" : : "r"(room) : "memory");
    if (calls) {
        deep(calls - 1);
    } else {
        pthread_t thread;
        uintptr_t here = (uintptr_t)&thread + STACK;
        above = (unsigned char *)((here | (PAGE - 1)) + 1);
        for (at = 0; at < TURNS; at++) {
            is_copied = at == ALIKE;
            if (at == ALIKE + 1)
                pthread_create(&thread, NULL, protects, NULL);
            call_at(leaf_or_copy, at > ALIKE ? STACK : 0);
        }
        is_over = 1;
        pthread_join(thread, NULL);
    }
    KEEP_FRAME();
}

static ucontext_t of_main, of_coroutine;

static void coroutine(void)
{
    deep(20);
}

static void launch_beside_pages(void)
{
    stacks = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&of_coroutine);
    of_coroutine.uc_stack.ss_sp = stacks;
    of_coroutine.uc_stack.ss_size = STACK;
    of_coroutine.uc_link = &of_main;
    makecontext(&of_coroutine, coroutine, 0);
    swapcontext(&of_main, &of_coroutine);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "number";
    if (!strcmp(how, "pages"))
        launch_beside_pages();
    else
        launch_through_code(how);
    cudaDeviceSynchronize();
    return CODE;
}
