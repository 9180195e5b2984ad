//! Tests captures below NVIDIA's own CUDA runtime. The runtime loads the driver by name and finds the test's fake
//! driver, whose constructor captures the stack. The stack therefore includes the real runtime and the dynamic loader.
//!
//! `GPUFLAME_TEST_CUDART` is the path of the runtime library; `tests/cupti-wheels.sh` downloads the library of each
//! release.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::ffi::{CStr, c_int};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, mem};

use build::{Library, compile};
use oracle::{Addresses, capture_both};

/// A stack as gpuflame's unwinder found it, the same stack as libgcc found it, and the capture's flags.
type Seen = (Vec<u64>, Vec<u64>, u32);

/// Stacks that the fake driver's constructor captured.
static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

extern "C-unwind" fn look() {
    let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
    for _ in 0..2 {
        let flags = capture_both(&mut ours, &mut theirs).0;
        let seen = (ours.as_slice()[1..].to_vec(), theirs.as_slice()[1..].to_vec(), flags);
        SEEN.lock().expect("nothing panics while it is held").push(seen);
    }
}

#[test]
#[ignore = "needs NVIDIA's libcudart: run tests/cupti-wheels.sh"]
fn stacks_through_the_real_runtime_agree_with_libgcc() {
    let cudart = env::var_os("GPUFLAME_TEST_CUDART").expect("GPUFLAME_TEST_CUDART names a libcudart");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-cudart");
    let driver = folder.join("libcuda.so.1");
    if env::var_os("LD_LIBRARY_PATH").is_none_or(|path| path != folder.as_os_str()) {
        // Run this test again in a new process, with LD_LIBRARY_PATH set so that the runtime finds the fake driver.
        fs::create_dir_all(&folder).expect("the target folder is writable");
        fs::copy(compile("lazy.c", &["-O2"]), &driver).expect("the driver is copied");
        let mut again = Command::new(env::current_exe().expect("a test has a file"));
        again.args([
            "--exact",
            "--ignored",
            "--nocapture",
            "stacks_through_the_real_runtime_agree_with_libgcc",
        ]);
        assert!(again.env("LD_LIBRARY_PATH", &folder).status().expect("it starts").success());
        return;
    }
    let runtime = Library::open(Path::new(&cudart));
    // SAFETY: this is the only test in this process, and no other thread uses the environment.
    unsafe { env::set_var("GPUFLAME_TEST_HOOK", format!("{:x}", look as *const () as usize)) };
    // SAFETY: the runtime's function has this type.
    let count: extern "C" fn(*mut c_int) -> c_int =
        unsafe { mem::transmute(runtime.symbol("cudaGetDeviceCount")) };
    let mut devices = 0;
    assert_ne!(count(&mut devices), 0, "there is no driver, and the runtime must say so");
    let seen = SEEN.lock().expect("nothing panics while it is held");
    assert!(!seen.is_empty(), "the runtime did not load a driver");
    for (ours, theirs, flags) in &*seen {
        assert_eq!((ours, *flags), (theirs, 0));
    }
    let inside = seen[0].0.iter().filter(|address| file_of(**address).contains("libcudart")).count();
    eprintln!("{} frames, {inside} of them in {}", seen[0].0.len(), cudart.to_string_lossy());
    assert!(inside >= 2, "the stack does not run through the runtime");
}

/// Returns the path of the file that is loaded at an address.
fn file_of(address: u64) -> String {
    let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address; on failure the zeroed description remains.
    let info = unsafe {
        libc::dladdr(address as *const _, info.as_mut_ptr());
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return String::new();
    }
    // SAFETY: the loader's name for a loaded object is a C string.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()
}
