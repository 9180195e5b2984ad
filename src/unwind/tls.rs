//! One pointer per thread that can be read inside any callback.
//!
//! Rust's `thread_local!` in a library that was loaded by `dlopen` may call the loader on a thread's
//! first access, which allocates: not where we run. The *initial-exec* model never does: the pointer has
//! a fixed place beside the thread's own block, found by one load from the global offset table. glibc
//! keeps 1,664 bytes there for libraries that come later. A library's whole block goes there: of ours these
//! eight bytes, and some 330 of the standard library's and other crates', which the callback never touches.
//! Stable Rust has no switch for the model, so the variable and the two accesses are written in assembly.

#[cfg(target_arch = "x86_64")]
mod initial_exec {
    // The name carries the version: two versions of this crate in one program keep two variables.
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

    #[inline(always)]
    pub(super) fn get() -> *mut u8 {
        let value;
        // SAFETY: reads the thread's own variable, whose place relative to fs the loader has filled in.
        unsafe {
            std::arch::asm!(
                "mov {value}, qword ptr [rip + gpuflame_thread_0_1@GOTTPOFF]",
                "mov {value}, qword ptr fs:[{value}]",
                value = out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    #[inline(always)]
    pub(super) fn set(value: *mut u8) {
        // SAFETY: writes the thread's own variable, whose place relative to fs the loader has filled in.
        unsafe {
            std::arch::asm!(
                "mov {place}, qword ptr [rip + gpuflame_thread_0_1@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {value}",
                place = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod initial_exec {
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

/// The calling thread's pointer; null until [`set`].
#[inline(always)]
pub fn get() -> *mut u8 {
    initial_exec::get()
}

/// Sets the calling thread's pointer. It is not freed when the thread ends.
#[inline(always)]
pub fn set(value: *mut u8) {
    initial_exec::set(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own_pointer() {
        let mut mine = 0u8;
        set(&raw mut mine);
        let other = std::thread::spawn(|| get() as usize).join().expect("the thread only reads");
        assert_eq!((get(), other), (&raw mut mine, 0));
        set(std::ptr::null_mut());
        assert!(get().is_null());
    }
}
