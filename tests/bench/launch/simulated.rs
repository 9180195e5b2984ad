//! Measures gpuflame's whole callback as in a real process. The simulated CUPTI calls the callback before and after
//! each call to the simulated CUDA runtime.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

use gpuflame_cupti as cupti;
use gpuflame_cupti::tracer::{Buffer, Call, FilledBuffer, Tracer};
use gpuflame_recorder::capture::Capture;

use crate::generate::{Function, Random};
use crate::methods::{Clock, ticks};
use crate::paths::{self, Situation};
use crate::turns::Slice;

thread_local! {
    /// Time in ticks of the time stamp counter that callbacks took, and the number of callbacks.
    static SPENT: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// A callback that does the work of [`Capture`], and measures how long that takes.
struct Timed;

#[inline(always)]
fn timed(call: &Call<'_>, end: fn(&Call<'_>)) {
    let before = ticks();
    end(call);
    let (spent, spans) = SPENT.get();
    SPENT.set((spent + ticks() - before, spans + 1));
}

impl Tracer for Timed {
    fn enter(call: &Call<'_>) {
        timed(call, Capture::enter);
    }
    fn exit(call: &Call<'_>) {
        timed(call, Capture::exit);
    }
    fn request_buffer() -> Option<Buffer> {
        Capture::request_buffer()
    }
    fn buffer_completed(filled: FilledBuffer) {
        Capture::buffer_completed(filled);
    }
    fn records_discarded(count: u64) {
        Capture::records_discarded(count);
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3(u32, u32, u32);

type LaunchKernel =
    unsafe extern "C" fn(*const c_void, Dim3, Dim3, *mut *mut c_void, usize, *mut c_void) -> c_int;

/// The simulated CUDA runtime, in which a kernel is registered.
#[derive(Clone, Copy)]
pub(crate) struct Runtime {
    launch: LaunchKernel,
}

extern "C" fn kernel() {}

impl Runtime {
    /// Loads the simulated libraries in `folder`, and subscribes to CUPTI as gpuflame does.
    pub(crate) fn subscribed(folder: &Path) -> Self {
        open(&folder.join("libcuda.so.1"));
        let runtime = open(&folder.join("libcudart.so.13"));
        let library = Some(folder.join("libcupti.so.13"));
        cupti::subscribe::<Timed>(&cupti::Options {
            library,
            load_driver: true,
            ..cupti::Options::default()
        })
        .expect("a CUPTI to subscribe to");
        type Register = unsafe extern "C" fn(
            *mut *mut c_void,
            *const c_void,
            *mut c_char,
            *const c_char,
            c_int,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            *mut c_int,
        );
        // SAFETY: these are the CUDA runtime's functions with their types. All pointers outlive the simulated runtime.
        unsafe {
            let register_binary: unsafe extern "C" fn(*mut c_void) -> *mut *mut c_void =
                std::mem::transmute(symbol(runtime, "__cudaRegisterFatBinary"));
            let register: Register = std::mem::transmute(symbol(runtime, "__cudaRegisterFunction"));
            let launch: LaunchKernel = std::mem::transmute(symbol(runtime, "cudaLaunchKernel"));
            let binary = register_binary(Box::leak(Box::new(0u64)) as *mut u64 as *mut c_void);
            let null = std::ptr::null_mut();
            let name = c"step_d1000".as_ptr();
            register(
                binary,
                kernel as *const c_void,
                name.cast_mut(),
                name,
                -1,
                null,
                null,
                null,
                null,
                null.cast(),
            );
            Self { launch }
        }
    }

    #[inline(never)]
    fn launch(self) {
        // SAFETY: the call launches a registered kernel without parameters on the default stream.
        let error = unsafe {
            (self.launch)(
                kernel as *const c_void,
                Dim3(1, 1, 1),
                Dim3(128, 1, 1),
                [].as_mut_ptr(),
                0,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(error, 0, "the simulated launch fails");
    }

    /// Measures the total time that the callbacks of a launch take.
    pub(crate) fn measure(self, situation: Situation, stacks: &[Vec<Function>], slice: &Slice<'_>) -> f64 {
        let clock = Clock::calibrated();
        let one = || {
            SPENT.set((0, 0));
            self.launch();
            let (spent, spans) = SPENT.get();
            clock.nanoseconds(spent, spans)
        };
        const FIRST: usize = 500;
        const WANTED: usize = 2000;
        let mut median = 0.0;
        if situation == Situation::Hot {
            paths::build(&stacks[0], &mut || median = slice.median(FIRST, WANTED, one));
        } else {
            let mut random = Random::new(7);
            median = slice.median(FIRST, WANTED, || {
                let mut time = 0.0;
                paths::build(&stacks[random.below(stacks.len())], &mut || time = one());
                time
            });
        }
        median
    }
}

fn open(path: &Path) -> *mut c_void {
    let name = CString::new(path.to_str().expect("a path in UTF-8")).expect("no NUL");
    // SAFETY: the name is a C string. The simulated libraries may be loaded in any process.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!library.is_null(), "cannot load {}", path.display());
    library
}

fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let text = CString::new(name).expect("no NUL");
    // SAFETY: the handle came from dlopen, and the name is a C string.
    let symbol = unsafe { libc::dlsym(library, text.as_ptr()) };
    assert!(!symbol.is_null(), "no {name}");
    symbol
}
