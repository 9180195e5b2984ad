//! Finds libcuda by its soname, and checks whether CUPTI can work with it.

use crate::result::Code;
use gpusim_core::arg::{In, Out};
use gpusim_core::settings;
use gpusim_core::table::{CoreTable, GPUSIM_UUID, Phase};
use gpusim_core::version::CuptiVersion;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Returns the CUPTI version that this library imitates.
pub(crate) fn version() -> CuptiVersion {
    settings::get().cupti
}

/// Returns the error that every call returns if it needs an initialised CUPTI and CUPTI is not initialised.
pub(crate) fn not_initialized() -> Code {
    version().not_initialized()
}

/// Set when CUPTI has reported a fatal error. After a fatal error, CUPTI behaves as if it were finalized.
pub(crate) static BROKEN: AtomicBool = AtomicBool::new(false);

/// Set when cuptiSubscribe has failed. CUPTI's documentation forbids every call after a failed cuptiSubscribe, and the
/// real library has crashed on such a call.
pub(crate) static REFUSED: AtomicBool = AtomicBool::new(false);

/// Returns libcuda's core; `None` if libcuda is not available.
pub(crate) fn core() -> Option<&'static CoreTable> {
    static CORE: OnceLock<Option<&'static CoreTable>> = OnceLock::new();
    *CORE.get_or_init(load)
}

fn load() -> Option<&'static CoreTable> {
    // SAFETY: loading the simulated libcuda runs no constructors, since it has none.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: `library` is a handle from dlopen.
    let get = unsafe { libc::dlsym(library, c"cuGetExportTable".as_ptr()) };
    if get.is_null() {
        return None;
    }
    // SAFETY: cuGetExportTable has this type in every libcuda.
    let get = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(Out<*const CoreTable>, In<[u8; 16]>) -> u32>(get)
    };
    let mut table = std::ptr::null();
    if get(Out(&mut table), In(&GPUSIM_UUID)) != 0 {
        return None;
    }
    // SAFETY: under this id libcuda returns a static CoreTable, and libcuda stays mapped.
    unsafe { table.as_ref() }
}

/// Returns the core, unless CUPTI has failed. Initialises the driver if necessary, without loading an injected library.
pub(crate) fn ready() -> Result<&'static CoreTable, Code> {
    if REFUSED.load(Relaxed) && settings::get().strict {
        gpusim_core::abort!("a CUPTI call after cuptiSubscribe failed: the real library may crash here");
    }
    initialized()
}

/// Returns the core for cuptiSubscribe, which a client may call again after cuptiSubscribe has failed.
pub(crate) fn initialized() -> Result<&'static CoreTable, Code> {
    let core = core().ok_or_else(not_initialized)?;
    let usable = match (core.phase)() {
        Phase::Child => {
            gpusim_core::abort!("a CUPTI call in a forked child: the driver's state is the parent's")
        }
        Phase::Ended => false,
        Phase::Fresh | Phase::Ready => {
            !BROKEN.load(Relaxed) && settings::get().driver >= version().oldest_driver()
        }
    };
    if usable && (core.start_devices)() == 0 { Ok(core) } else { Err(not_initialized()) }
}

/// Check for calls that affect only the calling thread. Calls that affect only the calling thread are allowed in forked
/// child processes, too. PyTorch's DataLoader workers inherit the profiler of the thread that forked them, and this
/// profiler pushes its ids around every operator.
pub(crate) fn on_thread() -> Result<(), Code> {
    let is_child = core().is_some_and(|core| matches!((core.phase)(), Phase::Child));
    if is_child { Ok(()) } else { ready().map(drop) }
}

/// Check for calls that need no device: fails only if this version requires a driver even for such calls.
pub(crate) fn loaded() -> Result<(), Code> {
    let works = version().works_without_driver() || core().is_some();
    if works { Ok(()) } else { Err(not_initialized()) }
}
