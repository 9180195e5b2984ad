//! The stack frames between CUPTI and a client's callback. In the real library, several stack frames are between
//! CUPTI's caller and the client's callback. In some CUPTI versions these frames keep frame pointers, and in other
//! versions they do not. An unwinder must handle frames with and without frame pointers; `GPUSIM_FRAMES` selects one of
//! the two kinds. The frames are written in assembly, because rustc can choose frame pointers only for a whole library.

use gpusim_core::settings;
use std::ffi::c_void;

/// CUpti_CallbackFunc
pub(crate) type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);

type Frame = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void, Callback);

/// Calls the client's callback through three stack frames of this library.
#[inline(never)]
pub(crate) fn call(callback: Callback, user: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    let first = if settings::get().frame_pointers { gpusim_frame_fp_1 } else { gpusim_frame_nofp_1 as Frame };
    // SAFETY: the frames pass their arguments on and end in `callback(user, domain, id, data)`.
    unsafe { first(user, domain, id, data, callback) }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn gpusim_frame_fp_1(user: *mut c_void, domain: u32, id: u32, data: *const c_void, callback: Callback);
    fn gpusim_frame_nofp_1(user: *mut c_void, domain: u32, id: u32, data: *const c_void, callback: Callback);
}

/// A function without a frame pointer, as compilers generate such functions. The function saves rbp and uses it for
/// another value, so following frame pointers fails; but its .eh_frame is correct.
#[cfg(target_arch = "x86_64")]
macro_rules! frame_without_pointer {
    ($name:literal, $bytes:literal, $next:literal) => {
        std::arch::global_asm!(
            ".pushsection .text.gpusim_frames, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            concat!("sub rsp, ", $bytes),
            concat!(".cfi_adjust_cfa_offset ", $bytes),
            "mov ebp, 0x5eed",
            concat!("call ", $next),
            concat!("add rsp, ", $bytes),
            concat!(".cfi_adjust_cfa_offset -", $bytes),
            "pop rbp",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_restore rbp",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

/// A function with a frame pointer.
#[cfg(target_arch = "x86_64")]
macro_rules! frame_with_pointer {
    ($name:literal, $bytes:literal, $next:literal) => {
        std::arch::global_asm!(
            ".pushsection .text.gpusim_frames, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            concat!("sub rsp, ", $bytes),
            concat!("call ", $next),
            "leave",
            ".cfi_def_cfa rsp, 8",
            ".cfi_restore rbp",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

// The sizes of these frames keep rsp aligned to 16 bytes at each call. In all of these frames, the callback's address
// stays in the register r8.
#[cfg(target_arch = "x86_64")]
mod assembly {
    frame_without_pointer!("gpusim_frame_nofp_1", "48", "gpusim_frame_nofp_2");
    frame_without_pointer!("gpusim_frame_nofp_2", "272", "gpusim_frame_nofp_3");
    frame_without_pointer!("gpusim_frame_nofp_3", "16", "r8");
    frame_with_pointer!("gpusim_frame_fp_1", "48", "gpusim_frame_fp_2");
    frame_with_pointer!("gpusim_frame_fp_2", "272", "gpusim_frame_fp_3");
    frame_with_pointer!("gpusim_frame_fp_3", "16", "r8");
}

/// On other architectures, calls the callback through one ordinary function.
#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
unsafe extern "C" fn gpusim_frame_fp_1(
    user: *mut c_void,
    domain: u32,
    id: u32,
    data: *const c_void,
    f: Callback,
) {
    f(user, domain, id, data);
    std::hint::black_box(());
}

#[cfg(not(target_arch = "x86_64"))]
use gpusim_frame_fp_1 as gpusim_frame_nofp_1;
