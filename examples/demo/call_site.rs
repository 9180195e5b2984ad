//! Lets the workload report its current position, so that tests can compare gpuflame's stacks with it, as `call_site.h`
//! does for the C examples. Only the simulated CUDA stack uses these reports; gpuflame does not need them.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

/// `frame!(decode)` at the top of `fn decode` keeps `demo::workload::decode` on this thread's path until the function
/// returns. (The macro also prevents the last call of the function from becoming a jump.)
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

/// Type of `gpusim_site`, a function of the simulated stack.
type Witness = unsafe extern "C" fn(path: *const c_char);
static WITNESS: OnceLock<Option<Witness>> = OnceLock::new();

/// Looks for the function `gpusim_site` (the witness) in `libcuda.so.1`.
///
/// # Safety
/// `libcuda` must be a handle from dlopen.
pub(crate) unsafe fn find_witness(libcuda: *mut c_void) {
    // SAFETY: the handle is the caller's, and the name is a C string.
    let symbol = unsafe { libc::dlsym(libcuda, c"gpusim_site".as_ptr()) };
    // SAFETY: if the symbol exists, it is the function of tests/gpusim, which has this type.
    let witness = unsafe { std::mem::transmute::<*mut c_void, Option<Witness>>(symbol) };
    WITNESS.get_or_init(|| witness);
}

/// Reports the path of the calling thread to the witness function. Call this function right before the program submits
/// work to the GPU.
pub(crate) fn tell() {
    let Some(Some(witness)) = WITNESS.get() else { return };
    let path = PATH.with_borrow(|path| CString::new(path.join(";"))).unwrap_or_default();
    // SAFETY: the path is a C string, and the function copies it before it returns.
    unsafe { witness(path.as_ptr()) };
}
