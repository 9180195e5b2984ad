/* Two libraries, the twins, are built from this source; they differ only in the size of a frame. The tests load them
 * alternately at the same address, and the unwinder must never apply the unwind rules of one library to the other. All
 * words in the frames are return addresses. Therefore an unwinder that makes a wrong step finds a plausible return
 * address, and not a value that would reveal the error. */
#ifdef LARGE
#define ROOM "0x408"
#else
#define ROOM "0x308"
#endif

#define FRAME(name, call) \
    #name ":\n.cfi_startproc\nmov (%rsp),%rdx\nsub $" ROOM ",%rsp\n.cfi_adjust_cfa_offset " ROOM "\n" \
    "mov $" ROOM "/8,%ecx\n1: mov %rdx,-8(%rsp,%rcx,8)\ndec %ecx\njnz 1b\n" \
    call "\nadd $" ROOM ",%rsp\n.cfi_adjust_cfa_offset -" ROOM "\nret\n.cfi_endproc\n"

__asm__(".text\n" FRAME(inner, "call *%rdi") FRAME(outer, "call inner"));
void outer(void (*hook)(void));
static volatile int sink;
void twin(void (*hook)(void)) { outer(hook); sink++; }
