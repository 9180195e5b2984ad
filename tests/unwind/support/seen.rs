//! A callback that captures with its thread's unwinder, and stores the result for the test.

use std::cell::RefCell;
use std::ffi::c_void;
use std::path::PathBuf;

use gpuflame_model::record::Frame;
use gpuflame_unwind::{self as unwind, Skip, Unwinder};

use super::build::{Library, compile};
use super::oracle::Addresses;

thread_local! {
    static UNWINDER: RefCell<Option<Unwinder>> = const { RefCell::new(None) };
    /// Result of the last callback: the frames and addresses that gpuflame's unwinder found, and the addresses that
    /// libgcc found.
    pub(crate) static SEEN: RefCell<(Vec<Frame>, Vec<u64>, Vec<u64>)> = const { RefCell::new((Vec::new(), Vec::new(), Vec::new())) };
}

pub(crate) extern "C-unwind" fn look() {
    let here = 0u64;
    let below = std::hint::black_box(&raw const here) as u64;
    let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
    theirs.take_from_libgcc(below);
    UNWINDER.with_borrow_mut(|unwinder| {
        let unwinder = unwinder.as_mut().expect("each test makes one");
        let frames = unwinder.capture(Skip::UpTo(below)).frames;
        ours.take(frames);
        SEEN.set((frames.to_vec(), ours.as_slice().to_vec(), theirs.as_slice().to_vec()));
    });
}

/// Captures the stack and drops the result.
#[allow(dead_code)]
pub(crate) fn capture() {
    UNWINDER.with_borrow_mut(|unwinder| {
        let frames = unwinder.as_mut().expect("each test makes one").capture(Skip::None).frames;
        assert!(!frames.is_empty());
    });
}

pub(crate) fn use_new_unwinder(check_every_capture: bool) {
    unwind::prepare();
    let mut unwinder = Unwinder::new().expect("memory for an unwinder");
    unwinder.check_every_capture(check_every_capture);
    UNWINDER.set(Some(unwinder));
}

pub(crate) fn call(library: Library, name: &str) {
    // SAFETY: every case is a C function of this type.
    let case = unsafe {
        std::mem::transmute::<*mut c_void, extern "C-unwind" fn(extern "C-unwind" fn())>(library.symbol(name))
    };
    case(look);
}

/// Two libraries that differ only in their frame sizes.
pub(crate) fn twins() -> [PathBuf; 2] {
    [compile("twin.c", &["-O2"]), compile("twin.c", &["-O2", "-DLARGE"])]
}
