// The examples in the crate's documentation include this file, and rustdoc hides it. This file loads the simulated CUDA
// stack by path, before other code looks for CUDA by name.

use std::path::{Path, PathBuf};

/// A simulated GPU, with the CUDA functions that the examples call.
struct Gpu {
    memset: unsafe extern "C" fn(*mut u8, i32, usize, *const u8) -> i32,
    synchronize: unsafe extern "C" fn() -> i32,
    memory: *mut u8,
}

impl Gpu {
    fn work(&self) {
        // SAFETY: the device memory has this size.
        assert_eq!(unsafe { (self.memset)(self.memory, 0, 4096, std::ptr::null()) }, 0);
    }

    fn synchronize(&self) {
        // SAFETY: the function takes no argument.
        assert_eq!(unsafe { (self.synchronize)() }, 0);
    }
}

fn simulated_gpu() -> Gpu {
    // LD_LIBRARY_PATH contains the folders with the tests' dependencies, because cargo adds these folders.
    let folders = std::env::var_os("LD_LIBRARY_PATH").expect("cargo sets it");
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let find = |name: &str| {
        let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
        found.unwrap_or_else(|| panic!("{name} is in none of {folders:?}"))
    };
    let cupti = find("libgpusim_cupti.so");
    // Write the outputs to the folder in which the other tests write their files.
    let output = cupti.ancestors().nth(3).expect("it is in target/debug/deps").join("tmp/doctest-%p");
    // SAFETY: no other thread exists that could read the environment.
    unsafe {
        std::env::set_var("GPUFLAME_CUPTI", cupti);
        std::env::set_var("GPUFLAME_OUTPUT", output);
        std::env::set_var("GPUFLAME_FORMATS", "folded");
    }
    load(&find("libgpusim_cuda.so"));
    let runtime = load(&find("libgpusim_cudart.so"));
    let mut memory = std::ptr::null_mut();
    // SAFETY: the runtime's functions have these types, and cudaMalloc writes one address.
    unsafe {
        let malloc: unsafe extern "C" fn(*mut *mut u8, usize) -> i32 =
            std::mem::transmute(symbol(runtime, c"cudaMalloc"));
        assert_eq!(malloc(&mut memory, 4096), 0);
        Gpu {
            memset: std::mem::transmute(symbol(runtime, c"cudaMemsetAsync")),
            synchronize: std::mem::transmute(symbol(runtime, c"cudaDeviceSynchronize")),
            memory,
        }
    }
}

fn load(library: &Path) -> *mut std::ffi::c_void {
    let path = std::ffi::CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: loading the library runs its constructors, as in any CUDA program.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!handle.is_null(), "cannot load {}", library.display());
    handle
}

fn symbol(library: *mut std::ffi::c_void, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    // SAFETY: `library` is an open handle and `name` a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "no {name:?}");
    found
}
