//! Driver API functions for modules and libraries, which accept any image. If the image is a cubin, a program finds
//! only the kernels and variables that it contains. If the image is PTX or a fat binary, every kernel and variable is
//! found, because the simulation cannot read such images.

use crate::cubin::Cubin;
use gpusim_core::arg::{Handle, In, Out, Text};
use gpusim_core::error::{
    CuError, FILE_NOT_FOUND, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND,
};
use gpusim_core::kernel::Kernel;
use gpusim_core::sync::lock;
use gpusim_core::table::{resource, with_hooks};
use gpusim_core::{memory, thread};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

/// Struct to which the descriptor of a module's resource callback points.
#[repr(C)]
struct ModuleResource {
    id: u32,
    cubin_size: usize,
    cubin: *const c_void,
}

/// State of a loaded module.
struct Module {
    /// Contents of the module's image; `None` if the image is not a cubin.
    cubin: Option<Cubin>,
    /// Address and size of each variable that the program has queried.
    variables: BTreeMap<CString, (u64, usize)>,
}

/// Loaded modules, keyed by module id. A module's id is also its handle.
#[derive(Default)]
struct Modules {
    made: u32,
    loaded: BTreeMap<u32, Module>,
}

fn modules() -> MutexGuard<'static, Modules> {
    static MODULES: Mutex<Modules> = Mutex::new(Modules { made: 0, loaded: BTreeMap::new() });
    lock(&MODULES)
}

fn load(out: Out<Handle>, image: *const c_void) -> Result<(), CuError> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let read = Cubin::of(image);
    // The real driver would compile an image that is not a cubin to a cubin, and report the length of that cubin. The
    // simulation reports 0.
    let cubin_size = read.as_ref().map_or(0, |cubin| cubin.bytes);
    let id = {
        let mut modules = modules();
        modules.made += 1;
        let id = modules.made;
        modules.loaded.insert(id, Module { cubin: read, variables: BTreeMap::new() });
        id
    };
    tell(resource::MODULE_LOADED, &ModuleResource { id, cubin_size, cubin: image });
    out.set(id as usize as Handle)
}

fn unload(module: Handle) -> Result<(), CuError> {
    let id = check(module)?;
    tell(resource::MODULE_UNLOAD_STARTING, &ModuleResource { id, cubin_size: 0, cubin: null_mut() });
    let gone = modules().loaded.remove(&id);
    gone.map_or(Ok(()), |module| {
        module.variables.values().try_for_each(|(start, _)| memory::free_device(*start))
    })
}

fn check(module: Handle) -> Result<u32, CuError> {
    let id = u32::try_from(module as usize).map_err(|_| INVALID_HANDLE)?;
    if modules().loaded.contains_key(&id) { Ok(id) } else { Err(INVALID_HANDLE) }
}

fn tell(what: u32, module: &ModuleResource) {
    let context = thread::current().context().map_or(null_mut(), |c| c.handle());
    let module = std::ptr::from_ref(module).cast_mut().cast();
    with_hooks(|h| (h.resource)(what, context, null_mut(), module));
}

fn kernel(out: Out<Handle>, module: Handle, name: Text) -> Result<(), CuError> {
    let id = check(module)?;
    let name = name.get().filter(|n| !n.is_empty()).ok_or(NOT_FOUND)?;
    if let Some(Module { cubin: Some(cubin), .. }) = modules().loaded.get(&id)
        && !cubin.kernels.contains(name)
    {
        return Err(NOT_FOUND);
    }
    out.set(Kernel::of_name(name).handle())
}

/// Reported size, in bytes, of a variable whose real size is unknown.
const UNKNOWN_BYTES: usize = 4096;

/// Returns the address and size of a module's variable. The variable's memory exists from the program's first query
/// until the module is unloaded.
fn variable(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) -> Result<(), CuError> {
    let id = check(module)?;
    let device = thread::current().context().ok_or(INVALID_CONTEXT)?.device;
    let name = name.get().filter(|n| !n.is_empty()).ok_or(NOT_FOUND)?;
    let mut modules = modules();
    let module = modules.loaded.get_mut(&id).ok_or(INVALID_HANDLE)?;
    let (start, size) = match module.variables.get(name) {
        Some(known) => *known,
        None => {
            let of_cubin = |cubin: &Cubin| cubin.variables.get(name).copied().ok_or(NOT_FOUND);
            let size = module.cubin.as_ref().map_or(Ok(UNKNOWN_BYTES), of_cubin)?;
            let start = memory::alloc_device(device, size as u64)?;
            module.variables.insert(name.to_owned(), (start, size));
            (start, size)
        }
    };
    address.set_if_wanted(start);
    bytes.set_if_wanted(size);
    Ok(())
}

/// CUjit_option values: the buffer for the compiler's log, and the buffer's size. When the call returns, the size is
/// the number of bytes written to the log, here 0.
const INFO_LOG: u32 = 3;
const INFO_LOG_BYTES: u32 = 4;
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;

/// Reports that the compiler's logs are empty. A log buffer without a size is left unchanged.
fn empty_logs(count: u32, options: In<u32>, values: Out<Handle>) -> Result<(), CuError> {
    let all: Vec<u32> =
        (0..count as usize).map(|at| In(options.0.wrapping_add(at)).get()).collect::<Result<_, _>>()?;
    let value = |at: usize| Out(values.0.wrapping_add(at));
    for (log, size) in [(INFO_LOG, INFO_LOG_BYTES), (ERROR_LOG, ERROR_LOG_BYTES)] {
        let place = |wanted| all.iter().position(|option| *option == wanted);
        let Some(size) = place(size) else { continue };
        if let Some(log) = place(log)
            && value(size).get()? as u32 > 0
        {
            Out(value(log).get()?.cast::<u8>()).set_if_wanted(0);
        }
        value(size).set(null_mut())?;
    }
    Ok(())
}

driver_api! {
    cuModuleLoad @ 18 |_own| (module: Out<Handle>, file: Text) {
        let path = file.get().ok_or(INVALID_VALUE)?;
        let image = std::fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|_| FILE_NOT_FOUND)?;
        load(module, image.as_ptr().cast())
    }

    cuModuleLoadData @ 19 |_own| (module: Out<Handle>, image: *const c_void) { load(module, image) }

    cuModuleLoadDataEx @ 20 |_own| (
        module: Out<Handle>, image: *const c_void, count: u32, options: In<u32>, values: Out<Handle>,
    ) {
        empty_logs(count, options, values)?;
        load(module, image)
    }

    cuModuleUnload @ 22 |_own| (module: Handle) { unload(module) }

    cuModuleGetFunction @ 23 |_own| (function: Out<Handle>, module: Handle, name: Text) {
        kernel(function, module, name)
    }

    cuModuleGetGlobal_v2 @ 241 |_own| (address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        variable(address, bytes, module, name)
    }

    // This version of cuModuleGetGlobal is from before CUDA 3.2 and has 32-bit addresses. The function fails, because
    // no simulated CUDA context is that old. `cuGetProcAddress` returns `cuModuleGetGlobal_v2` above instead.
    cuModuleGetGlobal @ 24 |_own| (_address: Out<u32>, _bytes: Out<u32>, _module: Handle, _name: Text) {
        Err(INVALID_CONTEXT)
    }

    cuLibraryLoadData @ 678 |_own| (
        library: Out<Handle>, code: *const c_void, jit_options: In<u32>, jit_values: Out<Handle>,
        jit_count: u32, _options: In<u32>, _values: In<Handle>, _count: u32,
    ) {
        empty_logs(jit_count, jit_options, jit_values)?;
        load(library, code)
    }

    cuLibraryUnload @ 680 |_own| (library: Handle) { unload(library) }

    cuLibraryGetKernel @ 681 |_own| (function: Out<Handle>, library: Handle, name: Text) {
        kernel(function, library, name)
    }

    cuLibraryGetModule @ 682 |_own| (module: Out<Handle>, library: Handle) {
        check(library)?;
        module.set(library)
    }

    cuKernelGetFunction @ 683 |_own| (function: Out<Handle>, handle: Handle) {
        function.set(Kernel::of_handle(handle).ok_or(INVALID_HANDLE)?.handle())
    }
}
