//! Pointer arguments of C API functions, with the one dereference that each kind of them needs.

use crate::error::{CuError, INVALID_VALUE};
use std::ffi::{CStr, c_char, c_void};

/// Any opaque handle: CUstream, CUcontext, cudaEvent_t ...
pub type Handle = *mut c_void;

/// A pointer through which the function answers.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(pub *mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Answers; an error if the program passed NULL.
    pub fn set(self, value: T) -> Result<(), CuError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the contract of every C API here: NULL or a place for one T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Answers if the program wants to know.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// What stands there before the answer.
    pub fn get(self) -> Result<T, CuError>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// A pointer to something that the function reads.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(pub *const T);

impl<T: Copy> In<T> {
    /// Reads it; an error if the program passed NULL.
    pub fn get(self) -> Result<T, CuError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the contract of every C API here: NULL or a valid T.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A C string, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(pub *const c_char);

impl Text {
    /// The string; `None` for NULL.
    pub fn get<'a>(self) -> Option<&'a CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the contract of every C API here: NULL or a C string that outlives the call.
        Some(unsafe { CStr::from_ptr(self.0) })
    }
}

/// A literal that ends in one NUL, as the macros that write API functions down make it from a name.
pub const fn literal(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends in one NUL"),
    }
}

/// Copies text into a program's buffer of `room` bytes, cut to fit, with its NUL.
pub fn copy_text(text: &CStr, to: Out<c_char>, room: usize) -> Result<(), CuError> {
    if to.0.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let kept = text.to_bytes().len().min(room - 1);
    // SAFETY: the caller's contract: `room` bytes at `to`, of which `kept + 1` are written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.0, kept);
        *to.0.add(kept) = 0;
    }
    Ok(())
}
