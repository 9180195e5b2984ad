//! libgcc's unwinder, with which the tests compare gpuflame's unwinder. libgcc's unwinder is reliable, because C++
//! exceptions depend on it.

use std::ffi::{c_int, c_void};

use gpuflame_model::record::FrameKind;
use gpuflame_unwind::{Skip, Unwinder, tls};

unsafe extern "C-unwind" {
    fn _Unwind_Backtrace(
        trace: extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, before_instruction: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

/// Fixed memory for one stack. A signal handler, which must not allocate memory, stores a stack here.
pub(crate) struct Addresses {
    pub(crate) list: [u64; 1100],
    pub(crate) count: usize,
    below: u64,
}

impl Addresses {
    pub(crate) const fn new() -> Self {
        Self { list: [0; 1100], count: 0, below: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.list[..self.count]
    }

    /// Stores the look-up addresses of the frames that libgcc finds above the frame in which the address `below` is.
    #[inline(never)]
    pub(crate) fn take_from_libgcc(&mut self, below: u64) {
        extern "C-unwind" fn step(context: *mut c_void, argument: *mut c_void) -> c_int {
            // SAFETY: SAFETY: `take_from_libgcc` passed a pointer to its `Addresses`, and waits until libgcc returns.
            let stack = unsafe { &mut *argument.cast::<Addresses>() };
            let mut exact = 0;
            // SAFETY: libgcc passed this context.
            let pc = unsafe { _Unwind_GetIPInfo(context, &mut exact) } as u64;
            // SAFETY: libgcc passed this context.
            let sp = unsafe { _Unwind_GetCFA(context) } as u64;
            if (sp > stack.below || stack.count > 0) && pc != 0 && stack.count < stack.list.len() {
                stack.list[stack.count] = if exact != 0 { pc } else { pc - 1 };
                stack.count += 1;
            }
            0
        }
        (self.count, self.below) = (0, below);
        // SAFETY: the function `step` gets the argument that it expects, and does not unwind.
        unsafe { _Unwind_Backtrace(step, std::ptr::from_mut(self).cast()) };
    }

    /// Stores the look-up addresses of the frames that gpuflame's unwinder captured.
    pub(crate) fn take(&mut self, frames: &[gpuflame_model::record::Frame]) {
        self.count = frames.len();
        for (address, frame) in self.list.iter_mut().zip(frames) {
            *address = match frame.kind() {
                FrameKind::Native { address, .. } => address,
                _ => 0,
            };
        }
    }
}

/// Returns the calling thread's unwinder, which is created on first use. The thread's unwinder must exist before a
/// signal handler uses it.
pub(crate) fn unwinder() -> &'static mut Unwinder {
    if tls::get().is_null() {
        gpuflame_unwind::prepare();
        let unwinder = Box::new(Unwinder::new().expect("memory for an unwinder"));
        tls::set(Box::into_raw(unwinder).cast());
    }
    // SAFETY: only this function sets the pointer; callers drop the returned reference before they call this function
    // again.
    unsafe { &mut *tls::get().cast::<Unwinder>() }
}

/// Captures the stack above the caller of this function twice: with our unwinder into `ours`, and with libgcc's
/// unwinder into `theirs`.
#[inline(never)]
pub(crate) fn capture_both(
    ours: &mut Addresses,
    theirs: &mut Addresses,
) -> gpuflame_model::record::ContextFlags {
    let here = 0u64;
    let below = std::hint::black_box(&raw const here) as u64;
    let captured = unwinder().capture(Skip::UpTo(below));
    ours.take(captured.frames);
    let flags = captured.flags;
    theirs.take_from_libgcc(below);
    flags
}
