//! Libraries that come and go at the same address: no rule outlives its library.
//!
//! One test at a time, for all of them load and unload: the loader's counts are the process's.
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

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use build::{Library, compile};
use code::Code;
use gpuflame::unwind;
use seen::{SEEN, call, capture, twins, use_new_unwinder};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Loads each twin in turn, calls it, unloads it, and gives how often one lay where the other had been.
fn alternate(times: usize, mut between: impl FnMut()) -> usize {
    let twins = twins();
    let (mut last, mut shared) = (0, 0);
    for turn in 0..times {
        let library = Library::open(&twins[turn % 2]);
        let address = library.symbol("twin") as usize;
        call(library, "twin");
        let (_, ours, theirs) = SEEN.take();
        assert_eq!(ours, theirs, "in turn {turn}");
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
fn a_capture_that_checks_by_itself_needs_no_poll() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let shared = alternate(300, || {});
    assert!(shared > 100, "the loader hardly ever used an address again: {shared}");
}

#[test]
fn a_capture_that_checks_by_itself_does_not_wait_for_the_loader() {
    extern "C" fn hold(_: *mut libc::dl_phdr_info, _: usize, channels: *mut c_void) -> c_int {
        // SAFETY: the thread below passed its channels, and waits.
        let (held, done) = unsafe { &*channels.cast::<(mpsc::Sender<()>, mpsc::Receiver<()>)>() };
        held.send(()).expect("the test waits");
        let _ = done.recv_timeout(Duration::from_secs(20));
        1
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let ((held, is_held), (done, is_done)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let holder = thread::spawn(move || {
        let mut channels = (held, is_done);
        // The test's first capture learns its rules, for which the loader is asked.
        channels.0.send(()).expect("the test waits");
        channels.1.recv().expect("the test has captured");
        // SAFETY: `hold` gets what it expects.
        unsafe { libc::dl_iterate_phdr(Some(hold), (&raw mut channels).cast()) };
    });
    let mut waited = Duration::ZERO;
    for _ in 0..std::hint::black_box(2) {
        is_held.recv().expect("the other thread is ready, then holds the lock");
        let began = Instant::now();
        capture();
        waited = began.elapsed();
        done.send(()).expect("the other thread waits");
    }
    holder.join().expect("it only waits");
    assert!(waited < Duration::from_secs(10), "the capture waited until the loader's lock was free");
}

#[test]
fn a_library_that_comes_where_nothing_was_known_is_known_at_once() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let twin = &twins()[0];
    let mut shared = 0;
    for _ in 0..20 {
        let library = Library::open(twin);
        let address = library.symbol("twin");
        call(library, "twin");
        // The call itself, before the address that it returns to.
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
fn unloads_beyond_the_tags_of_the_table_bring_no_old_rule_back() {
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
fn threads_that_share_rules_while_libraries_come_and_go_agree_with_libgcc() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let case = compile("cases.c", &["-O2"]);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let case = case.clone();
            thread::spawn(move || {
                use_new_unwinder(false);
                let library = Library::open(&case);
                for _ in 0..300 {
                    for name in ["plain", "realigned", "with_alloca"] {
                        call(library, name);
                        let (_, ours, theirs) = SEEN.take();
                        assert_eq!(ours, theirs);
                    }
                }
            })
        })
        .collect();
    let twins = twins();
    let mut turns = 0;
    while !workers.iter().all(thread::JoinHandle::is_finished) {
        Library::open(&twins[turns % 2]).close();
        unwind::poll();
        turns += 1;
    }
    workers.into_iter().for_each(|worker| worker.join().expect("a worker agrees"));
    assert!(turns > 10, "nothing came or went meanwhile");
}
