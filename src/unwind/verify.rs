//! Verifies a captured stack: captures the stack two more times (by our walk without caches, and by libgcc), and checks
//! whether all three results agree.
//!
//! Verification is for users who want to check the stacks of their own programs (`GPUFLAME_VERIFY`), and for bug
//! reports. Verifying a stack takes about 20 us. While a stack is verified, libgcc may take the loader's lock and
//! allocate.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use super::{Captured, MAX_FRAMES, Skip, Unwinder, memory};
use gpuflame_model::record::{ContextFlags, Frame, FrameKind};

/// Whether the two additional captures of a stack agree with the first capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyResult {
    /// Whether our walk without caches gives the same stack as the first capture. If the additional capture is
    /// truncated, only the frames that both captures contain must agree.
    pub plain_agrees: bool,
    /// Whether libgcc gives the same stack as the first capture. libgcc stops at code without unwind information. If a
    /// stack contains code without unwind information, only the frames that libgcc finds must agree.
    pub libgcc_agrees: bool,
}

/// Checks the captures of one thread.
#[derive(Debug)]
pub struct Verifier {
    plain: Unwinder,
    /// The addresses that libgcc found on the stack. The addresses are stored in their own memory mapping, because a
    /// small thread stack has no space for them.
    theirs: NonNull<Addresses>,
}

/// Look-up addresses (see [`look_up_address`]) of the frames that libgcc found, leaf first.
struct Addresses {
    list: [u64; MAX_FRAMES],
    count: usize,
    below: u64,
}

impl Verifier {
    /// Creates a verifier for the calling thread. Returns `None` if the kernel refuses the memory.
    pub fn new() -> Option<Self> {
        let mut plain = Unwinder::new()?;
        plain.use_caches(false);
        plain.check_every_capture(true);
        Some(Self { plain, theirs: memory::map(size_of::<Addresses>())?.cast() })
    }

    /// Captures the stack again, starting at the frame above (rootward of) the frame that contains the address
    /// `below`. Compares the new frames with `captured`.
    #[cold]
    #[inline(never)]
    pub fn verify(&mut self, captured: &Captured<'_>, below: u64) -> VerifyResult {
        let again = self.plain.capture(Skip::UpTo(below));
        let plain_agrees = if again.flags.has(ContextFlags::TRUNCATED) {
            // The second capture began nearer to the leaf than the first capture. Therefore the second capture omits
            // more frames at the root. The second capture is not flagged as guessed if only the omitted frames were
            // guessed.
            captured.frames.starts_with(again.frames)
                && (captured.flags.has(ContextFlags::GUESSED) || !again.flags.has(ContextFlags::GUESSED))
        } else {
            again.frames == captured.frames && again.flags == captured.flags
        };
        // SAFETY: the addresses are mapped as long as `self` lives and are not shared, and zeroes are a valid list.
        let theirs = unsafe { self.theirs.as_mut() };
        theirs.take(below);
        let theirs = &theirs.list[..theirs.count];
        let is = |flag| captured.flags.0 & flag != 0;
        let mut ours = captured.frames.iter().map(look_up_address);
        let libgcc_agrees = if is(ContextFlags::TRUNCATED) {
            ours.zip(theirs).all(|(our, their)| our == *their)
        } else if is(ContextFlags::GUESSED) {
            theirs.iter().all(|their| ours.next() == Some(*their))
        } else {
            ours.eq(theirs.iter().copied())
        };
        VerifyResult { plain_agrees, libgcc_agrees }
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping, and only `self` refers to it.
        unsafe { memory::unmap(self.theirs.cast(), size_of::<Addresses>()) };
    }
}

/// Returns the look-up address of a frame. If the frame's function made a call, this address is inside the call
/// instruction.
fn look_up_address(frame: &Frame) -> u64 {
    match frame.kind() {
        FrameKind::Native { address, .. } => address,
        _ => 0,
    }
}

impl Addresses {
    #[inline(never)]
    fn take(&mut self, below: u64) {
        (self.count, self.below) = (0, below);
        // SAFETY: `note` matches the expected type, gets the argument it expects, and does not unwind.
        unsafe { _Unwind_Backtrace(note, std::ptr::from_mut(self).cast()) };
    }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        note: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, before_instruction: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

unsafe extern "C" fn note(context: *mut c_void, addresses: *mut c_void) -> c_int {
    // SAFETY: `Addresses::take` passed a pointer to itself, and is blocked in the call of libgcc.
    let found = unsafe { &mut *addresses.cast::<Addresses>() };
    let mut is_exact = 0;
    // SAFETY: libgcc passed this context, which is valid until the callback returns.
    let pc = unsafe { _Unwind_GetIPInfo(context, &mut is_exact) } as u64;
    // SAFETY: libgcc passed this context, which is valid until the callback returns.
    let sp = unsafe { _Unwind_GetCFA(context) } as u64;
    // Ignore an invalid return address, which libgcc reports as an additional frame.
    let is_code = pc.wrapping_sub(1) >> 47 == 0;
    if (sp > found.below || found.count > 0) && is_code && found.count < MAX_FRAMES {
        found.list[found.count] = if is_exact != 0 { pc } else { pc - 1 };
        found.count += 1;
    }
    0
}
