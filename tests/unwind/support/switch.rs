//! Runs a function on another stack, with the stack switch of `foreign.c`.

use std::ffi::c_void;
use std::sync::OnceLock;

use super::build::{Library, compile};

/// The library that is built from `foreign.c`, loaded once.
pub(crate) fn foreign() -> Library {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let open = || Library::open(&compile("foreign.c", &["-O2", "-fomit-frame-pointer"])).0 as usize;
    Library(*HANDLE.get_or_init(open) as *mut c_void)
}

/// Calls `hook` on another stack, which ends at `top`.
pub(crate) fn on_stack(hook: extern "C-unwind" fn(), top: *mut c_void) {
    type Switch = extern "C-unwind" fn(extern "C-unwind" fn(), *mut c_void);
    // SAFETY: the called function has this type.
    let switch = unsafe { std::mem::transmute::<*mut c_void, Switch>(foreign().symbol("on_stack")) };
    switch(hook, top);
    std::hint::black_box(());
}
