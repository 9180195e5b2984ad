//! Driver API functions of the linker for GPU code. The simulated linker accepts any image, and its output is a copy of
//! its last input.

use gpusim_core::arg::{Handle, In, Out, Text};
use gpusim_core::error::{CuError, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE};
use gpusim_core::sync::lock;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Mutex;

/// Linkers that the program has created: each has an image and a number, and the number is the linker's handle.
#[derive(Default)]
struct Linkings {
    made: usize,
    images: BTreeMap<usize, Vec<u8>>,
}

static LINKINGS: Mutex<Linkings> = Mutex::new(Linkings { made: 0, images: BTreeMap::new() });

/// Applies a function to the image of a linker.
fn with<T>(state: Handle, act: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T, CuError> {
    let mut linkings = lock(&LINKINGS);
    linkings.images.get_mut(&(state as usize)).map(act).ok_or(INVALID_HANDLE)
}

driver_api! {
    cuLinkCreate_v2 @ 381 |_own| (_count: u32, _options: In<u32>, _values: In<Handle>, state: Out<Handle>) {
        let mut linkings = lock(&LINKINGS);
        linkings.made += 1;
        let number = linkings.made;
        linkings.images.insert(number, Vec::new());
        state.set(number as Handle)
    }

    cuLinkAddData_v2 @ 382 |_own| (
        state: Handle, _kind: u32, data: *const u8, bytes: usize, _name: Text, _count: u32, _options: In<u32>,
        _values: In<Handle>,
    ) {
        if data.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the C API requires `bytes` valid bytes at `data`.
        let data = unsafe { std::slice::from_raw_parts(data, bytes) };
        with(state, |image| *image = data.to_vec())
    }

    cuLinkAddFile_v2 @ 383 |_own| (
        state: Handle, _kind: u32, file: Text, _count: u32, _options: In<u32>, _values: In<Handle>,
    ) {
        let path = OsStr::from_bytes(file.get().ok_or(INVALID_VALUE)?.to_bytes());
        let data = std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?;
        with(state, |image| *image = data)
    }

    cuLinkComplete @ 365 |_own| (state: Handle, image: Out<*const u8>, bytes: Out<usize>) {
        let (start, length) = with(state, |image| (image.as_ptr(), image.len()))?;
        image.set(start)?;
        bytes.set_if_wanted(length);
        Ok(())
    }

    cuLinkDestroy @ 366 |_own| (state: Handle) {
        let mut linkings = lock(&LINKINGS);
        linkings.images.remove(&(state as usize)).map(drop).ok_or(INVALID_HANDLE)
    }
}
