//! Functions that are called by the host code that nvcc generates. Constructors register fat binaries and kernels
//! before `main`; `<<<>>>` pushes its launch configuration, and the kernel's host function pops it. The functions in
//! this file do not initialise the driver, and ignore the content of a fat binary.

use crate::launch::Dim3;
use crate::link;
use gpusim_core::arg::{Handle, Out, Text};
use gpusim_core::error::{self, INVALID_DEVICE_FUNCTION, INVALID_VALUE};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use std::sync::{LazyLock, PoisonError, RwLock};

/// A registered kernel.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    /// Handle of the kernel in the driver API.
    pub(crate) handle: Handle,
    /// Mangled name of the kernel, a static string.
    pub(crate) name: *const c_char,
}

/// Kernel names, keyed by the address of the kernel's host function. The names are never freed, because kernels are
/// never removed.
static NAMES: LazyLock<RwLock<HashMap<usize, &'static CString>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// Cache of the kernels that this thread launched last, keyed by the address of the host function.
    static RECENT: [Cell<Option<(usize, Registered)>>; 16] = const { [const { Cell::new(None) }; 16] };
    static PUSHED: [Cell<Option<Configuration>>; 8] = const { [const { Cell::new(None) }; 8] };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Handle,
}

/// Returns the kernel with this host function or this handle.
pub(crate) fn kernel_of(function: Handle) -> Option<Registered> {
    let key = function as usize;
    RECENT.with(|recent| {
        let slot = &recent[(key >> 4) % recent.len()];
        if let Some((_, kernel)) = slot.get().filter(|(k, _)| *k == key) {
            return Some(kernel);
        }
        let kernel = look_up(function)?;
        slot.set(Some((key, kernel)));
        Some(kernel)
    })
}

fn look_up(function: Handle) -> Option<Registered> {
    let driver = link::loaded()?;
    let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    match names.get(&(function as usize)) {
        Some(name) => Some(Registered { handle: (driver.core.kernel)(name.as_ptr()), name: name.as_ptr() }),
        None => {
            let name = (driver.core.kernel_name)(function);
            (!name.is_null()).then_some(Registered { handle: function, name })
        }
    }
}

/// Returns any handle that is not NULL, because programs check nothing else.
fn some_handle() -> *mut Handle {
    static CELL: usize = 0;
    (&raw const CELL).cast_mut().cast()
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_binary: Handle) -> *mut Handle {
    some_handle()
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut Handle) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_handle: *mut Handle) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: *mut Handle) -> c_char {
    1
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // nvcc's generated code passes these arguments
extern "C" fn __cudaRegisterFunction(
    _binary: *mut Handle,
    host_function: Handle,
    _device_function: Text,
    name: Text,
    _thread_limit: i32,
    _thread: Handle,
    _block: Handle,
    _block_size: Handle,
    _grid_size: Handle,
    _warp_size: Handle,
) {
    if let Some(name) = name.get() {
        let name = Box::leak(Box::new(name.to_owned()));
        NAMES.write().unwrap_or_else(PoisonError::into_inner).insert(host_function as usize, name);
    }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // nvcc's generated code passes these arguments
extern "C" fn __cudaRegisterVar(
    _binary: *mut Handle,
    _variable: Handle,
    _device_address: Text,
    _name: Text,
    _external: i32,
    _bytes: usize,
    _constant: i32,
    _global: i32,
) {
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // nvcc's generated code passes these arguments
extern "C" fn __cudaRegisterManagedVar(
    _binary: *mut Handle,
    _variable: *mut Handle,
    _device_address: Text,
    _name: Text,
    _external: i32,
    _bytes: usize,
    _constant: i32,
    _global: i32,
) {
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Handle,
) -> u32 {
    let depth = DEPTH.get();
    PUSHED.with(|pushed| match pushed.get(depth) {
        Some(slot) => {
            slot.set(Some(Configuration { grid, block, shared_bytes, stream }));
            DEPTH.set(depth + 1);
            0
        }
        None => INVALID_VALUE,
    })
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration(
    grid: Out<Dim3>,
    block: Out<Dim3>,
    shared_bytes: Out<usize>,
    stream: Out<Handle>,
) -> u32 {
    let top = DEPTH.get().checked_sub(1);
    let Some(pushed) = top.and_then(|top| PUSHED.with(|pushed| pushed[top].take())) else {
        return INVALID_VALUE;
    };
    DEPTH.set(top.unwrap_or(0));
    let set = grid.set(pushed.grid).and(block.set(pushed.block)).and(shared_bytes.set(pushed.shared_bytes));
    error::code(set.and(stream.set(pushed.stream)))
}

/// Returns the kernel handle of a host function.
#[unsafe(no_mangle)]
extern "C" fn __cudaGetKernel(kernel: Out<Handle>, host_function: Handle) -> u32 {
    let found = if link::ready().is_ok() { kernel_of(host_function) } else { None };
    let result = kernel.set(found.map_or(null_mut(), |k| k.handle));
    error::code(result.and(found.map(drop).ok_or(INVALID_DEVICE_FUNCTION)))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetKernel(kernel: Out<Handle>, host_function: Handle) -> u32 {
    __cudaGetKernel(kernel, host_function)
}
