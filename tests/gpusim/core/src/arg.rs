//! Types for the pointer arguments of C API functions. Each type allows only the access (read or write) that a C
//! function needs for that argument.

use crate::error::{CuError, INVALID_VALUE};
use std::ffi::{CStr, c_char, c_void};

/// An opaque handle of any type, such as CUstream, CUcontext or cudaEvent_t.
pub type Handle = *mut c_void;

/// A pointer argument through which an API function returns a value.
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
    /// Stores the value that the API function returns; this is an error if the program passed NULL.
    pub fn set(self, value: T) -> Result<(), CuError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: every C API here requires NULL or a valid place for one T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores the value unless the program passed NULL.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Reads the value that the program has stored at this address.
    pub fn get(self) -> Result<T, CuError>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// A pointer argument to a value that an API function reads.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(pub *const T);

impl<T: Copy> In<T> {
    /// Reads the value; returns an error if the program passed NULL.
    pub fn get(self) -> Result<T, CuError> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: every C API here requires NULL or a valid T.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A string argument: a pointer to a C string, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(pub *const c_char);

impl Text {
    /// Returns the string; `None` for NULL.
    pub fn get<'a>(self) -> Option<&'a CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: every C API here requires NULL or a C string that outlives the call.
        Some(unsafe { CStr::from_ptr(self.0) })
    }
}

/// Converts a string literal to a C string. The literal must contain exactly one NUL, at its end. The macros that
/// declare API functions make such literals from function names.
pub const fn literal(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends in one NUL"),
    }
}

/// Copies text into a program's buffer of `room` bytes. Text longer than the buffer is truncated; the copy always ends
/// in a NUL.
pub fn copy_text(text: &CStr, to: Out<c_char>, room: usize) -> Result<(), CuError> {
    if to.0.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let kept = text.to_bytes().len().min(room - 1);
    // SAFETY: the caller provides `room` bytes at `to`, of which `kept + 1` are written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.0, kept);
        *to.0.add(kept) = 0;
    }
    Ok(())
}
