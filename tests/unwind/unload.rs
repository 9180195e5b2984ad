//! Tests libraries that are loaded and unloaded at the same address: no cached unwind rule may outlive its library.
//!
//! Only one test runs at a time, because all tests load and unload libraries and the loader's counters are
//! process-wide.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/code.rs"]
#[allow(dead_code)]
mod code;
#[path = "support/loads.rs"]
mod loads;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "support/seen.rs"]
mod seen;
#[path = "support/switch.rs"]
mod switch;

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use build::Library;
use code::Code;
use gpuflame_unwind as unwind;
use loads::assert_agreement_during_loads;
use seen::{SEEN, call, capture, twins, use_new_unwinder};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Difference between the twin libraries in bytes: together, the two frames of the second twin are larger by this
/// amount, see `twin.c`.
const LARGER: usize = 2 * 0x100;

/// Calls the function `case` with the argument `hook`, after the stack pointer was lowered by `bytes` bytes.
#[unsafe(naked)]
extern "C-unwind" fn call_lower(
    case: extern "C-unwind" fn(extern "C-unwind" fn()),
    hook: extern "C-unwind" fn(),
    bytes: usize,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc"
    )
}

/// Function to call on the other stack, and the number of bytes by which the stack pointer is lowered for this call.
static CASE: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

extern "C-unwind" fn call_case() {
    // SAFETY: every case is a C function of this type.
    let case = unsafe {
        std::mem::transmute::<usize, extern "C-unwind" fn(extern "C-unwind" fn())>(
            CASE.load(Ordering::Relaxed),
        )
    };
    call_lower(case, seen::look, BYTES.load(Ordering::Relaxed));
}

/// Loads each twin library in turn, calls it on the thread's own stack and on another stack, and unloads it. Returns
/// how often a twin library was loaded at the address that the other twin had.
///
/// Each twin library is called so often that the unwinder caches the path of its stack. Another call is between two of
/// these calls, because otherwise the last-stack cache would return the stack. The callback has the same stack pointer
/// in both twins, so that the cached paths of both twins have the same key.
fn alternate(times: usize, mut between: impl FnMut()) -> usize {
    let twins = twins();
    switch::foreign();
    let mut other_stack = vec![0u128; 4 << 10];
    let top = other_stack[(4 << 10) - 16..].as_mut_ptr().cast::<c_void>();
    let (mut last, mut shared) = (0, 0);
    for turn in 0..times {
        let library = Library::open(&twins[turn % 2]);
        let address = library.symbol("twin") as usize;
        CASE.store(address, Ordering::Relaxed);
        BYTES.store(if turn % 2 == 0 { LARGER } else { 0 }, Ordering::Relaxed);
        for call in 0..8 {
            if call % 2 == 0 {
                call_case()
            } else {
                switch::on_stack(call_case, top)
            };
            let (_, ours, theirs) = SEEN.take();
            assert_eq!(ours, theirs, "in turn {turn}, call {call}");
        }
        library.close();
        between();
        shared += usize::from(address == last);
        last = address;
    }
    shared
}

#[test]
fn a_poll_after_each_unload_keeps_rules_fresh() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(false);
    let shared = alternate(300, || assert!(unwind::poll()));
    assert!(shared > 100, "the loader hardly ever used an address again: {shared}");
}

#[test]
fn a_self_checking_capture_needs_no_poll() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let shared = alternate(300, || {});
    assert!(shared > 100, "the loader hardly ever used an address again: {shared}");
}

#[test]
fn a_self_checking_capture_does_not_wait_for_the_loader() {
    static IS_CAPTURED: AtomicBool = AtomicBool::new(false);
    extern "C" fn hold(_: *mut libc::dl_phdr_info, _: usize, channels: *mut c_void) -> c_int {
        // SAFETY: the thread below passed a pointer to its channels, and waits until this function returns.
        let (held, done) = unsafe { &*channels.cast::<(mpsc::Sender<()>, mpsc::Receiver<()>)>() };
        held.send(()).expect("the test waits");
        // Use a timeout: if a capture waited for the loader's lock, the test would otherwise wait for ever.
        IS_CAPTURED.store(done.recv_timeout(Duration::from_secs(100)).is_ok(), Ordering::SeqCst);
        1
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let ((held, is_held), (done, is_done)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let holder = thread::spawn(move || {
        let mut channels = (held, is_done);
        // The first capture of the test calls the loader to find its unwind rules, so it is made before the lock is
        // held.
        channels.0.send(()).expect("the test waits");
        channels.1.recv().expect("the test has captured");
        // SAFETY: the function `hold` gets the argument that it expects.
        unsafe { libc::dl_iterate_phdr(Some(hold), (&raw mut channels).cast()) };
    });
    for _ in 0..std::hint::black_box(2) {
        is_held.recv().expect("the other thread is ready, then holds the lock");
        capture();
        let _ = done.send(());
    }
    holder.join().expect("it only waits");
    assert!(IS_CAPTURED.load(Ordering::SeqCst), "the capture waited until the loader's lock was free");
}

#[test]
fn a_library_loaded_at_an_address_without_rules_is_recognised_at_once() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let twin = &twins()[0];
    let mut shared = 0;
    for _ in 0..20 {
        let library = Library::open(twin);
        let address = library.symbol("twin");
        call(library, "twin");
        // The address in a frame is one byte before the return address, so that it is inside the call instruction.
        let inner = SEEN.take().1[0] + 1;
        library.close();
        let nothing = Code::that_calls_before(inner);
        nothing.run(seen::look, None, None);
        drop(nothing);
        let library = Library::open(twin);
        shared += usize::from(library.symbol("twin") == address);
        call(library, "twin");
        let (_, ours, theirs) = SEEN.take();
        assert_eq!(ours, theirs);
        library.close();
    }
    assert!(shared > 10, "the loader hardly ever used an address again: {shared}");
}

#[test]
fn more_unloads_than_tags_do_not_revive_old_rules() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(false);
    let library = twins()[0].clone();
    for turn in 0..70_000 {
        let library = Library::open(&library);
        library.close();
        if turn % 256 == 0 {
            unwind::poll();
            alternate(2, || assert!(unwind::poll()));
        }
    }
}

#[test]
fn threads_sharing_rules_during_loads_and_unloads_agree_with_libgcc() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert_agreement_during_loads(false, || {
        unwind::poll();
    });
}
