//! Tests a capture on a stack that is not the thread's own, after a part of this stack has been unmapped. The capture
//! must not read past the stack's new end.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/code.rs"]
#[allow(dead_code)]
mod code;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "support/seen.rs"]
mod seen;

use std::ptr::null_mut;

use build::Library;
use code::Code;
use seen::{SEEN, call, look, twins, use_new_unwinder};

const HALF: usize = 256 << 10;

#[test]
fn a_guessed_frame_stays_inside_a_stack_that_shrank() {
    use_new_unwinder(true);
    // `inner` is a return address into a function with a frame of 1 KiB and a cached unwind rule. The unwinder will
    // guess that this function is the caller.
    let library = Library::open(&twins()[1]);
    call(library, "twin");
    let inner = SEEN.take().1[0] + 1;
    // SAFETY: the memory belongs to this test; the unmapped half is not used any more, and the words are in the mapped
    // half.
    let frame = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let stack = libc::mmap(null_mut(), 2 * HALF, protection, flags, -1, 0);
        assert_ne!(stack, libc::MAP_FAILED);
        let middle = stack as usize + HALF;
        let frame = (middle - 16) as *mut [u64; 2];
        frame.write([0, inner]);
        frame as usize
    };
    let code = Code::new();
    // The call uses the part of the stack that is 4 KiB below the frame, so it does not overwrite the frame.
    let stack = Some((frame & !15) - 4096);
    // In this call, the unwinder learns the bounds of the stack. The number in rbp is odd, so the unwinder cannot take
    // it for a frame pointer.
    code.run(look, stack, Some(1));
    let (frames, ..) = SEEN.take();
    assert!(!frames.is_empty());
    // SAFETY: the memory belongs to this test, and the half that is unmapped is not used any more.
    unsafe { libc::munmap((frame + 16) as *mut _, HALF) };
    code.run(look, stack, Some(frame));
    let (_, ours, _) = SEEN.take();
    assert_eq!(ours.last(), Some(&(inner - 1)), "the walk ends in the frame that the guess led to");
    library.close();
}
