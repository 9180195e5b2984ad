//! Records a part of a Rust program. The program calls functions of the crate to start and stop recording, and to name
//! the work. The program makes fifty launches before the window, a hundred in the window and fifty after it. In the
//! middle of the window the program prints the results so far, without stopping the recording.
//!
//!     cargo run --release --example embed
//!
//! Without a GPU, on the simulated CUDA stack:
//!
//!     cargo build --release --example embed && tests/gpusim/run target/release/examples/embed
//!
//! Nothing is injected, because the crate is linked into the program. The crate finds CUDA and CUPTI by itself. If CUDA
//! or CUPTI is missing, the crate returns an error, and the program continues.
#![allow(clippy::print_stdout, reason = "a program for people: what it prints is its result")]

use std::ffi::{CStr, c_int, c_void};

const LAUNCHES: usize = 50;
const BYTES: usize = 1 << 20;

fn main() -> Result<(), String> {
    let cuda = Cuda::load()?;
    let memory = cuda.allocate(BYTES)?;
    warm_up(&cuda, memory)?;
    measure(&cuda, memory)?;
    wind_down(&cuda, memory)
}

#[inline(never)]
fn warm_up(cuda: &Cuda, memory: *mut c_void) -> Result<(), String> {
    cuda.fill(memory)
}

/// The part of the program that is recorded.
#[inline(never)]
fn measure(cuda: &Cuda, memory: *mut c_void) -> Result<(), String> {
    let window = gpuflame::window();
    if let Err(error) = &window {
        eprintln!("embed: not recorded: {error}");
    }
    for step in 0..2 {
        let _range = gpuflame::range(if step == 0 { "first half" } else { "second half" });
        let _ = gpuflame::step();
        cuda.fill(memory)?;
    }
    cuda.synchronize()?;
    if let Ok(stats) = gpuflame::stats() {
        let busy: u64 = stats.ledger.devices.iter().filter_map(|gpu| gpu.time).map(|time| time.busy).sum();
        println!("{}; the GPU was busy for {busy} ns in {} steps", stats.ledger.launches(), stats.steps);
    }
    Ok(())
}

#[inline(never)]
fn wind_down(cuda: &Cuda, memory: *mut c_void) -> Result<(), String> {
    cuda.fill(memory)?;
    cuda.synchronize()
}

/// The three functions of the CUDA runtime that this example needs. A real program uses a crate for the runtime.
struct Cuda {
    malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    fill: unsafe extern "C" fn(*mut c_void, c_int, usize, *mut c_void) -> c_int,
    synchronize: unsafe extern "C" fn() -> c_int,
}

impl Cuda {
    fn load() -> Result<Self, String> {
        let names = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so"];
        // SAFETY: any program may load the CUDA runtime.
        let library =
            names.map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) });
        let library = library.into_iter().find(|library| !library.is_null());
        let library = library.ok_or("no libcudart.so: add the CUDA toolkit's lib64 to LD_LIBRARY_PATH")?;
        let symbol = |name: &CStr| {
            // SAFETY: the handle is an open library, and the name is a C string.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol).ok_or(format!("libcudart.so has no {name:?}"))
        };
        // SAFETY: in NVIDIA's documentation, the functions with these names have these types.
        unsafe {
            Ok(Self {
                malloc: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
                >(symbol(c"cudaMalloc")?),
                fill: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, c_int, usize, *mut c_void) -> c_int,
                >(symbol(c"cudaMemsetAsync")?),
                synchronize: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(symbol(
                    c"cudaDeviceSynchronize",
                )?),
            })
        }
    }

    fn allocate(&self, bytes: usize) -> Result<*mut c_void, String> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: the function writes an address, for which there is room.
        check(unsafe { (self.malloc)(&raw mut memory, bytes) }, "cudaMalloc")?;
        Ok(memory)
    }

    fn fill(&self, memory: *mut c_void) -> Result<(), String> {
        for value in 0..LAUNCHES {
            // SAFETY: the memory has this size.
            let status = unsafe { (self.fill)(memory, value as c_int, BYTES, std::ptr::null_mut()) };
            check(status, "cudaMemsetAsync")?;
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<(), String> {
        // SAFETY: the function takes no arguments.
        check(unsafe { (self.synchronize)() }, "cudaDeviceSynchronize")
    }
}

fn check(status: c_int, call: &str) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call} answers {status}")) }
}
