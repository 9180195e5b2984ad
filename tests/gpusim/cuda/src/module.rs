//! Modules and libraries. Any image is accepted; in a cubin those kernels are found that it has, in any other image whichever
//! is asked for, as what a compiler or a packer made of it is not read.

use crate::cubin::Cubin;
use gpusim_core::arg::{Handle, In, Out, Text};
use gpusim_core::error::{CuError, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use gpusim_core::kernel::Kernel;
use gpusim_core::table::{resource, with_hooks};
use gpusim_core::thread;
use std::collections::BTreeMap;
use std::ffi::{OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a resource callback's descriptor points to.
#[repr(C)]
struct ModuleResource {
    id: u32,
    cubin_size: usize,
    cubin: *const c_void,
}

/// Those that are loaded, by their numbers, which are their handles; and what is known of each.
#[derive(Default)]
struct Modules {
    made: u32,
    loaded: BTreeMap<u32, Option<Cubin>>,
}

fn modules() -> MutexGuard<'static, Modules> {
    static MODULES: Mutex<Modules> = Mutex::new(Modules { made: 0, loaded: BTreeMap::new() });
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(out: Out<Handle>, image: *const c_void) -> Result<(), CuError> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let read = Cubin::of(image);
    // Of another image the driver would make a cubin first, whose length is that.
    let cubin_size = read.as_ref().map_or(0, |cubin| cubin.bytes);
    let id = {
        let mut modules = modules();
        modules.made += 1;
        let id = modules.made;
        modules.loaded.insert(id, read);
        id
    };
    tell(resource::MODULE_LOADED, &ModuleResource { id, cubin_size, cubin: image });
    out.set(id as usize as Handle)
}

fn unload(module: Handle) -> Result<(), CuError> {
    let id = check(module)?;
    tell(resource::MODULE_UNLOAD_STARTING, &ModuleResource { id, cubin_size: 0, cubin: null_mut() });
    modules().loaded.remove(&id);
    Ok(())
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
    if let Some(Some(cubin)) = modules().loaded.get(&id)
        && !cubin.kernels.contains(name)
    {
        return Err(NOT_FOUND);
    }
    out.set(Kernel::of_name(name).handle())
}

driver_api! {
    cuModuleLoad @ 18 |_own| (module: Out<Handle>, file: Text) {
        let path = file.get().ok_or(INVALID_VALUE)?;
        let image = std::fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|_| FILE_NOT_FOUND)?;
        load(module, image.as_ptr().cast())
    }

    cuModuleLoadData @ 19 |_own| (module: Out<Handle>, image: *const c_void) { load(module, image) }

    cuModuleLoadDataEx @ 20 |_own| (
        module: Out<Handle>, image: *const c_void, _count: u32, _options: In<u32>, _values: In<Handle>,
    ) { load(module, image) }

    cuModuleUnload @ 22 |_own| (module: Handle) { unload(module) }

    cuModuleGetFunction @ 23 |_own| (function: Out<Handle>, module: Handle, name: Text) {
        kernel(function, module, name)
    }

    cuLibraryLoadData @ 678 |_own| (
        library: Out<Handle>, code: *const c_void, _jit_options: In<u32>, _jit_values: In<Handle>,
        _jit_count: u32, _options: In<u32>, _values: In<Handle>, _count: u32,
    ) { load(library, code) }

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
