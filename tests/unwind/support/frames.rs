//! Generates random functions at run time, without unwind information. Each generated function calls its first
//! argument.
//!
//! The functions are in slots of equal size. In a slot, the call instruction of every function ends at the same
//! address, which is the return address. A function's code up to the call is before the return address, and the rest of
//! its code is after it. Therefore a function that replaces another function has the same return address, but another
//! frame.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::random::Random;

/// Type of a generated function, which calls its first argument and passes it the second argument.
pub(crate) type Generated = extern "C-unwind" fn(extern "C-unwind" fn(*mut c_void), *mut c_void);

pub(crate) const SLOTS: usize = 12;
const SLOT: usize = 128;
/// Offset of the return address in a slot.
const RETURN: usize = 64;
const PAGE: usize = 4096;

/// Memory for `SLOTS` functions, followed by an unreadable page. The memory is never unmapped, so that no other area
/// gets the same address.
pub(crate) struct Area {
    start: usize,
    entries: [usize; SLOTS],
}

impl Area {
    pub(crate) fn new() -> Self {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new, and only its second page is protected.
        let start = unsafe {
            let start = libc::mmap(null_mut(), 2 * PAGE, all, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            start as usize
        };
        Self { start, entries: [0; SLOTS] }
    }

    /// Writes a new function into a slot. The slot's old function must not be on the stack.
    pub(crate) fn write(&mut self, slot: usize, random: &mut Random, mix: Mix) {
        let (before, after) = function(random, mix, self.start + PAGE);
        assert!(before.len() <= RETURN && after.len() <= SLOT - RETURN);
        let place = self.start + slot * SLOT + RETURN;
        self.entries[slot] = place - before.len();
        // SAFETY: both parts are inside the slot, which is writable, and no thread runs the slot's code.
        unsafe {
            ((place - before.len()) as *mut u8).copy_from(before.as_ptr(), before.len());
            (place as *mut u8).copy_from(after.as_ptr(), after.len());
        }
    }

    pub(crate) fn function(&self, slot: usize) -> Generated {
        // SAFETY: `write` put a function of this type at this address.
        unsafe { std::mem::transmute::<usize, Generated>(self.entries[slot]) }
    }

    pub(crate) fn return_address(&self, slot: usize) -> u64 {
        (self.start + slot * SLOT + RETURN) as u64
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start as u64..(self.start + PAGE) as u64).contains(&address)
    }
}

/// Kinds of generated functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Every function can be unwound by its epilogue or by its frame pointer; used by tests whose stacks must all be
    /// right.
    Walkable,
    /// One of 50 functions cannot be unwound, neither by its epilogue nor by its frame pointer.
    Any,
}

/// Machine instructions that push and pop each callee-saved register.
const KEPT: [(&[u8], &[u8]); 6] = [
    (&[0x53], &[0x5b]),
    (RBP.0, RBP.1),
    (&[0x41, 0x54], &[0x41, 0x5c]),
    (&[0x41, 0x55], &[0x41, 0x5d]),
    (&[0x41, 0x56], &[0x41, 0x5e]),
    (&[0x41, 0x57], &[0x41, 0x5f]),
];
const RBP: (&[u8], &[u8]) = (&[0x55], &[0x5d]);
/// xchg %rdi, %rsi; call *%rsi
const CALL: [u8; 5] = [0x48, 0x87, 0xf7, 0xff, 0xd6];
const NOP: u8 = 0x90;
const LEAVE: u8 = 0xc9;
const RET: u8 = 0xc3;

/// Generates the instructions of a function in two parts: up to the call, and after the call.
fn function(random: &mut Random, mix: Mix, unreadable: usize) -> (Vec<u8>, Vec<u8>) {
    if mix == Mix::Any && random.below(50) == 0 {
        return without_a_way_out(random, unreadable);
    }
    match random.below(8) {
        0 => with_frame_pointer(random),
        1 => (vec![0x50, 0x48, 0x87, 0xf7, 0xff, 0xd6], vec![0x59, RET]), // push %rax ... pop %rcx
        _ => with_epilogue(random, unreadable),
    }
}

/// Generates a function that pushes registers, reserves stack space, calls, and returns by an epilogue. If the function
/// pushes rbp, it then stores any value in rbp.
fn with_epilogue(random: &mut Random, unreadable: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut registers: Vec<_> = KEPT.to_vec();
    for at in (1..registers.len()).rev() {
        registers.swap(at, random.below(at + 1));
    }
    registers.truncate(random.below(KEPT.len() + 1));
    for (push, _) in &registers {
        before.extend(*push);
    }
    let room = room(random, registers.len());
    before.extend(add_to_rsp(0xec, room));
    if registers.contains(&RBP) {
        before.extend(odd_rbp(random, unreadable));
    }
    before.extend(CALL);
    match random.below(6) {
        0 => after.extend([0x31, 0xc0]),       // xor %eax, %eax
        1 => after.extend([0x48, 0x89, 0xd8]), // mov %rbx, %rax
        2 if is_x86_feature_detected!("avx") => after.extend([0xc5, 0xf8, 0x77]), // vzeroupper
        _ => {}
    }
    after.extend(add_to_rsp(0xc4, room));
    for (_, pop) in registers.iter().rev() {
        after.extend(*pop);
    }
    after.extend(if random.below(8) == 0 { &[0xf3, RET][..] } else { &[RET] });
    (before, after)
}

/// push %rbp; mov %rsp, %rbp; sub, call; nop; leave; ret
fn with_frame_pointer(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let mut before = vec![0x55, 0x48, 0x89, 0xe5];
    before.extend(add_to_rsp(0xec, room(random, 1)));
    before.extend(CALL);
    (before, vec![NOP, LEAVE, RET])
}

/// Generates a function that cannot be unwound: a nop hides its epilogue, and it has no frame pointer.
fn without_a_way_out(random: &mut Random, unreadable: usize) -> (Vec<u8>, Vec<u8>) {
    let mut before = vec![0x55, 0x50, 0x50];
    before.extend(odd_rbp(random, unreadable));
    before.extend(CALL);
    (before, vec![NOP, 0x58, 0x58, 0x5d, RET])
}

/// Random size of the stack space below this number of saved registers; with this size, the stack pointer stays aligned
/// to 16 bytes.
fn room(random: &mut Random, registers: usize) -> usize {
    let words = if random.below(10) == 0 { random.below(400) } else { random.below(8) };
    8 * (words + (1 + registers + words) % 2)
}

/// Instructions that add a number of bytes to rsp, or subtract a number of bytes from it.
fn add_to_rsp(operation: u8, bytes: usize) -> Vec<u8> {
    match bytes {
        0 => vec![],
        1..128 => vec![0x48, 0x83, operation, bytes as u8],
        _ => [&[0x48, 0x81, operation][..], &(bytes as u32).to_le_bytes()].concat(),
    }
}

/// Instructions that load one of three values into rbp: a number, an unreadable address, or any address on the stack.
fn odd_rbp(random: &mut Random, unreadable: usize) -> Vec<u8> {
    let values = [
        0,
        1,
        8,
        0x7001,
        unreadable as u64,
        unreadable as u64 + 4091,
        1 << 46,
        1 << 47,
        (1 << 47) - 8,
        0xffff_8000_0000_1000,
        u64::MAX,
        u64::MAX - 7,
        random.below(1 << 30) as u64,
    ];
    match random.below(values.len() + 5) {
        at if at < values.len() => [&[0x48, 0xbd][..], &values[at].to_le_bytes()].concat(),
        // lea n(%rsp), %rbp: the address in rbp is either misaligned or a possible frame pointer.
        at => {
            let distance = if at % 2 == 0 { random.below(600) } else { 8 * random.below(600) };
            [&[0x48, 0x8d, 0xac, 0x24][..], &(distance as u32).to_le_bytes()].concat()
        }
    }
}
