/* A function with wrong unwind information. The unwind information omits the words that the function pushes. Therefore
 * an unwinder mistakes a word that the caller chose for the return address. */
__asm__(
    ".text\n.globl with_garbage\n.type with_garbage, @function\nwith_garbage:\n.cfi_startproc\n"
    "sub $16,%rsp\npush %rsi\ncall *%rdi\nadd $24,%rsp\nret\n.cfi_endproc\n.size with_garbage, . - with_garbage\n");
