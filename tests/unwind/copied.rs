//! Tests the unwinding of stack copies: compares it with unwinding the same stack in place, and also unwinds copies
//! that contain arbitrary bytes.
#![cfg(target_arch = "x86_64")]

use std::hint::black_box;

use gpuflame_model::record::{ContextFlags, Frame};
use gpuflame_unwind::{self as unwind, CopyUnwinder, REGISTERS, Skip, Unwinder};

/// The registers and the stack bytes that the Linux kernel would copy for a sample of this thread.
struct Copy {
    registers: [u64; REGISTERS],
    stack: Vec<u8>,
}

/// Registers in DWARF's order, in which `rsp` has the index 7.
const ORDER: [libc::c_int; REGISTERS] = [
    libc::REG_RAX,
    libc::REG_RDX,
    libc::REG_RCX,
    libc::REG_RBX,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_RBP,
    libc::REG_RSP,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
    libc::REG_RIP,
];

/// Returns the registers, as `getcontext` stores them, and a copy of the `bytes` bytes of stack above the stack
/// pointer, which must exist.
#[inline(always)]
fn copy(bytes: usize) -> Copy {
    // SAFETY: zeroes are a valid context, and getcontext fills it in.
    let context = unsafe {
        let mut context: libc::ucontext_t = std::mem::zeroed();
        assert_eq!(libc::getcontext(&mut context), 0);
        context
    };
    let registers = ORDER.map(|register| context.uc_mcontext.gregs[register as usize] as u64);
    // SAFETY: the caller guarantees that `bytes` bytes of stack are mapped above its frame.
    let stack = unsafe { std::slice::from_raw_parts(registers[7] as *const u8, bytes) }.to_vec();
    Copy { registers, stack }
}

/// Runs `body` inside `calls` nested calls.
#[inline(never)]
fn deep(calls: usize, body: &mut dyn FnMut()) {
    match calls {
        0 => body(),
        _ => deep(calls - 1, body),
    }
    black_box(calls);
}

/// Runs `body` inside `calls` nested calls, with more stack above them than a copy ever contains.
fn on_a_deep_stack(calls: usize, mut body: impl FnMut() + Send) {
    let below = || {
        let room = black_box([0_u8; 128 << 10]);
        deep(calls, &mut body);
        black_box(room);
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(1 << 20).spawn_scoped(scope, below).map(drop).unwrap();
    });
}

#[test]
fn walking_a_partial_stack_copy_gives_the_frames_that_it_contains() {
    unwind::prepare();
    on_a_deep_stack(40, || {
        let mut unwinder = Unwinder::new().unwrap();
        let mut copies = CopyUnwinder::new().unwrap();
        let copied = copy(64 << 10);
        let there = unwinder.capture(Skip::None).frames.to_vec();
        let walked = copies.walk(&copied.registers, &copied.stack);
        // The first frames of the two stacks are in the same function, but at different addresses. The outermost frames
        // are missing in the copy's stack, because they are above the copied part.
        let callers = walked.frames[1..].to_vec();
        assert!(callers.len() > 40 && callers.len() < there.len() - 1, "{}", callers.len());
        assert_eq!(there[1..][..callers.len()], callers);
        assert_eq!(walked.flags, ContextFlags(ContextFlags::CUT));
        let mut longest = 0;
        for bytes in (0..copied.stack.len()).step_by(40) {
            let cut = copies.walk(&copied.registers, &copied.stack[..bytes]);
            assert_eq!(cut.flags, ContextFlags(ContextFlags::CUT), "{bytes}");
            assert!(is_part(&callers, cut.frames) && cut.frames.len() >= longest, "{bytes}");
            longest = cut.frames.len();
        }
        assert_eq!(longest, callers.len() + 1);
    });
}

/// Whether the frames, except the first frame, are the beginning of `callers`.
fn is_part(callers: &[Frame], frames: &[Frame]) -> bool {
    frames.len() <= 1 || callers.starts_with(&frames[1..])
}

/// Number of bytes between an address on the thread's stack and the end of the stack.
fn above(address: usize) -> usize {
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are initialized before they are read, and destroyed once.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attributes), 0);
        assert_eq!(libc::pthread_attr_getstack(&attributes, &mut lowest, &mut size), 0);
        libc::pthread_attr_destroy(&mut attributes);
    }
    lowest as usize + size - address
}

#[test]
fn walking_a_complete_stack_copy_ends_at_the_thread_start() {
    unwind::prepare();
    let body = || {
        let (mut unwinder, mut copies) = (Unwinder::new().unwrap(), CopyUnwinder::new().unwrap());
        let copied = copy(above(&raw const unwinder as usize));
        let walked = copies.walk(&copied.registers, &copied.stack);
        let there = unwinder.capture(Skip::None);
        assert_eq!((walked.flags, there.flags), (ContextFlags(0), ContextFlags(0)));
        assert_eq!(there.frames[1..], walked.frames[1..]);
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(body).unwrap().join().unwrap();
}

#[test]
fn walking_corrupted_stack_copies_and_registers_is_safe() {
    unwind::prepare();
    let mut state = 1_u64;
    let mut any = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    on_a_deep_stack(20, move || {
        let mut copies = CopyUnwinder::new().unwrap();
        let copied = copy(4 << 10);
        let (sp, pc) = (copied.registers[7], copied.registers[16]);
        for _ in 0..20_000 {
            let (mut registers, mut stack) = (copied.registers, copied.stack.clone());
            for _ in 0..any() % 8 {
                registers[(any() % 17) as usize] = match any() % 4 {
                    0 => any(),
                    1 => registers[(any() % 17) as usize],
                    2 => sp.wrapping_add(any() % 8192),
                    _ => pc.wrapping_add(any() % 64),
                };
            }
            for _ in 0..any() % 32 {
                let at = (any() as usize % (stack.len() / 8)) * 8;
                let word = match any() % 3 {
                    0 => any(),
                    1 => sp.wrapping_add(any() % 8192),
                    _ => pc.wrapping_add(any() % 4096),
                };
                stack[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            }
            stack.truncate(any() as usize % (stack.len() + 1));
            assert!(copies.walk(&registers, &stack).frames.len() <= unwind::MAX_FRAMES);
        }
    });
}
