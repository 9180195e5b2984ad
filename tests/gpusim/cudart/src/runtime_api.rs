//! The macro that declares runtime API functions, the code that runs before and after each function, and the runtime's
//! state per thread.

use crate::link::{self, Driver};
use gpusim_core::api::Call;
use gpusim_core::arg::Handle;
use gpusim_core::callback_ids::RUNTIME;
use gpusim_core::error::{self, CuError, DEINITIALIZED};
use gpusim_core::stream::Default;
use gpusim_core::table::Phase;
use std::cell::Cell;
use std::ffi::{CStr, c_char};

thread_local! {
    static LAST_ERROR: Cell<CuError> = const { Cell::new(0) };
    static DEVICE: Cell<u32> = const { Cell::new(0) };
}

/// Runs a runtime API function between the core's enter and exit functions, and stores its error as the thread's last
/// error.
#[inline]
pub(crate) fn runtime<P>(
    id: u32,
    name: &'static CStr,
    params: &P,
    symbol: *const c_char,
    body: impl FnOnce(&'static Driver) -> Result<(), CuError>,
) -> CuError {
    let driver = match link::ready() {
        Ok(driver) => driver,
        Err(error) => return remember(error),
    };
    if (driver.core.phase)() == Phase::Ended {
        return remember(DEINITIALIZED);
    }
    let mut call = Call::new(RUNTIME, id, name, params, symbol);
    (driver.core.enter)(&mut call);
    let result = error::code(body(driver));
    (driver.core.exit)(&mut call, result);
    remember(result)
}

/// Stores an error as the thread's last error, and returns it.
pub(crate) fn remember(error: CuError) -> CuError {
    if error != 0 && error != error::NOT_READY {
        LAST_ERROR.set(error);
    }
    error
}

/// Returns the thread's last error, as cudaPeekAtLastError does.
pub(crate) fn last_error() -> CuError {
    LAST_ERROR.get()
}

/// Returns and resets the thread's last error, as cudaGetLastError does.
pub(crate) fn take_last_error() -> CuError {
    LAST_ERROR.take()
}

/// Returns the calling thread's current device.
pub(crate) fn device() -> u32 {
    DEVICE.get()
}

/// Sets the calling thread's current device, as cudaSetDevice does.
pub(crate) fn set_device(device: u32) {
    DEVICE.set(device);
}

impl Driver {
    /// Makes the device's primary context current, as the first runtime call that needs a context does.
    pub(crate) fn context(&self) -> Result<(), CuError> {
        check((self.core.use_primary)(device()))
    }
}

/// Converts the result code of a driver function to a `Result`.
pub(crate) fn check(result: u32) -> Result<(), CuError> {
    if result == 0 { Ok(()) } else { Err(result) }
}

/// Converts a runtime stream handle to a handle for those driver functions that have no `_ptsz` suffix. `own` is the
/// stream that the handle 0 represents in the runtime function.
pub(crate) fn stream(handle: Handle, own: Default) -> Handle {
    const PER_THREAD: Handle = 2 as Handle;
    if handle.is_null() && own == Default::PerThread { PER_THREAD } else { handle }
}

/// `cudaName @ ID |driver, own| (arg: Type, ...) { body }`, or `cudaName @ ID / cudaName_ptsz @ ID ...` for a function
/// with a per-thread variant. `own` is the stream that the handle 0 represents. The body returns `Result<(), CuError>`.
macro_rules! runtime_api {
    ($(
        $name:ident @ $id:literal $(/ $twin:ident @ $twin_id:literal)?
        |$driver:ident, $own:ident| $args:tt $body:block
    )*) => {$(
        runtime_api!(@one $name, $id, $driver, $own = gpusim_core::stream::Default::Context, $args, $body);
        $(runtime_api!(
            @one $twin, $twin_id, $driver, $own = gpusim_core::stream::Default::PerThread, $args, $body
        );)?
    )*};
    (@one $name:ident, $id:literal, $driver:ident, $own:ident = $default:expr,
     ($($arg:ident : $ty:ty),* $(,)?), $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)] // the C API requires this signature
        extern "C" fn $name($($arg: $ty),*) -> u32 {
            #[repr(C)]
            #[allow(dead_code)] // subscribers read the fields through a pointer
            struct Params($($ty),*);

            const NAME: &std::ffi::CStr = gpusim_core::arg::literal(concat!(stringify!($name), "\0"));
            #[allow(unused_variables)] // functions without streams do not use `own`
            let $own = $default;
            let params = Params($($arg),*);
            crate::runtime_api::runtime($id, NAME, &params, std::ptr::null(), |$driver| $body)
        }
    };
}
