//! Garbage on a stack may happen to be an address in a library that another thread is unloading. A capture that finds
//! such an address must never read the library's memory after it is unmapped.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "support/seen.rs"]
#[allow(dead_code)]
mod seen;

use std::ffi::c_void;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use build::{Library, compile};
use seen::{capture, use_new_unwinder};

/// Environment variable that is set in the child process that runs the test. The test runs in a child process, because
/// a failure crashes the process.
const CHILD: &str = "GPUFLAME_TEST_UNLOADS";

#[test]
fn unloading_an_object_that_stack_garbage_points_to_is_harmless() {
    if env::var_os(CHILD).is_some() {
        return capture_garbage_while_it_goes();
    }
    let test = env::current_exe().expect("a test is a program");
    let child = Command::new(test).env(CHILD, "1").output().expect("the test runs again");
    assert!(child.status.success(), "{}\n{}", child.status, String::from_utf8_lossy(&child.stderr));
}

fn capture_garbage_while_it_goes() {
    extern "C-unwind" fn look() {
        capture();
    }
    type Function = extern "C-unwind" fn(extern "C-unwind" fn(), u64);
    let garbage = Library::open(&compile("garbage.c", &["-O2"]));
    // SAFETY: SAFETY: `with_garbage` has this type.
    let with_garbage =
        unsafe { std::mem::transmute::<*mut c_void, Function>(garbage.symbol("with_garbage")) };
    let path = compile("large.c", &["-O1"]);
    let library = Library::open(&path);
    let inside = library.symbol("room") as u64;
    library.close();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                Library::open(&path).close();
            }
        });
        use_new_unwinder(true);
        let (began, mut captures) = (Instant::now(), 0);
        // The second thread loads and unloads the library a few hundred times. The library contains so many addresses
        // that the unwind rules of some addresses are never cached.
        while began.elapsed() < Duration::from_secs(1) || captures <= 1000 {
            with_garbage(look, inside + captures % (1 << 16));
            captures += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}
