//! Tests captures without `_dl_find_object`, as on glibc before 2.35. On such a glibc, the unwinder instead searches a
//! sorted copy of the loader's list of libraries.
//!
//! The tests run one at a time, because they load and unload libraries. The tests run in their own process, because a
//! process that has switched to the sorted copy cannot switch back.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/loads.rs"]
mod loads;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "support/seen.rs"]
mod seen;

use std::sync::{Mutex, MutexGuard};

use build::{Library, compile};
use gpuflame_unwind as unwind;
use loads::assert_agreement_during_loads;
use seen::{SEEN, call, twins, use_new_unwinder};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    unwind::emulate_older_glibc();
    use_new_unwinder(true);
    alone
}

fn assert_agrees(library: Library, name: &str) {
    call(library, name);
    let (_, ours, theirs) = SEEN.take();
    assert_eq!(ours, theirs, "{name}");
    assert!(ours.len() > 4, "{name}");
}

#[test]
fn stacks_agree_with_libgcc() {
    let _alone = alone();
    let plain = Library::open(&compile("cases.c", &["-O2"]));
    for name in ["plain", "with_alloca", "realigned", "through_qsort", "many_registers", "slow_frames"] {
        assert_agrees(plain, name);
    }
    assert_agrees(Library::open(&compile("cases.cc", &["-O2"])), "classes");
}

#[test]
fn libraries_loaded_in_turn_at_one_address_agree_with_libgcc() {
    let _alone = alone();
    let twins = twins();
    let (mut last, mut shared) = (0, 0);
    for turn in 0..300 {
        let library = Library::open(&twins[turn % 2]);
        let address = library.symbol("twin") as usize;
        assert_agrees(library, "twin");
        library.close();
        shared += usize::from(address == last);
        last = address;
    }
    assert!(shared > 100, "the loader hardly ever used an address again: {shared}");
}

#[test]
fn captures_during_library_loads_on_another_thread_agree_with_libgcc() {
    let _alone = alone();
    assert_agreement_during_loads(true, || ());
}
