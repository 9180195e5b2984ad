//! Loads the fake Python interpreter (`tests/programs/interpreter.c`) into this process. The fake interpreter has
//! Python's frames, but evaluates no code.

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::support::compile;

/// Type of the library's function `evaluate`. `evaluate` makes the given number of Python frames, and then calls the
/// given function with the given pointer. The innermost Python function is `function_b`.
pub(crate) type Evaluate = extern "C" fn(c_int, extern "C" fn(*mut c_void), *mut c_void) -> c_int;

pub(crate) fn evaluate() -> Evaluate {
    let library = compile("tests/programs/interpreter.c", &["-O2", "-shared", "-fPIC"]);
    let library = CString::new(library.as_os_str().as_bytes()).unwrap();
    // SAFETY: both names are C strings; the library's only constructor fills its own variables, and `evaluate` has the
    // type `Evaluate`.
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!library.is_null());
        let function = libc::dlsym(library, c"evaluate".as_ptr());
        assert!(!function.is_null());
        std::mem::transmute::<*mut c_void, Evaluate>(function)
    }
}
