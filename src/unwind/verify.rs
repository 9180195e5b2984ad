//! Takes a stack once more, by the plain walk and by libgcc, to see whether all three agree.
//!
//! For whoever wants proof on a program of their own (`GPUFLAME_VERIFY`), and for bug reports. It costs some
//! 20 us a stack; libgcc may take the loader's lock and allocate.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use super::{Captured, MAX_FRAMES, Skip, Unwinder, memory};
use crate::record::{ContextFlags, Frame, FrameKind};

/// What a stack taken again showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Walking every frame anew gives the same; of a stack that is deeper than is kept, as far as both reach.
    pub plain_agrees: bool,
    /// So does libgcc, as far as it can see: it stops at code without unwind information.
    pub libgcc_agrees: bool,
}

/// Checks a thread's captures.
#[derive(Debug)]
pub struct Verifier {
    plain: Unwinder,
    /// Mapped, for the stack of a small thread has no room for it.
    theirs: NonNull<Addresses>,
}

/// What libgcc found: look-up addresses, leaf first.
struct Addresses {
    list: [u64; MAX_FRAMES],
    count: usize,
    below: u64,
}

impl Verifier {
    /// A verifier for the calling thread; `None` where the kernel gives no memory.
    pub fn new() -> Option<Self> {
        let mut plain = Unwinder::new()?;
        plain.remember_stacks(false);
        plain.check_every_capture(true);
        Some(Self { plain, theirs: memory::map(size_of::<Addresses>())?.cast() })
    }

    /// Takes the frames above the one that `below` lies in again, and compares them with `captured`.
    #[cold]
    #[inline(never)]
    pub fn verify(&mut self, captured: &Captured<'_>, below: u64) -> Verdict {
        let again = self.plain.capture(Skip::UpTo(below));
        let plain_agrees = if again.flags.has(ContextFlags::TRUNCATED) {
            // It began deeper, so it keeps less of the root, and does not know what was guessed there.
            captured.frames.starts_with(again.frames)
                && (captured.flags.has(ContextFlags::GUESSED) || !again.flags.has(ContextFlags::GUESSED))
        } else {
            again.frames == captured.frames && again.flags == captured.flags
        };
        // SAFETY: mapped as long as `self` lives, and nobody else knows it; zeroes are a valid list.
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
        Verdict { plain_agrees, libgcc_agrees }
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and goes with its owner.
        unsafe { memory::unmap(self.theirs.cast(), size_of::<Addresses>()) };
    }
}

/// The address to look up for a frame: inside the call, for one that called.
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
        // SAFETY: `note` gets what it expects, and does not unwind.
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
    // SAFETY: `Addresses::take` passed itself, and waits.
    let found = unsafe { &mut *addresses.cast::<Addresses>() };
    let mut is_exact = 0;
    // SAFETY: libgcc passed this context.
    let pc = unsafe { _Unwind_GetIPInfo(context, &mut is_exact) } as u64;
    // SAFETY: as above.
    let sp = unsafe { _Unwind_GetCFA(context) } as u64;
    // It shows a return address that cannot be one as a last frame.
    let is_code = pc.wrapping_sub(1) >> 47 == 0;
    if (sp > found.below || found.count > 0) && is_code && found.count < MAX_FRAMES {
        found.list[found.count] = if is_exact != 0 { pc } else { pc - 1 };
        found.count += 1;
    }
    0
}
