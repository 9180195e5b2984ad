//! Lets the workload say where it stands, so that tests can hold gpuflame's stacks against it: what
//! `call_site.h` is to the examples in C. Only the simulated CUDA stack listens; gpuflame needs none of it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

/// `frame!(decode)` at the top of `fn decode` keeps `demo::workload::decode` on this thread's path until
/// the function returns. (It also keeps the last call of the function from becoming a jump.)
macro_rules! frame {
    ($function:path) => {
        let _frame = $crate::call_site::Frame::enter(concat!(module_path!(), "::", stringify!($function)));
    };
}
pub(crate) use frame;

thread_local! {
    static PATH: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// A function that has not returned yet.
pub(crate) struct Frame(());

impl Frame {
    pub(crate) fn enter(function: &'static str) -> Frame {
        PATH.with_borrow_mut(|path| path.push(function));
        Frame(())
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        PATH.with_borrow_mut(Vec::pop);
    }
}

/// `gpusim_site` of the simulated stack.
type Witness = unsafe extern "C" fn(path: *const c_char);
static WITNESS: OnceLock<Option<Witness>> = OnceLock::new();

/// Looks for the witness in `libcuda.so.1`.
///
/// # Safety
/// `libcuda` is a handle from dlopen.
pub(crate) unsafe fn find_witness(libcuda: *mut c_void) {
    // SAFETY: the caller's handle, and a C string.
    let symbol = unsafe { libc::dlsym(libcuda, c"gpusim_site".as_ptr()) };
    // SAFETY: where the symbol exists it is the function of tests/gpusim, of this type.
    let witness = unsafe { std::mem::transmute::<*mut c_void, Option<Witness>>(symbol) };
    WITNESS.get_or_init(|| witness);
}

/// Tells the witness this thread's path; to be called right before work is given to the GPU.
pub(crate) fn tell() {
    let Some(Some(witness)) = WITNESS.get() else { return };
    let path = PATH.with_borrow(|path| CString::new(path.join(";"))).unwrap_or_default();
    // SAFETY: a C string, copied before the call returns.
    unsafe { witness(path.as_ptr()) };
}
