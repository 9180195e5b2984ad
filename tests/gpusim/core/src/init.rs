//! Initializes the driver as the real cuInit does: it loads the injected library on the caller's thread, and then finds
//! the devices. The driver shuts down in an exit handler, which is registered before the injected library is loaded.
//! Exit handlers run in reverse order of registration, so the exit handlers of the injected library run while the
//! driver still works.

use crate::error::{CuError, DEINITIALIZED, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, OPERATING_SYSTEM};
use crate::table::{Phase, resource, with_hooks};
use crate::{api, journal, settings, thread, truth};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static PHASE: AtomicU32 = AtomicU32::new(Phase::Fresh as u32);

/// Returns the current state of the driver.
pub fn phase() -> Phase {
    match PHASE.load(Ordering::Acquire) {
        0 => Phase::Fresh,
        1 => Phase::Ready,
        2 => Phase::Ended,
        _ => Phase::Child,
    }
}

/// Returns the error with which API functions fail if the driver is not ready.
#[inline]
pub fn check_ready() -> Result<(), CuError> {
    match phase() {
        Phase::Ready => Ok(()),
        Phase::Ended => Err(DEINITIALIZED),
        Phase::Fresh | Phase::Child => Err(NOT_INITIALIZED),
    }
}

struct Init {
    /// Id of the thread that is inside cuInit. The injected library may call cuInit again on this thread.
    owner: u32,
    injected: bool,
    handlers: bool,
}

static INIT: Mutex<Init> = Mutex::new(Init { owner: 0, injected: false, handlers: false });
static LEFT: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Init> {
    crate::sync::lock(&INIT)
}

/// Initializes the driver, as cuInit does.
pub fn init(flags: u32) -> Result<(), CuError> {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    match phase() {
        Phase::Ended => return Err(DEINITIALIZED),
        Phase::Child => return init_in_child(),
        Phase::Fresh | Phase::Ready => {}
    }
    let me = thread::current().tid;
    let mut init = lock();
    if init.owner == me {
        drop(init);
        return start_devices();
    }
    while init.owner != 0 {
        init = LEFT.wait(init).unwrap_or_else(PoisonError::into_inner);
    }
    init.owner = me;
    let inject = !init.injected;
    if !std::mem::replace(&mut init.handlers, true) {
        register_handlers();
    }
    drop(init);
    let injected = inject && inject_library();
    let result = start_devices();
    let mut init = lock();
    init.injected |= injected;
    init.owner = 0;
    LEFT.notify_all();
    result
}

/// Finds the devices, and notifies the subscriber once.
pub fn start_devices() -> Result<(), CuError> {
    if settings::get().devices == 0 {
        return Err(NO_DEVICE);
    }
    let (fresh, ready) = (Phase::Fresh as u32, Phase::Ready as u32);
    match PHASE.compare_exchange(fresh, ready, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let mut init = lock();
            if !std::mem::replace(&mut init.handlers, true) {
                register_handlers();
            }
            drop(init);
            truth::open();
            with_hooks(|h| (h.resource)(resource::CU_INIT_FINISHED, null_mut(), null_mut(), null_mut()));
            Ok(())
        }
        Err(phase) if phase == ready => Ok(()),
        Err(_) => Err(DEINITIALIZED),
    }
}

/// Handles cuInit in a forked child process. Driver 550 returns an error. Driver 535 calls the injected library's entry
/// point again, in the memory that the child inherited from the parent.
fn init_in_child() -> Result<(), CuError> {
    if settings::get().inject_in_child {
        inject_library();
        return Err(NO_DEVICE);
    }
    Err(OPERATING_SYSTEM)
}

/// Loads the library that CUDA_INJECTION64_PATH names and calls its entry point. Returns true if the library stays
/// loaded after the call. If loading fails, no error is reported, as with the real driver.
#[inline(never)]
fn inject_library() -> bool {
    let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH").filter(|p| !p.is_empty()) else {
        return false;
    };
    let Ok(path) = CString::new(path.into_encoded_bytes()) else { return false };
    // SAFETY: `path` is a C string; loading runs the library's constructors, which the user asked for.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return false;
    }
    // SAFETY: `library` is a handle from dlopen.
    let entry = unsafe { libc::dlsym(library, c"InitializeInjection".as_ptr()) };
    if entry.is_null() {
        // SAFETY: the handle is closed once and not used again.
        unsafe { libc::dlclose(library) };
        return false;
    }
    // SAFETY: a symbol of this name is `int InitializeInjection(void)`.
    let keep = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(entry)() };
    if keep == 0 {
        // SAFETY: SAFETY: `library` is a handle from dlopen, which is closed once and not used again.
        unsafe { libc::dlclose(library) };
    }
    keep != 0
}

unsafe extern "C" {
    fn __cxa_atexit(f: extern "C" fn(*mut c_void), argument: *mut c_void, dso: *mut c_void) -> c_int;
}

fn register_handlers() {
    // SAFETY: both exit handlers are functions in a library that is never unloaded.
    unsafe {
        __cxa_atexit(end, null_mut(), null_mut());
        libc::pthread_atfork(None, None, Some(after_fork_in_child));
    }
}

/// The driver's exit handler.
extern "C" fn end(_: *mut c_void) {
    if phase() == Phase::Child {
        return;
    }
    PHASE.store(Phase::Ended as u32, Ordering::Release);
    with_hooks(|h| (h.stop)());
    truth::close(api::correlations_used());
    journal::write();
}

unsafe extern "C" fn after_fork_in_child() {
    if phase() == Phase::Ready {
        PHASE.store(Phase::Child as u32, Ordering::Release);
    }
}
