/* Functions that switch to a stack that the program allocated itself, and functions with wrong unwind information. */

/* Switches to another stack with its own assembly code; that stack ends at `top`, and `hook` is called on it. The
 * unwind information of on_stack does not describe the switch, so an unwinder reads memory past `top`. */
__attribute__((noinline)) void on_stack(void (*hook)(void), void *top)
{
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %1, %%rsp\n\tcall *%0\n\tmov %%rbx, %%rsp"
                     : "+r"(hook), "+r"(top)
                     :
                     : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}

/* WITH(name, bytes) defines a function that calls its argument. The bytes are one instruction of unwind information,
 * which the macro adds to that of the function. */
#define WITH(name, ...)                                                                                        \
    __asm__(".text\n\t.globl " #name "\n\t.type " #name ", @function\n" #name ":\n\t"                          \
            ".cfi_startproc\n\tpush %rbx\n\t.cfi_def_cfa_offset 16\n\t.cfi_escape " #__VA_ARGS__ "\n\t"        \
            "call *%rdi\n\tpop %rbx\n\tret\n\t.cfi_endproc\n\t.size " #name ", . - " #name);

/* DW_CFA_nop */
WITH(right, 0)

/* DW_CFA_val_expression of rsp: each of these functions claims a wrong value for the caller's stack pointer. */
#define SP(name, length, ...) WITH(name, 0x16, 7, length, __VA_ARGS__)
SP(sp_low, 3, 0x0a, 0x00, 0x10)                                              /* 0x1000 */
SP(sp_below, 4, 0x77, 0x80, 0x80, 0x40)                                      /* rsp - 1 MiB */
SP(sp_a_little_below, 3, 0x77, 0x80, 0x40)                                   /* rsp - 8192 */
SP(sp_same, 2, 0x77, 0)                                                      /* rsp */
SP(sp_high, 9, 0x0e, 0, 0xf0, 0xff, 0xff, 0xff, 0x7f, 0, 0)                  /* 0x7ffffffff000 */
SP(sp_no_address, 9, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0x80)                        /* 1 << 63 */
SP(sp_end, 9, 0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)          /* -1 */
SP(sp_from_nowhere, 2, 0x38, 0x06)                                           /* *(8) */
SP(sp_for_ever, 3, 0x2f, 0xfd, 0xff)                                         /* an endless loop */

/* DW_CFA_def_cfa_expression */
#define CFA(name, length, ...) WITH(name, 0x0f, length, __VA_ARGS__)
CFA(cfa_low, 3, 0x0a, 0x00, 0x10)
CFA(cfa_below, 4, 0x77, 0x80, 0x80, 0x40)
CFA(cfa_same, 2, 0x77, 0)
CFA(cfa_high, 9, 0x0e, 0, 0xf0, 0xff, 0xff, 0xff, 0x7f, 0, 0)
CFA(cfa_end, 9, 0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
CFA(cfa_from_nowhere, 2, 0x38, 0x06)
CFA(cfa_for_ever, 3, 0x2f, 0xfd, 0xff)

/* DW_CFA_def_cfa with rbx, rbp or rsp plus a number in ULEB format, and DW_CFA_def_cfa_sf with rsp - 4096 */
WITH(cfa_far, 0x0c, 7, 0x80, 0x80, 0x80, 0x80, 0x08)
WITH(cfa_backwards, 0x12, 7, 0x80, 0x04)

/* DW_CFA_expression: the unwind information is correct except for the location of the return address or of rbp */
WITH(return_from_nowhere, 0x10, 16, 1, 0x38)
WITH(rbp_from_nowhere, 0x10, 6, 1, 0x38)
/* DW_CFA_val_expression of the return address: the first value is not an address at all, and the second is the right
 * address with an extra bit set. */
WITH(return_to_no_address, 0x16, 16, 9, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0x80)
WITH(return_to_nearly_an_address, 0x16, 16, 13, 0x38, 0x1c, 0x06, 0x0e, 0, 0, 0, 0, 0, 0, 1, 0, 0x21)
