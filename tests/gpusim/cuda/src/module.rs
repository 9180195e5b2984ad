//! Modules and libraries: any image is accepted, any kernel name is found in it.

use gpusim_core::arg::{Handle, In, Out, Text};
use gpusim_core::error::{CuError, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use gpusim_core::kernel::Kernel;
use gpusim_core::table::{resource, with_hooks};
use gpusim_core::thread;
use std::ffi::{OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a resource callback's descriptor points to.
#[repr(C)]
struct ModuleResource {
    id: u32,
    cubin_size: usize,
    cubin: *const c_void,
}

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A module's handle is its number: nothing else is known of it.
fn load(out: Out<Handle>, image: *const c_void) -> Result<(), CuError> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let id = NEXT.fetch_add(1, Relaxed);
    tell(resource::MODULE_LOADED, &ModuleResource { id, cubin_size: 0, cubin: image });
    out.set(id as usize as Handle)
}

fn unload(module: Handle) -> Result<(), CuError> {
    let id = check(module)?;
    tell(resource::MODULE_UNLOAD_STARTING, &ModuleResource { id, cubin_size: 0, cubin: null_mut() });
    Ok(())
}

fn check(module: Handle) -> Result<u32, CuError> {
    let id = module as usize;
    let known = (1..NEXT.load(Relaxed) as usize).contains(&id);
    if known { Ok(id as u32) } else { Err(INVALID_HANDLE) }
}

fn tell(what: u32, module: &ModuleResource) {
    let context = thread::current().context().map_or(null_mut(), |c| c.handle());
    let module = std::ptr::from_ref(module).cast_mut().cast();
    with_hooks(|h| (h.resource)(what, context, null_mut(), module));
}

fn kernel(out: Out<Handle>, module: Handle, name: Text) -> Result<(), CuError> {
    check(module)?;
    let name = name.get().filter(|n| !n.is_empty()).ok_or(NOT_FOUND)?;
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
