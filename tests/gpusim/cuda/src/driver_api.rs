//! The macro that declares a driver API function by its name, callback id, arguments and body. The macro generates the
//! exported function and a struct with its arguments, which CUPTI's callbacks receive.

/// `cuName @ ID |own| (arg: Type, ...) { body }`, or `cuName @ ID / cuName_ptsz @ ID ...` for a function with a
/// per-thread variant. `own` is the stream that the handle 0 represents. The body returns `Result<(), CuError>`.
macro_rules! driver_api {
    ($(
        $name:ident @ $id:literal $(/ $twin:ident @ $twin_id:literal)? |$own:ident| $args:tt $body:block
    )*) => {$(
        driver_api!(@one $name, $id, $own = gpusim_core::stream::Default::Context, $args, $body);
        $(driver_api!(@one $twin, $twin_id, $own = gpusim_core::stream::Default::PerThread, $args, $body);)?
    )*};
    (@one $name:ident, $id:literal, $own:ident = $default:expr, ($($arg:ident : $ty:ty),* $(,)?), $body:block) => {
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
            gpusim_core::api::driver($id, NAME, &params, std::ptr::null(), || $body)
        }
    };
}
