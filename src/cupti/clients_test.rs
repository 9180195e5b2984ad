//! Tests the state that gpuflame keeps about other CUPTI clients, with a fake CUPTI.
//! `tests/host/other_cupti_clients.rs` tests real clients with the simulated CUDA and CUPTI libraries.

use super::super::api_version::CuptiFunctions;
use super::super::fake::{self, FakeCupti};
use super::super::version::Version;
use super::*;

/// Creates the callback state that would exist after a subscription to the fake CUPTI. The caller must hold the only
/// [`FakeCupti`].
fn shared() -> CallbackState {
    // SAFETY: the fake's functions may be called at any time.
    let functions = unsafe { CuptiFunctions::new(fake::library()) }.unwrap();
    CallbackState::new(functions, Version::OLDEST, false)
}

/// Runs `body` in a forked child, and returns whether it returned true.
fn in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `body`, which takes no lock, and then exits.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::from(!body());
            // SAFETY: `_exit` ends the child without calling the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = -1;
            // SAFETY: `status` has room for the value that `waitpid` writes.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status == 0
        }
    }
}

#[test]
fn a_child_forked_while_records_are_reclaimed_does_not_wait_for_the_parent() {
    let _fake = FakeCupti::start(130_001);
    let shared = Box::leak(Box::new(shared()));
    shared.make_current();
    elapsed_ms();
    let waits = register_unless_called(shared, None, |_| {
        assert!(must_wait(shared), "another thread of the parent");
        let begin = |_: &'static CallbackState, _: &Library| {
            if must_wait(shared) { Status::UNKNOWN } else { Status::SUCCESS }
        };
        Ok::<_, ()>(!in_child(|| forward_call(begin).is_success()))
    });
    assert_eq!(waits, Ok(false));
    assert!(!must_wait(shared));
}

/// In this test, a thread has left a call by a `longjmp`. The thread's next call uses the part of the stack that
/// contained the frame of the abandoned call.
#[test]
fn an_abandoned_call_ends_with_its_threads_next_call() {
    let _fake = FakeCupti::start(130_001);
    let shared = shared();
    std::mem::forget(ClientCall::begin(&shared));
    assert!(is_any_in_call());
    let next = ClientCall::begin(&shared);
    assert!(is_any_in_call());
    drop(next);
    assert!(!is_any_in_call());
}

#[test]
fn a_nested_call_does_not_end_the_outer_call() {
    #[inline(never)]
    fn nested(shared: &CallbackState, depth: usize) {
        let bytes = std::hint::black_box([0_u8; 2 * NESTED_FRAME_BYTES]);
        drop(ClientCall::begin(shared));
        assert!(is_any_in_call());
        if depth > 0 {
            nested(shared, depth - 1);
        }
        std::hint::black_box(bytes);
    }
    let _fake = FakeCupti::start(130_001);
    let shared = shared();
    let outer = ClientCall::begin(&shared);
    nested(&shared, 2);
    drop(outer);
    assert!(!is_any_in_call());
}

#[test]
fn a_function_is_valid_while_its_module_or_mapping_is_unchanged() {
    let function = ClientFunction::none();
    assert_eq!((function.is_registered(), function.address_if_loaded()), (false, None));
    let of_libc = libc::getpid as *mut c_void;
    function.set(of_libc);
    assert_eq!(function.address_if_loaded(), Some(of_libc));
    // Simulates that another module was loaded at the address of the first module.
    function.module.fetch_add(1, SeqCst);
    assert_eq!(function.address_if_loaded(), None);
    // SAFETY: this creates a new mapping at any free address.
    let generated = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(generated, libc::MAP_FAILED);
    function.set(generated);
    assert_eq!(function.address_if_loaded(), Some(generated));
    // SAFETY: this unmaps only the mapping that this test has created.
    assert_eq!(unsafe { libc::munmap(generated, 4096) }, 0);
    assert_eq!(function.address_if_loaded(), None);
}
