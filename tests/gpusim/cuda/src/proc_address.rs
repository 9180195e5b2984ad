//! cuGetProcAddress: looks up functions in this library's own symbol table, by names without a version suffix.

use gpusim_core::arg::{Out, Text};
use gpusim_core::error::{self, CuError, INVALID_VALUE, NOT_FOUND};
use gpusim_core::missing;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

/// Functions whose arguments changed in a later CUDA version: the plain name, the name of the newest version of the
/// function, and the CUDA version in which it appeared.
const CHANGED: [(&str, &str, i32); 3] = [
    ("cuCtxCreate", "cuCtxCreate_v4", 12050),
    ("cuCtxSynchronize", "cuCtxSynchronize_v2", 13000),
    ("cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030),
];

const PER_THREAD_STREAM: u64 = 2;

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(name: Text, address: Out<*mut c_void>, version: i32, flags: u64) -> u32 {
    error::code(get(name, address, version, flags))
}

/// Looks up a function. Sets `status` to 0 if the function is found, otherwise to 1.
#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: Text,
    address: Out<*mut c_void>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> u32 {
    let result = get(name, address, version, flags);
    status.set_if_wanted(u32::from(result.is_err()));
    error::code(result)
}

fn get(name: Text, address: Out<*mut c_void>, version: i32, flags: u64) -> Result<(), CuError> {
    let name = name.get().and_then(|n| n.to_str().ok()).ok_or(INVALID_VALUE)?;
    let found = candidates(name, version, flags).iter().map(|c| symbol(c)).find(|p| !p.is_null());
    address.set(found.unwrap_or(null_mut()))?;
    if found.is_none() {
        missing::note(name);
    }
    found.map(drop).ok_or(NOT_FOUND)
}

/// Exported functions that a program may mean by this name, best match first.
fn candidates(name: &str, version: i32, flags: u64) -> Vec<CString> {
    let mut names = Vec::new();
    let changed = CHANGED.iter().find(|(n, ..)| *n == name);
    names.extend(changed.map(|(_, newest, _)| (*newest).to_owned()));
    names.extend(["_v2", ""].map(|suffix| format!("{name}{suffix}")));
    names.retain(|n| changed.is_none_or(|(_, newest, since)| n != newest || version >= *since));
    let twins = |n: &String| ["_ptsz", "_ptds"].map(|suffix| format!("{n}{suffix}"));
    if flags & PER_THREAD_STREAM != 0 {
        names = names.iter().flat_map(twins).chain(names.iter().cloned()).collect();
    }
    names.into_iter().filter_map(|n| CString::new(n).ok()).collect()
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the soname is this library's own, which is loaded and stays loaded.
    unsafe {
        let this = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(this, name.as_ptr())
    }
}
