//! Stores one pointer per thread, which can be read inside any callback.
//!
//! Rust's `thread_local!` in a library calls the loader at each access. With the *initial-exec* TLS model, an access is
//! only one load, but the variables take space in a static reserve. The reserve is small (1,664 bytes in glibc), and
//! all libraries that are loaded at run time share it. Once other libraries have used up the reserve, a library that
//! uses the initial-exec model cannot be loaded at all.
//!
//! With *TLS descriptors*, which this module uses, the loader chooses the kind of access when it loads the library. If
//! the reserve has space for the library's block of thread-locals, an access is a load and a call to a function of two
//! instructions. Such an access through a TLS descriptor takes 1 ns more than an access with initial-exec. If the
//! reserve has no space, the loader searches for the thread's block at each access, and allocates the block at the
//! thread's first access. The block contains all of the library's thread-locals. The block has the eight bytes of this
//! pointer, and about 330 bytes that belong to the standard library and other crates. The callback never touches these
//! 330 bytes. In an executable (not a library), the linker turns the access into one load. Stable Rust has no switch
//! for the TLS model, so the variable and its access are written in assembly.

#[cfg(target_arch = "x86_64")]
mod by_descriptor {
    // The symbol name contains the version, so that two versions of this crate in one program have separate variables.
    std::arch::global_asm!(
        ".pushsection .tbss.gpuflame_thread_0_1,\"awT\",@nobits",
        ".globl gpuflame_thread_0_1",
        ".hidden gpuflame_thread_0_1",
        ".type gpuflame_thread_0_1,@object",
        ".size gpuflame_thread_0_1,8",
        ".balign 8",
        "gpuflame_thread_0_1:",
        ".zero 8",
        ".popsection",
    );

    /// Offset of this variable from the address in the register fs, which points to the calling thread's control block.
    #[inline(always)]
    fn offset() -> usize {
        let offset;
        // SAFETY: these are the psABI's two instructions, which the linker may replace by a constant. The called
        // function preserves all registers except rax. In glibc before 2.40, however, the vector registers are not
        // preserved if the function has to allocate the thread's block.
        unsafe {
            std::arch::asm!(
                "leaq gpuflame_thread_0_1@tlsdesc(%rip), %rax",
                "callq *gpuflame_thread_0_1@tlscall(%rax)",
                out("rax") offset,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax),
            );
        }
        offset
    }

    #[inline(always)]
    pub(super) fn get() -> *mut u8 {
        let value;
        // SAFETY: this assembly only reads the thread's own variable.
        unsafe {
            std::arch::asm!(
                "mov {value}, qword ptr fs:[{offset}]",
                offset = in(reg) offset(),
                value = lateout(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    #[inline(always)]
    pub(super) fn set(value: *mut u8) {
        // SAFETY: this assembly only writes the thread's own variable.
        unsafe {
            std::arch::asm!(
                "mov qword ptr fs:[{offset}], {value}",
                offset = in(reg) offset(),
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod by_descriptor {
    use std::cell::Cell;

    thread_local! {
        static THREAD: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
    }

    pub(super) fn get() -> *mut u8 {
        THREAD.with(Cell::get)
    }

    pub(super) fn set(value: *mut u8) {
        THREAD.with(|thread| thread.set(value));
    }
}

/// Returns the calling thread's pointer, which is null until [`set`].
#[inline(always)]
pub fn get() -> *mut u8 {
    by_descriptor::get()
}

/// Sets the calling thread's pointer. When the thread ends, the memory to which the pointer refers is not freed.
#[inline(always)]
pub fn set(value: *mut u8) {
    by_descriptor::set(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_pointer() {
        let mut mine = 0u8;
        set(&raw mut mine);
        let other = std::thread::spawn(|| get() as usize).join().expect("the thread only reads");
        assert_eq!((get(), other), (&raw mut mine, 0));
        set(std::ptr::null_mut());
        assert!(get().is_null());
    }
}
