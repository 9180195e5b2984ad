//! `libgpuflame.so`: what the CUDA driver, the dynamic loader and C programs call.
//!
//! It converts, guards and forwards; all policy is in the `gpuflame` crate. A panic never leaves it:
//! it switches gpuflame off, and the application runs on.

mod alloc;
mod preload;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuflame::{Error, ErrorKind, session};

#[global_allocator]
static ALLOCATOR: alloc::Counted = alloc::Counted;

/// Called by the CUDA driver in `cuInit` when `CUDA_INJECTION64_PATH` names this library.
///
/// Always returns 1: after 0 the driver would unload the library and call it again later.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    let _ = guarded(|| {
        if !preload::forward_to_linked_copy() {
            session::inject();
        }
        Ok(())
    });
    1
}

/// Called by NVTX in its first call when `NVTX_INJECTION64_PATH` names this library.
///
/// Always returns 1: after 0 NVTX would unload the library.
///
/// # Safety
/// As NVTX calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(table: Option<GetExportTable>) -> c_int {
    let _ = guarded(|| {
        if let Some(table) = table
            && !preload::forward_nvtx_to_linked_copy(table)
        {
            // SAFETY: the caller says so.
            session::inject_nvtx(unsafe { session::NvtxTable::new(table) });
        }
        Ok(())
    });
    1
}

/// How NVTX gives its tables out.
pub(crate) type GetExportTable = extern "C" fn(u32) -> *const c_void;

/// Opens a range. See `include/gpuflame.h`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuflame_range_push(name: *const c_char) -> c_int {
    // SAFETY: the caller says so.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    guarded(|| session::range_push(name))
}

/// Closes a range. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_range_pop() -> c_int {
    guarded(session::range_pop)
}

/// Opens a window. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_start() -> c_int {
    guarded(session::start)
}

/// Closes the window. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_stop() -> c_int {
    guarded(session::stop)
}

/// Collects what is complete. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_flush() -> c_int {
    guarded(session::flush)
}

/// The version. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What went wrong last on this thread. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_last_error() -> *const c_char {
    let message = LAST_ERROR.try_with(|last| last.borrow().as_ref().map(|message| message.as_ptr()));
    message.ok().flatten().unwrap_or(c"".as_ptr())
}

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs `action`; its error becomes a number here and a sentence for `gpuflame_last_error`.
fn guarded(action: impl FnOnce() -> gpuflame::Result<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            remember(&error.to_string());
            code(&error)
        }
        Err(_) => {
            session::disable_after_panic();
            remember(
                "gpuflame met a bug of its own and switched itself off; the application is not affected",
            );
            -8
        }
    }
}

fn code(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::NoDriver => -1,
        ErrorKind::NoCupti => -2,
        ErrorKind::CuptiRefused => -3,
        ErrorKind::Setting => -4,
        ErrorKind::Io => -5,
        ErrorKind::Format => -6,
        ErrorKind::State => -7,
        _ => -8,
    }
}

fn remember(message: &str) {
    let message = CString::new(message.replace('\0', " ")).ok();
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
}
