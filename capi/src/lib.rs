//! `libgpuflame.so`: the functions that the CUDA driver, the dynamic loader and C programs call.
//!
//! The functions of this library only convert arguments, catch panics and forward calls to the recorder. A panic never
//! leaves this library. A panic disables gpuflame, and the application continues.

mod alloc;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod older_glibc;
mod preload;

mod stats;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod thread_exit;
#[cfg(versioned)]
mod versions;

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use gpuflame_cupti::tracer::errno;
use gpuflame_model::error::{Error, ErrorKind};
use gpuflame_os::cancel;
use gpuflame_recorder::session;

#[global_allocator]
static ALLOCATOR: alloc::HeapAllocator = alloc::HeapAllocator;

/// The CUDA driver calls this function in `cuInit` if `CUDA_INJECTION64_PATH` contains the path of this library.
///
/// Always returns 1. If this function returned 0, the driver would unload the library and load it again later.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    let _ = run_guarded(|| {
        if preload::forward_to_linked_copy() {
            return Ok(());
        }
        match preload::version_mismatch() {
            Some(why) => session::refuse(&why),
            None => session::inject(),
        }
        Ok(())
    });
    1
}

/// NVTX calls this function during the first NVTX call if `NVTX_INJECTION64_PATH` contains the path of this library.
///
/// Always returns 1. If this function returned 0, NVTX would unload the library.
///
/// # Safety
/// The caller must be NVTX, and must pass the arguments that NVTX documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(table: Option<GetExportTable>) -> c_int {
    let _ = run_guarded(|| {
        if let Some(table) = table
            && !preload::forward_nvtx_to_linked_copy(table)
            && preload::version_mismatch().is_none()
        {
            // SAFETY: the caller guarantees that NVTX passed `table`.
            session::inject_nvtx(unsafe { session::NvtxTable::new(table) });
        }
        Ok(())
    });
    1
}

/// Type of NVTX's function that returns one of NVTX's function tables.
pub(crate) type GetExportTable = extern "C" fn(u32) -> *const c_void;

/// Opens a range. See `include/gpuflame.h`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuflame_range_push(name: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `name` is null or a C string.
    run_guarded(|| session::range_push(unsafe { c_string("gpuflame_range_push", name) }?))
}

/// Closes a range. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_range_pop() -> c_int {
    run_guarded(session::range_pop)
}

/// Opens a window. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_start() -> c_int {
    run_guarded(session::start)
}

/// Closes the window. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_stop() -> c_int {
    run_guarded(session::stop)
}

/// Whether a window is open. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_is_active() -> c_int {
    errno::preserve(|| catch_unwind(|| c_int::from(session::is_active())).unwrap_or(0))
}

/// Marks the beginning of the program's next step. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_step() -> c_int {
    run_guarded(session::step)
}

/// Marks the current instant with a text. See `include/gpuflame.h`.
///
/// # Safety
/// `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuflame_mark(text: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `text` is null or a C string.
    run_guarded(|| session::mark(&unsafe { c_string("gpuflame_mark", text) }?.to_string_lossy()))
}

/// Changes the path prefix of the output files. See `include/gpuflame.h`.
///
/// # Safety
/// `prefix` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuflame_set_output(prefix: *const c_char) -> c_int {
    run_guarded(|| {
        // SAFETY: the caller guarantees that `prefix` is null or a C string.
        let prefix = unsafe { c_string("gpuflame_set_output", prefix) }?;
        session::set_output(OsStr::from_bytes(prefix.to_bytes()))
    })
}

/// Writes the results of all windows so far to the caller's structure. See `include/gpuflame.h`.
///
/// # Safety
/// `out` is null, or points to a structure that begins with the number of bytes that may be written to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuflame_stats(out: *mut stats::Statistics) -> c_int {
    run_guarded(|| {
        let Some(out) = NonNull::new(out) else {
            return Err(null_pointer_error("gpuflame_stats", "structure"));
        };
        // SAFETY: the caller guarantees that the structure at `out` begins with its size.
        let place = unsafe { stats::CallerStruct::new(out) }?;
        // SAFETY: the caller guarantees that the number of bytes in the size field may be written to the structure.
        unsafe { place.fill(&session::stats()?) };
        Ok(())
    })
}

/// Collects the records of the GPU work that has completed. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_flush() -> c_int {
    run_guarded(session::flush)
}

/// Returns the version of this library. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the message of this thread's last error. See `include/gpuflame.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gpuflame_last_error() -> *const c_char {
    // A thread's first access to `LAST_ERROR` registers a destructor, which may change errno.
    errno::preserve(|| {
        let message = LAST_ERROR.try_with(|last| last.borrow().as_ref().map(|message| message.as_ptr()));
        message.ok().flatten().unwrap_or(c"".as_ptr())
    })
}

// The symbol versions must be declared in the same file as the functions, so that the assembler sees both together.
#[cfg(versioned)]
versions::versioned!("GPUFLAME_0":
    gpuflame_start gpuflame_stop gpuflame_flush gpuflame_is_active gpuflame_step gpuflame_mark gpuflame_set_output
    gpuflame_stats gpuflame_range_push gpuflame_range_pop gpuflame_version gpuflame_last_error
);

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Returns the text that a caller passed to `function`. A null pointer instead of a text is an error.
///
/// # Safety
/// `at` is null, or a C string that is valid as long as the result is used.
unsafe fn c_string<'a>(function: &str, at: *const c_char) -> gpuflame_model::error::Result<&'a CStr> {
    if at.is_null() {
        return Err(null_pointer_error(function, "text"));
    }
    // SAFETY: `at` is not null, so the caller guarantees that it is a C string.
    Ok(unsafe { CStr::from_ptr(at) })
}

fn null_pointer_error(function: &str, what: &str) -> Error {
    Error::new(ErrorKind::Setting, format!("{function}(NULL): expected a {what}; nothing was done"))
}

/// Runs `action` and returns 0. If `action` fails, returns the error code, and stores the message for
/// `gpuflame_last_error`. Preserves the application's errno.
fn run_guarded(action: impl FnOnce() -> gpuflame_model::error::Result<()>) -> c_int {
    errno::preserve(|| run_and_return_code(action))
}

fn run_and_return_code(action: impl FnOnce() -> gpuflame_model::error::Result<()>) -> c_int {
    match cancel::without_cancellation(|| catch_unwind(AssertUnwindSafe(action))) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            set_last_error(&error.to_string());
            error_code(&error)
        }
        Err(_) => {
            session::disable_after_panic();
            set_last_error(
                "internal error (a bug in gpuflame): recording has stopped; the application is not affected",
            );
            -8
        }
    }
}

fn error_code(error: &Error) -> c_int {
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

fn set_last_error(message: &str) {
    let message = CString::new(message.replace('\0', " ")).ok();
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
}
