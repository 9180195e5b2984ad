//! Compares gpuflame's unwinder with libgcc's, on stacks of every shape. The test compiles the functions that build
//! these stacks with gcc.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/oracle.rs"]
mod oracle;

use std::ffi::c_void;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::{env, thread};

use build::{Library, compile};
use oracle::{Addresses, capture_both};

/// Number of callbacks in a case, and the flags of the case's captures. Only one case runs at a time.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static FLAGS: AtomicU32 = AtomicU32::new(0);
static ONE_CASE: Mutex<()> = Mutex::new(());

/// Callback of a case: captures twice and compares both stacks with libgcc's. In the second capture, the unwind rules
/// are already cached.
extern "C-unwind" fn check() {
    check_once();
    check_once();
}

extern "C-unwind" fn check_once() {
    let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
    FLAGS.fetch_or(capture_both(&mut ours, &mut theirs).0, Ordering::Relaxed);
    assert_same(&ours, &theirs);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn assert_same(ours: &Addresses, theirs: &Addresses) {
    // Skip the innermost frame: it is the capturing function, which calls the two unwinders from different
    // instructions.
    assert!(ours.count > 0 && theirs.count > 0, "empty: {} {}", ours.count, theirs.count);
    assert_eq!(hex(&ours.as_slice()[1..]), hex(&theirs.as_slice()[1..]));
}

fn hex(addresses: &[u64]) -> Vec<String> {
    addresses.iter().map(|address| format!("{address:#x}")).collect()
}

/// A case: a C function that takes a callback.
type Case = extern "C-unwind" fn(extern "C-unwind" fn());

/// Compiler options of every build of the C and C++ cases.
const BUILDS: [&[&str]; 5] = [
    &["-O0"],
    &["-O2", "-fomit-frame-pointer"],
    &["-O2", "-fno-omit-frame-pointer"],
    &["-O2", "-fomit-frame-pointer", "-mstackrealign"],
    &["-O2", "-mpreferred-stack-boundary=6", "-mincoming-stack-boundary=4"],
];

/// Runs a case in every build, each time on a new thread, and returns the flags of the case's captures.
fn run(source: &str, case: &str, check: extern "C-unwind" fn()) -> u32 {
    let _alone = ONE_CASE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    FLAGS.store(0, Ordering::Relaxed);
    for options in BUILDS {
        let library = Library::open(&compile(source, options));
        // SAFETY: every case is a C function of this type.
        let case = unsafe { std::mem::transmute::<*mut c_void, Case>(library.symbol(case)) };
        CALLS.store(0, Ordering::Relaxed);
        thread::spawn(move || case(check)).join().unwrap_or_else(|_| panic!("{options:?}"));
        assert!(CALLS.load(Ordering::Relaxed) > 0, "{options:?}: never called back");
    }
    FLAGS.load(Ordering::Relaxed)
}

macro_rules! agrees {
    ($($name:ident: $source:literal $case:literal,)*) => {$(
        #[test]
        fn $name() {
            assert_eq!(run($source, $case, check), 0, "no capture is marked");
        }
    )*};
}

agrees! {
    plain_calls_agree_with_libgcc: "cases.c" "plain",
    frames_that_grow_agree_with_libgcc: "cases.c" "with_alloca",
    realigned_frames_agree_with_libgcc: "cases.c" "realigned",
    a_callback_from_qsort_agrees_with_libgcc: "cases.c" "through_qsort",
    a_tail_call_leaves_no_frame_for_either: "cases.c" "tail_called",
    frames_with_all_registers_saved_agree_with_libgcc: "cases.c" "many_registers",
    a_signal_handler_sees_the_interrupted_stack: "cases.c" "in_signal",
    a_handler_on_an_alternate_stack_sees_the_interrupted_one: "cases.c" "on_alternate_stack",
    a_fault_is_looked_up_at_its_exact_address: "cases.c" "in_fault",
    a_thread_on_a_stack_of_its_user_agrees_with_libgcc: "cases.c" "on_user_stack",
    a_coroutine_agrees_with_libgcc: "cases.c" "coroutine",
    a_stack_after_longjmp_agrees_with_libgcc: "cases.c" "after_longjmp",
    an_ifunc_resolver_in_lazy_binding_agrees_with_libgcc: "lazy.c" "in_resolver",
    frames_that_need_all_registers_agree_with_libgcc: "cases.c" "slow_frames",
    cpp_classes_agree_with_libgcc: "cases.cc" "classes",
    cleanups_of_an_exception_agree_with_libgcc: "cases.cc" "exceptions",
}

/// Runs a case in a separate process, because a failure may crash the process.
fn run_alone(test: &str, case: &str, check: extern "C-unwind" fn()) {
    const OWN: &str = "GPUFLAME_TEST_OWN_PROCESS";
    if env::var_os(OWN).is_some() {
        assert_eq!(run("cases.c", case, check), 0, "no capture is marked");
        return;
    }
    let mut again = Command::new(env::current_exe().expect("a test has a file"));
    let output = again.args(["--exact", test, "--nocapture"]).env(OWN, "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let is_right = output.status.success() && said.contains("1 passed");
    assert!(is_right, "{}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

macro_rules! agrees_alone {
    ($($name:ident: $case:literal $check:ident,)*) => {$(
        #[test]
        fn $name() {
            run_alone(stringify!($name), $case, $check);
        }
    )*};
}

agrees_alone! {
    a_stack_that_has_gone_is_never_looked_at_again: "stacks_that_go" check,
    a_call_of_a_null_pointer_ends_the_stack: "in_null_call" check,
    a_return_address_of_zero_ends_the_stack_until_it_changes: "zero_return" check,
    a_return_address_that_changes_after_the_first_capture_counts_as_changed: "zero_return" check_once,
}
