//! Tests captures in a sandbox. The sandbox refuses process_vm_readv, with which the unwinder reads stacks other than
//! the thread's own, and further system calls.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "support/build.rs"]
mod build;
#[path = "support/switch.rs"]
mod switch;

use std::cell::RefCell;
use std::ptr::null_mut;
use std::thread;

use gpuflame_model::record::ContextFlags;
use gpuflame_unwind::{self as unwind, Skip, Unwinder};
use switch::{foreign, on_stack};

const STACK: usize = 64 << 10;

/// Makes Linux refuse the given system calls of this thread: they fail with EPERM.
fn refuse(calls: &[i64]) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = vec![line(LOAD, 0, 0, 0)];
    for call in calls {
        filter.push(line(IF_EQUAL, 0, 1, *call as u32));
        filter.push(line(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(line(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter program is valid, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

thread_local! {
    static UNWINDER: RefCell<Option<Unwinder>> = const { RefCell::new(None) };
    /// Result of the last callback: number of frames, flags, and errno, which the callback set to 33 before the
    /// capture.
    static SEEN: RefCell<(usize, u32, i32)> = const { RefCell::new((0, 0, 0)) };
}

extern "C-unwind" fn look() {
    UNWINDER.with_borrow_mut(|unwinder| {
        // SAFETY: errno's location is valid for as long as the thread runs.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 33;
        let captured = unwinder.as_mut().expect("the thread made one").capture(Skip::None);
        SEEN.set((captured.frames.len(), captured.flags.0, *errno));
    });
}

/// Captures before and after Linux refuses `calls`, and returns both results. The stack's last frame has no return
/// address above it.
fn before_and_after(calls: &'static [i64]) -> [(usize, u32, i32); 2] {
    let look_at = move || {
        unwind::prepare();
        foreign();
        UNWINDER.set(Unwinder::new());
        // SAFETY: the mapping is new, so no other code uses it.
        let top = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let stack = libc::mmap(null_mut(), 2 * STACK, protection, flags, -1, 0);
            assert_ne!(stack, libc::MAP_FAILED);
            let top = stack.byte_add(STACK);
            top.cast::<u8>().write_bytes(0xff, STACK);
            top
        };
        on_stack(look, top);
        let before = SEEN.take();
        refuse(calls);
        on_stack(look, top);
        [before, SEEN.take()]
    };
    thread::spawn(look_at).join().expect("it only looks")
}

#[test]
fn a_stack_is_read_by_other_means_if_process_vm_readv_is_refused() {
    let [before, after] = before_and_after(&[libc::SYS_process_vm_readv]);
    assert!(before.0 > 1, "{before:?}");
    assert_eq!((before.1, before.2), (ContextFlags::CUT, 33));
    assert_eq!(after, before);
}

#[test]
fn an_unreadable_stack_is_cut_and_marked() {
    let [before, after] = before_and_after(&[libc::SYS_process_vm_readv, libc::SYS_openat]);
    assert!(before.0 > 1, "{before:?}");
    assert_eq!(after, (0, ContextFlags::CUT, 33));
}
