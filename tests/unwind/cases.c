/* Functions that build stacks of every shape that the unwinder must handle. tests/unwind compiles this file with and
   without optimisation and frame pointers. Each case calls the test's hook from its deepest frame. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

typedef void (*hook)(void);
static hook current;
static volatile int sink;
#define KEEP __asm__ volatile("" ::: "memory")
#define FAR __attribute__((noinline, noclone))

FAR void leaf(void) { char room[40]; memset(room, 1, sizeof room); current(); sink += room[3]; KEEP; }
FAR int deep(int n) { if (n == 0) { leaf(); return 0; } int r = deep(n - 1); KEEP; return r + n; }
void plain(hook h) { current = h; sink += deep(20); KEEP; }

FAR int grown(int n) { char *room = alloca(16 + n * 24); memset(room, n, 16 + n * 24); sink += room[n]; int r = n ? grown(n - 1) : (leaf(), 0); KEEP; return r + room[1]; }
void with_alloca(hook h) { current = h; sink += grown(9); KEEP; }

FAR int aligned(int n, long a, long b, long c, long d, long e, long f, long g) {
    char room[64] __attribute__((aligned(64)));
    memset(room, n, sizeof room);
    sink += room[n] + (int)(a + b + c + d + e + f + g);
    char *more = alloca(n * 8 + 1); more[0] = 1;
    int r = n ? aligned(n - 1, a, b, c, d, e, f, g + more[0]) : (leaf(), 0);
    KEEP;
    return r + room[1];
}
void realigned(hook h) { current = h; sink += aligned(8, 1, 2, 3, 4, 5, 6, 7); KEEP; }

static int compare(const void *a, const void *b) { static int once; if (!once++) leaf(); KEEP; return *(const int *)a - *(const int *)b; }
void through_qsort(hook h) { current = h; int v[40]; for (int i = 0; i < 40; i++) v[i] = (i * 7) % 40; qsort(v, 40, sizeof *v, compare); sink += v[0]; leaf(); KEEP; }

FAR void tail_target(void) { leaf(); KEEP; }
FAR void tail(int n) { sink += n; tail_target(); }
void tail_called(hook h) { current = h; tail(3); KEEP; }

FAR int many(long a, long b, long c, long d, long e, long f, long g, long h, double x) {
    long r[6] = { a * b, c * d, e * f, g * h, a + h, (long)x };
    leaf();
    KEEP;
    return (int)(r[0] + r[1] + r[2] + r[3] + r[4] + r[5] + a + b + c);
}
void many_registers(hook h) { current = h; sink += many(1, 2, 3, 4, 5, 6, 7, 8, 9.0); KEEP; }

/* Signals */
static void on_signal(int n) { (void)n; leaf(); KEEP; }
static void on_fault(int n, siginfo_t *i, void *c) {
    (void)n; (void)i;
    leaf();
    ((ucontext_t *)c)->uc_mcontext.gregs[REG_RIP] += 2; /* skip the two bytes of the ud2 instruction */
}
static void catch_it(int n, int flags) {
    struct sigaction a = { 0 };
    a.sa_flags = flags;
    if (flags & SA_SIGINFO) a.sa_sigaction = on_fault; else a.sa_handler = on_signal;
    sigaction(n, &a, 0);
}
FAR int raiser(int n) { if (n == 0) { raise(SIGUSR1); return 1; } int r = raiser(n - 1); KEEP; return r + n; }
void in_signal(hook h) { current = h; catch_it(SIGUSR1, 0); sink += raiser(6); KEEP; }
void on_alternate_stack(hook h) {
    current = h;
    size_t size = 256 << 10;
    stack_t s = { .ss_sp = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = size }, old;
    sigaltstack(&s, &old);
    catch_it(SIGUSR1, SA_ONSTACK);
    sink += raiser(6);
    sigaltstack(&old, 0);
    munmap(s.ss_sp, size);
    KEEP;
}
FAR void faulting(void) { sink++; __asm__ volatile("ud2"); sink++; }
void in_fault(hook h) { current = h; catch_it(SIGILL, SA_SIGINFO); faulting(); KEEP; }
static void on_null_call(int n, siginfo_t *i, void *c) {
    (void)n; (void)i;
    leaf(); leaf();
    greg_t *r = ((ucontext_t *)c)->uc_mcontext.gregs; /* continue as if the function had returned */
    r[REG_RIP] = *(greg_t *)r[REG_RSP];
    r[REG_RSP] += 8;
}
FAR void calling_null(void) { void (*volatile nothing)(void) = 0; nothing(); sink++; }
void in_null_call(hook h) {
    current = h;
    struct sigaction a = { .sa_flags = SA_SIGINFO, .sa_sigaction = on_null_call }, old;
    sigaction(SIGSEGV, &a, &old);
    calling_null();
    sigaction(SIGSEGV, &old, 0);
    KEEP;
}

/* Other stacks */
static void *on_thread(void *p) { (void)p; sink += deep(5); return 0; }
void on_user_stack(hook h) {
    current = h;
    size_t size = 512 << 10;
    void *room = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstack(&a, room, size);
    pthread_t t;
    pthread_create(&t, &a, on_thread, 0);
    pthread_join(t, 0);
    munmap(room, size);
}
static ucontext_t here, there;
static void in_coroutine(void) { sink += deep(4); swapcontext(&there, &here); sink += deep(7); }
void coroutine(hook h) {
    current = h;
    size_t size = 256 << 10;
    char *room = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&there);
    there.uc_stack.ss_sp = room;
    there.uc_stack.ss_size = size;
    there.uc_link = &here;
    makecontext(&there, in_coroutine, 0);
    swapcontext(&here, &there);
    leaf();
    swapcontext(&here, &there);
    leaf();
    munmap(room, size);
    KEEP;
}
/* A thread whose stack is directly below a coroutine's stack. The coroutine's stack is unmapped, and a new stack is
   mapped at another address. */
static size_t half = 256 << 10;
static char *halves, *third;
FAR void run_on(char *room) {
    getcontext(&there);
    there.uc_stack.ss_sp = room;
    there.uc_stack.ss_size = half;
    there.uc_link = &here;
    makecontext(&there, in_coroutine, 0);
    swapcontext(&here, &there);
    swapcontext(&here, &there);
}
static void *below_a_stack_that_goes(void *p) {
    run_on(halves + half);
    mprotect(halves + half, half, PROT_NONE);
    leaf();
    sink += deep(5);
    run_on(third);
    munmap(third, half);
    leaf();
    return p;
}
void stacks_that_go(hook h) {
    current = h;
    third = mmap(0, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    halves = mmap(0, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstack(&a, halves, half);
    pthread_t t;
    pthread_create(&t, &a, below_a_stack_that_goes, 0);
    pthread_join(t, 0);
    munmap(halves, 2 * half);
    KEEP;
}
static jmp_buf back;
FAR int jumper(int n) { if (n == 0) { leaf(); longjmp(back, 1); } int r = jumper(n - 1); KEEP; return r; }
void after_longjmp(hook h) { current = h; if (!setjmp(back)) jumper(9); leaf(); KEEP; }

/* Hand-written code */
void asm_with_cfi(hook);
void asm_cfa_in_rbx(hook);
void asm_over_return(void (*)(uintptr_t *));
void asm_without_cfi(hook);
void asm_without_cfi_returning(hook);
void asm_without_cfi_with_fp(hook);
__asm__(
    ".text\n.globl asm_with_cfi\n.type asm_with_cfi,@function\nasm_with_cfi:\n.cfi_startproc\n"
    "push %r12\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r12,0\nsub $48,%rsp\n.cfi_adjust_cfa_offset 48\n"
    "call *%rdi\nadd $48,%rsp\n.cfi_adjust_cfa_offset -48\npop %r12\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n"
    ".globl asm_cfa_in_rbx\n.type asm_cfa_in_rbx,@function\nasm_cfa_in_rbx:\n.cfi_startproc\n"
    "push %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbx,0\nmov %rsp,%rbx\n.cfi_def_cfa_register %rbx\n"
    "sub $200,%rsp\nand $-64,%rsp\ncall *%rdi\nmov %rbx,%rsp\n.cfi_def_cfa_register %rsp\n"
    "pop %rbx\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n"
    ".globl asm_over_return\n.type asm_over_return,@function\nasm_over_return:\n.cfi_startproc\n"
    "mov %rdi,%rax\nsub $24,%rsp\n.cfi_adjust_cfa_offset 16\nmovq $0,16(%rsp)\nlea 16(%rsp),%rdi\n"
    "call *%rax\nadd $24,%rsp\n.cfi_adjust_cfa_offset -16\nret\n.cfi_endproc\n"
    ".globl asm_without_cfi\n.type asm_without_cfi,@function\nasm_without_cfi:\n"
    "push %rbp\nmov $7,%ebp\nsub $16,%rsp\ncall *%rdi\nmov $1,%ecx\nadd $16,%rsp\npop %rbp\nret\n"
    ".globl asm_without_cfi_returning\n.type asm_without_cfi_returning,@function\nasm_without_cfi_returning:\n"
    "push %rbp\npush %r12\nmov $7,%ebp\nsub $24,%rsp\ncall *%rdi\nadd $24,%rsp\npop %r12\npop %rbp\nret\n"
    ".globl asm_without_cfi_with_fp\n.type asm_without_cfi_with_fp,@function\nasm_without_cfi_with_fp:\n"
    "push %rbp\nmov %rsp,%rbp\nsub $16,%rsp\ncall *%rdi\nleave\nret\n");
static hook inner;
FAR void call_through_rbx(void) { asm_cfa_in_rbx(inner); KEEP; }
void slow_frames(hook h) { current = h; inner = leaf; asm_cfa_in_rbx(call_through_rbx); asm_with_cfi(leaf); KEEP; }
/* Changes a return address on the stack. If the return address is 0, the stack ends above asm_over_return. If the
 * changed address is that of asm_over_return's first instruction, the stack continues with the caller's return address,
 * which is next on the stack. */
FAR void change_return(uintptr_t *address) {
    for (int i = 0; i < 15; i++) { /* changes after each call, then after every third call */
        *address = (i < 6 ? i : i / 3) % 2 ? (uintptr_t)asm_over_return + 1 : 0;
        leaf();
    }
    KEEP;
}
void zero_return(hook h) { current = h; asm_over_return(change_return); KEEP; }
void no_information(hook h) { current = h; asm_without_cfi(leaf); KEEP; }
void no_information_but_return(hook h) { current = h; asm_without_cfi_returning(leaf); KEEP; }
void no_information_but_fp(hook h) { current = h; asm_without_cfi_with_fp(leaf); KEEP; }
